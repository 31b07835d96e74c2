from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray

from fedreach._util.errors import ConfigError
from fedreach.report.figures import curves, draw_figures, figure_specs
from fedreach.report.figures.clients import (
    chosen_shares,
    client_accuracies,
    mean_weights,
    order_by_class,
    participants_of,
    partition_heatmap,
)
from fedreach.report.figures.curves import differences
from fedreach.report.figures.style import (
    DASH,
    MARKER,
    METHOD,
    METHOD_ON_DARK,
    Legend,
    inline_svg,
    line_style,
    save,
    shorten,
)
from fedreach.report.numbers import RunSet
from fedreach.report.overview import analyse
from fedreach.report.read import read

from .made_up import federation, write_comparison, write_curve, write_run

Array = NDArray[np.float64]
# Machado, Oliveira, Fernandes (2009), table 1, severity 1.0, on linear RGB: protanopia and deuteranopia.
SIGHT = (
    np.eye(3),
    np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
)


def linear(colour: str) -> Array:
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def oklab(rgb: Array) -> Array:
    # Ottosson (2020), https://bottosson.github.io/posts/oklab
    to_lms = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    to_lms += [[0.0883024619, 0.2817188376, 0.6299787005]]
    to_lab = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
    to_lab += [[0.0259040371, 0.7827717662, -0.808675766]]
    return np.array(to_lab) @ np.cbrt(np.clip(np.array(to_lms) @ rgb, 0, None))


def contrast(colour: str, paper: str) -> float:
    bright, dark = sorted(
        (float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (colour, paper)), reverse=True
    )
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("palette", "apart"), [(METHOD, 0.1), (METHOD_ON_DARK, 0.1)])
def test_any_two_methods_stay_apart_for_the_colour_blind(palette: tuple[str, ...], apart: float) -> None:
    for one, other in combinations(palette, 2):
        for sight in SIGHT:
            assert np.linalg.norm(oklab(sight @ linear(one)) - oklab(sight @ linear(other))) > apart, (one, other)


def test_lines_stand_out_on_light_and_on_dark_paper() -> None:
    # WCAG 2.2, 1.4.11: 3 to 1 for graphics.
    assert min(contrast(colour, "#ffffff") for colour in METHOD) >= 3
    assert min(contrast(colour, "#171c22") for colour in METHOD_ON_DARK) >= 3


def test_twelve_methods_look_different() -> None:
    looks = {(line_style(j)["color"], str(line_style(j)["linestyle"])) for j in range(12)}
    assert len(looks) == 12
    assert len({line_style(j)["marker"] for j in range(12)}) == len(MARKER) == 12
    assert len(METHOD) * len(DASH) >= 12


@pytest.mark.slow
def test_every_figure_is_the_same_bytes_each_time(comparison: RunSet, tmp_path: Path) -> None:
    for turn in ("one", "two"):
        (tmp_path / turn).mkdir()
        drawn = (curves.accuracy(comparison), curves.gap(comparison), differences(analyse(comparison)))
        for name, figure in zip(("accuracy", "gap", "differences"), drawn, strict=True):
            assert figure is not None
            save(figure, tmp_path / turn / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_a_figure_is_the_same_whatever_was_saved_before(comparison: RunSet, tmp_path: Path) -> None:
    first, second = curves.gap(comparison), curves.gap(comparison)
    assert first is not None
    assert second is not None
    save(first, tmp_path / "gap")
    save(second, tmp_path / "alone", ("svg",))
    assert (tmp_path / "alone.svg").read_bytes() == (tmp_path / "gap.svg").read_bytes()


def test_the_callers_matplotlib_settings_are_left_alone(comparison: RunSet) -> None:
    before = dict(matplotlib.rcParams)
    draw_figures(figure_specs(analyse(comparison)))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_figures_are_the_same_however_many_processes_draw_them(comparison: RunSet, tmp_path: Path) -> None:
    drawn = {}
    for processes in (1, 3):
        (folder := tmp_path / str(processes)).mkdir()
        pictures = draw_figures(figure_specs(analyse(comparison)), folder, ("svg", "png", "pdf"), processes)
        files = {path.name: path.read_bytes() for picture in pictures for path in picture.files}
        assert files.keys() == {path.name for path in folder.iterdir()}
        drawn[processes] = [replace(picture, files=()) for picture in pictures], files
    assert drawn[1] == drawn[3]
    assert len(drawn[1][1]) == 3 * len(drawn[1][0]) > 0


@pytest.fixture(scope="module")
def inlined(comparison: RunSet) -> dict[str, str]:
    """Every figure as the page has it, by name."""
    return {
        picture.name: inline_svg(figure, picture.name, "A title & more")
        for picture in figure_specs(analyse(comparison))
        if (figure := picture.draw())
    }


def test_an_inlined_figure_is_named_and_its_ids_are_its_own(inlined: dict[str, str]) -> None:
    ids: list[str] = []
    for name, svg in inlined.items():
        root = ElementTree.fromstring(svg)
        assert root[0].text == "A title & more"
        own = re.findall(r'\bid="([^"]+)"', svg)
        assert all(each.startswith(f"{name}-") for each in own)
        assert set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(own)
        assert not any(colour in svg for colour in METHOD)
        ids += own
    assert len(ids) == len(set(ids))


def test_parts_of_a_method_can_be_brought_out(inlined: dict[str, str]) -> None:
    for name, svg in inlined.items():
        if name != "partition":
            assert {f"m{j}" for j in range(1, 5)} <= set(re.findall(r'class="method (m\d+)"', svg)), name


def test_the_band_is_the_standard_deviation_over_seeds(tmp_path: Path) -> None:
    levels = {0: [0.1, 0.4], 1: [0.2, 0.6], 2: [0.3, 0.8]}
    for seed, values in levels.items():
        write_curve(tmp_path / str(seed), "m", seed, {"participant_accuracy": values, "bytes_total": [0, 1_000_000]})
    comparison = read([tmp_path / str(seed) for seed in levels])
    made = curves.curve(comparison.all_counted, "participant_accuracy")
    assert made.mean == pytest.approx([0.2, 0.6])
    assert made.high - made.mean == pytest.approx([0.1, 0.2])  # sd of three values d apart is d
    figure = curves.accuracy(comparison, "megabytes")
    assert figure is not None
    assert figure.axes[0].lines[0].get_xdata().tolist() == [0, 1]


def test_with_one_seed_the_band_is_over_clients(tmp_path: Path) -> None:
    run = read([write_run(tmp_path / "run", rounds=8)]).all_counted[0]
    made = curves.curve([run], "unseen_accuracy")
    known = np.isfinite(run.column("unseen_accuracy"))
    assert made.low.tolist() == run.column("unseen_accuracy_low")[known].tolist()


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_captions_speak_of_intervals_over_seeds_where_there_are_some(seeds: tuple[int, ...], tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, ["base", "other"], seeds, rounds=3)
    said = {name: caption for name, _, caption, *_ in figure_specs(analyse(read([folder])))}
    for name in ("differences", "adaptation"):
        assert ("95% CI" in said[name]) == (len(seeds) > 1), name


def test_a_method_without_the_column_has_no_curve(tmp_path: Path) -> None:
    comparison = read([write_run(tmp_path / "run", rounds=4, held=federation(20, 0))])
    assert curves.curves(comparison, "participation_gap") == {}
    assert {picture.name for picture in draw_figures(figure_specs(analyse(comparison)))} == {
        *("accuracy", "distribution", "cost", "chosen", "weights", "theory", "partition")
    }


def test_shares_of_rounds_add_up_to_the_cohort(comparison: RunSet) -> None:
    for method in comparison.methods:
        assert chosen_shares(comparison, method).sum() == pytest.approx(10)


def test_weights_of_a_round_add_up_to_one(comparison: RunSet) -> None:
    for method in comparison.methods:
        edges, heat = mean_weights(comparison, method)
        assert edges[[0, -1]].tolist() == [0, 24]
        assert heat.shape == (len(participants_of(comparison)), len(edges) - 1)
        assert heat.sum(0) == pytest.approx(1)


def test_client_accuracies_hold_every_client_of_every_seed(comparison: RunSet) -> None:
    assert len(client_accuracies(comparison, "fedavg", "unseen")) == 5 * 15
    assert len(client_accuracies(comparison, "minimax_gap", "participants")) == 4 * 35


@pytest.mark.parametrize(("clients", "unseen"), [(5, 0), (5, 1), (30, 9), (1000, 1), (1000, 300)])
def test_a_partition_of_any_size_is_drawn(clients: int, unseen: int, tmp_path: Path) -> None:
    held = federation(clients, unseen)
    figure = partition_heatmap(held.label_counts, held.participants, held.unseen)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert f"{clients - unseen} participants" in titles
    assert (f"{unseen} unseen" in titles) == (unseen > 0)
    (path,) = save(figure, tmp_path / "partition", ("png",))
    assert path.stat().st_size < 400_000


def test_clients_are_ordered_by_their_most_frequent_class() -> None:
    counts = np.array([[0, 9, 1], [5, 5, 0], [9, 0, 0], [0, 0, 4], [0, 0, 0], [0, 6, 0]])
    # Class 0: client 2 (all of it), 1 (half), 4 (no examples); class 1: 5 (all), 0 (nine tenths); class 2: 3.
    assert order_by_class(counts, [5, 4, 3, 2, 1, 0]).tolist() == [2, 1, 4, 5, 0, 3]


def test_many_long_names_still_leave_room_for_the_curves(tmp_path: Path) -> None:
    names = [f"my_experiments.policies:Selection{i}" for i in range(12)]
    legend = Legend.of(names, range(12))
    assert (legend.columns, legend.height) == (2, pytest.approx(6 * 0.17))
    assert len(set(legend.names)) == 12
    out = write_comparison(tmp_path, names, [0], rounds=4)
    gap = curves.gap(read([out]))
    assert gap is not None
    save(gap, tmp_path / "gap", ("png",))
    assert gap.axes[0].get_position().height * gap.get_figheight() > 1.5  # inches


def test_a_short_name_keeps_both_ends() -> None:
    assert shorten("fedavg") == "fedavg"
    assert shorten("a" * 30 + "z", 9) == "aaaa…aaaz"


def test_an_unknown_format_is_answered_with_the_nearest(comparison: RunSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 'pgn'.*Did you mean 'png'"):
        save(partition_heatmap([[1]], [0], []), tmp_path / "x", ("pgn",))


def test_clients_and_classes_are_called_by_their_names():
    names, classes = ["north", "south", "a very long name of a hospital"], ["no", "yes"]
    figure = partition_heatmap([[5, 0], [1, 3], [0, 2]], [0, 1], [2], names, classes)
    drawn = [[label.get_text() for label in axes.get_xticklabels()] for axes in figure.axes]
    assert ["north", "south"] in drawn
    assert any(len(labels) == 1 and labels[0].startswith("a very") and len(labels[0]) == 12 for labels in drawn)
    assert ["no", "yes"] in [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
