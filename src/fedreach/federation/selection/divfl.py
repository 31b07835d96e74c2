"""Choose clients whose updates stand for those of all others."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.errors import require
from fedreach.federation.selection.shared.gradient_table import GradientTable
from fedreach.federation.values import Selection

NUMBERS = 2**22  # that are made at a time on the way to the distances


@dataclass(frozen=True, kw_only=True)
class DivFL(GradientTable):
    """Choose k clients such that everybody's update has one of theirs close by.

    The greedy algorithm for the smallest G(S) = sum_i min_{j in S} |g_i - g_j| over the available clients, g_i the
    latest update of client i: the first is the client to which all others are nearest, and each further one is that
    which lowers G most. G is submodular, so that its fall from any one bound is at least 1 - 1/e of the largest that k
    clients can reach. Ties (12 decimals), which the last two of a group always have, go to the client that is nearer to
    all others, and then to the lower id.

    Distances are computed in float64, block by block; n clients take memory for n^2 numbers.

    When: a small cohort shall stand for everybody, by the updates of all.

    Args:
        candidates: How many clients, drawn anew for each place, are looked at (stochastic greedy), at least 1; None
            looks at all. A number near (n / k) log(1 / e) keeps all but e of the bound, on average.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Balakrishnan, Li, Zhou, Himayat, Smith and Bilmes, "Diverse Client Selection for Federated Learning via
    Submodular Maximization", ICLR 2022, eq. (5) and Algorithm 1. There those who were not chosen keep their old
    updates, as here without `refresh`. The authors' code, github.com/melodi-lab/divfl, compares gradients of all local
    data at the broadcast model in place of updates: of everybody in round 1, later of those who were chosen. From the
    same rows it chooses as this, but for ties. Its stochastic greedy looks at k clients or a tenth, whichever is more.

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9, 11]), np.array([[0], [1.5], [10], [11], [13]], np.float32)
        >>> DivFL().choose(ids, rows, 2, np.random.default_rng(0)).ids
        array([8, 5])
    """

    candidates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, candidates="[1, inf)")

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Selection:
        apart = distances(rows)
        apart /= apart.max() or 1.0
        total = apart.sum(axis=0).round(12)
        nearest = np.ones(len(rows))  # to those chosen so far; at first to somebody far from all
        left, chosen = np.arange(len(rows)), []
        for _ in range(k):
            few = self.candidates is not None and self.candidates < len(left)
            looked_at = np.sort(rng.choice(left, self.candidates, replace=False)) if few else left
            fall = np.maximum(nearest[:, None] - apart[:, looked_at], 0).sum(axis=0).round(12)
            best = int(looked_at[np.lexsort((total[looked_at], -fall))[0]])
            nearest = np.minimum(nearest, apart[best])
            left = left[left != best]
            chosen.append(best)
        return Selection(ids[chosen])


def distances(rows: Float32s) -> Floats:
    """Return the (n, n) distances between (n, p) rows, block by block.

    Example:
        >>> distances(np.array([[0, 0], [3, 4]], np.float32))
        array([[0., 5.],
               [5., 0.]])
    """
    n = len(rows)
    squares, products = np.zeros(n), np.zeros((n, n))
    step = max(1, NUMBERS // max(1, n))
    for begin in range(0, rows.shape[1], step):
        block = np.asarray(rows[:, begin : begin + step], np.float64)
        squares += (block**2).sum(axis=1)
        products += block @ block.T
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0))
    np.fill_diagonal(apart, 0)
    return apart
