"""What was committed of the papers' items is what their recipes make: pages from records, and a cell run again."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedreach._util.errors import DataError
from fedreach.experiment.run import run
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import RoundRow
from papers import pages
from papers.measured import SHARES, measure_run
from papers.recipe import load, names
from papers.record import judged_again

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = RESULTS.parent / "reproducing.md"
RECORDS = sorted(RESULTS.glob("*.json"))
SECONDS = 300
TOLERANCE = 0.03  # of an accuracy: processors round differently, and training spreads that


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_pages_and_overview_are_those_of_the_records(tmp_path: Path) -> None:
    for path in RECORDS:
        shutil.copy(path, tmp_path)
    made = {path.name for path in pages.write_pages(tmp_path)}
    assert made == {path.name for path in RESULTS.glob("*.md")}
    for name in made:
        assert (tmp_path / name).read_text("utf-8") == (RESULTS / name).read_text("utf-8"), f"make {name} again"


def test_the_overview_counts_every_recipe_and_every_claim_once() -> None:
    index = (RESULTS / "index.md").read_text("utf-8")
    (row,) = re.findall(r"^\| all \| (.*) \|$", index, re.MULTILINE)
    recipes, count, *outcomes = map(int, row.split(" | "))
    controls = int(re.findall(r"control experiments: (\d+)\.", index)[0])
    assert recipes + controls == len(RECORDS) == len(names())
    claims = [claim for path in RECORDS for claim in read(path)["claims"] if not claim["control"]]
    assert count == sum(outcomes) == sum(not claim["repeats"] for claim in claims)
    assert all(claim["repeats"] for claim in claims if claim["instead"])


def test_stored_conclusions_are_those_of_the_stored_numbers_and_the_recipes() -> None:
    """An edge: a share of bootstrap samples may differ by one sample between processors."""
    for path in random.sample(RECORDS, 5):
        record = read(path)
        again = judged_again(record, load(record["recipe"], record["scale"]))
        assert {**again, "claims": []} == {**record, "claims": []}
        for new, stored in zip(again["claims"], record["claims"], strict=True):
            words = [key for key, value in stored.items() if not isinstance(value, float)]
            assert {key: new[key] for key in words} == {key: stored[key] for key in words}, path.stem
            for key in stored.keys() - set(words):
                assert new[key] == pytest.approx(stored[key], rel=1e-6, abs=0.002 * (key == "again")), path.stem


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_of_the_recipe_as_it_stands(path: Path) -> None:
    record = read(path)
    recipe = load(record["recipe"], record["scale"])
    assert tuple(record["methods"]) == recipe.lines
    trained = recipe.about.kind == "training"  # then what a cell sets may be needed for a whole experiment
    experiment = recipe.cells()[0][0].experiment if trained else recipe.at()
    assert record["seeds"] == list(experiment.seeds)
    assert [(claim["says"], claim["see"]) for claim in record["claims"] if not claim["instead"]] == [
        (claim.says, claim.see) for claim in recipe.about.claims
    ]


def test_the_control_experiments_of_a_claim_have_a_page() -> None:
    """Names of recipes that have no page here would be text where a reader expects a link."""
    here = {read(path)["recipe"] for path in RECORDS}
    asked = {name for path in RECORDS for claim in read(path)["claims"] for name in claim["see"]}
    assert asked <= here


PARAGRAPHS = [text for text in PAGE.read_text("utf-8").split("\n- ") if "](results/" in text]


@pytest.mark.parametrize("text", PARAGRAPHS, ids=range(len(PARAGRAPHS)))
def test_each_number_of_where_claims_hold_is_on_a_page_that_its_paragraph_links(text: str) -> None:
    linked = re.findall(r"\]\((results/[\w-]+\.md)\)", text)
    there = " ".join((PAGE.parent / name).read_text("utf-8") for name in linked)
    plain = re.sub(r"\([^)]*\)|Dirichlet [\d.]+|at [\d.]+", "", text).replace("\N{MINUS SIGN}", "-")
    for number in re.findall(r"-?\d+\.\d+", plain):
        assert re.search(rf"(?<![\d.]){re.escape(number.lstrip('-'))}(?!\d)", there), number


@pytest.mark.slow
def test_one_cell_at_random_comes_out_again(tmp_path: Path) -> None:
    trained = [record for record in map(read, RECORDS) if record["hours"] and record["scale"] == "cpu"]
    fitting = [
        record for record in trained if 3600 * record["hours"] / len(record["seeds"]) / len(record["methods"]) < SECONDS
    ]
    record = random.choice(fitting)
    recipe = load(record["recipe"], record["scale"])
    cells, places = recipe.cells()
    line, place = random.choice(record["methods"]), random.randrange(len(record["x"]))
    seed = random.randrange(len(record["seeds"]))
    at = places[line][place]
    experiment = cells[at.cell].experiment.resolved(at.method)
    try:
        run(experiment, seed=record["seeds"][seed], folder=tmp_path / "run", base=recipe.source.parent)
    except DataError as error:
        pytest.skip(f"{record['data']} is not here: {error}")
    found = measure_run(RunFolder(tmp_path / "run").kept_rows(RoundRow.FILE))
    for quantity in SHARES:
        if quantity in record["numbers"] and quantity in found:
            stored = record["numbers"][quantity][line][seed][place]
            said = f"{record['recipe']}, {line}, value {place}, seed {seed}: {quantity}"
            assert found[quantity] == pytest.approx(stored, abs=TOLERANCE), said
