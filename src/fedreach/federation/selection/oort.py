"""Choose those who are wrong most, and quick; try others at a falling rate."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.federation.measurements.loss_rms import LossRMS
from fedreach.federation.selection.base import Policy
from fedreach.federation.values import ClientView, Reports, Selection, State

CLIP = 0.95  # quantile at which utilities are cut off
DOUBT = 0.1  # factor within the root of how long ago a client was heard


@dataclass(frozen=True)
class Oort(Policy):
    """Choose by statistical utility, by speed where there is a radio, and try clients never heard from.

    In round t, with e = max(least_exploration, exploration decay^(t-1)), about e k clients are drawn of those never
    heard from, the others of those known, in proportion to

        u_i = (U_i - min U) / (max U - min U) + sqrt(0.1 log t / t_i),    U_i = n_i sqrt((1/n_i) sum_j l_j^2),

    U_i cut off at their 95 % quantile, l_j the losses of client i's n_i examples when it was last chosen, in round t_i.
    Only those whose u_i is at least `cutoff` of that of the last one who would be chosen by u alone can be drawn. With
    all U equal the first term is 0.

    With a radio, u_i is multiplied by (T / s_i)^penalty for clients that take s_i > T seconds, with an equal share of
    the band and the fastest CPU, and those never heard from are drawn in proportion to 1 / s_i, else all alike. T is
    the `pace` quantile of s over the available clients; it rises by `pace_step` after each `window` rounds in which all
    U_i of those chosen come to less than in as many rounds before.

    When: both loss and speed matter: with `[radio]` it trades one for the other.

    Args:
        exploration: Share of the cohort that is new in round 1, in [0, 1].
        decay: Of that share from round to round, in (0, 1].
        least_exploration: Which it does not fall below, in [0, 1].
        cutoff: See above, in [0, 1].
        penalty: Of slow clients, not negative; 0 leaves seconds out.
        pace: Quantile of seconds, in (0, 1].
        pace_step: By how much it rises, in [0, 1].
        window: Rounds, at least 1.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant
    Selection", OSDI 2021, Algorithm 1. Utilities are scaled, and T is a quantile, as in the authors' code,
    github.com/SymbioticLab/Oort; Algorithm 1 adds seconds to nats. Where that code differs from Algorithm 1, this is
    the algorithm: there T rises while utilities change by less than a tenth and falls where they change fivefold,
    utilities are scaled by the largest before it is cut off, and by sizes of clients never heard from as well, the bar
    is that of the client after the last, clients never heard from are drawn by size, exploration decays before
    round 1, and `cutoff` is 0.7. Leaving out clients that were chosen often, off by default there, is not built in.

    Example:
        >>> policy, view = Oort(exploration=0.0, least_exploration=0.0), ClientView.of(np.arange(4), np.full(4, 10))
        >>> heard = Reports(view.ids, np.zeros((4, 2), np.float32), {"loss_rms": np.array([0.1, 2.0, 0.2, 1.9])})
        >>> state = policy.observe(policy.init(view), heard)
        >>> sorted(policy.select(state, view, 2, np.random.Generator(np.random.Philox(0))).ids.tolist())
        [1, 3]
    """

    measures: ClassVar[tuple[LossRMS]] = (LossRMS(),)

    exploration: float = 0.9
    decay: float = 0.98
    least_exploration: float = 0.2
    cutoff: float = 0.95
    penalty: float = 2.0
    pace: float = 0.3
    pace_step: float = 0.05
    window: int = 20

    def __post_init__(self) -> None:
        require(self, exploration="[0, 1]", decay="(0, 1]", least_exploration="[0, 1]", cutoff="[0, 1]")
        require(self, penalty="[0, inf)", pace="(0, 1]", pace_step="[0, 1]", window="[1, inf)")

    def init(self, view: ClientView) -> State:
        """Return what nobody has told yet."""
        n = len(view.ids)
        return {
            "ids": view.ids,
            "num_examples": view.num_examples,
            "utility": np.full(n, np.nan),
            "heard": np.zeros(n, np.int64),
            "pace": np.array([self.pace]),
            "gained": np.zeros(0),  # of each round since the pace was last looked at
            "before": np.array([np.nan]),  # in the window before
        }

    def observe(self, state: State, reports: Reports) -> State:
        """Return the state with what those who trained have told."""
        where = np.searchsorted(state["ids"], reports.ids)
        utility, heard = state["utility"].copy(), state["heard"].copy()
        utility[where] = state["num_examples"][where] * reports.metrics["loss_rms"]
        heard[where] = reports.round
        gained = np.append(state["gained"], utility[where].sum())
        state = {**state, "utility": utility, "heard": heard}
        if len(gained) < self.window:
            return {**state, "gained": gained}
        now, faster = gained.sum(), self.pace_step * bool(gained.sum() < state["before"][0])
        return {
            **state,
            "pace": np.minimum(1.0, state["pace"] + faster),
            "gained": gained[:0],
            "before": np.array([now]),
        }

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        seconds = _seconds(view, k)
        known = np.flatnonzero(view.available & (state["heard"] > 0))
        new = np.flatnonzero(view.available & (state["heard"] == 0))
        share = max(self.least_exploration, self.exploration * self.decay ** (view.round - 1))
        few = k - min(len(known), k - min(len(new), int(np.ceil(share * k - 1e-9))))  # that are new
        tried = rng.choice(new, few, replace=False, p=(1 / seconds[new]) / (1 / seconds[new]).sum()) if few else new[:0]
        if few == k:
            return Selection(view.ids[tried])
        utility = self._utility(state, view, known, seconds)
        bar = self.cutoff * np.partition(utility, len(known) - (k - few))[len(known) - (k - few)]
        draw = known[utility >= bar]
        chance = np.maximum(utility[utility >= bar], 1e-12)  # who has none can fill a place that nobody else takes
        best = rng.choice(draw, k - few, replace=False, p=chance / chance.sum())
        return Selection(view.ids[np.concatenate([best, tried])])

    def _utility(self, state: State, view: ClientView, known: Ints, seconds: Floats) -> Floats:
        """Return u of the clients at these places."""
        utility = state["utility"][known]
        utility = np.minimum(utility, np.quantile(utility, CLIP))
        span = np.ptp(utility)
        scaled = (utility - utility.min()) / span if span > 0 else np.zeros(len(utility))
        scaled += np.sqrt(DOUBT * np.log(view.round) / state["heard"][known])
        preferred = np.quantile(seconds[view.available], state["pace"][0])
        late = seconds[known] > preferred
        return np.asarray(np.where(late, scaled * (preferred / seconds[known]) ** self.penalty, scaled), np.float64)


def _seconds(view: ClientView, k: int) -> Floats:
    """Return (n,) how long each client takes with a k-th of the band; one second each where there is no radio."""
    if view.radio is None:
        return np.ones(len(view.ids))
    problem = view.radio.problem()
    return np.asarray(k * problem.upload_seconds + problem.cycles / problem.max_hertz, np.float64)
