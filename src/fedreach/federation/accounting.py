"""Accounting of differential privacy: the noise for a budget, the guarantee of a run, and what it rules out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach._util.errors import ConfigError
from fedreach._util.tables import count_noun
from fedreach.federation.adaptation.fitting import SumNoise
from fedreach.federation.base import name_of
from fedreach.federation.differential_privacy import (
    DPFTRL,
    SECURE_NOISE,
    DPFedAvg,
    PrivateAggregator,
    tree_sensitivity,
)
from fedreach.federation.participation import Always, Participation
from fedreach.federation.secure_aggregation import MIN_CLIENTS
from fedreach.federation.selection.random import Full, LeastOften, Poisson, Uniform
from fedreach.federation.types import NO_STATE, State
from fedreach.federation.weighting import Equal

if TYPE_CHECKING:
    from fedreach.federation.federation import Federation

# -------------------- Events and accountants of dp-accounting

ORDERS = [*range(2, 33), 40, 48, 64, 96, 128]  # of RDP; dp-accounting warns about others, and larger ones take long
PLD_INTERVAL = 1e-3  # of the losses of PLD; epsilon is an upper bound for any interval
MIN_NOISE = 0.01  # noise multiplier whose epsilon is above any budget
MAX_PLD_EPSILON = 50.0  # above it, RDP decides, because PLD needs much memory
ADAPTATION_SHARE = 0.25  # share of epsilon that the fit of an adaptation rule alone would spend


@dataclass(frozen=True)
class Setting:
    """What a guarantee depends on.

    Args:
        sampling: ``"poisson"``, ``"uniform"``, ``"full"`` or ``"least_often"``, as the selection.
        participants: Number of participants n.
        cohort_size: Expected number of clients in a round.
        rounds: Number of rounds.
        participations: Largest number of participations of a client.
        gap: Smallest number of rounds from one participation of a client to its next.
        tree: Noise of a binary tree.
        accountant: ``"pld"`` or ``"rdp"``.
        secure: Secure aggregation, with noise of the clients.
        adaptation_noise: Noise multiplier of the fit of an adaptation rule. None: no fit.
    """

    sampling: str
    participants: int
    cohort_size: int
    rounds: int
    participations: int
    tree: bool
    accountant: str
    gap: int = 1
    secure: bool = False
    adaptation_noise: float | None = None

    @property
    def neighbors(self) -> str:
        """The two sets of clients that the guarantee compares.

        Under secure aggregation, a client that is added could let a whole sum succeed, and change its noise. So its
        updates become zeros, and cohorts, replies and noise remain. Sampling has the same effect as for added clients.
        """
        if self.sampling == "uniform":
            return "one client is replaced"
        by_zeros = self.secure or self.sampling == "least_often"
        return "what one client sends is replaced by zeros" if by_zeros else "one client is added or removed"

    @property
    def revealing(self) -> float:
        """Probability, at most, that a sum over two clients shows that a client was drawn.

        A sum needs two clients. If the others of a cohort are exactly one, the client decides whether there is a sum.
        Each round adds the probability of this to delta. Else all is as without secure aggregation.
        """
        if not self.secure or self.sampling != "poisson":
            return 0.0
        q, num_others = self.cohort_size / self.participants, self.participants - 1
        return self.rounds * q * num_others * q * (1 - q) ** max(num_others - 1, 0)

    @property
    def fit_change(self) -> int:
        """Change of the adaptation rule's sums by a client, in units of their bound; all participants contribute."""
        return 2 if self.sampling == "uniform" else 1

    def event(self, noise_multiplier: float) -> Any:
        """Return the event of dp-accounting for all rounds and the fit of the adaptation rule."""
        training = self._training(noise_multiplier)
        if self.adaptation_noise is None:
            return training
        dp = _dp_accounting()
        return dp.ComposedDpEvent([training, dp.GaussianDpEvent(self.adaptation_noise / self.fit_change)])

    def _training(self, noise_multiplier: float) -> Any:
        dp = _dp_accounting()
        if self.tree:
            return dp.GaussianDpEvent(noise_multiplier / tree_sensitivity(self.rounds, self.participations, self.gap))
        if self.sampling in ("full", "least_often"):
            return dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise_multiplier), self.participations)
        if self.sampling == "poisson":
            q = self.cohort_size / self.participants
            event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(noise_multiplier))
        else:
            # Replacing a client changes the sum by up to twice the clipping norm. dp-accounting's RDP of sampling
            # without replacement divides the noise by the sensitivity, so half of the noise multiplier is passed.
            inner = dp.GaussianDpEvent(noise_multiplier / 2)
            event = dp.SampledWithoutReplacementDpEvent(self.participants, self.cohort_size, inner)
        return dp.SelfComposedDpEvent(event, self.rounds)

    def new_accountant(self, kind: str) -> Any:
        """Return an accountant of dp-accounting without events."""
        dp = _dp_accounting()
        relation = {
            "uniform": dp.NeighboringRelation.REPLACE_ONE,
            "least_often": dp.NeighboringRelation.REPLACE_SPECIAL,
        }.get(self.sampling, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
        if kind == "rdp":
            return dp.rdp.RdpAccountant(ORDERS, relation)
        return dp.pld.PLDAccountant(relation, PLD_INTERVAL)


@lru_cache
def epsilon_of(setting: Setting, noise_multiplier: float, delta: float) -> float:
    """Return the epsilon of all rounds.

    Example:
        >>> # TensorFlow Privacy, compute_dp_sgd_privacy_test.py, Test0: 0.7242234026109595
        >>> setting = Setting("poisson", 60_000, 150, rounds=6000, participations=6000, tree=False, accountant="rdp")
        >>> round(epsilon_of(setting, 1.3, 1e-5), 9)
        0.724223403
    """
    event = setting.event(noise_multiplier)
    epsilon = float(setting.new_accountant("rdp").compose(event).get_epsilon(delta))
    if setting.accountant == "rdp" or epsilon > MAX_PLD_EPSILON:
        return epsilon
    return min(epsilon, float(setting.new_accountant("pld").compose(event).get_epsilon(delta)))


@lru_cache
def noise_for(setting: Setting, epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier, up to 0.1%, with at most this epsilon after all rounds.

    Example:
        >>> setting = Setting("full", 10, 10, rounds=1, participations=1, tree=False, accountant="pld")
        >>> round(noise_for(setting, 1.0, 1e-5), 2)  # Balle and Wang, ICML 2018, Algorithm 1: 3.7304
        3.73
    """
    dp = _dp_accounting()

    def search(kind: str, bracket: Any, tolerance: float) -> float:
        new_accountant = partial(setting.new_accountant, kind)
        return float(dp.calibrate_dp_mechanism(new_accountant, setting.event, epsilon, delta, bracket, tol=tolerance))

    noise = search("rdp", dp.LowerEndpointAndGuess(MIN_NOISE, 1.0), 1e-3)
    if setting.accountant == "rdp" or epsilon > MAX_PLD_EPSILON:
        return noise
    return search("pld", dp.ExplicitBracketInterval(noise / 2, noise), 1e-3 * noise)


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ConfigError(
            "Differential privacy needs the package dp-accounting; it is not installed. Use "
            "pip install 'fedreach[private]'."
        ) from error
    return dp_accounting


# -------------------- The guarantee of a run


@dataclass(frozen=True)
class ServerGuarantee:
    """Guarantee of the sums of secure aggregation, with the same delta as the models.

    The server knows the cohorts, so sampling hides nothing. It sees the noise of the clients alone, of which at least t
    of n are in a sum (see `LabelStatistics.needed_replies`). So the noise multiplier is at least z sqrt(t / n).
    """

    epsilon: float
    noise_multiplier: float
    participations: int  # largest number of a client
    neighbors: str = "the updates of one client are replaced by zeros"

    @property
    def statement(self) -> str:
        """The guarantee with its assumption."""
        return (
            f" The sums that the server sees are (ε = {_rounded_up(self.epsilon):g})-private, with the same δ, if "
            f"{self.neighbors} (at most {count_noun(self.participations, 'round')} of a client; noise "
            f"{self.noise_multiplier:.4g} x clip). No client reveals its noise."
        )


def _rounded_up(epsilon: float) -> float:
    return math.ceil(1000 * epsilon) / 1000


@dataclass(frozen=True)
class Guarantee:
    """Guarantee of a run and its assumptions, as stored in its result."""

    epsilon: float
    delta: float
    noise_multiplier: float
    clip: float
    rounds: int
    participants: int
    cohort_size: int
    sampling: str
    participations: int  # largest number of a client
    gap: int  # smallest number of rounds from one participation of a client to its next
    mechanism: str
    neighbors: str
    accountant: str
    server: ServerGuarantee | None = None  # under secure aggregation, also of the sums that the server sees
    adaptation_noise: float | None = None  # noise multiplier of the fit of the adaptation rule; None: no fit

    @property
    def statement(self) -> str:
        """The guarantee with its assumptions, and what it does not cover."""
        cohorts = {
            "poisson": f"each of {self.participants} clients with probability {self.cohort_size}/{self.participants}",
            "uniform": f"{self.cohort_size} of {self.participants} clients without replacement",
            "full": f"all {self.participants} clients",
        }.get(self.sampling, f"each client in at most {self.participations}, {self.gap} apart")
        rule, fit = "", ""
        if self.adaptation_noise is not None:
            rule, fit = " with the adaptation rule", f", for the rule {self.adaptation_noise:.4g} x bound"
        server = "" if self.server is None else self.server.statement
        if self.server is not None and self.sampling == "poisson":
            server += " No single client decides whether a round has enough replies."
        replies = ", replies" if server else ""
        return (
            f"The models{rule} are (ε = {_rounded_up(self.epsilon):g}, δ = {self.delta:g})-private if "
            f"{self.neighbors} ({count_noun(self.rounds, 'round')}, {cohorts}; {self.mechanism} noise "
            f"{self.noise_multiplier:.4g} x clip{fit}; {self.accountant.upper()}).{server} Losses, scores{replies} and "
            "the choice of the best round are not covered."
        )


SAMPLINGS = {Poisson: "poisson", Uniform: "uniform", Full: "full", LeastOften: "least_often"}
"""Selections whose cohorts the accounting covers."""


def setting_of(federation: Federation, participants: int, rounds: int) -> Setting:
    """Return the setting of a federation with a `PrivateAggregator`."""
    rule, selection = federation.aggregation, federation.selection
    assert isinstance(rule, PrivateAggregator)
    sampling = SAMPLINGS[type(selection)]
    limit, gap = (selection.max_participations, selection.min_gap) if isinstance(selection, LeastOften) else (None, 1)
    return Setting(
        sampling,
        participants,
        participants if sampling == "full" else min(federation.cohort_size, participants),
        rounds,
        rounds if limit is None else min(limit, rounds),
        isinstance(rule, DPFTRL),
        "rdp" if sampling == "uniform" else rule.accountant,
        gap,
        federation.distributed_noise is not None,
    )


def needs_fit(federation: Federation) -> bool:
    """Return whether the adaptation rule is fitted to sums over participants."""
    return federation.adapts and federation.adaptation.query(NO_STATE) is not None


def _adaptation_noise(federation: Federation, setting: Setting) -> float | None:
    """Return the noise multiplier of the fit of the adaptation rule, set or for its share of epsilon; None: no fit."""
    rule = federation.aggregation
    assert isinstance(rule, PrivateAggregator)
    if not needs_fit(federation):
        return None
    if rule.epsilon is None:
        return rule.adaptation_noise
    fit = Setting("full", setting.participants, setting.participants, 1, 1, tree=False, accountant=rule.accountant)
    return setting.fit_change * noise_for(fit, ADAPTATION_SHARE * rule.epsilon, rule.delta)


def sum_noise(federation: Federation, state: State) -> SumNoise | None:
    """Return the noise for the fit of the rule, given the aggregator's state; None without privacy or a fit."""
    if not federation.is_private or not needs_fit(federation):
        return None
    return SumNoise(float(state["adaptation_noise"][0]), seed_of(federation, state))


def guarantee(
    federation: Federation,
    participants: int,
    rounds: int,
    noise_multiplier: float | None = None,
    participations: int | None = None,
    *,
    adaptation_noise: float | None = None,
) -> Guarantee:
    """Return the guarantee of a run.

    Args:
        federation: Federation with a `PrivateAggregator`.
        participants: Number of participants.
        rounds: Number of rounds.
        noise_multiplier: Noise multiplier of the rounds. Default: that of the aggregator, or the smallest for its
            epsilon.
        participations: Largest number of rounds in which a client was asked, if the run knows it. Default: as many as
            the selection allows.
        adaptation_noise: Likewise, of the fit of the adaptation rule.

    Raises:
        ConfigError: If secure aggregation cannot have this noise, or if cohorts are too small for it.
    """
    rule, setting = federation.aggregation, setting_of(federation, participants, rounds)
    assert isinstance(rule, PrivateAggregator)
    setting = replace(setting, adaptation_noise=adaptation_noise or _adaptation_noise(federation, setting))
    delta = rule.delta - setting.revealing
    if delta <= 0:
        raise ConfigError(
            "With secure aggregation and selection = 'poisson', a client decides whether a sum has two clients with a "
            f"probability of {setting.revealing:.2g}. It must be below delta = {rule.delta:g}. Raise the cohort size, "
            "or use selection = 'full' or 'least_often'."
        )
    noise = noise_multiplier or rule.noise_multiplier
    if noise is None:
        assert rule.epsilon is not None  # because the noise multiplier is not set
        noise = noise_for(setting, rule.epsilon, delta)
    rule.check_noise(noise, setting.cohort_size)
    if setting.secure and not SECURE_NOISE[0] <= noise <= SECURE_NOISE[1]:
        raise ConfigError(
            f"With secure aggregation, the noise multiplier of {name_of(rule)} must be from {SECURE_NOISE[0]:g} to "
            f"{SECURE_NOISE[1]:g}, the range of its whole numbers; got {noise:g}. Change epsilon or noise_multiplier."
        )
    server = None
    if setting.secure:
        replies = federation.label_statistics.needed_replies
        share = min((replies(clients) / clients for clients in range(MIN_CLIENTS, participants + 1)), default=1.0)
        sums = replace(setting, sampling="full", participations=participations or setting.participations)
        sum_noise = noise * math.sqrt(share)
        server = ServerGuarantee(epsilon_of(sums, sum_noise, rule.delta), sum_noise, sums.participations)
    options = asdict(setting)
    tree = options.pop("tree")
    del options["secure"]
    return Guarantee(
        server=server,
        epsilon=epsilon_of(setting, noise, delta),
        delta=rule.delta,
        noise_multiplier=noise,
        clip=rule.clip,
        mechanism="tree" if tree else "Gaussian",
        neighbors=setting.neighbors,
        **options,
    )


def private_state(federation: Federation, participants: int, rounds: int | None, *, secret: bool) -> State:
    """Return the aggregator's state before round 1; `NO_STATE` without privacy.

    Args:
        federation: Federation.
        participants: Number of participants.
        rounds: Number of rounds.
        secret: Draw a secret for cohorts and noise, because clients may know the seed of the run.
    """
    if not federation.is_private:
        return NO_STATE
    assert rounds is not None  # simulations and servers know it
    planned = guarantee(federation, participants, rounds)
    state = {"noise_multiplier": np.array([planned.noise_multiplier]), "cohort_size": np.array([planned.cohort_size])}
    if planned.server is not None:
        state["participations"] = np.zeros(participants, np.int64)
    if planned.adaptation_noise is not None:
        state["adaptation_noise"] = np.array([planned.adaptation_noise])
    if secret:
        state["secret"] = np.random.SeedSequence().generate_state(4)
    return state


def seed_of(federation: Federation, state: State) -> int:
    """Return the seed of cohorts and noise: the secret in an aggregator's state, else the seed of the federation."""
    return int.from_bytes(state["secret"].tobytes()) if "secret" in state else federation.seed


def spent(federation: Federation, state: State, participants: int, rounds: int) -> dict[str, Any] | None:
    """Return the record of the guarantee after some rounds, given the aggregator's state; None without privacy."""
    if not federation.is_private:
        return None
    participations = int(state["participations"].max()) if "participations" in state else None
    fit_noise = float(state["adaptation_noise"][0]) if needs_fit(federation) else None
    noise = float(state["noise_multiplier"][0])
    reached = guarantee(federation, participants, rounds, noise, participations, adaptation_noise=fit_noise)
    record = {name: value for name, value in asdict(reached).items() if value is not None}
    return {**record, "statement": reached.statement}


# -------------------- What the accounting does not cover is rejected


def check_components(federation: Federation) -> None:
    """Reject components with which the accounting would not hold.

    Raises:
        ConfigError: If there is such a component.
    """
    rule, selection = federation.aggregation, federation.selection
    assert isinstance(rule, PrivateAggregator)
    why = f"{name_of(rule)} bounds what a client changes, but"
    if type(rule) not in (DPFedAvg, DPFTRL):
        raise ConfigError(
            f"{why} its noise is unknown to the accounting. Use aggregation = 'dp_fedavg' or 'dp_ftrl', or derive it "
            "from `Aggregator` and account for the noise yourself."
        )
    if type(selection) not in SAMPLINGS:
        raise ConfigError(
            f"{why} {name_of(selection)} may select clients by their data. Use selection = 'poisson', 'uniform', "
            "'full' or 'least_often'."
        )
    if isinstance(selection, LeastOften) and selection.max_participations is None:
        raise ConfigError(f"{why} a client may participate any number of times. Set selection.max_participations.")
    if isinstance(rule, DPFTRL) and not isinstance(selection, LeastOften):
        raise ConfigError(
            f"{why} a client may participate in every round. Use selection = 'least_often' with max_participations, or "
            "aggregation = 'dp_fedavg'."
        )
    if isinstance(rule, DPFTRL) and federation.server.trains_server:
        raise ConfigError(
            f"{why} {name_of(federation.server)} trains without clients in some rounds, which the tree does not have. "
            "Use aggregation = 'dp_fedavg', or another server."
        )
    if type(federation.weighting) is not Equal:
        raise ConfigError(f"{why} {name_of(federation.weighting)} weighs clients. Use weighting = 'equal'.")
    if federation.solver.is_stateful:
        raise ConfigError(
            f"{why} {name_of(federation.solver)} keeps sums of unclipped updates. Use a solver without state, such as "
            "'fedavg' or 'fedprox'."
        )
    if federation.label_statistics.only_sum and not isinstance(rule, DPFedAvg):
        raise ConfigError(
            f"{why} only the server can add the noise of a tree, and secure aggregation hides updates from it. Use "
            "label_statistics = 'exact', or aggregation = 'dp_fedavg'."
        )
    if federation.distributed_noise is not None and federation.distributed_noise.quantile is not None:
        raise ConfigError(
            f"{why} secure aggregation hides which updates are clipped. Remove `quantile`, or use label_statistics = "
            "'exact'."
        )
    for component in federation.components.values():
        for part in component.with_inner():
            if part.reads_updates or part.needs or part.measures:
                raise ConfigError(
                    f"{why} {name_of(component)} reads labels, updates or measurements of single clients. Choose "
                    "another component."
                )
    if not needs_fit(federation):
        return
    if not federation.adaptation.has_bounded_sums:
        raise ConfigError(
            f"{why} {name_of(federation.adaptation)} is fitted to sums over participants that have no bound, such as "
            "those of calibration, strength and safeguard. Use adaptation = 'bbse' or 'rlls', or { name = "
            "'label_shift', calibration = 'none', strength = 1.0, pseudo_counts = 1.0, guard = false }."
        )
    if federation.label_statistics.only_sum:
        raise ConfigError(
            f"{why} the server cannot clip the sums of {name_of(federation.adaptation)}, which secure aggregation "
            "hides. Use label_statistics = 'exact', or adaptation = 'none'."
        )
    if rule.epsilon is None and rule.adaptation_noise is None:
        raise ConfigError(
            f"{why} {name_of(federation.adaptation)} is fitted to sums over participants, whose noise is not set. Set "
            "aggregation.adaptation_noise, such as 5.0, or `epsilon` instead of `noise_multiplier`."
        )


def check_run(
    federation: Federation, participation: Participation | None, *, participants: int, rounds: int, buffers: int
) -> None:
    """Reject a run for which the accounting would not hold, and compute its noise.

    Args:
        federation: Federation with a `PrivateAggregator`.
        participation: Availability of clients. None: clients decide.
        participants: Number of participants.
        rounds: Number of rounds.
        buffers: Number of averaged numbers of the model that are not trained.

    Raises:
        ConfigError: If it does not hold, or if dp-accounting is not installed.
    """
    rule, setting = federation.aggregation, setting_of(federation, participants, rounds)
    assert isinstance(rule, PrivateAggregator)
    if buffers:
        raise ConfigError(
            f"{name_of(rule)} needs a model without buffers, such as running statistics of BatchNorm; got {buffers} "
            "numbers in buffers. Use GroupNorm."
        )
    if setting.sampling == "uniform" and type(participation) is not Always:
        raise ConfigError(
            f"{name_of(rule)} with selection = 'uniform' needs clients that are always available, because others would "
            "be selected more often than the accounting assumes. Use selection = 'poisson'."
        )
    places = setting.participants * setting.participations
    if setting.sampling == "least_often" and setting.cohort_size * rounds > places:
        raise ConfigError(
            f"selection.max_participations must be at least {-(-setting.cohort_size * rounds // participants)} for "
            f"{rounds} rounds with {setting.cohort_size} of {participants} clients; got {setting.participations}. "
            "Raise it, or lower rounds or the cohort size."
        )
    if setting.gap * setting.cohort_size > participants:
        raise ConfigError(
            f"selection.min_gap must be at most {participants // setting.cohort_size}, so that {setting.cohort_size} "
            f"of {participants} clients may participate in each round; got {setting.gap}. Lower it or the cohort size."
        )
    guarantee(federation, participants, rounds)
