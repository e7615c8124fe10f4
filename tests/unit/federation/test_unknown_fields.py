"""A field that a TOML file does not have is refused wherever it stands, with the nearest one that it has."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import colonnade as co
from colonnade.errors import ColonnadeError
from colonnade.federation.config import ConsortiumFile, CoordinatorFile, JobFile, PartyFile, Spec

FEDERATION = 'key = "id"\ncolumns = "c.toml"\n{top}[parties.a]\nsource = {source}\n{party}'
PARTY = 'consortium = "c.toml"\nname = "a"\n'
CONSORTIUM = 'key = "id"\ncoordinator = "c:1"\ncoordinator_organisation = "U"\n'


def federation(*, top: str = "", source: str = '"a.csv"', party: str = "") -> str:
    return FEDERATION.format(top=top, source=source, party=party)


@pytest.mark.parametrize(
    ("reader", "text", "wrong", "meant"),
    [
        (Spec, federation(top="ignor = []\n"), "ignor", "ignore"),
        (Spec, federation(party='organization = "x"\n'), "organization", "organisation"),
        (Spec, federation(party="[budget]\nepsilom = 1.0\n"), "epsilom", "epsilon"),
        (Spec, federation(source='{ csv = "a.csv", seperator = ";" }'), "seperator", "separator"),
        (Spec, federation(source='{ cvs = "a.csv" }'), "cvs", "csv"),
        (PartyFile, PARTY + 'sorce = "a.csv"\n', "sorce", "source"),
        (PartyFile, PARTY + 'source = { parquet = "a", ignored = [] }\n', "ignored", "ignore"),
        (PartyFile, PARTY + "[policy]\nalow = []\n", "alow", "allow"),
        (PartyFile, PARTY + "[budget]\nepsilon = 1.0\nperiod_day = 3\n", "period_day", "period_days"),
        (CoordinatorFile, 'consortium = "c.toml"\nadress = "x"\n', "adress", "address"),
        (ConsortiumFile, CONSORTIUM + "treshold = 1\n", "treshold", "threshold"),
        (ConsortiumFile, CONSORTIUM + '[members.a]\ncertificate = "x"\ncolumn = "y"\n', "column", "columns"),
        (JobFile, 'method = "pca"\noption = 3\n', "option", "options"),
        (JobFile, 'method = "pca"\n[options]\nepsilom = 3.0\n', "epsilom", "epsilon"),
        (co.Columns, "[colums.a]\n", "colums", "columns"),
        (co.Columns, "[columns.a]\nkind = 'count'\nlowr = 0\n", "lowr", "lower"),
        (co.Columns, "[[columns]]\nname = 'a'\nkind = 'date'\nstepp = 'day'\n", "stepp", "step"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest(
    reader: type, text: str, wrong: str, meant: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.toml"
    file.write_text(text)
    with pytest.raises(ColonnadeError, match=rf"{wrong}.*(Did you mean|write) '{meant}'"):
        read = reader.from_toml(file)
        read.method()


def test_an_unknown_option_in_python_is_refused_too() -> None:
    """Its signature is explicit, so Python itself refuses."""
    with pytest.raises(TypeError, match="'ignor'"):
        co.Federation.local({"a": pd.DataFrame({"id": [1]})}, key="id", columns=co.Columns([]), ignor=["b"])  # type: ignore[call-arg]
