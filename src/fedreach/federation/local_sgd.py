"""Local training: number of steps, learning rates and optimizers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.component import Options, option_rules
from fedreach._util.errors import ComponentError, ConfigError, nearest, require
from fedreach._util.streams import generator

if TYPE_CHECKING:
    import torch


# -------------------- Adam and AdamW at the clients


@dataclass(frozen=True)
class Adam(Options):
    """Adam (Kingma and Ba, 2015) as the local optimizer.

    With g the corrected and clipped gradient plus weight_decay * w, in the steps t = 1, 2, ... of a round, starting
    from m = v = 0::

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        w <- w - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    m and v restart from 0 in every round. They are neither sent nor stored. A step changes each parameter by about
    `lr`, regardless of the size of the gradient. So choose about a hundredth of a learning rate that suits plain steps,
    such as 0.001.

    Use when: plain steps train the model badly, as with embeddings or attention, and a round has many steps. If a round
    has few steps, use plain steps and Adam at the server (`server = "adam"`).

    Args:
        beta1: Decay of m, in [0, 1).
        beta2: Decay of v, in [0, 1).
        epsilon: Constant that keeps the denominator above 0, positive.

    Raises:
        ConfigError: If a value is out of range.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1.

    Example:
        >>> import numpy as np
        >>> g, w = np.array([3.0, -0.5]), np.zeros(2)
        >>> direction, moments = Adam().direction(g, w, (0.0, 0.0), step=1, weight_decay=0.0)
        >>> direction.round(6)  # in the first step, of length 1 each
        array([ 1., -1.])
    """

    beta1: Annotated[float, "[0, 1)"] = 0.9
    beta2: Annotated[float, "[0, 1)"] = 0.999
    epsilon: Annotated[float, "(0, inf)"] = 1e-8
    decoupled: ClassVar[bool] = False  # whether weights decay apart from the gradient

    def direction(
        self, gradient: Any, weights: Any, moments: Any, step: int, weight_decay: float
    ) -> tuple[Any, tuple[Any, Any]]:
        """Return the direction d of the step w <- w - lr * d, and the new m and v; arrays or tensors of one shape.

        Args:
            gradient: Corrected and clipped gradient.
            weights: Weights before the step.
            moments: m and v before the step.
            step: Number t of the step in this round, at least 1.
            weight_decay: Strength of the weight decay, not negative.
        """
        decay = weight_decay * weights if weight_decay else 0.0
        g = gradient if self.decoupled else gradient + decay
        m = self.beta1 * moments[0] + (1 - self.beta1) * g
        v = self.beta2 * moments[1] + (1 - self.beta2) * g * g
        scale = (v / (1 - self.beta2**step)) ** 0.5 + self.epsilon
        followed = m / (1 - self.beta1**step) / scale
        return (followed + decay if self.decoupled else followed), (m, v)


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, 2019): w <- w - lr * (Adam's step of the plain gradient + weight_decay * w).

    With weight_decay 0, AdamW equals `Adam`. In Adam, weight decay is part of the gradient, so its effect is small for
    weights with large gradients. In AdamW all weights decay equally.

    Use when: the reasons for `Adam` apply, and you use weight decay.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, Algorithm 2; as in torch, the
    decay is multiplied by the learning rate.

    Example:
        >>> import numpy as np
        >>> AdamW().direction(np.array([3.0]), np.array([10.0]), (0.0, 0.0), step=1, weight_decay=0.1)[0].round(6)
        array([2.])
    """

    decoupled: ClassVar[bool] = True


# -------------------- Optimizer classes of torch


def optimizer_class(part: str, name: str) -> Any:
    """Return a class of `torch.optim` whose steps need only gradients.

    Args:
        part: Name of the component, for error messages.
        name: Name of the class.

    Raises:
        ConfigError: If torch does not have the class, or if the optimizer evaluates the loss itself, as L-BFGS does.
    """
    import torch

    optimizers = {
        key: thing
        for key, thing in vars(torch.optim).items()
        if inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer) and thing is not torch.optim.Optimizer
    }
    if name not in optimizers:
        raise ConfigError(f"{part}.optimizer must be a class of torch.optim; got {name!r}." + nearest(name, optimizers))
    if inspect.signature(optimizers[name].step).parameters["closure"].default is inspect.Parameter.empty:
        raise ConfigError(
            f"{part}.optimizer must compute a step from a gradient alone; {name} evaluates the loss several times per "
            "step. Choose another optimizer, such as 'Adam'."
        )
    return optimizers[name]


def check_optimizer(
    part: str, name: str, options: Mapping[str, Any] | None, rate: str, step: Callable[[], object]
) -> None:
    """Reject an optimizer that torch does not have, or that fails with these options.

    Args:
        part: Name of the component, for error messages.
        name: Name of the class.
        options: Options other than the learning rate.
        rate: Name of the option that sets the learning rate.
        step: Function that performs steps with the optimizer.

    Raises:
        ConfigError: If a step fails.
    """
    optimizer_class(part, name)
    if "lr" in (options or {}):
        raise ConfigError(f"{part}.options must not contain 'lr'. Set {rate} instead.")
    try:
        step()
    except Exception as error:  # torch rejects options and gradients by errors of many types
        raise ConfigError(
            f"{part} cannot step with torch.optim.{name} and options {dict(options or {})}: {error}. Correct the "
            "options, or choose another optimizer."
        ) from error


def with_tuples(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options with tuples instead of the lists of an experiment file."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in (options or {}).items()}


# -------------------- Any optimizer of PyTorch at the clients


@dataclass(frozen=True)
class TorchSteps:
    """PyTorch optimizer for the local steps of clients.

    The optimizer uses the corrected and clipped gradient. Its ``lr`` is the learning rate of the round. Its state is
    reset in every round, and is neither sent nor stored. Only the engine `sequential` supports it.

    Use when: you want to try an optimizer of PyTorch that FedReach does not include, such as RMSprop, NAdam or
    Adafactor.

    Args:
        optimizer: Name of a class of `torch.optim` whose steps need only dense gradients, so not LBFGS or SparseAdam.
        options: Options other than ``lr``, such as ``{"alpha": 0.9}``. None: torch's defaults.

    Raises:
        ConfigError: If torch does not have the optimizer, or if it does not support local steps or these options.

    Example:
        >>> import torch
        >>> weights = torch.nn.Parameter(torch.zeros(2))
        >>> weights.grad = torch.tensor([3.0, -0.5])
        >>> TorchSteps("SGD").begun([weights], lr=0.1).step()
        >>> weights.detach()
        tensor([-0.3000,  0.0500])
    """

    optimizer: str
    options: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        import torch

        def step() -> None:
            weights = torch.nn.Parameter(torch.zeros(2, 2))
            weights.grad = torch.ones(2, 2)
            self.begun([weights], 0.01).step()

        check_optimizer("TorchSteps", self.optimizer, self.options, "local.lr", step)

    def begun(self, parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return a new optimizer for a round, for parameters that have gradients.

        Raises:
            ConfigError: If the optimizer does not support the shapes of the parameters.
        """
        cls = optimizer_class("TorchSteps", self.optimizer)
        try:
            optimizer: torch.optim.Optimizer = cls(list(parameters), lr=lr, **with_tuples(self.options))
        except ValueError as error:
            raise ConfigError(
                f"torch.optim.{self.optimizer} does not support this model or these options: {error}. Choose another "
                "optimizer."
            ) from error
        return optimizer


# -------------------- Uneven numbers of local steps


@dataclass(frozen=True)
class UnevenSteps(Options):
    """Uneven numbers of local steps, drawn uniformly from `min` to `max` for each client.

    The draw depends only on the seed of the run, the client and the round. So all methods of a comparison use the same
    numbers of steps. On a real network, a client and the server compute the same number.

    Use when: you compare methods on clients of different speeds, for example the weighting `fednova`.

    Args:
        min: Smallest number of steps, at least 1.
        max: Largest number of steps, from `min` to 10^9.
        drawn: Frequency of the draw. ``"client"``: once per client; ``"round"``: in each round.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> UnevenSteps(2, 20).of(np.array([0, 5, 7]), seed=0, round_=3)
        array([ 2, 16, 15])
    """

    min: Annotated[int, "[1, 1e9]"]
    max: Annotated[int, "[1, 1e9]"]
    drawn: Literal["client", "round"] = "round"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min > self.max:
            raise ConfigError(
                f"UnevenSteps.min must be at most `max`, which is {self.max}; got {self.min}. Swap the two values."
            )

    def of(self, ids: Ints, seed: int, round_: int) -> Ints:
        """Return the numbers of local steps of these clients in a round."""
        rng = generator(seed, "local-steps", round_ if self.drawn == "round" else 0)
        share = rng.random(int(ids.max(initial=-1)) + 1)[ids]  # of client i the i-th number, whatever the other ids
        return self.min + (share * (self.max - self.min + 1)).astype(np.int64)

    @property
    def mean(self) -> float:
        """Expected number of steps."""
        return (self.min + self.max) / 2


# -------------------- The local loop of all solvers

Schedule = Literal["constant", "exponential", "cosine", "step", "warmup"]
DECAYING = ("exponential", "cosine", "step")
OVER_ROUNDS = ("step", "warmup")


@dataclass(frozen=True)
class LocalSGD:
    """Stochastic gradient descent on a client, restarted in every round.

    With the solver's corrected gradient g, one step is::

        g <- g * min(1, clip_norm / ||g||)        (if clip_norm is set)
        g <- g + weight_decay * w
        v <- momentum * v + g                     (v = 0 at the start of the round)
        w <- w - lr * v

    Args:
        lr: Learning rate of round 1, positive.
        batch_size: Number of examples B per step, at most 10^9. A client with m < B examples uses all m.
        epochs: Number of passes over the client's training examples, at most 10^9, if `steps` is None.
        steps: Number of steps of every client, at most 10^9, or `UnevenSteps` for different numbers. None: use
            `epochs`.
        drop_last: Omit the incomplete last batch of each epoch. A client with fewer than B examples still trains on its
            only batch. Aggregation weights count all examples of a client.
        momentum: Share of the last step to add to the next one, in [0, 1).
        weight_decay: Multiple of the weights to add to the gradient (L2 penalty), at least 0.
        clip_norm: Largest Euclidean norm of the corrected gradient. None: no limit.
        schedule: Learning rate over the rounds. ``constant``; ``exponential``: lr * decay^(round - 1); ``cosine``: from
            lr down to lr * decay in the last round; ``step``: lr * decay^floor((round - 1) / n) with n =
            `schedule_rounds`; ``warmup``: lr * min(1, round / n); or a function that returns a factor for each round.
        decay: Decay factor of the schedule, in (0, 1].
        schedule_rounds: Number of rounds n of the schedules ``step`` and ``warmup``.
        optimizer: `Adam` or `AdamW`, which replace the last three lines above, or `TorchSteps` for any optimizer of
            PyTorch, whose own options include `weight_decay`. None: plain steps. Solvers that store a vector per client
            need plain steps. The engines `manual` and `native` support only plain steps.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> LocalSGD(lr=0.1, schedule="exponential", decay=0.5).lr_at(3, rounds=10)
        0.025
    """

    lr: Annotated[float, "(0, inf)"] = 0.1
    batch_size: Annotated[int, "[1, 1e9]"] = 32
    epochs: Annotated[int, "[1, 1e9]"] = 1
    steps: Annotated[int | UnevenSteps | None, "[1, 1e9]"] = None
    drop_last: bool = False
    momentum: Annotated[float, "[0, 1)"] = 0.0
    weight_decay: Annotated[float, "[0, inf)"] = 0.0
    clip_norm: Annotated[float | None, "(0, inf)"] = None
    schedule: Annotated[Schedule | Callable[[int], float], get_args(Schedule)] = "constant"
    decay: Annotated[float, "(0, 1]"] = 1.0
    schedule_rounds: Annotated[int | None, "[1, 1e9]"] = None
    optimizer: Adam | TorchSteps | None = None

    def __post_init__(self) -> None:
        free = {"steps"} if isinstance(self.steps, UnevenSteps) else set()
        free |= {"schedule"} if callable(self.schedule) else set()
        require(self, **{option: rule for option, rule in option_rules(LocalSGD).items() if option not in free})
        of_torch = isinstance(self.optimizer, TorchSteps)
        if self.optimizer is not None and (self.momentum or (of_torch and self.weight_decay)):
            options = "momentum and LocalSGD.weight_decay" if of_torch else "momentum"
            raise ConfigError(
                f"LocalSGD.{options} must be 0 under {type(self.optimizer).__name__}, which has its own options; got "
                f"{self.momentum} and {self.weight_decay}."
            )
        self._check_schedule()

    def _check_schedule(self) -> None:
        named = "of a function" if callable(self.schedule) else repr(self.schedule)
        if (self.schedule in OVER_ROUNDS) != (self.schedule_rounds is not None):
            rule = "be set for the schedules 'step' and 'warmup' only"
            raise ConfigError(
                f"LocalSGD.schedule_rounds must {rule}; got {self.schedule_rounds} with the schedule {named}."
            )
        fixed = self.schedule == "warmup" or callable(self.schedule)
        if (fixed and self.decay != 1) or (self.schedule in DECAYING and self.decay == 1):
            rule = "1" if fixed else "below 1, such as 0.99,"
            raise ConfigError(f"LocalSGD.decay must be {rule} with the schedule {named}; got {self.decay}.")

    def examples_per_epoch(self, sizes: Ints) -> Ints:
        """Return (k,) the number of examples that each client uses in an epoch, given (k,) numbers of examples.

        Example:
            >>> LocalSGD(batch_size=4, drop_last=True).examples_per_epoch(np.array([3, 8, 11]))
            array([3, 8, 8])
        """
        return sizes - sizes % self._batches(sizes) if self.drop_last else sizes

    def steps_per_epoch(self, sizes: Ints) -> Ints:
        """Return (k,) the number of batches in an epoch of each client.

        Example:
            >>> LocalSGD(batch_size=4).steps_per_epoch(np.array([3, 8, 11]))
            array([1, 2, 3])
        """
        return -(-self.examples_per_epoch(sizes) // self._batches(sizes))

    def steps_of(self, sizes: Ints, ids: Ints, seed: int, round_: int) -> Ints:
        """Return (k,) the number of local steps of each client in a round.

        Args:
            sizes: (k,) numbers of examples.
            ids: (k,) ids of the clients.
            seed: Seed of the run.
            round_: Number of the round.

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
        """Return the mean of `steps_of` over rounds and clients, for planning.

        Example:
            >>> LocalSGD(steps=UnevenSteps(2, 5)).expected_steps(np.array([3, 8]))
            array([3.5, 3.5])
        """
        if self.steps is None:
            return (self.steps_per_epoch(sizes) * self.epochs).astype(np.float64)
        return np.full(len(sizes), self.steps.mean if isinstance(self.steps, UnevenSteps) else float(self.steps))

    def _batches(self, sizes: Ints) -> Ints:
        """Return the batch sizes; 1 for clients without examples."""
        return np.minimum(self.batch_size, np.maximum(sizes, 1))

    def lr_at(self, round_: int, rounds: int) -> float:
        """Return the learning rate of a round (1, 2, ..., rounds).

        Raises:
            ComponentError: If the schedule is a function that does not return a positive number.
        """
        if callable(self.schedule):
            return self.lr * _factor(self.schedule, round_)
        if self.schedule == "step" and self.schedule_rounds is not None:
            return self.lr * self.decay ** ((round_ - 1) // self.schedule_rounds)
        if self.schedule == "warmup" and self.schedule_rounds is not None:
            return self.lr * min(1.0, round_ / self.schedule_rounds)
        if self.schedule == "exponential":
            return self.lr * self.decay ** (round_ - 1)
        if self.schedule == "cosine":
            share = (round_ - 1) / max(1, rounds - 1)
            return self.lr * (self.decay + (1 - self.decay) * (1 + math.cos(math.pi * share)) / 2)
        return self.lr

    def furthest(self, steps: int, lr: float, size: float) -> float:
        """Return the largest possible norm of a client's update of the trained parameters.

        Each gradient is clipped, so the norm is at most lr * clip_norm times the equivalent number of plain steps. The
        method adds the rounding error of each step in single precision for a model of norm `size`. The result is
        infinite without `clip_norm`, with an `optimizer`, and with weight decay.

        Example:
            >>> local = LocalSGD(clip_norm=2.0)
            >>> round(local.furthest(5, lr=0.1, size=1.0), 2), LocalSGD().furthest(5, lr=0.1, size=1.0)
            (1.0, inf)
        """
        if self.clip_norm is None or self.weight_decay or self.optimizer is not None:
            return math.inf
        bound = lr * self.clip_norm * float(self.moved_steps(np.array([steps]))[0])
        return bound * (1 + 1e-3) + steps * 2.0**-23 * (size + bound)

    @property
    def moments(self) -> int:
        """Number of vectors of the model's length that FedReach's own optimizers store within a round."""
        return 2 if isinstance(self.optimizer, Adam) else int(self.momentum > 0)

    def moved_steps(self, steps: Ints) -> Floats:
        """Return (k,) the number of plain steps with the mean gradient that is equivalent to each client's training.

        Without momentum, this number is `steps`. With momentum, it is sum_(j=1..K) (1 - momentum^j) / (1 - momentum).

        Example:
            >>> LocalSGD(momentum=0.5).moved_steps(np.array([1, 2]))
            array([1. , 2.5])
        """
        if self.momentum == 0:
            return steps.astype(np.float64)
        beta, k = self.momentum, steps.astype(np.float64)
        return (k - beta * (1 - beta**k) / (1 - beta)) / (1 - beta)


def _factor(schedule: Callable[[int], float], round_: int) -> float:
    factor: Any = schedule(round_)
    if not (isinstance(factor, Real) and 0 < float(factor) < math.inf):
        name = getattr(schedule, "__name__", "schedule")
        raise ComponentError(
            f"{name} must return a positive number, the factor of the rate; got {factor!r} in round {round_}."
        )
    return float(factor)
