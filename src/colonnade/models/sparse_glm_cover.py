"""Which total predictors may be opened: those that leave every party's part mixed with another party's.

The response holder is told T_t = sum_c b_ct x_c in round t, summed over the columns c of the other parties. It does not
know b, but sparsity shows it in which rounds a column takes part. Let A_t be the columns with b_ct != 0, and

    meet(d) = the intersection of all A_t with d in A_t :   the columns that always come when d comes.

If meet(d) has a column c of another party, put x_d - e x_c in place of x_d and b_c + e b_d in place of b_c, for any
number e: every T_t stays as it is, and so does every A_t, but for the few e with b_ct + e b_dt = 0. So the totals of
all rounds fit infinitely many predictors of d's party. If meet(d) lies within one party, intersecting the spans of
the rounds finds a combination of that party's columns alone; a round with one party is the plainest case.

So a total is opened only if, with it, every meet keeps columns of two parties. What that costs: solutions in which one
other party alone has coefficients cannot be had by rounds of masked totals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.models.sparse_path import Withheld


class Cover:
    """The columns that took part in the totals opened so far.

    `owners` has each column's party; the holder knows its own part, so its columns cover nothing.
    """

    def __init__(self, owners: Sequence[str], *, holder: str) -> None:
        self._owners = np.array([*owners], dtype=object)
        self._of_others = self._owners != holder
        self._meets: dict[int, NDArray[np.bool_]] = {}

    def admit(self, selected: NDArray[np.bool_]) -> None:
        """Note a total over these columns, or raise `Withheld` with the party that it would uncover."""
        active = np.asarray(selected, dtype=bool) & self._of_others
        meets = {
            int(c): self._meets[int(c)] & active if int(c) in self._meets else active for c in np.flatnonzero(active)
        }
        for column, meet in meets.items():
            if len(set(self._owners[meet])) < 2:
                raise Withheld(str(self._owners[column]))
        self._meets.update(meets)
