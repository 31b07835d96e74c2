"""What the server of secure aggregation sees, and what a client does not let it see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.federation.types import ClientResults, Cohort, Probe, ServerView, State
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.messages import new_private_key, pairwise_mask, public_key
from fedreach.report.figures import draw_figures, figure_specs
from fedreach.report.overview import analyse
from fedreach.report.read import read

from .in_process import InProcess
from .same import rows_of
from .test_equal import TINY

SECURE = ("method.label_statistics=secure_aggregation", "method.weighting=entropy", "evaluation.every=4")


@pytest.fixture
def setup(tmp_path: Path) -> FlowerExperiment:
    (tmp_path / "tiny.toml").write_text(TINY)
    return FlowerExperiment(tmp_path / "tiny.toml", overrides=SECURE)


def test_two_clients_have_one_mask_in_a_round_and_nobody_else_has_it() -> None:
    ann, bob, eve = (new_private_key() for _ in range(3))
    shared = pairwise_mask(ann, public_key(bob), "run", 1, 4096)
    np.testing.assert_array_equal(shared, pairwise_mask(bob, public_key(ann), "run", 1, 4096))
    for private, public, run, round_ in (
        (ann, bob, "run", 2),
        (ann, bob, "another", 1),
        (ann, eve, "run", 1),
        (eve, bob, "run", 1),
    ):
        other = pairwise_mask(private, public_key(public), run, round_, 4096)
        assert not (shared == other).any()  # 4096 words of 64 bits
    bits = np.unpackbits(shared.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))


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


def test_a_missing_report_costs_the_whole_round_and_no_more(setup: FlowerExperiment, tmp_path: Path) -> None:
    def fail_once(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        of_round = message.metadata.message_type == "train" and message.content["fedreach"]["round"] == 2
        return None if of_round and client == min(message.content["keys"]["ids"]) else answer()

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

    strategy.run(Watching(setup.client_app(), range(8), answering=fail_once))
    rows = rows_of(tmp_path / "flower")
    assert rows[2]["cohort"] == []
    assert len(rows[2]["lost"]) == 3
    assert models[3] == models[2] != models[1]
    assert [len(row["cohort"]) for row in rows] == [0, 3, 0, 3, 3]


def test_nonsense_in_secure_aggregation_costs_the_round_and_no_more(setup: FlowerExperiment, tmp_path: Path) -> None:
    def spoil_once(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        reply = answer()
        if message.metadata.message_type == "train" and message.content["fedreach"]["round"] == 2:
            words = reply.content["masked"]["masked"].numpy().copy()
            words[-1:] += np.uint64(2**63)  # a weight far below 0
            if client == min(message.content["keys"]["ids"]):
                reply.content["masked"] = ArrayRecord({"masked": Array(words)})
        return reply

    setup.strategy(tmp_path / "flower", timeout=5).run(InProcess(setup.client_app(), range(8), answering=spoil_once))
    rows = rows_of(tmp_path / "flower")
    assert [len(row["cohort"]) for row in rows] == [0, 3, 0, 3, 3]
    assert len(rows[2]["lost"]) == 3


def test_a_client_refuses_a_sum_that_would_show_its_report(setup: FlowerExperiment, tmp_path: Path) -> None:
    replies: list[str] = []

    def ask_twice(client: int, message: Message, answer: Callable[[], Message]) -> Message | None:
        if message.metadata.message_type != "train":
            return answer()
        keys = message.content["keys"]
        at = keys["ids"].index(client)
        message.content["keys"] = ConfigRecord({"ids": [client], "keys": [keys["keys"][at]]})
        alone = answer()
        assert alone.has_error()
        message.content["keys"] = ConfigRecord({"ids": [client, 99], "keys": [keys["keys"][at]] * 2})
        assert answer().has_error()  # the same key twice
        message.content["keys"] = keys
        first, second = answer(), answer()
        replies.append(second.error.reason)
        asked = message.content["fedreach"]
        name, asked["run"] = asked["run"], "another"
        assert answer().has_content()  # under masks of its own
        asked["run"] = name
        replies.append(answer().error.reason)
        return first

    setup.strategy(tmp_path / "flower", timeout=5).run(InProcess(setup.client_app(), range(8), answering=ask_twice))
    assert [len(row["cohort"]) for row in rows_of(tmp_path / "flower")] == [0, 3, 3, 3, 3]
    assert all("were already used" in reply for reply in replies)


def test_a_solver_for_which_the_server_looks_at_updates_is_refused(setup: FlowerExperiment, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"caffold.* needs updates of single clients, which are hidden"):
        FlowerExperiment(setup.base / "tiny.toml", overrides=(*SECURE, "method.solver=scaffold")).strategy(
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
