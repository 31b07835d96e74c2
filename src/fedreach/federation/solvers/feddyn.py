"""FedDyn: regularise each client so that all agree where the sum of the objectives is least."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.values import Reports, State


@dataclass(frozen=True)
class FedDyn:
    """Let each client remember how far it was moved in all, h_i, and pull it by that.

    Local gradient: g + a_i (w - w0 + h_i) with a_i = alpha / (N p_i), where N p_i is the client's number of examples
    relative to the mean. Each client that was heard keeps h_i + update_i; with h the mean of the h_i over all
    participants, the new model is mean_i(w_i) + h. At the fixed point h_i = -grad F_i(x) / a_i, so that
    sum_i p_i grad F_i(x) = 0. The weighting averages the models only. A round costs a client what FedAvg costs.

    What is evaluated and handed out is the mean of the local models, x - h, as in the authors' code: x itself is
    ahead of it and settles only as h does. With one client this is not SGD: the server adds h.

    The h_i are running sums and always float32: as float16 they would lose updates below 2^-11 of themselves, of which
    the server's h hears nothing, so that h would no longer be their mean.

    `clip_norm` shortens the whole of g + a_i (w - w0 + h_i). The authors' code shortens g + a_i (h_i - w0) and then
    adds a_i w, as weight decay: where it clips by a factor s, clients are pulled towards s w0.

    When: clients drift and come back often, and twice the bytes are too many.

    Args:
        alpha: Strength of the pull, positive.

    Reference: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1, in the form
    of the authors' code, h_i here being the paper's -grad L_i / a_i.

    Example:
        >>> FedDyn().correct(2.0, params=1.0, broadcast=0.0, pull=0.5, memory=3.0)
        4.0
    """

    alpha: float = 0.01
    affine: ClassVar[bool] = True
    sends_note: ClassVar[bool] = False  # the change of h_i is the update
    sends_state: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self, alpha="(0, inf): Without a pull it is FedAvg.")

    def correct(self, gradient: Any, params: Any, broadcast: Any, pull: Any, memory: Any) -> Any:
        return gradient + pull * (params - broadcast + memory)

    def prepare(self, memory: Float32s, state: State, share: Floats) -> Mapping[str, Float32s]:
        """Return the (k, 1) strengths a_i and the (k, p) memories h_i."""
        return {"pull": (self.alpha / share[:, None]).astype(np.float32), "memory": memory}

    def remember(self, memory: Float32s, state: State, update: Float32s, steps: Floats, rate: float) -> Float32s:
        return memory + update

    def conclude(self, state: State, reports: Reports, mean_update: Floats, n: int) -> tuple[Floats, State]:
        """Return the mean update + h, and the new h."""
        h = state.get("h", 0.0) + reports.trained.sum(axis=0, dtype=np.float64) / n
        return mean_update + h, {"h": h}

    def served(self, params: Float32s, state: State) -> Float32s:
        """Return x - h; buffers stay as they are."""
        if not state:
            return params
        served, h = params.copy(), state["h"]
        served[: len(h)] = params[: len(h)] - h
        return served
