"""Giving a client's inputs the intensity that the participants' inputs have."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.federation.values import Outputs, State

FEWEST_VALUES = 32
"""An input with fewer values is a row of a table, whose columns have no intensity in common."""


class Intensity(NamedTuple):
    """x' = scale x + shift."""

    scale: float = 1.0
    shift: float = 0.0

    def of(self, inputs: Float32s) -> Float32s:
        """Return the changed inputs, such as a client's later ones."""
        return (self.scale * inputs.astype(np.float64) + self.shift).astype(np.float32)


def can_repair(outputs: Outputs, state: State) -> bool:
    """Return whether these inputs have an intensity that can be changed: many values, neither words nor all equal."""
    inputs = outputs.inputs
    return (
        inputs is not None
        and outputs.again is not None
        and len(inputs) > 0
        and inputs[0].size >= FEWEST_VALUES
        and np.issubdtype(inputs.dtype, np.floating)
        and bool(np.ptp(inputs) > 0)
        and bool((state["guard_value_variance"] > 0).any())
    )


def intensity(state: State, inputs: Float32s, prior: Floats) -> Intensity:
    """Return the map after which the client's values have the mean and variance of participants' with its prior.

    ```
    x' = (x - m) sigma_p / sigma + m_p,   m_p = sum_c p_c m_c,   sigma_p^2 = sum_c p_c (s2_c + (m_c - m_p)^2)
    ```

    where m and sigma are over all values of all of its inputs. sigma_p^2 is that of the same population, the variance
    between class means included, so that inputs that need no repair are left as they are but for sampling error.
    Brightness and contrast make no difference: alpha x + beta with alpha > 0 becomes the same x'.

    Args:
        state: With the (C,) m_c and s2_c.
        inputs: (n, ...) of the client, not all values equal.
        prior: (C,) class shares p.

    Example:
        >>> state = {"guard_value_mean": np.array([0.0, 0.0]), "guard_value_variance": np.array([4.0, 4.0])}
        >>> intensity(state, np.array([[2.0, 4.0]], np.float32), np.array([0.5, 0.5]))
        Intensity(scale=2.0, shift=-6.0)
    """
    values = inputs.astype(np.float64)
    means, variances = state["guard_value_mean"], state["guard_value_variance"]
    target = float(means @ prior)
    variance = float(variances @ prior + (means - target) ** 2 @ prior)
    scale = math.sqrt(variance) / float(values.std())
    return Intensity(scale, target - scale * float(values.mean()))
