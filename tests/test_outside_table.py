"""Tables of what others published: the numbers of a method beside its own, and experiments dealt out as theirs are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import TrainingError
from fedreach.federation.solvers import Scaffold
from fedreach.federation.types import ClientResults, ServerView
from fedreach.report.read import read

from .benchmarked import benchmarks

LABELS = np.repeat(np.arange(10), 600)


def test_each_method_has_its_published_number_and_its_own_differences(tmp_path: Path) -> None:
    fr.compare(
        fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.3, participants=6),
        {"base": {}, "still": {"local": {"lr": 1e-6}}, "unpublished": {"local": {"lr": 0.2}}},
        model="linear",
        rounds=6,
        cohort_size=6,
        local={"lr": 0.5, "epochs": 5},
        seeds=2,
        evaluation={"every": 1},
        target_accuracy=0.5,
        out=tmp_path / "s",
        progress=False,
    )
    comparison = read([tmp_path / "s"])
    with benchmarks("outside") as (outside,):
        head, *rows = outside.lines(comparison, {"base": 80.0, "still": 10.0})
        plain, *_ = outside.lines(comparison, {})
        text = outside.section(comparison, {"base": 80.0, "still": 10.0})
    cells = {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in rows}
    assert [cells[name]["published %"] for name in ("base", "still", "unpublished")] == ["80.0", "10.0", "-"]
    assert [cells[name]["published to `base`"] for name in ("base", "still")] == ["-", "\N{MINUS SIGN}70.0"]
    here = {name: float(row["FedReach, test set, % ± sd"].split()[0]) for name, row in cells.items()}
    assert comparison.primary == "unseen_accuracy"  # of the digits; the test set where all take part
    assert here["base"] > 60 > 30 > here["still"]
    difference = float(cells["still"]["to `base`, points [95% CI]"].split()[0].replace("\N{MINUS SIGN}", "-"))
    assert difference == pytest.approx(here["still"] - here["base"], abs=0.11)
    assert cells["still"]["rounds to 50%"] == "none of 2 seeds"
    assert 1 <= int(cells["base"]["rounds to 50%"].split()[0]) <= 6
    lowest, highest = (
        float(word) for word in cells["base"]["lowest to highest of the last 5 evaluations, %"].split(" to ")
    )
    assert lowest <= here["base"] <= highest
    assert "published %" not in plain
    assert text.endswith("Of the last round; 2 seeds.")


def test_a_run_that_diverged_is_told_with_its_last_score_and_never_counted(tmp_path: Path) -> None:
    recipe = fr.load("digits").partition("iid", clients=4, participants=4)
    breaks = {"server": {"name": "average", "lr": 1e12}}  # its second round has nothing finite to start at
    with pytest.raises(TrainingError):
        fr.compare(
            recipe,
            {"base": {}, "breaks": breaks},
            model="mlp",
            rounds=5,
            cohort_size=4,
            seeds=1,
            evaluation={"every": 1},
            out=tmp_path / "s",
            progress=False,
        )
    comparison = read([tmp_path / "s"])
    with benchmarks("outside") as (outside,):
        _, base, broken = outside.lines(comparison, {"base": 80.0, "breaks": 10.0})
        text = outside.section(comparison, {})
    assert base[0] == "`base`"
    assert broken[:3] == ["`breaks`", "10.0", "\N{MINUS SIGN}70.0"]
    assert re.fullmatch(r"\d+\.\d in round [1-4], failed in round [2-5]", broken[3])
    assert set(broken[4:]) == {"-"}
    assert re.search(r"1 seed\. What failed said: Client \d failed in round [2-5]: its update is not finite", text)


def test_label_quantity_draws_the_classes_of_the_baseline() -> None:
    with benchmarks("outside_data") as (data,):
        partition = data.label_quantity(LABELS, 10, np.random.default_rng(5))
    draw, classes = np.random.default_rng(42), []
    for client in range(10):
        while (other := int(draw.integers(10))) == client:
            pass
        classes.append({client, other})
    counts = partition.label_counts(LABELS, 10)
    assert [set(np.flatnonzero(row)) for row in counts] == classes
    for held in counts.T:  # a class is shared equally
        assert np.ptp(held[held > 0]) <= 1


def test_alphas_in_turn_gives_each_alpha_its_clients_and_its_share_of_every_class() -> None:
    with benchmarks("outside_data") as (data,):
        partition = data.alphas_in_turn(LABELS, 20, np.random.default_rng(0), alphas=(0.01, 100.0))
    counts = partition.label_counts(LABELS, 10)
    assert [part.sum(axis=0).tolist() for part in (counts[:10], counts[10:])] == [[300] * 10] * 2
    assert counts.sum(axis=1).min() >= 300 // 5
    shares = counts.max(axis=1) / counts.sum(axis=1)
    assert shares[:10].mean() > 0.6 > 0.3 > shares[10:].mean()


def test_steps_by_examples_moves_a_control_variate_by_a_batchth() -> None:
    memory, update, steps = np.zeros((1, 3), np.float32), np.array([[1, 2, 4]], np.float32), np.array([10.0])
    right = Scaffold().remember(memory, {}, update, steps, lr=0.1)
    with benchmarks("outside_methods") as (methods,):
        slow = methods.StepsByExamples(batch_size=8.0).remember(memory, {}, update, steps, lr=0.1)
    np.testing.assert_allclose(8 * slow, right)


def updates(mean_weights: list[list[float]]) -> np.ndarray:
    """Return (n, c f + c) updates of an output layer with f = 2 inputs, whose classes have these mean weights."""
    weights = np.repeat(np.array(mean_weights), 2, axis=1) + np.tile([0.1, -0.1], len(mean_weights[0]))
    return np.hstack([weights, np.full((len(mean_weights), len(mean_weights[0])), 9.0)]).astype(np.float32)


def test_hics_as_coded_takes_clients_in_turn_keeps_what_came_first_and_prefers_varied_groups() -> None:
    narrow, varied = [1.0, 0.0, 0.0], [0.02, 0.01, 0.0]
    sent = updates([narrow, varied, narrow, varied])
    with benchmarks("outside_methods") as (methods,):
        policy = methods.HiCSAsCoded(features=2, temperature=0.1, gamma=99.0, groups=2, most_variance=9.0)
        similar = methods.HiCSAsCoded(features=2, temperature=0.1, gamma=99.0, groups=2, most_variance=0.0)
    view, rng = ServerView.of(np.arange(4), np.full(4, 10)), np.random.default_rng(0)
    state = policy.init(view)
    for turn in ([0, 1], [2, 3]):
        assert policy.select(state, view, 2, rng).ids.tolist() == turn
        state = policy.observe(state, ClientResults(np.array(turn), sent[turn], {}, output_bias=3))
    assert policy.select(state, view, 2, rng).ids.tolist() == [1, 3]
    later = policy.observe(state, ClientResults(np.array([0, 1]), sent[[1, 0]], {}, output_bias=3))
    np.testing.assert_array_equal(later["layer"], state["layer"])
    # The mean weights, not the bias, which says nothing here: H(softmax(w / T)).
    raw = np.exp(np.array([narrow, varied]) / 0.1)
    p = raw / raw.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(policy.entropy(state["layer"])[:2], -(p * np.log(p)).sum(axis=1), rtol=1e-5)
    drawn = similar.select(state, view, 2, rng)  # one of each kind, by urns
    assert set(drawn.ids.tolist()) in ({0, 1}, {0, 3}, {1, 2}, {2, 3})


def test_entropies_that_follow_the_size_of_an_update_are_told_from_those_that_follow_labels() -> None:
    """By hand: clients 0 and 1 are narrow and moved little, client 2 is narrow and went far, 3 and 4 are varied."""
    bias = np.array([[0.1, 0.0], [0.2, 0.0], [9.0, 0.0], [1.0, 0.5], [1.0, 0.4]])
    with benchmarks("hics_entropies") as (entropies,):
        truth = entropies.true_entropy(np.array([[4, 0], [4, 0], [4, 0], [2, 2], [3, 1]]))
        told = entropies.line(7, bias, 1.0, truth, varied=3)
    np.testing.assert_allclose(truth, [0, 0, 0, np.log(2), -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))])
    share = 1 / (1 + np.exp(-(bias[:, 0] - bias[:, 1])))
    estimated = -share * np.log(share) - (1 - share) * np.log(1 - share)
    mean = [f"{estimated[3:].mean():.2f}", f"{estimated[:3].mean():.2f}"]
    # Ranks of the estimates 5 4 1 3 2, of the truth 2 2 2 5 4, of the sizes 1 2 5 4 3.
    assert told == ["7", *mean, "2 of 3", "\N{MINUS SIGN}0.22", "\N{MINUS SIGN}0.90"]


def test_a_model_that_is_not_the_run_s_is_refused_and_swings_are_between_rounds(tmp_path: Path) -> None:
    recipe = fr.load("digits").partition("iid", clients=4, participants=4)
    fr.compare(
        recipe, {"fedavg": {}}, model="linear", rounds=1, cohort_size=4, seeds=1, out=tmp_path / "s", progress=False
    )
    (run,) = read([tmp_path / "s"]).runs
    ended = float(run.column("test_accuracy")[-1])
    with benchmarks("niid_swing") as (swing,):
        swing.check(run, ended)
        with pytest.raises(ValueError, match="its model is scored"):
            swing.check(run, ended + 0.01)
        told = swing.line("fedavg", [0.5, 0.52, 0.48])
    assert told == ["`fedavg`", "50.0 52.0 48.0", "3.0", "4.0"]
