"""A party whose operator has finished, running, denied and waiting jobs, asked by a university."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import colonnade as co
from colonnade.console.operator import OperatorService
from colonnade.console.party import PartySite
from colonnade.console.server import Console, Site
from colonnade.data.simulated import five_institutions
from colonnade.errors import AwaitingApproval
from colonnade.federation.coordinator import Federation
from colonnade.federation.method import Method
from colonnade.federation.requester import Signer
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE, make_authority, make_request, sign
from colonnade.federation.transports.embedded import Embedded
from colonnade.privacy.ledger import Budget
from colonnade.secure.sealed import Identity
from colonnade.statistics.describe import Describe

PARTY = "credit"
BUDGET = Budget(epsilon=6.0, delta=1e-6, period_days=365)


def credentials(root: Path) -> Signer:
    """An authority, the party's own certificate, and the coordinator of a university."""
    make_authority(root / "authority", name="Consortium")
    party, university = root / "credentials", root / "university"
    make_request(party, name=PARTY, organisation="Credit Agency", sealing_key=Identity.generate().public)
    sign(root / "authority", party / "request.pem", party / CERTIFICATE, role="party")
    (party / AUTHORITY).write_bytes((root / "authority" / AUTHORITY).read_bytes())
    make_request(university, name="coordinator", organisation="University", hosts=("127.0.0.1",))
    sign(root / "authority", university / "request.pem", university / CERTIFICATE, role="coordinator")
    return Signer(university)


class Operated:
    """Three institutions that ask their operators, on one machine; `service` is the credit agency's."""

    def __init__(self, root: Path, *, n: int = 400) -> None:
        self.root = root
        example = five_institutions(n, seed=7)
        held = {"credit": ["roa", "roe"], "commerce": ["profit_growth", "capital"], "market": ["inspections"]}
        blocks = {name: example.blocks[name][["firm", *columns]] for name, columns in held.items()}
        signer = credentials(root)
        self.federation = Federation.local(
            blocks,
            key="firm",
            columns=example.columns.select([name for each in held.values() for name in each]),
            home=root / "home",
            runs=root / "runs",
            approve="ask",
            budget=BUDGET,
            allow=("exact-moments", "presence"),
            coordinator="University",
        )
        self.federation._signer = signer
        assert isinstance(self.federation.transport, Embedded)
        self.parties = {name: self.federation.transport[name] for name in held}
        for party in self.parties.values():
            party._authority = root / "authority" / AUTHORITY
        self.file = root / "party.toml"
        self.file.write_text(
            f'consortium = "consortium.toml"\nname = "{PARTY}"\nsource = "credit.csv"\nhome = "home/{PARTY}"\n'
            '[policy]\napprove = "ask"\nallow = ["exact-moments", "presence"]\n'
            f"[budget]\nepsilon = {BUDGET.epsilon}\ndelta = {BUDGET.delta}\nperiod_days = {BUDGET.period_days}\n"
        )
        self.service = OperatorService(self.file)

    def ask(self, method: Method[Any], name: str) -> RunFolder:
        """Propose a job, which then waits at all three."""
        with contextlib.suppress(AwaitingApproval):
            self.federation.run(method, name=name, sure=True)
        return RunFolder.open(self.root / "runs" / name)

    def decide(self, run: RunFolder, *, approve: bool = True, but: str = "") -> None:
        for name, party in self.parties.items():
            if name != but:
                party.decide(run.job["job"], approve=approve)

    def finish(self, run: RunFolder) -> None:
        self.federation.resume(run.path)

    def begin(self, method: Describe, name: str) -> None:
        """An approved job that stops after its first stage."""
        run = self.ask(method, name)
        self.decide(run)
        plan = self.federation.plan(method)
        with contextlib.suppress(KeyboardInterrupt), self.federation._job(plan, run, None) as job:
            job.ask(plan.stage("presence"))
            raise KeyboardInterrupt

    def close(self) -> None:
        self.federation.close()


@contextlib.contextmanager
def busy_party(root: Path, **options: Any) -> Iterator[Operated]:
    """One job of each state."""
    made = Operated(root, **options)
    try:
        first = made.ask(Describe(epsilon=2.4, delta=1e-6), "first look")
        made.decide(first)
        made.finish(first)
        made.begin(Describe(epsilon=1.6, delta=1e-6, marginals="histogram"), "quantiles")
        made.decide(made.ask(Describe(epsilon=3.0), "too much"), approve=False)
        made.ask(co.Regress(response="profit_growth"), "regression")
        made.ask(co.PCA(epsilon=1.0, delta=1e-6, n_components=2), "components")
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def served(shown: OperatorService | Site) -> Iterator[tuple[Console, str]]:
    """A console, and the link that lets one browser in."""
    console = Console(PartySite(shown) if isinstance(shown, OperatorService) else shown)
    link = console.start()
    try:
        yield console, link
    finally:
        console.close()


class Visitor:
    """A client that is no browser: it sends exactly what a test wants."""

    def __init__(self, console: Console, *, inside: bool = True) -> None:
        self.console, self.cookie = console, ""
        if inside:
            link = urlsplit(console.new_link())
            answer = self.get(f"{link.path}?{link.query}")
            assert answer.status == 303
            self.set_cookie = answer.headers["Set-Cookie"]
            self.cookie = self.set_cookie.partition(";")[0]

    def send(
        self, method: str, path: str, body: str | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.console.port, timeout=10)
        stated = {"Host": f"127.0.0.1:{self.console.port}", **({"Cookie": self.cookie} if self.cookie else {})}
        stated |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if body is not None:
            stated = {
                "Content-Type": "application/x-www-form-urlencoded",
                "Content-Length": str(len(body.encode())),
                **stated,
            }
        for name, value in stated.items():
            connection.putheader(name, value)
        connection.endheaders(None if body is None else body.encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        return self.send("GET", path, **headers)[0]

    def page(self, path: str = "", **headers: str) -> str:
        answer, text = self.send("GET", self.console.base + path, **headers)
        assert answer.status == 200, (path, answer.status, text)
        return text

    def form_token(self) -> str:
        found = re.search(r'name="form" value="([^"]+)"', self.page())
        assert found
        return found.group(1)

    def decide(self, job: str, choice: str, **headers: str) -> tuple[int, str]:
        return self.post("decide", {"job": job, "choice": choice}, **headers)

    def post(self, action: str, fields: dict[str, str], **headers: str) -> tuple[int, str]:
        """A form as a browser sends it."""
        body = urlencode({"form": self.form_token(), **fields})
        answer, text = self.send(
            "POST", f"{self.console.base}{action}", body, **{"Origin": self.console.origin, **headers}
        )
        return answer.status, text
