"""What sending and computing cost: four formulas and the cycles of local training.

Shapes broadcast. Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks",
eq. 4 to 8, in which the number of examples stands for their number of bits.
"""

from typing import Any

import numpy as np


def training_cycles(passes: Any, num_examples: Any, bits_per_example: Any, cycles_per_bit: Any) -> Any:
    """Return W = passes * examples * bits an example * cycles a bit, the work of local training in CPU cycles."""
    return passes * np.asarray(num_examples, dtype=np.float64) * bits_per_example * cycles_per_bit


def upload_seconds(whole_band_seconds: Any, share: Any) -> Any:
    """Return tau / b: the time to send, given that over the whole band and the share of it."""
    return whole_band_seconds / share


def upload_joules(power_watts: Any, seconds: Any) -> Any:
    """Return P t, the energy to send for so long."""
    return power_watts * seconds


def compute_seconds(cycles: Any, hertz: Any) -> Any:
    """Return W / f; no cycles take no time, at any frequency."""
    cycles, hertz = np.broadcast_arrays(np.asarray(cycles, np.float64), np.asarray(hertz, np.float64))
    return np.divide(cycles, hertz, out=np.zeros(cycles.shape), where=cycles > 0)


def compute_joules(capacitance: float, cycles: Any, hertz: Any) -> Any:
    """Return eps W f^2; `capacitance` eps is the effective switched capacitance, in J / (cycle Hz^2)."""
    return capacitance * np.asarray(cycles) * np.asarray(hertz) ** 2
