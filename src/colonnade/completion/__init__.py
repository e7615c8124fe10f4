"""Completing the records that a party lacks: from the other parties' columns, by networks, moments or means."""
