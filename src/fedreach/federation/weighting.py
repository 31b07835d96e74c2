"""Aggregation weights, which determine the influence of each client result."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation.base import OfFunction, Weighting, name_of
from fedreach.federation.checks import check_weights
from fedreach.federation.measurements import Disagreement, When
from fedreach.federation.types import ClientResults, State

# -------------------- Weights of the client's own, and functions


class OwnWeight(Weighting):
    """Base class of weightings w_i = a_i / sum_j a_j, where a_i depends on client i alone; implement `raw`.

    Clients can then scale their updates themselves, and the server needs only the sums of a_i update_i and of a_i (see
    `fedreach.federation.secure_aggregation`).
    """

    @abstractmethod
    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return the (r,) numbers a_i, not negative, each computed from the client's own metrics."""

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        return normalize_weights(self, self.raw(reports.metrics)), state


def normalize_weights(weighting: object, raw: Floats) -> Floats:
    """Return the numbers divided by their sum, or raise an error that names the weighting."""
    if not ((raw >= 0).all() and 0 < (total := raw.sum()) < np.inf):
        raise ComponentError(
            f"{name_of(weighting)} must return numbers that are not negative and not all 0; got {raw}."
        )
    return np.asarray(raw / total)


@dataclass(frozen=True)
class FunctionWeighting(OfFunction, Weighting):
    """Weighting by ``function(reports) -> (r,) numbers``, which are divided by their sum.

    FedReach reads two attributes of the function: ``needs`` names client statistics, and ``measures`` lists
    measurements of clients.

    Example:
        >>> update = np.zeros((2, 1), np.float32)
        >>> reports = ClientResults(np.arange(2), update, {"num_examples": np.array([1.0, 3.0])})
        >>> FunctionWeighting(lambda reports: reports.metrics["num_examples"] ** 2).weights({}, reports)[0]
        array([0.1, 0.9])
    """

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        return normalize_weights(self, np.asarray(self.function(reports), dtype=np.float64)), state


# -------------------- Equal weights


@dataclass(frozen=True)
class Equal(OwnWeight):
    """Equal weights: w_i = 1 / r for r replies.

    Use when: every client should have the same weight, regardless of its number of examples.
    """

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return np.ones(len(metrics["num_examples"]))


# -------------------- Weights by number of examples


@dataclass(frozen=True)
class ByExamples(OwnWeight):
    """Weights by number of examples: w_i = m_i / sum_j m_j, where m_i is client i's number of examples.

    Use when: every example should have the same weight. This is the default, and most theory assumes it.

    Reference: McMahan et al., AISTATS 2017, Algorithm 1.
    """

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return metrics["num_examples"]


# -------------------- Weights by number of draws


@dataclass(frozen=True)
class ByDraws(OwnWeight):
    """Weights by number of draws: w_i = t_i / sum_j t_j, where client i was drawn t_i times.

    The result is the mean over draws, so a client that was drawn twice counts twice. The draws of lost replies are not
    counted. If each client is drawn once, the weights equal those of `equal`.

    Use when: the selection draws with replacement and with probabilities that depend on the number of examples, as
    `multinomial`, `urns_by_size` and `urns_by_similarity` do. Other weightings would favor large clients twice.

    Reference: Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling", ICML 2021, section 2.

    Example:
        >>> ByDraws().raw({"num_examples": np.array([10.0, 90.0]), "draws": np.array([1.0, 3.0])})
        array([1., 3.])
    """

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return metrics["draws"] if "draws" in metrics else np.ones(len(metrics["num_examples"]))


# -------------------- Combined weightings: checks and states


def check_parts(owner: str, parts: Any) -> tuple[Weighting, ...]:
    """Return the parts as a tuple, or raise an error with the name of the part that is not a weighting.

    Raises:
        ConfigError: If `parts` is empty, or if a part is not a weighting.
    """
    listed = isinstance(parts, Iterable) and not isinstance(parts, str)
    weightings: tuple[Any, ...] = tuple(parts) if listed else (parts,)
    if not weightings:
        raise ConfigError(f"{owner} must contain at least one weighting; got none.")
    for part in weightings:
        if not isinstance(part, Weighting):
            raise ConfigError(f"{owner} must contain only weightings, such as ByEntropy(); got {part!r}.")
    return weightings


def weights_of(parts: Mapping[str, Weighting], state: State, reports: ClientResults) -> tuple[list[Floats], State]:
    """Return the (r,) weights of each part, and the new state of all parts.

    The state of a part is stored under its name, in arrays called ``"NAME.KEY"``.
    """
    all_weights: list[Floats] = []
    new_state: dict[str, AnyArray] = {}
    for name, part in parts.items():
        prefix = f"{name}."
        part_state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        weights, new = check_weights(part, part.weights(part_state, reports), len(reports.ids))
        all_weights.append(weights)
        new_state |= {prefix + key: value for key, value in new.items()}
    return all_weights, new_state


class Several(Weighting):
    """Base class of weightings that combine several parts with one factor each, by default 1.

    `factors` is the name of the option with the factors.
    """

    parts: tuple[Weighting, ...]
    factors: ClassVar[str]

    def __post_init__(self) -> None:
        parts, option = check_parts(f"{type(self).__name__}.parts", self.parts), f"{type(self).__name__}.{self.factors}"
        given: Sequence[float] | None = getattr(self, self.factors)
        numbers = (1.0,) * len(parts) if given is None else tuple(given)
        if len(numbers) != len(parts):
            raise ConfigError(f"{option} must have one number for each of the {len(parts)} parts; got {list(numbers)}.")
        if not (np.isfinite(numbers).all() and min(numbers) >= 0 and max(numbers) > 0):
            raise ConfigError(f"{option} must be finite, not negative and not all 0; got {list(numbers)}.")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, self.factors, numbers)

    def part_weights(self, state: State, reports: ClientResults) -> tuple[list[Floats], State]:
        """Return the (r,) weights of each part, and the new state of all parts."""
        return weights_of({str(j): part for j, part in enumerate(self.parts)}, state, reports)


# -------------------- Clipped weights


@dataclass(frozen=True)
class Clip(Weighting):
    """Clipped weights: a cap on each weight, with the excess distributed among smaller weights in proportion.

    v_i = min(cap, factor w_i), with the factor for which the v_i sum to 1, as in ``{ name = "clip", inner = "entropy",
    max = 0.3 }``. Weights below the cap keep their ratios. If all clients with positive weight reach the cap, clients
    with weight 0 share the remaining weight equally.

    The cap is the smaller of `max` and `times_equal` / r, but at least 1 / r, because r smaller weights cannot sum to
    1. So with fewer than 1 / `max` replies, all weights are equal. With one model per cluster, all of this applies to
    the r replies for each model.

    Each weight depends on all clients, so secure aggregation does not support this weighting.

    Use when: another weighting might let one client dominate.

    Args:
        inner: Weighting to clip.
        max: Largest weight, above 0 and at most 1. None: no limit.
        times_equal: Largest weight as a multiple of 1 / r, at least 1. None: no limit.

    Raises:
        ConfigError: If `inner` is not a weighting, if both limits are missing, or if a limit is out of range.

    Example:
        >>> from fedreach.federation.weighting import ByExamples
        >>> metrics = {"num_examples": np.array([60.0, 30.0, 10.0])}
        >>> reports = ClientResults(np.arange(3), np.zeros((3, 1), np.float32), metrics)
        >>> Clip(ByExamples(), max=0.4).weights({}, reports)[0]
        array([0.4, 0.4, 0.2])
    """

    inner: Weighting
    max: Annotated[float | None, "(0, 1]"] = None
    times_equal: Annotated[float | None, "[1, inf]"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts("Clip.inner", (self.inner,))
        if self.max is None and self.times_equal is None:
            raise ConfigError("Clip must have a limit. Set `max`, such as 0.3, or `times_equal`, such as 2.")

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        (weights,), new = weights_of({"inner": self.inner}, state, reports)
        r = len(weights)
        limits = [1.0 if self.max is None else self.max, 1.0 if self.times_equal is None else self.times_equal / r]
        return cap_weights(weights, max(min(limits), 1 / r)), new


def cap_weights(weights: Floats, cap: float) -> Floats:
    """Return the weights v_i = min(cap, factor * w_i) with sum 1, given r weights w_i with sum 1 and cap >= 1 / r.

    Example:
        >>> cap_weights(np.array([0.8, 0.15, 0.05, 0.0]), 0.5), cap_weights(np.array([1.0, 0.0, 0.0]), 0.5)
        (array([0.5 , 0.375, 0.125, 0. ]), array([0.5 , 0.25, 0.25]))
    """
    result, full = weights, np.zeros(len(weights), np.bool_)
    while (result > cap).any():  # in each pass another client reaches the cap
        full |= result > cap
        uncapped = np.where(full, 0, weights)
        uncapped = uncapped / uncapped.max() if uncapped.any() else (~full).astype(np.float64)
        remaining = max(1 - cap * full.sum(), 0)  # rounding
        result = np.where(full, cap, uncapped * (remaining / max(uncapped.sum(), 1)))
    return result


# -------------------- Averaged weightings


@dataclass(frozen=True)
class Mix(Several):
    """Weighted average of weightings: w_i = sum_j s_j w_ij, where w_ij is the weight of client i in part j.

    A share of equal weights gives every client a positive weight: ``{ name = "mix", parts = ["entropy", "equal"],
    shares = [9, 1] }``.

    Each weight depends on all clients, so secure aggregation does not support this weighting.

    Use when: several criteria should be balanced, and no criterion should exclude a client.

    Args:
        parts: Weightings, at least one.
        shares: Share of each part, finite, at least 0, not all 0. FedReach divides the shares by their sum. Default:
            equal shares.

    Raises:
        ConfigError: If a part is not a weighting or a share is out of range.

    Example:
        >>> from fedreach.federation.weighting import ByExamples, Equal
        >>> update = np.zeros((2, 1), np.float32)
        >>> reports = ClientResults(np.arange(2), update, {"num_examples": np.array([10.0, 90.0])})
        >>> Mix((ByExamples(), Equal()), shares=(3, 1)).weights({}, reports)[0]
        array([0.2, 0.8])
    """

    parts: tuple[Weighting, ...]
    shares: Sequence[float] | None = None
    factors = "shares"

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        part_weights, new = self.part_weights(state, reports)
        return np.average(part_weights, axis=0, weights=self.shares), new


# -------------------- Multiplied weightings


@dataclass(frozen=True)
class Product(Several):
    """Product of weightings: only clients with large weights in all parts have a large weight.

    w_i is proportional to prod_j (w_ij)^e_j, where w_ij is the weight of client i in part j. For example, ``{ name =
    "product", parts = ["entropy", "by_examples"] }`` combines entropy and number of examples.

    Use when: a client must satisfy several criteria at once.

    Args:
        parts: Weightings, at least one.
        exponents: Exponent e_j of each part, finite and at least 0. Default: 1. An exponent of 0 ignores the part, and
            0.5 applies the square root.

    Raises:
        ConfigError: If a part is not a weighting or an exponent is out of range.
        ComponentError: If every client has weight 0 in some part.

    Example:
        >>> from fedreach.federation.weighting import ByExamples, Equal
        >>> update = np.zeros((2, 1), np.float32)
        >>> reports = ClientResults(np.arange(2), update, {"num_examples": np.array([10.0, 90.0])})
        >>> Product((ByExamples(), Equal()), exponents=(0.5, 1)).weights({}, reports)[0]
        array([0.25, 0.75])
    """

    parts: tuple[Weighting, ...]
    exponents: Sequence[float] | None = None
    factors = "exponents"

    @property
    def has_own_weights(self) -> bool:  # type: ignore[override]
        return all(part.has_own_weights for part in self.parts)

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return prod_j (a_ij)^e_j; every part must have a method `raw`."""
        return self._multiply([part.raw(metrics) for part in self.parts])

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        part_weights, new = self.part_weights(state, reports)
        raw = self._multiply([weights / weights.max() for weights in part_weights])  # many small ones stay above 0
        if not raw.any():
            raise ComponentError(
                "Product: at least one client must have a positive weight in all of "
                f"{', '.join(map(name_of, self.parts))}."
            )
        return raw / raw.sum(), new

    def _multiply(self, columns: Sequence[Floats]) -> Floats:
        assert self.exponents is not None  # filled in by `__post_init__`
        return np.asarray(np.prod([column**e for column, e in zip(columns, self.exponents, strict=True)], axis=0))


# -------------------- Weights by disagreement of bounds


@dataclass(frozen=True)
class ByDisagreement(OwnWeight):
    """Disagreement weighting: smaller weights for clients with a large gap between the bounds on their loss.

    w_i is proportional to 1 / eta_i, where eta_i > 0 is the disagreement between upper and lower bounds under a data
    shift. Client i measures it on its training data, by default after local training, see `Disagreement`.

    With the default options, 1 / eta is 3.3 if the model fits a client's examples perfectly, and 0.3 if it does not fit
    them. So clients with a single class or with memorized noise also have large weights.

    Use when: data of some clients may be noisy or narrow, and clients can afford extra passes over their data.

    Args:
        loss: Option of `Disagreement`, as are `radius`, `step`, `confidence` and `when`.

    Raises:
        ConfigError: If an option is out of range.

    Reference: "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936), eq.
    20.

    Example:
        >>> import numpy as np
        >>> ByDisagreement().raw({"disagreement": np.array([0.5, 2.0])})
        array([2. , 0.5])
    """

    loss: Literal["jsd", "zero_one"] = "jsd"
    radius: float = 0.2
    step: float = 0.02
    confidence: float | None = None
    when: When = "after"

    def __post_init__(self) -> None:
        _ = self.measures  # checks the options

    @property
    def measures(self) -> tuple[Disagreement]:  # type: ignore[override]
        return (Disagreement(self.loss, self.radius, self.step, self.confidence, self.when),)

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return 1 / metrics["disagreement"]


# -------------------- Weights by label entropy


@dataclass(frozen=True)
class ByEntropy(OwnWeight):
    """Entropy weighting: larger weights for clients with varied labels.

    w_i is proportional to exp(H_i / T), where H_i = -sum_c p_ic ln p_ic is the entropy of the labels of client i in
    nats. Two weights differ by at most a factor of c^(1/T) for c classes. With T = 1, this is the factor between a
    client with uniform labels and a client with one class.

    Use when: clients may reveal their label counts, and each client has few classes.

    Args:
        temperature: Temperature T in nats, at least 0.02. The paper uses 1. With a large T, weights are almost equal.
            With a small T, only the clients with the largest entropy have a notable weight.

    Raises:
        ConfigError: If `temperature` is out of range.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), eq. 9 and 20, a softmax over the clients that replied.
    The temperature is an extension; T -> 0 gives its eq. 8.

    Example:
        >>> entropy = np.array([0.0, 0.6931471806, 1.2798542258, 1.3862943611])
        >>> softmax(entropy).round(4), softmax(entropy / 0.5).round(4)
        (array([0.0944, 0.1887, 0.3394, 0.3775]), array([0.0295, 0.1179, 0.3811, 0.4715]))
    """

    needs = ("label_entropy",)

    temperature: Annotated[float, "[0.02, inf)"] = 1.0

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return exp(H_i / T), between 1 and c^(1/T)."""
        return np.exp(metrics["label_entropy"] / self.temperature)

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        """Return the same (r,) weights as from `raw`, with a formula that cannot overflow."""
        return softmax(reports.metrics["label_entropy"] / self.temperature), state


def softmax(logits: Floats) -> Floats:
    """Return exp(x_i) / sum_j exp(x_j), shifted by the largest x_i to avoid overflow."""
    raw = np.exp(logits - logits.max())
    return np.asarray(raw / raw.sum())


# -------------------- FedAU


@dataclass(frozen=True)
class FedAU(Weighting):
    """FedAU weighting (Wang and Ji, 2024): larger weights for clients that participate rarely.

    The rounds of each client are divided into intervals. An interval ends when the server uses a reply of the client,
    or after `cutoff` rounds. The number a_i is the mean length of the intervals that ended before this round, or 1 if
    there are none. It estimates the inverse of the client's participation probability. The server's step is

        (1 / n) sum_i a_i u_i,

    where n is the number of participants that share the model. If the estimates are correct, the expected step is the
    mean over all n clients. Replies have weights w_i = a_i / sum_j a_j, and their mean is multiplied by sum_j a_j / n.
    The first steps are short: with k of n clients, the step in round 1 is k / n of the mean. Inside `product`, `mix`
    and `clip` only the ratios of the a_i matter.

    Use when: clients differ in availability (`population.participation`) by unknown amounts, and every client should
    have the same influence. If all clients are available equally often, use `equal`, which has the same expected step
    without short first steps.

    Args:
        cutoff: Largest length K of an interval in rounds, at least 1. The authors' code uses 50 or no limit. A small K
            limits the weights of rare clients. Clients that are available less often than every K rounds then have too
            little influence.

    Raises:
        ConfigError: If `cutoff` is out of range.

    Reference: Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
    ICLR 2024, Algorithms 1 and 2, with intervals as in the authors' code, github.com/IBM/fedau.

    Example:
        >>> weighting, metrics = FedAU(), {"num_examples": np.ones(2)}
        >>> update = np.zeros((2, 1), np.float32)
        >>> _, state = weighting.weights({}, ClientResults(np.array([0, 1]), update, metrics, round=3))
        >>> _, state = weighting.weights(state, ClientResults(np.array([0, 2]), update, metrics, round=4))
        >>> results = ClientResults(np.array([0, 1]), update, metrics, round=5)
        >>> weighting.weights(state, results)[0]  # means 4 / 2 and 3 / 1
        array([0.4, 0.6])
    """

    cutoff: Annotated[int, "[1, inf)"] = 50

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        """Return the (r,) weights, and the intervals of all clients that replied so far."""
        ids, intervals, end, where = self._history(state, reports)
        raw = self._mean_lengths(intervals[where], end[where])
        intervals[where], end[where] = intervals[where] + 1, reports.round
        return normalize_weights(self, raw), {"ids": ids, "intervals": intervals, "end": end}

    def mean_scale(self, state: State, reports: ClientResults, n: int) -> float:
        """Return sum_j a_j / n."""
        _, intervals, end, where = self._history(state, reports)
        return float(self._mean_lengths(intervals[where], end[where]).sum() / n)

    def _history(self, state: State, reports: ClientResults) -> tuple[Ints, Ints, Ints, Ints]:
        """Return all clients that replied so far, their numbers of intervals, their last ends, and reply positions."""
        before = state.get("ids", reports.ids[:0])
        ids = np.union1d(before, reports.ids)
        intervals, end = np.zeros((2, len(ids)), np.int64)
        if len(before):
            old = np.searchsorted(ids, before)
            intervals[old], end[old] = state["intervals"], state["end"]
        where = np.searchsorted(ids, reports.ids)
        cut = (reports.round - 1 - end[where]) // self.cutoff
        intervals[where] += cut
        end[where] += cut * self.cutoff
        return ids, intervals, end, where

    def _mean_lengths(self, intervals: Ints, end: Ints) -> Floats:
        """Return the mean lengths of the intervals, which cover all rounds without gaps."""
        return np.where(intervals > 0, end / np.maximum(intervals, 1), 1.0)


# -------------------- FedNova

EXAMPLES = ByExamples()


@dataclass(frozen=True)
class FedNova(Weighting):
    """FedNova (Wang et al., 2020): normalized averaging of updates per local step.

    With the update u_i of a client after tau_i local steps and the weight p_i from `inner`, the server's step is

        (sum_i p_i tau_i) sum_i p_i u_i / tau_i.

    So w_i is proportional to p_i / tau_i, and the mean is multiplied by (sum_i p_i tau_i) (sum_i p_i / tau_i), at least
    1. FedAvg's step, sum_i p_i u_i, favors clients with many steps. So it does not minimize sum_i p_i f_i. With equal
    numbers of steps, FedNova equals FedAvg.

    With local momentum, tau_i is the total contribution of the gradients, |a_i|_1 in the paper, see
    `LocalSGD.moved_steps`. Unlike in the paper, tau_i does not include a proximal term or weight decay. Inside
    `product`, `mix` and `clip` only the ratios of the w_i matter. Secure aggregation does not support FedNova, because
    the factor depends on all clients.

    Use when: clients perform different numbers of local steps, due to `local.epochs` with unequal numbers of examples,
    or `local.steps` as a table.

    Args:
        inner: Weighting that defines the p_i. Default: by number of examples, as in the paper.

    Raises:
        ConfigError: If `inner` is not a weighting.

    Reference: Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
    Federated Optimization", NeurIPS 2020, eq. 5 to 8, with tau_eff = sum_i p_i |a_i|_1, as in the authors' code
    (github.com/JYWa/FedNova) for plain steps and momentum.

    Example:
        >>> metrics = {"num_examples": np.array([10.0, 10.0]), "steps": np.array([1.0, 4.0])}
        >>> reports = ClientResults(np.arange(2), np.array([[1], [4]], np.float32), metrics)
        >>> weights, _ = FedNova().weights({}, reports)
        >>> scale = FedNova().mean_scale({}, reports, n=2)
        >>> weights, scale, scale * weights @ reports.update  # 2.5 steps, each of length 1
        (array([0.8, 0.2]), 1.5625, array([2.5]))
    """

    inner: Weighting = EXAMPLES

    def __post_init__(self) -> None:
        check_parts("FedNova.inner", (self.inner,))

    def weights(self, state: State, reports: ClientResults) -> tuple[Floats, State]:
        (share,), new = weights_of({"inner": self.inner}, state, reports)
        return normalize_weights(self, share / steps_of(reports)), new

    def mean_scale(self, state: State, reports: ClientResults, n: int) -> float:
        """Return (sum_i p_i tau_i) (sum_i p_i / tau_i)."""
        (share,), _ = weights_of({"inner": self.inner}, state, reports)
        steps = steps_of(reports)
        return float((share @ steps) * (share / steps).sum())


def steps_of(reports: ClientResults) -> Floats:
    """Return (r,) numbers of steps tau_i; 1 for all clients if the client results contain none."""
    return reports.metrics.get("steps", np.ones(len(reports.ids)))


# -------------------- Table of weightings

WEIGHTINGS: Mapping[str, Any] = {
    "by_examples": ByExamples,
    "equal": Equal,
    "by_draws": ByDraws,
    "entropy": ByEntropy,
    "disagreement": ByDisagreement,
    "fedau": FedAU,
    "fednova": FedNova,
    "product": Product,
    "mix": Mix,
    "clip": Clip,
}
