"""One table of methods; what comes from outside runs at a party only if its own configuration names the package."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from sklearn.base import clone

import colonnade
from colonnade.errors import PackageNotNamed, SchemaError, UnknownMethod
from colonnade.federation.catalogue import CATALOGUE, Catalogue
from colonnade.federation.coordinator import Federation
from colonnade.federation.method import Method
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import stage
from colonnade.federation.step import _registry, registered
from colonnade.statistics.describe import Describe
from colonnade.statistics.polynomial import Polynomial
from support import steps
from support.plugin import installed
from support.small import three_parties

PAPERS = "colonnade.papers"


# --- what there is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE.names)
def test_a_method_is_called_as_it_is_listed(name: str) -> None:
    cls = CATALOGUE.load(name)
    assert issubclass(cls, Method)
    assert cls.name == name
    assert CATALOGUE.entry(name).purpose() == cls.purpose()


SAMPLES: dict[str, Any] = {
    "capacity": {"a": 5, "b": 7},
    "tables": (("a", "b"),),
    "response": "sued",
    "polynomial": Polynomial.of([(0.5, {"a": 2}), (-1, {"b": 1})]),
    "columns": ("a", "b"),
    "normalise": ("case", "spaces"),
}
"""Options that must be given, and lists that a method may put in order."""


@pytest.mark.parametrize("name", CATALOGUE.names)
def test_scikit_learn_can_clone_a_method(name: str) -> None:
    """Its `clone` wants every option back as the very object that it gave."""
    cls = CATALOGUE.load(name)
    required = [option for option, declared in cls.declared().items() if declared.default is MISSING]
    lists = [option for option in ("columns", "normalise", "response") if option in cls.declared()]
    method = cls(**{option: SAMPLES[option] for option in (*required, *lists)})
    copy = clone(method)
    assert type(copy) is cls
    assert copy == method
    assert copy.set_params(**method.get_params()).options() == method.options()


def test_an_unknown_name_proposes_the_nearest() -> None:
    with pytest.raises(UnknownMethod, match=r"no method 'descripe'; it has .*Did you mean 'describe'\?"):
        CATALOGUE.make("descripe", {})


def test_a_plug_in_is_listed_and_takes_no_name_of_our_own(tmp_path: Path) -> None:
    with installed(tmp_path, describe="plugged_in.sizes:Sizes") as package:
        assert "sizes" in CATALOGUE.names
        entry = CATALOGUE.entry("sizes")
        assert (entry.package, entry.own) == (package, False)
        assert entry.purpose() == "Count each party's records with noise, by a package of somebody else's."
        assert package not in sys.modules, "its purpose was read, and nothing of it imported"
        assert CATALOGUE.load("describe") is Describe
        assert "sizes" not in CATALOGUE.own() | CATALOGUE.papers()
    assert "sizes" not in CATALOGUE.names


def test_a_plug_in_in_our_own_name_space_is_still_a_strangers(tmp_path: Path) -> None:
    with installed(tmp_path, stranger="colonnade.stranger:Method"):
        assert CATALOGUE.entry("stranger").package == "colonnade"
        with pytest.raises(PackageNotNamed):
            CATALOGUE.permit("stranger", (PAPERS,))


def test_our_own_steps_are_found_by_their_names() -> None:
    for module in pkgutil.walk_packages(colonnade.__path__, "colonnade."):
        if not module.name.startswith("colonnade.cli"):
            importlib.import_module(module.name)
    ours = [step for step in _registry.values() if step.module.startswith("colonnade.")]
    assert len(ours) > 40
    for step in ours:
        assert registered(step.name) is step
        assert CATALOGUE.package_of(step.module) in ("", PAPERS)


# --- what a party runs ----------------------------------------------------------------------------------------


def refused(federation: Federation, plan: Plan, cure: str) -> None:
    """Every party refuses a plan, and its log says how it would accept it."""
    with pytest.raises(PackageNotNamed, match="configuration does not name"):
        federation.run(plan) if plan.run is not None else federation.check(plan)
    log = Path(federation.transport.where("clinic")).read_text()
    assert cure in log.splitlines()[-1]
    assert federation.transport["clinic"].ledger.chain.head().rows == 0  # type: ignore[index]


def one_step(federation: Federation, step: Any, **arguments: Any) -> Plan:
    requests = {"clinic": [arguments]}
    asked = stage("s", step, requests, facts=federation.facts, roster=federation.roster, discloses="a test")
    return plan_of_steps([asked])


def test_a_party_runs_a_plug_in_only_if_it_names_the_package(tmp_path: Path) -> None:
    with installed(tmp_path) as package:
        method = CATALOGUE.make("sizes", {"epsilon": 2.0})
        size = registered(f"{package}.sizes.size")
        cure = f'add packages = ["{package}"] to it'
        with three_parties(tmp_path / "without", packages=()) as federation:
            refused(federation, federation.plan(method), cure)
            refused(federation, one_step(federation, size, epsilon=1.0), cure)
        with three_parties(tmp_path / "with", packages=(package,)) as federation:
            result, run = federation.run(method)
            assert result.sizes.keys() == {"clinic", "court", "bank"}
            assert run.read_json("view.json")["title"] == "Sizes"
            assert federation.ask(size, epsilon=1.0).keys() == {"clinic", "court", "bank"}
        with three_parties(tmp_path / "inner", packages=(f"{package}.sizes",)) as federation:
            assert federation.run(method)[0].sizes


def test_the_wing_of_the_papers_likewise(tmp_path: Path) -> None:
    name, entry = next(iter(CATALOGUE.papers().items()))
    assert entry.package == PAPERS
    with pytest.raises(PackageNotNamed, match=r'add packages = \["colonnade.papers"\]'):
        CATALOGUE.permit(name, ())
    assert CATALOGUE.permit(name, (PAPERS,)) is entry
    from colonnade.papers.blind_rsa import sign_blinded as step

    with pytest.raises(PackageNotNamed, match=r"comes from colonnade\.papers"):
        CATALOGUE.permit_step(step.name, step.module, ("plugged_in",))
    CATALOGUE.permit_step(step.name, step.module, (PAPERS,))
    with three_parties(tmp_path, packages=()) as federation:
        arguments = {"plan": Plan(method=name, options={}, stages=()).to_dict()}
        assert arguments["plan"]["method"] == name
        planned = one_step(federation, steps.noisy_zero, epsilon=1.0)
        refused(federation, Plan(method=name, options={}, stages=planned.stages), PAPERS)


def test_a_local_federation_has_the_wing_by_default(tmp_path: Path) -> None:
    with three_parties(tmp_path, packages=CATALOGUE.optional) as federation:
        assert federation.transport["clinic"].packages == (PAPERS,)  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("plugged_inn", r"names 'plugged_inn', which is not installed here; .*Did you mean 'plugged_in'\?"),
        ("colonnade.paper", r"not installed here.*Did you mean 'colonnade.papers'\?"),
        ("os; import evil", "not installed here"),
        ("", "not installed here"),
        ("../evil", "not installed here"),
        ("plugged_in.broken", "cannot be imported .RuntimeError: half installed.; repair"),
    ],
)
def test_an_unknown_package_is_refused_in_one_sentence(tmp_path: Path, name: str, told: str) -> None:
    with installed(tmp_path) as package:
        (tmp_path / "site" / package / "broken.py").write_text("raise RuntimeError('half installed')\n")
        with pytest.raises(SchemaError, match=told):
            three_parties(tmp_path, packages=(name,))


def test_no_package_is_imported_before_all_names_are_checked(tmp_path: Path) -> None:
    with installed(tmp_path) as package:
        with pytest.raises(SchemaError, match="nowhere"):
            CATALOGUE.load_packages((package, "nowhere"))
        assert package not in sys.modules


def test_a_party_imports_nothing_of_a_package_that_it_does_not_name(tmp_path: Path) -> None:
    with installed(tmp_path) as package:
        with pytest.raises(PackageNotNamed):
            CATALOGUE.permit("sizes", ())
        assert package not in sys.modules


def test_two_optional_packages_are_told_apart() -> None:
    made = Catalogue()
    made.enter({"a": "colonnade.wing.a:A", "b": "colonnade.wings:B"}, optional=("colonnade.wing",))
    assert made.entry("a").package == "colonnade.wing"
    assert made.entry("b").own
