"""Channels and devices: the cost of a round in seconds and joules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ConfigError, require, violation
from fedreach._util.streams import generator
from fedreach.wireless.problem import AllocationProblem, training_cycles

# -------------------- Bits per second

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


# -------------------- Devices and channels

Fading = Literal["rayleigh", "none"]


RANGES = {
    "distance_meters": "(0, inf)",
    "max_hertz": "[1e5, inf): It is in hertz, such as [2e9, 5e9].",
    "cycles_per_bit": "(0, inf)",
    "power_dbm": "(-100, 100)",
}


class Devices(NamedTuple):
    """Properties of n clients that stay the same for a run."""

    distance_meters: Floats  # (n,) to the base station
    power_watts: Floats  # (n,) with which they send
    max_hertz: Floats  # (n,) highest CPU frequency
    cycles_per_bit: Floats  # (n,) of training data


@dataclass(frozen=True)
class Radio:
    """A cell whose clients share one uplink band, and the prices of a second and a joule.

    Ranges are drawn from uniformly, once per run; a power is drawn in dBm. The fading |h|^2 of each client is
    drawn again in each round, exponential with mean `mean_gain` (Rayleigh), or is `mean_gain` itself. Both depend only
    on the seed, the round and the number of clients, so that all methods of a comparison see the same channels. Only
    the clients' sending and computing is accounted for: the base station's broadcast costs bits, but no
    seconds, as in the paper.

    When: seconds and joules should be those of today's devices; the default.

    Args:
        bandwidth_hertz: B, of all clients together.
        noise_dbm_per_hertz: N0.
        distance_meters: Range of the distance.
        carrier_hertz: f_c.
        path_loss_exponent: gamma, at least 1.
        power_dbm: Range of the transmit power.
        max_hertz: Range of the highest CPU frequency. The paper prints 2 to 5 MHz, with which a round of local training
            takes a minute and microjoules; 2 to 5 GHz fits its energies. See `PaperRadio`.
        cycles_per_bit: Range of the CPU cycles that one pass needs for a bit of training data.
        bits_per_example: Of the training data; None: as many as its numbers take (28 * 28 * 8 for Fashion-MNIST). With
            1, `cycles_per_bit` are cycles per example, as eq. 4 of the paper reads.
        capacitance: eps, in J / (cycle Hz^2).
        mean_gain: Mean of |h|^2.
        fading: ``"rayleigh"`` or ``"none"``.
        time_weight: a1 of the objective a1 T + a2 E that allocations minimize; positive.
        energy_weight: a2, not negative.

    Raises:
        ConfigError: If a number or range is not legal.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section II-B and
    table I, with its units corrected.

    Example:
        >>> radio = Radio()
        >>> devices = radio.devices(3, seed=0)
        >>> gains = radio.gains(devices, seed=0, round_=1)
        >>> (bits_per_second(2e6, watts(-174.0), gains, devices.power_watts) / 1e6).round(1)
        array([21.2, 24.4, 22.7])
    """

    bandwidth_hertz: float = 2e6
    noise_dbm_per_hertz: float = -174.0
    distance_meters: tuple[float, float] = (200.0, 250.0)
    carrier_hertz: float = 2.4e9
    path_loss_exponent: float = 2.7
    power_dbm: tuple[float, float] = (20.0, 33.0)
    max_hertz: tuple[float, float] = (2e9, 5e9)
    cycles_per_bit: tuple[float, float] = (1.0, 10.0)
    bits_per_example: float | None = None
    capacitance: float = 1e-27
    mean_gain: float = 1.0
    fading: Fading = "rayleigh"
    time_weight: float = 1.0
    energy_weight: float = 1.0

    def __post_init__(self) -> None:
        require(
            self,
            bandwidth_hertz="(0, inf)",
            carrier_hertz="(0, inf)",
            capacitance="(0, inf)",
            mean_gain="(0, inf)",
            time_weight="(0, inf)",
            bits_per_example="(0, inf)",
            energy_weight="[0, inf)",
            path_loss_exponent="[1, 10)",
            noise_dbm_per_hertz="(-300, 0): That of heat is -174.",
            fading=get_args(Fading),
        )
        for name, rule in RANGES.items():
            value = getattr(self, name)
            if np.shape(value) != (2,) or not value[0] <= value[1]:
                raise ConfigError(f"Radio.{name} must be a range [from, to]; got {value}.")
            if wrong := violation(value[0], rule) or violation(value[1], rule):
                raise ConfigError(f"Radio.{name}: each end {wrong}")

    @property
    def noise_watts_per_hertz(self) -> float:
        """N0."""
        return float(watts(self.noise_dbm_per_hertz))

    def devices(self, n: int, seed: int) -> Devices:
        """Return what n clients keep for the run of this seed."""
        rng = generator(seed, "devices")
        distance, dbm, hertz, cycles = (
            rng.uniform(*bounds, size=n)
            for bounds in (self.distance_meters, self.power_dbm, self.max_hertz, self.cycles_per_bit)
        )
        return Devices(distance, watts(dbm), hertz, cycles)

    def gains(self, devices: Devices, seed: int, round_: int) -> Floats:
        """Return each client's power gain in a round, path loss times fading."""
        path = path_gain(devices.distance_meters, self.carrier_hertz, self.path_loss_exponent)
        if self.fading == "none":
            return np.asarray(path * self.mean_gain)
        drawn = generator(seed, "fading", round_).exponential(self.mean_gain, size=len(path))
        # A draw of exactly 0 would be a rate of 0, and a client that never gets its report through.
        return np.asarray(path * np.maximum(drawn, 1e-9 * self.mean_gain))

    def state(
        self,
        devices: Devices,
        *,
        seed: int,
        round_: int,
        ids: Ints,
        num_examples: Ints,
        bits_per_example: float,
        passes: Floats,
        report_bits: int,
    ) -> RadioState:
        """Return the radio of a round, as the server sees it.

        Args:
            bits_per_example: Used where the radio has none of its own.
            passes: (n,) over its data that each client's local training makes.
            report_bits: Of a report.
        """
        bits = bits_per_example if self.bits_per_example is None else self.bits_per_example
        gains = self.gains(devices, seed, round_)
        return RadioState(
            ids=ids,
            bits_per_second=bits_per_second(
                self.bandwidth_hertz, self.noise_watts_per_hertz, gains, devices.power_watts
            ),
            power_watts=devices.power_watts,
            max_hertz=devices.max_hertz,
            cycles_per_pass=training_cycles(1.0, num_examples, bits, devices.cycles_per_bit),
            num_examples=num_examples,
            passes=passes,
            report_bits=report_bits,
            time_weight=self.time_weight,
            energy_weight=self.energy_weight,
            capacitance=self.capacitance,
        )


@dataclass(frozen=True)
class PaperRadio(Radio):
    """The frequencies that the paper prints: 2 to 5 MHz; otherwise as `Radio`.

    When: only to reproduce CSRA's figures as printed.

    Example:
        >>> PaperRadio().max_hertz
        (2000000.0, 5000000.0)
    """

    max_hertz: tuple[float, float] = (2e6, 5e6)


RADIOS: dict[str, type[Radio]] = {"gigahertz": Radio, "paper": PaperRadio}


@dataclass(frozen=True, eq=False)
class RadioState:
    """What the server knows of the radio in a round; arrays over the n participants."""

    ids: Ints  # (n,)
    bits_per_second: Floats  # (n,) R, over the whole band
    power_watts: Floats  # (n,)
    max_hertz: Floats  # (n,)
    cycles_per_pass: Floats  # (n,) one pass of training over the client's own data
    num_examples: Ints  # (n,)
    passes: Floats  # (n,) of the round's local training
    report_bits: int
    time_weight: float
    energy_weight: float
    capacitance: float

    def problem(self, *, bits: float | None = None, passes: Floats | None = None) -> AllocationProblem:
        """Return what each client would need to train and report, or to do other work and send other bits."""
        bits, passes = self.report_bits if bits is None else bits, self.passes if passes is None else passes
        return AllocationProblem(
            upload_seconds=bits / self.bits_per_second,
            power_watts=self.power_watts,
            cycles=self.cycles_per_pass * passes,
            max_hertz=self.max_hertz,
            num_examples=self.num_examples,
            ids=self.ids,
            time_weight=self.time_weight,
            energy_weight=self.energy_weight,
            capacitance=self.capacitance,
        )
