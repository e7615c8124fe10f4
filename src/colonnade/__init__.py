"""Colonnade: statistics across institutions that hold different columns about the same people or firms."""

__version__ = "0.1.0"
