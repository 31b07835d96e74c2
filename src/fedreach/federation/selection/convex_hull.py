"""Choose the clients whose updates are vertices of the convex hull of all."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Ints
from fedreach.errors import require
from fedreach.federation.selection.shared.gradient_table import GradientTable
from fedreach.federation.selection.shared.hull import MOST_COMPONENTS, principal_points, spanning, vertices
from fedreach.federation.values import Selection


@dataclass(frozen=True, kw_only=True)
class Hull(GradientTable):
    """What policies share that look at the hull of the updates along their principal axes."""

    components: int = 2
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"[1, {MOST_COMPONENTS}]: In more dimensions nearly all are vertices; Qhull finds some that are none."
        require(self, components=rule)


@dataclass(frozen=True, kw_only=True)
class ConvexHull(Hull):
    """Choose the clients whose updates, along a few principal axes, are vertices of the convex hull of all updates.

    The paper takes the vertices of the hull of the whole updates, however many there are. But n points in p >= n - 1
    dimensions are all vertices, as a rule, so that this chooses everybody; the reduction to few dimensions that must
    have been there is not described. Here the updates are first projected on their principal axes, and the cohort is
    filled exactly: of too many vertices, those farthest apart; after too few, the vertices of the hull of the rest.
    `HullDistance` does without the projection.

    When: the cohort shall span all others in the few directions in which updates differ most.

    Args:
        components: Principal axes, 1 to 5.
        normalize: Whether updates are first divided by their length, so that only directions count.
        exact: Whether to choose exactly the cohort; False, as in the paper, chooses all vertices, whatever the cohort.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), section 4.2.2 and appendix C.2.2; Barber, Dobkin and
    Huhdanpaa, "The Quickhull Algorithm for Convex Hulls", ACM TOMS 22(4), 1996.

    Example:
        >>> ids, corners = np.arange(5), np.array([[0, 0], [4, 0], [4, 3], [0, 3], [2, 1]], np.float32)
        >>> ConvexHull().choose(ids, corners, 2, None).ids
        array([0, 2])
        >>> ConvexHull(exact=False).choose(ids, corners, 2, None).ids
        array([0, 1, 2, 3])
    """

    exact: bool = True

    @property
    def ignores_cohort(self) -> bool:
        return not self.exact

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Selection:
        points = principal_points(rows, self.components, normalize=self.normalize)
        return Selection(ids[np.sort(spanning(points, k)) if self.exact else vertices(points)])
