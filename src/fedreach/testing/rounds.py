"""Running rounds of a made-up federation, with the same four functions as a real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.round import conclude_round, observe_probe, plan_probe, plan_round
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.state import FederationState, initial_state
from fedreach.federation.traits import Traits
from fedreach.federation.values import ClientView, Probe, State
from fedreach.federation.weighting import Equal
from fedreach.testing.worlds import World
from fedreach.wireless.radio import Radio


@dataclass(frozen=True)
class Turn:
    """Whom a policy asked and chose in a round."""

    round: int
    asked: tuple[int, ...]
    chosen: tuple[int, ...]
    remark: str
    reachable: int
    clusters: tuple[int, ...]

    def __str__(self) -> str:
        asked = f", after asking {list(self.asked)}" if self.asked else ""
        return f"in round {self.round} it chose {list(self.chosen)}{asked}"


def federation_of(policy: Any, world: World, seed: int = 0) -> Federation:
    """Return a federation of plain parts around a selection policy."""
    radio = Radio(fading="none") if Traits.of(policy).needs_radio else None
    return Federation(policy, Equal(), FedAvg(), LocalSGD(), Average(), cohort=world.cohort, seed=seed, radio=radio)


def begin(policy: Any, world: World) -> FederationState:
    """Return the state before round 1."""
    federation = federation_of(policy, world)
    return initial_state(federation, np.zeros(world.direction.shape[1], np.float32), world.view(federation.needs()))


def asked(federation: Federation, world: World, state: FederationState) -> tuple[ClientView, Probe | None]:
    """Return the view of the next round, and whom the policy asks in it."""
    number = state.round + 1
    view = replace(world.view(federation.needs()), available=world.available(number), loss=state.loss, round=number)
    if federation.radio is not None:
        view = world.with_radio(view)
    return view, plan_probe(federation, state, view)


def answered(
    federation: Federation, world: World, state: FederationState, view: ClientView, probe: Probe | None
) -> tuple[FederationState, ClientView]:
    """Return state and view after the answers to a probe."""
    if probe is None:
        return state, view
    rows = view.rows(probe.ids)
    probed, loss, sent = view.probed.copy(), view.loss.copy(), None
    probed[rows] = True
    if probe.asks == "update":
        answers = world.reports(probe.ids, view.round, federation.needs(), federation.measurements(), probe=True)
        sent = np.isin(view.ids, answers.ids)
        loss[sent] = answers.metrics["loss"]
        state = observe_probe(federation, state, answers)
    else:
        loss[rows] = world.losses(view.round)[rows]
    return state, replace(view, loss=loss, probed=probed, sent_update=sent, probe=probe)


def choice(policy: Any, world: World, seed: int = 0) -> list[int]:
    """Return whom a policy chooses in round 1."""
    federation, state = federation_of(policy, world, seed), begin(policy, world)
    state, view = answered(federation, world, state, *asked(federation, world, state))
    return [int(client) for client in plan_round(federation, state, view).ids]


def play(policy: Any, world: World, keep: Callable[[State], State] = lambda state: state, seed: int = 0) -> list[Turn]:
    """Return what a policy does in the rounds of a federation.

    Args:
        policy: The policy.
        world: The federation.
        keep: What the policy's state goes through between two rounds.
        seed: Of all random numbers that the policy is handed.
    """
    federation, state, turns = federation_of(policy, world, seed), begin(policy, world), []
    for number in range(1, world.rounds + 1):
        view, probe = asked(federation, world, state)
        state, view = answered(federation, world, state, view, probe)
        selection = plan_round(federation, state, view)
        replies = world.reports(selection.ids, number, federation.needs(), federation.measurements())
        state, _ = conclude_round(federation, state, view, selection, replies)
        state = replace(state, selection=keep(state.selection))
        turns.append(
            Turn(
                number,
                () if probe is None else tuple(probe.ids.tolist()),
                tuple(selection.ids.tolist()),
                selection.remark,
                int(view.available.sum()),
                tuple(state.clusters.tolist()),
            )
        )
    return turns


def frequencies(policy: Any, world: World, draws: int) -> Floats:
    """Return (n,) how often each client is chosen in round 1, over `draws` seeds."""
    count, start = np.zeros(len(world.ids)), begin(policy, world)
    heard: dict[tuple[int, ...], tuple[FederationState, ClientView]] = {}
    for seed in range(draws):
        federation = federation_of(policy, world, seed)
        view, probe = asked(federation, world, start)
        who = () if probe is None else tuple(probe.ids.tolist())
        if who not in heard:  # what a policy makes of the answers draws no random numbers
            heard[who] = answered(federation, world, start, view, probe)
        count[view.rows(plan_round(federation, *heard[who]).ids)] += 1
    return count / draws
