"""Curves of recipes are means over seeds with pointwise intervals, few points, and drawn as they are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

from fedreach.federation.convergence import LOSSES, bounds
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import RoundRow
from papers import pages
from papers.curves import DISTANCES, MAX_LINES, MAX_PANELS, MAX_POINTS, figures_of, mean_curves, run_curves
from papers.moments import SquaredLoss
from papers.recipe import load
from papers.reproduce import reproduce

RECORDS = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*.json"))


def one(*seeds: dict[float, float]) -> Any:
    """Return seeds x one value of the axis -> curves of accuracy."""
    return [[{"accuracy": points} if points else {}] for points in seeds]


def record(curves: Any, *, axis: str = "", methods: tuple[str, ...] = ("a", "b"), seeds: int = 3) -> dict[str, Any]:
    return {"curves": curves, "axis": axis, "methods": list(methods), "seeds": list(range(seeds))}


def test_a_point_is_the_mean_over_seeds_with_its_own_interval() -> None:
    curves = mean_curves({"a": one({0: 0.1, 5: 0.5}, {0: 0.2, 5: 0.5}, {0: 0.3, 5: 0.8})}, [0.0])
    (value,) = curves["accuracy"].values()
    half = t.ppf(0.975, 2) * np.array([0.1, np.sqrt(0.03)]) / np.sqrt(3)
    assert value["at"] == [0, 5]
    np.testing.assert_allclose(value["lines"]["a"], np.stack([[0.2, 0.6], half], 1), rtol=0.02)
    single = mean_curves({"a": one({0: 0.1})}, [0.0])["accuracy"]["0"]
    assert single["lines"]["a"] == [[0.1, None]]


def test_a_long_curve_is_stored_with_few_short_numbers_from_its_first_to_its_last_round() -> None:
    rng = np.random.Generator(np.random.Philox(0))
    runs = {"a": one(*(dict(enumerate(rng.random(1001).tolist())) for _ in range(5)))}
    value = mean_curves(runs, [0.0])["accuracy"]["0"]
    assert len(value["at"]) == MAX_POINTS
    assert (value["at"][0], value["at"][-1]) == (0, 1000)
    assert len(json.dumps(value)) < 30 * MAX_POINTS


def test_a_line_of_which_a_run_failed_is_left_out_and_the_others_keep_their_rounds() -> None:
    curves = mean_curves({"a": one({0: 0.1, 5: 0.2}, {}), "b": one({0: 0.3, 5: 0.4}, {0: 0.3, 5: 0.4})}, [0.0])
    assert curves["accuracy"]["0"] == {"at": [0, 5], "lines": {"b": [[0.3, 0.0], [0.4, 0.0]]}}
    assert mean_curves({"a": one({}, {})}, [0.0]) == {}


def test_curves_are_at_the_rounds_that_all_runs_evaluated() -> None:
    curves = mean_curves({"a": one({0: 0.1, 2: 0.2, 4: 0.4}), "b": one({0: 0.1, 4: 0.3})}, [0.0])
    assert curves["accuracy"]["0"]["at"] == [0, 4]


@pytest.mark.parametrize("loss", LOSSES)
def test_bounds_of_a_run_are_those_of_the_losses_on_its_test_set_at_the_last_evaluation(loss: Any) -> None:
    rng = np.random.Generator(np.random.Philox(1))
    labels, scores = rng.integers(0, 3, 50), rng.normal(size=(50, 3))
    moments = {f"test_{m.name}": m.of(labels, scores) for m in (SquaredLoss(loss, x) for x in ("mean", "variance"))}
    rows: list[dict[str, Any]] = [dict.fromkeys(moments, 0.5), {"test_accuracy": 0.5}, moments, {"round": 3}]
    curves = run_curves(rows, [])
    expected = bounds(LOSSES[loss](scores, labels), DISTANCES)
    assert curves.keys() == {f"upper_{loss}", f"lower_{loss}"}
    np.testing.assert_allclose(list(curves[f"upper_{loss}"].values()), expected.upper)
    np.testing.assert_allclose(list(curves[f"lower_{loss}"].values()), expected.lower)
    np.testing.assert_allclose(DISTANCES, np.arange(11) / 50)


def test_only_what_a_recipe_asks_for_is_stored_and_rounds_without_a_number_are_skipped() -> None:
    rows: list[dict[str, Any]] = [{"round": 0, "test_accuracy": 0.1}, {"round": 1, "train_loss": 2.0}]
    rows += [{"round": 2, "train_loss": None, "test_accuracy": 0.2}, {"round": 3, "train_loss": float("nan")}]
    assert run_curves(rows, ["accuracy"]) == {"accuracy": {0: 0.1, 2: 0.2}}
    assert run_curves(rows, ["train_loss"]) == {"train_loss": {1: 2.0}}


def test_lines_and_bands_are_drawn_at_their_numbers() -> None:
    lines = {"a": [[0.1, 0.02], [0.5, 0.1]], "b": [[0.2, None], [0.6, None]]}
    figure = figures_of(record({"accuracy": {"0": {"at": [0, 10], "lines": lines}}}))["curves"]
    (axes,) = figure.axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0.1, 0.5], [0.2, 0.6]]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 10], [0, 10]]
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.08, 0.6))
    assert "pointwise 95% CI, 3 seeds" in axes.get_xlabel()
    text = [label.get_text() for label in figure.legends[0].get_texts()]
    assert text == ["a", "b"]


def test_bounds_of_both_ends_share_a_panel_and_the_look_of_their_line() -> None:
    ends = {f"{end}_jsd": {"0": {"at": [0.0, 0.2], "lines": {"a": [[0.5, 0.1], [v, 0.1]]}}} for end, v in
            (("upper", 0.7), ("lower", 0.3))}  # fmt: skip
    figures = figures_of(record(ends, methods=("a",)))
    assert figures.keys() == {"bounds"}
    (axes,) = figures["bounds"].axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0.5, 0.7], [0.5, 0.3]]
    assert len({line.get_color() for line in axes.lines}) == 1
    assert axes.get_xlabel().startswith("Hellinger distance")


def axis_of(lines: int, values: int) -> dict[str, Any]:
    """Return curves of lines that differ between the values of the axis, except the first."""
    return {
        "accuracy": {
            str(v): {"at": [0, 1], "lines": {f"m{i}": [[0, 0], [i * v * 0.1, 0]] for i in range(lines)}}
            for v in range(values)
        }
    }


def test_few_lines_along_an_axis_share_a_panel_and_one_that_never_differs_is_drawn_once() -> None:
    figure = figures_of(record(axis_of(2, 5), axis="threshold"))["curves"]
    (axes,) = figure.axes
    assert axes.get_title(loc="left").endswith("%; by threshold")
    names = [label.get_text() for label in figure.legends[0].get_texts()]
    assert names == ["m0", "m1, 0", "m1, 1", "m1, 2", "m1, 3", "m1, 4"]


def test_many_lines_along_an_axis_have_a_panel_for_each_of_some_values() -> None:
    figure = figures_of(record(axis_of(MAX_LINES, 7), axis="clients"))["curves"]
    titles = [axes.get_title(loc="left").rpartition("; ")[2] for axes in figure.axes]
    assert titles == ["clients: 0", "clients: 2", "clients: 4", "clients: 6"]
    assert len(titles) == MAX_PANELS
    assert all(len(axes.lines) == MAX_LINES for axes in figure.axes)


def test_pages_of_records_with_and_without_curves_name_only_figures_that_exist(tmp_path: Path) -> None:
    old = next(r for r in (json.loads(path.read_text("utf-8")) for path in RECORDS) if r["hours"] and not r["axis"])
    del_curves = {key: value for key, value in old.items() if key != "curves"}
    lines = {line: [[0.1, 0.02], [0.5, 0.1]] for line in old["methods"]}
    new = {**old, "recipe": "other/new", "curves": {"accuracy": {"0": {"at": [0, 10], "lines": lines}}}}
    for made in (del_curves, new):
        pages.add_record(made, tmp_path)
    pages.write_pages(tmp_path)
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    stem = pages.file_stem(old)
    assert drawn == {f"{stem}.svg", "other-new.svg", "other-new-curves.svg"}
    assert "curves" not in (tmp_path / f"{stem}.md").read_text("utf-8").replace(old["title"], "")
    assert "](other-new-curves.svg)" in (tmp_path / "other-new.md").read_text("utf-8")


SMALL = """
rounds = 2
seeds = [0, 1]
data = { name = "digits" }
partition = { name = "iid", clients = 6 }
evaluation = { every = 1 }
method = { cohort_size = 2 }
[model]
name = "linear"
[methods.fedavg]
[recipe]
title = "Small"
reference = "None"
kind = "training"
curves = ["accuracy", "train_loss"]
sweep = { key = "local.lr", values = [0.1, 0.5], label = "rate" }
"""


def test_a_recipe_stores_the_accuracy_of_its_runs_over_their_rounds(home: Path) -> None:
    (home / "small.toml").write_text(SMALL, encoding="utf-8")
    found = reproduce(load("small.toml", "cpu"), home / "out", workers=1)
    assert list(found["curves"]) == ["accuracy", "train_loss"]
    for value in ("0.1", "0.5"):
        runs = [path for path in (home / "out").rglob("seed-*") if value in str(path.relative_to(home))]
        rows = [RunFolder(path).kept_rows(RoundRow.FILE) for path in runs]
        accuracy = np.mean([[row["test_accuracy"] for row in of_run] for of_run in rows], axis=0)
        stored = found["curves"]["accuracy"][value]
        assert (len(runs), stored["at"]) == (2, [0, 1, 2])
        assert np.array(stored["lines"]["fedavg"])[:, 0] == pytest.approx(accuracy, abs=1e-4)
        assert found["curves"]["train_loss"][value]["at"] == [1, 2]
