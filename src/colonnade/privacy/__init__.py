"""Mechanisms with integer noise, costs as data, accounting, budgets and the ledger."""

# Importing it teaches the accountants the mechanism "skellam": a ledger that holds such a cost must be readable.
from colonnade.privacy import skellam as _skellam  # noqa: F401
