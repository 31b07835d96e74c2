"""Server optimizers: what the server does with the aggregated update."""

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
    """Averaging: the model moves along the weighted mean update u.

    v <- momentum * v + u;  x <- x + lr * v.  With rate 1 and momentum 0 the new model is the weighted mean of
    the local models, as in FedAvg; with momentum it is `FedAvgM`.

    When: always, as the baseline.

    Args:
        lr: Server rate, positive.
        momentum: In [0, 1).

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

    v <- momentum * v + u;  x <- x + lr * v.  It is `Average` under the paper's name and with its momentum; momentum 0
    is FedAvg. A constant u moves the model by up to u / (1 - momentum) a round, ten times as far with 0.9.

    *When to use it:* where clients' labels differ much and cohorts are small, so that successive mean updates point
    elsewhere: what they have in common adds up. Lower `local.lr` or `lr` where the loss swings.

    When: updates jump from round to round, as small cohorts make them.

    Args:
        lr: Server rate, positive.
        momentum: beta, in [0, 1).

    Raises:
        ConfigError: If a value is outside its range.

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
    """Inherit from it and write `second_moment`."""

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

    With the weighted mean update u, for each of the d numbers, from m = 0 and v = tau^2::

        m <- beta1 * m + (1 - beta1) * u
        v <- beta2 * v + (1 - beta2) * u^2
        x <- x + lr * m / (sqrt(v) + tau)

    Steps are then about as long as `lr`, whatever the length of the updates. As in the paper m and v are not
    corrected for their start; torch's Adam, which corrects them, is ``torch_optim``.

    When: numbers of the model move by very different amounts: embeddings, text.

    Args:
        lr: Server rate, positive. The paper tunes it for each data set; the other defaults are the paper's.
        beta1: How much of m is kept, in [0, 1).
        beta2: How much of v is kept, in [0, 1).
        tau: Positive; updates much smaller than tau hardly move a number. The larger, the less adaptive.

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with
    v_{-1} = tau^2 where it asks for no less.

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
    """Like `FedAdam`, but steps grow again only slowly after updates became small.

    v moves towards u^2 by (1 - beta2) u^2, whatever the distance::

        v <- v - (1 - beta2) * u^2 * sign(v - u^2)

    so that small updates cannot make a large v small at once, as they do in Adam. The other options are those of
    `FedAdam`.

    When: as `adam`, where steps that grow too fast make training unstable.

    Args:
        beta2: v changes by at most (1 - beta2) u^2; in [0, 1).

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with
    v_{-1} = tau^2.

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
    """An optimizer of PyTorch at the server, with the weighted mean update as its gradient.

    The gradient is -u, with u the weighted mean update, as an optimizer goes down a gradient; so SGD with rate 1 is
    `Average`. It computes in float64, on one thread, and the optimizer's own state is the state of this component: a
    run that is resumed continues with the same bits.

    When: you want to try an optimizer of PyTorch that is not built in.

    Args:
        optimizer: A class of `torch.optim`, such as ``"Adam"``; it must step from gradients alone, which L-BFGS and
            SparseAdam do not.
        lr: The optimizer's learning rate, positive.
        options: Its other options, such as ``{"betas": [0.9, 0.99]}``; None for torch's defaults.

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
    """Return the tensors of an optimizer's state as arrays; None, as of SGD without momentum, is left out."""
    return {key: value.detach().numpy() for key, value in tensors.items() if value is not None}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: where a vector is cut among threads can change the last bits."""
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
    """Yield which examples each step of a round sees, increasing.

    Args:
        rng: The round's stream.
        index: (s,) examples that are drawn from.
        batch_size: Most examples of a step; all s if there are fewer.
        steps: Number of steps, each drawn from all s without replacement; None: those of the epochs.
        epochs: Passes over all s in random order. The last batch of a pass may be smaller.

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
    """Base of servers that work on their own data in addition to a step `inner` after the clients' rounds."""

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

    Clients train in every round, and `inner` takes the step. From there on, `steps` times::

        x <- x - lr * gradient at x, over a batch, of KL(softmax(1/r sum_k f(x_k)) || softmax(f(x)))

    with the logits f and the local models x_k of the r clients whose reports count, each as much as any other (there,
    AVGLOGITS, at temperature 1). With several models, one a cluster, each is taught by those of its clients that took
    part in the round. Where all x_k are x, it stays; so it does, with equal weights, where the model is linear in its
    parameters, as the mean of linear models is their ensemble.

    Use it where the server has inputs like the clients' and no labels (write any, such as 0), and clients' models
    differ so much that their mean is worse than their vote. Against `FineTune` it shows what the labels are worth. It
    reads single clients' updates, and so does not go with secure aggregation; it runs each local model once over the
    inputs.

    The paper's experiments take Adam with a rate of 1e-3 that falls as a cosine, and stop early by labels that the
    server has; here it is the plain gradient step of its eq. 1, without labels. The authors' student has dropout and
    BatchNorm in training mode; here both rest, as in the teachers, so that a teacher like it teaches it nothing.

    When: the server holds inputs without labels.

    Args:
        inner: What the server does with the mean update; the student starts there.
        lr: Step size, positive.
        batch_size: Inputs of one step, at least 1; all of the server's where it holds fewer. Drawn again for each step
            from a stream of the round. The paper has 128.
        steps: Number of steps, not negative; 0 is `inner` alone, bit for bit. The paper has 10,000.

    Raises:
        ConfigError: If a value is outside its range, or `inner` trains on the server's data itself.

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

    Clients train in every round, and `inner` takes the step. Then, E epochs or exactly `steps` times::

        x <- x - lr * gradient of the mean loss at x over a batch of the server's examples

    after each round, so that the clients begin from the tuned model, or once, after the last one. It costs no bytes.

    It is the control experiment of `Safari`: it uses the server's data in addition to the clients' rounds and not in
    their place. Use it to see whether the coin is worth anything. At the end only it shows what the data are worth to a
    model that was trained without them.

    When: the server holds labeled data, and every round may use them.

    Args:
        inner: What the server does with the mean update.
        when: ``"each_round"`` or ``"end"``. By a run that `evaluation.patience` may end early, ``"end"`` is rejected.
        lr: Step size, positive.
        batch_size: Examples of one step, at least 1; all of the server's where it holds fewer. Drawn again for each
            step from a stream of the round.
        steps: Number of steps, not negative; 0 is `inner` alone, bit for bit. None: as many as `epochs` make.
        epochs: Passes over the server's data, at least 1, used where `steps` is None; the last batch of a pass may be
            smaller.

    Raises:
        ConfigError: If a value is outside its range, or `inner` trains on the server's data itself.

    Reference: a control of ours for arXiv 2405.02745, Algorithm 1, with both kinds of its rounds in one.

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

    The control experiment of all methods that use the server's data. No model is sent. As it is, one
    step per round, it is `Safari` without clients' rounds.

    *With early stopping*, by `held_out` and `patience`, the server holds a share of its data out, the same in every
    round, and trains on the rest. The model is the one of the round with the lowest mean cross-entropy (of
    numbers, squared error) on what is held out; after `patience` rounds without a lower one training stops.
    It never uses the test set or any client's data. Use it where few examples would be memorized in as
    many rounds as clients need. Let `steps` times `patience` be some hundred: on few held-out examples the loss often
    rises before it falls.

    When: always, next to `safari` and `fine_tune`: what the server's data are worth alone.

    Args:
        lr: Step size, positive.
        batch_size: Examples of one step, at least 1; all that are trained on where there are fewer. Drawn again for
            each step from a stream of the round.
        steps: Of a round, at least 1.
        held_out: Share of the server's data to stop by, in (0, 1), at least one example; None: train on all.
        patience: Rounds without a lower held-out loss after which training stops, at least 1; None: never.

    Raises:
        ConfigError: If a value is outside its range, or one of `held_out` and `patience` is given without the other; in
            round 1, if the server has too few examples to hold any out.

    Reference: arXiv 2405.02745, section 4: Algorithm 1 with q = 0. Early stopping is ours.

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

    For each round one number u is drawn uniformly from [0, 1). If u < `client_probability`, the round is like any
    other: clients train and `inner` takes the step. Otherwise no client is asked, and the server takes one step of
    stochastic gradient descent on its own data::

        x <- x - lr * gradient of the mean loss at x over `batch_size` of the server's examples

    The coin, the choice of clients, their batches and the server's batches have a random stream each, so that
    probability 1 gives the same numbers as `inner` alone and probability 0 those of `ServerOnly`.

    The server needs data: ``[server_data]`` in an experiment file, or ``server_examples`` of
    `fedreach.data.federated.federate`. A round of the server sends no model, so compare at equal bytes as well as at
    equal rounds, and with what the paper does not compare: the server's data alone (`ServerOnly`, with early stopping),
    and the same data after the clients' rounds instead of in their place (`FineTune`, `FedDF`).

    When: the server holds some labeled data, and many clients never train.

    Args:
        inner: What the server does in the clients' rounds.
        client_probability: q of the paper, in [0, 1]. The paper leaves it open, as its bound on q needs unknown
            constants (`fedreach.federation.convergence.largest_share`): try 0.5, 0.8 and 0.9.
        lr: Step size of the server, positive; the paper ties it to the clients' by lr = K * client lr / 2 for
            K local steps, which Theorem 4 needs and practice does not.
        batch_size: Examples of one server step, at least 1; all of the server's where it holds fewer.

    Raises:
        ConfigError: If a value is outside its range, or `inner` trains on the server's data itself.

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
