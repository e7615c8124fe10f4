"""The networks of a completion, as public descriptions: what follows from the method's options and the public facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from colonnade.completion.layout import Layout
from colonnade.completion.options import GANS
from colonnade.completion.split import private
from colonnade.completion.split.training import Network, Training
from colonnade.federation.facts import PublicFacts

if TYPE_CHECKING:
    from colonnade.completion.method import FedPSG

SMALL, SMALL_DROPOUT = 5000, 0.5
"""Below so many records in the cohort networks drop half of their hidden units, unless told otherwise: they overfit."""


def regression(method: FedPSG, facts: PublicFacts, target: str) -> Training:
    """The network that predicts a party's columns from the others'."""
    made = _training(
        method,
        facts,
        label=f"regression for {target}",
        network="regressor",
        active=target,
        parties=(*(party for party in facts.parties if party != target), target),
        inputs={party: tuple(columns) for party, columns in facts.columns.items() if party != target},
        outputs=tuple(facts.columns[target]),
    )
    return _private(method, made, facts)


def gan(method: FedPSG, facts: PublicFacts, given: Mapping[str, tuple[str, ...]], targets: tuple[str, ...]) -> Training:
    """The imputation GAN over all parties; the first that may be completed has the top discriminator."""
    network: Network = method.imputer  # type: ignore[assignment]
    labels = (
        0
        if method.imputer != "cgain"
        else Layout(facts.columns[facts.owner(str(method.label))].select([str(method.label)])).width
    )
    told = method.condition == "aligned"
    made = _training(
        method,
        facts,
        label=f"{method.imputer}",
        network=network,
        active=method.targets(facts)[0],
        parties=facts.parties,
        inputs={party: tuple(columns) for party, columns in facts.columns.items()},
        rows="all",
        given=dict(given),
        context={party: labels + (Layout(facts.columns[party]).width if told else 0) for party in targets},
        told=told,
        dropout=0.5,
        hidden=min(method.hidden, 64),
    )
    return _private(method, made, facts)


def _private(method: FedPSG, training: Training, facts: PublicFacts) -> Training:
    """With noise, if `epsilon` asks for it: one budget for all trainings of all parties that may be completed."""
    if method.epsilon is None:
        return training
    plain = replace(method, epsilon=None)
    every = [regression(plain, facts, target) for target in method.targets(facts)] if method.regresses else []
    if method.imputer in GANS:
        every.append(gan(plain, facts, {}, method.targets(facts)))
    silent = [_clipped(method, one) for one in every]
    mu = private.noise_for(silent, facts, epsilon=method.epsilon, delta=method.delta)
    return replace(_clipped(method, training), mu=mu)


def _clipped(method: FedPSG, training: Training) -> Training:
    dropout = training.dropout if training.gan else 0.0
    return replace(training, clip=method.clip, gamma=private.GAMMA, epochs=method.epochs, dropout=dropout)


def classifier(method: FedPSG, facts: PublicFacts, *, completed: bool) -> Training:
    """The label from all parties' columns, on the records that all have, or on completed ones."""
    label = str(method.label)
    holder = facts.owner(label)
    return _training(
        method,
        facts,
        label="classifier with completed records" if completed else "classifier without completed records",
        network="regressor",
        active=holder,
        parties=(*(party for party in facts.parties if party != holder), holder),
        inputs={party: tuple(one for one in columns if one != label) for party, columns in facts.columns.items()},
        outputs=(label,),
        rows="completed" if completed else "complete",
    )


def _training(method: FedPSG, facts: PublicFacts, **stated: Any) -> Training:
    options: dict[str, Any] = {
        "protect": method.protect,
        "iterations": method.iterations,
        "local": method.local,
        "batch": min(method.batch, facts.n),
        "rate": method.rate,
        "hidden": method.hidden,
        "cut": method.cut,
        "dropout": (SMALL_DROPOUT if facts.n < SMALL else 0.1) if method.dropout is None else method.dropout,
        "seed": method.seed,
        "validation": method.validation,
        "patience": method.patience,
        "every": max(250 // method.local, 1),
    }
    return Training(**{**options, **stated})
