"""Decisions of the server in one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints, replace_fields, weighted_sum
from fedreach._util.errors import ComponentError
from fedreach._util.row_store import RowTable
from fedreach._util.streams import generator
from fedreach.federation import checks
from fedreach.federation.accounting import needs_fit, seed_of
from fedreach.federation.base import name_of
from fedreach.federation.costs import cohort_amount, count_bytes, count_constants, round_cost
from fedreach.federation.differential_privacy import PrivateAggregator
from fedreach.federation.federation import Federation, visible_reports, visible_view
from fedreach.federation.local_sgd import UnevenSteps
from fedreach.federation.state import FederationState, update_clusters
from fedreach.federation.types import ClientResults, Cohort, Probe, RoundCost, RoundResult, ServerView, State

# -------------------- The decisions of a round as pure functions
# `fedreach.federation.steps` has their order.
# A *component* (selection, weighting, solver, server step) is a frozen dataclass of hyper-parameters. What changes
# during a run is its `State`, which comes in and goes out, so saving the states saves the run. Nothing here imports
# torch: decisions are small numpy functions, the same in the simulator and on a real network.

LARGE = 2**24  # bytes of what clients sent last that are not kept in main memory


def server_trains(federation: Federation, state: FederationState) -> bool:
    """Return whether the server trains on its own data in round ``state.round + 1``, without clients."""
    if not federation.server.trains_server:
        return False
    trains = federation.server.trains(generator(federation.seed, "coin", state.round + 1))
    if federation.server.trains_alone and not trains:
        raise ComponentError(
            f"{name_of(federation.server)}.trains must return True in all rounds, because of `trains_alone`; got "
            f"{trains} in round {state.round + 1}. Remove the attribute."
        )
    return trains


def server_tunes(federation: Federation, round_: int, rounds: int) -> bool:
    """Return whether the server also trains on its own data after the clients of this round."""
    return federation.server.tunes_server and federation.server.tunes(round_, rounds)


def plan_probe(federation: Federation, state: FederationState, view: ServerView) -> Probe | None:
    """Return the probe that the selection policy requests before round ``state.round + 1``, or None."""
    if not federation.selection.probes:
        return None
    k = _places(federation, view)
    if k == 0:
        return None
    rng = generator(federation.seed, "probe", state.round + 1)
    probe = federation.selection.probe(state.selection, visible_view(federation, view), k, rng)
    if probe is None:
        return None
    checks.check_type(federation.selection, "probe", probe, Probe)
    if probe.asks == "update" and federation.label_statistics.only_sum:
        raise ComponentError(
            f"{name_of(federation.selection)}.probe must ask for losses where {name_of(federation.label_statistics)} "
            "hides single clients' updates; got a request for updates. Choose another selection, or let the server "
            "see updates."
        )
    if probe.models not in (1, len(state.models)) or (probe.asks == "update" and probe.models > 1):
        raise ComponentError(
            f"{name_of(federation.selection)}.probe must ask for the losses of 1 model or of all {len(state.models)}; "
            f"got {probe.models} and asks = {probe.asks!r}."
        )
    if probe.asks == "update" and not federation.selection.reads_updates:
        raise ComponentError(
            f"{name_of(federation.selection)}.probe asks for updates of single clients, which its attributes do not "
            "declare. Set `reads_updates = True`, or ask for losses."
        )
    return replace(probe, ids=checks.check_ids(federation.selection, "probe", probe.ids, view))


def plan_round(federation: Federation, state: FederationState, view: ServerView) -> Cohort:
    """Return the cohort of round ``state.round + 1``; empty if no client is available."""
    schedule = federation.schedule
    if schedule is None or schedule.equal == "clients":
        k = _places(federation, view)
        return _select(federation, state, view, k) if k else Cohort(np.empty(0, np.int64))
    cohort, before, goal = Cohort(np.empty(0, np.int64)), 0.0, schedule.amounts[state.round]
    if isinstance(goal, Sequence):
        goal = float(view.num_examples[view.rows(np.array(goal, np.int64))].sum())
    for k in range(1, int(np.count_nonzero(view.available)) + 1):
        if before >= goal:
            break
        larger = _select(federation, state, view, k)
        amount = cohort_amount(federation, state, view, larger, schedule.equal)
        if k > 1 and amount - goal >= goal - before:
            break
        cohort, before = larger, amount
    return cohort


def _places(federation: Federation, view: ServerView) -> int:
    """Return k, the number of clients to select in this round."""
    size = federation.cohort_size if federation.schedule is None else federation.schedule.amounts[view.round - 1]
    return min(cast(int, size), int(np.count_nonzero(view.available)))


def _select(federation: Federation, state: FederationState, view: ServerView, k: int) -> Cohort:
    """Return the policy's choice of k clients, after checks."""
    policy = federation.selection
    rng = generator(seed_of(federation, state.aggregation[0]), "select", state.round + 1)
    chosen = policy.select(state.selection, visible_view(federation, view), k, rng)
    checks.check_type(policy, "select", chosen, Cohort)
    ids, draws = checks.check_ids(policy, "select", chosen.ids, view), checks.check_draws(policy, "select", chosen)
    checked = Cohort(ids, chosen.remark, draws=draws)
    if checked.places > k and not federation.selection.ignores_cohort:
        raise ComponentError(
            f"{name_of(policy)}.select must return at most k = {k} clients; got {checked.places}. Return fewer "
            "clients, or set `ignores_cohort = True` on the policy."
        )
    if chosen.allocation is None or view.radio is None:
        return checked
    problem = view.radio.problem().only(view.rows(ids))
    return replace(checked, allocation=checks.check_allocation(policy, "select", chosen.allocation, problem))


def conclude_round(
    federation: Federation,
    state: FederationState,
    view: ServerView,
    selection: Cohort,
    reports: ClientResults,
    summed: Callable[[Floats, Float32s], Floats] | None = None,
) -> tuple[FederationState, RoundResult]:
    """Weigh the client results, apply the server optimizer, and return the new state and the result of the round.

    Implements ``x <- server(x, sum_i w_i update_i)``, for each model with the clients that train it. A model without
    client results does not change. Buffers (see `ClientResults.trainable`) become their weighted mean. The server's
    learning rate or momentum does not apply to them, because it could make the running variance of BatchNorm negative.

    `summed` is an optional, faster function with the same results as `weighted_sum`, used by `linear` aggregators.
    """
    d = state.models.shape[1]
    if selection.draws is not None:
        draws = selection.draws[np.searchsorted(selection.ids, reports.ids)].astype(np.float64)
        reports = replace_fields(reports, metrics={**reports.metrics, "draws": draws})
    reports = replace_fields(reports, metrics={**reports.metrics, "steps": _steps(federation, view, reports)})
    down, up, probe_bytes = count_bytes(federation, state.round + 1, view, selection, reports, d)
    holds, constants, for_probe = count_constants(view, selection, state.holds)
    down, probe_bytes = down + constants, probe_bytes + for_probe
    cost = round_cost(federation, view, selection, d)
    loss = state.loss.copy()
    if np.count_nonzero(view.probed):
        loss = np.where(view.probed & ~np.isnan(view.loss), view.loss, loss)
    visible = visible_reports(federation, reports, state.aggregation[0])
    observed = federation.selection.observe(state.selection, visible)
    after: dict[str, Any] = {"round": state.round + 1, "loss": loss, "selection": observed, "holds": holds}
    if len(reports.ids) == 0 and not federation.is_private:
        return update_clusters(federation, replace_fields(state, **after)), RoundResult(
            (), (), reports.lost, None, down, up, probe_bytes, remark=selection.remark, cost=cost
        )

    rows = view.rows(reports.ids)
    if reports.secure_mean is not None:
        weights, weighed = np.full(len(rows), np.nan), state.weighting  # each client knows its own
    elif len(rows) == 0:  # the noise of a private model does not show that no client replied
        weights, weighed = np.empty(0), state.weighting
    else:
        answer = federation.weighting.weights(state.weighting, reports)
        weights, weighed = checks.check_weights(federation.weighting, answer, len(rows))
        if len(state.models) > 1 and not federation.weighting.has_own_weights:
            weights = _weights_by_model(federation, state, reports, rows, weights)
    loss[rows] = reports.metrics["loss"]
    models, sent = state.models.copy(), state.sent
    part_states = list(zip(state.server, state.solver, state.aggregation, strict=True))
    for model, positions in state.by_model(rows) if len(rows) else [(0, rows)]:
        state = state if sent is state.sent else replace_fields(state, sent=sent)
        models[model], part_states[model], sent = _update_model(
            federation, state, view, model, weights, reports, visible, positions, summed
        )
    server, solver, aggregation = zip(*part_states, strict=True)
    after |= {"models": models, "weighting": weighed, "server": server, "solver": solver, "aggregation": aggregation}
    state = replace_fields(state, sent=sent, **after)
    steps = ("steps",) if isinstance(federation.local.steps, UnevenSteps) else ()  # else they follow from sizes
    hides_losses = reports.secure_mean is not None or len(rows) == 0
    report = RoundResult(
        cohort=tuple(reports.ids.tolist()),
        weights=tuple(weights.tolist()),
        lost=reports.lost,
        train_loss=None if hides_losses else float(weights @ reports.metrics["loss"]),
        bytes_down=down,
        bytes_up=up,
        probe_bytes=probe_bytes,
        metrics={
            name: tuple(reports.metrics[name].tolist())
            for name in ("loss", "draws", *steps, *(measurement.name for measurement in federation.measurements()))
            if name in reports.metrics  # not those that secure aggregation hides
        },
        remark=selection.remark,
        cost=cost,
    )
    return update_clusters(federation, state), report


def conclude_server_round(
    federation: Federation, state: FederationState, view: ServerView, learnt: FederationState
) -> tuple[FederationState, RoundResult]:
    """Return the state and the result of a round in which the server trained without clients.

    `learnt` is the state after the server's training.
    """
    nobody, d = Cohort(np.empty(0, np.int64)), state.models.shape[1]
    silence = ClientResults(nobody.ids, np.empty((0, d), np.float32), {})
    down, up, probe_bytes = count_bytes(federation, state.round + 1, view, nobody, silence, d)
    cost = None if federation.radio is None else RoundCost(0.0, 0.0, 0.0, 0.0, None)
    report = RoundResult((), (), {}, None, down, up, probe_bytes, by_server=True, cost=cost)
    return replace(learnt, round=state.round + 1), report


def _steps(federation: Federation, view: ServerView, reports: ClientResults) -> Floats:
    """Return (r,) local steps, with momentum their equivalent number; planned steps if the results contain none."""
    local, steps = federation.local, reports.steps
    if steps is None:
        sizes = view.num_examples[view.rows(reports.ids)]
        steps = local.steps_of(sizes, reports.ids, federation.seed, view.round)
    return local.moved_steps(steps)


def _weights_by_model(
    federation: Federation, state: FederationState, reports: ClientResults, rows: Ints, weights: Floats
) -> Floats:
    """Return (r,) weights in which the clients of each model are weighted among themselves, as without other models.

    Each model's clients keep the sum of their weights. So a limit on weights, as in `Clip`, holds within each model.
    Weights a_i / sum_j a_j, where a_i depends on client i alone, need no such step.
    """
    weighting, weights = federation.weighting, weights.copy()
    for _, positions in state.by_model(rows):
        if (total := weights[positions].sum()) > 0:
            answer = weighting.weights(state.weighting, reports.at(positions))
            weights[positions] = total * checks.check_weights(weighting, answer, len(positions))[0]
    return weights


def _update_model(
    federation: Federation,
    state: FederationState,
    view: ServerView,
    model: int,
    weights: Floats,
    reports: ClientResults,
    visible: ClientResults,
    positions: Ints,
    summed: Callable[[Floats, Float32s], Floats] | None,
) -> tuple[Float32s, tuple[State, State, State], RowTable | None]:
    """Return one model and the states of server, solver and aggregator, given the results of the clients of the model.

    The last value is the table of the clients' last updates, for aggregators with `remembers_updates`.
    """
    solver, p, params = federation.memory_solver, reports.trainable, state.models[model]
    server_state, solver_state, aggregated = state.server[model], state.solver[model], state.aggregation[model]
    sent = state.sent
    if len(positions) < len(reports.ids):
        reports, weights = reports.at(positions), weights[positions]
        if weights.sum() == 0:
            return params, (server_state, solver_state, aggregated), sent
        weights, visible = weights / weights.sum(), visible_reports(federation, reports)
    mean = visible.secure_mean
    if mean is None and summed is not None and federation.aggregation.linear:
        mean = summed(weights, reports.update)
    elif (distributed := federation.distributed_noise) is not None:
        replied, clients = len(reports.ids), len(reports.ids) + len(reports.lost)
        rng = generator(seed_of(federation, aggregated), "aggregate", state.round + 1, model)
        missing = distributed.missing_noise(aggregated, replied, clients, len(params), rng)
        mean = missing if mean is None else mean + missing
        received = np.isin(view.ids, [*reports.ids.tolist(), *reports.lost])
        aggregated = {**aggregated, "participations": aggregated["participations"] + received}
    elif mean is None and federation.aggregation.remembers_updates:
        mean, aggregated, sent = _with_last(federation, state, view, model, weights, reports)
    elif mean is None:
        rng = generator(seed_of(federation, aggregated), "aggregate", state.round + 1, model)
        ids = {"ids": reports.ids} if federation.aggregation.reads_ids else {}
        answer = federation.aggregation.combine(aggregated, weights, reports.update, rng, **ids)
        mean, aggregated = checks.check_update(federation.aggregation, answer, len(params))
    step, scales = mean[:p], federation.weighting.scales_mean
    n = int((state.clusters == model).sum()) if scales or solver is not None else 0
    if scales:
        scale = federation.weighting.mean_scale(state.weighting, reports, n)
        step = checks.check_scale(federation.weighting, scale) * step
    if solver is not None:
        share = state.relative_sizes(view, view.rows(reports.ids))
        reports = replace_fields(reports, metrics={**reports.metrics, "share": share})
        step, solver_state = solver.conclude(solver_state, reports, step, n)
    new, server_state = federation.server.apply(params[:p], server_state, step)
    if p is not None and p < len(params):
        new = np.concatenate([new, (params[p:] + mean[p:]).astype(np.float32)])
    return new, (server_state, solver_state, aggregated), sent


def _with_last(
    federation: Federation,
    state: FederationState,
    view: ServerView,
    model: int,
    weights: Floats,
    reports: ClientResults,
) -> tuple[Floats, State, RowTable]:
    """Return the (d,) update of an aggregator that uses the clients' last updates, its state, and the new last updates.

    The server stores r w_i update_i / lr of each client, which does not depend on the local learning rate. Buffers are
    averaged.
    """
    aggregation, trained = cast(Any, federation.aggregation), reports.trained
    rows, (n, p) = view.rows(reports.ids), (len(view.ids), trained.shape[1])
    lr = federation.local.lr_at(view.round, view.rounds or view.round)
    sent = RowTable.zeros(n, p, on_disk=4 * n * p >= LARGE) if state.sent is None else state.sent
    update = np.empty_like(trained)  # computed in float64, without an array of it
    scale = (len(weights) / lr * weights)[:, None]
    np.multiply(scale, trained, out=update, dtype=np.float64, casting="same_kind")
    rng = generator(federation.seed, "aggregate", state.round + 1, model)
    sharing = int((state.clusters == model).sum())
    ids = {"ids": reports.ids} if aggregation.reads_ids else {}
    answer = aggregation.combine(state.aggregation[model], weights, update, rng, last=sent.read(rows), n=sharing, **ids)
    step, aggregated = checks.check_update(aggregation, answer, p)
    mean = np.concatenate([lr * step, weighted_sum(weights, reports.update[:, p:])])
    return mean, aggregated, sent.written(rows, update)


# -------------------- Whether a run can be extended

CHECKED_ROUNDS = 1000  # rounds after which a server is asked whether it learns then


def refers_to_length(federation: Federation, rounds: int, longer: int | None = None) -> str:
    """Return the reason why the first `rounds` rounds would differ in a run of `longer` rounds; "" if they are equal.

    Args:
        federation: Federation of both runs.
        rounds: Number of rounds of the shorter run.
        longer: Number of rounds of the longer run. None: `rounds` + 1.

    Example:
        >>> from dataclasses import replace
        >>> from fedreach.federation.local_sgd import LocalSGD
        >>> from fedreach.testing.problems import tiny_federation
        >>> refers_to_length(tiny_federation(), 10)
        ''
        >>> cosine = replace(tiny_federation(), local=LocalSGD(schedule="cosine", decay=0.1))
        >>> refers_to_length(cosine, 10)
        "local.schedule 'cosine' spreads its decay over all rounds of a run"
    """
    longer = rounds + 1 if longer is None else longer
    if federation.schedule is not None:
        return f"its cohorts are as large as those of {federation.schedule.method}, which is known for {rounds} rounds"
    if federation.local.schedule == "cosine":
        return "local.schedule 'cosine' spreads its decay over all rounds of a run"
    if isinstance(federation.aggregation, PrivateAggregator) and federation.aggregation.epsilon is not None:
        return f"{name_of(federation.aggregation)} spreads its epsilon over all rounds of a run"
    if federation.is_private and needs_fit(federation):
        return f"{name_of(federation.aggregation)} accounts for one fit of the adaptation rule, after the last round"
    if federation.selection.declares("reads_length"):
        return f"the selection {name_of(federation.selection)} depends on the number of rounds"
    checked_rounds = [*range(1, min(rounds, CHECKED_ROUNDS) + 1), rounds]
    if any(
        server_tunes(federation, round_, rounds) != server_tunes(federation, round_, longer)
        for round_ in checked_rounds
    ):
        return f"the server step {name_of(federation.server)} depends on the number of rounds"
    return ""
