"""How the columns of missing records are filled in, by networks, by moments, or by means."""
