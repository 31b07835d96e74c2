"""Fitting an adaptation rule to sums over participants.

```
query -> contribute (each participant) -> sum -> fold -> query ... -> None: fitted
```

With differential privacy of clients, the server clips the contributions to the only exchange and adds noise to sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ComponentError, DataError
from fedreach._util.streams import generator
from fedreach.federation.base import Adaptation, name_of
from fedreach.federation.types import NO_STATE, Outputs, State

MAX_EXCHANGES = 200
"""Largest number of exchanges, after which fitting fails."""
BYTES_PER_NUMBER = 8  # sums are of float64: an optimum is found by small differences


class HeldOut(NamedTuple):
    """Held-out data of one participant, for fitting an adaptation rule."""

    outputs: Outputs  # on its m held-out examples
    labels: Ints  # (m,)
    counts: Floats  # (c,) of its training labels, as they are released


class FittedRule(NamedTuple):
    """State of a rule, and the cost of fitting it so far."""

    state: State
    sent: tuple[int, ...]  # bytes that one participant sends, exchange by exchange
    bytes_down: int  # to one, all together, without the state, which each adapting client is sent
    seconds: float | None = None  # simulated, where there is a radio: of all exchanges, one after the other
    joules: float | None = None  # likewise, of all participants together
    left: Mapping[int, int] = MappingProxyType({})  # participant that was taken out -> exchange that it did not answer

    @property
    def exchanges(self) -> int:
        """Number of exchanges with the participants."""
        return len(self.sent)

    @property
    def bytes_up(self) -> int:
        """Bytes that one participant sends in all exchanges."""
        return sum(self.sent)


UNFITTED = FittedRule(NO_STATE, (), 0)
"""State of a rule before the first exchange."""


def plain_sum(parts: Sequence[Floats]) -> Floats:
    """Return the sum of one or more arrays of the same shape, summed in their order."""
    return sum(parts[1:], start=parts[0])


@dataclass(frozen=True)
class SumNoise:
    """Differential privacy of clients for the sums of one exchange.

    A participant with m held-out examples contributes k arrays a_1 ... a_k. The server computes, for each j,

        sum of x_j min(1, 1 / ||x_j||) over participants + z sqrt(k) N(0, I),   x_j = a_j / m

    so that a participant changes all sums together by at most sqrt(k), whatever its data.

    Args:
        multiplier: Noise multiplier z.
        seed: Seed of the noise: of the run, or the secret of a server.

    Example:
        >>> noise = SumNoise(multiplier=1e-9, seed=0)  # next to no noise
        >>> noise.sums([{"held_out": np.array([4.0, 0.0])}, {"held_out": np.array([0.0, 90.0])}], [4, 9])["held_out"]
        array([1., 1.])
    """

    multiplier: float
    seed: int

    def sums(self, answers: Sequence[State], examples: Sequence[int]) -> State:
        """Return the noisy sums by name, given the contributions of participants and their numbers of examples."""
        rng, sums = generator(self.seed, "adaptation"), dict[str, Floats]()
        deviation = self.multiplier * math.sqrt(len(answers[0]))
        for name, values in sorted(answers[0].items()):  # on Flower they arrive in another order
            total = deviation * rng.standard_normal(values.size)
            for answer, m in zip(answers, examples, strict=True):
                x = np.clip(answer[name].ravel() / m, -1, 1)  # so that no square overflows
                total += x / max(1.0, math.sqrt(float(x @ x)))
            sums[name] = total.reshape(values.shape)
        return sums


def fit(
    rule: Adaptation,
    participants: Iterable[HeldOut],
    summed: Callable[[Sequence[Floats]], Floats] = plain_sum,
    noise: SumNoise | None = None,
) -> FittedRule:
    """Return a fitted adaptation rule.

    Args:
        rule: Rule to fit.
        participants: At least one participant, sorted by id; the order determines the order of sums.
        summed: Function that sums arrays of one shape, such as secure aggregation.
        noise: Noise of the sums; the rule must then be fitted in one exchange. Default: exact sums.

    Raises:
        DataError: If no participant holds out examples.
        ComponentError: If a contribution contains values that are not finite numbers, or if the exchanges do not end.

    Example:
        >>> from fedreach.federation.adaptation.base import Unadapted
        >>> fit(Unadapted(), []).exchanges
        0
    """
    held_out, fitted = list(participants), UNFITTED
    while (query := next_query(rule, fitted, most_exchanges(noise))) is not None:
        if not held_out:
            raise no_held_out_error(rule)
        answers = [check_contribution(rule, rule.contribute(query, *participant)) for participant in held_out]
        shapes = {name: values.shape for name, values in answers[0].items()}
        if any({name: values.shape for name, values in answer.items()} != shapes for answer in answers):
            raise ComponentError(
                f"{name_of(rule)}.contribute must return the same names and shapes for every participant."
            )
        if noise is None:
            sums: State = {name: summed([answer[name] for answer in answers]) for name in shapes}
        else:
            sums = noise.sums(answers, [len(participant.labels) for participant in held_out])
        fitted = after_exchange(rule, fitted, query, sums)
    return fitted


def no_held_out_error(rule: Adaptation) -> DataError:
    """Return the error for a rule that cannot be fitted, because no participant holds out examples."""
    return DataError(
        f"{name_of(rule)} is fitted to held-out examples of participants; got none. Let more clients with at least two "
        "examples participate, or set adaptation = 'none'."
    )


def most_exchanges(noise: SumNoise | None) -> int:
    """Return the largest number of exchanges; the accounting of differential privacy covers one."""
    return MAX_EXCHANGES if noise is None else 1


def next_query(rule: Adaptation, fitted: FittedRule, limit: int = MAX_EXCHANGES) -> State | None:
    """Return the query of the next exchange; None once the rule is fitted.

    Raises:
        ComponentError: If there would be more than `limit` exchanges.
    """
    query = rule.query(fitted.state)
    if query is not None and fitted.exchanges == limit:
        raise ComponentError(f"{name_of(rule)} needs more than {limit} exchange(s) with the participants to be fitted.")
    return query


def after_exchange(rule: Adaptation, fitted: FittedRule, query: State, sums: State) -> FittedRule:
    """Return the state of a rule after an exchange, given the query and the sums of the answers."""
    sent, down = (*fitted.sent, _bytes(sums)), fitted.bytes_down + _bytes(query)
    return FittedRule(rule.fold(fitted.state, sums), sent, down)


def check_contribution(rule: Adaptation, answer: State) -> State:
    """Return the contribution of a participant, or reject a contribution that cannot be summed."""
    for name, values in answer.items():
        if not isinstance(values, np.ndarray) or values.dtype != np.float64 or not np.isfinite(values).all():
            raise ComponentError(
                f"{name_of(rule)}.contribute must return finite float64 arrays; {name!r} is not a finite float64 array."
            )
    return answer


def _bytes(arrays: State) -> int:
    return sum(BYTES_PER_NUMBER * values.size for values in arrays.values())
