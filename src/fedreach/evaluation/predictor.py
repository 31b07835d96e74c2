"""What evaluation asks of an engine; nothing here knows one."""

from __future__ import annotations

from typing import Literal, Protocol

from fedreach.arrays import Bools, Float32s, Ints
from fedreach.federation.values import Outputs

Split = Literal["train", "true", "test", "server"]
"""Which examples: those of the clients with the labels that they train on, or without label noise; the test set; the
server's own. The first two are the same examples, and the same index means the same one."""


class Predictor(Protocol):
    """Runs a model over examples of a federation."""

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        """Return (m,) whether the (d,) model is right on each of the m examples of `index`, and its loss in nats.

        Of labels at positions: the share of an example's labeled positions at which it is right, and their mean loss.
        Of targets that are numbers: the mean absolute error of each example, in their units, and the mean squared one
        on the scale that they are trained on, see `fedreach.data.target_scale.TargetScale`.
        """

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        """Return the (m, c) logits, (m, positions..., c) of labels at positions, or (m, t) numbers in their units."""

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        """Return what the model says of one client's examples, for serving; with `inputs`, these and features, too.

        The client's examples go through the model by themselves, as on its own machine: to the same bits there.
        """
