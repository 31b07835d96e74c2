"""Solving what a planner asks, and again with 10 % more bandwidth and with 10 % more examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedreach.arrays import Bools
from fedreach.errors import InfeasibleError
from fedreach.experiments.planning.columns import Clients
from fedreach.experiments.planning.model import divergence_of, problem_of, rate_elasticity
from fedreach.experiments.planning.question import Question
from fedreach.wireless.allocation.problem import AllocationProblem, Solution
from fedreach.wireless.allocation.solving import solve
from fedreach.wireless.allocation.thresholds import nearest_thresholds

Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Plan:
    """An answer, and what would change it; None where that cannot be, or was interrupted."""

    clients: Clients
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


def plan(clients: Clients, question: Question, tell: Tell = lambda line: None) -> Plan:
    """Choose clients, shares and frequencies, to a proven gap.

    Args:
        clients: The table.
        question: The options; the time limit is that of each of the three problems.
        tell: Is told what happens.

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
    tell(f"{len(problem)} clients may take part; at most {question.time_limit_seconds:g} s ...")

    def solved(problem: AllocationProblem, min_examples: int) -> Solution:
        return solve(
            problem, min_examples, tolerance=question.tolerance, time_limit_seconds=question.time_limit_seconds
        )

    try:
        solution = solved(problem, question.min_examples)
    except KeyboardInterrupt:
        tell("Interrupted: the best that is found without a proof ...")
        solution = solve(problem, question.min_examples, certify=False)
        return Plan(clients, question, kept, problem, solution, None, None, interrupted=True)
    answer = Plan(clients, question, kept, problem, solution, None, None)
    try:
        tell("Again with 10 % more bandwidth ...")
        more = problem_of(clients, question, band=1.1).only(kept)
        answer = replace(answer, more_band=solved(more, question.min_examples))
        if int(problem.num_examples.sum()) >= answer.examples_asked:
            tell("Again with 10 % more examples ...")
            answer = replace(answer, more_examples=solved(problem, answer.examples_asked))
    except KeyboardInterrupt:
        answer = replace(answer, interrupted=True)
    return answer


def _kept(clients: Clients, question: Question) -> Bools:
    """Return (K,) who is within max_divergence; an error where they hold too little."""
    limit = math.inf if question.max_divergence is None else question.max_divergence
    divergence = divergence_of(clients, question) if question.max_divergence is not None else None
    if divergence is None:
        divergence = np.zeros(len(clients.names))
    found = nearest_thresholds(divergence, clients.num_examples, limit, question.min_examples)
    if not found.feasible:
        raise InfeasibleError(f"{clients.table.path}: {found.message()}")
    kept: Bools = divergence <= limit
    return kept
