"""How `make docs` builds the site: Sphinx, MyST and Furo; nothing is loaded from outside, warnings are errors."""

from __future__ import annotations

import re
from typing import Any

import colonnade

project = "Colonnade"
author = "The Colonnade authors"
copyright = "2026, The Colonnade authors"
release = colonnade.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["notebooks/*"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
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
    text = re.sub(r"(?<![`:])`([^`\n]+)`(?!`)", r"``\1``", text)  # `code`
    text = re.sub(r"(?<!\*)\*\*(?!\w)", r"\\*\\*", text)  # a power, not bold
    text = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", text)  # a fitted attribute such as coef_
    text = re.sub(r"\|([^|\n]*)\|", r"\\|\1\\|", text)  # an absolute value
    made: list[str] = []
    for line in text.split("\n"):
        indented = line.startswith("    ") and (not made or not made[-1].startswith("    "))
        if indented and made and not made[-1].strip() and not _in_section(made):
            made += ["::", ""]
        made.append(line)
    lines[:] = made


def _in_section(lines: list[str]) -> bool:
    """Inside a numpydoc section (Parameters, Returns ...), whose items are indented by right."""
    return any(re.fullmatch(r"-{3,}", line.strip()) for line in lines[-40:])


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
