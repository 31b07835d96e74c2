"""Simulated seconds and joules: made-up rounds with answers that can be worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreach._util.errors import RunFolderError
from fedreach.report.figures import draw_figures, figure_specs
from fedreach.report.figures.clients import FILLS, round_time, round_times, visible_share
from fedreach.report.figures.curves import POINTS, accuracy, spending
from fedreach.report.findings import find
from fedreach.report.formats import full_text, summary_text
from fedreach.report.numbers import RunSet, unit_of
from fedreach.report.overview import analyse
from fedreach.report.radio import airtime
from fedreach.report.read import read
from fedreach.report.records import as_records, to_csv
from fedreach.report.tables import Table, tabulate
from fedreach.report.write import write_report
from fedreach.runs.trackers import tag_of

from .made_up import compared as write_compared
from .made_up import rewrite, row, write_comparison, write_curve, write_rows

NEVER = [0.1, 0.2, 0.3]
# method -> one course on unseen clients per seed; the target is 50%.
Courses = Mapping[str, Sequence[Sequence[float]]]


def compared(
    folder: Path, courses: Courses, seconds: Mapping[str, Sequence[float]], target: float | None = 0.5
) -> RunSet:
    """Write and read methods whose every round takes so many seconds (one number a seed), and half as many joules."""
    runs: dict[str, dict[str, str]] = {}
    for method, by_seed in courses.items():
        runs[method] = {str(seed): f"runs/{method}/{seed}" for seed in range(len(by_seed))}
        for seed, course in enumerate(by_seed):
            columns: dict[str, Any] = {"participant_accuracy": course, "unseen_accuracy": course}
            if method in seconds:
                total = [seconds[method][seed] * r for r in range(len(course))]
                columns |= {"seconds_total": total, "joules_total": [value / 2 for value in total]}
            write_curve(folder / runs[method][str(seed)], method, seed, columns, best_round=1)
    write_compared(folder, runs, target=target)
    return read([folder])


@pytest.fixture
def small(tmp_path: Path) -> RunSet:
    """`base` reaches the target in round 2 of one seed of two, `fast` in round 1 of both."""
    courses = {"base": [[0.1, 0.4, 0.6], NEVER], "fast": [[0.1, 0.5, 0.4], [0.1, 0.7, 0.7]]}
    return compared(tmp_path, courses, {"base": [10.0, 20.0], "fast": [4.0, 8.0]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("radio")
    return write_comparison(
        out,
        ["fedavg", "power_of_choice", "exact"],
        [0, 1, 2],
        rounds=12,
        target=0.45,
        radios=("equal", "equal", "best"),
    )


@pytest.fixture(scope="module")
def comparison(folder: Path) -> RunSet:
    return read([folder])


def column(table: Table, header: str, unit: str) -> list[str]:
    (place,) = [j for j, names in enumerate(zip(table.header, table.units, strict=True)) if names == (header, unit)]
    return [row[place] for row in table.rows]


# ---------------------------------------------------------------------------------------------- rows and summary


def test_airtime_is_the_mean_over_the_chosen_whether_or_not_they_were_heard() -> None:
    rows = [
        {"round": 0},
        {
            "round": 1,
            "cohort": [3, 5, 9],
            "lost": [5],
            "allocation": {"ids": [3, 5, 9], "compute_seconds": [1.0, 2.0, 6.0], "upload_seconds": [4.0, 4.0, 1.0]},
        },
        {"round": 2},  # all had sent their update in the probe
    ]
    found = airtime(rows, Path("rounds.jsonl"))
    assert found["compute_seconds"].tolist() == pytest.approx([np.nan, 3.0, np.nan], nan_ok=True)
    assert found["upload_seconds"].tolist() == pytest.approx([np.nan, 3.0, np.nan], nan_ok=True)
    assert airtime(rows[::2], Path("rounds.jsonl")) == {}


def test_an_allocation_with_a_number_too_few_is_named() -> None:
    rows = [{"round": 0}, {"round": 1, "allocation": {"ids": [1, 2], "compute_seconds": [1.0], "upload_seconds": []}}]
    with pytest.raises(RunFolderError, match=r"rounds.jsonl, line 2: .* one compute_seconds per client; got 1 for 2"):
        airtime(rows, Path("rounds.jsonl"))


def test_time_and_energy_are_those_of_the_round_that_is_told(small: RunSet) -> None:
    last, best = analyse(small).last[1], analyse(small).best[1]
    assert (last.at["seconds"].mean, last.at["joules"].mean) == (12.0, 6.0)  # two rounds of 4 and of 8 seconds
    assert (best.at["seconds"].mean, best.at["joules"].mean) == (6.0, 3.0)


def test_the_target_is_paid_for_up_to_the_first_round_that_has_it(small: RunSet) -> None:
    base, fast = analyse(small).last
    assert (fast.reached, fast.to_target["seconds"].mean, fast.to_target["joules"].mean) == (2, 6.0, 3.0)
    assert (base.reached, base.to_target["seconds"].mean, base.to_target["joules"].mean) == (1, 20.0, 10.0)


def test_rounds_that_were_not_evaluated_are_paid_for(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "run", "m", 0, {"participant_accuracy": [0.1, None, 0.9], "seconds_total": [0, 3, 7]})
    write_compared(tmp_path, {"m": {"0": run.name}}, target=0.5)
    assert analyse(read([tmp_path])).last[0].to_target["seconds"].mean == 7


# ------------------------------------------------------------------------------------------------------- tables


def test_records_have_them_only_with_a_radio(small: RunSet, tmp_path: Path) -> None:
    record = as_records(analyse(small))[1]
    assert (record["seconds_total_mean"], record["joules_total_mean"]) == (12.0, 6.0)
    assert (record["seconds_to_target"], record["joules_to_target"], record["best_seconds_total_mean"]) == (6, 3, 6)
    assert record["seconds_total_sd_over_seeds"] == pytest.approx(4 * 2**0.5)  # of 8 and 16
    assert [row["seconds_to_target"] for row in csv.DictReader(io.StringIO(to_csv(analyse(small))))] == ["20.0", "6.0"]
    without = read([write_comparison(tmp_path / "without", ["a"], [0], rounds=2)])
    assert not [key for key in as_records(analyse(without))[0] if "seconds" in key or "joules" in key]
    assert not {"time", "energy"} & set(tabulate(analyse(without)).header)
    assert "simulated" not in tabulate(analyse(without)).note


def test_the_table_counts_the_seeds_that_reached_the_target(small: RunSet) -> None:
    table = tabulate(analyse(small))
    assert column(table, "time", "s") == ["30", "12"]
    assert column(table, "energy", "J") == ["15", "6"]
    assert column(table, "time to 50%", "s") == ["20 (1 of 2)", "6"]
    assert column(table, "energy to 50%", "J") == ["10 (1 of 2)", "3"]


def test_a_method_without_radio_has_no_time(tmp_path: Path) -> None:
    courses = {"wired": [[0.1, 0.6]], "wireless": [[0.1, 0.6]]}
    mixed = compared(tmp_path, courses, {"wireless": [4.0]})
    assert column(tabulate(analyse(mixed)), "time", "s") == ["-", "4"]
    assert column(tabulate(analyse(mixed)), "time to 50%", "s") == ["-", "4"]
    assert as_records(analyse(mixed))[0]["seconds_total_mean"] is None
    for quantity in ("seconds", "joules"):
        figure = accuracy(mixed, quantity)
        assert figure is not None
        assert {str(line.get_gid())[:7] for line in figure.axes[1].lines if line.get_gid()} == {"method1"}
    assert spending(mixed) is not None
    assert round_times(mixed) is None  # nobody told who got what
    assert said(mixed).startswith("wireless needs the least simulated time")


def test_long_times_are_told_in_hours_by_all_methods(tmp_path: Path) -> None:
    courses = {"a": [[0.1, 0.6]], "b": [[0.1, 0.6]], "c": [[0.1, 0.6]]}
    table = tabulate(analyse(compared(tmp_path, courses, {"a": [7560.0], "b": [720_000.0], "c": [36.0]})))
    assert column(table, "time", "h") == ["2.1", "200", "0.01"]
    assert column(table, "energy", "kJ") == ["3.78", "360", "0.018"]


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        ("seconds", 0.04321, "0.0432 s"),
        ("seconds", 999.6, "1,000 s"),
        ("seconds", 7199.0, "7,199 s"),
        ("seconds", 7200.0, "2 h"),
        ("joules", 999.4, "999 J"),
        ("joules", 1_234_567.0, "1,235 kJ"),
    ],
)
def test_a_unit_fits_its_number(quantity: str, value: float, text: str) -> None:
    assert unit_of(quantity, [value]).text(value) == text


@pytest.mark.parametrize("width", [90, 100, 120, 150, 190, 220])
def test_no_number_of_the_terminal_table_is_cut(comparison: RunSet, width: int) -> None:
    text, full = summary_text(analyse(comparison), width), tabulate(analyse(comparison))
    assert max(map(len, text.splitlines())) <= width
    shown = [re.split(" {2,}", line) for line in text.partition("─\n")[2].splitlines()[:3]]
    assert shown == [[row[j] for j in full.main] for row in full.rows[: len(shown)]]
    printed = full_text(full, width)
    assert max(map(len, printed.splitlines())) <= width
    assert all(cell in printed for row in full.rows for cell in row)


# -------------------------------------------------------------------------------------------------------- words


def said(comparison: RunSet) -> str:
    return find(analyse(comparison)).bullets[-1]


def test_the_fastest_and_the_next_are_named(tmp_path: Path) -> None:
    course = [[0.1, 0.6]] * 3
    three = compared(tmp_path, {"a": course, "b": course, "c": course}, {"a": [9] * 3, "b": [1, 2, 6], "c": [4, 5, 3]})
    assert said(three) == (
        "b needs the least simulated time to reach 50% on unseen clients, 3 s; c follows with 4 s. "
        "b needs the least energy to reach it, 1.5 J; c follows with 2 J. These means are not tested."
    )


def test_equal_costs_are_a_tie(tmp_path: Path) -> None:
    course = [[0.1, 0.6]]
    tie = compared(tmp_path, {"a": course, "b": course, "c": course}, {"a": [3], "b": [3 * (1 + 1e-12)], "c": [5]})
    assert said(tie).startswith("a and b need the least simulated time to reach 50% on unseen clients, 3 s; c follows")
    assert said(tie).endswith("One seed allows no test.")


def test_a_method_with_a_seed_that_missed_is_not_ranked(tmp_path: Path) -> None:
    # `lucky` was fastest in the one seed that reached the target, and that says nothing of the other.
    reached = [[0.1, 0.6], [0.1, 0.6]]
    courses = {"a": reached, "b": reached, "lucky": [[0.1, 0.9], [0.1, 0.2]], "slow": [[0.1, 0.2]] * 2}
    text = said(compared(tmp_path, courses, {"a": [5, 5], "b": [6, 6], "lucky": [1, 1], "slow": [1, 1]}))
    assert text.startswith("a needs the least simulated time")
    assert text.endswith("did not reach it with every seed are not ranked: lucky (1 of 2), slow (none of 2).")


def test_the_only_method_to_reach_it_has_nobody_to_be_compared_with(small: RunSet) -> None:
    assert said(small) == (
        "fast needs the least simulated time to reach 50% on unseen clients, 6 s. "
        "fast needs the least energy to reach it, 3 J. "
        "These means are not tested. Methods that did not reach it with every seed are not ranked: base (1 of 2)."
    )


def test_nobody_is_ranked_if_every_method_missed_it(tmp_path: Path) -> None:
    seconds = {"a": [1, 1], "b": [1, 1]}
    partly = {"a": [[0.1, 0.6], NEVER[:2]], "b": [NEVER[:2]] * 2}
    unranked = (
        "No method is ranked by time and energy to reach 50% on unseen clients. "
        "Methods that did not reach it with every seed are not ranked"
    )
    assert said(compared(tmp_path / "partly", partly, seconds)) == f"{unranked}: a (1 of 2), b (none of 2)."
    never = {"a": [NEVER] * 2, "b": [NEVER] * 2}
    assert said(compared(tmp_path / "never", never, seconds)) == f"{unranked}: a (none of 2), b (none of 2)."


def test_a_single_method_is_told_alone(tmp_path: Path) -> None:
    one = compared(tmp_path / "one", {"a": [[0.1, 0.6], NEVER[:2]]}, {"a": [7560, 1]})
    assert said(one) == (
        "a reaches 50% on unseen clients with 2.1 h of simulated time and 3.78 kJ, "
        "mean over the 1 of 2 seeds that reached it."
    )
    never = compared(tmp_path / "never", {"a": [NEVER]}, {"a": [1]})
    assert said(never) == "a does not reach 50% on unseen clients."


def test_without_target_or_radio_nothing_is_said_of_time(tmp_path: Path) -> None:
    course = {"a": [[0.1, 0.6]], "b": [[0.1, 0.7]]}
    for name, seconds, target in (("target", {"a": [1.0], "b": [2.0]}, None), ("radio", {}, 0.5)):
        findings = find(analyse(compared(tmp_path / name, course, seconds, target)))
        assert not [s for s in findings.bullets if "time" in s]
        assert not [card for card in findings.cards if "time" in card.label]


def test_cards_tell_who_is_fastest(small: RunSet) -> None:
    cards = {card.label: (card.value, card.unit, card.detail) for card in find(analyse(small)).cards}
    assert cards["Least simulated time to 50%"] == ("6", "s", "fast")
    assert cards["Least energy to 50%"] == ("3", "J", "fast")


# ------------------------------------------------------------------------------------------------------ figures

OF_RADIO = {"accuracy_seconds", "accuracy_joules", "spending", "round_time"}


@pytest.mark.slow
def test_the_figures_are_there_only_with_a_radio(comparison: RunSet, tmp_path: Path) -> None:
    without = {
        picture.name
        for picture in draw_figures(
            figure_specs(analyse(read([write_comparison(tmp_path, ["a", "b"], [0, 1], rounds=4)])))
        )
    }
    assert {picture.name for picture in draw_figures(figure_specs(analyse(comparison)))} == without | OF_RADIO


@pytest.mark.parametrize(("slow", "scale"), [(9.0, "linear"), (11.0, "log")])
def test_methods_far_apart_share_a_logarithmic_axis(tmp_path: Path, slow: float, scale: str) -> None:
    course = [[0.1, 0.3, 0.6, 0.7]]
    apart = compared(tmp_path, {"a": course, "b": course}, {"a": [1.0], "b": [slow]})
    against, over = accuracy(apart, "seconds"), spending(apart)
    assert against is not None
    assert over is not None
    assert {axes.get_xscale() for axes in against.axes} == {scale}
    assert {axes.get_yscale() for axes in over.axes} == {scale}
    # Whatever the scale, each line ends at its last round.
    ends = {float(line.get_xdata()[-1]) for line in against.axes[1].lines if len(line.get_xdata()) > 2}
    assert ends == {3.0, 3 * slow}


def test_a_ring_is_where_all_seeds_have_the_target_on_average(small: RunSet) -> None:
    figure = accuracy(small, "seconds")
    assert figure is not None
    rings = [line.get_xydata().tolist() for line in figure.axes[1].lines if "ring" in str(line.get_gid())]
    assert rings == [[[6.0, 0.5]]]  # `base` missed it in a seed


@pytest.mark.slow
def test_time_so_far_ends_at_the_total_and_long_runs_are_thinned(tmp_path: Path) -> None:
    course = np.linspace(0.1, 0.7, 1001).tolist()
    long = compared(tmp_path, {"a": [course, course]}, {"a": [10.0, 30.0]})
    figure = spending(long)
    assert figure is not None
    (line,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert len(line.get_xdata()) == POINTS
    assert line.get_xydata()[[0, -1]].tolist() == [[0, 0], [1000, pytest.approx(20_000 / 3600)]]  # hours
    assert figure.axes[0].get_title(loc="left") == "Simulated time so far, h"
    against = accuracy(long, "seconds")
    assert against is not None
    (line,) = [line for line in against.axes[0].lines if len(line.get_xdata()) > 2]
    assert line.get_xdata()[-1] == pytest.approx(20_000 / 3600)
    (ring,) = [line for line in against.axes[1].lines if "ring" in str(line.get_gid())]
    row = int(np.searchsorted(course, 0.5))
    assert ring.get_xdata()[0] == pytest.approx(20 * row / 3600)


def test_the_parts_of_a_round_sum_up_to_its_time(comparison: RunSet) -> None:
    for method in comparison.methods:
        made = round_time(comparison.counted(method))
        assert made is not None
        assert sum(made[part] for part in FILLS) == pytest.approx(made["seconds"])
        totals = [run.column("seconds_total")[-1] / 12 for run in comparison.counted(method)]
        assert made["seconds"] == pytest.approx(np.mean(totals))
        assert (made["probe"] > 0) == (method == "power_of_choice")
    # With the best shares all end at once, and nobody waits.
    best = round_time(comparison.counted("exact"))
    assert best is not None
    assert visible_share(best, "waiting") == 0
    assert round_times(comparison) is not None


def test_a_round_is_split_as_by_hand(tmp_path: Path) -> None:
    run = write_curve(tmp_path, "m", 0, {"participant_accuracy": [0.1, 0.2, 0.3]})
    allocation = {"ids": [1, 2], "compute_seconds": [1.0, 2.0], "upload_seconds": [3.0, 6.0]}
    spent = [{"seconds": 0.0}, {"seconds": 9.0, "probe_seconds": 1.0, "joules": 4.0, "allocation": allocation}]
    spent += [{"seconds": 3.0, "probe_seconds": 3.0, "joules": 2.0}]  # all was sent in the probe
    write_rows(
        run, *(row(r, participant_accuracy=0.1 * r, seconds_total=r, joules_total=r, **spent[r]) for r in range(3))
    )
    made = round_time(read([run]).all_counted)
    assert made is not None
    # Round 1: probe 1, computing (1 + 2) / 2, sending (3 + 6) / 2, and of 8 seconds 2 are left; round 2: probe 3.
    parts = {"probe": 2.0, "computing": 0.75, "sending": 2.25, "waiting": 1.0}
    assert made == pytest.approx(parts | {"seconds": 6.0, "joules": 3.0})


@pytest.mark.parametrize(("target", "side"), [(0.55, "top"), (0.3, "baseline")])
def test_the_name_of_the_target_stays_off_the_title(tmp_path: Path, target: float, side: str) -> None:
    course = [[0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.55]]
    axes = accuracy(compared(tmp_path, {"a": course}, {}, target)).axes[-1]
    (name,) = [text for text in axes.texts if text.get_text().startswith("target")]
    assert name.get_verticalalignment() == side


def test_the_name_of_the_target_makes_way_for_curves(tmp_path: Path) -> None:
    # A steep line stands at the left; the right below the target is free.
    steep = [[0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.75, 0.75, 0.75]]
    apart = compared(tmp_path, {"a": steep, "b": steep}, {"a": [1.0], "b": [9.0]}, 0.6)
    figure = accuracy(apart, "seconds")
    assert figure is not None
    (name,) = [text for text in figure.axes[-1].texts if text.get_text().startswith("target")]
    assert name.xy[0] > 0  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------- page and exports


@pytest.mark.slow
def test_the_page_explains_simulated_time_only_with_a_radio(folder: Path, tmp_path: Path) -> None:
    text = write_report([folder], tmp_path / "with", formats=()).page.read_text()
    assert "Simulated time and energy" in text
    assert "Measured seconds per round" in text
    assert all(f'id="figure-{name}"' in text for name in OF_RADIO)
    wired = write_comparison(tmp_path / "wired", ["a"], [0], rounds=2)
    assert not re.search("simulated", write_report([wired], tmp_path, formats=()).page.read_text(), re.IGNORECASE)


def test_event_files_put_seconds_and_joules_together() -> None:
    assert [tag_of(name) for name in ("seconds", "seconds_total", "joules_total", "probe_seconds")] == [
        *("seconds", "seconds/total", "joules/total", "probe_seconds")
    ]


def test_the_table_says_how_the_band_is_shared(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    own = "bandwidth and CPU frequencies are allocated by the policy, or otherwise at the least cost"
    assert f"include probes; {own}." in tabulate(analyse(read([tmp_path / "copy"]))).details
    for path in (tmp_path / "copy").glob("runs/*/*/run.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["method"] == "exact":
            continue
        stored["config"]["method"] = {"allocation": {"name": "greedy"}}
        rewrite(path, stored)
    assert f"{own}, but greedy for fedavg, power_of_choice." in tabulate(analyse(read([tmp_path / "copy"]))).details
