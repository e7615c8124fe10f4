"""Messy tables as institutions have them, made by code, and the public tables split by columns.

A data set is {party: data frame} whose cells are texts, numbers and dates as they stand in a file; the key is `id`.
What a frame's `attrs` say under `CSV` is how its file is written: separator, encoding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from benchmarks.common import DATA, load

Tables = dict[str, pd.DataFrame]
KEY = "id"
CSV = "csv"
PARTIES = ("first", "second", "third")


def dates(rng: np.random.Generator, n: int, first: str, days: int) -> pd.Series[pd.Timestamp]:
    return pd.Series(pd.Timestamp(first) + pd.to_timedelta(rng.integers(0, days, n), unit="D"))


def present(rng: np.random.Generator, frame: pd.DataFrame, share: float) -> pd.DataFrame:
    """A part of the records, in another order."""
    return frame[rng.random(len(frame)) < share].sample(frac=1, random_state=1).reset_index(drop=True)


def survey(n: int, rng: np.random.Generator) -> Tables:
    """Dates in two spellings, answers from 1 to 5, and questions that only some are asked."""
    people = np.arange(n)
    age = rng.integers(18, 91, n)
    works = age + rng.normal(0, 5, n) < 65
    satisfaction = np.clip(np.round(3 + 0.02 * (age - 50) + rng.normal(0, 1, n)), 1, 5)
    office = pd.DataFrame({KEY: people, "interviewed": dates(rng, n, "2023-01-09", 300).dt.strftime("%d/%m/%Y")})
    office["age"] = age
    office["comment"] = [f"remark number {k} of the interviewer" for k in people]
    panel = pd.DataFrame({KEY: people, "employed": np.where(works, "yes", "no"), "satisfaction": satisfaction})
    panel.loc[rng.random(n) < 0.05, "satisfaction"] = np.nan
    panel["hours per week"] = np.where(works, rng.normal(37, 8, n).round(1), np.nan)
    panel["employer since"] = dates(rng, n, "1990-01-01", 12_000).where(works)
    income = np.where(works, rng.lognormal(7.8, 0.5, n), rng.lognormal(7.2, 0.4, n)).round(-1)
    tax = pd.DataFrame({KEY: people, "income": income, "region": rng.choice(["N", "S", "E", "W"], n)})
    tax.loc[rng.random(n) < 0.04, "income"] = np.nan
    return {"office": present(rng, office, 0.95), "panel": present(rng, panel, 0.85), "tax": present(rng, tax, 0.9)}


def claims(n: int, rng: np.random.Generator) -> Tables:
    """An insurer with many rows for a person, a clinic with visits, and a registry with one row."""
    people = np.array([f"P{k:06d}" for k in range(n)])
    insurer_rows = np.repeat(people, rng.integers(1, 6, n))
    rows = len(insurer_rows)
    insurer = pd.DataFrame({KEY: insurer_rows, "claimed": rng.lognormal(6, 1, rows).round(2)})
    insurer["day"] = dates(rng, rows, "2022-01-01", 700)
    insurer["kind of claim"] = rng.choice(["dental", "hospital", "drugs"], rows, p=[0.3, 0.1, 0.6])
    visits = np.repeat(people, rng.integers(1, 4, n))
    clinic = pd.DataFrame({KEY: visits, "bmi": rng.normal(26, 4, len(visits)).round(1)})
    clinic["smoker"] = pd.Series(rng.random(n) < 0.3, index=people).loc[visits].map({True: "Y", False: "N"}).to_numpy()
    registry = pd.DataFrame({KEY: people, "birth year": rng.integers(1930, 2005, n), "sex": rng.choice(["f", "m"], n)})
    return {"insurer": insurer, "clinic": clinic, "registry": present(rng, registry, 0.95)}


def firms(n: int, rng: np.random.Generator) -> Tables:
    """60 % zeros, amounts over eight orders of magnitude, negative profits, thousands separators."""
    number = rng.permutation(n) + 10_000_000
    turnover = np.where(rng.random(n) < 0.6, 0.0, rng.lognormal(11, 2.5, n)).round(0)
    bank = pd.DataFrame({KEY: number, "loans": np.where(rng.random(n) < 0.6, 0, rng.lognormal(10, 2, n)).astype(int)})
    bank["overdue"] = (rng.random(n) < 0.08).astype(int)
    tax = pd.DataFrame({KEY: number, "turnover": [f"{amount:,.0f}" for amount in turnover]})
    tax["profit"] = (0.1 * turnover * rng.standard_t(3, n)).round(2)
    court = pd.DataFrame({KEY: number, "lawsuits": rng.poisson(0.2, n), "sector": rng.integers(1, 10, n)})
    return {"bank": present(rng, bank, 0.8), "tax office": present(rng, tax, 0.9), "court": present(rng, court, 0.9)}


def laboratory(n: int, rng: np.random.Generator) -> Tables:
    """Units beside the numbers, decimal commas, and values below a limit of detection."""
    people = np.arange(1, n + 1)
    glucose, marker = rng.normal(5.5, 1, n), rng.lognormal(0, 1, n)
    ward = pd.DataFrame({KEY: people, "glucose": [f"{value:.1f} mmol/l".replace(".", ",") for value in glucose]})
    ward["marker"] = np.where(marker < 0.3, "<0.3", np.round(marker, 2).astype(str))
    ward["weight"] = [f"{value:.0f} kg" for value in rng.normal(75, 12, n)]
    clinic = pd.DataFrame({KEY: people, "pressure": (rng.normal(110, 10, n) + 4 * glucose).round(0)})
    clinic.loc[rng.random(n) < 0.03, "pressure"] = np.nan
    clinic["diabetes"] = np.where(glucose + rng.normal(0, 1, n) > 7, "yes", "no")
    study = pd.DataFrame({KEY: people, "arm": rng.choice(["placebo", "low", "high"], n)})
    study["visit time"] = pd.Timestamp("2024-03-01 08:00") + pd.to_timedelta(rng.integers(0, 90_000, n), unit="min")
    return {"ward": present(rng, ward, 0.9), "clinic": present(rng, clinic, 0.9), "study": study}


def unicode_names(n: int, rng: np.random.Generator) -> Tables:
    """Spaces, umlauts, quotes, dots and Chinese in the names of columns and categories."""
    people = [f"ä{k}" for k in range(n)]
    region = rng.choice(["Île-de-France", "东部", "O'Hara", 'the "North"', "a, b"], n)
    bank = pd.DataFrame({KEY: people, "Höhe des Kredits (€)": rng.normal(10, 3, n), "région": region})
    clinic = pd.DataFrame({KEY: people, "血压": rng.normal(120, 15, n), "blood.type [ABO]": rng.choice(list("ABO"), n)})
    clinic["  raucher ?"] = rng.choice(["Ja", "Nein"], n)
    registry = pd.DataFrame({KEY: people, "naïve = yes": rng.choice(["да", "нет"], n), "#": rng.integers(0, 40, n)})
    return {"Bank of Ümlaut": bank, "clinic 2": present(rng, clinic, 0.8), "registry": present(rng, registry, 0.9)}


def yes_and_no(n: int, rng: np.random.Generator) -> Tables:
    """Almost all columns are Y/N, T/F, 0/1 or True/False, some nearly always the same, some with empty cells."""
    people = np.arange(n)
    ill = rng.random(n) < 0.3
    noisy = ill ^ (rng.random(n) < 0.2)
    doctor = pd.DataFrame({KEY: people, "fever": np.where(noisy, "Y", "N"), "cough": np.where(ill, "T", "F")})
    doctor["rash"] = np.where(rng.random(n) < 0.01, "Y", "N")
    laboratory_ = pd.DataFrame({KEY: people, "culture": ill.astype(int), "second culture": noisy})
    laboratory_["antibody"] = pd.Series(np.where(noisy, "positive", "negative")).mask(rng.random(n) < 0.1)
    school = pd.DataFrame(
        {KEY: people, "absent": np.where(ill, "yes", "no"), "days": np.where(ill, rng.poisson(3, n), 0)}
    )
    return {"doctor": doctor, "laboratory": present(rng, laboratory_, 0.7), "school": present(rng, school, 0.9)}


def levels(n: int, rng: np.random.Generator) -> Tables:
    """Categories with 200 and with more levels, capitals that differ, codes with leading zeros."""
    people = np.arange(n)
    popular = np.minimum(rng.zipf(1.3, n), 200)
    towns = pd.DataFrame({KEY: people, "town": [f"Town {k:03d}" for k in popular], "rent": rng.gamma(4, 200, n)})
    trade = pd.DataFrame({KEY: people, "occupation": [f"{k:04d}" for k in np.minimum(rng.zipf(1.2, n), 900)]})
    trade["wage"] = rng.gamma(5, 8, n).round(2)
    colour = rng.choice(["red", "Red", " red", "blue", "BLUE", "green"], n)
    shop = pd.DataFrame({KEY: people, "colour": colour, "bought": rng.integers(0, 5, n)})
    return {"towns": towns, "trade": present(rng, trade, 0.9), "shop": present(rng, shop, 0.9)}


def empty_and_constant(n: int, rng: np.random.Generator) -> Tables:
    """Columns that are empty, constant, nearly so, equal to each other, or the key under another name."""
    people = np.arange(n)
    value = rng.normal(0, 1, n)
    first = pd.DataFrame({KEY: people, "nothing": np.nan, "one": 1, "value": value, "twice": 2 * value})
    first["country"] = "FR"
    second = pd.DataFrame({KEY: people, "record": people, "rarely": np.where(np.arange(n) % 50 == 0, 1.5, np.nan)})
    second["steady"] = np.where(np.arange(n) % 200 == 0, 6.0, 5.0)
    second["score"] = value + rng.normal(0, 1, n)
    third = pd.DataFrame({KEY: people, "spread": rng.uniform(0, 1e-9, n), "flag": np.where(value > 0, "yes", "no")})
    return {"first": first, "second": present(rng, second, 0.9), "third": present(rng, third, 0.9)}


def few_records(n: int, rng: np.random.Generator) -> Tables:
    """40 persons, more columns than a party's share of them can carry, and hardly any in common."""
    people = np.arange(40)
    tables: Tables = {}
    for place, party in enumerate(PARTIES):
        frame = pd.DataFrame({KEY: people, **{f"{party} {k}": rng.normal(size=40).round(3) for k in range(8)}})
        frame[f"{party} group"] = rng.choice(["a", "b"], 40)
        tables[party] = frame[(people + place) % 4 != 0].reset_index(drop=True)
    return tables


def stays(n: int, rng: np.random.Generator) -> Tables:
    """Hospital stays with times, dates in two formats and ICD codes of many levels; a bank's transactions, many for a
    person and negative, with separators, encodings and signs of another country; a school register with percentages,
    a name that comes twice, classes such as 7 and 7a, and several words for an empty cell."""
    people, illness = np.arange(n) + 100_000, rng.normal(size=n)

    def european(value: float, digits: int = 2) -> str:
        return f"{value:,.{digits}f}".translate(str.maketrans(",.", ".,"))

    who = np.repeat(np.arange(n), rng.integers(1, 4, n))
    rows = len(who)
    admitted = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 1_500_000, rows), unit="min")
    days = rng.gamma(2, 2 + np.exp(0.3 * illness[who]))
    discharged = admitted + pd.to_timedelta((days * 1440).astype(int), unit="min")
    hospital = pd.DataFrame({KEY: people[who], "admitted": admitted.strftime("%d.%m.%Y %H:%M")})
    hospital["discharged"] = np.where(
        rng.random(rows) < 0.5, discharged.strftime("%d.%m.%Y"), discharged.strftime("%Y-%m-%d")
    )
    hospital["ICD-10"] = [f"{chr(65 + k // 40)}{k % 40 + 10}.{k % 7}" for k in np.minimum(rng.zipf(1.25, rows), 600)]
    hospital["ward"] = rng.choice(["ICU", "surgery", "internal", "n/a"], rows, p=[0.1, 0.4, 0.45, 0.05])
    hospital["costs"] = [f"{value:,.2f}" for value in 800 * days * np.exp(0.2 * rng.normal(size=rows))]
    hospital["emergency"] = rng.choice(["Y", "N", "?"], rows, p=[0.4, 0.55, 0.05])
    marker = np.exp(1 + illness[who] + rng.normal(size=rows)).round(1).astype(str)
    hospital["CRP"] = np.where(rng.random(rows) < 0.2, "-", np.where(rng.random(rows) < 0.1, "<0.5", marker))

    payers = np.flatnonzero(rng.random(n) < 0.8)
    payer = np.repeat(payers, 1 + rng.poisson(8, len(payers)))
    bank = pd.DataFrame({KEY: people[payer], "amount": [f"{european(v)} €" for v in rng.normal(50, 400, len(payer))]})
    bank["booked"] = dates(rng, len(payer), "2022-01-01", 700).dt.strftime("%d.%m.%y")
    bank["channel"] = rng.choice(["online", "branch", "ATM"], len(payer))
    bank["IBAN"] = [f"DE{k}" for k in rng.integers(10**15, 10**16, len(payer))]
    bank["overdraft"] = rng.choice(["ja", "nein"], len(payer), p=[0.2, 0.8])
    bank.attrs[CSV] = {"sep": ";", "encoding": "utf-8-sig"}

    pupil = np.flatnonzero(rng.random(n) < 0.9)
    born = dates(rng, len(pupil), "1995-01-01", 6000)
    grade = 3 + 0.6 * illness[pupil]
    school = pd.DataFrame({KEY: people[pupil]})
    school["geboren"] = np.where(
        rng.random(len(pupil)) < 0.7, born.dt.strftime("%d.%m.%Y"), born.dt.strftime("%d/%m/%Y")
    )
    school["Fehlquote"] = [f"{european(value, 1)} %" for value in np.clip(rng.gamma(2, 3, len(pupil)), 0, 100)]
    school["Klasse"] = [
        f"{year}{letter}"
        for year, letter in zip(rng.integers(5, 11, len(pupil)), rng.choice(["", "a", "b"], len(pupil)), strict=True)
    ]
    school["Mathe"] = np.where(
        rng.random(len(pupil)) < 0.1, "n/a", np.clip(grade.round(), 1, 6).astype(int).astype(str)
    )
    school["Förderung"] = rng.choice(["ja", "nein", "unbekannt", "-"], len(pupil), p=[0.2, 0.7, 0.05, 0.05])
    school["Größe"] = np.where(
        rng.random(len(pupil)) < 0.04, ".", [f"{european(v)} m" for v in rng.normal(1.6, 0.15, len(pupil))]
    )
    school.insert(3, "Note", [european(value, 1) for value in grade])
    school.insert(4, "Note", school["Note"], allow_duplicates=True)
    school.attrs[CSV] = {"sep": ";", "encoding": "latin-1"}
    return {"hospital": hospital, "bank": bank, "school": school}


MESSY: dict[str, Callable[[int, np.random.Generator], Tables]] = {
    "survey": survey,
    "claims": claims,
    "firms": firms,
    "laboratory": laboratory,
    "unicode": unicode_names,
    "yes-and-no": yes_and_no,
    "200 levels": levels,
    "empty and constant": empty_and_constant,
    "few records": few_records,
    "stays": stays,
}


def public_names() -> list[str]:
    return sorted(path.stem for path in DATA.glob("*.parquet"))


def public(name: str, n: int, rng: np.random.Generator) -> Tables:
    """A public table with at most n of its records; its columns go to three parties in turn, each with 90 % of them."""
    table = load(name)
    if len(table) > n:
        table = table.sample(n=n, random_state=int(rng.integers(2**31))).reset_index(drop=True)
    table = table.rename(columns={KEY: "id of the table"})
    table.insert(0, KEY, np.arange(len(table)))
    others = [column for column in table.columns if column != KEY]
    return {
        party: present(rng, table[[KEY, *others[place :: len(PARTIES)]]], 0.9) for place, party in enumerate(PARTIES)
    }


def tables_of(name: str, n: int, seed: int = 1) -> Tables:
    rng = np.random.default_rng([seed, *map(ord, name)])
    return MESSY[name](n, rng) if name in MESSY else public(name, n, rng)
