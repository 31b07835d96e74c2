"""Client selection based on losses."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ComponentError
from fedreach.federation.base import Selection
from fedreach.federation.bounds import cluster_scores
from fedreach.federation.measurements import WLRC, Estimator, LossRMS, Outputs
from fedreach.federation.selection.geometry import KeepsUpdates, NearestTable, principal_points
from fedreach.federation.selection.labels import kmeans
from fedreach.federation.selection.random import largest
from fedreach.federation.types import ClientResults, Cohort, Probe, ServerView, State

# -------------------- Power of choice


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """Power-of-choice client selection (Cho et al., 2022).

    The policy draws candidates without replacement, with probability proportional to their number of examples. It
    selects the k candidates with the largest loss on the current global model. In a probe, each candidate downloads the
    model and uploads 4 bytes, which count as communication. Ties go to the lower id. Candidates that did not reply are
    selected last.

    Use when: the model neglects clients with high loss, an extra exchange per round is affordable, and clients are
    honest. A client that reports a high loss can have itself selected in every round.

    Args:
        candidates: Number of candidates, increased to the cohort size if it is smaller. None: all available clients, as
            in "Advocating for the Silent" (arXiv 2310.07171).
        loss: Loss to compare. ``"full"``: mean over all examples of a candidate. ``"batch"``: mean over `batch_size`
            examples (cpow-d). ``"last"``: last known loss, without a probe (rpow-d); clients without a known loss are
            selected first.
        batch_size: Number of examples for ``loss = "batch"``, at least 1.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Cho et al., "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022, section
    4.

    Example:
        >>> view = ServerView.of(np.arange(5), np.full(5, 10), loss=np.array([0.3, 0.9, np.nan, 0.9, 0.5]))
        >>> PowerOfChoice(loss="last").select({}, view, 2, np.random.Generator(np.random.Philox(0))).ids
        array([2, 1])
    """

    candidates: Annotated[int | None, "[1, inf)"] = None
    loss: Literal["full", "batch", "last"] = "full"
    batch_size: Annotated[int, "[1, inf)"] = 64

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return a probe of the candidates; None if the policy compares last known losses."""
        if self.loss == "last":
            return None
        ids = self._candidates(view, k, rng)
        return Probe(ids) if self.loss == "full" else Probe(ids, "batch_loss", self.batch_size)

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        if self.loss == "last":
            rows = view.rows(np.sort(self._candidates(view, k, rng)))
            loss = view.loss[rows]
            return Cohort(largest(view.ids[rows], np.where(np.isnan(loss), np.inf, loss), k))
        return Cohort(largest(view.ids[view.probed], view.loss[view.probed], k))

    def _candidates(self, view: ServerView, k: int, rng: np.random.Generator) -> Ints:
        """Return the ids of the candidates."""
        ids: Ints = view.ids[view.available]
        if self.candidates is None or self.candidates >= len(ids):
            return ids
        examples = view.num_examples[view.available]
        return rng.choice(ids, size=max(k, self.candidates), replace=False, p=examples / examples.sum())


# -------------------- Oort

CLIP = 0.95  # quantile at which utilities are cut off
DOUBT = 0.1  # factor within the root of how long ago a client was heard


@dataclass(frozen=True)
class Oort(Selection):
    """Oort client selection by loss and speed (Lai et al., 2021).

    In round t, about e k of the k clients are new, with e = max(least_exploration, exploration decay^(t-1)). The other
    clients are drawn from those that trained before, with probability proportional to

        u_i = (U_i - min U) / (max U - min U) + sqrt(0.1 log t / t_i),    U_i = n_i sqrt((1/n_i) sum_j l_j^2).

    Client i was last selected in round t_i, and l_j are the losses of its n_i examples in this round. Utilities U_i are
    clipped at their 95% quantile. If all U_i are equal, the first term is 0. A greedy selection of the largest u_i
    defines a threshold, `cutoff` times its smallest u_i. Clients with a smaller u_i are not drawn.

    With a radio, s_i is the round time of client i with an equal share of the bandwidth and its fastest CPU. For
    clients with s_i > T, u_i is multiplied by (T / s_i)^penalty. New clients are drawn with probability proportional to
    1 / s_i. The preferred time T is the `pace` quantile of s. The quantile increases by `pace_step` if the utilities of
    the last `window` rounds sum to less than in the `window` rounds before. Without a radio, speed is ignored.

    Use when: both loss and speed matter, and clients are honest. A client that reports a high loss can have itself
    selected often. Speed requires `[radio]`.

    Args:
        exploration: Share of new clients in the cohort of round 1, in [0, 1].
        decay: Factor of this share per round, in (0, 1].
        least_exploration: Smallest share of new clients, in [0, 1].
        cutoff: Smallest utility of drawn clients, relative to the last client of a greedy selection, in [0, 1].
        penalty: Exponent of the slowness penalty, at least 0. With 0, speed is ignored.
        pace: Quantile that defines the preferred round time, in (0, 1].
        pace_step: Increase of this quantile, in [0, 1].
        window: Number of rounds between two decisions about the pace, at least 1.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant
    Selection", OSDI 2021, Algorithm 1. Utilities are scaled and T is a quantile, as in the authors' code
    (github.com/SymbioticLab/Oort), because Algorithm 1 adds seconds to nats. In all other points, FedReach follows
    Algorithm 1. The authors' code can also exclude clients that were selected often, which is off by default. FedReach
    does not implement this option.

    Example:
        >>> policy, view = Oort(exploration=0.0, least_exploration=0.0), ServerView.of(np.arange(4), np.full(4, 10))
        >>> heard = ClientResults(view.ids, np.zeros((4, 2), np.float32), {"loss_rms": np.array([0.1, 2.0, 0.2, 1.9])})
        >>> state = policy.observe(policy.init(view), heard)
        >>> sorted(policy.select(state, view, 2, np.random.Generator(np.random.Philox(0))).ids.tolist())
        [1, 3]
    """

    measures = (LossRMS(),)

    exploration: Annotated[float, "[0, 1]"] = 0.9
    decay: Annotated[float, "(0, 1]"] = 0.98
    least_exploration: Annotated[float, "[0, 1]"] = 0.2
    cutoff: Annotated[float, "[0, 1]"] = 0.95
    penalty: Annotated[float, "[0, inf)"] = 2.0
    pace: Annotated[float, "(0, 1]"] = 0.3
    pace_step: Annotated[float, "[0, 1]"] = 0.05
    window: Annotated[int, "[1, inf)"] = 20

    def init(self, view: ServerView) -> State:
        """Return a state without utilities."""
        n = len(view.ids)
        return {
            "ids": view.ids,
            "num_examples": view.num_examples,
            "utility": np.full(n, np.nan),
            "heard": np.zeros(n, np.int64),
            "pace": np.array([self.pace]),
            "gained": np.zeros(0),  # of each round since the pace was last looked at
            "before": np.array([np.nan]),  # in the window before
        }

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the state with the utilities of the clients that trained."""
        where = np.searchsorted(state["ids"], reports.ids)
        utility, heard = state["utility"].copy(), state["heard"].copy()
        utility[where] = state["num_examples"][where] * reports.metrics["loss_rms"]
        heard[where] = reports.round
        gained = np.append(state["gained"], utility[where].sum())
        state = {**state, "utility": utility, "heard": heard}
        if len(gained) < self.window:
            return {**state, "gained": gained}
        now, faster = gained.sum(), self.pace_step * bool(gained.sum() < state["before"][0])
        return {
            **state,
            "pace": np.minimum(1.0, state["pace"] + faster),
            "gained": gained[:0],
            "before": np.array([now]),
        }

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        seconds = _seconds(view, k)
        heard = np.flatnonzero(view.available & (state["heard"] > 0))
        new = np.flatnonzero(view.available & (state["heard"] == 0))
        share = max(self.least_exploration, self.exploration * self.decay ** (view.round - 1))
        new_count = k - min(len(heard), k - min(len(new), int(np.ceil(share * k - 1e-9))))  # that are new
        speed = 1 / seconds[new]
        tried = rng.choice(new, new_count, replace=False, p=speed / speed.sum()) if new_count else new[:0]
        if new_count == k:
            return Cohort(view.ids[tried])
        utility = self._utility(state, view, heard, seconds)
        bar = self.cutoff * np.partition(utility, len(heard) - (k - new_count))[len(heard) - (k - new_count)]
        draw = heard[utility >= bar]
        chance = np.maximum(utility[utility >= bar], 1e-12)  # clients without utility can fill free places
        best = rng.choice(draw, k - new_count, replace=False, p=chance / chance.sum())
        return Cohort(view.ids[np.concatenate([best, tried])])

    def _utility(self, state: State, view: ServerView, heard: Ints, seconds: Floats) -> Floats:
        """Return u_i of the clients at these positions."""
        utility = state["utility"][heard]
        utility = np.minimum(utility, np.quantile(utility, CLIP))
        span = np.ptp(utility)
        scaled = (utility - utility.min()) / span if span > 0 else np.zeros(len(utility))
        scaled += np.sqrt(DOUBT * np.log(view.round) / state["heard"][heard])
        preferred = np.quantile(seconds[view.available], state["pace"][0])
        late = seconds[heard] > preferred
        return np.asarray(np.where(late, scaled * (preferred / seconds[heard]) ** self.penalty, scaled), np.float64)


def _seconds(view: ServerView, k: int) -> Floats:
    """Return (n,) each client's round time in seconds with 1/k of the bandwidth; 1 for each client without a radio."""
    if view.radio is None:
        return np.ones(len(view.ids))
    problem = view.radio.problem()
    return np.asarray(k * problem.upload_seconds + problem.cycles / problem.max_hertz, np.float64)


# -------------------- Minimax


@dataclass(frozen=True, kw_only=True)
class Minimax(NearestTable):
    """Minimax client selection: the k clients least similar to any other client.

    The policy selects the clients with the k smallest m_i = max_{j != i} cos(g_i, g_j), where g_i is the latest update
    of client i, and j is any other available client. This cohort minimizes the sum of m_i over all sets of k clients.
    For a client with a zero update, m_i = 1.

    FedReach corrects the paper's pseudo-code in three points. The pseudo-code returns k + 1 clients (``<=`` instead of
    ``<``). It stores the m_i in a set, and so loses one of two mutually nearest clients; FedReach stores one m_i for
    each client. It does not define ties. In FedReach, the client with the smaller second largest cosine wins, then the
    third, and so on (12 decimals), and finally the lower id. So the order of the clients does not affect the cohort.

    Without `refresh`, clients that are not selected keep their update of round 1. In round 1 all updates are similar,
    so the clients selected first may be selected in every round. `explore` draws part of the cohort at random, which
    adds recent updates at no extra cost.

    Cosines are computed in float64, block by block, with n^2 p products for n clients and rows of p numbers.

    Use when: the cohort should be as diverse as possible, all clients can occasionally send updates, and clients are
    honest. A client that sends an unusual update is selected often.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), Algorithm 1 and eq. 11.

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9]), np.array([[1, 0], [0.9, 0.1], [0, 1], [-1, -1]], np.float32)
        >>> Minimax().choose(ids, rows, 2, None).ids
        array([8, 9])
    """

    most_similar = False


# -------------------- Rademacher clusters

DIMENSIONS = 10  # principal axes that k-means works in


@dataclass(frozen=True)
class Rademacher(KeepsUpdates):
    """Selection from clusters of clients with a low Rademacher score.

    In round 1 and then every `every` rounds, all available clients send an update and their score (see `WLRC`) for the
    same broadcast model. In other rounds, only new clients send an update and a score. Each of these probes costs one
    download of the model and one reply. Updates are scaled to length 1, projected on at most 10 principal axes and
    clustered by k-means. The score of a cluster is the mean of its members' scores. `use` defines how scores determine
    the cohort:

    - ``"best"``: members of the cluster with the lowest score, then of the second lowest, until the cohort is full.
    - ``"soft"``: for each place, a cluster is drawn with probability proportional to 1 / score, among clusters with
      remaining members. Clusters with score 0 are used first.

    Members of a cluster are drawn at random. Clusters are numbered by their lowest id. Of clusters with equal scores
    (12 decimals), the lower number wins. New clients have no cluster and are selected last.

    Replies of the cohort change neither clusters nor scores, because scores are comparable only under the same model.
    Scores of clients that missed the last probe are less comparable. Memory is n^2 numbers for n clients.

    Use when: you want to reproduce the paper, or select among groups of clients with similar updates.

    Args:
        use: Rule that selects clients by scores, ``"best"`` or ``"soft"``. The paper does not define a rule.
        every: Number of rounds between two probes of all clients, at least 1. None: each client is probed once.
        n_clusters: Number of clusters, at least 1. None: the number from 2 to 8 with the best silhouette.
        average: Mean score of a cluster. ``"mean"``: equal weights of its members; ``"by_examples"``: weights
            proportional to their numbers of examples.
        outputs: Option of `WLRC`, as are `draws`, `estimator` and `batch_size`.
        sketch: Number of values stored per update, see `GradientTable`. None: all values.
        plain: Cluster the updates as they are, in all dimensions, as in section 3.1 of the paper. Then clients with
            many examples, whose updates are long, tend to have clusters of their own.

    Raises:
        ConfigError: If an option is out of range.

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", section 3. The paper clusters local
    models, whose distances are those of the updates. Its argument that clusters with lower scores are better assumes
    clusters of equal size and one class of functions.

    Example:
        >>> policy, view = Rademacher(), ServerView.of(np.arange(4), np.full(4, 10))
        >>> update = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]], np.float32)
        >>> answers = ClientResults(view.ids, update, {"wlrc": np.array([0.3, 0.2, 0.1, 0.5])}, probe=True)
        >>> state = policy.observe(policy.init(view), answers)
        >>> state["cluster"]    # scores 0.2 and 0.35
        array([0, 1, 0, 1])
        >>> sorted(policy.select(state, view, 2, np.random.Generator(np.random.Philox(0))).ids.tolist())
        [0, 2]
    """

    use: Literal["best", "soft"] = "best"
    every: Annotated[int | None, "[1, inf)"] = 10
    n_clusters: Annotated[int | None, "[1, inf)"] = None
    average: Literal["mean", "by_examples"] = "mean"
    outputs: Outputs = "softmax"
    draws: int = 64
    estimator: Estimator = "monte_carlo"
    batch_size: int = 32
    sketch: Annotated[int | None, "[1, inf)"] = None
    plain: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.measures  # checks its options

    @property
    def measures(self) -> tuple[WLRC]:  # type: ignore[override]
        return (WLRC(self.outputs, self.draws, self.estimator, self.batch_size),)

    def init(self, view: ServerView) -> State:
        """Return a state without updates, scores and clusters (-1)."""
        n = len(view.ids)
        return {**self._table.init(view), "score": np.full(n, np.nan), "cluster": np.full(n, -1)}

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return a probe of all available clients every `every` rounds, otherwise of new available clients."""
        if self.every is not None and (view.round - 1) % self.every == 0:
            return Probe(view.ids[view.available], asks="update")
        return self._table.probe(state, view, k, rng)

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the state with new clusters after a probe; after replies of the cohort, the unchanged state.

        Raises:
            ComponentError: If scores are missing, negative or not finite.
        """
        if not reports.probe or len(reports.ids) == 0:
            return state
        scores = reports.metrics.get("wlrc", np.array([np.nan]))
        if not np.isfinite(scores).all() or (scores < 0).any():
            raise ComponentError(
                "Rademacher requires a measurement 'wlrc' of at least 0 from each client that replies in round "
                f"{reports.round}; got {scores.tolist()}. Measure the quantities in `measures`."
            )
        state = self._table.observe(state, reports)
        score, cluster = state["score"].copy(), state["cluster"].copy()
        score[np.searchsorted(state["ids"], reports.ids)] = scores
        heard = np.flatnonzero(state["heard"])
        if self.plain:  # the axes of n points, on which their distances are those of the rows
            points = principal_points(state["rows"][heard], len(heard))
            points = points / (abs(points).max(initial=0) or 1.0)
        else:
            points = principal_points(state["rows"][heard], DIMENSIONS, normalize=True)
        cluster[heard] = kmeans(points, self.n_clusters)
        return {**state, "score": score, "cluster": cluster}

    def cluster_numbers(self, state: State) -> Ints:
        return state["cluster"]

    def scores(self, state: State, view: ServerView) -> Floats:
        """Return the (clusters,) scores, where lower is better; empty before the first probe."""
        has_cluster = state["cluster"] >= 0
        if not has_cluster.any():
            return np.empty(0)
        examples = view.num_examples[has_cluster] if self.average == "by_examples" else None
        return cluster_scores(state["score"][has_cluster], state["cluster"][has_cluster], examples).round(12)

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        ids = rng.permutation(view.ids[view.available])  # so that a cluster's first members are drawn at random
        cluster, scores = state["cluster"][view.rows(ids)], self.scores(state, view)
        members = np.bincount(cluster[cluster >= 0], minlength=len(scores))
        places = self._places(scores, members, min(k, int(members.sum())), rng)
        chosen = [ids[cluster == number][:count] for number, count in enumerate(places)]
        return Cohort(np.concatenate([*chosen, ids[cluster < 0][: k - places.sum()]]))

    def _places(self, scores: Floats, members: Ints, k: int, rng: np.random.Generator) -> Ints:
        """Return the number of available members to select from each cluster, with sum k."""
        places = np.zeros_like(members)
        if self.use == "best":
            for number in np.argsort(scores, kind="stable"):
                places[number] = min(members[number], k - places.sum())
            return places
        for _ in range(k):
            has_room = places < members
            surest = has_room & (scores == 0)
            share = surest if surest.any() else has_room / np.where(scores > 0, scores, 1)
            places[rng.choice(len(share), p=share / share.sum())] += 1
        return places
