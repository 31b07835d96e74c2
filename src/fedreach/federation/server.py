"""Server optimizers, which apply the aggregated update to the global model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.federation.base import ServerOperations, ServerOptimizer, name_of
from fedreach.federation.local_sgd import check_optimizer, with_tuples
from fedreach.federation.types import NO_STATE, State

if TYPE_CHECKING:
    import torch


# -------------------- Weighted mean, with rate and momentum


@dataclass(frozen=True)
class Average(ServerOptimizer):
    """Averaging: adds the weighted mean update u to the model.

    v <- momentum * v + u;  x <- x + lr * v.  With learning rate 1 and momentum 0 the new model is the weighted mean of
    the local models, as in FedAvg. With momentum, `Average` equals `FedAvgM`.

    Use when: you need a baseline.

    Args:
        lr: Server learning rate, positive.
        momentum: Factor of the previous step, in [0, 1).

    Reference: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (arXiv 1909.06335), section 4.3.

    Example:
        >>> Average(lr=0.5).apply(np.zeros(2, np.float32), {}, np.array([1.0, 2.0]))[0]
        array([0.5, 1. ], dtype=float32)
    """

    lr: Annotated[float, "(0, inf)"] = 1.0
    momentum: Annotated[float, "[0, 1)"] = 0.0

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and the velocity."""
        velocity = mean_update
        if self.momentum > 0:
            velocity = mean_update + self.momentum * state.get("velocity", 0.0)
            state = {"velocity": velocity}
        return (params + self.lr * velocity).astype(np.float32), state


# -------------------- FedAvgM


@dataclass(frozen=True)
class FedAvgM(Average):
    """FedAvgM (Hsu et al., 2019): averaging with momentum at the server.

    v <- momentum * v + u;  x <- x + lr * v.  This is `Average` with the paper's momentum; momentum 0 is FedAvg. A
    constant u changes the model by up to u / (1 - momentum) per round, which is 10 u for momentum 0.9. If the loss
    oscillates, reduce `local.lr` or `lr`.

    Use when: labels differ much between clients and cohorts are small, so that mean updates vary between rounds.

    Args:
        lr: Server learning rate, positive.
        momentum: Momentum beta, in [0, 1).

    Raises:
        ConfigError: If a value is out of range.

    Reference: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (arXiv 1909.06335), section 4.3.

    Example:
        >>> import numpy as np
        >>> step, u = FedAvgM(momentum=0.5), np.array([1.0, 2.0])
        >>> x, state = step.apply(np.zeros(2, np.float32), {}, u)
        >>> step.apply(x, state, u)[0]  # u, then 1.5 u
        array([2.5, 5. ], dtype=float32)
    """

    momentum: float = 0.9


# -------------------- FedAdam and FedYogi


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """Base class of adaptive server optimizers; implement `second_moment`."""

    lr: Annotated[float, "(0, inf)"] = 0.01
    beta1: Annotated[float, "[0, 1)"] = 0.9
    beta2: Annotated[float, "[0, 1)"] = 0.99
    tau: Annotated[float, "(0, inf)"] = 1e-3

    @abstractmethod
    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return the new (d,) v, given the old v and the squared update."""

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters, and the new state with m and v, each (d,)."""
        m: Floats = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * mean_update
        v = self.second_moment(state.get("v", np.full(len(params), self.tau**2)), mean_update**2)
        return (params + self.lr * m / (np.sqrt(v) + self.tau)).astype(np.float32), {"m": m, "v": v}


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAdam (Reddi et al., 2021): Adam at the server.

    With the weighted mean update u, for each of the d parameters, starting from m = 0 and v = tau^2::

        m <- beta1 * m + (1 - beta1) * u
        v <- beta2 * v + (1 - beta2) * u^2
        x <- x + lr * m / (sqrt(v) + tau)

    A step changes each parameter by about `lr`, regardless of the size of the updates. As in the paper, m and v are not
    corrected for bias. For an Adam with bias correction, use ``torch_optim``.

    Use when: updates of different parameters differ much in size, as in embeddings and text models.

    Args:
        lr: Server learning rate, positive. The paper tunes `lr` for each data set. The other defaults are the paper's.
        beta1: Decay of m, in [0, 1).
        beta2: Decay of v, in [0, 1).
        tau: Degree of adaptivity, positive. Parameters with updates far below tau hardly change.

    Raises:
        ConfigError: If a value is out of range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with v_{-1} =
    tau^2, the smallest allowed value.

    Example:
        >>> import numpy as np
        >>> step = FedAdam(lr=0.5, beta1=0.0, beta2=0.0, tau=1e-9)     # forgets all but the sign
        >>> step.apply(np.zeros(3, np.float32), {}, np.array([7.0, -0.1, 0.0]))[0]
        array([ 0.5, -0.5,  0. ], dtype=float32)
    """

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """FedYogi (Reddi et al., 2021): Adam at the server with a second moment that decreases slowly.

    v changes by (1 - beta2) u^2 towards u^2, regardless of the difference::

        v <- v - (1 - beta2) * u^2 * sign(v - u^2)

    So a few rounds with small updates cannot reduce a large v to a small value, as in Adam. `FedAdam` explains the
    other options.

    Use when: the reasons for `adam` apply, but its steps grow too fast and training is unstable.

    Args:
        beta2: Parameter of the change (1 - beta2) u^2 of v, in [0, 1).

    Raises:
        ConfigError: If a value is out of range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with v_{-1} =
    tau^2.

    Example:
        >>> step, u = FedYogi(beta2=0.9, tau=1.0), np.array([0.5, 2.0])
        >>> step.apply(np.zeros(2, np.float32), {}, u)[1]["v"]     # 1 - 0.1 * 0.25 and 1 + 0.1 * 4
        array([0.975, 1.4  ])
    """

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        return v - (1 - self.beta2) * square * np.sign(v - square)


# -------------------- Optimizers of PyTorch


@dataclass(frozen=True)
class TorchOptimizer(ServerOptimizer):
    """PyTorch optimizer at the server, with the negative weighted mean update as its gradient.

    SGD with learning rate 1 equals `Average`. The optimizer computes in float64 on one thread. This component stores
    the optimizer's state, so a resumed run has the same results, bit for bit.

    Use when: you want to try another optimizer of PyTorch at the server.

    Args:
        optimizer: Name of a class of `torch.optim`, such as ``"Adam"``. Its steps must need only dense gradients, which
            excludes L-BFGS and SparseAdam.
        lr: Learning rate of the optimizer, positive.
        options: Other options, such as ``{"betas": [0.9, 0.99]}``. None: torch's defaults.

    Raises:
        ConfigError: If torch does not have the optimizer, or if it does not work at the server or with these options.

    Reference: "FedOpt" of Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 1.

    Example:
        >>> step = TorchOptimizer("SGD", lr=1.0)
        >>> step.apply(np.zeros(2, np.float32), {}, np.array([1.0, 2.0]))[0]
        array([1., 2.], dtype=float32)
    """

    optimizer: str = "Adam"
    lr: Annotated[float, "(0, inf)"] = 0.01
    options: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()

        def step_twice() -> None:  # as the second step is the first to read a state
            params, state = self.apply(np.zeros(2, np.float32), NO_STATE, np.array([1.0, -2.0]))
            self.apply(params, state, np.array([1.0, -2.0]))

        check_optimizer("TorchOptimizer", self.optimizer, self.options, "the option `lr`", step_twice)

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and the optimizer's state with torch's names."""
        import torch

        with _one_thread():
            vector = torch.tensor(params, dtype=torch.float64, requires_grad=True)
            vector.grad = torch.tensor(-mean_update, dtype=torch.float64)
            optimizer: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)(
                [vector], lr=self.lr, **with_tuples(self.options)
            )
            # What is kept between steps is a public attribute; `load_state_dict` would also cast it.
            optimizer.state[vector].update({key: torch.tensor(value) for key, value in state.items()})
            optimizer.step()
        return vector.detach().numpy().astype(np.float32), _arrays(optimizer.state[vector])


def _arrays(tensors: Mapping[str, Any]) -> State:
    """Return the tensors of an optimizer's state as arrays, without entries that are None."""
    return {key: value.detach().numpy() for key, value in tensors.items() if value is not None}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread, because several threads can change the last bits of the result."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -------------------- Base of servers that learn from their own data


def batches(
    rng: np.random.Generator, index: Ints, batch_size: int, steps: int | None = None, epochs: int = 1
) -> Iterator[Ints]:
    """Yield the sorted examples of each step in a round.

    Args:
        rng: Random generator of the round.
        index: (s,) examples to draw from.
        batch_size: Number of examples in a step; all s examples if s is smaller.
        steps: Number of steps. Each step draws from all s examples without replacement. None: the number of steps in
            `epochs`.
        epochs: Number of passes over all s examples in random order. The last batch of a pass may be smaller.

    Example:
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> [len(batch) for batch in batches(rng, np.arange(7), 3, epochs=2)]
        [3, 3, 1, 3, 3, 1]
        >>> [len(batch) for batch in batches(rng, np.arange(7), 9, steps=2)]
        [7, 7]
    """
    if steps is not None:
        for _ in range(steps):
            yield np.sort(rng.choice(index, size=min(batch_size, len(index)), replace=False))
        return
    for _ in range(epochs):
        order = rng.permutation(index)
        for begin in range(0, len(order), batch_size):
            yield np.sort(order[begin : begin + batch_size])


PLAIN = Average()


class WithInner(ServerOptimizer):
    """Base class of servers that train on their own data in addition to the optimizer `inner` of clients' rounds."""

    inner: ServerOptimizer

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.trains_server or self.inner.tunes_server:
            raise ConfigError(
                f"{type(self).__name__}.inner must be a server optimizer that does not train on server data; got "
                f"{name_of(self.inner)}. Use another server optimizer, such as 'average'."
            )

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return self.inner.apply(params, state, mean_update)


# -------------------- FedDF


@dataclass(frozen=True)
class FedDF(WithInner):
    """FedDF (Lin et al., 2020): ensemble distillation on the server's unlabeled inputs.

    Clients train in every round, and `inner` applies their update. Then the server repeats this step `steps` times::

        x <- x - lr * gradient at x, over a batch, of KL(softmax(1/r sum_k f(x_k)) || softmax(f(x)))

    Here f are the logits, and x_k are the local models of the r clients that replied, with equal weights (AVGLOGITS,
    temperature 1). With one model per cluster, each model learns from the clients of its cluster. If all x_k equal x,
    the model does not change. With equal aggregation weights, a model that is linear in its parameters does not change
    either.

    FedDF reads updates of single clients, so secure aggregation does not support it. The server evaluates each local
    model once on the inputs. A comparison with `FineTune` shows the value of labels at the server. The paper replaces
    the plain gradient step of eq. 1 by Adam with a cosine schedule from 1e-3 and early stopping on labels. Dropout and
    BatchNorm are in evaluation mode in FedReach, but in training mode in the authors' code.

    Use when: the server has unlabeled inputs similar to the clients' inputs, and local models differ so much that their
    mean is worse than their ensemble. Labels in `server_data` may be arbitrary, such as 0.

    Args:
        inner: Server optimizer that runs before the distillation.
        lr: Learning rate of the distillation, positive.
        batch_size: Number of inputs per step, at least 1 and at most the server's number of inputs. Each step draws a
            new batch. The paper uses 128.
        steps: Number of steps, at least 0. With 0 steps the results equal those of `inner`, bit for bit. The paper uses
            10,000.

    Raises:
        ConfigError: If a value is out of range, or `inner` trains on the server's data itself.

    Reference: Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning" (NeurIPS
    2020, arXiv 2006.07242), Algorithm 1 and eq. 1.

    Example:
        >>> FedDF(steps=5).tunes(1, 10), FedDF(steps=0).tunes(1, 10)
        (True, False)
    """

    reads_updates = True
    needs_classes = True  # a softmax of what is predicted

    inner: ServerOptimizer = PLAIN
    lr: Annotated[float, "(0, inf)"] = 0.1
    batch_size: Annotated[int, "[1, inf)"] = 64
    steps: Annotated[int, "[0, 1e9]"] = 20

    def tunes(self, round_: int, rounds: int) -> bool:
        return self.steps > 0

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        drawn = list(batches(data.rng, np.arange(data.examples), self.batch_size, self.steps))
        inputs = np.unique(np.concatenate(drawn))
        logits, clients = np.zeros(()), 0
        for local in data.local_models():
            logits, clients = logits + data.logits(local, inputs), clients + 1  # in float64
        if clients == 0:
            return params, state
        teacher = (logits / clients).astype(np.float32)
        for batch in drawn:
            params = data.distill(params, batch, teacher[np.searchsorted(inputs, batch)], self.lr)
        return params, state


# -------------------- Fine-tuning after the clients


@dataclass(frozen=True)
class FineTune(WithInner):
    """Fine-tuning of the aggregated model on the server's data by stochastic gradient descent.

    Clients train in every round, and `inner` applies their update. Then the server repeats this step for `epochs` or
    exactly `steps` times::

        x <- x - lr * gradient of the mean loss at x over a batch of the server's examples

    The server tunes after each round, so that clients start from the tuned model, or once at the end. Tuning sends no
    bytes. As a control experiment for `Safari`, it uses the server's data in addition to all clients' rounds.

    Use when: the server has labeled data and may use them in every round.

    Args:
        inner: Server optimizer for the mean update.
        when: Time of tuning, ``"each_round"`` or ``"end"``. Do not combine ``"end"`` with early stopping by
            `evaluation.patience`.
        lr: Learning rate, positive.
        batch_size: Number of examples per step, at least 1 and at most the server's number of examples. Each step draws
            a new batch.
        steps: Number of steps, at least 0. With 0 steps the results equal those of `inner`, bit for bit. None: the
            number of steps in `epochs`.
        epochs: Number of passes over the server's data, at least 1, if `steps` is None. The last batch of a pass may be
            smaller.

    Raises:
        ConfigError: If a value is out of range, or `inner` trains on the server's data itself.

    Reference: A control experiment for Algorithm 1 of arXiv 2405.02745, which combines both kinds of rounds in one.

    Example:
        >>> [FineTune(when="end").tunes(number, 3) for number in (1, 2, 3)]
        [False, False, True]
    """

    inner: ServerOptimizer = PLAIN
    when: Literal["each_round", "end"] = "each_round"
    lr: Annotated[float, "(0, inf)"] = 0.1
    batch_size: Annotated[int, "[1, inf)"] = 64
    steps: Annotated[int | None, "[0, 1e9]"] = None
    epochs: Annotated[int, "[1, 1e9]"] = 1

    def tunes(self, round_: int, rounds: int) -> bool:
        return self.steps != 0 and (self.when == "each_round" or round_ == rounds)

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        for batch in batches(data.rng, np.arange(data.examples), self.batch_size, self.steps, self.epochs):
            params = data.step(params, batch, self.lr)
        return params, state


# -------------------- Training on the server alone


@dataclass(frozen=True)
class ServerOnly(ServerOptimizer):
    """Training on the server's data alone by stochastic gradient descent, `steps` steps per round.

    This is a control experiment for all methods that use server data. No model is sent. With one step per round,
    `ServerOnly` equals `Safari` without clients' rounds.

    With `held_out` and `patience`, the server holds out the same share of its data in every round and trains on the
    remaining data. The result is the model of the round with the lowest mean held-out loss (cross-entropy, or squared
    error for numeric targets). Training stops after `patience` rounds without improvement. The server never uses the
    test set or clients' data. With few held-out examples, the loss often increases before it decreases. So choose
    `steps` times `patience` of a few hundred.

    Use when: you compare `safari` or `fine_tune` with the accuracy that the server's data achieve alone.

    Args:
        lr: Learning rate, positive.
        batch_size: Number of examples per step, at least 1 and at most the number to train on. Each step draws a new
            batch.
        steps: Number of steps per round, at least 1.
        held_out: Share of the server's data for early stopping, in (0, 1), at least one example. None: train on all
            data.
        patience: Number of rounds without a lower held-out loss after which training stops, at least 1. None: never
            stop.

    Raises:
        ConfigError: If a value is out of range, or if only one of `held_out` and `patience` is set. Also in round 1, if
            the server has too few examples for `held_out`.

    Reference: Algorithm 1 with q = 0 of arXiv 2405.02745, section 4. Early stopping is an extension.

    Example:
        >>> ServerOnly(held_out=0.2, patience=5).trains(np.random.Generator(np.random.Philox(0)))
        True
    """

    trains_alone = True

    lr: Annotated[float, "(0, inf)"] = 0.1
    batch_size: Annotated[int, "[1, inf)"] = 64
    steps: Annotated[int, "[1, 1e9]"] = 1
    held_out: Annotated[float | None, "(0, 1)"] = None
    patience: Annotated[int | None, "[1, inf)"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.held_out is None) != (self.patience is None):
            raise ConfigError(
                "ServerOnly.held_out and patience must be set together: the held-out share of the server's data, and "
                f"the number of rounds to wait for a lower loss on it; got {self.held_out} and {self.patience}. Set "
                "both or neither."
            )

    def trains(self, rng: np.random.Generator) -> bool:
        return True

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        """Return the model to distribute; with early stopping, the state stores the progress of training.

        The state contains the (d,) model `at` after the round, the lowest held-out `loss` so far, and the number of
        rounds `waited` since then.
        """
        if self.held_out is None or self.patience is None:
            return self._train(params, np.arange(data.examples), data), state
        if state and state["waited"][0] >= self.patience:
            return params, state
        train, held_out = data.split(self.held_out)
        lowest = state["loss"][0] if state else data.loss(params, held_out)
        waited = state["waited"][0] if state else 0
        at = self._train(state["at"] if state else params, train, data)
        loss = data.loss(at, held_out)
        if loss < lowest:
            params, lowest, waited = at, loss, -1
        return params, {"at": at, "loss": np.array([lowest]), "waited": np.array([waited + 1])}

    def _train(self, params: Float32s, index: Ints, data: ServerOperations) -> Float32s:
        for batch in batches(data.rng, index, self.batch_size, self.steps):
            params = data.step(params, batch, self.lr)
        return params

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return params, state


# -------------------- SAFARI


@dataclass(frozen=True)
class Safari(WithInner):
    """SAFARI: some rounds train on the server's data, which also represent unseen clients.

    Each round draws one number u uniformly from [0, 1). If u < `client_probability`, clients train and `inner` applies
    their update. Otherwise no client trains, and the server performs one step of stochastic gradient descent on its own
    data::

        x <- x - lr * gradient of the mean loss at x over `batch_size` of the server's examples

    The draw of u, the selection, clients' batches and the server's batches use separate random streams. So the results
    equal those of `inner` for probability 1, and those of `ServerOnly` for probability 0.

    The server needs data: ``[server_data]`` in an experiment file, or ``server_examples`` of
    `fedreach.data.federated.federate`. A server round sends no model, so compare methods at equal bytes as well as at
    equal rounds. Also compare with training on the server's data alone (`ServerOnly` with early stopping), and with
    training on these data after clients' rounds (`FineTune`, `FedDF`). The paper does not include these comparisons.

    Use when: the server has some labeled data, and many clients never train.

    Args:
        inner: Server optimizer for clients' rounds.
        client_probability: Probability q of a clients' round, in [0, 1]. The paper's bound on q needs unknown constants
            (`fedreach.federation.convergence.largest_share`), so try 0.5, 0.8 and 0.9.
        lr: Learning rate of the server, positive. Theorem 4 of the paper requires lr = K * client lr / 2 for K local
            steps. In practice you can choose any value.
        batch_size: Number of examples per server step, at least 1 and at most the server's number of examples.

    Raises:
        ConfigError: If a value is out of range, or `inner` trains on the server's data itself.

    Reference: "Understanding of Server-Assisted Federated Learning with Incomplete Client Participation" (arXiv
    2405.02745), Algorithm 1. Clients start at x_r (``x_t`` is a misprint) and perform K steps, not K + 1. The paper's
    mean over clients corresponds to ``weighting = "equal"``.

    Example:
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> sum(Safari(client_probability=0.8).trains(rng) for _ in range(1000)) / 1000
        0.2...
    """

    inner: ServerOptimizer = PLAIN
    client_probability: Annotated[float, "[0, 1]"] = 0.8
    lr: Annotated[float, "(0, inf)"] = 0.1
    batch_size: Annotated[int, "[1, inf)"] = 64

    def trains(self, rng: np.random.Generator) -> bool:
        return not rng.random() < self.client_probability

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        (batch,) = batches(data.rng, np.arange(data.examples), self.batch_size, steps=1)
        return data.step(params, batch, self.lr), state


# -------------------- Table of server steps

SERVERS: Mapping[str, Any] = {
    "average": Average,
    "fedavgm": FedAvgM,
    "adam": FedAdam,
    "yogi": FedYogi,
    "torch_optim": TorchOptimizer,
    "safari": Safari,
    "server_only": ServerOnly,
    "fine_tune": FineTune,
    "feddf": FedDF,
}
