"""The local Rademacher complexity of finitely many functions, made such that it has one fixed point."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import ConfigError
from fedreach.theory.rademacher import all_signs

ENUMERATED = 12  # up to this many examples all 2^n sign vectors are taken


@dataclass(frozen=True, eq=False)
class StarHull:
    """The local Rademacher complexity of finitely many excess losses and all their multiples by 0 <= t <= 1.

        phi(r) = E max(0, max_f min(1, sqrt(r / mean_i f_i^2)) 1/n sum_i sigma_i f_i)

    It is sub-root: every summand is, and maxima and means of sub-root functions are. From the largest mean square on
    it is the complexity of the whole class.

    Args:
        excess: (q, n) losses of q functions on n examples minus those of the best one; the examples of all clients,
            each counting the same.
        signs: (s, n) draws of the sigma, each -1 or 1, over which the mean is taken; None for all 2^n of them, with
            n at most 12.

    Raises:
        ConfigError: If shapes do not fit, signs are none, or there are too many to enumerate.

    Reference: Definition 3; Bartlett, Bousquet and Mendelson, section 3.

    Example:
        >>> hull = StarHull(np.array([[0.2, -0.1, 0.3], [-0.4, 0.1, 0.2]]))
        >>> round(hull(1.0), 10)
        0.1083333333
        >>> from fedreach.theory.excess_risk import fixed_point
        >>> round(fixed_point(hull), 10)
        0.1083333333
    """

    excess: Floats
    signs: Floats | None = None

    def __post_init__(self) -> None:
        f = np.asarray(self.excess)
        if f.ndim != 2 or f.shape[1] == 0 or not np.isfinite(f).all():
            raise ConfigError(f"StarHull.excess must be finite losses, functions x examples; got shape {f.shape}.")
        n = f.shape[1]
        if self.signs is None:
            if n > ENUMERATED:
                raise ConfigError(
                    f"StarHull enumerates the signs of at most {ENUMERATED} examples; got {n}. Hand in `signs`, drawn "
                    "as 2 * rng.integers(0, 2, (draws, examples)) - 1."
                )
            return
        s = np.asarray(self.signs)
        if s.ndim != 2 or s.shape[1] != n or len(s) == 0 or not (np.abs(s) == 1).all():
            raise ConfigError(f"StarHull.signs must be -1 or 1, draws x {n} examples; got shape {s.shape}.")

    def __call__(self, radius: float) -> float:
        """Return phi(radius)."""
        # A function that is 0 everywhere agrees with nothing, whatever it is multiplied by.
        square = np.where(self._square > 0, self._square, np.inf)
        reach = np.sqrt(np.minimum(radius / square, 1))
        return float((self._agreement * reach).max(axis=1, initial=0.0).mean())

    @cached_property
    def _square(self) -> Floats:
        """The (q,) mean squares."""
        return np.asarray((np.asarray(self.excess, np.float64) ** 2).mean(axis=1))

    @cached_property
    def _agreement(self) -> Floats:
        """The (s, q) means over examples of sign times loss."""
        f = np.asarray(self.excess, np.float64)
        n = f.shape[1]
        return np.asarray((all_signs(n) if self.signs is None else np.asarray(self.signs, np.float64)) @ f.T / n)
