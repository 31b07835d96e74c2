"""Accounting of differential privacy: the noise for a budget, the guarantee of a run, and what it rules out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedreach._util.errors import ConfigError
from fedreach._util.tables import count_noun
from fedreach.federation.base import name_of
from fedreach.federation.differential_privacy import DPFTRL, DPFedAvg, PrivateAggregator, tree_sensitivity
from fedreach.federation.participation import Always, Participation
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
    """

    sampling: str
    participants: int
    cohort_size: int
    rounds: int
    participations: int
    tree: bool
    accountant: str
    gap: int = 1

    @property
    def neighbors(self) -> str:
        """The two sets of clients that the guarantee compares."""
        return {
            "uniform": "one client is replaced",
            "least_often": "the updates of one client are replaced by zeros",
        }.get(self.sampling, "one client is added or removed")

    def event(self, noise_multiplier: float) -> Any:
        """Return the event of dp-accounting for all rounds."""
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

    @property
    def statement(self) -> str:
        """The guarantee with its assumptions, and what it does not cover."""
        cohorts = {
            "poisson": f"each of {self.participants} clients with probability {self.cohort_size}/{self.participants}",
            "uniform": f"{self.cohort_size} of {self.participants} clients without replacement",
            "full": f"all {self.participants} clients",
        }.get(self.sampling, f"each client in at most {self.participations}, {self.gap} apart")
        epsilon = math.ceil(1000 * self.epsilon) / 1000
        return (
            f"The models are (ε = {epsilon:g}, δ = {self.delta:g})-private if {self.neighbors} "
            f"({count_noun(self.rounds, 'round')}, {cohorts}; {self.mechanism} noise {self.noise_multiplier:.4g} x "
            f"clip; {self.accountant.upper()}). Losses, scores and the choice of the best round are not covered."
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
    )


def guarantee(
    federation: Federation, participants: int, rounds: int, noise_multiplier: float | None = None
) -> Guarantee:
    """Return the guarantee of a run.

    Args:
        federation: Federation with a `PrivateAggregator`.
        participants: Number of participants.
        rounds: Number of rounds.
        noise_multiplier: Noise multiplier of the rounds. Default: that of the aggregator, or the smallest for its
            epsilon.
    """
    rule, setting = federation.aggregation, setting_of(federation, participants, rounds)
    assert isinstance(rule, PrivateAggregator)
    noise = noise_multiplier or rule.noise_multiplier
    if noise is None:
        assert rule.epsilon is not None  # because the noise multiplier is not set
        noise = noise_for(setting, rule.epsilon, rule.delta)
    rule.check_noise(noise, setting.cohort_size)
    options = asdict(setting)
    tree = options.pop("tree")
    return Guarantee(
        epsilon=epsilon_of(setting, noise, rule.delta),
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
    reached = guarantee(federation, participants, rounds, float(state["noise_multiplier"][0]))
    return {**asdict(reached), "statement": reached.statement}


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
    if federation.label_statistics.only_sum:
        raise ConfigError(
            f"{why} the server cannot clip the updates that secure aggregation hides. Use label_statistics = 'exact', "
            "or another aggregation."
        )
    for component in federation.components.values():
        for part in component.with_inner():
            if part.reads_updates or part.needs or part.measures:
                raise ConfigError(
                    f"{why} {name_of(component)} reads labels, updates or measurements of single clients. Choose "
                    "another component."
                )
    if federation.adapts and federation.adaptation.query(NO_STATE) is not None:
        raise ConfigError(
            f"{why} {name_of(federation.adaptation)} is fitted to sums over participants without noise. Use "
            "adaptation = 'none', or a rule without a fit."
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
