"""How `make docs` builds the site: Sphinx, MyST and Furo; nothing is loaded from outside, warnings are errors."""

from __future__ import annotations

import html
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from sphinx.errors import ExtensionError

import colonnade
from colonnade.cli.verbs import help_of
from colonnade.federation.catalogue import CATALOGUE, Entry
from colonnade.federation.coordinator import Federation
from colonnade.federation.method import Result
from colonnade.federation.options import Declared
from colonnade.federation.spelling import form_of

project = "Colonnade"
author = "The Colonnade authors"
copyright = "2026, The Colonnade authors"
release = colonnade.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_use_rtype = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Colonnade {release}"
html_static_path = ["images"]
html_copy_source = False
html_show_sphinx = False


def plain_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings are plain text with `code` and indented examples; this says the same in reStructuredText."""
    text = "\n".join(lines)
    if not hasattr(obj, "declared"):  # a method's parameters are made from its options, as napoleon wants them
        text = PARAMETERS.sub(lambda section: _terms(section[1]), text)
    if what in ("attribute", "property"):
        text = text.replace(": ", " – ", 1)  # napoleon would take what stands before a colon for a type
    text = re.sub(r"^Returns\n-+\n", ".. rubric:: Returns\n\n", text, flags=re.MULTILINE)  # a sentence, and no type
    text = re.sub(r"(?<![`:])`([^`\n]+)`(?!`)", r"``\1``", text)  # `code`
    text = re.sub(r"(?<!\*)\*\*(?!\w)", r"\\*\\*", text)  # a power, not bold
    text = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", text)  # a fitted attribute such as coef_
    text = re.sub(r"\|([^|\n]*)\|", r"\\|\1\\|", text)  # an absolute value
    marked: list[str] = []
    for line in text.split("\n"):
        indented = line.startswith("    ") and (not marked or not marked[-1].startswith("    "))
        if indented and marked and not marked[-1].strip() and not _in_section(marked):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE)


def _terms(text: str) -> str:
    """`a, b : what they are` as a list of terms: napoleon would take the description for a type, and name it twice."""
    listed = re.sub(r"^(\w+(?:, \w+)*) : (.*(?:\n    .*)*)", _term, text, flags=re.MULTILINE)
    return f".. rubric:: Parameters\n\n{listed}"


def _term(entry: re.Match[str]) -> str:
    names = ", ".join(f"``{name}``" for name in entry[1].split(", "))
    described = " ".join(entry[2].split())
    return f"{names}\n    {described}"


def _in_section(lines: list[str]) -> bool:
    """Inside a numpydoc section (Parameters, Returns ...), whose items are indented by right."""
    return any(re.fullmatch(r"-{3,}", line.strip()) for line in lines[-40:])


def no_signature(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returned: Any) -> Any:
    """A result is what `fit` returns, and a federation is opened by its class methods; no one makes them by hand."""
    return ("", None) if what == "class" and issubclass(obj, (Result, Federation)) else None


def from_the_catalogue(app: Any, docname: str, source: list[str]) -> None:
    """What pages say of methods is what the methods declare: `<!-- methods -->` and `<!-- verbs -->` are filled in."""
    own, papers = CATALOGUE.own().values(), CATALOGUE.papers().values()
    written = {
        "<!-- methods -->": lambda: _classes("colonnade", own),
        "<!-- papers -->": lambda: _classes("colonnade.papers", papers),
        "<!-- verbs -->": lambda: "\n".join(map(_verb, own)),
        "<!-- paper verbs -->": lambda: "\n".join(map(_verb, papers)),
    }
    for place, write in written.items():
        if place in source[0]:
            source[0] = source[0].replace(place, write())


def _classes(module: str, entries: Iterable[Entry]) -> str:
    """Each class with its options; what it has for the plan and for plug-ins is in the guide to these."""
    parts = []
    for entry in entries:
        own = [name for name in ("from_formula", "as_printed") if hasattr(entry.load(), name)]
        parts.append(f".. autoclass:: {module}.{entry.cls}\n   :no-members:\n\n")
        parts += [f"   .. automethod:: {name}\n" for name in own]
    return "```{eval-rst}\n" + "".join(parts) + "```"


def _verb(entry: Entry) -> str:
    """A verb's section: what it is for, and a row for each option, as its `--help` has them."""
    command = entry.name if entry.own else f"papers {entry.name}"
    method = entry.load()
    found_out = {"capacity"} if method.makes_cohort else set()
    rows = [_row(declared, found_out=name in found_out) for name, declared in method.declared().items()]
    table = "\n".join(["| option | value | default | |", "|---|---|---|---|", *rows])
    heading = "##" if entry.own else "###"
    return f"{heading} {command}\n`colonnade {command} -f federation.toml ...`\n\n{entry.purpose()}\n\n{table}\n"


def _row(declared: Declared, *, found_out: bool) -> str:
    help_text, _, default = help_of(declared).partition(" [default: ")
    help_text = re.sub(r"(?<![`\w])--[a-z-]+", r"`\g<0>`", help_text)
    flags = ", ".join(f"`{flag}`" for flag in (declared.flag, declared.option.short) if flag)
    shown = f"`{default.removesuffix(']')}`" if default else ""
    if declared.default is MISSING:
        shown = "found out" if found_out else "must be given"
    value = form_of(declared) or f"or `--no-{declared.flag.removeprefix('--')}`"
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in (flags, value, shown, help_text)) + " |"


def list_the_rest(app: Any, docname: str, source: list[str]) -> None:
    """Pages that the contents do not name yet are listed at their end, so that none is lost."""
    if docname != "index":
        return
    folder = Path(app.srcdir)
    every = (path.relative_to(folder).with_suffix("").as_posix() for path in sorted(folder.rglob("*.md")))
    named = set(source[0].splitlines())
    rest = [page for page in every if page not in named and page != "index" and not page.startswith("results/")]
    if rest:
        source[0] += "\n```{toctree}\n:caption: More\n:maxdepth: 1\n\n" + "\n".join(rest) + "\n```\n"


def reachable(app: Any, exception: Exception | None) -> None:
    """What the theme leaves out: levels of the captions, names of the sides, and keyboard access to what scrolls."""
    if exception is not None or app.builder.name != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r'role="heading"(?! aria-level)', 'role="heading" aria-level="2"', text)
        text = re.sub(r"<pre>", '<pre tabindex="0">', text)
        text = text.replace('<aside class="sidebar-drawer"', '<aside aria-label="All pages" class="sidebar-drawer"')
        text = text.replace('<aside class="toc-drawer', '<aside aria-label="This page" class="toc-drawer')
        text = re.sub(r'(<div class="table-wrapper[^"]*")>', r'\1 tabindex="0" role="region" aria-label="Table">', text)
        path.write_text(text, encoding="utf-8")


# --- notebooks: stored without output, run when the site is built ---------------------------------------------------

EXECUTED: dict[str, str] = {}
"""{page: a notebook's cells and what came out of them, as Markdown}."""


def run_notebooks(app: Any, env: Any, docnames: list[str]) -> None:
    """Those that the site is about to read; an error in a cell ends the build."""
    names = [name for name in docnames if name.startswith("notebooks/")]
    with ThreadPoolExecutor(max_workers=2) as pool:
        texts = pool.map(lambda name: run_notebook(Path(app.srcdir) / f"{name}.ipynb"), names)
        EXECUTED.update(zip(names, texts, strict=True))


def run_notebook(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}})
        plain = {"TERM": "dumb", "COLUMNS": "110", "OMP_NUM_THREADS": "1"}
        try:
            client.execute(env={**os.environ, "PATH": commands, **plain})
        except CellExecutionError as error:
            raise ExtensionError(f"{path.name}: {error.ename}: {error.evalue}") from error
    return "\n\n".join(text for cell in notebook.cells for text in _cell(cell))


def _cell(cell: Any) -> Iterable[str]:
    if cell.cell_type != "code":
        yield cell.source
        return
    shell = cell.source.startswith("!")
    yield f"```sh\n{cell.source[1:]}\n```" if shell else f"```python\n{cell.source}\n```"
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    if printed.strip():
        yield f"```text\n{ANSI.sub('', printed).strip()}\n```"
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" in data:
            alt = html.escape(data.get("text/plain", "").strip("<>").removeprefix("Figure: "))
            yield _raw(f'<img alt="{alt}" src="data:image/png;base64,{data["image/png"].strip()}">')
        elif "text/html" in data:
            table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
            table = table.replace('<table border="1" class="dataframe">', '<table class="docutils">')
            yield _raw(f'<div class="table-wrapper">{table}</div>' if "<table class" in table else table)
        elif "text/plain" in data:
            yield f"```text\n{data['text/plain']}\n```"


ANSI = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|\r(?!\n)")


def _raw(text: str) -> str:
    return f"````{{raw}} html\n{text}\n````"


def executed_notebook(app: Any, docname: str, source: list[str]) -> None:
    source[0] = EXECUTED.get(docname, source[0])


def setup(app: Any) -> None:
    app.connect("env-before-read-docs", run_notebooks)
    app.connect("source-read", executed_notebook)
    app.connect("source-read", from_the_catalogue)
    app.connect("source-read", list_the_rest)
    app.connect("build-finished", reachable)
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
    app.connect("autodoc-process-signature", no_signature)
