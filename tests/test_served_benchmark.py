"""The tables of serving say what the report of a finished comparison says; what is not there changes no table."""

from __future__ import annotations

import json
import shlex

import pytest

from .benchmarked import benchmarks
from .conftest import TINY

CELL = "fashion-class-0.1-40"
OTHER = "<!-- rules-iid -->\nanother cell\n<!-- /rules-iid -->\n"


@pytest.fixture
def served(tmp_path, monkeypatch):
    with benchmarks("served") as (module,):
        page = tmp_path / "results.md"
        page.write_text(f"<!-- {CELL} -->\nold\n<!-- /{CELL} -->\n\n{OTHER}", encoding="utf-8")
        monkeypatch.setattr(module, "PAGE", page)
        yield module


def test_a_line_has_each_number_of_a_method_in_its_place(served):
    means = {"plain_accuracy": 0.8, "calibrated_accuracy": 0.85, "served_accuracy": 0.9, "true_prior_accuracy": 0.95}
    means |= {"plain_accuracy_worst_decile": 0.3, "served_accuracy_worst_decile": 0.6}
    means |= {"plain_loss": 0.714, "served_loss": 0.306, "gain": 0.1, "gain_with_5": -0.004, "gain_with_20": 0.05}
    method = {f"served_{name}_mean": value for name, value in means.items()}
    method |= {"method": "uniform", "served_served_accuracy_sd_over_seeds": 0.02, "served_gain_p_corrected": 0.0123}
    method |= {"served_gain_low": -0.01, "served_gain_high": 0.21, "served_worse_share": 0.155}
    method |= {"served_gain_detectable": 0.087, "served_gain_verdict": "not decided", "served_gain_seeds_needed": 34}
    assert dict(zip(served.HEAD, served.line(method), strict=True)) == {
        "method": "uniform",
        "plain %": "80.0",
        "calibrated %": "85.0",
        "served % ± sd": "90.0 ± 2.0",
        "true prior, needs labels %": "95.0",
        "gain points [seeds]": "+10.0 [−1.0, +21.0]",
        "p corrected": "0.012",
        "detectable points": "8.7",
        "verdict (~ seeds)": "not decided (~34)",
        "with 5 inputs": "−0.4",
        "with 20 inputs": "+5.0",
        "worst decile %": "30.0 → 60.0",
        "log loss nats": "0.71 → 0.31",
        "clients worse %": "15.5",
    }
    del method["served_true_prior_accuracy_mean"]
    assert served.line(method | {"served_gain_p_corrected": 0.0009})[4:7:2] == ["-", "< 0.001"]
    assert [served.signed(points) for points in (0.04, -0.04, -0.06)] == ["0.0", "0.0", "−0.1"]


def test_all_cells_are_comparisons_of_experiments_that_are_there(served, capsys):
    served.main(["--list", "--runs", "there"])
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert [words[-2:] for words in commands] == [["--out", f"there/{name}"] for name in served.CELLS]
    assert all(words[:2] == ["fedreach", "compare"] and (served.ROOT / words[2]).exists() for words in commands)


def test_a_finished_comparison_becomes_a_section_and_others_stay(served, fedreach, home, capsys):
    one = TINY.partition("[methods.entropy]")[0]
    (home / "tiny.toml").write_text(one.replace("cohort = 3", 'cohort = 3\nserving = "label_shift"'), encoding="utf-8")
    folder = home / "runs" / CELL
    made = fedreach("compare", "tiny.toml", "--out", folder, "--formats", "none", "--quiet", "--json")
    assert made.exit_code == 0
    served.main(["--there", "--write", "--runs", str(home / "runs")])
    text = capsys.readouterr().out.strip()
    methods = json.loads(made.stdout)["methods"]
    assert text == served.section(CELL, served.CELLS[CELL], methods)
    assert text.startswith("**Fashion-MNIST, Dirichlet .1 by class, 40 take part** (2 seeds)")
    page = f"<!-- {CELL} -->\n{text}\n<!-- /{CELL} -->\n\n{OTHER}"
    assert served.PAGE.read_text() == page

    (folder / "runs" / "uniform" / "seed-1" / "result.json").unlink()
    served.main(["--there", "--write", "--runs", str(home / "runs")])
    assert capsys.readouterr().out == ""
    assert served.PAGE.read_text() == page
