"""Which thresholds would let enough examples through, where those that were asked for do not."""

import math
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import AnyArray


@dataclass(frozen=True)
class Thresholds:
    """What a divergence threshold keeps, and the nearest thresholds that can be met."""

    clients: int
    max_divergence: float  # e1, in nats, as asked for; inf filters nobody
    min_examples: int  # e2, as asked for
    kept: int  # clients within max_divergence
    covered: int  # examples that they hold: the largest min_examples that can be met at this max_divergence
    most_examples: int  # the largest that can be met at any finite max_divergence
    smallest_divergence: float | None  # the smallest max_divergence that meets min_examples; None if none does
    infinite: int  # clients whose divergence is inf: no finite max_divergence admits them

    @property
    def feasible(self) -> bool:
        """Whether those kept hold enough; where they do not, `message` says what would do."""
        return self.kept > 0 and self.covered >= self.min_examples

    def message(self) -> str:
        """Return what is held, what is needed and what to change, for an `InfeasibleError`."""
        ways = [f"lower min_examples to {self.covered} or less"] if self.covered else []
        if self.max_divergence == math.inf:
            said = [f"All {self.clients} clients together hold {self.covered} examples;"]
        else:
            said = [f"{self.kept} of {self.clients} clients are within max_divergence = {self.max_divergence:g}"]
            said += [f"and hold {self.covered} examples;"]
            if self.smallest_divergence is not None:
                # Rounded up, so that what is printed is enough, too.
                ways.append(f"raise max_divergence to {math.ceil(self.smallest_divergence * 1e4) / 1e4:.4f}")
        said.append(f"min_examples = {self.min_examples} are needed.")
        if ways:
            said.append(" or ".join(ways).capitalize() + ".")
        if self.max_divergence < math.inf and self.smallest_divergence is None:
            said.append(f"No max_divergence is enough: clients at a finite one hold {self.most_examples} in all.")
        if self.max_divergence < math.inf and self.infinite:
            said.append(f"Infinite it is for {self.infinite}, who lack a class: smoothing above 0 makes it finite.")
        return " ".join(said)


def nearest_thresholds(
    divergence: AnyArray, num_examples: AnyArray, max_divergence: float, min_examples: int
) -> Thresholds:
    """Return what clients within `max_divergence` hold, and which thresholds come nearest if that is too little.

    Args:
        divergence: (K,) nats from the labels of all clients together, not negative; inf allowed.
        num_examples: (K,) whole numbers.
        max_divergence: e1; a client at exactly e1 is kept. inf keeps everybody.
        min_examples: e2.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", constraints
    37e and 37f, of which the paper does not say that they can contradict each other.

    Example:
        >>> found = nearest_thresholds(np.array([0.1, 0.3, np.inf, 0.2]), np.array([50, 70, 90, 40]), 0.2, 120)
        >>> found.kept, found.covered, found.most_examples, found.smallest_divergence, found.infinite
        (2, 90, 160, 0.3, 1)
    """
    divergence, examples = np.asarray(divergence, np.float64), np.asarray(num_examples, np.int64)
    within, finite = divergence <= max_divergence, np.isfinite(divergence)
    order = np.argsort(divergence[finite], kind="stable")
    held = np.cumsum(examples[finite][order])  # by those that are at most so far, nearest first
    enough = int(np.searchsorted(held, min_examples))
    return Thresholds(
        clients=len(divergence),
        max_divergence=float(max_divergence),
        min_examples=int(min_examples),
        kept=int(within.sum()),
        covered=int(examples[within].sum()),
        most_examples=int(held[-1]) if len(held) else 0,
        smallest_divergence=float(divergence[finite][order][enough]) if enough < len(held) else None,
        infinite=int(np.isposinf(divergence).sum()),
    )
