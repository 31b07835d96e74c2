"""What a run under a schedule of faults must come to: the simulator's model, and no client blamed without a fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import load_file

from fedreach._util.arrays import replace_fields
from fedreach.data.splits import Population
from fedreach.federation.state import FederationState, initial_state
from fedreach.federation.steps import AskLosses, AskUpdates, finish_round, memory_width, new_memory, run_round
from fedreach.federation.types import ClientResults
from fedreach.flower import adaptation, clients, strategy
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.rounds import OpenRound
from fedreach.flower.strategy import FedReachStrategy
from fedreach.runs.simulation import Simulation

from ..conftest import rows  # noqa: TID252
from .faulty import digest
from .test_adaptation import adapted_without

if TYPE_CHECKING:
    from .schedules import Clock, Network


@dataclass
class Seen:
    """What the server of a run knew in each round, as the simulator needs it."""

    views: dict[int, Any] = field(default_factory=dict)  # round -> view; 0: before the first
    probes: dict[int, set[int]] = field(default_factory=dict)  # round -> clients whose reply to the probe counted
    fits: list[set[int]] = field(default_factory=list)  # participants of each fit of the adaptation rule

    def watch(self, server: FedReachStrategy) -> None:
        """Note each view of the registry under the round that it is for."""
        view = server.registry.view

        def noted(participants: Any) -> Any:
            number = 0 if server._snapshot is None else server._snapshot.state.round + 1
            self.views[number] = view(participants)
            return self.views[number]

        server.registry.view = noted  # type: ignore[method-assign]


@contextmanager
def watched(seen: Seen, clock: Clock) -> Iterator[None]:
    """Let the server use this clock, and note what is not in the run folder: replies to probes, and fits."""

    class Watched(OpenRound):
        def losses(self, request: AskLosses) -> Any:
            answers = super().losses(request)
            seen.probes[request.view.round] = {*answers}
            return answers

        def updates(self, request: AskUpdates) -> ClientResults:
            answers = super().updates(request)
            seen.probes[request.view.round] = {*answers.ids.tolist()}
            return answers

    class WatchedFit(adaptation.RemoteFit):
        def fitted(self, record: Any, members: Any, *, cross: bool) -> Any:
            fit = super().fitted(record, members, cross=cross)
            seen.fits.append({*members} - fit.fitted.left.keys())
            return fit

    patches = (
        mock.patch.object(clients, "time", clock),
        mock.patch.object(strategy, "OpenRound", Watched),
        mock.patch.object(adaptation, "RemoteFit", WatchedFit),
    )
    with patches[0], patches[1], patches[2]:
        yield


class Replay:
    """The simulator as the backend of a round in which exactly these replies arrive."""

    def __init__(self, simulation: Simulation, probed: set[int], counted: set[int]) -> None:
        self.simulation, self.probed, self.counted = simulation, probed, counted
        self.learnt = simulation.learnt

    def losses(self, request: AskLosses) -> dict[int, float]:
        return {client: loss for client, loss in self.simulation.losses(request).items() if client in self.probed}

    def updates(self, request: AskUpdates) -> ClientResults:
        reports = self.simulation.updates(request)
        arrived = np.isin(reports.ids, [*(self.probed if request.probe else self.counted)])
        return reports if arrived.all() else reports.only(arrived)


class Outcome(NamedTuple):
    """What a run comes to."""

    weights: list[dict[int, float]]  # of the clients whose replies counted, by round
    asked: list[set[int]]  # of the selected clients, by round
    model: str  # digest


def simulated(setup: FlowerExperiment, participants: list[int], seen: Seen, lines: list[dict[str, Any]]) -> Outcome:
    """Return the outcome of the simulator if it loses the replies that the rows of a run report as lost."""
    p = setup.data.population
    unseen = np.setdiff1d(np.concatenate([p.participants, p.unseen]), participants)
    data = replace(setup.data, population=Population(np.array(participants, np.int64), unseen))
    made = setup.simulation
    simulation = Simulation(made.federation, data, made.engine, setup.experiment.rounds)
    federation, engine = simulation.federation, simulation.engine
    sizes = simulation.first_view.num_examples
    memory = new_memory(federation, len(sizes), memory_width(federation, engine.num_trainable, len(engine.initial)))

    def view(number: int) -> Any:
        known = seen.views[number].num_examples > 0
        available = known & seen.views[number].available
        return replace_fields(simulation.first_view, num_examples=np.where(known, sizes, 0), available=available)

    state, weights, asked = initial_state(federation, engine.initial, view(0), memory), [], []
    for line in lines:
        of_round = replace_fields(view(line["round"]), loss=state.loss, round=state.round + 1)
        backend = Replay(simulation, seen.probes.get(line["round"], set()), {*line["cohort"]})
        requested: list[AskUpdates] = []

        def updates(request: AskUpdates, backend: Replay = backend, requested: list[Any] = requested) -> ClientResults:
            requested.append(request)
            return Replay.updates(backend, request)

        backend.updates = updates  # type: ignore[method-assign]
        steps = run_round(federation, state, of_round, rounds=simulation.rounds, summed=engine.weighted_sum)
        state, report, _ = finish_round(steps, backend)
        weights.append(weights_of(report.cohort, report.weights))
        asked.append({client for r in requested if not r.probe for client in r.selection.ids.tolist()})
    return Outcome(weights, asked, models(setup, state))


def weights_of(cohort: Iterable[int], weights: Iterable[float]) -> dict[int, float]:
    return {client: round(weight, 9) for client, weight in zip(cohort, weights, strict=True)}


def models(setup: FlowerExperiment, state: FederationState) -> str:
    """Return a digest of the models of a state."""
    layout, adapted = setup.simulation.engine.layout, state.adapted(setup.simulation.federation)
    views = [layout.views(torch.from_numpy(model.copy())) for model in adapted]
    return " ".join(digest({name: view.numpy() for name, view in of_model.items()}) for of_model in views)


def stored_models(folder: Path) -> str:
    """Return a digest of the last models of a run folder."""
    tensors = load_file(folder / "last.safetensors")
    clusters = sorted({name.partition("/")[0] for name in tensors if "/" in name}, key=int) or [""]
    heads = [f"{cluster}/" if cluster else "" for cluster in clusters]
    return " ".join(
        digest({name.removeprefix(head): array for name, array in tensors.items() if name.startswith(head)})
        for head in heads
    )


# ---- What a finished run must not be


def differences(
    setup: FlowerExperiment, folder: Path, network: Network, seen: Seen, *, had_failures: bool
) -> Iterator[str]:
    """Yield what a finished run must not be."""
    lines = rows(folder)[1:]
    participants = json.loads((folder / "client_statistics.json").read_text())["participants"]
    rounds = setup.experiment.rounds
    if json.loads((folder / "result.json").read_text())["status"] != "finished" or len(lines) != rounds:
        yield "it did not finish"
        return
    sizes = setup.data.train.sizes
    for number, view in seen.views.items():
        if any(known not in (0, sizes[client]) for client, known in zip(participants, view.num_examples, strict=True)):
            yield f"round {number} has wrong numbers of examples: {view.num_examples}"
    expected = simulated(setup, participants, seen, lines)
    if expected.asked != [{*line["cohort"], *line["lost"]} for line in lines]:
        yield f"it asked {[[*line['cohort'], *line['lost']] for line in lines]}, the simulator {expected.asked}"
    elif expected.weights != [weights_of(line["cohort"], line["weights"]) for line in lines]:
        yield "other weights than in the simulator"
    elif expected.model != stored_models(folder):
        yield "another model than in the simulator"
    for line in lines:
        for client in line["lost"]:
            if (line["round"], client) not in network.disturbed:
                yield f"client {client} was lost in round {line['round']} without a fault"
        for who in line.get("refused") or {}:
            number = int(re.findall(r"\d+", who)[0])
            client = number if who.startswith("client") else network.nodes[number].client
            if not any(disturbed == client for _, disturbed in network.disturbed):
                yield f"{who} was blamed without a fault: {line['refused'][who]}"
    if network.plan.is_calm and not had_failures:
        available = {c for c, there in zip(participants, seen.views[rounds].available, strict=True) if there}
        if missing := set(participants) - available:
            yield f"clients {sorted(missing)} are online, but not available in the last round"
    yield from wrong_scores(folder, network)
    yield from wrong_fit(setup, folder, seen)


def wrong_scores(folder: Path, network: Network) -> Iterator[str]:
    """Yield scores that their clients never reported."""
    for line in rows(folder, "clients.jsonl") if (folder / "clients.jsonl").exists() else ():
        if line["population"] != "participants":
            continue
        for client, loss in zip(line["ids"], line["loss"], strict=True):
            honest = [scores["eval_loss"] for scores in network.scores.get((line["round"], client), [])]
            if not any(abs(loss - value) < 1e-6 * max(1, abs(value)) for value in honest):
                yield f"the loss {loss} of client {client} in round {line['round']} is not what it reported: {honest}"


def wrong_fit(setup: FlowerExperiment, folder: Path, seen: Seen) -> Iterator[str]:
    """Yield whether the state of the fitted rule is not that of its participants in the simulator."""
    if not seen.fits:
        return
    tensors = load_file(folder / "adaptation.safetensors")
    model = load_file(folder / "last.safetensors")
    layout = setup.simulation.engine.layout
    vector = np.concatenate([model[name].ravel() for name in layout.names])
    participants = setup.data.population.participants
    nobody = {*participants.tolist()} - seen.fits[0]  # that of the last model, the best follows
    clusters = np.zeros(len(participants), np.int64)
    fitted = adapted_without(setup, nobody).evaluate(vector[None], clusters, setup.experiment.rounds)[2]
    for name, value in fitted[0].state.items():
        if np.asarray(value).tobytes() != tensors[f"last/{name}"].tobytes():
            yield f"{name} of the adaptation rule is not that of participants {seen.fits}"
