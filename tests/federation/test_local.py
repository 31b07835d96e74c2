"""The numbers of the local loop, and the solvers' line of difference."""

import math

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.experiment.components import file_digests
from fedreach.experiment.load import check, load
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedProx


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lr", 0.0),
        ("lr", -0.1),
        ("lr", math.nan),
        ("lr", math.inf),
        ("batch_size", 0),
        ("epochs", 0),
        ("steps", 0),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1e-9),
        ("weight_decay", math.nan),
        ("clip_norm", 0.0),
        ("clip_norm", math.nan),
        ("decay", 0.0),
        ("decay", 1.1),
    ],
)
def test_an_option_outside_its_range_is_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=rf"LocalSGD\.{option} must be .*got {value}"):
        LocalSGD(**{option: value})


def test_a_misspelt_schedule_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"LocalSGD\.schedule must be .*; got 'cosin'\. Did you mean 'cosine'\?"):
        LocalSGD(schedule="cosin")


@pytest.mark.parametrize("schedule", ["exponential", "cosine"])
def test_a_schedule_that_would_change_no_rate_is_refused(schedule):
    with pytest.raises(
        ConfigError, match=rf"LocalSGD\.decay must be below 1, such as 0\.99, with the schedule '{schedule}'; got 1"
    ):
        LocalSGD(schedule=schedule)


def test_a_constant_rate_stays():
    assert {LocalSGD(lr=0.3).lr_at(t, 10) for t in range(1, 11)} == {0.3}


def test_an_exponential_rate_falls_by_the_same_factor_each_round():
    local = LocalSGD(lr=0.2, schedule="exponential", decay=0.9)
    assert local.lr_at(1, 50) == 0.2
    for t in range(1, 50):
        assert local.lr_at(t + 1, 50) / local.lr_at(t, 50) == pytest.approx(0.9)


def test_a_cosine_rate_begins_at_the_rate_and_ends_at_its_share():
    local = LocalSGD(lr=0.2, schedule="cosine", decay=0.1)
    rates = [local.lr_at(t, 11) for t in range(1, 12)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[5] == pytest.approx(0.11)  # half-way: the mean of both ends
    assert rates[-1] == pytest.approx(0.02)
    assert rates == sorted(rates, reverse=True)
    assert local.lr_at(1, 1) == pytest.approx(0.2)  # a run of one round


def test_a_step_schedule_falls_after_every_n_rounds_and_not_before():
    local = LocalSGD(lr=0.8, schedule="step", decay=0.5, schedule_rounds=3)
    assert [local.lr_at(t, 7) for t in range(1, 8)] == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]


def test_a_warmup_reaches_the_rate_in_its_last_round_and_stays():
    local = LocalSGD(lr=0.8, schedule="warmup", schedule_rounds=4)
    assert [local.lr_at(t, 6) for t in range(1, 7)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_a_function_is_handed_the_round_and_returns_the_factor():
    local = LocalSGD(lr=0.8, schedule=lambda round_: 1 / round_)
    assert [local.lr_at(t, 9) for t in (1, 2, 4)] == [0.8, 0.4, 0.2]


@pytest.mark.parametrize("factor", [0, -1.0, np.nan, np.inf, None, "a"])
def test_a_factor_that_is_no_positive_number_is_refused_with_its_round(factor):
    def mine(round_):
        return factor

    with pytest.raises(ComponentError, match=r"mine must return a positive number, .* in round 3"):
        LocalSGD(schedule=mine).lr_at(3, 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": "step", "decay": 0.5}, "schedule_rounds must be set for the schedules 'step' and 'warmup'"),
        ({"schedule": "cosine", "decay": 0.5, "schedule_rounds": 3}, "only; got 3 with the schedule 'cos"),
        ({"schedule": "step", "schedule_rounds": 3}, "decay must be below 1, such as 0.99, with the schedule 'step'"),
        ({"schedule": "warmup", "schedule_rounds": 3, "decay": 0.5}, "decay must be 1 with the schedule 'warmup'"),
        ({"schedule": abs, "decay": 0.5}, "decay must be 1 with the schedule of a function"),
        ({"schedule": "warmup", "schedule_rounds": 0}, "schedule_rounds must be in"),
    ],
)
def test_options_that_a_schedule_lacks_or_ignores_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        LocalSGD(**options)


def test_a_misspelt_schedule_of_a_file_is_told_once_by_its_key(tmp_path):
    (tmp_path / "x.toml").write_text('[local]\nschedule = "cosin"\n[methods.a]\n[methods.b]\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"local\.schedule: must be .* or 'warmup'; got 'cosin'") as told:
        load(tmp_path / "x.toml")
    assert str(told.value).count("cosin'") == 1


OWN = "def halved(round_):\n    return 0.5 ** (round_ - 1)\n"


def test_a_schedule_in_a_file_is_one_of_the_simulator_and_its_change_makes_another_run(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    data = fr.load("digits").partition("iid", clients=6, participants=3)
    ways = {
        "file": {"schedule": "own.py:halved"},
        "function": {"schedule": lambda round_: 0.5 ** (round_ - 1)},
        "name": {"schedule": "exponential", "decay": 0.5},
    }
    given = {"model": "linear", "rounds": 3, "cohort_size": 3, "engine": {"name": "sequential"}}
    losses = [[*fr.run(data, local=local, **given)][-1]["unseen_loss"] for local in ways.values()]
    assert losses[0] == losses[1] == losses[2]
    experiment = check({"local": ways["file"]}, tmp_path)[0]
    before = file_digests(experiment, tmp_path)["code"]
    (tmp_path / "own.py").write_text(OWN.replace("0.5", "0.4"))
    assert before.keys() == {"own.py:halved"}
    assert file_digests(experiment, tmp_path)["code"] != before


def test_fedavg_follows_the_gradient_and_fedprox_adds_the_pull():
    rng = np.random.Generator(np.random.Philox(0))
    g, w, x = rng.standard_normal((3, 4))
    assert FedAvg().correct(g, w, x) is g
    assert FedProx(mu=0.0).correct(g, w, x) is g
    np.testing.assert_array_equal(FedProx(mu=2.0).correct(g, w, x), g + 2.0 * (w - x))
    # It is the gradient of mu / 2 |w - x|^2: a central difference of a quadratic is exact up to rounding.
    h, e = 1e-3, np.eye(4)
    penalty = lambda w: 2.0 / 2 * ((w - x) ** 2).sum()  # noqa: E731
    slope = [(penalty(w + h * e[i]) - penalty(w - h * e[i])) / (2 * h) for i in range(4)]
    np.testing.assert_allclose(FedProx(mu=2.0).correct(g, w, x) - g, slope, atol=1e-9)


@pytest.mark.parametrize("mu", [-1.0, math.inf, math.nan])
def test_fedprox_refuses_a_mu_that_is_no_strength(mu):
    with pytest.raises(ConfigError, match=r"FedProx\.mu"):
        FedProx(mu=mu)
