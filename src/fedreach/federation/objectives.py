"""What a loss may have that sees more than outputs and targets, and what it is handed in a step of local training."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from fedreach.arrays import Float32s


@runtime_checkable
class Objective(Protocol):
    """A loss with a method `objective`: what clients make small depends on more than outputs and targets.

    The engine `sequential` trains by it. What else asks for the loss of a model, such as probes, the row of a round and
    a server that trains on its own data, still means that of `per_example`.
    """

    def objective(self, step: LocalStep) -> Any:
        """Return what the batch of this step makes small: a tensor of one number that torch can differentiate."""


@runtime_checkable
class RemembersClients(Protocol):
    """An `Objective` whose clients each keep a vector of the model's length d between rounds, 0 at first."""

    def keep(self, memory: Float32s, local: Float32s) -> Float32s:
        """Return the (k, d) float32 vectors that clients keep once their reports count; each from its own row.

        Args:
            memory: (k, d) what they kept before.
            local: (k, d) their models after local training.
        """


class ForwardPass(Protocol):
    """What a model makes of a batch of b examples."""

    @property
    def outputs(self) -> Any:
        """(b, c) tensor."""

    def features(self, layer: str | None = None) -> Any:
        """Return (b, h) what goes into the last linear layer, or what a named layer returns, one row an example.

        Raises:
            PartError: If there is no such layer, or it does not return one tensor of b rows once a pass.
        """


class LocalStep(ForwardPass, Protocol):
    """One step of a client's training, as an `Objective` is handed it; outputs and features are of the local model.

    Models are vectors of d numbers, the p that are trained first, see `fedreach.models.flat.Layout`. Nothing here may
    be written to.
    """

    @property
    def module(self) -> Any:
        """The local model."""

    @property
    def x(self) -> Any:
        """(b, ...) inputs as the model gets them."""

    @property
    def y(self) -> Any:
        """(b,) classes, or (b, t) numbers as the model learns them."""

    @property
    def loss(self) -> Any:
        """Mean of `per_example` over the batch: the objective of FedAvg."""

    @property
    def broadcast(self) -> Any:
        """(d,) the global model, as it was sent."""

    @property
    def memory(self) -> Any:
        """(d,) what the client keeps, 0 before its first report counted; see `RemembersClients`."""

    @property
    def global_model(self) -> ForwardPass:
        """The pass of the global model."""

    def frozen(self, model: Any) -> ForwardPass:
        """Return the pass of any (d,) model over the batch: in evaluation mode, without gradient."""

    def gradient(self) -> Any:
        """Return the (p,) gradient of `loss`, as a constant."""

    def loss_at(self, move: Any) -> Any:
        """Return what `loss` is where the trained numbers are moved by (p,) `move`; its gradient is that of there.

        Dropout is drawn again, and running statistics stay as they are.
        """
