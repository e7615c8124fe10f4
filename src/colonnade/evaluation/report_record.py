"""The end of every report: the plan as it was agreed, and the transcript of what crossed the coordinator's border."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from colonnade.durable import Database
from colonnade.evaluation.page import Html, folded, paragraph, section, table, tag
from colonnade.federation.plan import Plan
from colonnade.federation.transcript import Transcript
from colonnade.formatting import size, timestamp
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.wording import pair

MOST_MESSAGES = 5_000


def plan_section(plan: Plan) -> Html:
    rows = [
        (one.name, one.step, party, str(one.counts[party]), pair(guarantee([cost], delta=plan.delta)), one.audience)
        for one in plan.stages
        for party, cost in one.costs.items()
    ]
    options = ", ".join(f"{name} = {value}" for name, value in plan.options.items() if value is not None)
    head = ("phase", "step", "party", "requests", "(epsilon, delta), zero-out", "seen by")
    return section(
        "The plan",
        paragraph(
            f"Agreed before any data was touched: {plan.rounds()} rounds in {len(plan.stages)} phases,"
            f" method {plan.method} with {options}."
        ),
        *(paragraph(note) for note in plan.notes),
        folded("Requests and costs of each party", table(head, rows, label="Phases of the plan", numeric=(3,))),
    )


def transcript_section(path: Path) -> Html:
    with closing(Database(path, read_only=True)) as database:
        transcript = Transcript(database, create=False)
        head = transcript.verify()
        bodies = [(row.number, row.body) for row in transcript.rows()]
    rows = [
        (
            str(number),
            timestamp(body["time"]),
            f"{'to' if body['direction'] == 'out' else 'from'} {body['peer']}",
            body["kind"],
            body["step"],
            str(body["seq"]),
            f"{body['bytes']:,}",
            body["payload"][:12],
        )
        for number, body in bodies[:MOST_MESSAGES]
    ]
    left_out = len(bodies) - len(rows)
    names = ("no.", "time", "message", "kind", "step", "request", "bytes", "hash begins")
    return section(
        "The transcript",
        paragraph(
            f"{head.rows:,} messages, {size(sum(body['bytes'] for _, body in bodies))}, crossed the coordinator's"
            " border. Their chain of hashes is intact; it ends in ",
            tag("code", head.hash[:16]),
            ".",
        ),
        folded(
            "Every message",
            table(names, rows, label="Messages of this run", numeric=(0, 5, 6)),
            paragraph(f"The other {left_out:,} are in transcript.db.") if left_out else None,
        ),
    )
