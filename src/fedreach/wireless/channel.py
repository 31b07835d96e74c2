"""From distance, fading and power to bits per second."""

from typing import Any

import numpy as np

LIGHT_METERS_PER_SECOND = 3e8  # as the paper's golden numbers have it


def watts(dbm: Any) -> Any:
    """Return a power in watts, given in dBm: 10^(dBm / 10) milliwatts.

    Example:
        >>> float(watts(30.0))
        1.0
    """
    return 10.0 ** ((np.asarray(dbm, dtype=np.float64) - 30.0) / 10.0)


def path_gain(distance_meters: Any, carrier_hertz: float, exponent: float) -> Any:
    """Return theta = (c / (4 pi f))^2 * distance^(-exponent), the large-scale power gain.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section II-B.

    Example:
        >>> f"{path_gain(225.0, 2.4e9, 2.7):.4e}"
        '4.4107e-11'
    """
    reference = (LIGHT_METERS_PER_SECOND / (4 * np.pi * carrier_hertz)) ** 2
    return reference * np.asarray(distance_meters, dtype=np.float64) ** -exponent


def bits_per_second(bandwidth_hertz: Any, noise_watts_per_hertz: Any, gain: Any, power_watts: Any) -> Any:
    """Return R = B log2(1 + gain P / (B N0)), the rate of a client that has the whole band.

    A client with the share b of the band sends b R: its power is spread over the whole band in the signal-to-noise
    ratio, as in the paper.

    Args:
        bandwidth_hertz: B, of all clients together.
        noise_watts_per_hertz: N0.
        gain: Path gain times |h|^2, the power gain of the fading.
        power_watts: P.

    Example:
        >>> gain = path_gain(225.0, 2.4e9, 2.7)
        >>> f"{bits_per_second(2e6, watts(-174.0), gain, watts(23.0)):.4e}"
        '2.0223e+07'
    """
    ratio = np.asarray(gain, dtype=np.float64) * power_watts / (bandwidth_hertz * noise_watts_per_hertz)
    return bandwidth_hertz * np.log1p(ratio) / np.log(2.0)
