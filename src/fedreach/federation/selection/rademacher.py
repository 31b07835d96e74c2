"""Choose from the cluster of clients whose local models random signs fit worst."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import PartError, require
from fedreach.federation.measurements.wlrc import WLRC, Estimator, Outputs
from fedreach.federation.selection.base import Policy
from fedreach.federation.selection.shared.clustering import kmeans
from fedreach.federation.selection.shared.gradient_table import GradientTable
from fedreach.federation.selection.shared.hull import principal_points
from fedreach.federation.values import ClientView, Probe, Reports, Selection, State
from fedreach.theory.rademacher import cluster_scores

DIMENSIONS = 10  # principal axes that k-means works in
Use = Literal["best", "soft"]
Average = Literal["mean", "by_examples"]


@dataclass(frozen=True)
class Rademacher(Policy):
    """Cluster clients by their updates and choose from clusters with a low Rademacher score.

    In round 1, and then every `every` rounds, all available clients are asked for an update and their score (see
    `WLRC`), all of one broadcast model; in other rounds, those never heard from. These probes cost a model down and a
    report up a client. Updates are scaled to length 1, projected on at most 10 principal axes and clustered by k-means;
    a cluster's score is the mean of its members'. Then `use` says how scores decide:

    - ``"best"``: members of the cluster with the lowest score; if they are fewer than k, then of the second lowest, ...
    - ``"soft"``: each place goes to a cluster drawn with probability proportional to 1 / score, of those with a member
      left. A score of 0 takes all the places that its cluster can fill.

    Members of a cluster are drawn at random. Clusters are numbered by their lowest id, whatever k-means calls them, and
    of equal scores (12 decimals) the lower number comes first; renaming the clients thus renames clusters and scores.
    Clients never heard from have no cluster and are chosen last.

    What the cohort reports in between changes neither clusters nor scores: a score changes with the model, and
    those who train would be compared with others' scores under an older one. For the same reason scores of clients that
    were away at the last probe are less comparable. n clients take memory for n^2 numbers.

    When: to reproduce that paper, or to draw on clusters of clients that train alike.

    Args:
        use: See above; the paper gives no rule.
        every: Rounds from one scoring of everybody to the next, at least 1; None scores each client once.
        n_clusters: At least 1; None takes the number from 2 to 8 with the best silhouette. The paper asks for care.
        average: Whether members of a cluster count equally or by their number of examples.
        outputs: As of `WLRC`, like `draws`, `estimator` and `batch_size`.
        sketch: Numbers kept of each update, see `GradientTable`; None keeps all.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", section 3. That a lower score means
    a better cluster is argued there for clusters of equal size and one class of functions.

    Example:
        >>> policy, view = Rademacher(), ClientView.of(np.arange(4), np.full(4, 10))
        >>> update = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]], np.float32)
        >>> answers = Reports(view.ids, update, {"wlrc": np.array([0.3, 0.2, 0.1, 0.5])}, probe=True)
        >>> state = policy.observe(policy.init(view), answers)
        >>> state["cluster"]    # scores 0.2 and 0.35
        array([0, 1, 0, 1])
        >>> sorted(policy.select(state, view, 2, np.random.Generator(np.random.Philox(0))).ids.tolist())
        [0, 2]
    """

    reads_updates: ClassVar[bool] = True

    use: Use = "best"
    every: int | None = 10
    n_clusters: int | None = None
    average: Average = "mean"
    outputs: Outputs = "softmax"
    draws: int = 64
    estimator: Estimator = "monte_carlo"
    batch_size: int = 32
    sketch: int | None = None

    def __post_init__(self) -> None:
        require(self, use=get_args(Use), average=get_args(Average))
        require(self, every="[1, inf)", n_clusters="[1, inf)", sketch="[1, inf)")
        self.measures  # noqa: B018  checks its options

    @property
    def measures(self) -> tuple[WLRC]:
        return (WLRC(self.outputs, self.draws, self.estimator, self.batch_size),)

    @property
    def _table(self) -> GradientTable:
        return GradientTable(sketch=self.sketch)

    def init(self, view: ClientView) -> State:
        """Return a table without updates and scores, and no clusters (-1)."""
        n = len(view.ids)
        return {**self._table.init(view), "score": np.full(n, np.nan), "cluster": np.full(n, -1)}

    def probe(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return everybody available in a scoring round, else those of them never heard from."""
        if self.every is not None and (view.round - 1) % self.every == 0:
            return Probe(view.ids[view.available], asks="update")
        return self._table.probe(state, view, k, rng)

    def observe(self, state: State, reports: Reports) -> State:
        """Return the state with new clusters after the answers to a probe; the reports of a round change nothing.

        Raises:
            PartError: If scores are missing or not numbers.
        """
        if not reports.probe or len(reports.ids) == 0:
            return state
        scores = reports.metrics.get("wlrc", np.array([np.nan]))
        if not np.isfinite(scores).all() or (scores < 0).any():
            raise PartError(
                f"Rademacher must be told a number 'wlrc', not negative, of each client that answers in round "
                f"{reports.round}; got {scores.tolist()}. Measure what `measures` lists."
            )
        state = self._table.observe(state, reports)
        score, cluster = state["score"].copy(), state["cluster"].copy()
        score[np.searchsorted(state["ids"], reports.ids)] = scores
        known = np.flatnonzero(state["heard"])
        cluster[known] = kmeans(principal_points(state["rows"][known], DIMENSIONS, normalize=True), self.n_clusters)
        return {**state, "score": score, "cluster": cluster}

    def scores(self, state: State, view: ClientView) -> Floats:
        """Return the (clusters,) scores, lower is better; none before anybody was heard."""
        known = state["cluster"] >= 0
        if not known.any():
            return np.empty(0)
        examples = view.num_examples[known] if self.average == "by_examples" else None
        return cluster_scores(state["score"][known], state["cluster"][known], examples).round(12)

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        ids = rng.permutation(view.ids[view.available])  # so that a cluster's first members are drawn at random
        cluster, scores = state["cluster"][view.rows(ids)], self.scores(state, view)
        members = np.bincount(cluster[cluster >= 0], minlength=len(scores))
        places = self._places(scores, members, min(k, int(members.sum())), rng)
        chosen = [ids[cluster == number][:count] for number, count in enumerate(places)]
        return Selection(np.concatenate([*chosen, ids[cluster < 0][: k - places.sum()]]))

    def _places(self, scores: Floats, members: Ints, k: int, rng: np.random.Generator) -> Ints:
        """Return how many of each cluster's available members are chosen, k together."""
        places = np.zeros_like(members)
        if self.use == "best":
            for number in np.argsort(scores, kind="stable"):
                places[number] = min(members[number], k - places.sum())
            return places
        for _ in range(k):
            left = places < members
            surest = left & (scores == 0)
            share = surest if surest.any() else left / np.where(scores > 0, scores, 1)
            places[rng.choice(len(share), p=share / share.sum())] += 1
        return places
