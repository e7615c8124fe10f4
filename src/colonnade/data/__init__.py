"""Columns and their public domains, sources, blocks, cohorts: what the parties hold and how it lines up.

In dependency order: `encoding` (cells to codes), `dates`, `column` (a declared column, its domain, columns.toml),
`sources`, `postgresql`, `cluster` (Dask), `keys`, `one_row` (several rows of a record become one), `block`, `summary`
and `draft` (a first columns.toml), `aggregation` (mergeable statistics, here or on a cluster), `cohort`.
"""

from colonnade.data.block import Block
from colonnade.data.cohort import Alignment, Cohort, Patterns, join_in_the_clear
from colonnade.data.column import Column, Columns, Kind
from colonnade.data.draft import Draft
from colonnade.data.postgresql import PostgreSQLSource
from colonnade.data.sources import CSVSource, DuckDBSource, FrameSource, ParquetSource, Source, open_source

__all__ = [
    "Alignment",
    "Block",
    "Cohort",
    "Column",
    "Columns",
    "CSVSource",
    "Draft",
    "DuckDBSource",
    "FrameSource",
    "join_in_the_clear",
    "Kind",
    "open_source",
    "ParquetSource",
    "Patterns",
    "PostgreSQLSource",
    "Source",
]
