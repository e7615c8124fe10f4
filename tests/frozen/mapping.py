"""From the names before the redesign to those after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Options = dict[str, Any]


def translate(method: str, options: Options) -> tuple[str, Options]:
    """The new name and the new options of an old method with its old options.

    `options` are what `Method.options()` gave before the redesign, read from JSON. An old option that has no
    counterpart may be dropped only where it changed no plan.
    """
    change = CHANGES.get(method)
    name, options = change(options) if change else (method, options)
    # What is proven takes memory too, so that a stated limit leads to other chunks: compared without.
    return name, {**options, "verify": False} if options.get("memory") else options


def _renamed(options: Options, **names: str) -> Options:
    """The options under new names; a new name of "" drops one."""
    return {names.get(old, old): value for old, value in options.items() if names.get(old, old)}


def _sparse_glm(options: Options) -> tuple[str, Options]:
    options = _renamed(options, via="solver", exchange="masking")
    solver, damping = options.pop("solver"), options.pop("damping")
    if solver != "admm":  # damping belongs to ADMM
        rounds = solver is None and options["epsilon"] is None and _by_rounds(options)
        if rounds or solver == "newton":  # which used complete records and did not weigh them
            return "select", {**options, "solver": "newton", "missing": "complete-case"}
        return "select", {**options, "solver": solver}
    for name in ("epsilon", "delta", "gamma", "clip", "presence", "view", "relation"):  # no private ADMM, no moments
        options.pop(name)
    return "vfl-glm-vs", {**options, "damping": damping}


def _by_rounds(options: Options) -> bool:
    return (options["family"], options["criterion"]) != ("gaussian", "bic")


def _describe(options: Options) -> tuple[str, Options]:
    """Quantiles come from cells that refine where the records are, not from a dyadic tree; the cost is the same."""
    marginals = {"quantiles": "adaptive"}.get(options["marginals"], options["marginals"])
    return "describe", {**options, "marginals": marginals}


def _align(options: Options) -> tuple[str, Options]:
    options = dict(options)
    return ("blind-rsa" if options.pop("protocol") == "blind-rsa" else "align"), options


def _pca(options: Options) -> tuple[str, Options]:
    unscaled = {"scale": False} if options["centre"] else {}
    return "pca", {**_renamed(options, block="tile"), **unscaled}


def _classify(options: Options) -> tuple[str, Options]:
    """Moments were the default; rounds of noisy scores are now, wherever their noise allows it (`moved.ROUNDS`)."""
    batches = ("sampling", "rounds", "learning_rate", "radius")
    options = _renamed(options, block="tile")
    if options["solver"] == "moments":
        return "classify", {name: value for name, value in options.items() if name not in batches}
    options.pop("solver")
    for name in ("presence", "ridge", "tile"):  # of moments
        options.pop(name)
    return "sqm-logistic", options


def _vertimrf(options: Options) -> tuple[str, Options]:
    options = _renamed(options, format="file_format")
    if options["encoder"] == "sqm":
        papers = ("encoder", "recover", "consistency", "local_mrf", "sketches", "accounting", "complete", "records")
        return "synthesize", {"model": "field", **_renamed(options, tables="n_tables", **dict.fromkeys(papers, ""))}
    field = ("tables", "theta", "theta_triples", "discrepancy", "view", "relation")
    options = _renamed(options, **dict.fromkeys(field, ""))
    for name in ("bins", "max_clique", "split"):  # None was a default that the encoder chose
        if options[name] is None:
            options.pop(name)
    return "vertimrf", options


def _copula_sqm(options: Options) -> tuple[str, Options]:
    return "synthesize", {"model": "copula", **_renamed(options, format="file_format")}


def _ranks(method: str) -> Callable[[Options], tuple[str, Options]]:
    def change(options: Options) -> tuple[str, Options]:
        unused = [] if options["marginals"] == "bernstein" else ["order", "degree"]
        unused += [] if options["accounting"] == "nominal" else ["split"]
        return method, _renamed(options, format="file_format", draws="sampler", **dict.fromkeys(unused, ""))

    return change


def _vfem(options: Options) -> tuple[str, Options]:
    """The paper's model is a class of its own now; its baselines are those of `Regress`, which plan the same."""
    options = _renamed(options, release="", step="solver", exchange="masking", iterations="rounds")
    options["solver"] = {"gradient": "rounds", "exact": "exact"}[options["solver"]]
    rounds = ("masking", "information", "rounds", "tolerance", "sketch_size", "coordinator")
    independent = options.pop("cross_party") == "independent"
    if not independent or options["missing"] != "em":
        chosen = () if options["epsilon"] is None else ("missing",)  # with noise there is one estimate, and no choice
        return "regress", _renamed(options, **dict.fromkeys(("solver", "init", *rounds, *chosen), ""))
    options = _renamed(options, **dict.fromkeys(("family", "missing", "epsilon", "delta", "clip_quantile"), ""))
    return "vfem", options if options["solver"] == "rounds" else _renamed(options, **dict.fromkeys(rounds, ""))


def _fedpsg(options: Options) -> tuple[str, Options]:
    names = {"complete": "parties", "protect": "masking", "format": "file_format", "rate": "learning_rate"}
    options = _renamed(options, columns="", **names)
    options["masking"] = {"masks": "pads"}.get(options["masking"], options["masking"])
    if options["imputer"] in ("gain", "vgain", "cgain") or options["n_correlated"]:
        return "fedpsg", options
    papers = ("n_correlated", "generator", "generator_steps", "condition")
    return "complete", _renamed(options, **dict.fromkeys(papers, ""))


def _moments(options: Options) -> tuple[str, Options]:
    return "moments", _renamed(options, block="tile")


def _contingency(options: Options) -> tuple[str, Options]:
    return "tables", {**options, "memory": MEMORY[options["memory"]]}


def _polynomial(options: Options) -> tuple[str, Options]:
    outputs = {"outputs": options["polynomial"]}
    return "polynomial-sum", {**options, "polynomial": outputs, "memory": MEMORY[options["memory"]]}


MEMORY = {1 << 23: None, 1 << 16: 500, 1 << 12: 400.226}
"""Bytes of one share in one round, as these methods took it -> MB that a process may use, as all take it now: the same
chunks of rows in these cases."""


CHANGES: dict[str, Callable[[Options], tuple[str, Options]]] = {
    "describe": _describe,
    "align": _align,
    "moments": _moments,
    "contingency": _contingency,
    "polynomial": _polynomial,
    "sparse-glm": _sparse_glm,
    "vfem": _vfem,
    "pca": _pca,
    "classify": _classify,
    "vertimrf": _vertimrf,
    "fedpsg": _fedpsg,
    "copula-sqm": _copula_sqm,
    **{method: _ranks(method) for method in ("vcds", "evcds", "ievcds")},
}
