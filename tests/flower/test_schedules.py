"""Schedules of faults: each ends in the right model or in words, and mistakes in the sources do not pass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedreach.flower import clients, messages
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.rounds import OpenRound
from fedreach.flower.strategy import FedReachStrategy

from .schedules import CONFIGURATIONS, KINDS, Ending, Plan, run_schedule

GOOD = ("right", "in words")
FOUND = {
    "an update of 1e20 counted and erased the model": Plan(
        35, "power of choice", ("lie", "corrupted reply", "replayed", "doubled"), 0.1, is_calm=False
    ),
    "a stale reply took the place of the true one": Plan(
        29, "adaptation", ("second node", "doubled", "replayed"), 0.1, is_calm=True
    ),
    "FedDyn's mean in the simulator counted clients that the server had never met": Plan(
        143, "feddyn", ("replayed", "corrupted reply", "server killed", "client left"), 0.25, is_calm=True
    ),
}
"""Schedules that found a fault."""


def check(ending: Ending) -> None:
    assert ending.how in GOOD, f"{ending.how}: {ending.why}"


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.sampled(4)
def test_each_configuration_survives_a_schedule(configuration: str) -> None:
    check(run_schedule(Plan.of(3, configuration)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(4)
def test_each_kind_of_fault_occurs_and_leaves_the_right_model(kind: str) -> None:
    ending = run_schedule(Plan.of(7, "scaffold", kind))
    check(ending)
    assert ending.injected[kind] > 0


@pytest.mark.parametrize("fault", FOUND)
def test_a_schedule_that_found_a_fault_finds_none_now(fault: str) -> None:
    check(run_schedule(FOUND[fault]))


def test_a_seed_makes_the_same_schedule_twice() -> None:
    assert Plan.of(5) == Plan.of(5)
    assert run_schedule(Plan.of(5)) == run_schedule(Plan.of(5))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_a_thousand_schedules_end_in_the_right_model_or_in_words(first: int) -> None:
    endings = [run_schedule(Plan.of(seed)) for seed in range(first, first + 50)]
    bad = [f"{ending.how}: {ending.why}" for ending in endings if ending.how not in GOOD]
    assert not bad, "\n".join(bad)


# ---- Mistakes in the sources, which the schedules must notice


def counting_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reply that arrives twice weigh twice."""
    read, reports, twice = ClientRegistry.read, OpenRound.reports, set[Any]()

    def reading(self: Any, replies: Any, tasks: Any, *more: Any) -> Any:
        replies = [*replies]
        nodes = [reply.metadata.src_node_id for reply in replies]
        twice.update(client for client, node in self.nodes.items() if nodes.count(node) > 1)
        return read(self, replies, tasks, *more)

    def weighing(self: Any, answers: Any, *more: Any, **options: Any) -> Any:
        for client in twice & answers.keys():
            numbers = {**answers[client].metrics, "num_examples": 2 * answers[client].metrics["num_examples"]}
            answers[client] = answers[client]._replace(metrics=numbers)
        twice.clear()
        return reports(self, answers, *more, **options)

    monkeypatch.setattr(ClientRegistry, "read", reading)
    monkeypatch.setattr(OpenRound, "reports", weighing)


def accepting_any_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept replies of other rounds, and not look at digests."""
    monkeypatch.setattr(messages, "check_question", lambda message, run, round_: None)
    monkeypatch.setattr(messages, "check_digest", lambda message, node, required: message)


def forgetting_the_rejoin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never ask a node that was not there at first who it is."""
    meet = ClientRegistry.meet

    def meeting(self: Any, patience: float = clients.MEETING_SECONDS) -> None:
        if self.known:  # only at the start
            self.online = frozenset(self.grid.get_node_ids())
        else:
            meet(self, patience)

    monkeypatch.setattr(ClientRegistry, "meet", meeting)


def ignoring_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take replies as they arrive."""
    monkeypatch.setattr(messages, "check_digest", lambda message, node, required: message)


def accepting_huge_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an update of 1e20 count."""
    monkeypatch.setattr(OpenRound, "_find_erasing", lambda self, request, answers: {})


def dropping_the_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the state of a client that lost it to zeros."""
    contents = OpenRound._contents

    def restoring(self: Any, *arguments: Any, **options: Any) -> Any:
        made = contents(self, *arguments, **options)
        for content in made.values():
            if messages.MEMORY in content:
                old = content[messages.MEMORY][messages.MEMORY].numpy()
                content[messages.MEMORY] = messages.array_record({messages.MEMORY: np.zeros_like(old)})
        return made

    monkeypatch.setattr(OpenRound, "_contents", restoring)


def refusing_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never ask a node again whose handshake failed."""
    monkeypatch.setattr(clients, "AGAIN_SECONDS", 1e9)


def forgetting_what_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a restarted server forget which replies counted."""
    begin = FedReachStrategy._begin

    def beginning(self: Any, *arguments: Any) -> None:
        is_new_process = self._snapshot is None
        begin(self, *arguments)
        if is_new_process:
            self._counted.clear()

    monkeypatch.setattr(FedReachStrategy, "_begin", beginning)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "counts a reply twice": (counting_twice, "fedavg", "doubled"),
    "accepts another round": (accepting_any_round, "fedavg", "replayed"),
    "forgets a rejoin": (forgetting_the_rejoin, "fedavg", "client restarted"),
    "ignores digests": (ignoring_digests, "fedavg", "corrupted reply"),
    "accepts 1e20": (accepting_huge_updates, "fedavg", "lie"),
    "restores zeros": (dropping_the_restored, "scaffold", "client forgot"),
    "refuses for good": (refusing_for_good, "fedavg", "corrupted reply"),
    "forgets what counted": (forgetting_what_counted, "scaffold", "server killed"),
}


@pytest.mark.planted
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_in_the_sources_does_not_pass_the_schedules(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, configuration, kind = PLANTED[mistake]
    plant(monkeypatch)
    endings = (run_schedule(Plan.of(seed, configuration, kind)) for seed in range(30))
    assert any(ending.how not in GOOD for ending in endings), f"30 schedules did not notice that it {mistake}"
