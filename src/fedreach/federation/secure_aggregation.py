"""Secure aggregation: the server sees sums over clients alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.errors import ComponentError
from fedreach.federation.base import LabelStatistics

# -------------------- Masked sums
# The server sees two sums only: sum_i a_i update_i and sum_i a_i.
# Each client writes a_i update_i and a_i as whole numbers of 64 bits and adds masks, one for each other client, that
# the other subtracts (modulo 2^64). A masked share is uniformly distributed, whatever is in it; the masks cancel
# exactly in the sum:
#
# ```
# share -> mask -> [the server adds up] -> decode
# ```
#
# In a simulation the masks are left out, since they change no bit of the sum: `weighted_mean_of_shares`. On Flower
# clients exchange keys, see `fedreach.flower.messages`. What is not here is the recovery of the masks of clients that
# drop out: a missing mask spoils the sum.
#
# Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
# section 4.

Words = NDArray[np.uint64]  # whole numbers modulo 2^64; upper half negative

NO_SUM = "The secure aggregation makes no sense: somebody sent what is no share of it, and nobody can tell who."
LARGEST = 2.0**24  # what a number that a client sends must not exceed


@dataclass(frozen=True)
class FixedPoint:
    """Numbers from -2^24 to 2^24 as whole multiples of 2^-f, such that the sum over r clients cannot overflow.

    f = 38 - ceil(log2 r): then r numbers of at most 2^(24 + f) sum up to at most 2^62. The error of a number is at most
    half a unit, 2^-(f + 1).

    Args:
        clients: r, at least 1; known to all before they send.

    Example:
        >>> code = FixedPoint(clients=2)
        >>> total = code.encode(np.array([0.25, -3.0])) + code.encode(np.array([0.5, 1.0]))
        >>> code.decode(total)
        array([ 0.75, -2. ])
    """

    clients: int

    @property
    def bits(self) -> int:
        """f, binary digits after the point."""
        return 38 - (self.clients - 1).bit_length()

    def encode(self, numbers: Floats) -> Words:
        """Return whole numbers of the same shape.

        Raises:
            ComponentError: If a number is not finite or larger than 2^24.
        """
        largest = float(np.abs(numbers).max(initial=0))
        if not largest <= LARGEST:
            raise ComponentError(
                "Under secure aggregation a client's weight, and its weight times each number of its update, must be "
                f"at most {LARGEST:.0f}; got {largest:.6g}. Choose a weighting whose raw weights are smaller, lower "
                "local.lr, set local.clip_norm, or let the server see the weights."
            )
        return np.rint(np.ldexp(numbers, self.bits)).astype(np.int64).view(np.uint64)

    def decode(self, total: Words) -> Floats:
        """Return the numbers that a sum of encoded numbers represents."""
        return np.ldexp(total.view(np.int64).astype(np.float64), -self.bits)


LIMBS = 4
LARGEST_EXACT = 2.0**62  # what a number in an exact sum must not exceed


def exact_sum(parts: Sequence[Floats]) -> Floats:
    """Return the sum of arrays of one shape as the server gets it from masked shares, whatever the size of numbers.

    A number of up to 2^62 is a signed whole multiple of 2^-64, written as four limbs of 32 bits, one a word: words of
    2^31 clients add up without overflow, to the same bits in any order. In a simulation masks are left out, as above.

    Raises:
        ComponentError: If a number is not finite or larger than 2^62.

    Example:
        >>> exact_sum([np.array([1e15, 0.25]), np.array([0.5, -1.0])])
        array([ 1.0e+15, -7.5e-01])
    """
    total = np.zeros((LIMBS, *parts[0].shape), np.uint64)
    for part in parts:
        total += limbs(part)
    return sum_of_limbs(total, len(parts))


def limbs(numbers: Floats) -> Words:
    """Return a client's numbers, of any shape (...), as (4, ...) words of `exact_sum`.

    Raises:
        ComponentError: If a number is not finite or larger than 2^62.
    """
    if not np.abs(numbers).max(initial=0) <= LARGEST_EXACT:
        raise ComponentError("Under secure aggregation each number that is added up must be finite and at most 2^62.")
    result, remainder = np.zeros((LIMBS, *numbers.shape), np.int64), np.ldexp(np.abs(numbers), -32)
    for place in range(LIMBS):
        limb = np.rint(remainder) if place == LIMBS - 1 else np.floor(remainder)
        result[place] = np.where(numbers < 0, -limb, limb)
        remainder = np.ldexp(remainder - limb, 32)
    return result.view(np.uint64)


def sum_of_limbs(total: Words, clients: int) -> Floats:
    """Return the numbers that the sum of (4, ...) words of `clients` clients represents.

    Raises:
        ComponentError: If no such clients can have sent words of this sum.
    """
    signed = total.view(np.int64)
    if (signed > clients * 2**32).any() or (signed < -clients * 2**32).any():
        raise ComponentError(NO_SUM)
    result = np.zeros(total.shape[1:])
    for place, limb in enumerate(signed):
        result = result + np.ldexp(limb.astype(np.float64), 32 * (1 - place))
    return result


# ---------------------------------------------------------------------------------------------- what clients do


def share(weight: float, update: Float32s, code: FixedPoint) -> Words:
    """Return what a client contributes: the (d + 1,) words of weight * update and of the weight."""
    weight_words = code.encode(np.array([weight]))
    return np.concatenate([code.encode(weight * update.astype(np.float64)), weight_words])


def mask(words: Words, client: int, cohort: Sequence[int], pad: Callable[[int, int, int], Words]) -> Words:
    """Return the share with a mask for each other client of the cohort, which that one takes off again.

    Args:
        words: (d + 1,) share of this client.
        pad: Given the ids of two clients, the lower one first, and how many: the random words that these two share and
            the server does not know; others in each round.
    """
    masked = words.copy()
    for peer in cohort:
        if peer == client:
            continue
        one_time = pad(min(client, peer), max(client, peer), len(words))
        masked = masked + one_time if client < peer else masked - one_time  # wraps around at 2^64
    return masked


# --------------------------------------------------------------------------------------------- what the server does


def mean_of(total: Words, code: FixedPoint) -> Floats:
    """Return the (d,) weighted mean from the (d + 1,) sum of all shares, masked or not.

    Raises:
        ComponentError: If the weights are so small that little is left of them in fixed point, or no such clients can
            have sent shares of this sum.
    """
    decoded = code.decode(total)
    weight = float(decoded[-1])
    if not weight >= 0 or not np.abs(decoded).max() <= code.clients * LARGEST:
        raise ComponentError(NO_SUM)
    if weight < code.clients * 2.0**-10:
        raise ComponentError(
            f"Under secure aggregation the raw weights must be at least 1/1024 in the mean, for precision; they sum to "
            f"{weight:.6g} over {code.clients} clients. Multiply them by a constant in the weighting's method `raw`."
        )
    return decoded[:-1] / weight


def weighted_mean_of_shares(raw: Floats, update: Float32s) -> Floats:
    """Return the (d,) mean sum_i raw_i update_i / sum_i raw_i, as the server gets it from the clients' shares.

    The unit 2^-f of `FixedPoint` is 6e-11 for ten clients; `error_bound` says how far off the mean may be.

    Args:
        raw: (r,) weights up to a common factor, not negative, at least 1/1024 in the mean.
        update: (r, d)

    Raises:
        ComponentError: If a raw weight, or it times an update, exceeds 2^24 or is not finite, or the weights are too
        small.

    Example:
        >>> weighted_mean_of_shares(np.array([1.0, 3.0]), np.array([[4.0, 0.0], [0.0, 1.0]], np.float32))
        array([1.  , 0.75])
    """
    code = FixedPoint(len(raw))
    total = np.zeros(update.shape[1] + 1, np.uint64)
    for weight, row in zip(raw, update, strict=True):
        total += share(weight, row, code)
    return mean_of(total, code)


# -------------------- The server sees sums over clients only


@dataclass(frozen=True)
class SecureAggregation(LabelStatistics):
    """Secure aggregation: the server sees sums over clients, not their labels, weights or updates.

    Clients weigh and scale their updates themselves; the server sees sum_i a_i update_i and sum_i a_i. Their quotient
    is the weighted mean, so the model is the same, up to rounding, as if the server had seen the weights
    a_i / sum_j a_j: see `fedreach.federation.secure_aggregation`, which states how far off it may be.

    This needs a weighting in which a_i is the client's own (one with a method `raw`), and a selection that asks for
    neither labels nor updates. Sizes are public in FedReach, and so is the cohort; and a sum over a single client
    is that client's update.

    Use when: the server must see nothing of any single client; then only sums can be used.
    """

    only_sum = True

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return nan: clients compute with their counts, the server does not see them."""
        return np.full(counts.shape, np.nan)
