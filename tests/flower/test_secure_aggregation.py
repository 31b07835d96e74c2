"""What the server of secure aggregation sees, and what a client does not let it see."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.federation.types import ClientResults, Cohort, Probe, ServerView, State
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.secure import SECURE
from fedreach.report.figures import draw_figures, figure_specs
from fedreach.report.overview import analyse
from fedreach.report.read import read

from .faulty import assert_said, flower, simulated
from .in_process import Answering, InProcess
from .same import rows_of
from .test_equal import TINY

OVERRIDES = ("method.label_statistics=secure_aggregation", "method.weighting=entropy", "evaluation.every=4")


@pytest.fixture
def setup(tmp_path: Path) -> FlowerExperiment:
    (tmp_path / "tiny.toml").write_text(TINY)
    return FlowerExperiment(tmp_path / "tiny.toml", overrides=OVERRIDES)


def test_what_a_client_sends_is_masked_and_tells_nothing_of_its_labels(setup: FlowerExperiment, tmp_path: Path) -> None:
    seen: list[Message] = []

    def listen(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        if message.metadata.message_type == "train":
            seen.append(reply)
        assert message.metadata.message_type != "query.labels"
        return reply

    setup.strategy(tmp_path / "flower", timeout=5).run(InProcess(setup.client_app(), range(8), answering=listen))
    assert len(seen) == 12
    for reply in seen:
        assert set(reply.content.array_records) == {"masked"}
        assert set(reply.content["metrics"]) == {"train_loss", "num-examples"}
        words = reply.content["masked"]["masked"].numpy()
        bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 8).mean(axis=0)
        assert abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(words.nbytes)  # an unmasked share begins with zeros or ones


def test_a_report_does_not_draw_weights_that_nobody_knows(setup: FlowerExperiment, tmp_path: Path) -> None:
    setup.strategy(tmp_path / "secure", timeout=5).run(InProcess(setup.client_app(), range(8)))
    names = {picture.name for picture in draw_figures(figure_specs(analyse(read([tmp_path / "secure"]))))}
    assert "chosen" in names
    assert not names & {"weights", "theory"}


def cohort_of(message: Message) -> list[int]:
    groups: dict[str, list[int]] = json.loads(message.content[SECURE]["content"])["groups"]
    return groups[""]


def silent(round_: int, client_of: Callable[[list[int]], set[int]]) -> Answering:
    """An `Answering` in which some clients of one round's cohort do not send their update."""

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        of_round = message.metadata.message_type == "train" and message.content["fedreach"]["round"] == round_
        return None if of_round and client in client_of(cohort_of(message)) else answer()

    return answering


def test_too_few_reports_cost_the_whole_round_and_no_more(
    setup: FlowerExperiment, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    strategy = setup.strategy(tmp_path / "flower", timeout=0.3)
    models: dict[int, bytes] = {}

    class Watching(InProcess):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            sent = list(messages)
            for message in sent:
                if message.metadata.message_type == "train":
                    models[message.content["fedreach"]["round"]] = (
                        message.content["arrays"]["1.weight"].numpy().tobytes()
                    )
            return super().push_messages(sent)

    strategy.run(Watching(setup.client_app(), range(8), answering=silent(2, lambda cohort: {min(cohort)})))
    rows = rows_of(tmp_path / "flower")
    assert rows[2]["cohort"] == []
    assert len(rows[2]["lost"]) == 3
    assert models[3] == models[2] != models[1]
    assert [len(row["cohort"]) for row in rows] == [0, 3, 0, 3, 3]
    assert_said(heard, "does not count in round 2: secure aggregation needs the replies of at least 3 of 3 clients")


@pytest.fixture
def five(setup: FlowerExperiment) -> FlowerExperiment:
    return FlowerExperiment(setup.base / "tiny.toml", overrides=(*OVERRIDES, "method.cohort_size=5"))


@pytest.mark.parametrize("step", ["keys", "shares", "mask", "reveal"])
def test_clients_that_leave_at_any_step_do_not_spoil_the_others(
    step: str, five: FlowerExperiment, tmp_path: Path
) -> None:
    """Five clients, of which one leaves in round 2: the run is that of the simulator that loses its reply."""
    leaver = int(five.data.population.participants[1])
    gone: list[int] = []

    def leave(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        record = message.content.config_records.get(SECURE)
        if record is not None and client == leaver and record["number"] == 2 and record["step"] == step:
            gone.append(client)
        return None if gone and client == leaver and record is not None and record["number"] == 2 else answer()

    found = flower(five, InProcess(five.client_app(), range(8), answering=leave), tmp_path)
    lost = {} if step == "reveal" else {2: {leaver}}
    expected = simulated(five, lost=lost)
    assert gone
    assert found._replace(weights=[]) == expected._replace(weights=[])
    assert len(found.cohorts[1]) == (5 if step == "reveal" else 4)


def test_where_too_few_reply_the_simulator_loses_the_round_too(five: FlowerExperiment, tmp_path: Path) -> None:
    leavers = set(five.data.population.participants[1:3].tolist())
    grid = InProcess(five.client_app(), range(8), answering=silent(2, lambda cohort: leavers))
    found, expected = flower(five, grid, tmp_path), simulated(five, lost={2: leavers})
    assert found._replace(weights=[], lost=[*map(sorted, found.lost)]) == expected._replace(weights=[])
    assert found.cohorts[1] == []
    assert len(found.lost[1]) == 5


def test_nonsense_in_secure_aggregation_costs_the_round_and_no_more(setup: FlowerExperiment, tmp_path: Path) -> None:
    def spoil_once(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        if message.metadata.message_type == "train" and message.content["fedreach"]["round"] == 2:
            words = reply.content["masked"]["masked"].numpy().copy()
            words[-1:] += np.uint64(2**63)  # a weight far below 0
            if client == min(cohort_of(message)):
                reply.content["masked"] = ArrayRecord({"masked": Array(words)})
        return reply

    setup.strategy(tmp_path / "flower", timeout=5).run(InProcess(setup.client_app(), range(8), answering=spoil_once))
    rows = rows_of(tmp_path / "flower")
    assert [len(row["cohort"]) for row in rows] == [0, 3, 0, 3, 3]
    assert len(rows[2]["lost"]) == 3


def test_a_solver_for_which_the_server_looks_at_updates_is_refused(setup: FlowerExperiment, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"caffold.* needs updates of single clients, which are hidden"):
        FlowerExperiment(setup.base / "tiny.toml", overrides=(*OVERRIDES, "method.solver=scaffold")).strategy(
            tmp_path / "flower"
        )


class Curious(fr.Selection):
    """Chooses the first k, asks all for their losses, and keeps whatever it is shown."""

    def __init__(self) -> None:
        self.seen: list[ServerView | ClientResults] = []

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe:
        return Probe(view.ids)

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        self.seen.append(view)
        return Cohort(view.ids[:k])

    def observe(self, state: State, reports: ClientResults) -> State:
        self.seen.append(reports)
        return state


def test_a_policy_sees_here_what_it_sees_in_the_simulator_bit_for_bit(setup: FlowerExperiment, tmp_path: Path) -> None:
    here, there = Curious(), Curious()
    made = setup.simulation
    simulated = replace(made, federation=replace(made.federation, selection=there))
    state = simulated.start()
    for _ in range(simulated.rounds):
        state = simulated.step(state).state
    setup.simulation = replace(made, federation=replace(made.federation, selection=here))
    setup.strategy(tmp_path / "flower", timeout=5).run(InProcess(setup.client_app(), range(8)))
    assert len(here.seen) == len(there.seen) == 2 * simulated.rounds
    for ours, theirs in zip(here.seen, there.seen, strict=True):
        for one in fields(ours):
            if one.name in ("lost", "radio", "probe"):
                continue
            mine, other = getattr(ours, one.name), getattr(theirs, one.name)
            if one.name == "metrics":
                assert list(mine) == list(other) == ["num_examples", "loss", "steps"]
                mine, other = np.array(list(mine.values())), np.array(list(other.values()))
            assert type(mine) is type(other), one.name
            np.testing.assert_array_equal(mine, other, err_msg=one.name)


def test_clusters_are_refused_as_there_is_one_sum(setup: FlowerExperiment, tmp_path: Path) -> None:
    clustering = type("Clustering", (Curious,), {"clusters": lambda self, state: np.zeros(5, np.int64)})
    made = setup.simulation
    setup.simulation = replace(made, federation=replace(made.federation, selection=clustering()))
    with pytest.raises(ConfigError, match=r"Clustering.* trains one model per cluster, but the server sees only"):
        setup.strategy(tmp_path / "flower")


def test_bytes_of_a_round_are_those_of_its_messages(five: FlowerExperiment, tmp_path: Path) -> None:
    """JSON adds names and quotes to the keys and shares that the formula counts, and lists of ids."""
    sent = {"down": 0, "up": 0}

    def listen(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        for way, content in (("down", message.content), ("up", reply.content)):
            if SECURE in content.config_records:
                sent[way] += len(str(content.config_records[SECURE]["content"]))
        if message.metadata.message_type == "train":
            sent["down"] += sum(array.numpy().nbytes for array in message.content["arrays"].values())
            sent["up"] += reply.content["masked"]["masked"].numpy().nbytes + 2 * 4
        return reply

    five.strategy(tmp_path / "flower", timeout=5).run(InProcess(five.client_app(), range(8), answering=listen))
    rows = rows_of(tmp_path / "flower")
    stored = json.loads((tmp_path / "flower/run.json").read_text())["learned"]
    assert "update times weight, weight" in {row["what"] for row in stored}
    for way in sent:
        counted = sum(row[f"bytes_{way}"] for row in rows)
        assert counted < sent[way] < 1.12 * counted, way
