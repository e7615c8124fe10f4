"""`FedPSG`: the FedPSG-CAG paper's completion, read with corrections (co.Complete has what we found better).

1. A regression across the parties predicts the columns of a party that lacks records (`condition="aligned"`; the paper
   has no such thing, and `"none"` is the paper).
2. The party chooses `n_correlated` of its columns and draws them for the missing records with a local generator, given
   those predictions or not (`drawn.py`).
3. A vertical GAN (`gain.py`, `gan.py`) or another imputer fills in the rest.

`claim.md` in `completion` says who learns what. The generated columns of a local generator carry no noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np

from colonnade.completion.layout import Layout
from colonnade.completion.method import ONE_VALUE, Completing, CompletionMethod, assumed
from colonnade.completion.split.exchange import Keys
from colonnade.completion.split.session import predictions
from colonnade.completion.split.training import Regression, Training
from colonnade.completion.steps import COMPLETED_COST, FileFormat, OwnTable, cells_of, imputed, write_completion
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import method_class
from colonnade.federation.options import Option
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Stage, fields_of
from colonnade.federation.step import Release, Step, step
from colonnade.papers.fedpsg.drawn import draw_correlated, given_drawn, with_drawn
from colonnade.papers.fedpsg.gan import (
    GENERATED,
    GanRounds,
    GanSession,
    GanTraining,
    keep_context,
    keep_labels,
    share_labels,
)

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

GANS = ("gain", "vgain", "cgain")
Imputer = Literal["gain", "vgain", "cgain", "regression", "copula-mean", "copula-draw", "mice", "mean"]


@method_class
class FedPSG(CompletionMethod):
    """Fill in the records that parties lack, with columns that a generator draws and others that networks fill in.

    Returns
    -------
    `fit(federation)` gives a `Completion`: `table(party)` is a completed table, `quality(party)` its errors.

    Example
    -------
    >>> from colonnade.papers import FedPSG
    >>> method = FedPSG(imputer="mean", n_correlated=2, generator="copula", condition="none", parties=("market",))
    >>> len(method.fit(federation).chosen["market"])
    2
    """

    name: ClassVar[str] = "fedpsg"
    trained: ClassVar[tuple[str, ...]] = ("regression", *GANS)

    imputer: Annotated[
        Imputer,
        Option(
            "What fills in the columns that were not drawn: a vertical GAN (gain, variational vgain, or cgain, which"
            " conditions on `label`), or an imputer of `complete`."
        ),
    ] = "gain"
    n_correlated: Annotated[
        int,
        Option(
            "Columns that a local generator draws before the rest is filled in; 0 leaves all to the imputer.", least=0
        ),
    ] = 5
    generator: Annotated[Literal["tabddpm", "tvae", "copula"], Option("Of the columns that are drawn.")] = "tabddpm"
    generator_steps: Annotated[int, Option("Of the generator's training.", least=1, most=1_000_000)] = 2000
    condition: Annotated[
        Literal["aligned", "none"],
        Option(
            "Condition drawn columns, and a GAN's generator, on what the other parties know about the record; or on"
            " nothing, as in the paper."
        ),
    ] = "aligned"
    hide: Annotated[
        float,
        Option(
            "Share of a completed party's blocks that are hidden from its generator in each batch of a GAN, although"
            " they are there; the paper hides none.",
            least=0,
            below=1,
        ),
    ] = 0.5

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """As the paper's first experiment: five columns drawn by TabDDPM, the rest by VF-GAIN, 10,000 iterations of
        both, Adam at 1e-3, dropout 0.5, hidden vectors under CKKS.

        The networks have hint 0.9, LeakyReLU 0.2 and GAIN's alpha, as printed. The paper is silent about sizes of
        layers and batches (ours stay), about when vectors are exchanged (here in every iteration), and about when to
        stop (here after all iterations; the best state by hidden records is taken). Its ten epochs are not ours, which
        belong to training with noise, of which it has none.
        """
        printed: dict[str, Any] = {
            "imputer": "gain",
            "n_correlated": 5,
            "generator": "tabddpm",
            "generator_steps": 10_000,
            "condition": "none",
            "hide": 0.0,
            "masking": "ckks",
            "iterations": 10_000,
            "local": 1,
            "learning_rate": 1e-3,
            "dropout": 0.5,
            "patience": 10_000,
        }
        return cls(**{**printed, **changes})

    @property
    def uses_networks(self) -> bool:
        return super().uses_networks or self.regresses

    @property
    def regresses(self) -> bool:
        """Is a regression across the parties needed?"""
        if self.imputer == "regression":
            return True
        return self.condition == "aligned" and (self.n_correlated > 0 or self.imputer in GANS)

    def check(self) -> None:
        super().check()
        if self.imputer == "cgain" and self.label is None:
            raise BadArguments("imputer='cgain' conditions on a label; name its column with label=.")

    def check_private(self) -> None:
        if self.imputer not in self.trained or self.n_correlated or (self.label and self.imputer != "cgain"):
            raise BadArguments(
                "epsilon is for imputer='regression', 'gain', 'vgain' or 'cgain' with n_correlated=0, and a label for"
                " 'cgain' only: no other part of a completion is trained privately here."
            )

    def missing_data(self) -> str:
        aligned = self.condition == "aligned"
        if self.imputer not in GANS:
            others = assumed(self.imputer)
        elif aligned:
            others = (
                "What a party lacks is predicted as in the records that it shares with another party, and a GAN"
                " corrects the predictions: right if records are missing at random given the other parties' columns."
            )
        else:
            known = "nothing but its label" if self.imputer == "cgain" else "nothing"
            others = (
                f"What a party lacks is generated with {known} of what the other parties know about the record: right,"
                " as a distribution, if records are missing completely at random."
            )
        if not self.n_correlated:
            return f"{others} {ONE_VALUE}"
        drawn = (
            "given what a regression on the records that it shares with another party expects"
            if aligned
            else "as in the records that it has, whatever the other parties know about the record, which is right if"
            " records are missing completely at random"
        )
        return f"{others} Up to {self.n_correlated} of its columns are drawn {drawn}. {ONE_VALUE}"

    def procedure(self, facts: PublicFacts, roster: Roster) -> DrawingFirst:
        return DrawingFirst(self, facts, roster)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.completion.attacks import weights_attacks

        return weights_attacks(cls, imputer="gain", n_correlated=0)


# --- the party's last step ----------------------------------------------------------------------------------------


@step(cost=COMPLETED_COST)
def complete_drawn(
    me: Party,
    *,
    imputer: Imputer,
    training: dict[str, Any] | None,
    linear: dict[str, Any],
    validation: float,
    seed: int,
    file_format: FileFormat,
) -> Release:
    """`complete`, with a GAN's values and with the columns that were drawn first."""
    table = OwnTable.of(me, validation=validation, seed=seed)
    drawn = me.kept(GENERATED)
    if training is not None and imputer in GANS:
        session = GanSession.resume(me, GanTraining.from_dict(training))
        session.look(me)
        values = session.values(table.wanted, session.best_state(me))
        values = np.where(np.isnan(values), table.means, values).astype(np.float32)
    elif training is not None and imputer == "regression" and drawn:
        predicted = predictions(me, Regression.from_dict(training))
        values = given_drawn(me, table, predicted, seed)[table.wanted]
        values = np.where(np.isnan(values), table.means, values).astype(np.float32)
    else:
        values = imputed(me, table, imputer, training, linear, seed)
    cells = cells_of(me, table, imputer, training, linear, seed)
    return write_completion(me, table, with_drawn(me, table, values) if drawn else values, cells, file_format)


# --- the coordinator's procedure ----------------------------------------------------------------------------------


class DrawingFirst(Completing):
    """Between the regressions and the last step: draw columns, share labels, train the GAN."""

    complete_step: ClassVar[Step] = complete_drawn
    method: FedPSG

    def trainings(self) -> list[Training]:
        regressions = [self.regression(f"regression for {target}", target) for target in self.targets]
        gan = [self.gan()] if self.method.imputer in GANS else []
        return [*(regressions if self.method.regresses else []), *gan]

    def gan(self) -> GanTraining:
        """The imputation GAN over all parties; the first that may be completed has the top discriminator."""
        method, columns = self.method, self.facts.columns
        labels = 0
        if method.imputer == "cgain":
            label = str(method.label)
            labels = Layout(columns[self.facts.owner(label)].select([label])).width
        predicted = method.condition == "aligned"
        constants = {**self.constants(), "dropout": 0.5, "hidden": min(method.hidden, 64)}
        return GanTraining(
            label=method.imputer,
            kind=method.imputer,  # type: ignore[arg-type]
            active=self.targets[0],
            parties=self.facts.parties,
            inputs={party: tuple(names) for party, names in columns.items()},
            context={target: labels + (Layout(columns[target]).width if predicted else 0) for target in self.targets},
            predicted=predicted,
            hide=method.hide,
            **constants,
        )

    def further_stages(self) -> tuple[Stage, ...]:
        method, planner, stages = self.method, self.planner, list[Stage]()
        conditions = {
            target: self.regressions[target].training.to_dict() if method.condition == "aligned" else None
            for target in self.targets
            if method.n_correlated or method.imputer in GANS
        }
        if method.n_correlated:
            options = {
                "count": method.n_correlated,
                "generator": method.generator,
                "steps": method.generator_steps,
                "validation": method.validation,
                "seed": method.seed,
            }
            self.draw = planner(
                "generate",
                draw_correlated,
                {target: [{**options, "training": training}] for target, training in conditions.items()},
                "the names of the chosen columns",
                200,
            )
            stages.append(self.draw)
        if method.imputer == "cgain":
            label = {"label": str(method.label)}
            sharing = {self.facts.owner(str(method.label)): [{**label, "members": list(self.facts.parties)}]}
            keeping = {party: [label] for party in self.facts.parties}
            self.share_labels = planner(
                "share labels",
                share_labels,
                sharing,
                "labels, sealed",
                self.facts.n * 4,
                recipients=self.facts.parties,
            )
            self.keep_labels = planner("keep labels", keep_labels, keeping, "nothing")
            stages += [self.share_labels, self.keep_labels]
        if method.imputer in GANS:
            labels = method.imputer == "cgain"
            self.context = planner(
                "context",
                keep_context,
                {target: [{"training": training, "labels": labels}] for target, training in conditions.items()},
                "nothing",
            )
            self.gan_rounds = GanRounds(self.networks[-1], planner, settled=self._settled())
            stages += [self.context, *self.gan_rounds.stages]
        return tuple(stages)

    def finishing(self, target: str) -> dict[str, Any]:
        described = super().finishing(target)
        if self.method.imputer in GANS:
            described["training"] = self.gan_rounds.training.to_dict()
        return described

    def _settled(self) -> Later:
        """What is known of the GAN only when it starts."""
        planned = self.networks[-1]
        assert isinstance(planned, GanTraining)

        def drawn(given: Any) -> bool:
            return set(given) <= set(planned.context) and all(
                len(set(names)) == len(names) <= self.method.n_correlated and set(names) <= set(planned.inputs[party])
                for party, names in given.items()
            )

        def completed(context: Any) -> bool:
            return all(type(width) is int and planned.context[party] == width for party, width in context.items())

        rule = "the planned one, for the parties that lack records and with the columns that they have drawn"
        return fields_of(rule, given=drawn, context=completed)

    def settled_later(self) -> dict[str, Later]:
        return {**super().settled_later(), **(self.gan_rounds.later if self.method.imputer in GANS else {})}

    def further(
        self, job: Job, keys: Keys, targets: Sequence[str], histories: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], Mapping[str, tuple[str, ...]]]:
        chosen: dict[str, tuple[str, ...]] = {}
        if self.method.n_correlated:
            drawn = job.ask_each(self.draw, {target: {} for target in targets})
            chosen = {party: tuple(names) for party, names in drawn.items()}
        if self.method.imputer not in GANS:
            return {}, chosen
        if self.method.imputer == "cgain":
            job.ask(self.share_labels)
            job.ask(self.keep_labels)
        planned = self.gan_rounds.training
        assert isinstance(planned, GanTraining)
        context = {target: planned.context[target] for target in targets}
        training = replace(planned, given=chosen, context=context)
        if any(context.values()):
            job.ask_each(self.context, {target: {} for target in targets})
        histories[training.label] = self.gan_rounds.run(job, keys, training=training).to_dict()
        return {target: {"training": training.to_dict()} for target in targets}, chosen
