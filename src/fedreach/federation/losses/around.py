"""What losses share that add something to another loss."""

from dataclasses import dataclass, field
from typing import Any

from fedreach.errors import ConfigError
from fedreach.federation.losses.cross_entropy import CrossEntropy
from fedreach.federation.protocols import Loss
from fedreach.federation.traits import Traits, name_of


@dataclass(frozen=True)
class Around:
    """A loss of outputs and targets, to which a subclass adds a term of its own by `objective`.

    Args:
        inner: The loss: cross-entropy unless another one is named.

    Raises:
        ConfigError: If it sees more than outputs itself, or shifts them.
    """

    inner: Loss = field(default=CrossEntropy(), kw_only=True)

    def __post_init__(self) -> None:
        says = Traits.of(self.inner)
        if says.sees_more or says.shifts_outputs:
            what = "sees more itself" if says.sees_more else "shifts outputs"
            raise ConfigError(
                f"{type(self).__name__}.inner must be a loss of outputs and targets; {name_of(self.inner)} {what}. "
                "Use 'cross_entropy', 'label_smoothing', 'mse' or 'huber', or write both into a loss of your own."
            )

    @property
    def minimum(self) -> float | None:
        """Below which no loss is."""
        return Traits.of(self.inner).minimum

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return self.inner.per_example(outputs, targets)
