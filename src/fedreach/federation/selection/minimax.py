"""Choose the clients whose updates resemble nobody else's."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.selection.shared.nearest import NearestTable
from fedreach.federation.selection.shared.similarity import first_by_similarity
from fedreach.federation.values import Selection


@dataclass(frozen=True, kw_only=True)
class Minimax(NearestTable):
    """Choose the k clients whose update is least like that of the client it is most like.

    The k smallest m_i = max_{j != i} cos(g_i, g_j) over the available clients, g_i the latest update of client i. As
    the maximum runs over all of them and not over those chosen, this minimises the sum of m_i over all choices of k.
    A client whose update is zero has m_i = 1: it stands still, which is not a direction of its own.

    The paper's pseudo-code is corrected in three places. It returns k + 1 clients (``<=`` for ``<``). It keeps the
    m_i as a set of values, so that one of two clients that are nearest to each other, with exactly equal m_i, is
    lost; here every client keeps its own. Ties, common for that reason, are left open; here they go to the client
    whose second largest cosine is smaller, then the third, and so on (12 decimals), and at last to the lower id, so
    that renaming the clients renames the choice.

    Without `refresh`, clients that are not chosen keep their row of round 1, when all updates still point alike, while
    those chosen send new ones, which differ: the clients of round 1 may then be chosen in every round of the run. With
    `explore`, some of the cohort are drawn at random, and rows become young without further bytes.

    Cosines are computed in float64, block by block; with n clients and rows of p numbers it takes n^2 p products and
    memory for a block.

    When: updates of all clients may be asked for now and then, and the cohort shall be as varied as can be.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), Algorithm 1 and eq. 11.

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9]), np.array([[1, 0], [0.9, 0.1], [0, 1], [-1, -1]], np.float32)
        >>> Minimax().choose(ids, rows, 2, None).ids
        array([8, 9])
    """

    def choose(
        self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator, nearest: Floats | None = None
    ) -> Selection:
        return Selection(ids[first_by_similarity(rows, k, nearest=nearest)])
