"""Solving what a planner asks, and again with 10 % more bandwidth and with 10 % more examples."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedreach.arrays import Bools, Floats
from fedreach.errors import InfeasibleError
from fedreach.planning.question import Question
from fedreach.planning.table import ClientTable
from fedreach.theory.divergence import label_divergences
from fedreach.wireless import channel, cost
from fedreach.wireless.allocation.problem import AllocationProblem, Solution
from fedreach.wireless.allocation.search.solve import solve
from fedreach.wireless.allocation.search.thresholds import nearest_thresholds

NOISE_DBM, CARRIER_HERTZ, PATH_LOSS, SMOOTHING, EPOCHS = -174.0, 2.4e9, 2.7, 1.0, 1


def problem_of(clients: ClientTable, question: Question, band: float = 1.0) -> AllocationProblem:
    """Return the problem of all clients, ids 0, 1, ... as they stand in the table.

    `band` is how many times the bandwidth is to be had. Where distances are given, the rates follow from the channel;
    given rates are taken to grow in proportion.
    """
    have = clients.numbers
    return AllocationProblem(
        upload_seconds=_upload_seconds(clients, question, band),
        power_watts=power_watts(clients),
        cycles=_cycles(clients, question),
        max_hertz=have["max_hertz"] if "max_hertz" in have else 1e9 * have["max_gigahertz"],
        num_examples=clients.num_examples,
        seconds_price=question.seconds_price,
        joules_price=question.joules_price,
        capacitance=question.capacitance,
    )


def power_watts(clients: ClientTable) -> Floats:
    """Return (K,) transmit powers."""
    have = clients.numbers
    return np.asarray(have["power_watts"] if "power_watts" in have else channel.watts(have["power_dbm"]))


def rate_elasticity(clients: ClientTable, question: Question) -> Floats:
    """Return (K,) by how many per cent a client's rate grows with a per cent more bandwidth.

    With R = B log2(1 + s) and s in inverse proportion to B it is (B / R) dR/dB = 1 - s / ((1 + s) ln(1 + s)), below 1;
    given rates grow in proportion: 1.
    """
    if "distance_meters" not in clients.numbers:
        return np.ones(len(clients.names))
    s = _gain(clients, question) * power_watts(clients) / (_or(question.bandwidth_hertz, 0.0) * _noise(question))
    return np.asarray(1 - s / ((1 + s) * np.log1p(s)))


def divergence_of(clients: ClientTable, question: Question) -> Floats | None:
    """Return (K,) nats between each client's labels and those of all together; None where nothing tells."""
    if clients.labels is None:
        return clients.numbers.get("divergence")
    # Rounded, so that the order of summation does not decide who stands exactly at the threshold.
    return label_divergences(clients.labels, smoothing=_or(question.smoothing, SMOOTHING)).round(12)


def _upload_seconds(clients: ClientTable, question: Question, band: float) -> Floats:
    have = clients.numbers
    if "upload_seconds" in have:
        return have["upload_seconds"] / band
    if "bits_per_second" in have:
        return question.bits / (have["bits_per_second"] * band)
    hertz = band * _or(question.bandwidth_hertz, 0.0)
    rate = channel.bits_per_second(hertz, _noise(question), _gain(clients, question), power_watts(clients))
    for k in np.flatnonzero(rate <= 0)[:1]:
        clients.refuse(int(k), "distance_meters leaves no signal: its rate is 0.")
    return np.asarray(question.bits / rate)


def _gain(clients: ClientTable, question: Question) -> Floats:
    have = clients.numbers
    carrier, exponent = _or(question.carrier_hertz, CARRIER_HERTZ), _or(question.path_loss, PATH_LOSS)
    return np.asarray(channel.path_gain(have["distance_meters"], carrier, exponent) * have.get("fading_gain", 1.0))


def _noise(question: Question) -> float:
    return float(channel.watts(_or(question.noise_dbm, NOISE_DBM)))


def _cycles(clients: ClientTable, question: Question) -> Floats:
    have = clients.numbers
    if "cycles" in have:
        return have["cycles"]
    epochs, bits = _or(question.epochs, EPOCHS), _or(question.bits_per_example, 0.0)
    return np.asarray(cost.training_cycles(epochs, clients.num_examples, bits, have["cycles_per_bit"]))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


@dataclass(frozen=True, eq=False)
class Plan:
    """An answer, and what would change it; None where that cannot be, or was interrupted."""

    clients: ClientTable
    question: Question
    kept: Bools  # (K,) within max_divergence
    problem: AllocationProblem  # of those kept
    solution: Solution
    more_band: Solution | None  # with 10 % more bandwidth
    more_examples: Solution | None  # with 10 % more min_examples
    interrupted: bool = False

    @property
    def examples_asked(self) -> int:
        """min_examples of `more_examples`: 10 % more, rounded up."""
        return -(-11 * self.question.min_examples // 10)

    @property
    def band_price(self) -> float | None:
        """What a whole second band would save, at the margin, at the same rates: mu."""
        return self.solution.allocation.band_price

    @property
    def megahertz_price(self) -> float | None:
        """-dY/dB for B in MHz, at the margin.

        By the envelope theorem dY/dtau_k = mu b_k / tau_k, and tau_k = C / R_k, so that -dY/dB = (mu / B) sum_k b_k
        (B / R_k) dR_k/dB.
        """
        if self.band_price is None or self.question.bandwidth_hertz is None:
            return None
        allocation = self.solution.allocation
        elasticity = rate_elasticity(self.clients, self.question)[allocation.ids]
        return float(self.band_price * (allocation.share @ elasticity) / (self.question.bandwidth_hertz / 1e6))


def plan(clients: ClientTable, question: Question, progress: Callable[[str], None] = lambda line: None) -> Plan:
    """Choose clients, shares and frequencies, to a proven gap.

    The time limit is that of each of the three problems; `progress` is called with a sentence on what happens next.

    Raises:
        ConfigError: If the options do not fit the table.
        DataError: If a client cannot send at all.
        InfeasibleError: If the clients hold too few examples; the message says which thresholds would do.
    """
    columns = dict(clients.numbers) | ({} if clients.labels is None else {"label_0": None})
    question.fit(columns, str(clients.table.path))
    everybody = problem_of(clients, question)
    kept = _kept(clients, question)
    problem = everybody.only(kept)
    progress(f"{len(problem)} clients may take part; at most {question.time_limit_seconds:g} s ...")

    def solved(problem: AllocationProblem, min_examples: int) -> Solution:
        return solve(
            problem, min_examples, tolerance=question.tolerance, time_limit_seconds=question.time_limit_seconds
        )

    try:
        solution = solved(problem, question.min_examples)
    except KeyboardInterrupt:
        progress("Interrupted: the best that is found without a proof ...")
        solution = solve(problem, question.min_examples, certify=False)
        return Plan(clients, question, kept, problem, solution, None, None, interrupted=True)
    answer = Plan(clients, question, kept, problem, solution, None, None)
    try:
        progress("Again with 10 % more bandwidth ...")
        more = problem_of(clients, question, band=1.1).only(kept)
        answer = replace(answer, more_band=solved(more, question.min_examples))
        if int(problem.num_examples.sum()) >= answer.examples_asked:
            progress("Again with 10 % more examples ...")
            answer = replace(answer, more_examples=solved(problem, answer.examples_asked))
    except KeyboardInterrupt:
        answer = replace(answer, interrupted=True)
    return answer


def _kept(clients: ClientTable, question: Question) -> Bools:
    """Return (K,) who is within max_divergence; an error where they hold too little."""
    limit = math.inf if question.max_divergence is None else question.max_divergence
    divergence = divergence_of(clients, question) if question.max_divergence is not None else None
    if divergence is None:
        divergence = np.zeros(len(clients.names))
    found = nearest_thresholds(divergence, clients.num_examples, limit, question.min_examples)
    if not found.feasible:
        raise InfeasibleError(f"{clients.table.path}: {found.message()}")
    return np.asarray(divergence <= limit)
