"""Radio channels and devices, which determine the time and energy of a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ConfigError, require, violation
from fedreach._util.streams import generator
from fedreach.wireless.problem import AllocationProblem, training_cycles

# -------------------- Data rate

LIGHT_METERS_PER_SECOND = 3e8  # rounded: with 299,792,458, path gains are 0.14% smaller


def watts(dbm: Any) -> Any:
    """Convert a power from dBm to watts: 10^(dBm / 10) milliwatts.

    Example:
        >>> float(watts(30.0))
        1.0
    """
    return 10.0 ** ((np.asarray(dbm, dtype=np.float64) - 30.0) / 10.0)


def path_gain(distance_meters: Any, carrier_hertz: float, exponent: float) -> Any:
    """Return the power gain of the path loss, theta = (c / (4 pi f))^2 * distance^(-exponent).

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section II-B.

    Example:
        >>> f"{path_gain(225.0, 2.4e9, 2.7):.4e}"
        '4.4107e-11'
    """
    reference = (LIGHT_METERS_PER_SECOND / (4 * np.pi * carrier_hertz)) ** 2
    return reference * np.asarray(distance_meters, dtype=np.float64) ** -exponent


def bits_per_second(bandwidth_hertz: Any, noise_watts_per_hertz: Any, gain: Any, power_watts: Any) -> Any:
    """Return the data rate R = B log2(1 + gain P / (B N0)) of a client that uses the full bandwidth.

    A client with a share b of the bandwidth has the data rate b R. As in the paper, the signal-to-noise ratio does not
    depend on b.

    Args:
        bandwidth_hertz: Total bandwidth B in hertz.
        noise_watts_per_hertz: Noise power density N0 in watts per hertz.
        gain: Power gain: path gain times fading |h|^2.
        power_watts: Transmit power P in watts.

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
    "max_hertz": "[1e5, inf): The unit is hertz, for example [2e9, 5e9].",
    "cycles_per_bit": "(0, inf)",
    "power_dbm": "(-100, 100)",
    "max_joules": "(0, inf)",
}


class Devices(NamedTuple):
    """Properties of n clients that do not change during a run."""

    distance_meters: Floats  # (n,) distance to the base station
    power_watts: Floats  # (n,) transmit power
    max_hertz: Floats  # (n,) highest CPU frequency
    cycles_per_bit: Floats  # (n,) CPU cycles per bit of training data
    max_joules: Floats  # (n,) largest acceptable energy of a round; infinite without a cap


@dataclass(frozen=True)
class Radio:
    """Radio cell in which all clients share the uplink bandwidth.

    The properties of each client are drawn once per run, uniformly from the ranges below. The transmit power is uniform
    in dBm. The fading |h|^2 of each client is drawn in each round, from an exponential distribution with mean
    `mean_gain` (Rayleigh fading), or it is always `mean_gain`. The draws depend only on the seed, the round and the
    number of clients. So all methods of a comparison use the same channels. As in the paper, time and energy include
    the clients' computing and uploads, but not the broadcast of the base station.

    Use when: you simulate the time and energy of current devices. This is the default.

    Args:
        bandwidth_hertz: Total bandwidth B in hertz, above 0. Default: 2 MHz.
        noise_dbm_per_hertz: Noise power density N0 in dBm per hertz. Default: -174 (thermal noise).
        distance_meters: Range of the distance to the base station in meters.
        carrier_hertz: Carrier frequency f_c in hertz, above 0. Default: 2.4 GHz.
        path_loss_exponent: Path loss exponent gamma, at least 1. Default: 2.7.
        power_dbm: Range of the transmit power in dBm.
        max_hertz: Range of the highest CPU frequency in hertz. The paper prints 2 to 5 MHz, but its energies correspond
            to 2 to 5 GHz, see `PaperRadio`.
        cycles_per_bit: Range of the CPU cycles that one pass needs per bit of training data.
        bits_per_example: Number of bits per training example. Default: the size of the stored numbers, such as 28 * 28
            * 8 for Fashion-MNIST. With 1, `cycles_per_bit` is the number of cycles per example, as in eq. 4 of the
            paper.
        capacitance: Effective switched capacitance eps in J / (cycle Hz^2), above 0. Default: 1e-27.
        mean_gain: Mean of the fading |h|^2, above 0. Default: 1.
        fading: Kind of fading: ``"rayleigh"`` or ``"none"``. Default: "rayleigh".
        time_weight: Weight a1 of a second in the cost a1 T + a2 E, above 0. Default: 1.
        energy_weight: Weight a2 of a joule in the cost, at least 0. Default: 1.
        max_joules: Range of the largest acceptable energy E^max of a client in a round, in joules. Each allocation must
            keep every client within it. The run ends with an error if this is impossible, or if another allocation rule
            than ``exact`` exceeds it. Table I prints 2 to 9 J, but the paper's problem has no such constraint. Default:
            no cap.

    Raises:
        ConfigError: If an option is outside its range.

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
    max_joules: tuple[float, float] | None = None

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
            noise_dbm_per_hertz="(-300, 0): Thermal noise is -174.",
            fading=get_args(Fading),
        )
        for name, rule in RANGES.items():
            value = getattr(self, name)
            if value is None and name == "max_joules":
                continue
            if np.shape(value) != (2,) or not value[0] <= value[1]:
                raise ConfigError(f"Radio.{name} must be a range [low, high]; got {value}.")
            if wrong := violation(value[0], rule) or violation(value[1], rule):
                raise ConfigError(f"Radio.{name}: both limits {wrong}")

    @property
    def noise_watts_per_hertz(self) -> float:
        """Noise power density N0 in watts per hertz."""
        return float(watts(self.noise_dbm_per_hertz))

    def devices(self, n: int, seed: int) -> Devices:
        """Draw the properties of n clients for the run of this seed."""
        rng = generator(seed, "devices")
        distance, dbm, hertz, cycles = (
            rng.uniform(*bounds, size=n)
            for bounds in (self.distance_meters, self.power_dbm, self.max_hertz, self.cycles_per_bit)
        )
        joules = np.full(n, np.inf) if self.max_joules is None else rng.uniform(*self.max_joules, size=n)
        return Devices(distance, watts(dbm), hertz, cycles, joules)

    def gains(self, devices: Devices, seed: int, round_: int) -> Floats:
        """Return the (n,) power gain of each client in a round: path gain times fading."""
        path = path_gain(devices.distance_meters, self.carrier_hertz, self.path_loss_exponent)
        if self.fading == "none":
            return np.asarray(path * self.mean_gain)
        drawn = generator(seed, "fading", round_).exponential(self.mean_gain, size=len(path))
        # With a gain of exactly 0, the upload would never end.
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
        """Return the radio state of a round.

        Args:
            devices: Properties of the n clients.
            seed: Seed of the run.
            round_: Number of the round.
            ids: (n,) ids of the clients.
            num_examples: (n,) number of training examples.
            bits_per_example: Bits per training example, used if the radio does not define them.
            passes: (n,) number of passes over its data in each client's local training.
            report_bits: Size of a reply in bits.
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
            max_joules=devices.max_joules,
        )


@dataclass(frozen=True)
class PaperRadio(Radio):
    """Radio cell with the CPU frequencies that the CSRA paper prints, 2 to 5 MHz; otherwise the same as `Radio`.

    Use when: you reproduce the figures of the CSRA paper with its printed frequencies.

    Example:
        >>> PaperRadio().max_hertz
        (2000000.0, 5000000.0)
    """

    max_hertz: tuple[float, float] = (2e6, 5e6)


RADIOS: dict[str, type[Radio]] = {"gigahertz": Radio, "paper": PaperRadio}


@dataclass(frozen=True, eq=False)
class RadioState:
    """State of the radio in a round, for the n participants."""

    ids: Ints  # (n,) ids of the participants
    bits_per_second: Floats  # (n,) data rate R over the whole bandwidth
    power_watts: Floats  # (n,) transmit power
    max_hertz: Floats  # (n,) highest CPU frequency
    cycles_per_pass: Floats  # (n,) CPU cycles of one pass over the client's training data
    num_examples: Ints  # (n,) number of training examples
    passes: Floats  # (n,) number of passes over its data in the local training of the round
    report_bits: int  # size of a reply
    time_weight: float  # a1
    energy_weight: float  # a2
    capacitance: float  # eps
    max_joules: Floats = field(default_factory=lambda: np.empty(0))  # (n,) E^max; empty: infinite

    def problem(self, *, bits: float | None = None, passes: Floats | None = None) -> AllocationProblem:
        """Return the allocation problem of the round; `bits` and `passes` replace the reply size and the passes."""
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
            max_joules=self.max_joules,
        )
