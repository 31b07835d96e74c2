"""The local loop that all solvers share, as numbers: steps, batches, rate, momentum, decay, clipping."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import ConfigError, PartError, require
from fedreach.federation.adam import Adam
from fedreach.federation.torch_steps import TorchSteps
from fedreach.federation.uneven_steps import UnevenSteps

Schedule = Literal["constant", "exponential", "cosine", "step", "warmup"]
DECAYING = ("exponential", "cosine", "step")
OVER_ROUNDS = ("step", "warmup")


@dataclass(frozen=True)
class LocalSGD:
    """Stochastic gradient descent at a client, started anew in every round.

    With the solver's corrected gradient g, one step is::

        g <- g * min(1, clip_norm / ||g||)        (where clip_norm is given)
        g <- g + weight_decay * w
        v <- momentum * v + g                     (v = 0 at the start of the round)
        w <- w - rate * v

    Args:
        rate: Step size of round 1, positive.
        batch_size: B, examples a step; of a client with fewer, all m of them. It and the next two are at most 10^9.
        epochs: Passes over the client's training examples; used where `steps` is None.
        steps: Exact number of steps for every client, whatever its size; or `UnevenSteps`, under which each has its
            own; or None.
        drop_last: Whether an epoch leaves out m mod B examples, those left after its full batches; others each time. If
            not, they are a last, smaller batch. A client with fewer than B examples keeps its one batch. A weight
            counts all of a client's examples.
        momentum: In [0, 1).
        weight_decay: L2 penalty, not negative.
        clip_norm: Largest Euclidean norm of the corrected gradient, or None.
        schedule: How the rate changes over rounds: ``constant``; ``exponential``, rate * decay^(round - 1);
            ``cosine``, from rate down to rate * decay at the last round; ``step``, rate * decay^floor((round - 1) / n)
            with n = `schedule_rounds`; ``warmup``, rate * min(1, round / n). Or a function round -> factor of the rate.
        decay: See `schedule`; in (0, 1].
        schedule_rounds: See `schedule`; of ``step`` and ``warmup``.
        optimizer: `Adam` or `AdamW`, which then take the step in place of the last three lines; None: plain steps.
            Solvers with a memory are refused beside them, and the engines `chain` and `native` do not know them. Or
            `TorchSteps`, any optimizer of PyTorch, in the engine `sequential`; `weight_decay` is among its options.

    Raises:
        ConfigError: If a value is outside its range.

    Example:
        >>> LocalSGD(rate=0.1, schedule="exponential", decay=0.5).rate_at(3, rounds=10)
        0.025
    """

    rate: float = 0.1
    batch_size: int = 32
    epochs: int = 1
    steps: int | UnevenSteps | None = None
    drop_last: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: Schedule | Callable[[int], float] = "constant"
    decay: float = 1.0
    schedule_rounds: int | None = None
    optimizer: Adam | TorchSteps | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.steps, UnevenSteps):
            require(self, steps="[1, 1e9]")
        require(
            self,
            rate="(0, inf)",
            batch_size="[1, 1e9]",
            epochs="[1, 1e9]",
            momentum="[0, 1)",
            weight_decay="[0, inf)",
            clip_norm="(0, inf]",
            decay="(0, 1]",
            schedule_rounds="[1, 1e9]",
        )
        if not callable(self.schedule):
            require(self, schedule=get_args(Schedule))
        if isinstance(self.optimizer, TorchSteps) and (self.momentum or self.weight_decay):
            raise ConfigError(
                f"LocalSGD.momentum and LocalSGD.weight_decay must be 0 under torch.optim.{self.optimizer.optimizer}; "
                f"got {self.momentum} and {self.weight_decay}. Say them among the optimizer's options, where it has "
                "them."
            )
        if self.optimizer is not None and self.momentum:
            raise ConfigError(
                f"LocalSGD.momentum must be 0 under {type(self.optimizer).__name__}, which has beta1 instead; got "
                f"{self.momentum}."
            )
        self._check_schedule()

    def _check_schedule(self) -> None:
        named = "of a function" if callable(self.schedule) else repr(self.schedule)
        if (self.schedule in OVER_ROUNDS) != (self.schedule_rounds is not None):
            rule = "be given for the schedules 'step' and 'warmup', and for no other"
            raise ConfigError(
                f"LocalSGD.schedule_rounds must {rule}; got {self.schedule_rounds} with the schedule {named}."
            )
        if (self.schedule == "warmup" or callable(self.schedule)) and self.decay != 1:
            raise ConfigError(
                f"LocalSGD.decay must be 1 with the schedule {named}, which does not use it; got {self.decay}. Leave "
                "it out."
            )
        if self.schedule in DECAYING and self.decay == 1:
            raise ConfigError(
                f"LocalSGD.decay must be below 1 for the schedule {self.schedule!r}; got 1, which changes no rate. "
                "Set it, such as 0.99 for 'exponential' or 0.01 for 'cosine'."
            )

    def examples_per_epoch(self, sizes: Ints) -> Ints:
        """Return how many of so many examples a client goes through in an epoch.

        Example:
            >>> LocalSGD(batch_size=4, drop_last=True).examples_per_epoch(np.array([3, 8, 11]))
            array([3, 8, 8])
        """
        return sizes - sizes % self._batches(sizes) if self.drop_last else sizes

    def steps_per_epoch(self, sizes: Ints) -> Ints:
        """Return how many batches these are.

        Example:
            >>> LocalSGD(batch_size=4).steps_per_epoch(np.array([3, 8, 11]))
            array([1, 2, 3])
        """
        return -(-self.examples_per_epoch(sizes) // self._batches(sizes))

    def steps_of(self, sizes: Ints, ids: Ints, seed: int, round_: int) -> Ints:
        """Return the local steps of clients with so many examples in a round.

        Args:
            sizes: (k,) examples.
            ids: (k,) the clients.
            seed: Of the run.
            round_: The round.

        Example:
            >>> LocalSGD(batch_size=4, epochs=2).steps_of(np.array([3, 8, 11]), np.arange(3), seed=0, round_=1)
            array([2, 4, 6])
        """
        if self.steps is None:
            return self.steps_per_epoch(sizes) * self.epochs
        if isinstance(self.steps, UnevenSteps):
            return self.steps.of(ids, seed, round_)
        return np.full(len(ids), self.steps)

    def expected_steps(self, sizes: Ints) -> Floats:
        """Return what `steps_of` is on average, to plan work by; the round and who the clients are do not count.

        Example:
            >>> LocalSGD(steps=UnevenSteps(2, 5)).expected_steps(np.array([3, 8]))
            array([3.5, 3.5])
        """
        if self.steps is None:
            return (self.steps_per_epoch(sizes) * self.epochs).astype(np.float64)
        return np.full(len(sizes), self.steps.mean if isinstance(self.steps, UnevenSteps) else float(self.steps))

    def _batches(self, sizes: Ints) -> Ints:
        """Return how large they are; 1 where there is no example."""
        return np.minimum(self.batch_size, np.maximum(sizes, 1))

    def rate_at(self, round_: int, rounds: int) -> float:
        """Return the step size of a round (1, 2, ..., rounds).

        Raises:
            PartError: If the schedule is a function that returns no positive number.
        """
        if callable(self.schedule):
            return self.rate * _factor(self.schedule, round_)
        if self.schedule == "step" and self.schedule_rounds is not None:
            return self.rate * self.decay ** ((round_ - 1) // self.schedule_rounds)
        if self.schedule == "warmup" and self.schedule_rounds is not None:
            return self.rate * min(1.0, round_ / self.schedule_rounds)
        if self.schedule == "exponential":
            return self.rate * self.decay ** (round_ - 1)
        if self.schedule == "cosine":
            share = (round_ - 1) / max(1, rounds - 1)
            return self.rate * (self.decay + (1 - self.decay) * (1 + math.cos(math.pi * share)) / 2)
        return self.rate

    def furthest(self, steps: int, rate: float, size: float) -> float:
        """Return what the norm of a client's update can be at most, in the numbers that are trained.

        rate clip_norm times what momentum makes of the steps, as each gradient is clipped; infinite without
        `clip_norm`, under an `optimizer`, and with weight decay, which moves the further the larger the model is.
        Allowed for is the rounding of each step to single precision, for a model of norm `size`.

        Example:
            >>> local = LocalSGD(clip_norm=2.0)
            >>> round(local.furthest(5, rate=0.1, size=1.0), 2), LocalSGD().furthest(5, rate=0.1, size=1.0)
            (1.0, inf)
        """
        if self.clip_norm is None or self.weight_decay or self.optimizer is not None:
            return math.inf
        bound = rate * self.clip_norm * float(self.moved_steps(np.array([steps]))[0])
        return bound * (1 + 1e-3) + steps * 2.0**-23 * (size + bound)

    @property
    def moments(self) -> int:
        """How many vectors of the model's length FedReach's own steps keep from one to the next in a round."""
        return 2 if isinstance(self.optimizer, Adam) else int(self.momentum > 0)

    def moved_steps(self, steps: Ints) -> Floats:
        """Return (k,) how many plain steps of its mean gradient a client's local training amounts to.

        Without momentum these are the `steps`, of which momentum makes sum_(j=1..K) (1 - momentum^j) / (1 - momentum).

        Example:
            >>> LocalSGD(momentum=0.5).moved_steps(np.array([1, 2]))
            array([1. , 2.5])
        """
        if self.momentum == 0:
            return steps.astype(np.float64)
        beta, k = self.momentum, steps.astype(np.float64)
        return (k - beta * (1 - beta**k) / (1 - beta)) / (1 - beta)


def _factor(schedule: Callable[[int], float], round_: int) -> float:
    found: Any = schedule(round_)
    try:
        factor = float(found)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0 < factor < math.inf:
        name = getattr(schedule, "__name__", "schedule")
        raise PartError(
            f"{name} must return a positive number, the factor of the rate; got {found!r} in round {round_}."
        )
    return factor
