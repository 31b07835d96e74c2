"""The benchmark of harm scores the plain model and the adapted one on the same inputs, and counts what is lost."""

from __future__ import annotations

import numpy as np
import pytest

import fedreach
from fedreach._util.streams import generator
from fedreach.data.shifts import Examples, InputScale
from fedreach.federation.adaptation.label_shift import LabelShift

from .benchmarked import benchmarks


@pytest.fixture
def harm():
    with benchmarks("harm") as (module,):
        yield module


def made_up(harm, **gains):
    """Return rows of two seeds in which nothing is gained or lost, but for what is said of single cells."""
    rows = []
    for seed in (0, 1):
        for kind in ("label-shifted", "alike"):
            for shift in ("none", "dark"):
                for n in (5, 20):
                    guarded = gains.get(f"{kind[:5]}_{shift}_{n}", (0.0, 0.0))[seed]
                    row = {"data": "toy", "seed": seed, "kind": kind, "shift": shift, "inputs": n, "clients": 3}
                    rows.append({**row, "unadapted": 50.0, "guarded": guarded, "unguarded": 10.0})
    return rows


def test_the_tables_name_the_cells_that_lose_and_what_is_kept(harm):
    text = harm.text(made_up(harm, alike_dark_5=(-3.0, -1.0), label_none_5=(6.0, 10.0), alike_dark_20=(-1.5, 0.5)))
    assert "| 5 | guarded | −2.0 (toy, alike, dark) | 1 of 4 | 1 of 8 | −3.0 | 80 |" in text
    assert "| 20 | guarded | −0.5 (toy, alike, dark) | 0 of 4 | 1 of 8 | −1.5 | 0 |" in text
    assert "below −1, with 95% CI: toy, alike, dark, 5 inputs: −2.0 [−14.7, +10.7]." in text
    assert "| dark | 50.0 | 0.0 / 0.0 | +10.0 / +10.0 | 50.0 | −2.0 / −0.5 | +10.0 / +10.0 |" in text
    assert "below −1, with 95% CI: none." in harm.text(made_up(harm))


def test_fresh_shifts_change_images_and_keep_what_they_are(harm):
    digits = fedreach.load("digits")
    scale, x = InputScale.of(digits), digits.train_x[:20].copy()
    before = Examples(x, digits.train_y[:20], np.arange(20))
    for name, shift in harm.shifts().items():
        if shift is None:
            continue
        after = shift.shifted(before, scale, generator(0, "shift"))
        assert after.x.dtype == x.dtype, name
        assert np.array_equal(before.x, digits.train_x[:20]), name
        same = after.index.size == 20 and np.array_equal(after.x, x) and np.array_equal(after.y, before.y)
        assert not same, name


def test_images_in_color_are_shifted_in_color_and_gray_ones_are_not(harm):
    gray, color = harm.shifts(), harm.shifts(in_color=True)
    x = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8)).astype(np.uint8)
    data = fedreach.from_arrays(x, np.array([0, 1, 2]), x, np.array([0, 1, 2]))
    before = Examples(x, np.arange(3), np.arange(3))
    assert "warm light" not in gray
    for name in set(color) - set(gray):
        after = color[name].shifted(before, InputScale.of(data), generator(0, "shift")).x
        assert after.shape == x.shape, name
        assert not np.array_equal(after, x), name
    warm = color["warm light"].shifted(before, InputScale.of(data), generator(0, "shift")).x
    assert (warm[:, 2] <= x[:, 2]).all()
    assert np.array_equal(warm[:, 1], x[:, 1])


def test_the_plain_model_and_the_adapted_one_see_the_same_inputs(harm, monkeypatch):
    monkeypatch.setattr(harm, "ROUNDS", 120)
    # One that refuses whatever drifts must there be the plain model, on the very same inputs.
    never = LabelShift(guard=True, k=1e300)
    monkeypatch.setattr(harm, "RULES", {"guarded": LabelShift(guard=False), "unguarded": never})
    some = {name: harm.shifts()[name] for name in ("none", "negative", "one_class")}
    monkeypatch.setattr(harm, "shifts", lambda **_: some)
    rows = list(harm.measure("digits", fedreach.load("digits"), 0))
    told = {(row["kind"], row["shift"]) for row in rows}
    assert told == {(kind, shift) for kind in harm.KINDS for shift in some} - {("alike", "one_class")}  # too few left
    plain = {(row["kind"], row["shift"], row["inputs"]): row["unadapted"] for row in rows}
    assert plain["alike", "negative", 5] < plain["alike", "none", 5] - 20
    assert all(-100 <= row["guarded"] <= 100 and row["clients"] <= harm.CLIENTS for row in rows)
    assert next(row["guarded"] for row in rows if row["inputs"] == 20) > 0  # label shift alone
    abstained = [row["unguarded"] for row in rows if row["shift"] == "negative"]
    assert abstained == [0.0] * len(abstained)
