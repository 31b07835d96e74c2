"""START HERE: one federated round, without a network.

`run_round` implements a round as a generator. It yields requests to clients and receives their answers.

```
view -> plan_probe -> [AskLosses | AskUpdates] -> after_probe
     -> plan_round -> [AskUpdates]             -> update_client_state -> conclude_round -> [AskServer]
```

A `ClientBackend` answers the requests. `simulation` uses an engine, `fedreach.flower` sends messages, and
`fedreach.testing` uses a synthetic federation. `run_until_cohort` stops after the selection. A generator can be neither
copied nor stored. So each round creates a new generator, and `RoundOutcome` contains the values to keep.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints, replace_fields
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.row_store import RowTable
from fedreach._util.streams import generator
from fedreach.federation.base import Measurement, name_of
from fedreach.federation.federation import Federation
from fedreach.federation.participation import Always, Participation
from fedreach.federation.round import (
    conclude_round,
    conclude_server_round,
    plan_probe,
    plan_round,
    server_trains,
    server_tunes,
)
from fedreach.federation.state import FederationState, update_clusters
from fedreach.federation.types import ClientResults, Cohort, LocalOutputs, Probe, RoundResult, ServerView

NUMBERS = 2**21  # of clients' memories that are worked on at a time


@dataclass(frozen=True, eq=False)
class AskLosses:
    """Request for the losses of the probed clients; the answer maps the ids of replying clients to losses."""

    state: FederationState
    view: ServerView
    probe: Probe


@dataclass(frozen=True, eq=False)
class AskUpdates:
    """Request to the selected clients to train; the answer contains the client results to use, with `steps`."""

    state: FederationState
    view: ServerView
    selection: Cohort
    probe: bool = False  # whether what they send counts for nothing but the policy's `observe`


@dataclass(frozen=True, eq=False)
class AskServer:
    """Request to the server to train on its own data; the answer is the state with the trained models."""

    state: FederationState
    view: ServerView
    sent: FederationState | None = None  # what the clients of this round were sent, if they were asked before it,
    reports: ClientResults | None = None  # and what counts of their answers


Request = AskLosses | AskUpdates | AskServer


class RoundOutcome(NamedTuple):
    """Outcome of a round."""

    state: FederationState
    result: RoundResult
    update: Float32s  # (r, d) of the clients whose reports count, in the order of `result.cohort`


Steps = Generator[Request, Any, RoundOutcome]


class ClientBackend(Protocol):
    """Backend that answers the requests of a round."""

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        """Return the losses of the probed clients that replied, by client id."""

    def updates(self, request: AskUpdates) -> ClientResults:
        """Return the client results to use; `lost` gives the reason for each missing result."""

    def learnt(self, request: AskServer) -> FederationState:
        """Return the state after the server has trained each model on its own data."""


def run_round(
    federation: Federation,
    state: FederationState,
    view: ServerView,
    *,
    rounds: int,
    summed: Callable[[Floats, Float32s], Floats] | None = None,
) -> Steps:
    """Run round ``state.round + 1``.

    Args:
        rounds: Number of rounds of the run, for learning rate schedules and for servers that tune at the end.
        summed: Optional, faster function with the same results as `weighted_sum`.

    Example:
        >>> from fedreach.testing.problems import tiny_simulation
        >>> s = tiny_simulation()
        >>> steps = run_round(s.federation, s.start(), s.view(s.start()), rounds=10)
        >>> request = next_request(steps)  # `Uniform` asks nobody before it chooses
        >>> type(request).__name__, request.selection.ids
        ('AskUpdates', array([0, 2]))
        >>> next_request(steps, s.updates(request)).result.cohort
        (0, 2)
    """
    if view.rounds != rounds:
        view = replace_fields(view, rounds=rounds)
    if server_trains(federation, state):
        learnt = yield AskServer(state, view)
        nothing = np.empty((0, state.models.shape[1]), np.float32)
        return RoundOutcome(*conclude_server_round(federation, state, view, learnt), nothing)
    probe = plan_probe(federation, state, view)
    if probe is not None:
        if probe.asks == "update":
            answers = yield AskUpdates(state, view, Cohort(probe.ids), probe=True)
        elif probe.models == 1:
            answers = yield AskLosses(state, view, probe)
        else:
            of_models = []
            for model in range(probe.models):
                having = replace(state, clusters=np.full_like(state.clusters, model))
                of_models.append((yield AskLosses(having, view, probe)))
            state, answers = after_losses(federation, state, of_models)
        state, view = after_probe(federation, state, view, probe, answers)
    selection = plan_round(federation, state, view)
    reports = yield AskUpdates(state, view, selection)
    state, reports = update_client_state(federation, state, view, reports, rounds)
    after, result = conclude_round(federation, state, view, selection, reports, summed)
    if server_tunes(federation, view.round, rounds):
        after = yield AskServer(after, view, state, reports)
    return RoundOutcome(after, result, reports.update)


# -------------------- Running a round


def finish_round(steps: Steps, side: ClientBackend) -> RoundOutcome:
    """Run a round to its end; `side` answers all requests."""
    request = next_request(steps)
    while not isinstance(request, RoundOutcome):
        request = next_request(steps, answer_request(side, request))
    return request


def run_until_cohort(steps: Steps, side: ClientBackend) -> AskUpdates | AskServer:
    """Run a round until the selection; return the request to the cohort or to the server. `side` answers probes."""
    request = next_request(steps)
    while isinstance(request, AskLosses) or (isinstance(request, AskUpdates) and request.probe):
        request = next_request(steps, answer_request(side, request))
    assert not isinstance(request, RoundOutcome)  # a round ends with updates
    return request


def next_request(steps: Steps, answer: Any = None) -> Request | RoundOutcome:
    """Return the next request of a round, or its outcome, given the answer to the last request (None at first)."""
    try:
        return steps.send(answer)
    except StopIteration as end:
        done: RoundOutcome = end.value
        return done


def answer_request(side: ClientBackend, request: Request) -> Any:
    """Return the backend's answer to a request."""
    if isinstance(request, AskUpdates):
        return side.updates(request)
    return side.losses(request) if isinstance(request, AskLosses) else side.learnt(request)


# -------------------- The server between requests


def next_view(
    federation: Federation, clients: ServerView, state: FederationState, participation: Participation
) -> ServerView:
    """Return the server's view at the beginning of round ``state.round + 1``; `with_radio` adds the channels.

    `clients` contains the static data about clients and the connected clients. `participation` determines which of the
    connected clients are available.
    """
    view = replace_fields(clients, loss=state.loss, round=state.round + 1)
    if type(participation) is Always:  # it draws nothing
        return view
    reachable = participation.available(len(view.ids), generator(federation.seed, "participation", view.round))
    return replace(view, available=view.available & reachable)


def after_probe(
    federation: Federation,
    state: FederationState,
    view: ServerView,
    probe: Probe,
    answers: Mapping[int, float] | ClientResults,
) -> tuple[FederationState, ServerView]:
    """Return the state and the view after a probe, given losses by client id, or client results for the policy.

    Clients that did not reply keep their last known loss.
    """
    probed, loss, sent = view.probed.copy(), view.loss.copy(), None
    probed[view.rows(probe.ids)] = True
    if isinstance(answers, ClientResults):
        sent = np.zeros_like(probed)
        sent[view.rows(answers.ids)] = True
        loss[sent] = answers.metrics["loss"]
        state = replace(state, selection=federation.selection.observe(state.selection, answers))
    else:
        loss[view.rows(np.array(list(answers), np.int64))] = list(answers.values())
    return state, replace(view, loss=loss, probed=probed, sent_update=sent, probe=probe)


def after_losses(
    federation: Federation, state: FederationState, of_models: Sequence[Mapping[int, float]]
) -> tuple[FederationState, dict[int, float]]:
    """Return the state after clients sent their losses with all models, and the smallest loss of each client.

    Clients that did not reply for each model have no loss.
    """
    ids = sorted(set[int](of_models[0]).intersection(*of_models[1:]))
    losses = np.array([[losses[client] for losses in of_models] for client in ids]).reshape(-1, len(of_models))
    chosen = federation.selection.choose_models(state.selection, np.array(ids, np.int64), losses)
    state = update_clusters(federation, replace(state, selection=chosen))
    return state, dict(zip(ids, losses.min(axis=1).tolist(), strict=True))


def lost_replies(participation: Participation, ids: Ints, seed: int, round_: int, *, probe: bool) -> Ints:
    """Return the sorted ids of clients whose replies are lost; none if `participation` has no method `replies`."""
    if not participation.loses_replies:
        return ids[:0]
    return ids[~participation.replies(len(ids), generator(seed, "probe-replies" if probe else "replies", round_))]


# -------------------- Memories of clients


def memory_width(federation: Federation, p: int, d: int) -> int:
    """Return how many numbers a client stores between rounds, for a model with d numbers, p of them trained."""
    return p if federation.memory_loss is None else d


def new_memory(federation: Federation, n: int, width: int, path: Path | None = None) -> RowTable | None:
    """Return the stored vectors of n clients before round 1, in a file if `path` is set; None if clients store none."""
    if not federation.has_memory:
        return None
    return RowTable.zeros(n, width, path, dtype=federation.solver.memory_dtype)


def update_client_state(
    federation: Federation, state: FederationState, view: ServerView, reports: ClientResults, rounds: int
) -> tuple[FederationState, ClientResults]:
    """Return the state with the new stored vectors of the clients in `reports`, and the client results.

    With `sends_note`, the `note` of the client results contains the changes of the stored vectors.
    """
    solver, memory = federation.memory_solver, state.memory
    if memory is None or len(reports.ids) == 0:
        return state, reports
    rows = view.rows(reports.ids)
    old = memory.read(rows)
    if solver is None:
        for model, positions in state.by_model(rows):
            for position in positions[:, None]:  # each by itself, as a real client would
                local = state.models[model] + reports.update[position]
                old[position] = keep_for_loss(federation, old[position], local)
        return replace(state, memory=memory.written(rows, old)), reports
    assert reports.steps is not None  # the answer to `AskUpdates` has the steps of each client
    lr, steps = federation.local.lr_at(view.round, rounds), federation.local.moved_steps(reports.steps)
    new = np.empty_like(old)
    together = max(1, NUMBERS // max(1, old.shape[1]))  # arithmetic on a whole cohort would hold several copies
    for model, positions in state.by_model(rows):
        for part in np.split(positions, range(together, len(positions), together)):
            update = reports.update[part, : reports.trainable]
            memories = solver.remember(old[part], state.solver[model], update, steps[part], lr)
            new[part] = memory.kept(memories)  # the server gets the change of what is kept, rounded in the same way
    change = np.subtract(new, old, out=old)
    state = replace(state, memory=memory.written(rows, new))
    return state, replace(reports, note=change) if solver.sends_note else reports


def keep_for_loss(federation: Federation, memory: Float32s, local: Float32s) -> Float32s:
    """Return the vectors that clients store for the loss after local training, see `Loss.keep`.

    Raises:
        ComponentError: If `Loss.keep` does not return float32 vectors of the same shape.
    """
    loss = federation.memory_loss
    assert loss is not None  # else clients keep nothing
    vectors = np.asarray(loss.keep(memory, local))
    if vectors.shape != memory.shape or vectors.dtype != np.float32:
        got = f"{vectors.dtype} {vectors.shape}"
        raise ComponentError(f"{name_of(loss)}.keep must return float32 of shape {memory.shape}; got {got}.")
    return vectors


# -------------------- Random draws of a round


def probe_batch(samples: Ints, size: int, seed: int, round_: int, client: int) -> Ints:
    """Return at most `size` examples of a client that it uses to answer a probe for a batch loss."""
    rng = generator(seed, "probe-batches", round_, client)
    return rng.choice(samples, size=min(size, len(samples)), replace=False)


def server_batches(seed: int, round_: int) -> np.random.Generator:
    """Return the random generator for the batches on which the server trains in a round."""
    return generator(seed, "server-batches", round_)


def server_split(labels: Ints | Floats, held_out: float, seed: int) -> tuple[Ints, Ints]:
    """Return the server's examples to train on and those to hold out, the same in all rounds.

    The held-out part of each class is proportional, up to one example. Numeric targets are held out evenly over their
    range.

    Raises:
        ConfigError: If the examples to train on or the held-out examples would be empty.
    """
    n, minimum = len(labels), 2
    if n < minimum:
        raise ConfigError(
            f"A server that holds out examples must have at least {minimum} examples; got {n}. Raise "
            "server_data.examples, or remove `held_out`."
        )
    order = generator(seed, "server-held-out").permutation(n)
    sorted_by = labels[order].reshape(n, -1)[:, 0]  # where several numbers are targets, the first
    by_class = order[np.argsort(sorted_by, kind="stable")]
    count = min(max(1, round(held_out * n)), n - 1)
    chosen = np.diff(np.arange(n + 1) * count // n) > 0  # evenly over the classes
    return np.sort(by_class[~chosen]), np.sort(by_class[chosen])


def measure_outputs(
    measurements: Sequence[Measurement], outputs: LocalOutputs, seed: int, round_: int, client: int
) -> dict[str, float]:
    """Return a client's measurements with its local model, by name."""
    return {
        measurement.name: measurement.measure(outputs, generator(seed, f"measure {measurement.name}", round_, client))
        for measurement in measurements
    }
