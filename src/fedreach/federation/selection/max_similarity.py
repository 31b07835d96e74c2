"""Choose the clients whose updates resemble somebody else's most."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.selection.shared.nearest import NearestTable
from fedreach.federation.selection.shared.similarity import first_by_similarity
from fedreach.federation.values import Selection


@dataclass(frozen=True, kw_only=True)
class MaxSimilarity(NearestTable):
    """Choose the k clients whose update has the most similar neighbour: the opposite of `Minimax`, to compare with.

    The k largest m_i = max_{j != i} cos(g_i, g_j); ties go to the client whose second largest cosine is larger, then
    the third, and so on, and at last to the lower id. A client whose update is zero has m_i = 1.

    When: only as the contrast to `minimax`.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), section 5, baseline b).

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9]), np.array([[1, 0], [0.9, 0.1], [0, 1], [-1, -1]], np.float32)
        >>> MaxSimilarity().choose(ids, rows, 2, None).ids
        array([3, 5])
    """

    def choose(
        self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator, nearest: Floats | None = None
    ) -> Selection:
        return Selection(ids[first_by_similarity(rows, k, most_similar=True, nearest=nearest)])
