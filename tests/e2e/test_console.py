"""The operator's console: who gets in, what the pages show, and that a decision reaches the party.

Oracle of the figures: the ledger's own accounting. Every page is also shown in a browser: keyboard, light and dark,
phone width, accessibility, nothing from outside.
"""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

import pytest
from typer.testing import CliRunner

from colonnade.catalogue import CATALOGUE
from colonnade.cli.main import app
from colonnade.console.operator import OperatorService
from colonnade.console.party import PartySite
from colonnade.console.server import Console
from colonnade.federation.job import proposal
from colonnade.federation.messages import Reply, Request
from colonnade.federation.policy import ASK
from colonnade.federation.run_folder import RunFolder
from colonnade.statistics.describe import Describe
from support.browser import DESK, PHONE, Watched
from support.operators import BUDGET, PARTY, Operated, Visitor, busy_party, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = ("", "requests", "budget", "ledger", "transcript", "runs")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with busy_party(tmp_path_factory.mktemp("busy")) as made:
        yield made


@pytest.fixture(scope="module")
def console(busy: Operated) -> Iterator[Console]:
    with served(busy.service) as (made, _):
        yield made


# --- who gets in ------------------------------------------------------------------------------------------


def test_without_the_token_everything_is_401(console: Console, busy: Operated) -> None:
    stranger = Visitor(console, inside=False)
    job = busy.service.waiting()[0].name
    paths = [console.base + page for page in (*PAGES, f"requests/{job}", "enter", "enter?token=", "enter?token=x")]
    for path in [*paths, "/", "/favicon.ico", "/../etc/passwd", "/nowhere"]:
        answer, text = stranger.send("GET", path)
        assert answer.status == 401, path
        assert PARTY not in text
        assert job not in text
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        status = stranger.send(method, f"{console.base}decide", "" if method == "POST" else None)[0].status
        assert status == 401, method
    assert stranger.send("POST", f"{console.base}decide", f"job={job}&choice=approve")[0].status == 401
    forged = stranger.get(console.base, Cookie=f"{console.cookie}=guess")
    assert forged.status == 401
    assert busy.service.job(job).state == "waiting"


def test_a_link_works_once_and_a_new_one_is_printed(busy: Operated) -> None:
    printed: list[str] = []
    console = Console(PartySite(busy.service), said=printed.append)
    try:
        link = urlsplit(console.start())
        stranger = Visitor(console, inside=False)
        first = stranger.get(f"{link.path}?{link.query}")
        assert (first.status, first.headers["Location"]) == (303, console.base)
        cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert f"Path={console.base}" in cookie, "no server on another port of this machine is shown the cookie"
        assert stranger.get(f"{link.path}?{link.query}").status == 401
        assert len(printed) == 1
        assert printed[0] != link.geturl()
    finally:
        console.close()


def test_leaving_ends_the_session(console: Console) -> None:
    visitor = Visitor(console)
    form = urlencode({"form": visitor.form_token()})
    assert visitor.send("POST", f"{console.base}leave", form, Origin=console.origin)[0].status == 200
    assert visitor.get(console.base).status == 401


def test_only_the_loopback_is_served(console: Console) -> None:
    assert console._server.server_address[0] == "127.0.0.1"
    others = {one[4][0] for one in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        if not str(address).startswith("127."):
            with pytest.raises(OSError), socket.create_connection((str(address), console.port), timeout=1):
                pass


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "10.0.0.1:{port}"])
def test_a_name_that_points_here_is_refused(console: Console, host: str) -> None:
    visitor = Visitor(console)
    assert visitor.get(console.base, Host=host.format(port=console.port)).status == 421


def test_names_of_this_machine_and_a_tunnel_are_fine(console: Console) -> None:
    visitor = Visitor(console)
    for host in ("localhost", f"localhost:{console.port}", "127.0.0.1:9999", "[::1]:80"):
        assert visitor.get(console.base, Host=host).status == 200, host


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_requests_from_another_site_fail(console: Console, busy: Operated, headers: dict[str, str]) -> None:
    visitor = Visitor(console)
    job = busy.service.waiting()[0].name
    assert visitor.decide(job, "approve", **headers)[0] == 403
    assert visitor.get(console.base, **headers).status == 403
    assert busy.service.job(job).state == "waiting"


def test_a_form_without_origin_or_with_another_sessions_word_fails(console: Console, busy: Operated) -> None:
    job = busy.service.waiting()[0].name
    one, other = Visitor(console), Visitor(console)
    good = {"job": job, "choice": "approve"}

    def sent(fields: dict[str, str], **headers: str) -> int:
        return one.send("POST", f"{console.base}decide", urlencode(fields), **headers)[0].status

    here = {"Origin": console.origin}
    assert sent({**good, "form": one.form_token()}) == 403
    assert sent(good, **here) == 403
    assert sent({**good, "form": other.form_token()}, **here) == 403
    assert sent({**good, "form": one.form_token(), "choice": "both"}, **here) == 404
    assert sent({**good, "form": one.form_token()}, Content_Type="text/plain", **here) == 400
    assert sent({**good, "form": "x" * 20_000}, **here) == 413
    assert busy.service.job(job).state == "waiting"


def test_every_answer_forbids_what_it_does_not_need(console: Console) -> None:
    visitor = Visitor(console)
    for answer in (visitor.get(console.base), Visitor(console, inside=False).get("/")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"


def test_addresses_that_lead_nowhere(console: Console) -> None:
    visitor = Visitor(console)
    for path in ("nowhere", "ledger/1", "requests/nobody", "ledger?before=x", "transcript?before=-1"):
        assert visitor.get(console.base + path).status == 404, path
    assert visitor.send("PUT", console.base)[0].status == 405


# --- what the pages show ----------------------------------------------------------------------------------


def test_the_figures_are_the_ledgers(console: Console, busy: Operated) -> None:
    visitor = Visitor(console)
    spent = busy.parties[PARTY].ledger.spent(delta=BUDGET.delta)
    assert f"{BUDGET.epsilon - spent.epsilon:.3g}" in visitor.page("budget")
    assert f"epsilon {spent.epsilon:.3g} at delta 1e-06" in visitor.page("budget")
    head = busy.parties[PARTY].ledger.chain.head()
    assert f"Intact: {head.rows} rows, ending in {head.hash[:16]}" in visitor.page("ledger")
    assert "1 of at most 3 requests answered" in visitor.page("runs")
    assert "3 of at most 3 requests answered" in visitor.page("runs")
    assert visitor.page("requests").count("Read the plan and decide") == len(busy.service.waiting()) == 2


def test_a_request_says_what_leaves_and_who_asks(console: Console, busy: Operated) -> None:
    visitor = Visitor(console)
    components, regression = busy.service.waiting()
    text = visitor.page(f"requests/{components.name}")
    assert "University" in text
    assert "Secret shares of quantised rows and of noise" in text
    assert "makes the very same plan" in text
    assert "roa, roe" in text
    assert "2.72 times" in text  # e^1
    text = visitor.page(f"requests/{regression.name}")
    assert "without a bound" in text
    assert "Your policy allows it by name" in text
    finished = next(job for job in busy.service.jobs() if job.state == "closed")
    text = visitor.page(f"requests/{finished.name}")
    assert "approved by the operator" in text
    assert "Your budget" not in text, "its cost is part of what was spent"
    assert "Your decision" not in text
    assert "the coordinator&#x27;s" not in text


def test_what_an_operator_reads_is_what_this_installation_would_do(console: Console, busy: Operated) -> None:
    """One sentence in the console, on the command line, in Python and in the catalogue, with this installation's own
    options and its own assumption about missing data."""
    visitor = Visitor(console)
    for job in busy.service.waiting():
        method = CATALOGUE.make(job.plan.method, job.plan.options)
        purpose = type(method).purpose()
        helped = CliRunner().invoke(app, [job.plan.method, "--help"]).output
        assert purpose in " ".join(helped.split())
        assert CATALOGUE.entry(job.plan.method).purpose() == purpose
        listed = CliRunner().invoke(app, ["party", "requests", str(busy.file)]).output
        page = html.unescape(visitor.page(f"requests/{job.name}"))
        for text in (purpose, method.missing_data()):
            assert text in page
        assert purpose in html.unescape(visitor.page("requests"))
        assert purpose in listed
        assert json.dumps(method.options(), indent=2, ensure_ascii=False) in page


def test_a_method_that_this_party_does_not_run_is_not_explained_in_the_coordinators_words(tmp_path: Path) -> None:
    """Its name may be that of a method of this installation, or of none; its options may be nonsense."""
    with busy_party(tmp_path) as busy:
        plan = busy.federation.plan(Describe(epsilon=0.1))
        for changed, purpose, says in (
            ({"method": "horoscope"}, "Unknown to this installation: horoscope", "no method 'horoscope'"),
            ({"method": "vcds"}, "Unknown to this installation: vcds", 'packages = ["colonnade.papers"]'),
            ({"options": {"epsilon": "much"}}, "Unknown to this installation: describe", "epsilon"),
        ):
            summary = busy.service.summary(replace(plan, **changed))  # type: ignore[arg-type]
            assert summary.purpose == purpose
            assert says in summary.unknown
            assert summary.missing_data == ""
        words = busy.service.summary(replace(plan, method=ASK))
        assert words.purpose.startswith("One step by itself: ")


def proposed(busy: Operated, plan: object, job: str) -> Reply:
    arguments = proposal(plan, busy.federation.roster, busy.federation.facts, None)  # type: ignore[arg-type]
    assert busy.federation._signer is not None
    arguments["requester"] = busy.federation._signer.sign(job, arguments)
    return Reply.decode(busy.parties[PARTY].handle(Request(kind="propose", job=job, arguments=arguments).encode()))


def propose(busy: Operated, plan: object, job: str) -> None:
    assert proposed(busy, plan, job).value["state"] == "waiting"


def test_a_hostile_plan_stays_text_and_is_not_believed(tmp_path: Path) -> None:
    with busy_party(tmp_path) as busy, served(busy.service) as (console, _):
        plan = busy.federation.plan(Describe(epsilon=0.1))
        first = replace(plan.stages[0], discloses="<script>alert(1)</script> nothing at all")
        hostile = replace(plan, stages=(first, *plan.stages[1:]), notes=("<img src=x onerror=alert(1)>",))
        assert proposed(busy, hostile, "hostile").error == "unsafe-request", "its words are not those of our own plan"
        assert proposed(busy, plan, "<b>\"x'/../?&").error, "no name of a job"
        job = "it's & 'x'"
        propose(busy, plan, job)
        visitor = Visitor(console)
        for path in ("", "requests", f"requests/{quote(job, safe='')}"):
            text = visitor.page(path)
            assert "<script>alert" not in text
            assert "<img" not in text
            assert job not in text, "it is escaped"
        assert visitor.decide(job, "deny")[0] == 303
        assert busy.service.job(job).state == "denied"

        # A plan that the budget does not cover cannot be approved: not by the button, and not past it.
        propose(busy, busy.federation.plan(Describe(epsilon=20.0)), "too dear")
        text = visitor.page("requests/too%20dear")
        assert "It cannot be approved" in text
        assert re.search(r"<button[^>]*disabled[^>]*>Approve", text)
        rows = busy.parties[PARTY].ledger.chain.head()
        status, text = visitor.decide("too dear", "approve")
        assert status == 409
        assert "above the budget" in text
        assert busy.parties[PARTY].ledger.chain.head() == rows
        assert visitor.decide("nobody", "approve")[0] == 404


def test_a_changed_record_is_shown_as_changed(busy: Operated, tmp_path: Path) -> None:
    shutil.copytree(busy.root, tmp_path / "copy")
    with served(OperatorService(tmp_path / "copy" / "party.toml")) as (console, _):
        visitor = Visitor(console)
        assert "badge bad" not in visitor.page("ledger")
        raw = sqlite3.connect(tmp_path / "copy" / "home" / PARTY / "party.db")
        raw.executescript(
            "DROP TRIGGER ledger_no_update; UPDATE ledger SET body = replace(body, 'presence', 'presents')"
            " WHERE number = 1; DROP TRIGGER ledger_no_delete; DELETE FROM ledger WHERE number = 8;"
        )
        raw.close()
        assert "the file was changed" in visitor.page("ledger")
        assert "badge bad" in visitor.page()


def test_the_budget_is_drawn_where_a_page_stays_as_it_is(console: Console, busy: Operated) -> None:
    """matplotlib draws it for the budget and for a request; what a browser asks for again every few seconds has bars
    that the browser draws."""
    visitor, job = Visitor(console), busy.service.waiting()[0].name
    pages = {path: visitor.page(path) for path in (*PAGES, f"requests/{job}")}
    drawn = {path for path, page in pages.items() if 'class="drawn' in page}
    assert drawn == {"budget", f"requests/{job}"}
    assert not any('id="live"' in pages[path] for path in drawn)
    spending = busy.service.spending(delta=BUDGET.delta)
    assert spending.window is not None
    spent = f"Spent {spending.window.epsilon:.3g} of epsilon {BUDGET.epsilon:g}"
    assert f'aria-label="{spent}' in pages["budget"]
    (stated,) = re.findall(r'<meter value="([\d.]+)" max="([\d.]+)"', pages[""])
    assert float(stated[0]) == pytest.approx(spending.window.epsilon, rel=1e-3)
    assert float(stated[1]) == BUDGET.epsilon
    done = re.findall(r'<progress value="(\d+)" max="(\d+)"', pages["runs"])
    jobs = [one for one in busy.service.jobs() if one.state in ("approved", "closed", "ended")]
    assert done == [(str(one.answered), str(one.most)) for one in jobs]


def test_before_the_party_has_served(tmp_path: Path) -> None:
    file = tmp_path / "party.toml"
    file.write_text('consortium = "consortium.toml"\nname = "credit"\nsource = "credit.csv"\n')
    with served(OperatorService(file)) as (console, _):
        visitor = Visitor(console)
        for page in PAGES:
            visitor.page(page)
        assert "has not served yet" in visitor.page()
        assert "states no [budget]" in visitor.page("budget")


# --- decisions --------------------------------------------------------------------------------------------


def test_a_decision_reaches_the_party_that_serves_and_is_made_once(tmp_path: Path) -> None:
    with busy_party(tmp_path) as busy, served(busy.service) as (console, _):
        visitor = Visitor(console)
        run = RunFolder.open(tmp_path / "runs" / "components")
        job = run.job["job"]
        for name, party in busy.parties.items():
            if name != PARTY:
                party.decide(job, approve=True)
        # Ten at once: one decides, the others are told that nothing waits any more.
        answers: list[int] = []
        clicks = [threading.Thread(target=lambda: answers.append(visitor.decide(job, "approve")[0])) for _ in range(10)]
        for one in clicks:
            one.start()
        # The pages work while the party itself writes.
        busy.parties[PARTY].handle(Request(kind="hello", arguments={}).encode())
        for one in clicks:
            one.join()
        assert sorted(answers) == [303] + [409] * 9
        reserved = [row.body["phase"] for row in busy.parties[PARTY].ledger.chain.rows(kind="reserve", job=job)]
        assert len(reserved) == len(set(reserved)) > 1, "each stage once"
        assert "approved by the operator" in visitor.page(f"requests/{job}")
        busy.finish(run)
        assert run.job["state"] == "done"
        assert busy.service.job(job).state == "closed"
        json.loads((run.path / "result.json").read_text())


def test_the_command_prints_a_link_and_ends_quietly(busy: Operated) -> None:
    command = [sys.executable, "-m", "colonnade.cli.main", "party", "console", str(busy.file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    link = re.search(r"http://127\.0\.0\.1:(\d+)(/\S+)", lines[1])
    assert link, lines
    connection = http.client.HTTPConnection("127.0.0.1", int(link.group(1)), timeout=20)
    connection.request("GET", link.group(2))
    assert connection.getresponse().status == 303
    assert "http://127.0.0.1" in process.stdout.readline(), "the next link"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert "closed" in out


# --- in a browser -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dark", "width"), [(False, DESK), (True, PHONE)], ids=["light desk", "dark phone"])
def test_every_page_in_a_browser(browser: Browser, busy: Operated, dark: bool, width: int) -> None:
    with (
        served(busy.service) as (console, link),
        Watched(browser, dark=dark, width=width, origin=console.origin) as seen,
    ):
        seen.open(link)
        colours = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (colours == "rgb(255, 255, 255)") != dark
        details = [f"requests/{job.name}" for job in busy.service.waiting()]
        for path in (*PAGES, *details):
            page = seen.open(console.origin + console.base + path)
            assert not seen.violations(), path
            assert not seen.unreachable(), path
            assert seen.sideways() <= 0, path
            assert not (wrong := seen.figures()), (path, wrong)
            assert not (wide_ones := seen.overflowing()), (path, wide_ones)
            for landmark in ("header", "nav", "main"):
                assert page.locator(landmark).count() == 1
            assert page.locator("h1").count() == 1
        seen.sound()


def test_an_operator_decides_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    with (
        busy_party(tmp_path) as busy,
        served(busy.service) as (console, link),
        Watched(browser, origin=console.origin) as seen,
    ):
        page = seen.open(link)

        def press(name: str, *, leads: bool = True) -> None:
            """Tab until the focus is on it, then Enter."""
            for _ in range(40):
                page.keyboard.press("Tab")
                if page.evaluate("() => document.activeElement.textContent.trim()") == name:
                    break
            else:
                raise AssertionError(f"the keyboard does not reach {name!r}")
            with page.expect_navigation() if leads else contextlib.nullcontext():
                page.keyboard.press("Enter")

        press("Skip to the content", leads=False)
        assert page.evaluate("() => document.activeElement.id") == "content"
        press("Read and decide")
        job = busy.service.waiting()[0].name
        press("Read the plan and decide")
        assert job in page.content()
        press("Approve")
        assert "approved by the operator" in page.content()
        assert busy.service.job(job).state == "approved"
        press("Runs")
        press("Stages", leads=False)
        assert page.locator("details[open]").count() == 1
        press("Leave")
        seen.sound()
        page.goto(console.origin + console.base)
        assert "Open the link" in page.content()


def test_a_page_follows_what_happens(browser: Browser, tmp_path: Path) -> None:
    with (
        busy_party(tmp_path) as busy,
        served(busy.service) as (console, link),
        Watched(browser, origin=console.origin) as seen,
    ):
        seen.page.clock.install()
        seen.open(link)
        page = seen.open(f"{console.origin}{console.base}requests")
        with page.expect_response("**/requests"):
            page.clock.fast_forward(600)  # its first look
        assert page.locator("#live > ul > li").count() == 2
        busy.decide(RunFolder.open(tmp_path / "runs" / "components"))
        page.wait_for_timeout(50)
        with page.expect_response("**/requests"):
            page.clock.fast_forward(3100)
        page.wait_for_function("() => document.querySelectorAll('#live > ul > li').length === 1", polling=50)
        seen.sound()


def test_another_site_in_the_same_browser_can_do_nothing(browser: Browser, busy: Operated) -> None:
    """A page of another origin, in the browser that has entered: its form posts, fetches and frames fail."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    job = busy.service.waiting()[0].name
    with served(busy.service) as (console, link):
        target = console.origin + console.base

        class Evil(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers.get("Cookie", ""))
                body = (
                    f'<form method="post" action="{target}decide"><input name="job" value="{job}">'
                    '<input name="choice" value="approve"><input name="form" value="guess"></form>'
                    f'<iframe src="{target}requests"></iframe>'
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        cookies: list[str] = []
        evil = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
        threading.Thread(target=evil.serve_forever, daemon=True).start()
        try:
            with Watched(browser) as seen:
                page = seen.open(link)
                for host in ("127.0.0.1", "localhost"):  # the same site on another port, and another site
                    page.goto(f"http://{host}:{evil.server_address[1]}/")
                    assert not any(console.cookie in one for one in cookies), "the cookie went to another port"
                    fetched = page.evaluate(
                        "async (url) => { try { const a = await fetch(url, {credentials: 'include'});"
                        " return await a.text(); } catch (e) { return 'failed'; } }",
                        target,
                    )
                    assert fetched == "failed"
                    with page.expect_navigation() as navigation:
                        page.evaluate("() => document.forms[0].submit()")
                    assert navigation.value.status == 403  # type: ignore[union-attr]
                    page.goto(f"http://{host}:{evil.server_address[1]}/")
                    frame = page.frames[1]
                    assert job not in frame.content()
                assert busy.service.job(job).state == "waiting"
        finally:
            evil.shutdown()
            evil.server_close()
