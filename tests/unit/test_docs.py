"""What the documentation says is there, and what it shows runs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import colonnade
from colonnade import papers
from colonnade.catalogue import CATALOGUE
from colonnade.cli.main import app
from colonnade.cli.verbs import COMMON, FederationFile

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "colonnade"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLAIMS = sorted(SOURCE.rglob("*claim*.md"))
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
TAUGHT = ("tutorials", "how-to", "explanation")
"""Their blocks run in tests/e2e/test_docs_run.py, with the shell's."""
RUN_HERE = [page for page in PAGES if CODE.search(page.read_text()) and page.parent.name not in TAUGHT]


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in CODE.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:docs|tests|benchmarks)/[\w./*-]+)`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), f"{page.name} names {name}"
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_readme_opens_with_a_sentence_the_picture_and_ten_lines() -> None:
    title, sentence, picture, *rest = (ROOT / "README.md").read_text().split("\n\n")
    assert title == "# Colonnade"
    assert len(re.findall(r"[.!?](?:\s|$)", sentence)) == 1
    assert re.fullmatch(r"!\[.+\]\(docs/images/story\.png\)", picture)
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", "\n\n".join(rest), re.DOTALL)[:2]
    assert len([line for line in code.splitlines() if line]) == 10
    assert "<Plan of regress" in printed


def test_the_attacks_of_the_threat_model_are_tests() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/threat-model.md").read_text())
    assert len(named) == 22
    assert all(f"def {test}(" in (ROOT / path).read_text() for path, test in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_commands_that_are_named_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make (\w+)", page.read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"
    for name in re.findall(r"NAME=([a-z][\w-]+)", page.read_text()):
        assert (ROOT / "benchmarks" / f"{name.replace('-', '_')}.py").exists(), f"{page.name} names {name}"


def test_public_names_load_and_have_docstrings() -> None:
    for name in colonnade.__all__:
        value = getattr(colonnade, name)
        assert isinstance(value, str) or value.__doc__
    with pytest.raises(AttributeError):
        colonnade.nothing  # noqa: B018


@pytest.mark.parametrize("package", [colonnade, papers], ids=["colonnade", "papers"])
def test_type_checkers_know_every_public_name(package: ModuleType) -> None:
    """They do not see names that load when first used; `support.typed_use` is what they make of them."""
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name for name in dir(package) if name not in ("__version__", "papers")}


@pytest.mark.parametrize("name", [name for name in colonnade.__all__ if name != "__version__"])
def test_public_methods_of_public_names_say_what_they_do(name: str) -> None:
    public = getattr(colonnade, name)
    undocumented = [
        member
        for member, value in inspect.getmembers(public)
        if not member.startswith("_") and (callable(value) or isinstance(value, property))
        if not inspect.getdoc(value)
    ]
    assert undocumented == []


SHOWN = re.findall(r"autoclass:: ([\w.]+)", (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8"))
FOR_METHODS = {
    *(
        "procedure",
        "choosing",
        "stated",
        "layout",
        "explaining",
        "targets",
        "of_one_model",
        "check_facts",
        "with_costs",
    ),
    *("write", "present", "having", "by_fold", "mask_of", "stage", "suggestion", "get", "rule_for_empty", "read"),
    *("numbers", "complaint", "notes", "since", "view", "locked", "put", "job", "tell", "regression"),
    *("records_behind", "about_rows"),
    "local",  # the class says its options
}
"""Public to the package and to plug-ins, whose authors read the code: their sentence suffices."""


@pytest.mark.parametrize("shown", [*SHOWN, *(f"colonnade.{entry.cls}" for entry in CATALOGUE.own().values())])
def test_what_users_call_says_its_parameters_and_what_comes_back(shown: str) -> None:
    module, _, name = shown.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    problems = []
    for member, value in inspect.getmembers(cls, lambda value: inspect.isfunction(value) or inspect.ismethod(value)):
        if member.startswith("_") or not value.__module__.startswith("colonnade") or member in FOR_METHODS:
            continue
        text, own = inspect.getdoc(value) or "", {*inspect.signature(value).parameters} - {"self"}
        section = re.search(r"Parameters\n-+\n(.*?)(?=\n\n|\Z)", text, re.DOTALL)
        lines = re.findall(r"^([\w, ]+) : ", section[1] if section else "", re.MULTILINE)
        if {name for line in lines for name in line.split(", ")} != own:
            problems.append(f"{member}: Parameters are {', '.join(own)}")
        if not text or (own and inspect.signature(value).return_annotation != "None" and "\nReturns\n---" not in text):
            problems.append(f"{member}: does not say what comes back")
    assert problems == []


@pytest.mark.parametrize("verb", sorted(set(typer.main.get_command(app).commands) - set(CATALOGUE.names)))  # type: ignore[attr-defined]
def test_every_option_of_a_verb_is_in_the_reference(verb: str) -> None:
    """In the verb's own section, or on the page where it is not split into sections."""
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    own = re.search(rf"^## {verb}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    section = own[1] if own else text
    assert f"colonnade {verb}" in text
    for option in (option for parameter in command.params for option in parameter.opts if option.startswith("--")):
        assert option == "--help" or option in section, f"{verb} {option}"


def commands(group: Any, context: Any) -> Iterator[Any]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield command
        if hasattr(command, "list_commands"):
            yield from commands(command, context)


def test_flags_that_pages_name_are_flags() -> None:
    """Of any command; those of other programs are said with their program. The changelog names old ones too."""
    root = typer.main.get_command(app)
    context = root.make_context("colonnade", [], resilient_parsing=True)
    known = {"--help"}
    for command in (root, *commands(root, context)):
        known |= {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for page in PAGES:
        if page.name == "CHANGELOG.md" or page.parent.name == "results":
            continue
        for line in page.read_text(encoding="utf-8").splitlines():
            if not re.search(r"podman|systemctl|useradd|pip install|\.claim|--(value|by|network)\b", line):
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line):
                    assert flag in known, f"{page.name} names {flag}"


OLD = re.compile(
    r"\b(CopulaSQM|copula-sqm|SQMPCA|SparseGLM|PatternMoments|Contingency\(|VFEMResult|FedPSGResult|askers|cross_party|"
    r"vertimrf-f[mo]|co\.(VFEM|VertiMRF|VCDS|EVCDS|IEVCDS|SQMLogistic|FedPSG))\b"
)
"""Names of 0.1; the changelog and the results' index translate them."""


@pytest.mark.parametrize("page", [*PAGES, *CLAIMS], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_the_names_of_today(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module, name in re.findall(r"\b(co|papers)\.([A-Z]\w+)", text):
        assert hasattr(colonnade if module == "co" else papers, name), f"{page.name} names {module}.{name}"
    if page.name != "CHANGELOG.md" and page.parent.name != "results":
        assert OLD.findall(text) == []


def test_the_reference_of_methods_is_made_from_their_declarations() -> None:
    """docs/conf.py fills these in when the site is built; what every verb takes is in the page itself."""
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert "<!-- verbs -->" in text
    assert "<!-- paper verbs -->" in text
    common = text.partition("## Methods")[2].partition("<!-- verbs -->")[0]
    for annotation, _ in (*COMMON.values(), (FederationFile, ...)):
        for flag in annotation.__metadata__[0].param_decls:
            assert f"`{flag}`" in common, flag


def test_each_claim_points_at_a_test_that_exists() -> None:
    assert CLAIMS
    for claim in CLAIMS:
        named = re.findall(r"tests/[\w./*-]+\.py", claim.read_text())
        assert named, f"{claim} names no test"
        for name in named:
            assert list(ROOT.glob(name)), f"{claim} names {name}"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.relative_to(SOURCE)))
def test_files_that_a_claim_names_exist(claim: Path) -> None:
    """From the root, from the package, or beside the claim; a folder in a claim's title too."""
    for name in re.findall(r"`([\w/.-]+(?:\.py|\.md|/))`", claim.read_text(encoding="utf-8")):
        beside = [folder / name for folder in (ROOT, SOURCE, claim.parent)]
        near = list((ROOT / "tests").rglob(name)) if name.startswith("test_") else []
        assert near or any(path.exists() for path in beside), f"{claim.relative_to(SOURCE)} names {name}"


@pytest.mark.parametrize("page", [*PAGES, *CLAIMS], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_say_who(page: Path) -> None:
    """The coordinator, a party, anyone: a reader of a privacy claim must know who is meant."""
    if page.parent.name != "results":
        assert not re.findall(r"\b(?:whoever|somebody|nobody|anybody|everybody)\b", page.read_text(), re.IGNORECASE)


def test_banned_words_stay_out() -> None:
    """No mock of what we claim, no unpickling, no evaluation of text, in the product."""
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"\bimport pickle\b|\bpickle\.loads?\b|[^\w.]eval\(|allow_pickle=True", text), path
