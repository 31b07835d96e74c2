"""From the columns of a table to the problem that is solved: seconds over the whole band, watts, cycles and hertz."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats
from fedreach.experiments.planning.columns import Clients
from fedreach.experiments.planning.question import Question
from fedreach.theory.divergence import label_divergences
from fedreach.wireless import channel, cost
from fedreach.wireless.allocation.problem import AllocationProblem

NOISE_DBM, CARRIER_HERTZ, PATH_LOSS, SMOOTHING, EPOCHS = -174.0, 2.4e9, 2.7, 1.0, 1


def problem_of(clients: Clients, question: Question, band: float = 1.0) -> AllocationProblem:
    """Return the problem of all clients, ids 0, 1, ... as they stand in the table.

    Args:
        clients: The table.
        question: The options.
        band: How many times the bandwidth is to be had. Where distances are given, the rates follow from the
            channel; given rates are taken to grow in proportion.
    """
    have = clients.numbers
    return AllocationProblem(
        upload_seconds=_upload_seconds(clients, question, band),
        power_watts=power_watts(clients),
        cycles=_cycles(clients, question),
        max_hertz=have["max_hertz"] if "max_hertz" in have else 1e9 * have["max_gigahertz"],
        num_examples=clients.num_examples,
        seconds_price=question.seconds_price,
        joules_price=question.joules_price,
        capacitance=question.capacitance,
    )


def power_watts(clients: Clients) -> Floats:
    """Return (K,) transmit powers."""
    have = clients.numbers
    result: Floats = have["power_watts"] if "power_watts" in have else channel.watts(have["power_dbm"])
    return result


def rate_elasticity(clients: Clients, question: Question) -> Floats:
    """Return (K,) by how many per cent a client's rate grows with a per cent more bandwidth.

    With R = B log2(1 + s) and s in inverse proportion to B it is (B / R) dR/dB = 1 - s / ((1 + s) ln(1 + s)), below 1;
    given rates grow in proportion: 1.
    """
    if "distance_meters" not in clients.numbers:
        return np.ones(len(clients.names))
    s = _gain(clients, question) * power_watts(clients) / (_or(question.bandwidth_hertz, 0.0) * _noise(question))
    result: Floats = 1 - s / ((1 + s) * np.log1p(s))
    return result


def divergence_of(clients: Clients, question: Question) -> Floats | None:
    """Return (K,) nats between each client's labels and those of all together; None where nothing tells."""
    if clients.labels is None:
        return clients.numbers.get("divergence")
    # Rounded, so that the order of summation does not decide who stands exactly at the threshold.
    return label_divergences(clients.labels, smoothing=_or(question.smoothing, SMOOTHING)).round(12)


def _upload_seconds(clients: Clients, question: Question, band: float) -> Floats:
    have = clients.numbers
    if "upload_seconds" in have:
        return have["upload_seconds"] / band
    if "bits_per_second" in have:
        return question.bits / (have["bits_per_second"] * band)
    hertz = band * _or(question.bandwidth_hertz, 0.0)
    rate = channel.bits_per_second(hertz, _noise(question), _gain(clients, question), power_watts(clients))
    for k in np.flatnonzero(rate <= 0)[:1]:
        clients.refuse(int(k), "distance_meters leaves no signal: its rate is 0.")
    seconds: Floats = question.bits / rate
    return seconds


def _gain(clients: Clients, question: Question) -> Floats:
    have = clients.numbers
    carrier, exponent = _or(question.carrier_hertz, CARRIER_HERTZ), _or(question.path_loss, PATH_LOSS)
    gain: Floats = channel.path_gain(have["distance_meters"], carrier, exponent) * have.get("fading_gain", 1.0)
    return gain


def _noise(question: Question) -> float:
    return float(channel.watts(_or(question.noise_dbm, NOISE_DBM)))


def _cycles(clients: Clients, question: Question) -> Floats:
    have = clients.numbers
    if "cycles" in have:
        return have["cycles"]
    epochs, bits = _or(question.epochs, EPOCHS), _or(question.bits_per_example, 0.0)
    cycles: Floats = cost.training_cycles(epochs, clients.num_examples, bits, have["cycles_per_bit"])
    return cycles


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
