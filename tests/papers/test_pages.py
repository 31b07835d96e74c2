"""Pages are made from records and from nothing else, and say what the records carry."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreach._util.errors import RunFolderError
from papers import pages
from papers.claims import Claim, judge_claims
from papers.figures import beside, figure_of
from papers.measured import SHARES, Measured
from papers.recipe import Recipe, load, names
from papers.record import make_record, shown_titles, tables

MINE = """
[recipe]
extends = "csra/fig2a"
title = "Two methods | and a bar"
methods = ["csra", "fedavg"]
{more}

[data]
name = "digits"
[model]
name = "linear"
[radio]
[partition]
clients = 12
"""
PAPER = """
[[recipe.paper]]
where = "Table 1"
quantity = "accuracy"
numbers = { csra = 80, fedavg = 70.5 }
"""
OVER = """
[recipe.series]
key = "partition.alpha"
values = [1, 2]
label = "alpha"
[recipe.sweep]
key = "rounds"
values = [10, 20]
label = "rounds"
[[recipe.paper]]
where = "Table 2"
quantity = "accuracy"
over = "fedavg"
numbers = { "csra, alpha 1" = [4.15, nan] }
"""
CLAIMS = [
    Claim(says="ours is best", quantity="accuracy", test="most", methods=["csra"]),
    Claim(says="theirs is best", quantity="accuracy", test="most", methods=["fedavg"]),
    Claim(says="a question of ours", quantity="accuracy", test="most", methods=["fedavg"], control=True),
]


def a_recipe(home: Path, more: str = PAPER) -> Recipe:
    (home / "mine.toml").write_text(MINE.format(more=f"claims = []\n{more}"), encoding="utf-8")
    return load("mine.toml", "cpu")


def made(recipe: Recipe, numbers: Any, *, claims: list[Claim] = CLAIMS, reason: str = "") -> dict[str, Any]:
    """Return a record with these accuracies, (methods, seeds, values)."""
    rows = np.asarray(numbers, dtype=np.float64)
    x = recipe.values or (0.0,)
    label = "" if recipe.about.sweep is None else recipe.about.sweep.label
    measured = Measured(recipe.lines, tuple(range(rows.shape[1])), label, x, {"accuracy": rows})
    found = list(judge_claims(claims, measured, {}, reason=reason))
    return make_record(recipe, recipe.cells()[0][0].experiment, measured, found, {}, 1.25)


NUMBERS = [[[0.81], [0.82], [0.84]], [[0.61], [0.64], [0.63]]]


def written(record: dict[str, Any], folder: Path) -> dict[str, bytes]:
    pages.add_record(record, folder)
    pages.write_pages(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_records_give_the_same_bytes_wherever_and_whenever(home: Path) -> None:
    record = made(a_recipe(home), NUMBERS)
    first, again = written(record, home / "one"), written(deepcopy(record), home / "two")
    assert first.keys() == {"index.md", "mine.json", "mine.md", "mine.svg"}
    assert first == again
    pages.write_pages(home / "one")  # and from the records alone
    assert {path.name: path.read_bytes() for path in (home / "one").iterdir()} == first


def test_a_page_has_claims_numbers_of_the_paper_choices_and_links(home: Path) -> None:
    record = made(a_recipe(home), NUMBERS)
    page = pages.page_text(record, "mine.svg")
    assert page.startswith("# mine: Two methods | and a bar\n")
    assert "python -m papers mine --scale cpu" in page
    assert "| csra | 82.3 ± 1.5 | 80 |" in page
    assert "| fedavg | 62.7 ± 1.5 | 70.5 |" in page
    assert "csra minus fedavg: +19.7 [" in page
    assert "(control experiment) a question of ours" in page
    assert "1.2 hours" in page
    assert "[mine.json](mine.json)" in page
    assert "[What the conclusions mean](index.md#conclusions)" in page
    assert all(said in page for said in (*record["choices"], *record["cut"]))
    assert "![Two methods | and a bar](mine.svg)" in page


def test_the_overview_counts_claims_once_and_shows_questions_and_the_scale(home: Path) -> None:
    index = pages.overview_text([made(a_recipe(home), NUMBERS)])
    assert "| mine | 1 | 1 | 1 | 0 | 0 | 0 |" in index  # that theirs is best is the same difference
    assert "| all |" not in index  # the same numbers once more
    assert "**At scale `cpu`, which is smaller than in the papers, 1 of 1 claims are reproduced, 0 equiv" in index
    assert "| [mine](mine.md) | ours is best | reproduced | > 99% |" in index
    assert "| [mine](mine.md): Two methods \\| and a bar | cpu, 3 | 0 / 0 / 0 / 1 |" in index
    assert index.count("Holm-adjusted within the claim") == 1


def test_the_overview_corrects_across_the_claims_of_all_papers(home: Path) -> None:
    """p = 0.045 is reproduced by itself, and not twice; the page of the recipe keeps its own conclusion."""
    values = np.array([0.1, 0.2, 0.3]) + 0.0633  # t = 4.56
    weak = made(a_recipe(home), [[[value] for value in values], [[0.0]] * 3])
    assert 0.025 < weak["claims"][0]["p"] < 0.05
    assert pages.counted_claims([weak])[0].outcome == "reproduced"
    index = pages.overview_text([weak, {**weak, "recipe": "other/weak"}])
    assert "| all | 2 | 2 | 0 | 0 | 2 | 0 |" in index
    assert "Each claim by itself would give 2 reproduced and 0 contradicted." in index
    assert "| [other/weak](other-weak.md) | ours is best | inconclusive (reproduced by itself) | " in index
    assert "| ours is best | reproduced | csra minus fedavg" in pages.page_text(weak, "")


def test_a_control_experiment_is_no_recipe_of_a_table(home: Path) -> None:
    paper, control = made(a_recipe(home), NUMBERS), made(a_recipe(home), NUMBERS, claims=CLAIMS[2:])
    control["recipe"] = "other/control"
    index = pages.overview_text([control, paper])
    assert "| other | 0 | 0 | 0 | 0 | 0 | 0 |" in index
    assert "| all | 1 | 1 | 1 | 0 | 0 | 0 |" in index
    assert "Recipes of tables and figures: 1; control experiments: 1." in index
    assert "| [other/control](other-control.md): Two methods \\| and a bar | cpu, 3 | 0 / 0 / 0 / 1 |" in index


def test_stored_records_are_judged_again_without_runs(home: Path, papers: Callable[..., Any]) -> None:
    """By the claims and sentences that their recipes have now, and by the numbers that were stored."""
    recipe = a_recipe(home)
    old = made(recipe, NUMBERS)
    for claim in old["claims"]:  # as a record of an earlier version
        del claim["p"], claim["repeats"]
    pages.add_record({**old, "recipe": "mine.toml"}, home / "out")
    claim = '[[recipe.claims]]\nsays = "now"\nquantity = "accuracy"\ntest = "most"\nmethods = ["fedavg"]\n'
    (home / "mine.toml").write_text(MINE.format(more=f'choices = ["another"]\n{claim}'), encoding="utf-8")
    with pytest.raises(RunFolderError, match="is not a record"):
        pages.write_pages(home / "out")
    assert papers("judge", "out").exit_code == 0
    record = json.loads((home / "out" / "mine.toml.json").read_text("utf-8"))
    assert record["numbers"] == old["numbers"]
    assert [(claim["says"], claim["outcome"]) for claim in record["claims"]] == [("now", "contradicted")]
    assert record["choices"] == ["another"]
    assert "| now | contradicted | fedavg minus csra" in (home / "out" / "mine.toml.md").read_text("utf-8")


def test_a_claim_that_does_not_hold_links_its_control_experiments(home: Path) -> None:
    claims = [claim.model_copy(update={"see": ["mine", "csra/control-prices"]}) for claim in CLAIMS[:2]]
    record = made(a_recipe(home), NUMBERS, claims=claims)
    page = pages.page_text(record, "", {"mine"})
    seen = "| contradicted; counted with another claim; see [mine](mine.md), csra/control-prices |"
    assert page.count(seen) == 1  # csra has no page here
    assert page.count("; see") == 1  # and not of what is reproduced


def test_a_new_record_of_an_item_takes_the_place_of_the_old_one(home: Path) -> None:
    recipe = a_recipe(home)
    pages.add_record(made(recipe, NUMBERS), home / "out")
    pages.add_record(last := made(recipe, NUMBERS[::-1]), home / "out")
    assert [json.loads(path.read_text()) for path in (home / "out").iterdir()] == [json.loads(json.dumps(last))]


def test_what_could_not_be_tested_is_told_with_its_reason(home: Path) -> None:
    page = pages.page_text(made(a_recipe(home), NUMBERS, reason="it is small"), "")
    assert page.count("not testable: it is small") == 3


def test_a_stand_in_is_told_on_the_page(home: Path) -> None:
    stood = a_recipe(home)
    stood = Recipe(
        stood.name, stood.scale, stood.source, stood.raw, "emnist is not in the data folder: digits stands in."
    )
    assert "emnist is not in the data folder: digits stands in." in pages.page_text(made(stood, NUMBERS), "")


def test_gains_stand_beside_the_gains_that_a_paper_prints(home: Path) -> None:
    lines = [[0.5, 0.6], [0.5, 0.6], [0.4, 0.4], [0.3, 0.3]]  # csra with alpha 1 and 2, fedavg with alpha 1 and 2
    numbers = np.array(lines)[:, None] + np.array([-0.01, 0.01])[None, :, None]
    record = made(a_recipe(home, OVER), numbers, claims=[])
    ((title, header, rows),) = tables(record)
    assert title.startswith("Accuracy on the test set")
    assert header == ["rounds", "10", "20"]
    assert [row[0] for row in rows] == [
        "csra, alpha 1", "csra, alpha 2", "fedavg, alpha 1", "fedavg, alpha 2", "csra, alpha 1 over fedavg",
        "csra, alpha 1, Table 2",
    ]  # fmt: skip
    assert rows[-2][1:] == ["+10.0 ± 0.0", "+20.0 ± 0.0"]  # paired: what both share is none of the spread
    assert rows[-1][1:] == ["4.15", "-"]


@pytest.mark.parametrize("text", ["{", "[]", '{"recipe": "a/b"}', "a claim without its outcome"])
def test_what_is_no_record_is_named(home: Path, text: str) -> None:
    if text.startswith("a claim"):
        record = made(a_recipe(home), NUMBERS)
        del record["claims"][1]["outcome"]
        text = json.dumps(record)
    (home / "other.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"other\.json is not a record"):
        pages.write_pages(home)


def test_a_folder_without_records_says_how_to_get_some(home: Path) -> None:
    with pytest.raises(RunFolderError, match="python -m papers PAPER/ITEM --pages"):
        pages.write_pages(home / "none")


def test_methods_beside_each_other_show_intervals_and_the_paper(home: Path) -> None:
    record = made(a_recipe(home), NUMBERS)
    figure = beside(record, shown_titles(record), shares=SHARES)
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["csra", "fedavg"]
    hollow = [line for line in axes.lines if line.get_marker() == "D" and line.get_markerfacecolor() == "none"]
    assert [line.get_xydata().tolist() for line in hollow] == [[[80.0, 0.0]], [[70.5, 1.0]]]
    (ends,) = axes.collections[0].get_segments()
    assert ends[:, 0] == pytest.approx([82.333 - 3.795, 82.333 + 3.795], abs=2e-3)  # t(2) 4.303 * 1.528 / sqrt(3)
    gains = beside({**record, "paper": [{**record["paper"][0], "over": "fedavg"}]}, shown_titles(record), shares=SHARES)
    assert gains is not None
    assert not [line for line in gains.axes[0].lines if line.get_marker() == "D"]  # 5 points are no accuracy of 5 %
    assert beside({**record, "numbers": {}}, shown_titles(record), shares=SHARES) is None


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_makes_pages_of_what_it_ran(home: Path, papers: Callable[..., Any]) -> None:
    (home / "tiny.toml").write_text(
        '[model]\nname = "linear"\n[recipe]\nextends = "csra/fig9a"\n'
        '[data]\nname = "digits"\n[partition]\nclients = 12\n'
        "[methods]\ncsra.selection = { min_examples = 300 }\ncsra-paper.selection = { min_examples = 300 }\n",
        encoding="utf-8",
    )
    result = papers("tiny.toml", "--scale", "smoke", "--pages", "pages", "--formats", "none")
    assert result.exit_code == 0, result.output
    assert "Pages: pages/index.md and 1 more" in result.stdout
    assert {path.name for path in (home / "pages").iterdir()} == {"index.md", "tiny.md", "tiny.json", "tiny.svg"}
    assert "not testable: the scale smoke only shows that it runs" in (home / "pages" / "tiny.md").read_text()


def test_all_and_an_item_are_not_asked_together(papers: Callable[..., Any]) -> None:
    result = papers("csra/fig5", "--all")
    assert result.exit_code == 2
    assert "leave it out to run csra/fig5" in result.stderr


@pytest.mark.slow
def test_all_recipes_run_at_scale_smoke_and_make_their_pages(home: Path, papers: Callable[..., Any]) -> None:
    result = papers("--all", "--scale", "smoke", "--pages", "pages", "--formats", "none", "--json")
    if "is not here" in result.output or "cannot be downloaded" in result.output:
        pytest.skip("the data sets are not here")
    assert result.exit_code == 0, result.output
    records = json.loads(result.stdout)
    assert [record["recipe"] for record in records] == names()
    for record in records:
        assert not record["failed"], record["recipe"]
        assert (home / "pages" / f"{pages.file_stem(record)}.svg").is_file()
        for quantity in {claim["quantity"] for claim in record["claims"]}:
            assert quantity in record["numbers"], (record["recipe"], quantity)
        assert {claim["outcome"] for claim in record["claims"]} <= {"not testable"}


def test_a_record_that_lacks_something_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"recipe": "x", "claims": [], "numbers": {}}', encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"x\.json is not a record of a recipe.*title"):
        pages.write_pages(tmp_path)


def test_points_are_drawn_as_points() -> None:
    """A swing of 0.05 is five points, as the title says."""
    rows = {"a": [[0.05], [0.0501]], "b": [[0.01], [0.0101]]}
    record = {"methods": ["a", "b"], "x": [0.0], "axis": "", "numbers": {"swing": rows}, "paper": []}
    figure = figure_of({**record, "claims": [{"quantity": "swing"}]})
    assert figure is not None
    assert 1 < figure.axes[0].get_xlim()[1] < 10
