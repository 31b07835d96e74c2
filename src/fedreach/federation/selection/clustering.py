"""Clusters of clients with one model each that are formed again in every round."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach.federation.base import Selection
from fedreach.federation.selection.geometry import KeepsUpdates, principal_points
from fedreach.federation.selection.labels import kmeans
from fedreach.federation.selection.losses import DIMENSIONS
from fedreach.federation.types import ClientResults, Cohort, Probe, ServerView, State

# -------------------- IFCA


@dataclass(frozen=True)
class IFCA(Selection):
    """IFCA (Ghosh et al., 2020): each client of a cohort trains the one of K models with the lowest loss on its data.

    In each round, the policy draws a cohort as in `Uniform`. Each client of the cohort receives all K models, and sends
    their mean losses F_i(x_1), ..., F_i(x_K) on its training data. It then trains the model

        j_i = argmin_j F_i(x_j),

    where ties go to the lower number. Each model is the weighted mean of the local models of its clients, and does not
    change in a round without clients. The messages of a round are K models to each client, and K losses and one update
    back. With a radio, the losses cost K evaluations.

    The first model is the initial model. Each other model is initially a copy in which the numbers of every trained
    tensor are in random order. For a tensor of independent random numbers this is another random initialization. But it
    destroys pretrained numbers, so start IFCA from random parameters.

    A client that has not sent its losses yet has the model that most clients chose. A client whose losses do not arrive
    trains the model that it had. Unseen clients need labels to choose a model by its loss, so their score is the mean
    over the models, as for all policies with clusters. State of solvers, aggregators and servers is reset in a cluster
    whose members change. So use those without state.

    Use when: clients form K groups that need different models, and can receive K models in each round.

    Args:
        n_clusters: Number K of models, at least 2.

    Raises:
        ConfigError: If `n_clusters` is out of range.

    Reference: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS
    2020, Algorithm 1 with model averaging. The paper averages with equal weights: ``weighting = "equal"``.

    Example:
        >>> policy, view = IFCA(n_clusters=2), ServerView.of(np.arange(4), np.full(4, 10))
        >>> state = policy.choose_models(policy.init(view), np.array([0, 1, 3]), np.array([[2, 1], [3, 1], [0.1, 1]]))
        >>> policy.clusters(state)  # client 2 has the model that most clients chose
        array([1, 1, 1, 0])
    """

    n_clusters: Annotated[int, "[2, inf)"] = 2

    @property
    def first_models(self) -> int:  # type: ignore[override]
        return self.n_clusters

    def init(self, view: ServerView) -> State:
        """Return a state in which no client has chosen a model (-1)."""
        return {"ids": view.ids, "cluster": np.full(len(view.ids), -1)}

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe:
        """Return the request to the cohort for its losses with all models."""
        return Probe(rng.choice(view.available_ids, size=k, replace=False), models=self.n_clusters)

    def choose_models(self, state: State, ids: Ints, losses: Floats) -> State:
        """Return the state after (r,) clients sent their (r, K) losses."""
        cluster = state["cluster"].copy()
        cluster[np.searchsorted(state["ids"], ids)] = np.nan_to_num(losses, nan=np.inf).argmin(axis=1)
        return {**state, "cluster": cluster}

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(view.ids[view.probed][:k])

    def cluster_numbers(self, state: State) -> Ints:
        return state["cluster"]

    def clusters(self, state: State) -> Ints:
        cluster = state["cluster"]
        votes = np.bincount(cluster[cluster >= 0], minlength=self.n_clusters)
        return np.where(cluster >= 0, cluster, votes.argmax())


# -------------------- k-means of updates


@dataclass(frozen=True)
class UpdateKMeans(KeepsUpdates):
    """Clusters by k-means of updates in each round, with one model per cluster.

    The server stores the latest update D_i of each client. After each round it divides all clients with an update into
    K clusters by k-means on the rows D_i / |D_i|, projected on at most 10 principal axes. For directions, |D_i / |D_i|
    - D_j / |D_j||^2 = 2 - 2 cos(D_i, D_j), so clients with similar updates form a cluster. Clusters keep their numbers
    and models in the way that lets the largest number of clients keep their cluster. Each model is the weighted mean of
    the local models of its clients. The cohort is drawn as in `Uniform`.

    All clients start with one model, until the updates have at least K distinct directions. Then each cluster continues
    from a copy of the model. Clients without an update have the first model. State of solvers, aggregators and servers
    is reset in a cluster whose members change. So use those without state.

    Assignments can change in each round, because updates vary between rounds and differ between models. The column
    ``cluster_changes`` shows how often. `Clustered` only splits clusters, so its assignments change rarely.

    Use when: you want to reproduce clustering by the similarity of gradients that is not stable over rounds.

    Args:
        n_clusters: Number K of clusters, at least 2.
        sketch: Number of values stored per update, see `GradientTable`. None: all values.

    Raises:
        ConfigError: If an option is out of range.

    Reference: The baseline CFL of "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless
    Networks", section V-A, d): it "clusters clients according to gradient similarity and performs FL within each
    cluster", and suffers from "frequent changes in cluster assignments". The paper defines neither the algorithm nor K.

    Example:
        >>> policy, view = UpdateKMeans(n_clusters=2), ServerView.of(np.arange(4), np.full(4, 10))
        >>> update = np.array([[1, 0], [0, 3], [2, 0.1], [0.1, 1]], np.float32)
        >>> policy.clusters(policy.observe(policy.init(view), ClientResults(view.ids, update, {})))
        array([0, 1, 0, 1])
    """

    n_clusters: Annotated[int, "[2, inf)"] = 2
    sketch: Annotated[int | None, "[1, inf)"] = None

    def init(self, view: ServerView) -> State:
        """Return a state without updates and clusters (-1)."""
        return {**super().init(view), "cluster": np.full(len(view.ids), -1)}

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(rng.choice(view.available_ids, size=k, replace=False))

    def observe(self, state: State, reports: ClientResults) -> State:
        """Return the state with the new updates and clusters."""
        state = super().observe(state, reports)
        heard = np.flatnonzero(state["heard"])
        if len(reports.ids) == 0:
            return state
        labels = kmeans(principal_points(state["rows"][heard], DIMENSIONS, normalize=True), self.n_clusters)
        if labels.max() + 1 < self.n_clusters:
            return state
        cluster = np.full_like(state["cluster"], -1)
        cluster[heard] = labels
        return {**state, "cluster": keep_numbers(cluster, state["cluster"])}

    def cluster_numbers(self, state: State) -> Ints:
        return state["cluster"]

    def clusters(self, state: State) -> Ints:
        return np.maximum(state["cluster"], 0)


# -------------------- Changes of clusters


def keep_numbers(new: Ints, old: Ints) -> Ints:
    """Return new cluster numbers, exchanged so that as many clients as possible keep their old number.

    Args:
        new: (n,) new cluster of each client, numbered from 0; -1 for a client without a cluster.
        old: (n,) old cluster of each client, likewise.

    Example:
        >>> keep_numbers(np.array([0, 0, 1, 1, 2, -1]), np.array([1, 1, 1, 0, -1, 0]))
        array([ 1,  1,  0,  0,  2, -1])
    """
    from scipy.optimize import linear_sum_assignment

    both = (new >= 0) & (old >= 0)
    shared = np.zeros((max(new.max(), old.max()) + 1,) * 2)
    np.add.at(shared, (new[both], old[both]), 1)
    _, numbers = linear_sum_assignment(shared, maximize=True)
    return np.where(new >= 0, numbers[new], -1)


def cluster_changes(policy: Selection, before: State, after: State) -> float | None:
    """Return the share of clients whose cluster changed in a round, of those with a cluster before it; None without.

    Clusters with models of their own change if a client's model changes. Other clusters have no lasting numbers, so
    their new numbers are first exchanged as in `keep_numbers`.

    Example:
        >>> policy, before, after = IFCA(), np.array([0, 1, 1, -1]), np.array([1, 1, 1, 0])
        >>> cluster_changes(policy, {"cluster": before}, {"cluster": after})  # 1 of 3
        0.333333333
    """
    old, new = policy.cluster_numbers(before), policy.cluster_numbers(after)
    if old is None or new is None:
        return None
    had = old >= 0
    if not had.any():
        return 0.0
    new = new if policy.makes_clusters else keep_numbers(new, old)
    return round(float((old != new)[had].mean()), 9)
