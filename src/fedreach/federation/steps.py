"""START HERE: one federated round, without a network.

`run_round` is the round. It is a generator: it yields requests to clients, and is sent their answers.

```
view -> plan_probe -> [AskLosses | AskUpdates] -> after_probe
     -> plan_round -> [AskUpdates]             -> remembered -> conclude_round -> [AskServer]
```

A `ClientBackend` answers: `simulation` with an engine, `fedreach.flower` by messages, `fedreach.testing` with a
synthetic federation; a recipe of decisions stops once the cohort is chosen. A generator can be neither copied nor
stored, so it lives within a round, and `RoundOutcome` holds what outlives the round.
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
from fedreach.federation.state import FederationState
from fedreach.federation.types import ClientResults, Cohort, LocalOutputs, Probe, RoundResult, ServerView

NUMBERS = 2**21  # of clients' memories that are worked on at a time


@dataclass(frozen=True, eq=False)
class AskLosses:
    """Asks the clients of a probe for losses; the answer maps the ids of those that replied to their losses."""

    state: FederationState
    view: ServerView
    probe: Probe


@dataclass(frozen=True, eq=False)
class AskUpdates:
    """Asks the selected clients to train; the answer is the results of those whose replies count, with `steps`."""

    state: FederationState
    view: ServerView
    selection: Cohort
    probe: bool = False  # whether what they send counts for nothing but the policy's `observe`


@dataclass(frozen=True, eq=False)
class AskServer:
    """Asks the server to learn from its own data; the answer is the state with what that made of the models."""

    state: FederationState
    view: ServerView
    sent: FederationState | None = None  # what the clients of this round were sent, if they were asked before it,
    reports: ClientResults | None = None  # and what counts of their answers


Request = AskLosses | AskUpdates | AskServer


class RoundOutcome(NamedTuple):
    """The outcome of a round."""

    state: FederationState
    result: RoundResult
    update: Float32s  # (r, d) of the clients whose reports count, in the order of `result.cohort`


Steps = Generator[Request, Any, RoundOutcome]


class ClientBackend(Protocol):
    """The other side of a round: it answers what the round asks for."""

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        """Return the loss of each client of the probe that replied."""

    def updates(self, request: AskUpdates) -> ClientResults:
        """Return the reports that count; `lost` says why the others do not."""

    def learnt(self, request: AskServer) -> FederationState:
        """Return the state after the server's work on its own data, for each model."""


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
        rounds: Length of the run, which schedules of the local learning rate refer to, and servers that tune at its
        end.
        summed: A faster way to the numbers of `weighted_sum`, where there is one.

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
        else:
            answers = yield AskLosses(state, view, probe)
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
    """Run a round to its end; a side answers all requests."""
    request = next_request(steps)
    while not isinstance(request, RoundOutcome):
        request = next_request(steps, answer_request(side, request))
    return request


def run_until_cohort(steps: Steps, side: ClientBackend) -> AskUpdates | AskServer:
    """Let a side answer a probe, if there is one; return the request to the cohort, or to the server."""
    request = next_request(steps)
    while isinstance(request, AskLosses) or (isinstance(request, AskUpdates) and request.probe):
        request = next_request(steps, answer_request(side, request))
    assert not isinstance(request, RoundOutcome)  # a round ends with updates
    return request


def next_request(steps: Steps, answer: Any = None) -> Request | RoundOutcome:
    """Send a round the answer to its last request, None at first; return the next one, or the outcome."""
    try:
        return steps.send(answer)
    except StopIteration as end:
        done: RoundOutcome = end.value
        return done


def answer_request(side: ClientBackend, request: Request) -> Any:
    """Return the answer of a side."""
    if isinstance(request, AskUpdates):
        return side.updates(request)
    return side.losses(request) if isinstance(request, AskLosses) else side.learnt(request)


# -------------------- The server between requests


def next_view(
    federation: Federation, clients: ServerView, state: FederationState, participation: Participation
) -> ServerView:
    """Return what the server knows when round ``state.round + 1`` begins; channels are added by `with_radio`.

    `clients` holds what it knows of clients and which are present; `participation` which of those are available.
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
    """Return state and view after the answers to a probe: losses by client, or reports that the policy observes.

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


def lost_replies(participation: Participation, ids: Ints, seed: int, round_: int, *, probe: bool) -> Ints:
    """Return which of these clients' replies get lost on the way, ids increasing; none without `replies`."""
    if not participation.loses_replies:
        return ids[:0]
    return ids[~participation.replies(len(ids), generator(seed, "probe-replies" if probe else "replies", round_))]


# -------------------- Memories of clients


def memory_width(federation: Federation, p: int, d: int) -> int:
    """Return how many numbers a client keeps, of a model of d numbers of which p are trained."""
    return p if federation.memory_loss is None else d


def new_memory(federation: Federation, n: int, width: int, path: Path | None = None) -> RowTable | None:
    """Return the memory of n clients before round 1, in a file if one is named; None if they keep nothing."""
    if not federation.has_memory:
        return None
    return RowTable.zeros(n, width, path, dtype=federation.solver.memory_dtype)


def update_client_state(
    federation: Federation, state: FederationState, view: ServerView, reports: ClientResults, rounds: int
) -> tuple[FederationState, ClientResults]:
    """Return the state in which those whose reports count keep what their training left them, and the reports.

    If the solver has clients send the change of what they keep, the `note` of the reports holds it.
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
    """Return what clients keep for the loss after local training, see `Loss.keep`.

    Raises:
        ComponentError: If it is not float32 of the same shape.
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
    """Return the samples of a client, at most `size`, over which it answers a probe for the loss of a batch."""
    rng = generator(seed, "probe-batches", round_, client)
    return rng.choice(samples, size=min(size, len(samples)), replace=False)


def server_batches(seed: int, round_: int) -> np.random.Generator:
    """Return the stream of the batches of its own data that a server learns from in a round."""
    return generator(seed, "server-batches", round_)


def server_split(labels: Ints | Floats, held_out: float, seed: int) -> tuple[Ints, Ints]:
    """Return which of its own examples a server trains on and which it holds out, the same in all rounds.

    Of each class it holds out its share, one example more or less; of numbers, all along their range.

    Raises:
        ConfigError: If nothing would be left of either.
    """
    n, minimum = len(labels), 2
    if n < minimum:
        raise ConfigError(
            f"A server that holds examples out of its own data must have at least {minimum}; it has {n}. Raise "
            "server_data.examples, or leave out `held_out`."
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
    """Return what a client measures with its local model, by name."""
    return {
        measurement.name: measurement.measure(outputs, generator(seed, f"measure {measurement.name}", round_, client))
        for measurement in measurements
    }
