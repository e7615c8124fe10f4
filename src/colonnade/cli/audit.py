"""`colonnade audit METHOD`: the attacks that try to refute a method's privacy claim, on simulated data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.output import PRIVACY, AsJson, Output

if TYPE_CHECKING:
    from colonnade.evaluation.attacks.catalogue import Finding


def audit(
    method: Annotated[
        str,
        typer.Argument(
            help="A method as `colonnade run` names it, VertiMRF with its encoder (vertimrf-sqm, say), or `all`.",
            show_default=False,
        ),
    ],
    planted: Annotated[
        str | None,
        typer.Option("--planted", help="Plant a bug that must be found: noise/1.4, silent-member, forgotten-split."),
    ] = None,
    effort: Annotated[float, typer.Option("--effort", help="Times the usual runs: more runs, more power.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the simulation; another seed is another audit.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Attack a method on simulated data, and print claimed epsilons beside what the attacks prove.

    An audit can refute a claim, never prove it. Exits with 4 if a claim of ours falls or a planted bug is missed.
    """
    from colonnade.audit.planted import NOTHING, Planted
    from colonnade.evaluation.attacks.catalogue import as_expected, audit_method, methods

    out = Output(quiet=as_json)
    bug = NOTHING if planted is None else Planted.parse(planted)
    found: list[Finding] = []
    for name in methods(bug) if method == "all" else (method,):
        with out.busy(f"attacking {name}"):
            found += audit_method(name, planted=bug, effort=effort, seed=seed)
    fine = as_expected(found)
    if as_json:
        out.json({"planted": str(bug), "as_expected": fine, "findings": [one.to_dict() for one in found]})
    else:
        _show(found, fine, out, planted=None if planted is None else str(bug))
    if not fine:
        raise typer.Exit(PRIVACY)


def _show(found: list[Finding], fine: bool, out: Output, *, planted: str | None) -> None:
    out.table(
        "Attacks on simulated data" + (f"; planted: {planted}" if planted else ""),
        ("method", "attack", "claim", "epsilon claimed", "proved at least", "delta", "confidence", "power", "verdict"),
        [
            (
                one.method,
                one.attack,
                one.claim if one.ours else f"{one.claim} (a paper's)",
                f"{one.claimed_epsilon:.3g}",
                f"{one.epsilon_lower_bound:.3g}",
                f"{one.delta:g}",
                f"1 - {1 - one.confidence:.0e}",
                "-" if one.power is None else f"{one.power:.3f}",
                one.verdict,
            )
            for one in found
        ],
        numeric=(3, 4, 5, 6, 7),
    )
    out.say()
    out.say("Claimed: an upper bound on what a person loses. Proved: a lower bound, from the attack's hits.")
    out.say(f"Power: the chance to notice {planted or 'noise / 1.4'}.")
    out.say("A claim is tested on its whole curve, so it may fall though the bound at this delta stays below it.")
    out.say("One that is not refuted is not thereby proved.")
    if planted:
        out.result("The planted bug was found." if fine else "The planted bug was NOT found; try --effort 10.")
        return
    ours, others = [one for one in found if one.ours], [one for one in found if not one.ours]
    told = []
    if ours:
        told.append(f"{sum(not one.refuted for one in ours)} of {len(ours)} claims of ours stand.")
    if others:
        told.append(f"{sum(one.refuted for one in others)} of {len(others)} claims of papers fall, as documented.")
    out.result(" ".join(told))
