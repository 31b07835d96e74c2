"""Recipes are read whole, decide what training runs would decide, and can be contradicted by numbers."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreach.config.load import load as load_experiment
from fedreach.errors import ConfigError, DataError, RunFolderError
from fedreach.experiments.run import run
from fedreach.reproduce import recipe as recipes
from fedreach.reproduce.claims import Claim, Test, judge, verdicts
from fedreach.reproduce.decisions import ROWS, decide
from fedreach.reproduce.measured import Measured
from fedreach.reproduce.recipe import SCALES, Recipe, find, load, names
from fedreach.reproduce.reproduce import reproduce
from fedreach.runs.folder import RunFolder

pytest.importorskip("clarabel", reason="the recipes have parts of the extra `reproduce`")

DIGITS = """
rounds = 3
seeds = [0, 1]

[recipe]
extends = "csra/fig6"

[recipe.scale.cpu]
rounds = 3
seeds = [0, 1]

[recipe.sweep]
values = [1e6, 2e6, 4e6]

[data]
name = "digits"

[partition]
clients = 12

[model]
name = "linear"

[local]
epochs = 1
"""
"""Figure 6 on digits; its methods need 2000 examples, which nobody has, and are replaced below."""

METHODS = """
[methods]
csra.selection = { min_examples = 300 }
csra-paper.selection = { min_examples = 300 }
cs-greedy.selection = { min_examples = 300 }
cs-random.selection = { min_examples = 300 }
ga-greedy.selection = { min_examples = 300 }
ga-random.selection = { min_examples = 300 }
"""

TRAINING = """
[recipe]
extends = "csra/fig3a"
claims = [{ says = "stricter is better", quantity = "accuracy", test = "falls", methods = ["csra"], by = 1.0 }]

[recipe.sweep]
values = [0.2, 2.0]

[data]
name = "digits"

[partition]
clients = 12

[model]
name = "linear"

[method]
cohort = 2

[methods]
csra.selection = { min_examples = 200 }
"""


def digits(home: Path, more: str = METHODS) -> Recipe:
    (home / "mine.toml").write_text(DIGITS + more, encoding="utf-8")
    return load("mine.toml", "cpu")


# ------------------------------------------------------------------------------------------------ reading recipes


def test_every_recipe_is_understood_at_every_scale_and_value() -> None:
    assert {name.partition("/")[0] for name in names()} == {"csra"}
    for name in names():
        for scale in SCALES:
            recipe = load(name, scale)
            assert recipe.about.claims, name
            if recipe.about.kind == "training":
                experiment, in_it = recipe.compared()
                assert {each for series in in_it.values() for each in series} == set(experiment.methods)
            for value in recipe.values or (None,):
                assert recipe.at(value).radio is not None
        small, large = load(name, "smoke"), load(name, "full")
        assert small.at().rounds < load(name, "cpu").at().rounds < large.at().rounds


def test_the_figures_2_to_9_of_the_paper_are_there() -> None:
    assert all(find(f"csra/fig{number}") for number in range(2, 10))
    assert find("csra/fig2") == ["csra/fig2a", "csra/fig2b"]
    assert find("csra/fig5") == ["csra/fig5"]
    assert find("csra") == names()


@pytest.mark.parametrize(("name", "hint"), [("csra/fig55", "'csra/fig5'"), ("crsa", "'csra'"), ("csra/fig", "csra/")])
def test_a_misspelt_recipe_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"no recipe '{name}'.*{hint}"):
        find(name)


def test_a_recipe_takes_the_rest_from_the_one_that_it_extends(home: Path) -> None:
    recipe = digits(home)
    e = recipe.at(4e6)
    assert e.radio is not None
    assert e.radio.options == {"bandwidth_hertz": 4e6}
    assert (e.partition.name, e.partition.clients, e.partition.options) == ("hybrid", 12, {"share": 0.1, "alpha": 0.5})
    assert e.methods["ga-random"].selection is not None
    assert e.methods["ga-random"].selection.options == {"threshold": 0.2, "min_examples": 300, "search": "genetic"}
    assert (e.rounds, e.seeds) == (3, [0, 1])


def test_a_part_of_another_name_keeps_no_option_of_the_old_one(home: Path) -> None:
    (home / "mine.toml").write_text('[recipe]\nextends = "csra/fig5"\n[partition]\nname = "iid"\n', encoding="utf-8")
    assert load("mine.toml", "cpu").at().partition.options == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no table \\[recipe\\]"),
        ('[recipe]\nextends = "csra/fig99"\n', "cannot be read"),
        ('[recipe]\nextends = "mine.toml"\n', "must name another recipe"),
        ('[recipe]\nextends = "csra/fig5"\ntitel = ""\n', "recipe.titel: unknown key. Did you mean 'title'"),
        ('[recipe]\nextends = "csra/fig5"\nmethods = ["csar"]\n', "no method 'csar'. Did you mean 'csra'"),
        ('[recipe]\nextends = "csra/fig5"\n[local]\nepoch = 1\n', "mine.toml:4: local.epoch: unknown key"),
        (
            '[recipe]\nextends = "csra/fig5"\n[[recipe.claims]]\nsays = ""\nquantity = "cost"\ntest = "near"\n',
            "recipe.claims.*names 2 methods or more",
        ),
        ('[recipe]\nextends = "csra/fig3a"\n[recipe.sweep]\nkey = "local.rate"\n', "sweeps over methods.NAME.OPTION"),
    ],
)
def test_mistakes_in_a_recipe_are_explained(home: Path, text: str, said: str) -> None:
    (home / "mine.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load("mine.toml", "cpu").compared()


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scale must be one of.*Did you mean 'smoke'"):
        load("csra/fig5", "smok")


def test_a_sweep_with_training_makes_one_comparison_where_nothing_runs_twice() -> None:
    experiment, in_it = load("csra/fig3a", "cpu").compared()
    assert in_it["csra"] == ("csra-0.1", "csra-0.2", "csra-0.5", "csra-1", "csra-2")
    assert in_it["fedavg"] == ("fedavg",) * 5
    assert list(experiment.methods) == [*in_it["csra"], "fedavg"]
    selection = experiment.methods["csra-0.5"].selection
    assert selection is not None
    assert selection.options == {"threshold": 0.5, "min_examples": 2000}
    assert experiment.baseline == "csra-0.1"


# ------------------------------------------------------------------------------------------------ decisions


def test_decisions_cost_what_the_rounds_of_a_run_cost(home: Path) -> None:
    recipe = digits(home)
    decide(recipe, RunFolder(home / "out"))
    rows = RunFolder(home / "out").rows(ROWS)
    for method in ("csra", "cs-random", "ga-greedy"):
        run(recipe.at(2e6).resolved(method), seed=1, folder=home / method, base=home)
        trained = RunFolder(home / method).rows("rounds.jsonl")[1:]
        decided = [row for row in rows if (row["value"], row["method"], row["seed"]) == (2e6, method, 1)]
        assert [row["cohort"] for row in decided] == [row["cohort"] for row in trained]
        for quantity in ("seconds", "joules"):
            assert [float(f"{row[quantity]:.9g}") for row in decided] == [row[quantity] for row in trained]


def test_the_exact_solution_costs_least_and_a_wider_band_never_costs_more(home: Path) -> None:
    measured = decide(digits(home), RunFolder(home / "out"))
    cost = dict(zip(measured.methods, measured.numbers["cost"], strict=True))  # (seeds, values)
    for method, others in cost.items():
        assert (cost["csra"] <= others * (1 + 1e-4)).all(), method  # 1e-4 is the tolerance of its proof
    assert (np.diff(cost["csra"]) < 0).all()
    np.testing.assert_allclose(measured.numbers["cost"], measured.numbers["seconds"] + measured.numbers["joules"])
    assert measured.x == (1.0, 2.0, 4.0)  # in MHz


def test_decisions_go_on_where_they_were_interrupted(home: Path) -> None:
    whole = decide(digits(home), RunFolder(home / "whole"))
    store = RunFolder(home / "cut")
    calls: list[int] = []

    def stop(done: int, rounds: int) -> None:
        calls.append(done)
        if len(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decide(digits(home), store, stop)
    path = home / "cut" / ROWS
    path.write_text(path.read_text() + '{"value": 1e6, "meth', encoding="utf-8")  # killed as it wrote
    before = len(store.rows(ROWS))
    told: list[tuple[int, int]] = []
    again = decide(digits(home), store, lambda done, rounds: told.append((done, rounds)))
    assert told[0] == (before, 3 * 6 * 2 * 3)  # what was decided before is told first
    assert told[-1] == (3 * 6 * 2 * 3, 3 * 6 * 2 * 3)
    assert 0 < before < len(store.rows(ROWS)) == 3 * 6 * 2 * 3
    for quantity in whole.numbers:
        assert (whole.numbers[quantity] == again.numbers[quantity]).all()
    assert path.read_text().count('"meth') == 3 * 6 * 2 * 3
    longer = digits(home, METHODS).raw | {"rounds": 4}
    decide(Recipe("mine", "cpu", home / "mine.toml", longer), store)
    assert len(store.rows(ROWS)) == 4 * 6 * 2 * 3


@pytest.mark.parametrize("damage", ["0.", "seed", "{", '"check"'])
def test_decisions_that_were_changed_are_told_by_their_line(home: Path, damage: str) -> None:
    decide(digits(home), RunFolder(home / "out"))
    lines = (home / "out" / ROWS).read_text(encoding="utf-8").splitlines(keepends=True)
    lines[4] = lines[4].replace(damage, damage[:-1] + "7", 1)
    (home / "out" / ROWS).write_text("".join(lines), encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"decisions\.jsonl: line 5 is not what was written there"):
        decide(digits(home), RunFolder(home / "out"))


def test_a_folder_of_other_decisions_is_refused(home: Path) -> None:
    decide(digits(home), RunFolder(home / "out"))
    with pytest.raises(RunFolderError, match="other options"):
        decide(digits(home, METHODS.replace("300", "400")), RunFolder(home / "out"))


@pytest.mark.parametrize("selection", ["power_of_choice", "minimax"])
def test_decisions_that_need_training_are_refused(home: Path, selection: str) -> None:
    recipe = digits(home, f'{METHODS}\n[methods.greedy]\nselection = "{selection}"\n')
    recipe = Recipe(recipe.name, "cpu", recipe.source, recipe.raw | {"method": {"cohort": 3}})
    with pytest.raises(ConfigError, match="trains nothing"):
        decide(recipe, RunFolder(home / "out"))


# ------------------------------------------------------------------------------------------------ claims


def table(**rows: list[float]) -> Measured:
    """Return a measurement of one seed at the values 1, 2 and 4."""
    numbers = np.array(list(rows.values()))[:, None]
    return Measured(tuple(rows), (0,), "x", (1.0, 2.0, 4.0), {"seconds": numbers})


A = {"a": [3.0, 2.0, 1.5], "b": [5.0, 3.0, 1.75], "c": [4.0, 4.0, 4.0]}


@pytest.mark.parametrize(
    ("test", "methods", "more", "holds"),
    [
        ("least", ["a"], {}, True),
        ("least", ["b"], {}, False),
        ("least", ["b", "c"], {"at": "last"}, True),  # at the last value, 1.75 of 4
        ("least", ["b", "c"], {}, False),  # but at the first, 5 of 4
        ("most", ["c", "a"], {}, True),
        ("most", ["c"], {}, False),
        ("ordered", ["a", "b"], {}, True),
        ("ordered", ["a", "b", "c"], {}, False),
        ("ordered", ["a", "b", "c"], {"at": "last"}, True),
        ("near", ["a", "b"], {"by": 2.0}, True),
        ("near", ["a", "b"], {"by": 1.9}, False),
        ("near", ["a", "b"], {"by": 0.25, "at": "last"}, True),
        ("falls", ["a", "b"], {}, True),
        ("falls", [], {}, False),  # c stays
        ("rises", ["a"], {}, False),
        ("levels_off", ["a", "b"], {}, True),  # slopes: 1 and 1/4; 2 and 5/8
        ("levels_off", [], {}, False),  # c has none at all
        ("lead_shrinks", ["a", "b"], {}, True),  # 2, then 1/4
        ("lead_shrinks", ["a", "c"], {}, False),  # 1, then 5/2
        ("varies_least", ["a", "b"], {}, True),  # 2 times, 2.9 times
        ("varies_least", ["a"], {}, False),  # c: 1
    ],
)
def test_numbers_decide_whether_a_statement_holds(test: Test, methods: list[str], more: Any, holds: bool) -> None:
    verdict = judge(Claim(says="", quantity="seconds", test=test, methods=methods, **more), table(**A))
    assert verdict.holds is holds
    assert verdict.seeds_holding == int(holds)


def test_a_step_back_may_be_forgiven() -> None:
    rows = table(a=[1.0, 0.98, 2.0])
    rises = Claim(says="", quantity="seconds", test="rises")
    assert judge(rises, rows).holds is False
    assert judge(rises.model_copy(update={"by": 0.03}), rows).holds is True


def test_a_verdict_is_that_of_the_means_and_tells_in_how_many_seeds_it_is_the_same() -> None:
    numbers = np.array([[[1.0], [1.0], [5.0]], [[2.0], [2.0], [4.0]]])  # a: mean 7/3, b: 8/3
    measured = Measured(("a", "b"), (0, 1, 2), "", (0.0,), {"seconds": numbers})
    verdict = judge(Claim(says="", quantity="seconds", test="least", methods=["a"]), measured)
    assert (verdict.holds, verdict.seeds_holding, verdict.seeds) == (True, 2, 3)
    assert verdict.here == "a 2.33 s, b 2.67 s"


def test_nothing_is_said_where_a_run_failed() -> None:
    rows = table(a=[1.0, np.nan, 1.0], b=[2.0, 2.0, 2.0], c=[3.0, 3.0, 3.0])
    assert judge(Claim(says="", quantity="seconds", test="least", methods=["a", "b"]), rows).holds is None
    assert judge(Claim(says="", quantity="seconds", test="least", methods=["b", "c"]), rows).holds is True
    assert judge(Claim(says="", quantity="seconds", test="least", methods=["b"]), rows).holds is None


def test_a_statement_about_what_is_not_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not measure.*Did you mean 'seconds'"):
        judge(Claim(says="", quantity="second", test="falls"), table(**A))


def test_a_statement_is_judged_for_another_method_in_its_place_too() -> None:
    claims = [Claim(says="", quantity="seconds", test="least", methods=["a", "c"])]
    own, other = verdicts(claims, table(**A), {"a": "b"})
    assert (own.instead, own.holds) == ("", True)
    assert (other.instead, other.holds) == ("b", False)
    claims = [Claim(says="", quantity="seconds", test="least", methods=["a", "b"])]
    assert len(list(verdicts(claims, table(**A), {"a": "b"}))) == 1  # b is compared with a already


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_writes_numbers_figure_and_verdicts(home: Path, fedreach: Callable[..., Any]) -> None:
    digits(home)
    result = fedreach("reproduce", "mine.toml", "--out", "out", "--formats", "png", "--json")
    assert result.exit_code == 0, result.output
    (record,) = json.loads(result.stdout)
    assert result.stderr == ""
    assert record["methods"][0] == "csra"
    assert {path.name for path in (home / "out").glob("[!.]*")} == {
        "claims.md", "decisions.jsonl", "figure.png", "numbers.csv", "recipe.json", "reproduced.json"
    }  # fmt: skip
    with (home / "out" / "numbers.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6 * 2 * 3
    assert float(lines[0]["seconds"]) == pytest.approx(record["numbers"]["seconds"]["csra"][0][0], rel=1e-8)
    claim = record["claims"][0]
    assert (claim["quantity"], claim["test"], claim["holds"]) == ("cost", "least", True)
    page = (home / "out" / "claims.md").read_text()
    assert all(claim["says"] in page for claim in record["claims"])
    shown = fedreach("reproduce", "mine.toml", "--out", "out", "--formats", "png")
    assert "... with csra-paper" in shown.stdout
    assert "bandwidth, MHz" in shown.stdout


def test_a_recipe_with_training_is_a_comparison_with_its_report(home: Path, fedreach: Callable[..., Any]) -> None:
    (home / "fig.toml").write_text(TRAINING, encoding="utf-8")
    result = fedreach("reproduce", "fig.toml", "--scale", "smoke", "--formats", "png", "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    (record,) = json.loads(result.stdout)
    out = home / "runs" / "fig-smoke"
    assert record["folder"] == "runs/fig-smoke"
    assert {path.name for path in (out / "runs").iterdir()} == {"csra-0.2", "csra-2", "fedavg"}
    last = RunFolder(out / "runs" / "csra-2" / "seed-0").rows("rounds.jsonl")[-1]
    assert record["numbers"]["accuracy"]["csra"][0][1] == pytest.approx(last["test_accuracy"])
    assert record["numbers"]["joules_total"]["csra"][0][1] == pytest.approx(last["joules_total"])
    assert len(set(record["numbers"]["accuracy"]["fedavg"][0])) == 1
    assert (out / "report" / "index.html").is_file()
    assert (out / "figure.png").is_file()
    again = fedreach("reproduce", "fig.toml", "--scale", "smoke", "--formats", "none")
    assert "finished before" in again.stderr
    assert "numbers mean little" in again.stdout


def test_without_a_name_the_command_lists_the_recipes(fedreach: Callable[..., Any]) -> None:
    assert all(name in fedreach("reproduce").stdout for name in names())
    assert json.loads(fedreach("reproduce", "--json").stdout) == names()


def test_the_command_refuses_plainly(home: Path, refused: Callable[..., str]) -> None:
    assert "Did you mean" in refused(2, "reproduce", "csra/fgi5")
    (home / "no.toml").write_text(
        '[recipe]\nextends = "csra/fig5"\n[data]\nfolder = "nowhere"\ndownload = false\n', encoding="utf-8"
    )
    assert "nowhere" in refused(3, "reproduce", "no.toml", "--quiet")
    (home / "no.toml").write_text(
        '[recipe]\nextends = "csra/fig2a"\n[data]\nfolder = "nowhere"\ndownload = false\n', encoding="utf-8"
    )
    assert "nowhere" in refused(3, "reproduce", "no.toml", "--quiet")


def test_figure_5_runs_on_the_real_images(home: Path) -> None:
    (home / "real.toml").write_text('[recipe]\nextends = "csra/fig5"\n[data]\ndownload = false\n', encoding="utf-8")
    try:
        record = reproduce(load("real.toml", "smoke"), home / "out")
    except DataError as error:
        pytest.skip(f"Fashion-MNIST is not here: {error}")
    cost = {method: rows[0][-1] for method, rows in record["numbers"]["cost_total"].items()}
    assert min(cost, key=lambda method: cost[method]) == "csra"
    assert record["rounds"] == len(record["x"]) == 2


def test_plain_experiments_are_no_recipes(home: Path) -> None:
    load_experiment(home / "tiny.toml")
    with pytest.raises(ConfigError, match="plain experiments"):
        recipes.load("tiny.toml", "cpu")
