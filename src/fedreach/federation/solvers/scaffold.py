"""SCAFFOLD: correct each client's drift by control variates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.values import Reports, State
from fedreach.storage.rows import Dtype


@dataclass(frozen=True)
class Scaffold:
    """Let each client subtract its own mean gradient c_i and add everybody's, c, so that all drift the same way.

    Local step: w <- w - rate (g + c - c_i). After K steps from x to y, each client that was heard keeps
    c_i' = c_i - c + (x - y) / (K rate) (option II of the paper), K being the steps that this client ran, and
    c <- c + 1/n sum_i (c_i' - c_i) over the replies, n counting all participants. All start at 0. The weighting
    averages the models only; `Average(rate=...)` is the paper's global step size. A round costs twice FedAvg's bytes.

    With momentum, K counts what the gradients moved in plain steps, see `LocalSGD.moved_steps`. A client whose reply
    is lost forgets that round, so that c remains the mean of the c_i.

    When: clients drift and come back often enough for their memory to be fresh; it costs twice the bytes.

    Args:
        memory_dtype: ``"float16"`` keeps the c_i in half the bytes, each number off by at most 2^-11 of itself or 2^-39
            of the largest, see `fedreach.storage.float16`. c is told of what is kept and so stays the mean of the
            c_i; a client corrects its drift but for 2^-11 of its c_i.

    Raises:
        ConfigError: If it is neither ``"float32"`` nor ``"float16"``.

    Reference: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
    Algorithm 1.

    Example:
        >>> Scaffold().correct(2.0, params=1.0, broadcast=0.0, drift=-0.5)
        1.5
    """

    memory_dtype: Dtype = "float32"
    affine: ClassVar[bool] = True
    sends_note: ClassVar[bool] = True
    sends_state: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self, memory_dtype=get_args(Dtype))

    def correct(self, gradient: Any, params: Any, broadcast: Any, drift: Any) -> Any:
        return gradient + drift

    def prepare(self, memory: Float32s, state: State, share: Floats) -> Mapping[str, Float32s]:
        """Return the (k, p) drift c - c_i."""
        drift = np.empty_like(memory)  # in float64, then rounded, without a float64 array as large as all memories
        np.subtract(state.get("c", 0.0), memory, out=drift, dtype=np.float64, casting="same_kind")
        return {"drift": drift}

    def remember(self, memory: Float32s, state: State, update: Float32s, steps: Floats, rate: float) -> Float32s:
        followed = update / (-rate * steps[:, None])  # the mean of what the local steps followed
        return (memory - state.get("c", 0.0) + followed).astype(np.float32)

    def conclude(self, state: State, reports: Reports, mean_update: Floats, n: int) -> tuple[Floats, State]:
        """Return the mean update as it is, and the new c."""
        assert reports.note is not None  # because of `sends_note`
        return mean_update, {"c": state.get("c", 0.0) + reports.note.sum(axis=0, dtype=np.float64) / n}

    def served(self, params: Float32s, state: State) -> Float32s:
        return params
