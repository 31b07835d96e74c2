"""`fedreach allocate`: the answer is that of the specification, whatever the form of the table."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from fedreach._util.divergence import label_divergences
from fedreach.cli.allocate import MAX_LISTED, text
from fedreach.report.figures.clients import LABELLED, allocation
from fedreach.report.figures.style import save
from fedreach.wireless import planning, radio, solve
from fedreach.wireless.exact import allocate as allocate_all
from fedreach.wireless.planning import FORMS, Plan, Question, plan, problem_of, record
from fedreach.wireless.problem import AllocationProblem

from .small_tables import G1, RADIO, RADIO_QUESTION, Row, read, text_of, with_

Command = Callable[..., Result]
EXAMPLE = Path(__file__).parents[2] / "examples" / "clients.csv"


@pytest.fixture
def ask(fedreach: Command, home: Path) -> Callable[..., dict[str, Any]]:
    """The record that `fedreach allocate` prints for these rows."""

    def call(rows: Sequence[Row], *options: object) -> dict[str, Any]:
        (home / "clients.csv").write_text(text_of(rows), encoding="utf-8")
        result = fedreach("allocate", "clients.csv", "--json", *options)
        assert result.exit_code == 0, (result.output, result.exception)
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    return call


# ------------------------------------------------------------------------------------------------------ the answer


def test_the_golden_instance_comes_out(ask: Callable[..., dict[str, Any]]) -> None:
    told = ask(G1, "--min-examples", 300, "--bandwidth", 2e6)
    assert told["cost"] == pytest.approx(1.008962065383, rel=1e-9)
    assert (told["seconds"], told["joules"]) == pytest.approx((0.4967463911, 0.5122156743), rel=1e-8)
    chosen = told["clients"]
    assert [row["client"] for row in chosen] == ["a", "e"]
    assert [row["share"] for row in chosen] == pytest.approx([0.382247909, 0.617752091], rel=1e-7)
    assert [row["hertz"] for row in chosen] == pytest.approx([4.252856739e8, 7.507130826e8], rel=1e-7)
    assert [row["bandwidth_hertz"] for row in chosen] == pytest.approx([764495.818, 1235504.182], rel=1e-7)
    assert [row["slack_seconds"] for row in chosen] == [0, 0]
    assert told["status"] == "optimal"
    assert told["cost"] * (1 - 1e-6) <= told["lower_bound"] <= told["cost"]
    assert told["counts"] == {"clients": 5, "chosen": 2, "not_chosen": 3, "too_divergent": 0}
    assert told["examples"] == {"chosen": 300, "needed": 300, "kept": 650}
    # Given seconds say nothing of the channel: a MHz is half of the band of 2 MHz.
    assert told["shadow_prices"]["whole_band"] == pytest.approx(0.4474885749, rel=1e-7)
    assert told["shadow_prices"]["megahertz"] == pytest.approx(0.4474885749 / 2, rel=1e-7)


def covers(problem: AllocationProblem, min_examples: int) -> Iterator[float]:
    for size in range(1, len(problem) + 1):
        for rows in itertools.combinations(range(len(problem)), size):
            if problem.num_examples[list(rows)].sum() >= min_examples:
                yield allocate_all(problem.only(list(rows))).cost


def test_what_ten_per_cent_more_would_change_is_solved_again(
    ask: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    told = ask(G1, "--min-examples", 300)
    clients = read(text_of(G1), tmp_path)
    more_band = problem_of(clients, Question(300), band=1.1)
    np.testing.assert_allclose(more_band.upload_seconds, np.array([0.10, 0.08, 0.12, 0.20, 0.06]) / 1.1)
    change = told["what_if"]["bandwidth_10_percent_more"]
    assert change["cost"] == pytest.approx(min(covers(more_band, 300)), rel=1e-6)
    # Y is convex in the band: the marginal price promises more than 10 % of it bring.
    assert -0.1 * told["shadow_prices"]["whole_band"] < change["change"] < 0
    more = told["what_if"]["min_examples_10_percent_more"]
    assert more["cost"] == pytest.approx(min(covers(problem_of(clients, Question(330)), 330)), rel=1e-6)
    assert more["change"] == pytest.approx(more["cost"] - told["cost"])


def test_ten_per_cent_more_examples_than_there_are_is_said_and_no_error(fedreach: Command, home: Path) -> None:
    (home / "clients.csv").write_text(text_of(G1), encoding="utf-8")
    result = fedreach("allocate", "clients.csv", "--min-examples", 650)
    assert result.exit_code == 0
    assert "10% more examples (715): impossible, because the clients hold too few" in result.stdout
    assert "Cost 2.649697" in result.stdout  # golden G3 of the specification: all take part


def test_seconds_of_the_golden_channel(tmp_path: Path) -> None:
    """225 m, 23 dBm, no fading, 1 421 632 bit: 0.2811906158 s with a quarter of 2 MHz (specification, 5.1)."""
    clients = read(text_of(with_(RADIO, distance_meters=225, fading_gain=1, power_dbm=23)), tmp_path)
    np.testing.assert_allclose(problem_of(clients, RADIO_QUESTION).upload_seconds, 0.2811906158 / 4, rtol=1e-9)
    no_fading = read(text_of(with_(RADIO, drop=["fading_gain"], distance_meters=225, power_dbm=23)), tmp_path)
    np.testing.assert_allclose(problem_of(no_fading, RADIO_QUESTION).upload_seconds, 0.2811906158 / 4, rtol=1e-9)


def test_the_form_of_a_quantity_changes_nothing(tmp_path: Path) -> None:
    clients = read(text_of(RADIO), tmp_path)
    expected = problem_of(clients, RADIO_QUESTION)
    watts = [float(radio.watts(row["power_dbm"])) for row in RADIO]
    rates = [
        float(radio.bits_per_second(2e6, radio.watts(-174.0), radio.path_gain(row["distance_meters"], 2.4e9, 2.7)
              * row["fading_gain"], P))
        for row, P in zip(RADIO, watts, strict=True)
    ]  # fmt: skip
    forms: dict[str, list[dict[str, Any]]] = {
        "power_watts": [{"power_watts": P} for P in watts],
        "max_hertz": [{"max_hertz": 1e9 * row["max_gigahertz"]} for row in RADIO],
        "cycles": [{"cycles": 10 * 6272 * row["num_examples"] * row["cycles_per_bit"]} for row in RADIO],
        "bits_per_second": [{"bits_per_second": R} for R in rates],
        "upload_seconds": [{"upload_seconds": 1_421_632 / R} for R in rates],
    }
    for name, column in forms.items():
        (others,) = (set(group) for group in FORMS.values() if name in group)
        drop = [*others - {name}, *(["fading_gain"] if name in FORMS["the upload"] else [])]
        rows = [{**row, **cell} for row, cell in zip(with_(RADIO, drop=drop), column, strict=True)]
        question = RADIO_QUESTION
        if name == "cycles":
            question = replace(question, bits_per_example=None, epochs=None)
        if name == "upload_seconds":
            question = replace(question, report_bits=None)
        question.fit(rows[0], "the table")
        same(problem_of(read(text_of(rows), tmp_path), question), expected)
    as_parameters = replace(RADIO_QUESTION, report_bits=None, model_parameters=44_426)  # 32 bits each
    same(problem_of(clients, as_parameters), expected)


def same(one: AllocationProblem, other: AllocationProblem) -> None:
    for name in ("upload_seconds", "power_watts", "cycles", "max_hertz", "num_examples"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, err_msg=name)


def test_the_price_of_a_megahertz_is_the_slope_of_the_cost_through_the_channel(tmp_path: Path) -> None:
    """All take part, so that the set does not change; the rate is not in proportion to B, as the power spreads."""
    clients = read(text_of(RADIO), tmp_path)
    question = replace(RADIO_QUESTION, min_examples=600)
    found = plan(clients, question)
    step = 1e-4
    above, below = (allocate_all(problem_of(clients, question, band=1 + d)).cost for d in (step, -step))
    slope = (below - above) / (2 * step * 2)  # 2 MHz
    assert found.megahertz_price == pytest.approx(slope, rel=1e-6)
    assert found.band_price is not None
    assert found.megahertz_price < 0.99 * found.band_price / 2
    assert found.more_band is not None
    assert found.more_band.cost == pytest.approx(allocate_all(problem_of(clients, question, band=1.1)).cost, rel=1e-9)


def test_clients_whose_labels_are_far_off_stay_out(ask: Callable[..., dict[str, Any]]) -> None:
    """The divergences of these counts are inf, 0.2358, inf, 0.1558; smoothed 0.2053, 0.2106, 0.6646, 0.1480."""
    counts = [[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]]
    rows = [
        {**row, "num_examples": sum(held), **{f"label_{c}": n for c, n in enumerate(held)}}
        for row, held in zip(G1, counts, strict=False)
    ]
    told = ask(rows, "--min-examples", 50, "--max-divergence", 0.24, "--smoothing", 0)
    assert [row["client"] for row in told["clients"]] == ["b", "d"]
    assert told["counts"]["too_divergent"] == 2
    told = ask(rows, "--min-examples", 70, "--max-divergence", 0.22)  # smoothing 1
    assert [row["client"] for row in told["clients"]] == ["a", "b", "d"]
    given = with_(rows, drop=["label_0", "label_1", "label_2"])
    for row, far in zip(given, ("inf", "0.2358", "Inf", "0.1558"), strict=True):
        row["divergence"] = far
    told = ask(given, "--min-examples", 50, "--max-divergence", 0.24)
    assert [row["client"] for row in told["clients"]] == ["b", "d"]
    assert ask(given, "--min-examples", 100)["counts"]["chosen"] == 4  # without a limit the column is not looked at


def test_the_last_digits_of_a_divergence_keep_nobody_out(tmp_path: Path) -> None:
    counts = np.array([np.roll([3, 1, 6, 19, 27, 24], shift) for shift in range(6)])  # the pool is uniform
    assert len(set(label_divergences(counts, smoothing=1.0).tolist())) > 1  # by rounding only
    rows = [
        {**G1[0], "client": number, "num_examples": 80, **{f"label_{c}": n for c, n in enumerate(held)}}
        for number, held in enumerate(counts.tolist())
    ]
    divergences = planning.divergence_of(read(text_of(rows), tmp_path), Question(80))
    assert divergences is not None
    assert len(set(divergences.tolist())) == 1


def test_the_order_of_the_clients_and_of_the_columns_changes_nothing(ask: Callable[..., dict[str, Any]]) -> None:
    told = ask(G1, "--min-examples", 300)
    turned = ask([dict(reversed(row.items())) for row in G1[::-1]], "--min-examples", 300)
    assert turned["cost"] == pytest.approx(told["cost"], rel=1e-12)
    assert {row["client"]: row["share"] for row in turned["clients"]} == pytest.approx(
        {row["client"]: row["share"] for row in told["clients"]}
    )


# ------------------------------------------------------------------------------------------------ what is written


def test_people_are_told_all_of_it(fedreach: Command, home: Path) -> None:
    (home / "clients.csv").write_text(text_of(G1), encoding="utf-8")
    result = fedreach("allocate", "clients.csv", "--min-examples", 300, "--bandwidth", 2e6, "--out", "a/plan.csv",
                      "--figure", "b/plan.svg")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    said = result.stdout
    for part in (
        "clients.csv: 5 clients, 2 selected, 3 not selected",
        "Examples: 300 selected, 300 required, 650 available",
        "Cost 1.00896207 = 1 x 0.4967 s + 1 x 0.5122 J",
        "Proven lower bound of all choices: 1.0089",
        "10% more bandwidth (2.2 MHz), with rates in proportion: cost 0.96",
        "10% more examples (330): cost 1.",
        "Marginal value of bandwidth: 0.4475 for twice as much, 0.2237 per MHz",
        "Data    a/plan.csv",
        "Figure  b/plan.svg",
    ):
        assert part in said
    assert "\x1b" not in said
    written = list(csv.DictReader((home / "a" / "plan.csv").read_text().splitlines()))
    told = json.loads(fedreach("allocate", "clients.csv", "--min-examples", 300, "--bandwidth", 2e6, "--json").stdout)
    assert written == [{name: str(value) for name, value in row.items()} for row in told["clients"]]
    assert sum(float(row["share"]) for row in written) == pytest.approx(1, abs=1e-12)
    drawn = (home / "b" / "plan.svg").read_text()
    assert ">a<" in drawn
    assert "deadline, 0.497 s" in drawn
    again = fedreach("allocate", "clients.csv", "--min-examples", 300, "--bandwidth", 2e6, "--figure", "c.svg")
    assert again.exit_code == 0
    assert (home / "c.svg").read_text() == drawn  # the same bytes


def test_many_chosen_are_not_all_listed_on_the_terminal(fedreach: Command, home: Path) -> None:
    rows = [{**G1[i % 5], "client": f"client {i}"} for i in range(MAX_LISTED + 5)]
    (home / "clients.csv").write_text(text_of(rows), encoding="utf-8")
    total = sum(row["num_examples"] for row in rows)
    result = fedreach("allocate", "clients.csv", "--min-examples", total, "--out", "plan.csv", "--figure", "plan.png")
    assert result.exit_code == 0, result.output
    assert f"{MAX_LISTED + 5} selected, 0 not selected" in result.stdout
    assert "and 5 more with smaller shares: --verbose" in result.stdout
    assert len(result.stdout.splitlines()) <= 27  # two of them name files
    listed = [line for line in result.stdout.splitlines() if line.startswith("client ")]
    assert len(listed) == MAX_LISTED + 1  # and the header
    assert len((home / "plan.csv").read_text().splitlines()) == MAX_LISTED + 6
    assert (home / "plan.png").stat().st_size > 10_000


def test_a_narrow_terminal_shows_whole_numbers(tmp_path: Path) -> None:
    found = plan(read(text_of(with_(G1, 4, client="the client in the north")), tmp_path), Question(300))
    for width in (60, 80, 100, 220):
        table = text(found, record(found), width).partition("\nCost ")[0].splitlines()[3:]
        assert max(map(len, table)) <= width
        first = next(line.split() for line in table if line.split()[:1] == ["a"])
        assert first[:3] == ["a", "100", "38.2"]
        assert "0.425" in first  # GHz
        name = " ".join(line[:24].partition("  ")[0] for line in table[4:])  # may be broken, but is whole
        assert "theclientinthenorth" in name.replace(" ", "")


def test_the_figure_says_what_the_numbers_say() -> None:
    rows = [
        {"client": name, "share": b, "hertz": f, "max_hertz": 3e6, "compute_seconds": x, "upload_seconds": u}
        for name, b, f, x, u in (("small", 0.3, 1e6, 5.0, 2.0), ("large", 0.7, 2e6, 3.0, 4.0))
    ]
    figure = allocation(rows, 7.0)
    when, band, cpu = figure.axes
    assert [label.get_text() for label in when.get_yticklabels()] == ["large", "small"]  # the largest share first
    lengths = [[bar.get_width() for bar in axes.patches] for axes in (when, band, cpu)]
    assert lengths == [[3, 5, 4, 2], [0.7, 0.3], [3, 3, 2, 1]]
    assert [bar.get_x() for bar in when.patches] == [0, 0, 3, 5]  # sends when it has computed
    assert cpu.get_xlabel() == "MHz"
    assert list(when.lines[0].get_xdata()) == [7.0, 7.0]


def test_a_figure_of_many_clients_is_an_outline(tmp_path: Path) -> None:
    n = LABELLED + 1
    rows = [
        {
            "client": str(i),
            "share": 1 / n,
            "hertz": 1e9,
            "max_hertz": 2e9,
            "compute_seconds": 1.0,
            "upload_seconds": 1.0,
        }
        for i in range(n)
    ]
    when = allocation(rows, 2.0).axes[0]
    assert len(when.patches) == 2  # one for computing, one for sending
    assert when.get_ylabel() == "clients, the largest share first"
    (path,) = save(allocation(rows, 2.0), tmp_path / "many", ["svg"])
    assert path.stat().st_size < 60_000


# ----------------------------------------------------------------------------------------- time limit and Ctrl-C


def test_a_time_limit_still_gives_the_best_found_and_a_bound(tmp_path: Path) -> None:
    rng = np.random.Generator(np.random.Philox(1))
    rows = [
        {
            "num_examples": int(rng.integers(50, 200)),
            "upload_seconds": rng.uniform(0.05, 0.2),
            "power_watts": rng.uniform(0.1, 2),
            "cycles": rng.uniform(1e7, 4e8),
            "max_hertz": rng.uniform(2e9, 5e9),
        }
        for _ in range(400)
    ]
    clients = read(text_of(rows), tmp_path)
    hasty = plan(clients, Question(10_000, tolerance=1e-9, time_limit_seconds=0.01))
    assert hasty.solution.status == "time_limit"
    patient = plan(clients, Question(10_000, tolerance=1e-4))
    assert hasty.solution.lower_bound <= patient.solution.cost <= hasty.solution.cost * (1 + 1e-4)
    chosen = hasty.problem.rows(hasty.solution.allocation.ids)
    assert hasty.problem.num_examples[chosen].sum() >= 10_000


@pytest.mark.parametrize("when", [1, 2, 3])
def test_ctrl_c_gives_what_was_found_until_then(
    fedreach: Command, home: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    (home / "clients.csv").write_text(text_of(G1), encoding="utf-8")
    called = itertools.count(1)
    before = solve.solve

    def until(*args: Any, **kwargs: Any) -> Any:
        if next(called) == when:
            raise KeyboardInterrupt
        return before(*args, **kwargs)

    monkeypatch.setattr(planning, "solve", until)
    monkeypatch.setattr("fedreach.wireless.solve.FEW_COVERS", 0)  # else all sets are tried, without proof
    result = fedreach("allocate", "clients.csv", "--min-examples", 300, "--json")
    assert result.exit_code == 130
    assert "Interrupted. The numbers above are complete" in result.stderr
    told = json.loads(result.stdout)
    assert told["cost"] == pytest.approx(1.008962065383, rel=1e-6)
    assert told["status"] == ("time_limit" if when == 1 else "optimal")
    assert [told["what_if"][name] is None for name in told["what_if"]] == [when <= 2, True]


def test_ctrl_c_again_ends_it(refused: Callable[..., str], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "clients.csv").write_text(text_of(G1), encoding="utf-8")

    def never(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "solve", never)
    assert (
        refused(130, "allocate", "clients.csv", "--min-examples", 300) == "Interrupted before the first plan was found."
    )


# ----------------------------------------------------------------------------------------------------- the example


def stated() -> Iterator[dict[str, Any]]:
    """The clients of examples/clients.csv, by formula; fading are the quantiles of Exp(1), in another order."""
    for i in range(20):
        labels = [(1 + i % 3) * (10 + 5 * (i * (c + 2) % 7)) for c in range(4)]
        if i % 5 == 4:
            labels[i % 4] = 0
        yield {
            "client": f"phone-{i:02d}",
            "num_examples": sum(labels),
            "distance_meters": 200 + 2.5 * (7 * i % 20),
            "fading_gain": round(-math.log((13 * i % 20 + 0.5) / 20), 4),
            "power_dbm": round(20 + 0.65 * (3 * i % 20), 2),
            "cycles_per_bit": 1 + 9 * i % 10,
            "max_gigahertz": round(2 + 0.15 * (11 * i % 20), 2),
            **{f"label_{c}": n for c, n in enumerate(labels)},
        }


def test_the_example_is_made_by_its_formula() -> None:
    assert EXAMPLE.read_text(encoding="utf-8") == text_of(list(stated()))


def test_the_examples_of_the_help_run(fedreach: Command, home: Path) -> None:
    from fedreach.cli import main

    (home / "clients.csv").write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    measured = [{**G1[i % 5], "client": i, "divergence": 0.1 * (i % 4)} for i in range(15)]
    (home / "measured.csv").write_text(text_of(measured), encoding="utf-8")
    epilog = main.commands["allocate"].epilog or ""
    lines = [line.split() for line in epilog.splitlines() if line.strip().startswith("fedreach ")]
    assert len(lines) == 2
    for words in lines:
        result = fedreach(*words[1:])
        assert result.exit_code == 0, (words, result.output, result.exception)
        assert "Proven lower bound of all choices: " in result.stdout
    assert (home / "plan.csv").exists()
    assert (home / "plan.svg").exists()


def test_the_record_is_made_of_plain_values(tmp_path: Path) -> None:
    found: Plan = plan(read(text_of(RADIO), tmp_path), RADIO_QUESTION)
    json.dumps(record(found), allow_nan=False)
    assert record(found)["question"]["epochs"] == 10
