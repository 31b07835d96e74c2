"""Malicious clients: how many, which, and what they send; what aggregators are told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.federation.aggregation import Mean
from fedreach.federation.attacks import ALIE, ATTACKS, Attackers, InnerProduct, LabelFlip, Replay, SignFlip
from fedreach.federation.checks import ERASING, erasing_updates
from fedreach.federation.labels import Exact
from fedreach.federation.robust import Median, MultiKrum
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.steps import finish_round, run_round
from fedreach.federation.types import ClientResults
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_federation

P = 3
UPDATES = np.array([[1, 2, 3], [2, 0, 1], [4, 4, 4], [0, 1, 0]], np.float32)


def reports() -> ClientResults:
    return ClientResults(np.arange(4), UPDATES, {"loss": np.ones(4)}, trainable=P, steps=np.full(4, 2))


def simulation(*options: str, seed: int = 0) -> Simulation:
    small = ["population.participants=10", "partition.clients=12", "model={name='linear'}", "engine.name=sequential"]
    builder = Builder(load(None, [*small, "method.cohort_size=4", *options]).resolved(), ".")
    return builder.simulation(builder.federated(builder.dataset(), seed), seed)


def answers(simulated: Simulation) -> ClientResults:
    """Return what the clients of the first round send."""
    state = simulated.start()
    asked: list[ClientResults] = []

    class Noting:
        losses, learnt = staticmethod(simulated.losses), staticmethod(simulated.learnt)

        @staticmethod
        def updates(request: Any) -> ClientResults:
            asked.append(simulated.updates(request))
            return asked[-1]

    finish_round(run_round(simulated.federation, state, simulated.view(state), rounds=5), Noting())
    return asked[-1]


def test_the_share_counts_participants_and_at_least_one_is_malicious():
    participants = np.arange(100, 120)
    for share, count in ((0.01, 1), (0.1, 2), (0.3, 6)):
        clients = Attackers.draw(SignFlip(), participants, share, seed=1).clients
        assert len(clients) == count
        assert np.isin(clients, participants).all()
        assert (np.diff(clients) > 0).all()


def test_each_seed_draws_its_own_malicious_clients():
    drawn = {tuple(Attackers.draw(SignFlip(), np.arange(20), 0.2, seed).clients) for seed in range(10)}
    assert len(drawn) > 5


def test_only_malicious_clients_change_what_they_send():
    changed = Attackers(SignFlip(strength=2), np.array([1, 3]), 0).with_attack(reports()).update
    assert np.array_equal(changed, UPDATES * np.array([[1], [-2], [1], [-2]]))


def test_noise_differs_between_clients_and_rounds_and_has_the_promised_length():
    noise = ATTACKS["gaussian_noise"](strength=2.0)
    wide = ClientResults(np.arange(2), np.ones((2, 4000), np.float32), {"loss": np.ones(2)})
    sent = [Attackers(noise, np.arange(2), 0).with_attack(replace(wide, round=n)).update for n in (1, 2)]
    assert not np.array_equal(sent[0][0], sent[0][1])
    assert not np.array_equal(sent[0][0], sent[1][0])
    assert np.linalg.norm(sent[0][0]) == pytest.approx(
        2 * np.sqrt(4000), rel=0.1
    )  # 4 standard errors of a length: 4.5%


def test_colluding_clients_use_the_honest_updates_of_the_round_only():
    liars = np.array([0, 3])
    honest = UPDATES[1:3].astype(np.float64)
    alie = Attackers(ALIE(z=1.5), liars, 0).with_collusion(reports()).update
    assert alie[0] == pytest.approx(honest.mean(0) - 1.5 * honest.std(0))
    assert np.array_equal(alie[0], alie[3])
    assert np.array_equal(alie[1:3], UPDATES[1:3])
    inner = Attackers(InnerProduct(strength=0.5), liars, 0).with_collusion(reports()).update
    assert inner[3] == pytest.approx(-0.5 * honest.mean(0))
    assert Attackers(ALIE(), np.arange(4), 0).with_collusion(reports()).update is UPDATES  # nobody to hide among


def test_buffers_are_not_attacked():
    with_buffers = replace(reports(), trainable=2)
    for attack in (SignFlip(), ALIE()):
        attackers = Attackers(attack, np.array([1]), 0)
        for changed in (attackers.with_attack(with_buffers), attackers.with_collusion(with_buffers)):
            assert np.array_equal(changed.update[:, 2], UPDATES[:, 2])


def test_malicious_clients_train_on_flipped_labels_and_are_scored_on_true_ones():
    plain, flipped = simulation(), simulation("attack.name=label_flip", "attack.share=0.3")
    liars = flipped.attackers.clients
    assert len(liars) == 3
    for client in flipped.data.population.participants:
        rows = flipped.data.train[client]
        expected = 9 - plain.data.labels[rows] if client in liars else plain.data.labels[rows]
        assert np.array_equal(flipped.data.labels[rows], expected)
    assert np.array_equal(flipped.data.dataset.train_y, plain.data.dataset.train_y)


def test_replay_sends_the_update_of_the_first_round_in_each_round():
    replayed = simulation("attack.name=replay", "attack.share=0.9", "method.selection=full")
    state, sent = replayed.start(), []
    for _ in range(3):
        state, _, update = replayed.step(state)
        sent.append(update)
    rows = replayed.attackers.among(replayed.first_view.ids)
    assert rows.sum() == 9
    assert np.array_equal(sent[0][rows], sent[2][rows])
    assert not np.array_equal(sent[0][~rows], sent[2][~rows])


@pytest.mark.parametrize(
    ("attack", "selection", "field"),
    [("false_loss", "power_of_choice", "loss"), ("false_labels", "entropy_topk", "label_entropy")],
)
def test_a_false_number_reaches_the_selection(attack, selection, field):
    simulated = simulation(f"attack.name={attack}", "attack.share=0.3", f"method.selection={selection}")
    liars = simulated.attackers.clients
    sent = answers(simulated)
    assert set(liars) <= set(sent.ids.tolist())  # all three are chosen, with the largest loss or entropy
    values = sent.metrics[field][np.isin(sent.ids, liars)]
    assert values == pytest.approx(1e30 if attack == "false_loss" else np.log(10), rel=0.05)


def test_false_numbers_of_examples_determine_weights_and_steps():
    honest, simulated = simulation(), simulation("attack.name=false_examples", "attack.share=0.3")
    liars = simulated.attackers.clients
    rows = simulated.attackers.among(simulated.first_view.ids)
    assert np.array_equal(simulated.first_view.num_examples[rows], 1000 * honest.first_view.num_examples[rows])
    sent = answers(simulated)
    malicious = np.isin(sent.ids, liars)
    assert malicious.any()
    assert sent.steps[malicious].min() > 100 * sent.steps[~malicious].max()


def test_updates_that_the_server_would_reject_are_lost_in_the_simulator():
    huge = simulation("attack.name=sign_flip", "attack.strength=1e35", "attack.share=0.9", "method.selection=full")
    sent = answers(huge)
    assert set(sent.lost) == set(huge.attackers.clients.tolist())
    assert all("too large" in reason or "not finite" in reason or "erase" in reason for reason in sent.lost.values())
    clipped = simulation("attack.name=sign_flip", "attack.strength=100", "attack.share=0.9", "local.clip_norm=0.01")
    assert all("with gradients clipped to 0.01" in reason for reason in answers(clipped).lost.values())


def test_replay_leaves_the_file_of_clients_memory_alone(tmp_path):
    replayed = simulation("attack.name=replay", "attack.share=0.3", "method.solver=scaffold")
    replayed = replace(replayed, memory_file=tmp_path / "memory.rows")
    state = replayed.start()
    for _ in range(3):
        state = replayed.step(state).state
    assert state.memory.read(np.arange(10)).any()
    assert (tmp_path / "memory.rows").stat().st_size > 0  # a new table would have emptied it


def test_an_update_that_would_erase_the_model_is_found_by_the_median_of_the_others():
    rng = np.random.default_rng(0)
    for _ in range(200):
        r = int(rng.integers(1, 7))
        largest = rng.choice([0.0, 0.1, 0.1, 0.2, 1e7, 1e20], r)
        models = rng.choice([0.0, 0.5], r)
        expected = set()
        for row in range(r):
            others = sorted(np.delete(largest, row))
            limit = ERASING * (models[row] + (others[(len(others) - 1) // 2] if others else 0))
            expected |= {row} if largest[row] > limit > 0 else set()
        assert set(erasing_updates(largest, models)) == expected


def test_what_cannot_be_attacked_is_refused_before_the_first_round():
    hidden = replace(tiny_federation(), label_statistics=SecureAggregation())
    with pytest.raises(ConfigError, match="requires the updates of honest clients"):
        Attackers(ALIE(), np.arange(1), 0).check(hidden)
    Attackers(SignFlip(), np.arange(1), 0).check(hidden)
    with pytest.raises(ConfigError, match="requires one class per example"):
        Attackers(LabelFlip(), np.arange(1), 0).training_labels(np.ones((3, 2)), np.arange(3), 0)
    with pytest.raises(ConfigError, match=r"attack\.share must be above 0 and below 1"):
        Attackers.draw(Replay(), np.arange(3), 1.0, 0)


def test_aggregators_say_how_many_malicious_clients_they_tolerate():
    assert Mean().tolerates(10) == 0
    assert Median(share=0.3).tolerates(10) == 3
    assert Median(share=0.4, mixing="bucketing").tolerates(10) == 2  # three bad pairs of five are most
    assert MultiKrum(share=0.49).tolerates(10) == 4


@dataclass(frozen=True)
class Remembering(Mean):
    """Counts how often each client took part."""

    reads_ids = True

    def combine(self, state, weights, update, rng, *, ids):
        counts = state.get("counts", np.zeros(100, np.int64)).copy()
        counts[ids] += 1
        return super().combine(state, weights, update, rng)[0], {"counts": counts}


def test_aggregators_that_ask_for_ids_get_those_of_the_replies():
    simulated = simulation()
    federation = replace(simulated.federation, aggregation=Remembering(), label_statistics=Exact())
    simulated = replace(simulated, federation=federation)
    state, counts = simulated.start(), np.zeros(100, np.int64)
    for _ in range(3):
        state, result, _ = simulated.step(state)
        counts[list(result.cohort)] += 1
    assert np.array_equal(state.aggregation[0]["counts"], counts)
