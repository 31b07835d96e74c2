"""Giving a client's inputs the intensity that the participants' inputs have."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.federation.values import Outputs, State

CACHED_NUMBERS = 30_000  # that are summed at a time
FEWEST_DIMENSIONS = 3
"""Of an array of inputs that are images or signals; a row of a table has columns without an intensity in common."""


class Intensity(NamedTuple):
    """x' = scale x + shift."""

    scale: float = 1.0
    shift: float = 0.0

    def of(self, inputs: Float32s) -> Float32s:
        """Return the changed inputs, such as a client's later ones."""
        changed: Float32s = inputs * np.float32(self.scale)
        changed += np.float32(self.shift)
        return changed


class Values(NamedTuple):
    """What a repair looks at, of all values of a client's inputs."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, inputs: Float32s) -> Values:
        """Return mean and standard deviation, summed in float64, in a core's own cache.

        Example:
            >>> Values.of(np.array([[2.0, 4.0]], np.float32))
            Values(mean=3.0, deviation=1.0)
        """
        flat = inputs.reshape(-1)
        pilot = float(flat[0])  # taken off first, so that a large mean takes no digits of the variance
        total = squares = 0.0
        for begin in range(0, flat.size, CACHED_NUMBERS):
            part = flat[begin : begin + CACHED_NUMBERS].astype(np.float64)
            part -= pilot
            total, squares = total + float(part.sum()), squares + float(part @ part)
        mean = total / flat.size
        return cls(mean + pilot, math.sqrt(max(squares / flat.size - mean**2, 0.0)))


def can_repair(outputs: Outputs, state: State) -> bool:
    """Return whether these inputs have an intensity that can be changed: many values, neither words nor all equal."""
    inputs = outputs.inputs
    return (
        inputs is not None
        and outputs.again is not None
        and len(inputs) > 0
        and inputs.ndim >= FEWEST_DIMENSIONS
        and np.issubdtype(inputs.dtype, np.floating)
        and bool(np.ptp(inputs) > 0)
        and bool((state["guard_value_variance"] > 0).any())
    )


def intensity(state: State, values: Values, prior: Floats) -> Intensity:
    """Return the map after which the client's values have the mean and variance of participants' with its prior.

    ```
    x' = (x - m) sigma_p / sigma + m_p,   m_p = sum_c p_c m_c,   sigma_p^2 = sum_c p_c (s2_c + (m_c - m_p)^2)
    ```

    where m and sigma are over all values of all of its inputs. sigma_p^2 is that of the same population, the variance
    between class means included, so that inputs that need no repair are left as they are but for sampling error.
    Brightness and contrast make no difference: alpha x + beta with alpha > 0 becomes the same x'.

    Args:
        state: With the (C,) m_c and s2_c.
        values: m and sigma, which is not 0.
        prior: (C,) class shares p.

    Example:
        >>> state = {"guard_value_mean": np.array([0.0, 0.0]), "guard_value_variance": np.array([4.0, 4.0])}
        >>> intensity(state, Values(mean=3.0, deviation=1.0), np.array([0.5, 0.5]))
        Intensity(scale=2.0, shift=-6.0)
    """
    means, variances = state["guard_value_mean"], state["guard_value_variance"]
    target = float(means @ prior)
    variance = float(variances @ prior + (means - target) ** 2 @ prior)
    scale = math.sqrt(variance) / values.deviation
    return Intensity(scale, target - scale * values.mean)
