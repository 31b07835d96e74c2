"""Several reasons for a large weight, multiplied."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import PartError
from fedreach.federation.protocols import ClientsOwn, Weighting
from fedreach.federation.traits import name_of
from fedreach.federation.values import Reports, State
from fedreach.federation.weighting.nesting import checked_factors, checked_parts, weights_of


@dataclass(frozen=True)
class Product:
    """Multiply weightings, so that a large weight takes every reason for one.

    w_i is proportional to prod_j (w_ij)^e_j, where w_ij is the weight that part j gives client i. By entropy and number
    of examples: ``{ name = "product", parts = ["entropy", "by_examples"] }``.

    When: several reasons for a weight shall all count.

    Args:
        parts: Weightings, at least one.
        exponents: e_j, finite and not negative: 1 for each where left out; 0 leaves a part out, 0.5 takes its root.

    Raises:
        ConfigError: If a part is no weighting or an exponent is outside its range.
        PartError: If every client has weight 0 in some part.

    Example:
        >>> from fedreach.federation.weighting import ByExamples, Equal
        >>> reports = Reports(np.arange(2), np.zeros((2, 1), np.float32), {"num_examples": np.array([10.0, 90.0])})
        >>> Product((ByExamples(), Equal()), exponents=(0.5, 1)).weights({}, reports)[0]
        array([0.25, 0.75])
    """

    parts: tuple[Weighting, ...]
    exponents: Sequence[float] | None = None

    def __post_init__(self) -> None:
        parts = checked_parts("Product.parts", self.parts)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "exponents", checked_factors("Product.exponents", self.exponents, parts))

    @property
    def raw(self) -> Callable[[Mapping[str, Floats]], Floats]:
        """The function prod_j (a_ij)^e_j of the metrics; there is none (AttributeError) unless every part has one."""
        functions = [cast(ClientsOwn, part).raw for part in self.parts]
        return lambda metrics: self._multiplied([function(metrics) for function in functions])

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        found, new = weights_of({str(j): part for j, part in enumerate(self.parts)}, state, reports)
        raw = self._multiplied([weights / weights.max() for weights in found])  # so that many small ones stay above 0
        if not raw.any():
            raise PartError(f"Product: every client has weight 0 in one of {', '.join(map(name_of, self.parts))}.")
        return raw / raw.sum(), new

    def _multiplied(self, columns: Sequence[Floats]) -> Floats:
        assert self.exponents is not None  # filled in above
        return np.asarray(np.prod([column**e for column, e in zip(columns, self.exponents, strict=True)], axis=0))
