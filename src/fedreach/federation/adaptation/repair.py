"""Intensity correction."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Float32s, Floats
from fedreach.federation.types import Outputs, State

CACHED_NUMBERS = 30_000  # that are summed at a time
IMAGE_DIMENSIONS = 4
FEWEST_DIMENSIONS = 3
"""Of an array of inputs that are images or signals; a row of a table has columns without an intensity in common."""


MOST_CHANNELS = 4
"""Of an image, that light changes each by a number of its own."""


def channels_of(inputs: AnyArray) -> int:
    """Return for how many channels the intensity is repaired: those of an image in color, else 1 for all values."""
    return inputs.shape[1] if inputs.ndim == IMAGE_DIMENSIONS and inputs.shape[1] <= MOST_CHANNELS else 1


class Intensity(NamedTuple):
    """x' = scale x + shift, for each channel."""

    scale: Floats = np.ones(1)  # (k,)
    shift: Floats = np.zeros(1)  # (k,)

    def of(self, inputs: Float32s) -> Float32s:
        """Return the changed inputs, such as a client's later ones."""
        shape = (-1, *[1] * (inputs.ndim - 2))
        changed: Float32s = inputs * self.scale.astype(np.float32).reshape(shape)
        changed += self.shift.astype(np.float32).reshape(shape)
        return changed


class Values(NamedTuple):
    """Moments of all values of a client's inputs, by which a repair is chosen."""

    mean: Floats  # (k,)
    deviation: Floats  # (k,)

    @classmethod
    def of(cls, inputs: Float32s, channels: int = 1) -> Values:
        """Return mean and standard deviation of all values or of each channel, summed in float64, in a core's cache.

        Example:
            >>> Values.of(np.array([[2.0, 4.0]], np.float32))
            Values(mean=array([3.]), deviation=array([1.]))
        """
        parts = [inputs] if channels == 1 else [np.ascontiguousarray(inputs[:, i]) for i in range(channels)]
        moments = [_moments(part) for part in parts]
        return cls(*np.array(moments).T)


def _moments(inputs: Float32s) -> tuple[float, float]:
    flat = inputs.reshape(-1)
    pilot = float(flat[0])  # taken off first, so that a large mean takes no digits of the variance
    total = squares = 0.0
    for begin in range(0, flat.size, CACHED_NUMBERS):
        part = flat[begin : begin + CACHED_NUMBERS].astype(np.float64)
        part -= pilot
        total, squares = total + float(part.sum()), squares + float(part @ part)
    mean = total / flat.size
    return mean + pilot, math.sqrt(max(squares / flat.size - mean**2, 0.0))


def channels_to_repair(outputs: Outputs, state: State) -> list[int]:
    """Return for which numbers of channels the intensity can be changed, increasing.

    None where inputs are not many values, or words, or all equal, or not as participants' are.
    """
    inputs = outputs.inputs
    if inputs is None or outputs.again is None or not len(inputs) or inputs.ndim < FEWEST_DIMENSIONS:
        return []
    if not np.issubdtype(inputs.dtype, np.floating) or not np.ptp(inputs) > 0:
        return []
    means, variances = state["guard_value_mean"], state["guard_value_variance"]
    if not (variances > 0).any() or len(means) != channels_of(inputs):
        return []
    return sorted({1, len(means)})


def intensity(state: State, values: Values, prior: Floats) -> Intensity:
    """Return the map after which the client's values have the mean and variance of participants' with its prior.

    ```
    x' = (x - m) sigma_p / sigma + m_p,   m_p = sum_c p_c m_c,   sigma_p^2 = sum_c p_c (s2_c + (m_c - m_p)^2)
    ```

    where m and sigma are over all values of all of its inputs, of an image in color channel by channel: light of
    another color makes no difference then. sigma_p^2 is that of the same population, the variance between class means
    included, so that inputs that need no repair are left as they are but for sampling error. Brightness and contrast
    make no difference: alpha x + beta with alpha > 0 becomes the same x'. A channel without any contrast is only moved.

    Args:
        state: With the (k, C) m_c and s2_c.
        values: m and sigma.
        prior: (C,) class prior p.

    Example:
        >>> state = {"guard_value_mean": np.zeros((1, 2)), "guard_value_variance": np.full((1, 2), 4.0)}
        >>> intensity(state, Values(mean=np.array([3.0]), deviation=np.array([1.0])), np.array([0.5, 0.5]))
        Intensity(scale=array([2.]), shift=array([-6.]))
    """
    means, variances = state["guard_value_mean"].astype(np.float64), state["guard_value_variance"].astype(np.float64)
    if len(values.mean) < len(means):  # of all values together
        squares = (variances + means**2).mean(axis=0, keepdims=True)
        means = means.mean(axis=0, keepdims=True)
        variances = squares - means**2
    target = means @ prior
    variance = variances @ prior + (means - target[:, None]) ** 2 @ prior
    varies = values.deviation > 0
    scale = np.where(varies, np.sqrt(variance) / np.where(varies, values.deviation, 1.0), 1.0)
    return Intensity(scale, target - scale * values.mean)
