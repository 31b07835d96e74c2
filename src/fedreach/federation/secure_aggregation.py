"""Secure aggregation: the server sees only sums over clients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

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
# clients exchange keys, and t clients recover the masks of clients that left, see `fedreach.flower.secure`.
#
# Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
# section 4.

Words = NDArray[np.uint64]  # whole numbers modulo 2^64; upper half negative

NO_SUM = (
    "The sum of secure aggregation is invalid. A client sent an invalid share, but the sum does not show which client."
)
LARGEST = 2.0**24  # what a number that a client sends must not exceed
MIN_CLIENTS = 2  # clients in a sum: a sum over one client reveals its update


def too_few(statistics: LabelStatistics, replied: int, clients: int) -> str | None:
    """Return the reason why a round is lost, if too few of the clients of its cohort replied.

    Example:
        >>> too_few(SecureAggregation(), replied=6, clients=10)
        'secure aggregation needs the replies of at least 7 of 10 clients; got 6'
    """
    needed = max(MIN_CLIENTS, statistics.needed_replies(clients))
    if replied >= needed:
        return None
    return f"secure aggregation needs the replies of at least {needed} of {clients} clients; got {replied}"


@dataclass(frozen=True)
class FixedPoint:
    """Encoding of numbers from -2^24 to 2^24 as whole multiples of 2^-f, whose sum over r clients cannot overflow.

    With f = 38 - ceil(log2 r), the sum of r numbers of at most 2^(24 + f) is at most 2^62. The rounding error of a
    number is at most half a unit, 2^-(f + 1).

    Args:
        clients: Number r of clients, at least 1, which all clients know before they send.

    Example:
        >>> code = FixedPoint(clients=2)
        >>> total = code.encode(np.array([0.25, -3.0])) + code.encode(np.array([0.5, 1.0]))
        >>> code.decode(total)
        array([ 0.75, -2. ])
    """

    clients: int

    @property
    def bits(self) -> int:
        """Number f of binary digits after the point."""
        return 38 - (self.clients - 1).bit_length()

    def encode(self, numbers: Floats) -> Words:
        """Return the encoded numbers in the same shape.

        Raises:
            ComponentError: If a number is not finite or exceeds 2^24.
        """
        largest = float(np.abs(numbers).max(initial=0))
        if not largest <= LARGEST:
            raise ComponentError(
                "Under secure aggregation, a client's weight and its weighted update must have no number above "
                f"{LARGEST:.0f}; got {largest:.6g}. Choose a weighting whose raw weights are smaller, lower local.lr, "
                "set local.clip_norm, or let the server see the weights."
            )
        return np.rint(np.ldexp(numbers, self.bits)).astype(np.int64).view(np.uint64)

    def decode(self, total: Words) -> Floats:
        """Return the numbers that a sum of encoded numbers represents."""
        return np.ldexp(total.view(np.int64).astype(np.float64), -self.bits)


LIMBS = 4
LARGEST_EXACT = 2.0**62  # what a number in an exact sum must not exceed


def exact_sum(parts: Sequence[Floats]) -> Floats:
    """Return the sum of arrays of one shape, as the server would compute it from masked shares.

    Numbers of up to 2^62 are rounded to multiples of 2^-64 and stored as four limbs of 32 bits, one limb in each word.
    So the words of 2^31 clients sum without overflow, and to the same bits in any order. A simulation omits the masks.

    Raises:
        ComponentError: If a number is not finite or exceeds 2^62.

    Example:
        >>> exact_sum([np.array([1e15, 0.25]), np.array([0.5, -1.0])])
        array([ 1.0e+15, -7.5e-01])
    """
    total = np.zeros((LIMBS, *parts[0].shape), np.uint64)
    for part in parts:
        total += limbs(part)
    return sum_of_limbs(total, len(parts))


def limbs(numbers: Floats) -> Words:
    """Return a client's numbers of any shape (...) as (4, ...) words for `exact_sum`.

    Raises:
        ComponentError: If a number is not finite or exceeds 2^62.
    """
    if not np.abs(numbers).max(initial=0) <= LARGEST_EXACT:
        raise ComponentError("Under secure aggregation, each number to sum must be finite and at most 2^62.")
    result, remainder = np.zeros((LIMBS, *numbers.shape), np.int64), np.ldexp(np.abs(numbers), -32)
    for place in range(LIMBS):
        limb = np.rint(remainder) if place == LIMBS - 1 else np.floor(remainder)
        result[place] = np.where(numbers < 0, -limb, limb)
        remainder = np.ldexp(remainder - limb, 32)
    return result.view(np.uint64)


def sum_of_limbs(total: Words, clients: int) -> Floats:
    """Return the numbers that the sum of (4, ...) words of `clients` clients represents.

    Raises:
        ComponentError: If valid words of `clients` clients cannot have this sum.
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
    """Return a client's contribution to the sum: the (d + 1,) words of weight * update and of the weight."""
    weight_words = code.encode(np.array([weight]))
    return np.concatenate([code.encode(weight * update.astype(np.float64)), weight_words])


def mask(words: Words, client: int, cohort: Sequence[int], pad: Callable[[int, int, int], Words]) -> Words:
    """Return the share plus a mask for each other client of the cohort, which the other client subtracts.

    Args:
        words: (d + 1,) share of this client.
        pad: Function of the ids of two clients, the lower id first, and a number of words. It returns random words that
            only these two clients know, and which differ in each round.
    """
    masked = words.copy()
    for peer in cohort:
        if peer == client:
            continue
        one_time = pad(min(client, peer), max(client, peer), len(words))
        masked = masked + one_time if client < peer else masked - one_time  # wraps around at 2^64
    return masked


# --------------------------------------------------------------------------------------------- what the server does


def mean_of(total: Words, code: FixedPoint, replied: int | None = None) -> Floats:
    """Return the (d,) weighted mean from the (d + 1,) sum of shares, masked or not.

    Args:
        replied: Number of clients in the sum. Default: all clients of the code.

    Raises:
        ComponentError: If the weights are too small for the fixed-point precision, or if valid shares cannot have this
            sum.
    """
    decoded, replied = code.decode(total), code.clients if replied is None else replied
    weight = float(decoded[-1])
    if not weight >= 0 or not np.abs(decoded).max() <= replied * LARGEST:
        raise ComponentError(NO_SUM)
    if weight < replied * 2.0**-10:
        raise ComponentError(
            "Under secure aggregation, the mean raw weight must be at least 1/1024, for precision; got a sum of "
            f"{weight:.6g} over {replied} clients. Multiply the weights by a constant in the weighting's method "
            "`raw`."
        )
    return decoded[:-1] / weight


def weighted_mean_of_shares(raw: Floats, update: Float32s, clients: int | None = None) -> Floats:
    """Return the (d,) mean sum_i raw_i update_i / sum_i raw_i, as the server computes it from the clients' shares.

    The unit 2^-f of `FixedPoint` is 6e-11 for ten clients. A test checks a bound on the error of the mean.

    Args:
        raw: (r,) weights up to a common factor, not negative, with a mean of at least 1/1024.
        update: (r, d) updates of the clients.
        clients: Number of clients that were asked, on which the encoding depends. Default: r.

    Raises:
        ComponentError: If a raw weight or a weighted update exceeds 2^24 or is not finite, or if the weights are too
        small.

    Example:
        >>> weighted_mean_of_shares(np.array([1.0, 3.0]), np.array([[4.0, 0.0], [0.0, 1.0]], np.float32))
        array([1.  , 0.75])
    """
    code = FixedPoint(len(raw) if clients is None else clients)
    total = np.zeros(update.shape[1] + 1, np.uint64)
    for weight, row in zip(raw, update, strict=True):
        total += share(weight, row, code)
    return mean_of(total, code, len(raw))


# -------------------- The server sees sums over clients only


@dataclass(frozen=True)
class SecureAggregation(LabelStatistics):
    """Secure aggregation: the server sees sums over clients, not their labels, weights or updates.

    Clients multiply their updates by their weights. The server sees only sum_i a_i update_i and sum_i a_i. Their
    quotient is the weighted mean with weights a_i / sum_j a_j. So the model is the same as without secure aggregation,
    up to rounding errors, see `FixedPoint`.

    Secure aggregation requires a weighting in which a_i depends on client i alone (with a method `raw`). The selection
    must not read labels or updates. The numbers of examples and the cohort are public in FedReach.

    Clients may leave at any time. The sum is over the clients whose replies arrive, if they are at least
    t = floor(threshold n) + 1 of the n clients of the cohort, and at least 2. Otherwise the round counts for no
    client, and nothing is revealed. With the default, up to three of ten clients may leave, but none of three.

    Use when: the server must not see labels or updates of single clients, and you trust the clients' updates: neither
    the server nor the protocol can bound the norm of an update in the sum, so a single client can change the model at
    will.

    Args:
        threshold: Share of the cohort that must be exceeded, in [0.5, 1). Below 2/3, more clients may leave, but fewer
            clients that collude with the server suffice to reveal a single update.

    Raises:
        ConfigError: If `threshold` is out of range.

    Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
    section 4 and figure 4.

    Example:
        >>> [SecureAggregation().needed_replies(n) for n in (2, 3, 4, 10, 100)]
        [2, 3, 3, 7, 67]
    """

    threshold: Annotated[float, "[0.5, 1)"] = 2 / 3
    only_sum = True

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return nan, because the server does not see the counts that clients use."""
        return np.full(counts.shape, np.nan)

    def needed_replies(self, clients: int) -> int:
        """Return t = floor(threshold n) + 1, at least 2.

        Each client has two secrets, and t shares recover a secret. Both together would reveal its update. Each client
        reveals one share for each other client. A server that lies to clients gets at most n shares, or n + c if c
        clients help it by revealing both. For both secrets it needs 2 t shares. So it fails if the threshold is at
        least 1/2 and c = 0, or with the default, 2/3, if c is at most a third of the clients.
        """
        return max(MIN_CLIENTS, min(clients, math.floor(self.threshold * clients) + 1))
