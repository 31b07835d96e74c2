"""Running rounds of a synthetic federation, played by the same steps as a real one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Always
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.state import FederationState, initial_state
from fedreach.federation.steps import AskLosses, AskServer, AskUpdates, Done, Steps, advance, next_view, planned, play
from fedreach.federation.traits import Traits
from fedreach.federation.values import Reports, State
from fedreach.federation.weighting import Equal
from fedreach.testing.worlds import World
from fedreach.wireless.radio import Radio


@dataclass(frozen=True)
class PlayedRound:
    """Whom a policy asked and chose in a round."""

    round: int
    probed: tuple[int, ...]
    chosen: tuple[int, ...]
    places: int
    remark: str
    reachable: int
    clusters: tuple[int, ...]

    def __str__(self) -> str:
        probed = f", after asking {list(self.probed)}" if self.probed else ""
        return f"in round {self.round} it chose {list(self.chosen)}{probed}"


def federation_of(policy: Any, world: World, seed: int = 0) -> Federation:
    """Return a federation of plain components around a selection policy."""
    radio = Radio(fading="none") if Traits.of(policy).needs_radio else None
    return Federation(policy, Equal(), FedAvg(), LocalSGD(), Average(), cohort=world.cohort, seed=seed, radio=radio)


def begin(policy: Any, world: World) -> FederationState:
    """Return the state before round 1."""
    federation = federation_of(policy, world)
    return initial_state(federation, np.zeros(world.direction.shape[1], np.float32), world.view(federation.needs()))


@dataclass(frozen=True, eq=False)
class _Clients:
    """The `Side` of a synthetic federation."""

    federation: Federation
    world: World

    def losses(self, request: AskLosses) -> Mapping[int, float]:
        ids = request.probe.ids
        known = self.world.losses(request.view.round)[request.view.rows(ids)]
        return dict(zip(ids.tolist(), known.tolist(), strict=True))

    def updates(self, request: AskUpdates) -> Reports:
        ids, needs, measures = request.selection.ids, self.federation.needs(), self.federation.measurements()
        return self.world.reports(ids, request.view.round, needs, measures, probe=request.probe)

    def learnt(self, request: AskServer) -> FederationState:
        raise AssertionError("the server of `federation_of` holds no data")

    def plan(self, state: FederationState) -> tuple[Steps, AskUpdates]:
        """Play the next round until the cohort is asked to train."""
        known = replace(self.world.view(self.federation.needs()), available=self.world.available(state.round + 1))
        view = next_view(self.federation, known, state, Always())
        if self.federation.radio is not None:
            view = self.world.with_radio(view)
        steps = play(self.federation, state, view, rounds=self.world.rounds)
        request = planned(steps, self)
        assert isinstance(request, AskUpdates)
        return steps, request


def choice(policy: Any, world: World, seed: int = 0) -> list[int]:
    """Return whom a policy chooses in round 1."""
    _, request = _Clients(federation_of(policy, world, seed), world).plan(begin(policy, world))
    chosen: list[int] = request.selection.ids.tolist()
    return chosen


def played(
    policy: Any, world: World, keep: Callable[[State], State] = lambda state: state, seed: int = 0
) -> list[PlayedRound]:
    """Return what a policy does in the rounds of a federation.

    Between two rounds the policy's state goes through `keep`.
    """
    clients, state, rounds = _Clients(federation_of(policy, world, seed), world), begin(policy, world), []
    for number in range(1, world.rounds + 1):
        steps, request = clients.plan(state)
        done = advance(steps, clients.updates(request))
        assert isinstance(done, Done)
        state = replace(done.state, selection=keep(done.state.selection))
        view, selection = request.view, request.selection
        rounds.append(
            PlayedRound(
                number,
                () if view.probe is None else tuple(view.probe.ids.tolist()),
                tuple(selection.ids.tolist()),
                selection.places,
                selection.remark,
                int(view.available.sum()),
                tuple(state.clusters.tolist()),
            )
        )
    return rounds


def frequencies(policy: Any, world: World, draws: int) -> Floats:
    """Return (n,) how often each client is chosen in round 1, over `draws` seeds."""
    count, start = np.zeros(len(world.ids)), begin(policy, world)
    for seed in range(draws):
        _, request = _Clients(federation_of(policy, world, seed), world).plan(start)
        count[request.view.rows(request.selection.ids)] += 1
    return count / draws
