"""Mechanisms with integer noise, costs as data, accounting, budgets and the ledger."""
