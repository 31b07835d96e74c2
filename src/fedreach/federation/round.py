"""START HERE: one federated round as values, protocols and four pure functions.

```
view -> plan_probe -> (answers enter the view) -> plan_round -> [clients train] -> conclude_round -> new state
```

A *part* (selection, weighting, solver, server step) is a frozen dataclass of hyper-parameters. What changes during
a run is its `State`, which comes in and goes out, so saving the states saves the run. Nothing here imports torch:
decisions are small numpy functions, the same in the simulator and on a real network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np

from fedreach.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach.errors import ConfigError, PartError, nearest
from fedreach.federation.contract import check_type, checked_ids, checked_weights, name_of
from fedreach.federation.solvers import LocalSGD, LocalSolver
from fedreach.streams import generator

State = Mapping[str, AnyArray]
"""What a part remembers between rounds: named arrays, never written to in place."""

NO_STATE: State = MappingProxyType({})


# ------------------------------------------------------------------------------------------------ the values


@dataclass(frozen=True, eq=False)
class ClientView:
    """All that the server may look at before it chooses; arrays over the n participants, ids increasing."""

    ids: Ints  # (n,)
    available: Bools  # (n,) can be reached in this round
    num_examples: Ints  # (n,)
    loss: Floats  # (n,) last loss heard from each client, nan where never heard
    probed: Bools  # (n,) answered this round's probe
    label_counts: Ints | None = None  # (n, c) where a part asked for it, counted as bytes in round 1
    label_entropy: Floats | None = None  # (n,) in nats, likewise

    @classmethod
    def of(
        cls, ids: Ints, num_examples: Ints, *, available: Bools | None = None, loss: Floats | None = None
    ) -> ClientView:
        """Return a view in which, unless said otherwise, everybody is available and nothing was heard yet.

        Example:
            >>> ClientView.of(np.arange(3), np.array([10, 20, 30])).available
            array([ True,  True,  True])
        """
        n = len(ids)
        return cls(
            ids=ids,
            available=np.ones(n, np.bool_) if available is None else available,
            num_examples=num_examples,
            loss=np.full(n, np.nan) if loss is None else loss,
            probed=np.zeros(n, np.bool_),
        )

    def rows(self, ids: Ints) -> Ints:
        """Return where these ids stand in the arrays of this view."""
        return np.searchsorted(self.ids, ids).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Probe:
    """Clients that are sent the model and asked for their mean training loss before anybody is chosen."""

    ids: Ints  # (p,)


@dataclass(frozen=True, eq=False)
class Selection:
    """The cohort of a round."""

    ids: Ints  # (k,)


@dataclass(frozen=True, eq=False)
class Reports:
    """The r replies of a round, ids increasing, so that the result never depends on who answered first."""

    ids: Ints  # (r,)
    update: Float32s  # (r, d) local - broadcast, always this sign
    metrics: Mapping[str, Floats]  # name -> (r,): num_examples, loss, label_entropy where asked for
    label_counts: Ints | None = None  # (r, c) where asked for
    lost: Mapping[int, str] = field(default_factory=dict)  # client id -> why its reply does not count
    trainable: int | None = None  # p: the first p of the d numbers are trained, the rest are buffers; None: all d


@dataclass(frozen=True)
class RoundReport:
    """What a round did, as its row tells it."""

    cohort: tuple[int, ...]
    weights: tuple[float, ...]  # of the clients in `cohort` that replied, summing to 1
    lost: Mapping[int, str]
    train_loss: float | None  # weighted mean of the clients' losses during training
    bytes_down: int
    bytes_up: int
    probe_bytes: int  # part of the two above


# --------------------------------------------------------------------------------------------- the protocols


@runtime_checkable
class SelectionPolicy(Protocol):
    """Decides who trains. Optional attributes: `needs` (facts, see `FACTS`), `ignores_cohort` (may choose more)."""

    def init(self, view: ClientView) -> State:
        """Return the state before round 1."""
        ...

    def probe(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return whom to ask for a loss first (it costs bytes), or None."""
        ...

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        """Return at most k available clients; k is never larger than the number available."""
        ...

    def observe(self, state: State, reports: Reports) -> State:
        """Return the state after hearing the reports."""
        ...


@runtime_checkable
class Weighting(Protocol):
    """Decides how much each report counts. Optional attribute: `needs` (facts, see `FACTS`)."""

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return (r,) weights, not negative and summing to 1, and the new state (`NO_STATE` at first)."""
        ...


@runtime_checkable
class ServerStep(Protocol):
    """Turns the weighted mean update into new parameters."""

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and the new state (`NO_STATE` at first)."""
        ...


FACTS: Mapping[str, str] = MappingProxyType(
    {
        "label_counts": "number of training examples per class, c numbers a client, sent once",
        "label_entropy": "entropy of the client's labels in nats, one number a client, sent once",
    }
)
"""What a part may ask of clients through its attribute `needs`; 4 bytes a number, counted in round 1."""

BYTES_PER_NUMBER = 4
BLOCK = 32_768  # numbers of a vector that are summed at a time
REPORT_SCALARS = 2  # a report carries num_examples and loss beside the update


@dataclass(frozen=True)
class Federation:
    """Parts that combine freely; the repr is the configuration."""

    selection: SelectionPolicy
    weighting: Weighting
    solver: LocalSolver
    local: LocalSGD
    server: ServerStep
    cohort: int
    seed: int

    def __post_init__(self) -> None:
        for name, least in {"cohort": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"Federation.{name} must be at least {least}; got {getattr(self, name)}.")

    def needs(self) -> frozenset[str]:
        """Return the facts that the parts ask of clients.

        Raises:
            PartError: If a part asks for something that is not in `FACTS`.
        """
        asked: set[str] = set()
        for part in (self.selection, self.weighting):
            for fact in getattr(part, "needs", ()):
                if fact not in FACTS:
                    raise PartError(f"{name_of(part)}.needs must list facts; got {fact!r}." + nearest(fact, FACTS))
                asked.add(fact)
        return frozenset(asked)


@dataclass(frozen=True, eq=False)
class FederationState:
    """Everything that changes on the server; saving it is a checkpoint."""

    round: int  # rounds concluded
    params: Float32s  # (d,)
    loss: Floats  # (n,) last loss heard from each participant
    selection: State
    weighting: State
    server: State


# --------------------------------------------------------------------------------------------- the functions


def initial_state(federation: Federation, params: Float32s, view: ClientView) -> FederationState:
    """Return the state before round 1."""
    return FederationState(0, params, view.loss, federation.selection.init(view), NO_STATE, NO_STATE)


def plan_probe(federation: Federation, state: FederationState, view: ClientView) -> Probe | None:
    """Return whom the selection policy asks before it chooses in round ``state.round + 1``, or None."""
    k = min(federation.cohort, int(view.available.sum()))
    if k == 0:
        return None
    rng = generator(federation.seed, "probe", state.round + 1)
    probe = federation.selection.probe(state.selection, view, k, rng)
    if probe is None:
        return None
    check_type(federation.selection, "probe", probe, Probe)
    return Probe(checked_ids(federation.selection, "probe", probe.ids, view))


def plan_round(federation: Federation, state: FederationState, view: ClientView) -> Selection:
    """Return the cohort of round ``state.round + 1``; nobody where nobody is available."""
    policy = federation.selection
    k = min(federation.cohort, int(view.available.sum()))
    if k == 0:
        return Selection(np.empty(0, np.int64))
    rng = generator(federation.seed, "select", state.round + 1)
    chosen = policy.select(state.selection, view, k, rng)
    check_type(policy, "select", chosen, Selection)
    ids = checked_ids(policy, "select", chosen.ids, view)
    if len(ids) > k and not getattr(policy, "ignores_cohort", False):
        raise PartError(
            f"{name_of(policy)}.select must return at most the {k} clients it was asked for; got {len(ids)}. "
            "Cut the choice to k, or set `ignores_cohort = True` on the policy."
        )
    return Selection(ids)


def conclude_round(
    federation: Federation, state: FederationState, view: ClientView, selection: Selection, reports: Reports
) -> tuple[FederationState, RoundReport]:
    """Weigh the reports, take the server step and return the new state with the row of the round.

    Implements ``x <- server(x, sum_i w_i update_i)``. With no report the parameters stay as they are. Buffers (see
    `Reports.trainable`) take the weighted mean as it is: a server rate or momentum, which may overshoot, could make
    the running variance of BatchNorm negative.
    """
    number = state.round + 1
    down, up, probe_bytes = _count_bytes(federation, number, view, selection, reports, len(state.params))
    loss, selection_state = state.loss, federation.selection.observe(state.selection, reports)
    if view.probed.any():
        loss = np.where(view.probed, view.loss, loss)
    if len(reports.ids) == 0:
        new = replace(state, round=number, loss=loss, selection=selection_state)
        return new, RoundReport((), (), reports.lost, None, down, up, probe_bytes)

    answer = federation.weighting.weights(state.weighting, reports)
    weights, weighting_state = checked_weights(federation.weighting, answer, len(reports.ids))
    mean, p = weighted_sum(weights, reports.update), reports.trainable
    params, server_state = federation.server.apply(state.params[:p], state.server, mean[:p])
    if p is not None:
        params = np.concatenate([params, (state.params[p:] + mean[p:]).astype(np.float32)])
    loss = loss.copy()
    loss[view.rows(reports.ids)] = reports.metrics["loss"]
    new = FederationState(number, params, loss, selection_state, weighting_state, server_state)
    return new, RoundReport(
        cohort=tuple(map(int, reports.ids)),
        weights=tuple(map(float, weights)),
        lost=reports.lost,
        train_loss=float(weights @ reports.metrics["loss"]),
        bytes_down=down,
        bytes_up=up,
        probe_bytes=probe_bytes,
    )


def weighted_sum(weights: Floats, update: Float32s) -> Floats:
    """Return ``weights @ update`` in float64, one row after the other.

    A matrix product would be as fast (both wait for memory) but sums in an order that depends on the number of
    threads; this one gives the same bits on every machine.
    """
    total = np.zeros(update.shape[1])
    product = np.empty(min(len(total), BLOCK))
    for begin in range(0, len(total), BLOCK):  # block by block, so that sums stay in the cache
        part = total[begin : begin + BLOCK]
        for weight, row in zip(weights, update[:, begin : begin + BLOCK], strict=True):
            part += np.multiply(row, weight, out=product[: len(part)], dtype=np.float64)
    return total


def _count_bytes(
    federation: Federation, number: int, view: ClientView, selection: Selection, reports: Reports, d: int
) -> tuple[int, int, int]:
    """Return (down, up, probe) bytes. A probed client already holds the model: it is not sent again to the cohort."""
    model = d * BYTES_PER_NUMBER
    probed = int(view.probed.sum())
    fresh = len(selection.ids) - int(view.probed[view.rows(selection.ids)].sum())
    probe_up = probed * BYTES_PER_NUMBER
    up = len(reports.ids) * (model + REPORT_SCALARS * BYTES_PER_NUMBER) + probe_up
    if number == 1:
        facts = sum(
            array.size for array in (view.label_counts, view.label_entropy) if array is not None and federation.needs()
        )
        up += facts * BYTES_PER_NUMBER
    return (fresh + probed) * model, up, probed * model + probe_up
