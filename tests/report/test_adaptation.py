"""How clients are adapted, drawn and told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.evaluation.statistics import holm, run_paired_test, spread
from fedreach.report.adaptation import (
    PREDICTION_MODES,
    SCORES,
    TESTED_CHANGES,
    AdaptationSummary,
    summarize_adaptation,
    tabulate_adaptation,
)
from fedreach.report.figures import draw_figures, figure_specs
from fedreach.report.figures.clients import gain_by_inputs
from fedreach.report.findings import find
from fedreach.report.formats import to_text
from fedreach.report.numbers import RunSet, nats
from fedreach.report.overview import Analysis, analyse
from fedreach.report.page import render
from fedreach.report.records import as_records
from fedreach.runs.schema import AdaptationRecord

NOTHING = spread([np.nan])


def adapted(method: str, gain: float, with_inputs: dict[int, float], seconds: float = np.nan) -> AdaptationSummary:
    """Return a summary of two seeds whose gains lie 2 points apart."""
    return AdaptationSummary(
        method=method,
        rule="LabelShift(odds=9.0, guard=True)",
        needs_labels=False,
        population="unseen",
        at={(mode, score): spread([0.5, 0.6]) for mode in PREDICTION_MODES for score in SCORES},
        gain=run_paired_test([gain - 0.01, gain + 0.01]),
        change={
            "loss": replace(run_paired_test([-0.03, -0.01]), p_corrected=0.031),
            "calibration_error": replace(run_paired_test([0.01, 0.03]), p_corrected=None),
        },
        gain_with={n: run_paired_test([value - 0.01, value + 0.01]) for n, value in with_inputs.items()},
        harm={
            "worse": spread([0.0, 0.1]),
            "harmed": spread([0.0, 0.05]),
            "worst_change": spread([-0.1, -0.2]),
            "worst_inputs": spread([12, 30]),
        },
        expected=(spread([0.03, 0.04]), spread([0.01, 0.02]), spread([0.05, 0.06])),
        decided={},
        gap={},
        majority=NOTHING,
        kilobytes={part: spread([1.5, 1.5]) for part in ("up", "down", "state")},
        spent={"seconds": spread([seconds, seconds]), "joules": spread([2 * seconds, 2 * seconds])},
    )


@pytest.fixture
def analysis(comparison: RunSet) -> Analysis:
    """Two of the five methods are adapted."""
    first, _, third = comparison.methods[:3]
    rows = (adapted(first, 0.12, {5: 0.04, 20: 0.1}, 0.25), adapted(third, 0.08, {5: 0.03, 20: 0.06}, 0.5))
    return replace(analyse(comparison), adaptation=rows)


def test_the_figure_names_the_adapted_methods_and_no_other(analysis: Analysis) -> None:
    figure = gain_by_inputs(analysis)
    assert figure is not None
    (legend,) = figure.legends
    first, _, third = analysis.comparison.methods[:3]
    assert [text.get_text() for text in legend.get_texts()] == [first, third]
    colours = {
        str(line.get_gid()).partition("-")[0]: line.get_color() for line in figure.axes[0].lines if line.get_gid()
    }
    assert [handle.get_color() for handle in legend.get_lines()] == [colours["method0"], colours["method2"]]


def test_all_inputs_stand_apart_from_fewer_as_other_examples_are_scored(analysis: Analysis) -> None:
    figure = gain_by_inputs(analysis)
    assert figure is not None
    drawn = {line.get_gid(): line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_gid()}
    (x, five), (_, twenty) = drawn["method0-mean-some"]
    assert (five, twenty) == pytest.approx((0.04, 0.1))
    assert abs(x) < 0.1
    ((place, whole),) = drawn["method0-mean-all"]
    assert whole == pytest.approx(0.12)
    low, high = (y for _, y in drawn["method0-interval-all-0"])
    assert (low, high) == pytest.approx((analysis.adaptation[0].gain.low, analysis.adaptation[0].gain.high))
    assert 1.8 < place < 2.2
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["5", "20", "all"]


def test_the_page_has_one_table_of_adaptation_and_explains_its_columns_once(analysis: Analysis) -> None:
    page = render(analysis, draw_figures(figure_specs(analysis)), [])
    (table, *_) = tabulate_adaptation(analysis)
    assert [table.header[j] for j in table.main] == ["method", "unadapted", "adapted", "gain, points", "oracle prior"]
    shown, _, told = page.partition('<h2 id="reading">')
    assert shown.count(f"{table.caption}</h2>") == 1
    for words in ("Unadapted: ", "Calibrated: ", "Adapted: ", "Online: ", "Oracle prior: "):
        assert told.count(words) == 1
        assert words not in shown
    assert page.count('id="figure-adaptation"') == 1


def test_costs_of_fitting_stand_in_the_table_and_for_machines(analysis: Analysis) -> None:
    table = tabulate_adaptation(analysis)[0]
    at = {head: j for j, head in enumerate(table.header)}
    assert [row[at["rule"]] for row in table.rows] == ["LabelShift", "LabelShift"]
    assert [row[at["time to fit"]] for row in table.rows] == ["0.25", "0.5"]
    assert [row[at["energy to fit"]] for row in table.rows] == ["0.5", "1"]
    assert (table.units[at["time to fit"]], table.units[at["energy to fit"]]) == ("s", "J")
    records = {record["method"]: record for record in as_records(analysis)}
    first, second, _ = analysis.comparison.methods[:3]
    assert (records[first]["adapted_seconds"], records[first]["adapted_joules"]) == (0.25, 0.5)
    assert records[first]["adapted_kilobytes_up"] == 1.5
    assert records[second]["adapted_seconds"] is None
    without = replace(analysis, adaptation=(adapted(first, 0.1, {}),))
    assert "time to fit" not in tabulate_adaptation(without)[0].header
    assert "adapted_seconds" not in as_records(without)[0]


def test_the_table_says_how_many_clients_lose_more_than_5_points_and_how_much_the_worst_one(analysis: Analysis) -> None:
    table = tabulate_adaptation(analysis)[0]
    at = {head: j for j, head in enumerate(table.header)}
    # Two seeds: 0 and 5% of the clients, -10 and -20 points of clients with 12 and 30 inputs.
    assert table.rows[0][at["clients that lose > 5 points"]] == "2.5 ± 3.5"
    assert table.rows[0][at["worst client"]] == "−15.0 (21)"
    assert table.units[at["worst client"]] == "points (inputs)"
    assert not {"clients worse", "worst change"} & at.keys()
    assert "Clients that lose > 5 points: " in table.details
    record = next(record for record in as_records(analysis) if record["method"] == table.rows[0][0])
    keys = ("adapted_worse_share", "adapted_harmed_share", "adapted_worst_change", "adapted_worst_inputs")
    assert [record[key] for key in keys] == pytest.approx([0.05, 0.025, -0.15, 21])


def test_the_table_says_what_participants_expected_and_off_where_they_support_nothing(analysis: Analysis) -> None:
    table = tabulate_adaptation(analysis)[0]
    at = {head: j for j, head in enumerate(table.header)}
    assert table.rows[0][at["expected gain, points"]] == "+3.5 [+1.5, +5.5]"
    record = next(record for record in as_records(analysis) if record["method"] == table.rows[0][0])
    keys = ("adapted_expected_gain", "adapted_expected_gain_low", "adapted_expected_gain_high")
    assert [record[key] for key in keys] == pytest.approx([0.035, 0.015, 0.055])
    off, never = (replace(analysis.adaptation[0], expected=(each,) * 3) for each in (spread([0.0, 0.0]), NOTHING))
    table = tabulate_adaptation(replace(analysis, adaptation=(off,)))[0]
    assert table.rows[0][table.header.index("expected gain, points")] == "off"
    assert "expected gain, points" not in tabulate_adaptation(replace(analysis, adaptation=(never,)))[0].header


def test_of_folders_that_did_not_store_harm_the_table_shows_what_they_did(analysis: Analysis) -> None:
    before = tuple(
        replace(row, harm=row.harm | {"harmed": NOTHING, "worst_inputs": NOTHING}) for row in analysis.adaptation
    )
    table = tabulate_adaptation(replace(analysis, adaptation=before))[0]
    assert "clients that lose > 5 points" not in table.header
    assert table.rows[0][table.header.index("worst client")] == "−15.0"


def with_scores(comparison: RunSet, method: str, loss: list[float], error: list[float]) -> RunSet:
    """Return the comparison with a method whose log loss and calibration error change so, seed by seed."""
    changes = iter(zip(loss, error, strict=True))

    def record() -> AdaptationRecord:
        more, further = next(changes)
        plain = {"accuracy": 0.9, "loss": 0.5, "calibration_error": 0.2}
        adapted = {"accuracy": 0.9, "loss": 0.5 + more, "calibration_error": 0.2 + further}
        columns = {
            f"unseen_{mode}_{score}": value
            for mode, scores in (("unadapted", plain), ("adapted", adapted))
            for score, value in scores.items()
        }
        return AdaptationRecord(rule="LabelShift()", rounds={"last": 24}, columns={"last": columns})

    counted = comparison.counted(method)
    runs = tuple(replace(run, adaptation=record()) if run in counted else run for run in comparison.runs)
    return replace(comparison, runs=runs)


def test_log_loss_and_calibration_are_tested_each_by_itself_where_accuracy_stays(comparison: RunSet) -> None:
    first, second = comparison.methods[:2]
    better, worse, mixed = [-0.1, -0.11, -0.12, -0.09, -0.1], [0.02, 0.03, 0.02, 0.04, 0.03], [0.01, -0.01, 0, 0.02, 0]
    with_two = with_scores(with_scores(comparison, first, better, mixed), second, mixed, worse)
    one, two = summarize_adaptation(with_two)
    assert one.gain.mean == two.gain.mean == 0
    assert one.change["loss"].mean == pytest.approx(-0.104)  # the mean of `better`: adapted minus plain
    assert two.change["calibration_error"].mean == pytest.approx(0.028)
    for score, own in (("loss", (better, mixed)), ("calibration_error", (mixed, worse))):
        raw = [run_paired_test(values).p for values in own]
        assert [one.change[score].p, two.change[score].p] == pytest.approx(raw)
        assert [one.change[score].p_corrected, two.change[score].p_corrected] == pytest.approx(holm(raw))
    record = as_records(replace(analyse(with_two), adaptation=(one, two)))[0]
    assert record["adapted_loss_change_mean"] == pytest.approx(-0.104)
    assert record["adapted_loss_change_low"] < -0.104 < record["adapted_loss_change_high"] < 0
    assert record["adapted_loss_change_p_corrected"] == one.change["loss"].p_corrected < 0.001
    assert record["adapted_calibration_error_change_p"] == one.change["calibration_error"].p


def test_the_table_of_probabilities_says_what_changes_and_who_needs_labels(analysis: Analysis) -> None:
    reference = replace(analysis.adaptation[1], needs_labels=True)
    table = tabulate_adaptation(replace(analysis, adaptation=(analysis.adaptation[0], reference)))[1]
    at = {head: j for j, head in enumerate(table.header)}
    assert [row[at["needs"]] for row in table.rows] == ["-", "labels"]
    changed = analysis.adaptation[0].change["loss"]
    assert changed.low is not None
    assert table.rows[0][at["log loss change, nats"]] == f"−0.020 [−{-changed.low:.3f}, +{changed.high:.3f}]"
    assert table.rows[0][at["p of log loss"]] == "0.031"
    assert table.rows[0][at["calibration change, points"]].startswith("+2.0 [")
    assert table.units[at["log loss change, nats"]] == "[95% CI, Holm-adj.]"
    assert set(TESTED_CHANGES) == {"loss", "calibration_error"}


def test_what_decides_fits_into_a_narrow_terminal(analysis: Analysis) -> None:
    printed = to_text(tabulate_adaptation(analysis)[1], 100)
    assert max(map(len, printed.splitlines())) <= 100
    assert nats(analysis.adaptation[0].change["loss"]) in printed
    assert analysis.adaptation[0].method in printed


def test_a_finding_says_that_log_loss_gets_worse_where_accuracy_is_praised(analysis: Analysis) -> None:
    (told,) = (sentence for sentence in find(analysis).bullets if "unlabeled inputs" in sentence)
    assert "Log loss" not in told
    first, second = analysis.adaptation
    worse = replace(second, change=second.change | {"loss": replace(second.change["loss"], conclusion="worse")})
    (told,) = (s for s in find(replace(analysis, adaptation=(first, worse))).bullets if "unlabeled inputs" in s)
    assert told.endswith(f"Log loss increases with {second.method}.")


@pytest.mark.parametrize(
    ("conclusions", "said"),
    [
        (("better", "better"), "increases accuracy by 8 to 12 points with every method (adjusted p = 0.020)."),
        (
            ("better", "inconclusive"),
            "increases accuracy by 12.0 points with the method fedavg (adjusted p = 0.010). It has an inconclusive",
        ),
        (
            ("worse", "equivalent"),
            "decreases accuracy by 12.0 points with the method fedavg (adjusted p = 0.010). It changes accuracy by",
        ),
        (("", ""), "changes accuracy by +8 to +12 points with every method (not tested)."),
    ],
)
def test_the_gain_is_claimed_by_conclusion(analysis: Analysis, conclusions: tuple[str, str], said: str) -> None:
    rows = tuple(
        replace(row, gain=replace(row.gain, conclusion=conclusion, p_corrected=0.01 * place))
        for place, (row, conclusion) in enumerate(zip(analysis.adaptation, conclusions, strict=True), 1)
    )
    (told,) = (s for s in find(replace(analysis, adaptation=rows)).bullets if "unlabeled inputs" in s)
    assert said in told
