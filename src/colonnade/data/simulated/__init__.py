"""The papers' simulated data: tables with a known truth, cut into blocks as the parties would hold them.

`copula_paper` is the simulation of the copula paper's section 5; `five_institutions` has the shape of the VFEM
paper's data on small firms, which is not public. Each returns an `Example`. Nothing here protects anyone, so
numpy's seeded generators are the right source of randomness. `docs/simulated-data.md` says where the papers
leave something open and how it is read here.
"""

from colonnade.data.simulated.copula_paper import copula_paper
from colonnade.data.simulated.example import Equation, Example, Truth, design_matrix
from colonnade.data.simulated.five_institutions import five_institutions

__all__ = ["Equation", "Example", "Truth", "copula_paper", "design_matrix", "five_institutions"]
