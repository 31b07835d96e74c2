"""START HERE: one federated round as values, protocols and four pure functions.

```
view -> plan_probe -> (answers enter the view) -> plan_round -> [clients train] -> conclude_round -> new state
```

A *part* (selection, weighting, solver, server step) is a frozen dataclass of hyper-parameters. What changes during
a run is its `State`, which comes in and goes out, so saving the states saves the run. Nothing here imports torch:
decisions are small numpy functions, the same in the simulator and on a real network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.errors import ConfigError, PartError, nearest
from fedreach.federation.contract import (
    check_type,
    checked_allocation,
    checked_clusters,
    checked_ids,
    checked_weights,
    name_of,
)
from fedreach.federation.cost import count_bytes
from fedreach.federation.labels import Exact
from fedreach.federation.memory import ClientMemory
from fedreach.federation.protocols import (
    FACTS,
    LabelStatistics,
    LocalSolver,
    Measurement,
    MemorySolver,
    SelectionPolicy,
    ServerStep,
    ServerTrains,
    Weighting,
    no_probe,
)
from fedreach.federation.secure_sum import weighted_mean_of_shares
from fedreach.federation.solvers import LocalSGD
from fedreach.federation.spending import spend
from fedreach.federation.values import (
    NO_STATE,
    ClientView,
    LocalOutputs,
    Probe,
    Reports,
    RoundReport,
    Selection,
    Spending,
    State,
)
from fedreach.streams import generator
from fedreach.wireless.allocation.rules import AllocationRule
from fedreach.wireless.radio import Radio

__all__ = [
    "FACTS",
    "NO_STATE",
    "ClientView",
    "Federation",
    "FederationState",
    "LabelStatistics",
    "LocalOutputs",
    "Measurement",
    "MemorySolver",
    "Probe",
    "Reports",
    "RoundReport",
    "Selection",
    "SelectionPolicy",
    "ServerStep",
    "ServerTrains",
    "Spending",
    "State",
    "Weighting",
    "conclude_round",
    "conclude_server_round",
    "initial_state",
    "observe_probe",
    "plan_probe",
    "plan_round",
    "server_trains",
    "weighted_sum",
]

BLOCK = 65_536  # numbers of a vector that are summed at a time


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
    label_statistics: LabelStatistics = field(default_factory=Exact)
    radio: Radio | None = None  # seconds and joules are accounted for where there is one
    allocation: AllocationRule | None = None  # None: the selection policy's own, or else the exact one for its choice

    def __post_init__(self) -> None:
        if self.radio is None:
            for part, asks in (
                (self.allocation, self.allocation is not None),
                (self.selection, getattr(self.selection, "needs_radio", False)),
            ):
                if asks:
                    raise ConfigError(
                        f"{name_of(part)} needs to know channels and devices, and there is no radio. Add a section "
                        "`[radio]` to the experiment, or `radio=Radio()` to the `Federation`."
                    )
        for name, least in {"cohort": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"Federation.{name} must be at least {least}; got {getattr(self, name)}.")
        if self.label_statistics.only_sum:
            self._refuse_what_sees_single_clients()

    def _refuse_what_sees_single_clients(self) -> None:
        hidden = f"{name_of(self.label_statistics)} shows the server sums only"
        selection = self.selection
        if getattr(selection, "needs", ()) or getattr(selection, "reads_updates", False):
            raise ConfigError(f"{hidden}, but {name_of(selection)} looks at single clients' labels or updates.")
        if not hasattr(self.weighting, "raw"):
            raise ConfigError(
                f"{hidden}, so that each client must know its own weight; {name_of(self.weighting)} compares clients. "
                "Choose a weighting with a method `raw`, such as 'by_examples', 'equal', 'entropy' or 'disagreement'."
            )

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

    def measurements(self) -> tuple[Measurement, ...]:
        """Return what the parts have clients measure.

        Raises:
            PartError: If two of them give one name to different measurements.
        """
        found: dict[str, Measurement] = {}
        for part in (self.selection, self.weighting):
            for measurement in getattr(part, "measures", ()):
                if found.setdefault(measurement.name, measurement) != measurement:
                    raise PartError(
                        f"Two parts ask for {measurement.name!r}, but not the same: {found[measurement.name]} "
                        f"and {measurement}. Give both the same options."
                    )
        return tuple(found.values())

    # Kept: a round asks for them many times, and `isinstance` of a protocol looks at every member anew.
    @cached_property
    def memory_solver(self) -> MemorySolver | None:
        """The solver, where clients keep a vector between rounds."""
        return self.solver if isinstance(self.solver, MemorySolver) else None

    @cached_property
    def training_server(self) -> ServerTrains | None:
        """The server step, where the server may train on its own data."""
        return self.server if isinstance(self.server, ServerTrains) else None

    @property
    def has_memory(self) -> bool:
        """Whether clients keep a vector between rounds."""
        return self.memory_solver is not None


@dataclass(frozen=True, eq=False)
class FederationState:
    """Everything that changes; saving it is a checkpoint."""

    round: int  # rounds concluded
    models: Float32s  # (m, d) what is broadcast; m = 1 unless the selection policy makes clusters
    clusters: Ints  # (n,) which model each participant is sent
    loss: Floats  # (n,) last loss heard from each participant
    selection: State
    weighting: State
    server: tuple[State, ...]  # one a model
    solver: tuple[State, ...]  # one a model
    memory: ClientMemory | None = None  # in a simulation, what the n clients keep; elsewhere they keep it themselves

    @property
    def params(self) -> Float32s:
        """The (d,) model, of a federation that has one."""
        if len(self.models) > 1:
            raise PartError(f"There are {len(self.models)} models, one a cluster; use `state.models`.")
        model: Float32s = self.models[0]
        return model

    def served(self, federation: Federation) -> Float32s:
        """Return the (m, d) models that are evaluated and handed out; most solvers serve what they broadcast."""
        solver = federation.memory_solver
        if solver is None:
            return self.models
        return np.stack([solver.served(model, state) for model, state in zip(self.models, self.solver, strict=True)])


# --------------------------------------------------------------------------------------------- the functions


def initial_state(federation: Federation, params: Float32s, view: ClientView) -> FederationState:
    """Return the state before round 1."""
    return FederationState(
        round=0,
        models=params[None],
        clusters=np.zeros(len(view.ids), np.int64),
        loss=view.loss,
        selection=federation.selection.init(view),
        weighting=NO_STATE,
        server=(NO_STATE,),
        solver=(NO_STATE,),
    )


def server_trains(federation: Federation, state: FederationState) -> bool:
    """Return whether the server trains on its own data in round ``state.round + 1`` and no client is asked."""
    server = federation.training_server
    return server is not None and server.trains(generator(federation.seed, "coin", state.round + 1))


def plan_probe(federation: Federation, state: FederationState, view: ClientView) -> Probe | None:
    """Return whom the selection policy asks before it chooses in round ``state.round + 1``, or None."""
    if getattr(federation.selection.probe, "__func__", None) is no_probe:
        return None
    k = min(federation.cohort, int(np.count_nonzero(view.available)))
    if k == 0:
        return None
    rng = generator(federation.seed, "probe", state.round + 1)
    probe = federation.selection.probe(state.selection, view, k, rng)
    if probe is None:
        return None
    check_type(federation.selection, "probe", probe, Probe)
    return replace(probe, ids=checked_ids(federation.selection, "probe", probe.ids, view))


def observe_probe(federation: Federation, state: FederationState, answers: Reports) -> FederationState:
    """Return the state after the selection policy has seen the answers to its probe for updates."""
    return replace(state, selection=federation.selection.observe(state.selection, answers))


def plan_round(federation: Federation, state: FederationState, view: ClientView) -> Selection:
    """Return the cohort of round ``state.round + 1``; nobody where nobody is available."""
    policy = federation.selection
    k = min(federation.cohort, int(np.count_nonzero(view.available)))
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
    if chosen.allocation is None or view.radio is None:
        return Selection(ids, chosen.remark)
    problem = view.radio.problem().only(view.rows(ids))
    return Selection(ids, chosen.remark, checked_allocation(policy, "select", chosen.allocation, problem))


def conclude_round(
    federation: Federation,
    state: FederationState,
    view: ClientView,
    selection: Selection,
    reports: Reports,
    summed: Callable[[Floats, Float32s], Floats] | None = None,
) -> tuple[FederationState, RoundReport]:
    """Weigh the reports, take the server step and return the new state with the row of the round.

    Implements ``x <- server(x, sum_i w_i update_i)``, for each model with the clients that train it. With no report
    a model stays as it is. Buffers (see `Reports.trainable`) take the weighted mean as it is: a server rate or
    momentum, which may overshoot, could make the running variance of BatchNorm negative.

    `summed` is a faster way to the numbers of `weighted_sum`, where there is one.
    """
    d = state.models.shape[1]
    down, up, probe_bytes = count_bytes(federation, state.round + 1, view, selection, reports, d)
    spending = spend(federation, view, selection, d)
    loss = np.where(view.probed & ~np.isnan(view.loss), view.loss, state.loss)
    observed = federation.selection.observe(state.selection, reports)
    if len(reports.ids) == 0:
        state = replace(state, round=state.round + 1, loss=loss, selection=observed)
        return _clustered(federation, state), RoundReport(
            (), (), reports.lost, None, down, up, probe_bytes, remark=selection.remark, spending=spending
        )

    rows = view.rows(reports.ids)
    weights, weighed = _weights(federation, state, reports)
    loss[rows] = reports.metrics["loss"]
    models, solver, server = state.models.copy(), list(state.solver), list(state.server)
    own = state.clusters[rows]
    for model in range(len(models)):
        mine = own == model
        if mine.any():
            models[model], solver[model], server[model] = _updated(
                federation, state, model, weights, reports, mine, summed
            )
    state = replace(
        state,
        round=state.round + 1,
        models=models,
        loss=loss,
        selection=observed,
        weighting=weighed,
        server=tuple(server),
        solver=tuple(solver),
    )
    report = RoundReport(
        cohort=tuple(reports.ids.tolist()),
        weights=tuple(weights.tolist()),
        lost=reports.lost,
        train_loss=None if reports.secure_mean is not None else float(weights @ reports.metrics["loss"]),
        bytes_down=down,
        bytes_up=up,
        probe_bytes=probe_bytes,
        metrics={
            name: tuple(reports.metrics[name].tolist())
            for name in ("loss", *(measurement.name for measurement in federation.measurements()))
            if name in reports.metrics  # not where a secure sum hides it
        },
        remark=selection.remark,
        spending=spending,
    )
    return _clustered(federation, state), report


def conclude_server_round(
    federation: Federation, state: FederationState, view: ClientView, step: Float32s
) -> tuple[FederationState, RoundReport]:
    """Return the state after a round in which the server trained: it adds its own (m, d) step to the models."""
    nobody, d = Selection(np.empty(0, np.int64)), state.models.shape[1]
    silence = Reports(nobody.ids, np.empty((0, d), np.float32), {})
    down, up, probe_bytes = count_bytes(federation, state.round + 1, view, nobody, silence, d)
    spending = None if federation.radio is None else Spending(0.0, 0.0, 0.0, 0.0, None)
    report = RoundReport((), (), {}, None, down, up, probe_bytes, by_server=True, spending=spending)
    return replace(state, round=state.round + 1, models=state.models + step), report


def _weights(federation: Federation, state: FederationState, reports: Reports) -> tuple[Floats, State]:
    """Return weights that sum to 1 among the clients of each model."""
    weighting = federation.weighting
    if reports.secure_mean is not None:
        return np.full(len(reports.ids), np.nan), state.weighting  # each client knows its own
    answer = weighting.weights(state.weighting, reports)
    weights, new = checked_weights(weighting, answer, len(reports.ids))
    return weights, new


def _updated(
    federation: Federation,
    state: FederationState,
    model: int,
    weights: Floats,
    reports: Reports,
    mine: Bools,
    summed: Callable[[Floats, Float32s], Floats] | None,
) -> tuple[Float32s, State, State]:
    """Return one model, its solver's and its server's state after its step, with the reports of those that train it."""
    solver, p = federation.memory_solver, reports.trainable
    params, solver_state, server_state = state.models[model], state.solver[model], state.server[model]
    if not mine.all():
        reports, weights = _some(reports, mine), weights[mine]
        if weights.sum() == 0:
            return params, solver_state, server_state
        weights = weights / weights.sum()
    if reports.secure_mean is not None:
        mean = reports.secure_mean
    elif federation.label_statistics.only_sum:
        raw = np.asarray(federation.weighting.raw(reports.metrics))  # type: ignore[attr-defined]
        mean = weighted_mean_of_shares(raw, reports.update)
    else:
        mean = (summed or weighted_sum)(weights, reports.update)
    step = mean[:p]
    if solver is not None:
        n = int((state.clusters == model).sum())
        step, solver_state = solver.conclude(solver_state, reports, step, n)
    new, server_state = federation.server.apply(params[:p], server_state, step)
    if p is not None and p < len(params):
        new = np.concatenate([new, (params[p:] + mean[p:]).astype(np.float32)])
    return new, solver_state, server_state


def _some(reports: Reports, mine: Bools) -> Reports:
    return replace(
        reports,
        ids=reports.ids[mine],
        update=reports.update[mine],
        metrics={name: values[mine] for name, values in reports.metrics.items()},
        label_counts=None if reports.label_counts is None else reports.label_counts[mine],
        note=None if reports.note is None else reports.note[mine],
    )


def _clustered(federation: Federation, state: FederationState) -> FederationState:
    """Return the state after the policy's clusters, if it makes any, changed.

    A new cluster's model starts as that of the one its members come from. What server and solver kept, and the
    memory of the clients in a cluster that changed, belong to an average over other clients, and are forgotten.
    """
    divide = getattr(federation.selection, "clusters", None)
    if divide is None:
        return state
    clusters = checked_clusters(federation.selection, divide(state.selection), len(state.clusters), len(state.models))
    changed = np.unique(
        np.concatenate([clusters[clusters != state.clusters], state.clusters[clusters != state.clusters]])
    )
    if changed.size == 0:
        return state
    count = int(clusters.max()) + 1
    parents = [m if m < len(state.models) else int(state.clusters[clusters == m][0]) for m in range(count)]
    memory = state.memory
    if memory is not None:
        memory = memory.forget(np.flatnonzero(np.isin(clusters, changed)))
    return replace(
        state,
        models=state.models[parents],
        clusters=clusters,
        server=tuple(NO_STATE if m in changed else state.server[m] for m in range(count)),
        solver=tuple(NO_STATE if m in changed else state.solver[m] for m in range(count)),
        memory=memory,
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
        own = product[: len(part)]
        for weight, row in zip(weights, update[:, begin : begin + BLOCK], strict=True):
            own[:] = row  # float64 first: a product of two kinds of numbers is twice as slow
            own *= weight
            part += own
    return total
