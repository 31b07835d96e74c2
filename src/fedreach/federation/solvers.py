"""Local solvers: the rule by which a client trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fedreach._util.arrays import Dtype, Float32s, Floats, weighted_sum
from fedreach.federation.base import LocalSolver
from fedreach.federation.local_sgd import LocalSGD as LocalSGD
from fedreach.federation.local_sgd import Schedule as Schedule
from fedreach.federation.types import ClientResults, State

# -------------------- FedAvg: plain local SGD


@dataclass(frozen=True)
class FedAvg(LocalSolver):
    """FedAvg local training (McMahan et al., 2017): plain gradient steps.

    Use when: you need a baseline. Clients store no state between rounds and send the fewest bytes.

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
    2017, Algorithm 1.

    Example:
        >>> FedAvg().correct(2.0, params=1.0, broadcast=0.0)
        2.0
    """

    affine = True

    def correct(self, gradient: Any, params: Any, broadcast: Any) -> Any:
        return gradient


# -------------------- FedProx: stay near the broadcast model


@dataclass(frozen=True)
class FedProx(LocalSolver):
    """FedProx (Li et al., 2020): local steps with a proximal term towards the broadcast parameters.

    The local objective is F_i(w) + mu / 2 ||w - w0||^2, so the gradient is g + mu (w - w0).

    Use when: clients drift during many local steps and cannot store a vector between rounds.

    Args:
        mu: Strength of the proximal term, at least 0. With mu = 0 the results equal those of FedAvg, bit for bit.

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2.

    Example:
        >>> FedProx(mu=0.5).correct(2.0, params=1.0, broadcast=0.0)
        2.5
    """

    mu: Annotated[float, "[0, inf)"] = 0.01
    affine = True

    def correct(self, gradient: Any, params: Any, broadcast: Any) -> Any:
        if self.mu == 0:
            return gradient
        return gradient + self.mu * (params - broadcast)


# -------------------- FedDyn: regularize each client so that all agree where the sum of the objectives is least


@dataclass(frozen=True)
class FedDyn(LocalSolver):
    """FedDyn (Acar et al., 2021): dynamic regularization with accumulated updates h_i.

    The local gradient is g + a_i (w - w0 + h_i) with a_i = alpha / (N p_i), where N p_i is the client's number of
    examples relative to the mean over the N participants that share its model. Each client whose reply counts stores
    h_i + update_i. With h the mean of the h_i over all participants, the new model is mean_i(w_i) + h. At the fixed
    point h_i = -grad F_i(x) / a_i, so sum_i p_i grad F_i(x) = 0. Aggregation weights apply to the models only. FedDyn
    sends as many bytes as FedAvg.

    As in the authors' code, evaluation uses the mean of the local models, x - h, because x converges only when h does.
    With one client FedDyn differs from SGD, because the server adds h.

    The h_i are always float32. In float16 they would lose updates smaller than 2^-11 of their size, and the server's h
    would no longer be the mean of the h_i.

    `clip_norm` clips the sum g + a_i (w - w0 + h_i). The authors' code clips g + a_i (h_i - w0) and adds a_i w as
    weight decay.

    Use when: clients drift and participate often, and the communication of SCAFFOLD is too expensive.

    Args:
        alpha: Strength of the regularization, positive.

    Reference: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1, in the form of
    the authors' code; h_i is the paper's -grad L_i / a_i.

    Example:
        >>> FedDyn().correct(2.0, params=1.0, broadcast=0.0, pull=0.5, memory=3.0)
        4.0
    """

    alpha: Annotated[float, "(0, inf): Without a pull it is FedAvg."] = 0.01
    affine = True
    sends_note = False  # the change of h_i is the update
    sends_state = False

    def correct(self, gradient: Any, params: Any, broadcast: Any, pull: Any, memory: Any) -> Any:  # type: ignore[override]
        return gradient + pull * (params - broadcast + memory)

    def prepare(self, memory: Float32s, state: State, share: Floats) -> Mapping[str, Float32s]:
        """Return the (k, 1) strengths a_i and the (k, p) stored vectors h_i."""
        return {"pull": (self.alpha / share[:, None]).astype(np.float32), "memory": memory}

    def remember(self, memory: Float32s, state: State, update: Float32s, steps: Floats, lr: float) -> Float32s:
        return memory + update

    def conclude(self, state: State, reports: ClientResults, mean_update: Floats, n: int) -> tuple[Floats, State]:
        """Return the mean update + h, and the new h."""
        h = state.get("h", 0.0) + reports.trained.sum(axis=0, dtype=np.float64) / n
        return mean_update + h, {"h": h}

    def adapted(self, params: Float32s, state: State) -> Float32s:
        """Return x - h, with unchanged buffers."""
        if not state:
            return params
        adapted, h = params.copy(), state["h"]
        adapted[: len(h)] = params[: len(h)] - h
        return adapted


# -------------------- SCAFFOLD: correct each client's drift by control variates


@dataclass(frozen=True)
class Scaffold(LocalSolver):
    """SCAFFOLD (Karimireddy et al., 2020): control variates c_i and c that correct client drift.

    Local step: w <- w - lr (g + c - c_i). After K steps from x to y, each client whose reply counts stores c_i' = c_i -
    c + (x - y) / (K lr) (option II of the paper). The server sets c <- c + 1/n sum_i (c_i' - c_i), summed over the
    replies, with n participants. All control variates are 0 at first. Aggregation weights apply to the models only.
    `Average(lr=...)` is the paper's global step size. A round sends twice as many bytes as with FedAvg.

    With momentum, K is the equivalent number of plain steps, see `LocalSGD.moved_steps`. A client whose reply is lost
    restores its state before the round, so c remains the mean of the c_i.

    The code of FedDyn's authors, which arXiv 2311.05936 builds on, weights the control variates by N p_i, the number of
    examples relative to the mean (`by_examples`): w <- w - lr (g + c / (N p_i) - c_i), and c <- c + 1/n sum_i N p_i
    (c_i' - c_i). Training then converges to sum_i p_i grad F_i(x) = 0. That code always gives the models equal weights
    (``weighting = "equal"``), with which plain SCAFFOLD converges to sum_i grad F_i(x) = 0.

    Use when: clients drift and participate often enough to keep c_i recent, and twice the communication is affordable.

    Args:
        memory_dtype: Type of the stored c_i. ``"float16"`` halves their bytes. Each stored value then has an error of
            at most 2^-11 of itself or 2^-39 of the largest value, see `fedreach._util.arrays`. c is computed from the
            stored values.
        by_examples: Weight the control variates by number of examples, as in github.com/alpemreacar/FedDyn. There, K is
            the same for all clients; here, it is the number of steps of the client.

    Raises:
        ConfigError: If `memory_dtype` is neither ``"float32"`` nor ``"float16"``.

    Reference: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
    Algorithm 1.

    Example:
        >>> Scaffold().correct(2.0, params=1.0, broadcast=0.0, drift=-0.5)
        1.5
    """

    memory_dtype: Dtype = "float32"
    by_examples: bool = False
    affine = True
    sends_note = True
    sends_state = True

    def correct(self, gradient: Any, params: Any, broadcast: Any, drift: Any) -> Any:  # type: ignore[override]
        return gradient + drift

    def prepare(self, memory: Float32s, state: State, share: Floats) -> Mapping[str, Float32s]:
        """Return the (k, p) drift c - c_i, with `by_examples` c / (N p_i) - c_i."""
        drift = np.empty_like(memory)  # in float64, then rounded, without a float64 array as large as all memories
        c = state.get("c", 0.0)
        for i, c_i in enumerate(memory):
            np.subtract(
                c / share[i] if self.by_examples else c, c_i, out=drift[i], dtype=np.float64, casting="same_kind"
            )
        return {"drift": drift}

    def remember(self, memory: Float32s, state: State, update: Float32s, steps: Floats, lr: float) -> Float32s:
        followed = update / (-lr * steps[:, None])  # the mean of what the local steps followed
        return (memory - state.get("c", 0.0) + followed).astype(np.float32)

    def conclude(self, state: State, reports: ClientResults, mean_update: Floats, n: int) -> tuple[Floats, State]:
        """Return the unchanged mean update, and the new c."""
        assert reports.note is not None  # because of `sends_note`
        if self.by_examples:
            change = weighted_sum(reports.metrics["share"], reports.note)
        else:
            change = reports.note.sum(axis=0, dtype=np.float64)
        return mean_update, {"c": state.get("c", 0.0) + change / n}


# -------------------- How clients train: local SGD, with one correction of the gradient per solver

SOLVERS: Mapping[str, Any] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
}
