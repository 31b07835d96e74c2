"""The benchmark of adaptation rules compares them on the same clients, seed by seed, and corrects for all tries."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fedreach

from .benchmarked import benchmarks


@pytest.fixture
def better():
    with benchmarks("better_adaptation") as (module,):
        yield module


def made_up(better, seed):
    """Return the rows of a model: a client in each cell, which adapts if the guard looks at distances, and else not.

    By s >= k R^power d, that is 1 >= 0.15 and not 1 >= 1.3. Who adapts gains 10 points in seed 0 and 20 in seed 1, and
    half a point more with odds of 3; who does not loses 5. Two clients go on, surely, with 400 inputs of a class each.
    """
    cells = [(kind, shift, n) for kind in better.harm.KINDS for shift in better.shifts() for n in better.harm.INPUTS]
    kind, shift, n = (np.array(column) for column in zip(*cells, strict=True))
    same = {"s": 1.0, "R": 1.0, "d": 1.0, "log_w": 9.0, "unadapted": 0.5, "raw": 0.45}
    same |= {"odds 9": 0.6 + 0.1 * seed, "odds 3": 0.605 + 0.1 * seed}
    rows = {name: np.full(len(cells), value) for name, value in same.items()}
    y = np.repeat([[0], [1]], 2 * better.HALF, axis=1)
    clients = {"y": y, "u": (20.0 * np.eye(2)[y]).astype(np.float32)}
    base = {"base": np.full(2, 0.5), "pseudo_counts": np.array([2.0])}
    return {"kind": kind, "shift": shift, "n": n, **rows, **clients, **base}


def test_a_client_gains_what_the_guard_lets_it_gain(better):
    rows, cell = made_up(better, 0), (better.KIND, "none", 5)
    assert better.mean_gains(rows, better.GUARDS["distance"], 9.0)[cell] == pytest.approx(10.0)
    assert better.mean_gains(rows, better.GUARDS["distance"], 3.0)[cell] == pytest.approx(10.5)
    assert better.mean_gains(rows, better.GUARDS["before"], 9.0)[cell] == pytest.approx(-5.0)
    twice = {name: rows[name] for name in ("kind", "shift", "n", "s", "d", "log_w", "unadapted", "raw", "odds 9")}
    twice = {name: np.repeat(values[:1], 2) for name, values in twice.items()}
    twice["R"] = np.array([1.0, 2.0])  # 0.15 R^4 is 2.4 for the second, which abstains
    assert list(better.mean_gains(twice, better.GUARDS["distance"], 9.0).values()) == [pytest.approx((10 - 5) / 2)]


def test_differences_are_paired_by_seed_and_corrected_for_all_comparisons(better):
    files = {"toy": [made_up(better, seed) for seed in (0, 1, 0, 1)]}
    cells = [line.strip("| ").split(" | ") for line in better.compared(files).splitlines()[2:]]
    assert len(cells) == 2 * 3 + 1 + 3 + 2
    # Differences are 15 and 25, twice: a standard error of 5/sqrt(3), and t = 4 sqrt(3). With three degrees of freedom
    # t(.975) = 3.182 and p = .00616; six of the twelve comparisons have this p, the least, which Holm takes times 12.
    guard = ["guard with distances, gain where both shift", "kinds of `harm.py`, 5 inputs", "toy"]
    assert cells[0] == [*guard, "-5.0", "15.0", "+20.00 [+10.81, +29.19]", "0.074"]
    odds = next(line for line in cells if line[0].startswith("odds 3 for 9"))
    assert odds[1:6] == ["5 inputs", "toy", "15.0", "15.5", "+0.50 [+0.50, +0.50]"]
    accuracy = [line[3:6] for line in cells if line[0].startswith("collapsed for MAP")]
    assert accuracy == [["100.0", "100.0", "+0.00 [+0.00, +0.00]"]] * 3


def test_the_table_of_harm_counts_cells_and_single_seeds(better):
    files = {"toy": [made_up(better, seed) for seed in (0, 1)]}
    files["toy"][1]["odds 9"][0] = 0.35  # label-shifted, none, 5 inputs: 10 and -15 points
    lines = [line.strip("| ").split(" | ") for line in better.harms(files).splitlines()[2:]]
    told = {(line[0], line[1]): line[2:] for line in lines}
    count = len(better.shifts()) * 2
    lost = f"−5.0 (toy, {better.KIND}, none)"
    assert told["5", "before"] == [lost, f"{count} of {count}", f"{2 * count} of {2 * count}", "−5.0", "−5.0"]
    worst = f"−2.5 (toy, {better.KIND}, none)"
    assert told["5", "with distances"] == [worst, f"1 of {count}", f"1 of {2 * count}", "−2.5", "+15.0"]
    best = told["20", "with distances"]
    assert best[1:] == [f"0 of {count}", f"0 of {2 * count}", "+15.0", "+15.0"]
    assert told["20", "always adapts"] == best


def test_collapsed_inference_counts_what_is_sure_and_divides_what_is_not(better):
    base = np.array([0.2, 0.3, 0.5])
    # Sure inputs are counted: (A base + counts)/(A + n). One that says nothing adds base.
    sure = 60.0 * np.eye(3)[[0, 0, 1]]
    assert better.collapsed(sure, base, 4.0) == pytest.approx((4 * base + [2, 1, 0]) / 7)
    assert better.collapsed(np.zeros((1, 3)), base, 4.0) == pytest.approx(base)
    # Of a single input q is proportional to base exp u, whatever A.
    u = np.log([[4.0, 1.0, 1.0]])
    q = base * [4, 1, 1] / (base * [4, 1, 1]).sum()
    assert better.collapsed(u, base, 2.0) == pytest.approx((2 * base + q) / 3)


def test_class_shares_are_inferred_from_the_first_inputs_only(better):
    rows = made_up(better, 0)
    rows["u"] = 3.0 * np.eye(2)[rows["y"]]  # inputs 6 to 200 tell a client's class, and the later ones the other
    rows["u"][:, :5], rows["u"][:, better.HALF :] = 0.0, 0.1 * np.eye(2)[1 - rows["y"][:, better.HALF :]]
    assert better.by_inference(rows, 5) == (0.0, 0.0)
    assert better.by_inference(rows, better.HALF) == (100.0, 100.0)


def test_a_stream_that_drifts_goes_on_with_the_inputs_of_another_client(better):
    rows = made_up(better, 0)
    rows["u"] = np.zeros_like(rows["u"])
    rows["u"][:, : better.HALF] = 6.0 * np.eye(2)[rows["y"][:, : better.HALF]]  # the later half says nothing
    assert better.online(rows, np.inf, drifts=False) == 100.0
    assert better.online(rows, np.inf, drifts=True) == 50.0


def test_files_that_are_there_are_read_and_the_page_is_written(better, monkeypatch, tmp_path, capsys):
    page = tmp_path / "better_adaptation.md"
    page.write_text("# Results\n", encoding="utf-8")
    for seed in (4, 5):
        np.savez(tmp_path / f"toy-{seed}.npz", **made_up(better, seed))
    monkeypatch.setattr(sys.modules["page"], "RECORDS", tmp_path)
    monkeypatch.setattr(better.harm, "data_sets", lambda: {"toy": None})  # of which nothing could be recorded
    words = ["better_adaptation.py", "--seeds", "2", "--first", "4", "--rows", str(tmp_path), "--write"]
    monkeypatch.setattr(sys, "argv", words)
    better.main()
    text = capsys.readouterr().out.strip()
    files = {"toy": [made_up(better, seed) for seed in (4, 5)]}
    assert text.startswith("```text\npython benchmarks/better_adaptation.py --seeds 2 --write ")
    assert text.endswith(f"{better.compared(files)}\n\n{better.harms(files)}")
    assert page.read_text() == f"# Results\n\n<!-- better_adaptation -->\n{text}\n<!-- /better_adaptation -->\n"


def test_what_is_recorded_of_a_model_is_what_the_tables_need(better, monkeypatch, tmp_path):
    few = {name: better.shifts()[name] for name in ("none", "negative", "mirrored")}
    monkeypatch.setattr(better.harm, "ROUNDS", 100)
    monkeypatch.setattr(better, "shifts", lambda: few)
    monkeypatch.setattr(better, "HALF", 20)  # clients of the digits hold few
    better.record("digits", fedreach.load("digits"), 3, tmp_path / "runs" / "digits-3.npz")
    rows = dict(np.load(tmp_path / "runs" / "digits-3.npz"))
    assert set(rows) == set(made_up(better, 0))
    assert set(rows["shift"]) == set(few)
    assert set(rows["n"]) <= set(better.harm.INPUTS)
    assert rows["y"].shape[1] == 40
    assert rows["u"].shape == (*rows["y"].shape, 10)
    here = (rows["kind"] == better.KIND) & (rows["n"] == 5)
    plain, adapted, raw = (rows[name][here & (rows["shift"] == "none")] for name in ("unadapted", "odds 9", "raw"))
    assert adapted.mean() > plain.mean() + 0.05  # classes alone shift
    assert np.array_equal(raw, plain)
    assert not np.array_equal(rows["odds 9"], rows["odds 3"])
    assert rows["unadapted"][here & (rows["shift"] == "negative")].mean() < plain.mean() - 0.2
    assert min(better.by_inference(rows, 20)) > 100 * plain.mean()  # by EM and collapsed
