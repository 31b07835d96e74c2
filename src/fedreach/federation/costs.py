"""Costs of a round: bytes, seconds, joules."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.checks import check_allocation
from fedreach.federation.federation import Federation
from fedreach.federation.types import ClientResults, Cohort, Probe, RoundCost, ServerView
from fedreach.wireless.exact import allocate
from fedreach.wireless.problem import Allocation, AllocationProblem
from fedreach.wireless.radio import Devices, RadioState

# -------------------- Bytes of a round

BYTES_PER_NUMBER = 4
REPORT_SCALARS = 2  # a report carries num_examples and loss in addition to the update and measurements


def report_numbers(federation: Federation, d: int) -> int:
    """Return how many numbers a report carries without its note, for a model of d."""
    return d + REPORT_SCALARS + len(federation.measurements())


def note_numbers(federation: Federation, p: int) -> int:
    """Return how many numbers the second message of a report carries, of p that are trained; mostly none."""
    solver = federation.memory_solver
    return p * (solver is not None and solver.sends_note)


def count_constants(view: ServerView, selection: Cohort, holds: Bools | None) -> tuple[Bools | None, int, int]:
    """Return which clients hold the model's constants after a round, the bytes sent for them, and those of a probe.

    A client is sent them once, with the first model that it is sent, for a probe or to train. `holds` flags the clients
    that have them; None: the model has none. Nothing is sent back.

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
    """Return (down, up, probe) bytes of a round; those of the probe are part of the other two.

    A probed client holds the model already: it is not sent again to the cohort, and a client that was probed for its
    update does not send it twice. In round 1 client statistics about labels are sent. The model has d numbers, trained
    ones and averaged buffers; `reports` are those that count.
    """
    solver = federation.memory_solver
    p = d if reports.trainable is None else reports.trainable
    model = d + p * (solver is not None and solver.sends_state)
    report, note = report_numbers(federation, d), note_numbers(federation, p)

    sent = view.sent_update
    probed = int(np.count_nonzero(view.probed))
    probe_down, probe_up = probed * model, probed if sent is None else int(sent.sum()) * report
    holds = int(np.count_nonzero(view.probed[view.rows(selection.ids)])) if probed else 0
    done = 0 if sent is None else int(sent[view.rows(reports.ids)].sum())
    down = (len(selection.ids) - holds) * model + probe_down
    up = (len(reports.ids) - done) * report + len(reports.ids) * note + probe_up
    if number == 1 and federation.needs() and not federation.label_statistics.only_sum:
        up += sum(array.size for array in (view.label_counts, view.label_entropy) if array is not None)
    return down * BYTES_PER_NUMBER, up * BYTES_PER_NUMBER, (probe_down + probe_up) * BYTES_PER_NUMBER


# -------------------- Seconds and joules of a round, and of fitting an adaptation rule

FORWARD_PASS = 1 / 3  # of a pass of training, which is a forward and a backward one, and that about twice as much


def with_radio(
    federation: Federation, view: ServerView, devices: Devices, *, d: int, p: int, bits_per_example: float
) -> ServerView:
    """Return the view with this round's channels and what a round of training costs each client.

    Args:
        d: Numbers in a model.
        p: Those of them that are trained.
        bits_per_example: Of the training data, as it is stored.
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
    """Return (n,) the passes over its data that each client's round takes; looking at all of it is a third of one."""
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
    """Return what the round costs, or None without a radio.

    Clients that are asked work and send at the same time, with the shares and frequencies of the allocation rule, first
    for the probe and then for the round. A client that has sent its update in the probe has no work left. A
    client whose reply is lost has spent what it spent.
    """
    if federation.radio is None:
        return None
    radio = view.radio
    if radio is None:
        raise ConfigError("The federation has a radio, but the view has no `radio`: pass it through `with_radio`.")
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
    """Cost for the participants of fitting an adaptation rule."""

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
    """Return what fitting an adaptation rule costs by the channels and devices of rounds.

    The exchanges follow round `round_`, each with channels of its own, as rounds r + 1, r + 2 ... would have. All
    clients that are asked send at the same time, by the allocation rule of rounds. Before the first answer each passes
    its m held-out examples through the model, a third of a pass of training over them, and keeps the outputs; what it
    then computes from them is negligible. As in rounds, what the server sends takes no time.

    Args:
        devices: Of the n participants.
        ids: (n,) of them.
        held_out: (n,) examples that each fits by; 0 for one that is not asked.
        sent: Bytes that one participant sends, exchange by exchange.
        round_: Of the model.
        bits_per_example: Of the data, as it is stored; used where the radio has none of its own.

    Raises:
        ConfigError: If the federation has no radio.
    """
    if federation.radio is None:
        raise ConfigError("fitting_cost needs a federation with a radio; got none. Give it `radio=Radio()`.")
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
    passes = np.full(len(view.ids), FORWARD_PASS)
    if probe.asks == "batch_loss":
        passes = passes * np.minimum(1.0, probe.batch_size / np.maximum(view.num_examples, 1))
    return radio.problem(bits=8 * BYTES_PER_NUMBER, passes=passes).only(rows)
