"""Costs of a round: bytes, seconds and joules."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.checks import check_allocation
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.types import ClientResults, Cohort, Equal, Probe, RoundCost, ServerView
from fedreach.wireless.exact import allocate
from fedreach.wireless.problem import Allocation, AllocationProblem
from fedreach.wireless.radio import Devices, RadioState

# -------------------- Bytes of a round

BYTES_PER_NUMBER = 4
REPORT_SCALARS = 2  # a report carries num_examples and loss in addition to the update and measurements


def report_numbers(federation: Federation, d: int) -> int:
    """Return how many numbers a client result contains without its note, for a model of d numbers.

    Under secure aggregation, it contains d + 1 words of 64 bits, which count as two numbers each, and no measurements.
    """
    if federation.label_statistics.only_sum:
        return 2 * (d + 1) + REPORT_SCALARS
    return d + REPORT_SCALARS + len(federation.measurements())


def count_key_bytes(num_clients: int, replied: int) -> tuple[int, int]:
    """Return the (down, up) bytes of the keys and shares of one secure sum, as texts in hexadecimal.

    Each of n clients sends two public keys of 32 bytes and, for each of the n clients, a sealed share of 94
    bytes. It receives the keys of all n clients and n sealed shares. If r > 0 replies count, each of these r clients
    reveals n shares of 33 bytes. Lists of ids, signatures and the names in messages are left out.

    Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, table
    1: a client's communication grows as n + d.

    Example:
        >>> count_key_bytes(10, 9)
        (31600, 26020)
    """
    keys, sealed, revealed = 2 * 64, 2 * 94, 2 * 33
    n = num_clients
    return n * n * (keys + sealed), n * keys + n * n * sealed + replied * n * revealed


def note_numbers(federation: Federation, p: int) -> int:
    """Return how many numbers the note of a client result contains, for p trained numbers; 0 for most solvers."""
    solver = federation.memory_solver
    return p * (solver is not None and solver.sends_note)


def count_constants(view: ServerView, selection: Cohort, holds: Bools | None) -> tuple[Bools | None, int, int]:
    """Return which clients store the model's constants after a round, the bytes to send them, and a probe's part of it.

    The server sends the constants to a client once, with the first model for a probe or for training. `holds` marks the
    clients that store the constants already; None for a model without constants. Clients do not send constants back.

    Example:
        >>> from dataclasses import replace
        >>> view = replace(ServerView.of(np.arange(3), np.ones(3, np.int64)), constant_bytes=100)
        >>> count_constants(view, Cohort(np.array([0, 2])), np.array([True, False, False]))
        (array([ True, False,  True]), 100, 0)
    """
    if holds is None:
        return None, 0, 0
    received = view.probed.copy()
    received[view.rows(selection.ids)] = True
    new, probed = int((received & ~holds).sum()), int((view.probed & ~holds).sum())
    return holds | received, new * view.constant_bytes, probed * view.constant_bytes


def count_bytes(
    federation: Federation, number: int, view: ServerView, selection: Cohort, reports: ClientResults, d: int
) -> tuple[int, int, int]:
    """Return (down, up, probe) bytes of a round, where down and up include the bytes of the probe.

    A probed client already has the model, or all models if the probe asks for the loss of each, so the server does not
    send it again. A client that was probed for its update sends the update once. In round 1 clients also send
    statistics about their labels. The model has d numbers: trained parameters and averaged buffers. `reports` contains
    only the client results that the server uses. Secure aggregation adds keys and shares (see `count_key_bytes`).
    """
    solver = federation.memory_solver
    p = d if reports.trainable is None else reports.trainable
    model = d + p * (solver is not None and solver.sends_state)
    report, note = report_numbers(federation, d), note_numbers(federation, p)

    sent = view.sent_update
    probed = int(np.count_nonzero(view.probed))
    models = 1 if view.probe is None else view.probe.models
    probe_down = probed * (model + (models - 1) * d)
    probe_up = probed * models if sent is None else int(sent.sum()) * report
    holds = int(np.count_nonzero(view.probed[view.rows(selection.ids)])) if probed else 0
    done = 0 if sent is None else int(sent[view.rows(reports.ids)].sum())
    down = (len(selection.ids) - holds) * model + probe_down
    up = (len(reports.ids) - done) * report + len(reports.ids) * note + probe_up
    hides = federation.label_statistics.only_sum
    if number == 1 and federation.needs() and not hides:
        up += sum(array.size for array in (view.label_counts, view.label_entropy) if array is not None)
    keys_down, keys_up = count_key_bytes(len(selection.ids), len(reports.ids)) if hides else (0, 0)
    probe = (probe_down + probe_up) * BYTES_PER_NUMBER
    return down * BYTES_PER_NUMBER + keys_down, up * BYTES_PER_NUMBER + keys_up, probe


def cohort_amount(
    federation: Federation, state: FederationState, view: ServerView, cohort: Cohort, unit: Equal
) -> float:
    """Return the examples of a cohort, or the bytes, seconds or joules of its round if all clients reply."""
    if unit == "examples":
        return float(view.num_examples[view.rows(cohort.ids)].sum())
    d = state.models.shape[1]
    if unit == "bytes":
        p = None if federation.memory_solver is None or state.memory is None else state.memory.shape[1]
        replies = ClientResults(cohort.ids, np.empty((len(cohort.ids), 0), np.float32), {}, trainable=p)
        down, up, _ = count_bytes(federation, view.round, view, cohort, replies, d)
        return float(down + up + count_constants(view, cohort, state.holds)[1])
    cost = round_cost(federation, view, cohort, d)
    assert cost is not None  # a schedule of seconds or joules requires a radio
    return cost.seconds if unit == "seconds" else cost.joules


# -------------------- Seconds and joules of a round, and of fitting an adaptation rule

FORWARD_PASS = 1 / 3  # of a pass of training, which is a forward and a backward one, and that about twice as much


def with_radio(
    federation: Federation, view: ServerView, devices: Devices, *, d: int, p: int, bits_per_example: float
) -> ServerView:
    """Return the view with this round's channels and each client's cost of training.

    Args:
        d: Number of values in a model.
        p: Number of trained values among the d values.
        bits_per_example: Size of a stored training example, in bits.
    """
    assert federation.radio is not None
    numbers = report_numbers(federation, d) + note_numbers(federation, p)
    state = federation.radio.state(
        devices,
        seed=federation.seed,
        round_=view.round,
        ids=view.ids,
        num_examples=view.num_examples,
        bits_per_example=bits_per_example,
        passes=training_passes(federation, view),
        report_bits=8 * BYTES_PER_NUMBER * numbers,
    )
    return replace(view, radio=state)


def training_passes(federation: Federation, view: ServerView) -> Floats:
    """Return (n,) each client's number of training passes over its data in a round; an evaluation is a third of one."""
    local, measured, num_examples = federation.local, federation.measurements(), view.num_examples.astype(np.float64)
    evaluations = bool(measured) + any(measurement.wants_before for measurement in measured)
    if local.steps is None:
        examples = local.examples_per_epoch(np.maximum(num_examples, 1).astype(np.int64))
        trained = local.epochs * examples / np.maximum(num_examples, 1)
    else:
        steps = local.steps_of(view.num_examples, view.ids, federation.seed, view.round)
        trained = steps * np.minimum(local.batch_size, num_examples) / np.maximum(num_examples, 1)
    return trained + evaluations * FORWARD_PASS


def round_cost(federation: Federation, view: ServerView, selection: Cohort, d: int) -> RoundCost | None:
    """Return the cost of the round, or None without a radio.

    All requested clients compute and send at the same time, first for the probe and then for the round. The allocation
    rule sets their bandwidth shares and frequencies. A client that sent its update in the probe has no further cost.
    The cost includes clients whose reply is lost.
    """
    if federation.radio is None:
        return None
    radio = view.radio
    if radio is None:
        raise ConfigError(
            "The federation has a radio, but the view has no `radio`. Pass the view through `with_radio`."
        )
    probed = None
    if view.probe is not None:
        probed = _allocate(federation, _probe_problem(federation, radio, view, view.probe, d), "probe", view.round)
    idle = np.zeros(len(view.ids), np.bool_) if view.sent_update is None else view.sent_update
    rows = view.rows(selection.ids)
    rows = rows[~idle[rows]]
    preset, allocation = selection.allocation, None
    if len(rows):
        problem = radio.problem()
        if preset is None or federation.allocation is not None:
            allocation = _allocate(federation, problem.only(rows), "round", view.round)
        else:
            at = np.searchsorted(preset.ids, view.ids[rows])
            allocation = Allocation.of(problem, rows, preset.share[at], preset.hertz[at])
    first = (probed.seconds, probed.joules) if probed is not None else (0.0, 0.0)
    then = (allocation.seconds, allocation.joules) if allocation is not None else (0.0, 0.0)
    return RoundCost(first[0] + then[0], first[1] + then[1], *first, allocation)


class FittingCost(NamedTuple):
    """Cost that participants have when an adaptation rule is fitted."""

    seconds: float  # of all exchanges, one after the other
    joules: float  # of all participants, to compute and to send


def fitting_cost(
    federation: Federation,
    devices: Devices,
    *,
    ids: Ints,
    held_out: Ints,
    sent: Sequence[int],
    round_: int,
    bits_per_example: float,
) -> FittingCost:
    """Return the cost of fitting an adaptation rule, with the channels and devices of training rounds.

    The exchanges follow round `round_`. Each exchange draws new channels, as the rounds r + 1, r + 2, ... would. All
    requested clients send at the same time, according to the allocation rule. Before the first answer, each client
    evaluates the model on its m held-out examples and stores the outputs. This costs a third of a training pass over
    the m examples. Later computations on the outputs are negligible. As in rounds, sending from the server takes no
    time.

    Args:
        devices: Devices of the n participants.
        ids: (n,) ids of the participants.
        held_out: (n,) numbers of held-out examples used for fitting; 0 for a participant without a request.
        sent: Bytes that one participant sends in each exchange.
        round_: Round of the model.
        bits_per_example: Size of a stored example in bits, used if the radio does not define one.

    Raises:
        ConfigError: If the federation has no radio.
    """
    if federation.radio is None:
        raise ConfigError(
            "fitting_cost requires a federation with a radio; got none. Add `radio=Radio()` to the `Federation`."
        )
    seconds = joules = 0.0
    for number, size in enumerate(sent, start=1):
        state = federation.radio.state(
            devices,
            seed=federation.seed,
            round_=round_ + number,
            ids=ids,
            num_examples=held_out,
            bits_per_example=bits_per_example,
            passes=np.full(len(ids), FORWARD_PASS if number == 1 else 0.0),
            report_bits=8 * max(size, BYTES_PER_NUMBER),  # an empty answer is sent, too
        )
        problem = state.problem().only(np.flatnonzero(held_out))
        allocation = _allocate(federation, problem, "adaptation", round_ + number)
        seconds, joules = seconds + allocation.seconds, joules + allocation.joules
    return FittingCost(seconds, joules)


def _allocate(federation: Federation, problem: AllocationProblem, purpose: str, round_: int) -> Allocation:
    rule = federation.allocation
    if rule is None:
        return allocate(problem)
    rng = generator(federation.seed, f"allocation-{purpose}", round_)
    return check_allocation(rule, "allocate", rule.allocate(problem, rng), problem)


def _probe_problem(
    federation: Federation, radio: RadioState, view: ServerView, probe: Probe, d: int
) -> AllocationProblem:
    rows = view.rows(probe.ids)
    if probe.asks == "update":
        return radio.problem(bits=8 * BYTES_PER_NUMBER * report_numbers(federation, d)).only(rows)
    passes = np.full(len(view.ids), FORWARD_PASS * probe.models)
    if probe.asks == "batch_loss":
        passes = passes * np.minimum(1.0, probe.batch_size / np.maximum(view.num_examples, 1))
    return radio.problem(bits=8 * BYTES_PER_NUMBER * probe.models, passes=passes).only(rows)
