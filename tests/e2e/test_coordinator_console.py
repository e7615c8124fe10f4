"""The coordinator's console: a job is asked for by a form, with the options that the method declares, after its plan.

Oracle: the method's class. What the form puts into the queue is what the class made with the same values has.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from colonnade.catalogue import CATALOGUE
from colonnade.console.coordinator import CoordinatorSite
from colonnade.console.server import Console
from colonnade.federation.service import Queue
from colonnade.models.pca import PCA
from colonnade.statistics.describe import Describe
from support.browser import DESK, PHONE, Watched, browser
from support.consortium import provisioned
from support.operators import Visitor, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorSite:
    return CoordinatorSite(provisioned(tmp_path_factory.mktemp("consortium")))


@pytest.fixture
def queue(site: CoordinatorSite) -> Iterator[Queue]:
    """Empty, of a cohort of 5,000."""
    site.queue.path.mkdir(exist_ok=True)
    site.queue.tell({"n": 5000, "jobs": {}})
    yield site.queue
    for name in site.queue.waiting():
        site.queue.end(name)


@pytest.fixture
def console(site: CoordinatorSite) -> Iterator[Console]:
    with served(site) as (console, _):
        yield console


def fingerprint(page: str) -> str:
    found = re.search(r'name="plan" value="(\w*)"', page)
    assert found, page
    return found[1]


def test_every_option_of_every_method_has_a_field(console: Console) -> None:
    visitor = Visitor(console)
    choice = visitor.page("ask")
    for name, entry in CATALOGUE.own().items():
        assert html.escape(entry.purpose()) in choice
        page, method = visitor.page(f"ask/{name}"), entry.load()
        for option in method.declared().values():
            if not (method.makes_cohort and option.name == "capacity"):  # the consortium states it
                assert f'name="option.{option.name}"' in page, (name, option.name)
                assert html.escape(option.option.help) in page


def test_a_form_shows_the_plan_and_asks_for_that_very_plan(console: Console, queue: Queue) -> None:
    visitor = Visitor(console)
    options = {"option.epsilon": "2", "option.columns": "income, age\r\nregion", "option.marginals": "histogram"}
    status, page = visitor.post("plan", {"method": "describe", **options})
    assert status == 200
    method = Describe(epsilon=2.0, columns=("income", "age", "region"), marginals="histogram")
    plan = method.plan(CoordinatorSite(console.site.path).consortium.facts(5000), console.site.consortium.roster)
    assert fingerprint(page) == plan.fingerprint
    assert html.escape(plan.text()) in page
    assert queue.waiting() == []

    asked = {"method": "describe", **options}
    assert visitor.post("ask", {**asked, "plan": "0" * 64})[0] == 409
    assert queue.waiting() == []
    queue.tell({"n": 4000, "jobs": {}})
    status, page = visitor.post("ask", {**asked, "plan": plan.fingerprint})
    assert status == 409
    assert "changed since it was shown" in page
    queue.tell({"n": 5000, "jobs": {}})
    assert visitor.post("ask", {**asked, "plan": plan.fingerprint})[0] == 303
    (job,) = queue.waiting()
    assert queue.job(job)["options"] == method.options()
    assert job in visitor.page()
    assert visitor.post("end", {"job": job})[0] == 404  # not ticked
    assert visitor.post("end", {"job": job, "sure": "yes"})[0] == 303
    assert queue.waiting() == []
    assert queue.state(job).sentence == "taken out of the queue"


def test_what_cannot_be_is_said_beside_what_was_typed(console: Console, queue: Queue) -> None:
    visitor = Visitor(console)
    for action in ("plan", "ask"):
        for wrong in ({"option.epsilon": "much"}, {"option.epsilon": "-1"}, {"option.columns": "nothing"}):
            status, page = visitor.post(action, {"method": "describe", **wrong})
            assert status == 409
            assert 'role="alert"' in page
            assert html.escape(next(iter(wrong.values()))) in page
    assert visitor.post("plan", {"method": "describe", "option.banana": "3"})[0] == 409
    assert visitor.post("plan", {"method": "nothing"})[0] == 404
    assert visitor.post("publish", {"method": "describe"})[0] == 404
    assert queue.waiting() == []


def test_a_plan_that_will_not_work_needs_a_tick(console: Console, queue: Queue) -> None:
    visitor, asked = Visitor(console), {"method": "pca", "option.epsilon": "0.001", "option.n_components": "1"}
    page = visitor.post("plan", asked)[1]
    assert "This will not work" in page
    stated = {**asked, "plan": fingerprint(page)}
    assert visitor.post("ask", stated)[0] == 409
    assert visitor.post("ask", {**stated, "sure": "yes"})[0] == 303
    (job,) = queue.waiting()
    assert queue.job(job)["options"] == PCA(epsilon=0.001, n_components=1).options()


def test_before_the_members_are_connected_a_job_can_wait(console: Console, queue: Queue) -> None:
    queue.tell({"n": None, "jobs": {}})
    visitor = Visitor(console)
    status, page = visitor.post("plan", {"method": "align"})
    assert (status, fingerprint(page)) == (200, "")
    assert "when all members are connected" in page
    assert visitor.post("ask", {"method": "align", "plan": ""})[0] == 303
    assert [queue.job(job)["method"] for job in queue.waiting()] == ["align"]


def test_only_the_sessions_own_page_can_ask(console: Console, queue: Queue) -> None:
    visitor, fields = Visitor(console), {"method": "align", "plan": ""}
    assert visitor.post("ask", fields, Origin="http://127.0.0.1:1")[0] == 403
    assert visitor.post("ask", fields, Sec_Fetch_Site="cross-site")[0] == 403
    assert visitor.post("ask", {**fields, "form": "guess"})[0] == 403
    stranger = Visitor(console, inside=False)
    body = urlencode(fields)
    assert stranger.send("POST", f"{console.base}ask", body, Origin=console.origin)[0].status == 401
    assert queue.waiting() == []


def test_progress_has_the_time_that_is_left(console: Console, queue: Queue) -> None:
    name = queue.put("describe", {"epsilon": 1.0}, name="long")
    progress = {"stage": "moments", "rounds": 3, "of": 12, "bytes": 10, "seconds": 60.0}
    queue.tell({"n": 5000, "jobs": {name: {"state": "running", "sentence": "", "progress": progress}}})
    page = Visitor(console).page()
    assert "round 3 of 12, moments; about 3 min left" in page


def test_a_person_asks_in_a_browser(browser: Browser, console: Console, queue: Queue) -> None:
    with Watched(browser, width=DESK, origin=console.origin) as watched:
        page = watched.open(console.new_link())
        page.get_by_role("link", name="Ask for a job").click()
        page.get_by_role("link", name="Ask for describe").click()
        page.get_by_label("epsilon").fill("2")
        page.get_by_text("More options").click()
        page.get_by_label("marginals").select_option("histogram")
        for width, scheme in ((DESK, "light"), (PHONE, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert watched.sideways() <= 0
            assert watched.violations() == []
        assert watched.unreachable() == []
        page.get_by_role("button", name="Show the plan").click()
        assert watched.violations() == []
        assert watched.sideways() <= 0
        page.get_by_role("button", name="Ask for it").click()
        page.get_by_role("heading", name="Jobs").wait_for()
        watched.sound()
    (job,) = queue.waiting()
    assert queue.job(job)["options"] == Describe(epsilon=2.0, marginals="histogram").options()
