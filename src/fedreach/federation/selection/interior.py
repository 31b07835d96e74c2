"""Choose among the clients whose updates lie inside the convex hull of all."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Ints
from fedreach.federation.selection.convex_hull import Hull
from fedreach.federation.selection.shared.hull import principal_points, vertices
from fedreach.federation.values import Selection


@dataclass(frozen=True, kw_only=True)
class Interior(Hull):
    """Choose k at random of the clients that are no vertices: the opposite of `ConvexHull`, to compare with.

    Where fewer than k are none, all of these are chosen, and the round's remark says so. Where everybody is a vertex
    there is nobody to choose; then k are drawn of all, which the remark says too.

    When: only as the contrast to `convex_hull`.

    Args:
        components: As of the `ConvexHull` it is compared with, like `normalize`. With more axes fewer are inside.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), section 5, baseline c).

    Example:
        >>> ids, corners = np.arange(5), np.array([[0, 0], [4, 0], [4, 3], [0, 3], [2, 1]], np.float32)
        >>> chosen = Interior().choose(ids, corners, 2, None)
        >>> chosen.ids, chosen.remark
        (array([4]), '1 of 5 clients inside the hull, fewer than the cohort of 2')
    """

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Selection:
        inside = np.delete(ids, vertices(principal_points(rows, self.components, normalize=self.normalize)))
        if len(inside) == 0:
            return Selection(rng.choice(ids, size=k, replace=False), f"all {len(ids)} clients vertices, so any drawn")
        if len(inside) < k:
            return Selection(
                inside, f"{len(inside)} of {len(ids)} clients inside the hull, fewer than the cohort of {k}"
            )
        return Selection(rng.choice(inside, size=k, replace=False))
