"""Tables of adaptation agree with the report of a finished comparison; an unfinished one changes no table."""

from __future__ import annotations

import json
import shlex

import pytest

from .benchmarked import benchmarks
from .conftest import TINY

CELL = "fashion-class-0.1-40"
OTHER = "<!-- mnist-iid-40 -->\nanother cell\n<!-- /mnist-iid-40 -->\n"


@pytest.fixture
def adapted(tmp_path, monkeypatch):
    with benchmarks("adapted") as (module,):
        record = tmp_path / module.record_of(CELL)
        record.write_text(f"<!-- {CELL} -->\nold\n<!-- /{CELL} -->\n\n{OTHER}", encoding="utf-8")
        monkeypatch.setattr(module.page, "RECORDS", tmp_path)
        yield module


def test_a_line_has_each_number_of_a_method_in_its_place(adapted):
    means = {
        "unadapted_accuracy": 0.8,
        "calibrated_accuracy": 0.85,
        "adapted_accuracy": 0.9,
        "oracle_prior_accuracy": 0.95,
    }
    means |= {"unadapted_accuracy_worst_decile": 0.3, "adapted_accuracy_worst_decile": 0.6}
    means |= {"unadapted_loss": 0.714, "adapted_loss": 0.306, "gain": 0.1, "gain_with_5": -0.004, "gain_with_20": 0.05}
    method = {f"adapted_{name}_mean": value for name, value in means.items()}
    method |= {"method": "uniform", "adapted_adapted_accuracy_sd_over_seeds": 0.02, "adapted_gain_p_corrected": 0.0123}
    method |= {"adapted_gain_low": -0.01, "adapted_gain_high": 0.21, "adapted_worse_share": 0.155}
    method |= {"adapted_gain_mde": 0.087, "adapted_gain_conclusion": "inconclusive", "adapted_gain_seeds_needed": 34}
    assert dict(zip(adapted.HEAD, adapted.line(method), strict=True)) == {
        "method": "uniform",
        "unadapted %": "80.0",
        "calibrated %": "85.0",
        "adapted % ± sd": "90.0 ± 2.0",
        "oracle prior, needs labels %": "95.0",
        "gain, points [95% CI]": "+10.0 [−1.0, +21.0]",
        "adjusted p": "0.012",
        "MDE, points": "8.7",
        "conclusion (~ seeds)": "inconclusive (~34)",
        "with 5 inputs": "−0.4",
        "with 20 inputs": "+5.0",
        "worst 10% of clients, %": "30.0 → 60.0",
        "log loss, nats": "0.71 → 0.31",
        "clients worse %": "15.5",
    }
    del method["adapted_oracle_prior_accuracy_mean"]
    assert adapted.line(method | {"adapted_gain_p_corrected": 0.0009})[4:7:2] == ["-", "< 0.001"]
    assert [adapted.signed(points) for points in (0.04, -0.04, -0.06)] == ["0.0", "0.0", "−0.1"]


def test_all_cells_are_comparisons_of_experiments_that_are_there(adapted, capsys):
    adapted.main(["--list", "--runs", "there"])
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert [words[-2:] for words in commands] == [["--out", f"there/{name}"] for name in adapted.CELLS]
    assert all(words[:2] == ["fedreach", "compare"] and (adapted.ROOT / words[2]).exists() for words in commands)


def test_a_finished_comparison_becomes_a_section_and_others_stay(adapted, fedreach, home, capsys):
    one = TINY.partition("[methods.entropy]")[0]
    (home / "tiny.toml").write_text(
        one.replace("cohort_size = 3", 'cohort_size = 3\nadaptation = "label_shift"'), encoding="utf-8"
    )
    folder = home / "runs" / CELL
    made = fedreach("compare", "tiny.toml", "--out", folder, "--formats", "none", "--quiet", "--json")
    assert made.exit_code == 0
    adapted.main(["--there", "--write", "--runs", str(home / "runs")])
    text = capsys.readouterr().out.strip()
    methods = json.loads(made.stdout)["methods"]
    assert text == adapted.section(CELL, adapted.CELLS[CELL], methods)
    assert text.startswith("**Fashion-MNIST, Dirichlet .1 by class, 40 take part** (2 seeds)")
    page = f"<!-- {CELL} -->\n{text}\n<!-- /{CELL} -->\n\n{OTHER}"
    assert (adapted.page.RECORDS / "adapted.md").read_text() == page

    (folder / "runs" / "uniform" / "seed-1" / "result.json").unlink()
    adapted.main(["--there", "--write", "--runs", str(home / "runs")])
    assert capsys.readouterr().out == ""
    assert (adapted.page.RECORDS / "adapted.md").read_text() == page
