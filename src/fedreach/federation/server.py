"""Server optimizers: the update of the global model from the aggregated update."""

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
    """Averaging: the model moves by the weighted mean update u.

    v <- momentum * v + u;  x <- x + lr * v.  With learning rate 1 and momentum 0 the new model is the weighted mean of
    the local models, as in FedAvg. With momentum it is `FedAvgM`.

    Use when: always, as the baseline.

    Args:
        lr: Server learning rate, positive.
        momentum: Momentum, in [0, 1).

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
    constant u moves the model by up to u / (1 - momentum) per round, ten times as far with 0.9. If the loss oscillates,
    reduce `local.lr` or `lr`.

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
        """Return the new (d,) v, given the old one and the square of the update."""

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters, and m and v, (d,) each."""
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

    Steps are about `lr` long, whatever the length of the updates. As in the paper, m and v have no bias correction;
    torch's Adam has one, see ``torch_optim``.

    Use when: parameters move by very different amounts, as in embeddings and text models.

    Args:
        lr: Server learning rate, positive. The paper tunes it per data set; the other defaults are the paper's.
        beta1: Decay of m, in [0, 1).
        beta2: Decay of v, in [0, 1).
        tau: Degree of adaptivity, positive. Parameters with updates far below tau hardly move.

    Raises:
        ConfigError: If a value is out of range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with v_{-1} =
    tau^2, the smallest value that it allows.

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
    """FedYogi (Reddi et al., 2021): Adam at the server with a second moment that falls slowly.

    v moves towards u^2 by (1 - beta2) u^2, whatever the distance::

        v <- v - (1 - beta2) * u^2 * sign(v - u^2)

    So small updates cannot make a large v small in a few rounds, as they do in Adam. The other options are those of
    `FedAdam`.

    Use when: like `adam`, if its steps grow too fast and training is unstable.

    Args:
        beta2: Limits the change of v to (1 - beta2) u^2; in [0, 1).

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

    SGD with learning rate 1 is `Average`. The optimizer computes in float64 on one thread. Its state is the state of
    this component, so a resumed run continues with the same bits.

    Use when: another optimizer of PyTorch should be tried at the server.

    Args:
        optimizer: Name of a class of `torch.optim`, such as ``"Adam"``. It must step from gradients alone; L-BFGS and
            SparseAdam do not.
        lr: Learning rate of the optimizer, positive.
        options: Other options, such as ``{"betas": [0.9, 0.99]}``. None: torch's defaults.

    Raises:
        ConfigError: If torch has no such optimizer, or it cannot be used here or with these options.

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
        """Return the new (d,) parameters and what the optimizer keeps, by torch's names."""
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
    """Compute on one thread: dividing a vector among threads can change the last bits."""
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
    """Yield the examples of each step of a round, increasing.

    Args:
        rng: Random generator of the round.
        index: (s,) examples to draw from.
        batch_size: Largest number of examples of a step; all s if there are fewer.
        steps: Number of steps, each drawn without replacement from all s. None: as many as `epochs` make.
        epochs: Number of passes over all s in random order. The last batch of a pass may be smaller.

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
    """Base class of servers that train on their own data in addition to a step `inner` after clients' rounds."""

    inner: ServerOptimizer

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.trains_server or self.inner.tunes_server:
            raise ConfigError(
                f"{type(self).__name__}.inner must be the step of the clients' rounds; got {name_of(self.inner)}, "
                "which trains on the server's data itself. Use one that does not, such as 'average'."
            )

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return self.inner.apply(params, state, mean_update)


# -------------------- FedDF


@dataclass(frozen=True)
class FedDF(WithInner):
    """FedDF (Lin et al., 2020): ensemble distillation on the server's unlabeled inputs.

    Clients train in every round, and `inner` takes the step. Then, `steps` times::

        x <- x - lr * gradient at x, over a batch, of KL(softmax(1/r sum_k f(x_k)) || softmax(f(x)))

    with the logits f and the local models x_k of the r clients whose replies count, with equal weights (AVGLOGITS,
    temperature 1). With one model per cluster, each model learns from the clients of its cluster. If all x_k equal x,
    the model stays. It also stays, with equal weights, if the model is linear in its parameters.

    It reads updates of single clients, so secure aggregation excludes it, and it evaluates each local model once on the
    inputs. Comparing it with `FineTune` shows the value of labels at the server. In the paper, Adam with a cosine
    schedule from 1e-3 and early stopping by labels replace the plain gradient step of eq. 1. Dropout and BatchNorm are
    in evaluation mode here, in training mode in the authors' code.

    Use when: the server holds unlabeled inputs like the clients', and local models differ so much that their mean is
    worse than their ensemble. Labels in `server_data` may be arbitrary, such as 0.

    Args:
        inner: Server optimizer whose result the distillation starts from.
        lr: Learning rate of the distillation, positive.
        batch_size: Number of inputs per step, at least 1, at most the server's number. Drawn again for each step. The
            paper uses 128.
        steps: Number of steps, at least 0; 0 is `inner` alone, bit for bit. The paper uses 10,000.

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

    Clients train in every round, and `inner` takes the step. Then, for `epochs` or exactly `steps` times::

        x <- x - lr * gradient of the mean loss at x over a batch of the server's examples

    This happens after each round, so that clients start from the tuned model, or once at the end. It sends no bytes. As
    the control experiment of `Safari`, it uses the server's data in addition to all clients' rounds.

    Use when: the server holds labeled data, and every round may use them.

    Args:
        inner: Server optimizer for the mean update.
        when: Time of tuning, ``"each_round"`` or ``"end"``. Runs that `evaluation.patience` may stop early reject
            ``"end"``.
        lr: Learning rate, positive.
        batch_size: Number of examples per step, at least 1, at most the server's number. Drawn again for each step.
        steps: Number of steps, at least 0; 0 is `inner` alone, bit for bit. None: as many as `epochs` make.
        epochs: Number of passes over the server's data, at least 1, if `steps` is None. The last batch of a pass may be
            smaller.

    Raises:
        ConfigError: If a value is out of range, or `inner` trains on the server's data itself.

    Reference: a control experiment for arXiv 2405.02745, Algorithm 1, with both kinds of its rounds in one.

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

    This is the control experiment of all methods that use server data. No model is sent. With one step per round it is
    `Safari` without clients' rounds.

    With `held_out` and `patience`, the server holds out a share of its data, the same in every round, and trains on the
    rest. The result is the model of the round with the lowest mean held-out loss (cross-entropy, or squared error of
    numbers). Training stops after `patience` rounds without improvement. The test set and clients' data are never used.
    On few held-out examples the loss often rises before it falls, so choose `steps` times `patience` of a few hundred.

    Use when: always, next to `safari` and `fine_tune`, to see what the server's data achieve alone.

    Args:
        lr: Learning rate, positive.
        batch_size: Number of examples per step, at least 1, at most the number to train on. Drawn again for each step.
        steps: Number of steps per round, at least 1.
        held_out: Share of the server's data for early stopping, in (0, 1), at least one example. None: train on all.
        patience: Number of rounds without a lower held-out loss after which training stops, at least 1. None: never.

    Raises:
        ConfigError: If a value is out of range, or only one of `held_out` and `patience` is set; in round 1, if the
            server has too few examples to hold any out.

    Reference: arXiv 2405.02745, section 4: Algorithm 1 with q = 0. Early stopping is an extension.

    Example:
        >>> ServerOnly(held_out=0.2, patience=5).trains(np.random.Generator(np.random.Philox(0)))
        True
    """

    lr: Annotated[float, "(0, inf)"] = 0.1
    batch_size: Annotated[int, "[1, inf)"] = 64
    steps: Annotated[int, "[1, 1e9]"] = 1
    held_out: Annotated[float | None, "(0, 1)"] = None
    patience: Annotated[int | None, "[1, inf)"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.held_out is None) != (self.patience is None):
            raise ConfigError(
                "ServerOnly.held_out and patience go together: the share of the server's data to stop by, and how many "
                f"rounds to wait for a lower loss on it; got {self.held_out} and {self.patience}. Give both or neither."
            )

    def trains(self, rng: np.random.Generator) -> bool:
        return True

    def learn(self, params: Float32s, state: State, data: ServerOperations) -> tuple[Float32s, State]:
        """Return the model to hand out; with early stopping the state holds the progress of training.

        That is `at`, the (d,) model after the round, `loss`, the lowest one so far on what is held out, and `waited`,
        the rounds since.
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
    """SAFARI: some rounds train on the server's data, which also cover unseen clients.

    Each round draws one number u uniformly from [0, 1). If u < `client_probability`, clients train and `inner` takes
    the step. Otherwise no client trains, and the server takes one step of stochastic gradient descent on its own data::

        x <- x - lr * gradient of the mean loss at x over `batch_size` of the server's examples

    The draw of u, the selection, clients' batches and the server's batches use separate random streams. So probability
    1 gives the numbers of `inner` alone and probability 0 those of `ServerOnly`.

    The server needs data: ``[server_data]`` in an experiment file, or ``server_examples`` of
    `fedreach.data.federated.federate`. A server round sends no model, so compare methods at equal bytes as well as at
    equal rounds. Compare also with the server's data alone (`ServerOnly` with early stopping) and with the same data
    after clients' rounds (`FineTune`, `FedDF`), which the paper does not do.

    Use when: the server holds some labeled data, and many clients never train.

    Args:
        inner: Server optimizer for clients' rounds.
        client_probability: Probability q of a clients' round, in [0, 1]. The paper's bound on q needs unknown constants
            (`fedreach.federation.convergence.largest_share`): try 0.5, 0.8 and 0.9.
        lr: Learning rate of the server, positive. Theorem 4 of the paper needs lr = K * client lr / 2 for K local
            steps; in practice it is free.
        batch_size: Number of examples per server step, at least 1, at most the server's number.

    Raises:
        ConfigError: If a value is out of range, or `inner` trains on the server's data itself.

    Reference: "Understanding of Server-Assisted Federated Learning with Incomplete Client Participation" (arXiv
    2405.02745), Algorithm 1. Its clients start at x_r (``x_t`` is a misprint) and run K steps, not K + 1; its mean over
    clients is ``weighting = "equal"``.

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
