"""Draw one client from each of k urns, filled with clients whose updates are alike."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.errors import require
from fedreach.federation.selection.divfl import distances
from fedreach.federation.selection.shared.clustering import angles, ward
from fedreach.federation.selection.shared.gradient_table import GradientTable, rows_of
from fedreach.federation.selection.shared.urns import Urns, groups_within, poured
from fedreach.federation.values import ClientView, Reports, State

Measure = Literal["angle", "l2", "l1"]


@dataclass(frozen=True)
class UrnsBySimilarity(Urns):
    """Draw one client from each of k urns of clients that train alike: clustered sampling by similarity.

    Urns are those of `UrnsBySize`, filled otherwise: client i has k m_i balls, m_i its number of examples, and each urn
    takes M = sum_j m_j over the available clients. Ward's method joins clients by the distances of their latest
    updates; of its tree the largest groups that an urn can hold are taken. The k largest of these begin an urn each,
    and the others fill up what is left, in the order of their size. A client with more balls than an urn takes fills
    as many as it can alone, and goes on with the rest.

    Whatever the groups, the mean update is on average sum_i (m_i / M) u_i with the weighting `by_draws`, and the
    weight of a client never has a larger variance than under `multinomial`. If groups are right, each kind of client
    is heard in every round.

    Nobody is asked before: a client never heard from has an update of zeros, at a right angle to all others. Distances
    take memory for a^2 numbers, and `"l1"` time for a^2 updates.

    *When to use it:* where clients come in kinds, such as a few classes each, and a cohort should have all kinds
    without a bias to any. Updates of single clients are looked at, so not under a secure sum. With
    `weighting = "by_draws"`.

    When: as `urns_by_size`, where updates tell which clients are alike; with the weighting `by_draws`.

    Args:
        measure: ``"angle"``: arccos of the cosine; ``"l2"``: Euclidean distance; ``"l1"``: sum of absolute differences.
        sketch: Numbers kept of each update, see `GradientTable`; None keeps all. Sketches keep angles and ``"l2"``.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling: Low-Variance and Improved Representativity for
    Clients Selection in Federated Learning", ICML 2021, Algorithm 2. The authors' code,
    github.com/Accenture/Labs-Federated-Learning, hands Ward's method the matrix of distances as if its rows were
    points, squares ``"l2"``, takes a client never heard from to be at angle 0 to all, and fills up with the smallest
    groups first, their clients in random order. Not to be confused with `clustered`.

    Example:
        >>> policy, view = UrnsBySimilarity(), ClientView.of(np.arange(4), np.full(4, 10))
        >>> update = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], np.float32)
        >>> policy.urns(policy.observe(policy.init(view), Reports(view.ids, update, {})), view, 2)
        array([[20,  0, 20,  0],
               [ 0, 20,  0, 20]])
    """

    reads_updates: ClassVar[bool] = True

    measure: Measure = "angle"
    sketch: int | None = None

    def __post_init__(self) -> None:
        require(self, measure=get_args(Measure), sketch="[1, inf)")

    @property
    def _table(self) -> GradientTable:
        return GradientTable(sketch=self.sketch)

    def init(self, view: ClientView) -> State:
        return self._table.init(view)

    def observe(self, state: State, reports: Reports) -> State:
        return self._table.observe(state, reports)

    def urns(self, state: State, view: ClientView, k: int) -> Ints:
        balls = k * view.num_examples[view.available].astype(np.int64)
        groups = [[0]]
        if len(balls) > 1:
            apart = between(np.asarray(rows_of(state)[view.available]), self.measure)
            groups = groups_within(ward(apart), balls, int(balls.sum()) // k)
        return poured(balls, groups, k)


def between(rows: AnyArray, measure: Measure) -> Floats:
    """Return the (n, n) distances between (n, p) rows.

    Example:
        >>> between(np.array([[0.0, 0.0], [3.0, 4.0]]), "l1")
        array([[0., 7.],
               [7., 0.]])
    """
    if measure == "angle":
        return angles(rows)
    if measure == "l2":
        return distances(rows)
    wide = rows.astype(np.float64)
    return np.array([np.abs(wide - row).sum(axis=1) for row in wide])
