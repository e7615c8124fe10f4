"""Columns and their public domains, sources, blocks, cohorts: what the parties hold and how it lines up.

In dependency order: `encoding` (cells to codes), `column` (a declared column, its domain, columns.toml), `sources`,
`postgresql`, `draft` (a first columns.toml), `cluster` (Dask), `keys`, `block`, `aggregation` (mergeable statistics,
here or on a cluster), `cohort`.
"""

from colonnade.data.block import Block
from colonnade.data.cohort import Alignment, Cohort, Patterns, join_in_the_clear
from colonnade.data.column import Column, Columns, Kind
from colonnade.data.draft import draft_columns, draft_toml
from colonnade.data.postgresql import PostgreSQLSource
from colonnade.data.sources import CSVSource, DuckDBSource, FrameSource, ParquetSource, Source, open_source

__all__ = [
    "Alignment",
    "Block",
    "Cohort",
    "Column",
    "Columns",
    "CSVSource",
    "draft_columns",
    "draft_toml",
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
