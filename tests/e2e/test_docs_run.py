"""The documentation site builds without a warning, its links lead somewhere, and what it shows runs."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

import colonnade as co
from colonnade import papers
from colonnade.catalogue import CATALOGUE
from colonnade.cli.main import app
from colonnade.cli.output import Verbs
from colonnade.data import Columns, open_source
from colonnade.data.simulated import five_institutions
from colonnade.errors import ColonnadeError
from colonnade.federation import catalogue
from colonnade.federation.config import ConsortiumFile, CoordinatorFile, JobFile, PartyFile, Spec, located
from colonnade.federation.coordinator import Federation
from colonnade.federation.provision import ConsortiumDraft
from support.browser import DESK, PHONE, Watched, browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCKS = re.compile(r"```(python|sh|\{code-block\} \w+\n:caption: [\w.]+\n)\n(.*?)```", re.DOTALL)
"""Python, shell, or a file whose name is its caption."""
TAUGHT = [
    page
    for folder in ("tutorials", "how-to", "explanation")
    for page in sorted((DOCS / folder).glob("*.md"))
    if BLOCKS.search(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, in one folder: Python in one namespace, `colonnade` through its own command line."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, block in BLOCKS.findall(page.read_text(encoding="utf-8")):
        if language.startswith("{"):
            (tmp_path / language.split()[-1]).write_text(block, encoding="utf-8")
            continue
        if language == "python":
            exec(compile(block, str(page), "exec"), names)
            continue
        for line in block.strip().splitlines():
            if line == "pip install .":
                install_apart(tmp_path, monkeypatch)
            elif line.startswith("colonnade "):
                done = CliRunner().invoke(app, shlex.split(line)[1:])
                assert done.exit_code == 0, f"{line}\n{done.output}"
            else:
                subprocess.run(line, shell=True, check=True, cwd=tmp_path)


# --- every block of every page, in every language --------------------------------------------------------------

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "src").rglob("*.md")),
    *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "results"),
]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
RUN_ELSEWHERE = ("python", "text", "{eval-rst}", "{toctree}", "{image}")
"""Python runs in the tests of the pages, and text is what it prints; the others are Sphinx's, which builds the site
without a warning."""


def test_the_readme_s_first_lines_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = FENCED.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (_, lines), (language, printed) = blocks[:2]
    assert language == "text"
    exec(compile(lines, "README.md", "exec"), {})
    assert capsys.readouterr().out.split() == printed.split()
    assert (tmp_path / "coefficients.png").stat().st_size > 5_000


def read_toml_block(text: str, folder: Path) -> str:
    """Read a block with the reader of the file that it shows, and say which file that is."""
    file = folder / "shown.toml"
    file.write_text(text, encoding="utf-8")
    top = tomllib.loads(text)
    if "method" in top:
        JobFile.from_toml(file).method()
        return "job.toml"
    if "consortium" in top:
        (PartyFile if "name" in top else CoordinatorFile).from_toml(file)
        return "party.toml" if "name" in top else "coordinator.toml"
    if "coordinator" in top:
        drafted = any("organisation" in member for member in top["members"].values())
        (ConsortiumDraft if drafted else ConsortiumFile).from_toml(file)
        return "consortium.toml"
    if "key" in top:
        Spec.from_toml(file)
        return "federation.toml"
    if set(top) == {"source"}:
        open_source(located(top["source"], folder))
        return "a source"
    assert isinstance(top.get("columns"), dict | list), f"no file has these fields: {', '.join(top)}"
    Columns.from_toml(file)
    return "columns.toml"


def check_commands(text: str) -> int:
    """Every `colonnade ...` in a block of shell has a verb and options that the command line takes; how many."""
    commands = 0
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for _, group in itertools.groupby(words, key=lambda word: word in ("&&", ";")):
            command = list(group)
            if command[0] == "colonnade":
                parse_command(command[1:])
                commands += 1
    return commands


def parse_command(arguments: list[str]) -> None:
    """As the command line parses it, without running anything."""
    command = typer.main.get_command(app)
    context = command.make_context("colonnade", list(arguments))
    while isinstance(command, Verbs | TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_in_a_language_that_is_checked(page: Path, tmp_path: Path) -> None:
    for language, block in FENCED.findall(page.read_text(encoding="utf-8")):
        if language == "toml":
            read_toml_block(block, tmp_path)
        elif language == "json":
            json.loads(block)
        elif language in ("sh", ""):
            if page not in TAUGHT:  # there they run
                check_commands(block)
        elif not language.startswith("{code-block}") or page not in TAUGHT:  # there it is a file that is used
            assert language.startswith(RUN_ELSEWHERE), f"{page.name} has a block in {language!r}, which nothing checks"


@pytest.mark.parametrize(
    ("block", "file"),
    [
        ('method = "describe"\n[options]\nepsilon = 1.0\n', "job.toml"),
        ('consortium = "c.toml"\nname = "bank"\n', "party.toml"),
        ('consortium = "c.toml"\n', "coordinator.toml"),
        (
            'key = "id"\ncoordinator = "c:1"\ncoordinator_organisation = "U"\n[members.a]\ncertificate = "a.pem"\n',
            "consortium.toml",
        ),
        ('key = "id"\ncolumns = "c.toml"\n[parties.a]\nsource = "a.csv"\n', "federation.toml"),
        ('[[columns]]\nname = "x"\nkind = "count"\nlower = 0\nupper = 9\n', "columns.toml"),
        ('source = { csv = "a.csv", separator = ";" }\n', "a source"),
    ],
)
def test_a_wrong_field_in_a_shown_file_is_noticed(block: str, file: str, tmp_path: Path) -> None:
    assert read_toml_block(block, tmp_path) == file
    wrong = block.replace("separator", "seperator") if file == "a source" else f"{block}banana = 3\n"
    with pytest.raises(ColonnadeError, match=r"seperator|banana"):
        read_toml_block(wrong, tmp_path)


@pytest.mark.parametrize(
    "line", ["colonnade nothing", "colonnade pca --epsilom 1", "true && colonnade columns draft x"]
)
def test_a_wrong_command_is_noticed(line: str) -> None:
    assert check_commands("colonnade pca --epsilon 1  # a comment\npip install x && colonnade doctor party.toml") == 2
    with pytest.raises(Exception, match=r"No such (command|option)"):
        check_commands(line)


def install_apart(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `pip install .` does, into a folder of this test's own: a plug-in must not appear in other tests."""
    folder = package / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder), "."], check=True, cwd=package)
    (package / "group_means.py").unlink(missing_ok=True)  # so that the installed one is found
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    catalogue._plugged_in.cache_clear()


# --- the site ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(shared_folder: Callable[[str], AbstractContextManager[Path]]) -> Path:
    pytest.importorskip("furo")
    with shared_folder("site") as folder:
        if not folder.exists():
            command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, folder]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("notebook", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output_and_run_for_the_site(notebook: Path, site: Path) -> None:
    """An error in a cell ends the build."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
    page = (site / "notebooks" / notebook.with_suffix(".html").name).read_text(encoding="utf-8")
    assert "data:image/png" in page or 'class="highlight-text' in page


def test_links_lead_somewhere_and_nothing_is_loaded_from_outside(site: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("check_site", DOCS / "check_site.py")
    assert spec is not None
    assert spec.loader is not None
    check_site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_site)
    assert check_site.problems(site) == []
    (tmp_path / "bad.html").write_text(
        '<a href="no.html"></a><a href="#no"></a><script src="https://example.org/x.js"></script>'
    )
    assert len(check_site.problems(tmp_path)) == 3


def test_the_api_reference_has_every_public_name(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for name in [*co.__all__, *(f"papers.{name}" for name in dir(papers))]:
        assert f'id="colonnade.{name}"' in text, name


def test_the_reference_has_every_option_of_every_method(site: Path) -> None:
    """In the verb's own section, made from the declarations when the site is built."""
    text = (site / "command-line.html").read_text(encoding="utf-8")
    for entry in [*CATALOGUE.own().values(), *CATALOGUE.papers().values()]:
        anchor = entry.name if entry.own else f"papers-{entry.name}"
        section = text.partition(f'<section id="{anchor}">')[2].partition("</section>")[0]
        for declared in entry.load().declared().values():
            assert f">{declared.flag}<" in section, f"{entry.name} {declared.flag}"


def test_every_page_is_reached_from_the_contents(site: Path) -> None:
    contents = (site / "index.html").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        where = page.relative_to(DOCS).with_suffix(".html").as_posix()
        if where != "index.html" and not where.startswith("results/"):
            assert f'href="{where}"' in contents, where


@pytest.mark.parametrize("where", ["index.html", "reference/api.html", "maturity.html"])
def test_pages_are_sound_in_a_browser(browser: Browser, site: Path, where: str) -> None:
    for width, dark in ((DESK, False), (PHONE, True)):
        with Watched(browser, width=width, dark=dark) as watched:
            watched.open(site / where)
            assert watched.sideways() <= 0
            watched.sound()  # before axe, which the browser complains about where a page has scripts of its own
            # The reference has thousands of entries with the same marks: three of each are looked at.
            assert watched.violations(repeated="dl.py ~ dl.py ~ dl.py ~ dl.py") == []


# --- docstrings ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    example = five_institutions(3000, seed=1)
    with Federation.local(
        example.blocks,
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        home=tmp_path_factory.mktemp("home"),
        runs=tmp_path_factory.mktemp("runs"),
        allow=("presence", "exact-moments", "presence-to-coordinator", "completion-quality", "correlated-columns"),
        seed=1,
    ) as made:
        yield made


def parameters_of(public: type) -> list[str]:
    """What a user may pass. A federation is made by `local`, which takes the fields of its `Spec`."""
    if public is Federation:
        return ["runs", *Spec.__dataclass_fields__]
    return [name for name in inspect.signature(public).parameters if name != "self"]


PUBLIC = [getattr(co, name) for name in co.__all__ if name != "__version__"]
PAPERS = [getattr(papers, name) for name in dir(papers)]


@pytest.mark.parametrize("public", [*PUBLIC, *PAPERS], ids=lambda public: public.__name__)
def test_a_public_docstring_has_parameters_returns_and_an_example_that_runs(
    public: type, federation: Federation
) -> None:
    text = inspect.getdoc(public) or ""
    for part in ("Parameters\n---", "Returns\n---", "Example\n---"):
        assert part in text, f"{public.__name__} says no {part.split()[0]}"
    parameters = text.partition("Parameters\n---")[2].partition("\nReturns\n---")[0]
    for parameter in parameters_of(public):
        assert re.search(rf"\b{parameter}\b", parameters), f"{public.__name__} does not say what {parameter} is"
    test = doctest.DocTestParser().get_doctest(text, {"co": co, "federation": federation}, public.__name__, None, 0)
    assert test.examples
    failed = doctest.DocTestRunner(verbose=False).run(test).failed
    assert failed == 0
