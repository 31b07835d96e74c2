"""Urns that a cohort is drawn from, one client of each: balls in whole numbers, so that nothing is rounded."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.federation.selection.base import Policy
from fedreach.federation.values import ClientView, Selection, State


class Urns(Policy):
    """Draw one client from each of k urns, so that a client may be drawn several times; inherit and write `urns`.

    Each of k urns holds M = sum_i m_i balls, m_i the examples of client i. If client i has k m_i balls in them all, the
    mean over the k draws is on average sum_i (m_i / M) u_i: what all clients together would have sent. That mean is
    the weighting `by_draws`.
    """

    def urns(self, state: State, view: ClientView, k: int) -> Ints:
        """Return (k, a) balls of each of the a available clients in each urn; all urns hold equally many."""
        raise NotImplementedError(f"{type(self).__name__} must have a method urns(state, view, k).")

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        drawn = [
            np.searchsorted(urn.cumsum(), rng.integers(urn.sum()), side="right") for urn in self.urns(state, view, k)
        ]
        return Selection.drawn(view.available_ids[np.array(drawn)])


def poured(balls: Ints, groups: Sequence[Sequence[int]], k: int) -> Ints:
    """Return k equally full urns: the largest groups begin one each, the others fill up what room is left.

    Args:
        balls: (a,) of each client, k times as many as an urn holds; nobody in a group of several has more than that.
        groups: Positions of clients, none of which has more balls than an urn holds unless it is a single client.
        k: Urns. There are at least as many groups, or a single client fills several.

    Example:
        >>> poured(np.array([3, 3, 2, 4]), [[0, 2], [1], [3]], 2)
        array([[3, 1, 2, 0],
               [0, 2, 0, 4]])
    """
    full = int(balls.sum()) // k
    urns, room, left = np.zeros((k, len(balls)), np.int64), np.full(k, full), balls.copy()
    first = 0
    for client in np.flatnonzero(balls >= full).tolist():  # who fills urns alone
        for _ in range(int(left[client]) // full):
            urns[first, client], room[first] = full, 0
            left[client] -= full
            first += 1
    order = sorted(groups, key=lambda group: (-left[group].sum(), min(group)))
    for urn, group in enumerate(order[: k - first], start=first):
        urns[urn, group] = left[group]
        room[urn] -= left[group].sum()
    urn = first
    for client in (client for group in order[k - first :] for client in group):
        while left[client]:
            urn += int(room[urn] == 0)
            some = int(min(left[client], room[urn]))
            urns[urn, client] += some
            left[client] -= some
            room[urn] -= some
    return urns


def groups_within(tree: AnyArray, balls: Ints, most: int) -> list[list[int]]:
    """Return the largest groups of a tree of merges that hold at most so many balls; single clients may hold more.

    Args:
        tree: (a - 1, 4) merges, as scipy's `linkage` returns them.

    Example:
        >>> tree = np.array([[0, 1, 1.0, 2], [2, 3, 1.0, 2], [4, 5, 9.0, 4]])
        >>> groups_within(tree, np.array([2, 2, 1, 5]), most=4)
        [[2], [3], [0, 1]]
    """
    groups, held = [[i] for i in range(len(balls))], balls.tolist()
    for left, right in _pairs(tree):
        together = held[left] + held[right]
        held.append(together)
        groups.append(groups[left] + groups[right] if together <= most else [])
        if together <= most:
            groups[left] = groups[right] = []
    return [sorted(group) for group in groups if group]


def _pairs(tree: AnyArray) -> Iterable[tuple[int, int]]:
    return ((int(left), int(right)) for left, right in tree[:, :2])
