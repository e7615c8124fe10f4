"""Methods that Colonnade is compared with; none of them is part of the product."""
