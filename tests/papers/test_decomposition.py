"""Where the spread comes from: runs are read to their places, what is claimed follows from them, and it is drawn."""

from __future__ import annotations

import json
import math
import re
import shutil
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.made_up import edit, edit_rows, federation, write_run

from fedreach._util.arrays import Floats
from fedreach._util.errors import RunFolderError
from papers.variance import report as words
from papers.variance.components import Nested
from papers.variance.decomposition import FEDERATION, LEVELS, MEANS, PARTITION, TWICE, Decomposition, decompose
from papers.variance.design import DesignRecord
from papers.variance.figure import REACH, components
from papers.variance.read import DesignResults, read_results
from papers.variance.report import write_variance

DRAWS = (2, 2, 2, 2)
METHODS = ("fedavg", "fed|prox")

# ------------------------------------------------------------------------------------- what follows from numbers


def study(scores: Floats, sampling: Floats | None = None, seeds: int = 20) -> DesignResults:
    """Return a study of scores (2, a, b, c, d, t)."""
    t = scores.shape[-1]
    return DesignResults(
        "digits", METHODS, scores.shape[1:-1], seeds, "unseen_accuracy", (*range(t),), scores, sampling, 30.0
    )


def scores(sds: tuple[float, ...], rng: np.random.Generator, noise: float = 0.0, t: int = 3) -> Floats:
    """Return the scores of a method, and of one whose difference has these standard deviations at the levels."""
    draws, apart = (8, 2, 2, 2), np.zeros((8, 2, 2, 2))
    for level, sd in enumerate(sds):
        apart = apart + sd * rng.standard_normal((*draws[: level + 1], *(1,) * (3 - level)))
    one = np.repeat(0.7 + 0.1 * rng.standard_normal((*draws, 1)), t, axis=-1)
    return np.stack([one, one + 0.02 + apart[..., None] + noise * rng.standard_normal((*draws, t))])


def alike() -> DesignResults:
    """Return a study whose partitions have the same mean difference, so that their component comes out below 0."""
    one, other = scores((0.0, 0.0, 0.0, 0.02), np.random.default_rng(3))
    apart = other - one
    return study(np.stack([one, one + 0.02 + apart - apart.mean(axis=(1, 2, 3), keepdims=True)]))


def variance_of(found: Decomposition, name: str, seeds: int) -> float:
    (way,) = [way for way in found.ways if way.name.startswith(name)]
    return way.variance(seeds)


def test_more_seeds_lower_everything_but_what_is_pinned() -> None:
    found = decompose(study(scores((0.03, 0.02, 0.01, 0.02), np.random.default_rng(0))))
    now = found.ways[0]
    assert now.variance(40) == pytest.approx(now.variance(20) / 2)
    for name, pinned in ((PARTITION, 1), (FEDERATION, 2)):
        left = found.difference.of_one(pinned).value
        itself, others = (variance_of(found, f"{name}: about {whom}", 20) for whom in ("itself", "others"))
        assert itself == pytest.approx(left / 20)
        assert others == pytest.approx(now.one_seed.value - left + left / 20)
        assert itself < now.variance(20) < others
        assert variance_of(found, f"{name}: about others", 1) == pytest.approx(now.variance(1))
    assert [way.pinned for way in found.ways if "itself" in way.name] == [True, True]
    assert [part.name for part in found.parts] == list(LEVELS)


def test_pinning_never_promises_more_than_it_is_where_a_component_comes_out_below_0() -> None:
    found = decompose(alike())
    assert found.parts[0].difference.value < 0
    assert variance_of(found, f"{PARTITION}: about itself", 20) == found.ways[0].variance(20)
    assert variance_of(found, f"{PARTITION}: about others", 20) == found.ways[0].variance(20)


def test_means_over_rounds_lower_what_is_noise_from_round_to_round() -> None:
    rng, now, means, told = np.random.default_rng(1), [], [], []
    for _ in range(150):
        found = decompose(study(scores((0.02, 0.0, 0.0, 0.01), rng, noise=0.03)))
        now.append(variance_of(found, "every seed", 1))
        means.append(variance_of(found, MEANS, 1))
        told.append(found.included[-1].difference.value)
    assert np.mean(now) == pytest.approx(0.02**2 + 0.01**2 + 0.03**2, rel=0.08)
    assert np.mean(means) == pytest.approx(0.02**2 + 0.01**2 + 0.03**2 / 3, rel=0.08)
    assert np.mean(told) == pytest.approx(0.03**2, rel=0.05)


def clients_study(clients: int, rng: np.random.Generator) -> DesignResults:
    """Return a study whose difference varies by 0.1 from client to client and by 0.03 with who takes part."""
    draws, sampling, pair = (8, 2, 2, 2), np.zeros((3, 8)), np.zeros((2, 8, 2, 2, 2, 3))
    for i, j in product(range(8), range(2)):
        own = 0.03 * rng.standard_normal() + 0.1 * rng.standard_normal(clients)
        base = 0.7 + 0.05 * rng.standard_normal(clients)
        pair[:, i, j] += np.array([base.mean(), (base + own).mean()])[:, None, None, None]
        sampling[:, i] += [values.var(ddof=1) / clients / 2 for values in (base, base + own, own)]
    pair[1] += 0.01 * rng.standard_normal((*draws, 1))
    return study(pair, sampling)


def test_twice_the_unseen_clients_lower_the_spread_as_is_said() -> None:
    rng = np.random.default_rng(2)
    few = [decompose(clients_study(25, rng)) for _ in range(150)]
    many = [decompose(clients_study(50, rng)) for _ in range(150)]
    told = np.mean([variance_of(found, TWICE, 1) for found in few])
    true = np.mean([variance_of(found, "every seed", 1) for found in many])
    assert true == pytest.approx(0.1**2 / 50 + 0.03**2 + 0.01**2, rel=0.1)
    assert told == pytest.approx(true, rel=0.1)
    assert np.mean([found.included[0].difference.value for found in few]) == pytest.approx(0.1**2 / 25, rel=0.05)


def test_twice_the_unseen_clients_never_lower_more_than_the_levels_they_are_in_bring() -> None:
    y = scores((0.02, 0.01, 0.0, 0.02), np.random.default_rng(4))
    found = decompose(study(y, np.full((3, 8), 1.0)))  # far more than all the spread
    both = found.difference.of_one().value - found.difference.of_one(2).value
    assert both > 0
    assert variance_of(found, TWICE, 1) == pytest.approx(found.difference.of_one().value - both / 2)
    one = next(way.one_seed for way in found.ways if way.name == TWICE)
    assert one.low <= one.value <= one.high


# -------------------------------------------------------------------------------------------------- what is said


def test_the_text_claims_no_more_than_the_intervals() -> None:
    found = decompose(study(scores((0.0, 0.03, 0.0, 0.02), np.random.default_rng(3))))
    said = words.sentences(found)
    (sure,) = [line for line in said if line.startswith("More than 0")]
    (perhaps,) = [line for line in said if line.startswith("Not significantly above 0")]
    for part in found.parts:
        assert (part.name in sure) == part.difference.is_significant
        assert (f"{part.name} (at most {words.sd(part.difference.high)})" in perhaps) != part.difference.is_significant
    assert "participants" in sure
    assert "partition (at most" in perhaps
    assert not any("hardly known" in line for line in said)
    (pinned,) = [line for line in said if "pinned" in line]
    assert "another question" in pinned


def test_few_partitions_are_warned_of() -> None:
    few = scores((0.03, 0.02, 0.01, 0.02), np.random.default_rng(0))[:, :3]
    assert words.sentences(decompose(study(few)))[-1].startswith("With 3 partitions their component is hardly known")


def test_methods_that_do_the_same_have_nothing_to_explain(tmp_path: Path) -> None:
    same = np.repeat(scores((0.01, 0.0, 0.0, 0.01), np.random.default_rng(0))[:1], 2, axis=0)
    found = decompose(study(same, np.tile([[1e-4], [1e-4], [0.0]], 8)))
    assert words.sentences(found)[-1].startswith("The difference is the same in all runs")
    assert len(components(found).axes) == 2
    assert json.loads(json.dumps(words.as_record(found)))["one_seed"]["difference"]["value"] == 0.0


def test_cells_are_roots_in_points_and_what_is_below_0_is_shown_as_0() -> None:
    found = decompose(alike())
    header, rows = words.parts_table(found)
    assert header[2:] == ["fedavg", "fed|prox", "fed|prox − fedavg"]
    assert rows[0][-1].startswith("0 [0.00, ")
    inner = found.parts[3].difference
    assert rows[3][-1].split()[0] == f"{100 * math.sqrt(inner.value):.2f}"
    assert [row[1] for row in rows[:4]] == ["7", "8", "16", "32"]
    markdown = words.to_markdown(found)
    assert "fed\\|prox − fedavg" in markdown
    assert "| drawn anew | df |" in markdown


# ------------------------------------------------------------------------------------------------------- the figure


def test_bars_are_as_long_as_the_standard_deviations_and_lines_are_the_intervals() -> None:
    found = decompose(study(scores((0.03, 0.02, 0.01, 0.02), np.random.default_rng(0))))
    above, below = components(found).axes
    parts = [*found.parts, *found.included]
    assert [label.get_text() for label in below.get_yticklabels()] == [*LEVELS, "round to round"]
    for axes, which in ((above, (0, 1)), (below, (2,))):
        drawn = [part.of[number] for part in parts for number in which]
        assert [bar.get_width() for bar in axes.patches] == pytest.approx([100 * math.sqrt(one.cut) for one in drawn])
        ends = [[100 * math.sqrt(end) for end in (one.low, one.high)] for one in drawn]
        assert np.array([line.get_xdata() for line in axes.lines]) == pytest.approx(np.array(ends))
    pale = [bar.get_alpha() for bar in below.patches]
    assert pale[-1] < min(pale[:-1])


def test_an_interval_of_hardly_any_freedom_does_not_press_the_bars_flat() -> None:
    few = scores((0.03, 0.02, 0.01, 0.02), np.random.default_rng(0))[:, :2]
    found = decompose(study(few))
    (_, below), longest = components(found).axes, max(100 * math.sqrt(one.cut) for p in found.parts for one in p.of)
    assert below.get_xlim()[1] <= 1.05 * REACH * longest


# ------------------------------------------------------------------------------------------------------ run folders


def level_of(place: tuple[int, ...]) -> float:
    """Return an accuracy that tells each place from all others, in steps of a thousandth, a hundredth, ..."""
    i, j, k, m = place
    return 0.2 + 0.1 * i + 0.04 * j + 0.01 * k + 0.002 * m


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders of a design whose final accuracies are known: the second method is 0.001 (1 + i) better."""
    out = tmp_path_factory.mktemp("design")
    for method, place in product(METHODS, product(*map(range, DRAWS))):
        i, j, k, m = place
        path, config = out / name(method, place), {"partition": {"seed": i}, "population": {"seed": 10 * i + j}}
        config |= {"model": {"seed": 100 * i + 10 * j + k}, "rounds": 4}
        seed = 1000 * i + 100 * j + 10 * k + m
        write_run(path, method, seed, rounds=4, every=1, held=federation(12, 4, seed=10 * i + j), config=config)
        final = level_of(place) + 0.001 * (1 + i) * (method == METHODS[1])
        edit_rows(path, partial(end_at, final))
    return out


def end_at(final: float, rows: list[dict[str, Any]]) -> None:
    """Let the accuracy rise by 0.1 a round to this one."""
    for row in rows:
        row["unseen_accuracy"] = final - 0.1 * (4 - row["round"])


def name(method: str, place: tuple[int, ...]) -> str:
    return f"runs/{method}/{'-'.join(map(str, place))}"


def design() -> DesignRecord:
    places = list(product(*map(range, DRAWS)))
    runs = {method: {"-".join(map(str, place)): name(method, place) for place in places} for method in METHODS}
    return DesignRecord(name="made up", methods=METHODS, draws=DRAWS, seeds=5, runs=runs, config={})


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_every_run_is_read_to_its_place(folder: Path) -> None:
    found = read_results(folder, design())
    assert (found.column, found.rounds, found.unseen) == ("unseen_accuracy", (2, 3, 4), 4.0)
    for place in product(*map(range, DRAWS)):
        assert found.final[(0, *place)] == pytest.approx(level_of(place))
        assert found.final[(2, *place)] == pytest.approx(0.001 * (1 + place[0]))
        assert found.scores[(0, *place)] == pytest.approx(level_of(place) - np.array([0.2, 0.1, 0.0]))
    nested = Nested.of(found.final[0])
    assert nested.component(3).value == pytest.approx(0.002**2 / 2)  # 0 and 0.002: variance of two numbers
    assert Nested.of(found.final[2]).component(0).value == pytest.approx(0.001**2 / 2)  # 1 and 2 thousandths
    assert found.sampling is not None
    inner = [(1, *rest) for rest in product(range(2), repeat=3)]
    one, other = (np.array([_clients(folder, method, place) for place in inner]) for method in METHODS)
    for number, values in enumerate((one, other, other - one)):  # 8 runs of 4 unseen clients
        assert found.sampling[number, 1] == pytest.approx(values.var(axis=1, ddof=1).mean() / 4)


def _clients(folder: Path, method: str, place: tuple[int, ...]) -> list[float]:
    text = (folder / name(method, place) / "clients.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    found: list[float] = [line for line in lines if line["population"] == "unseen"][-1]["accuracy"]
    return found


FAULTS = {
    "has other clients than": {"federation.json": {"hash": "other"}},
    "was drawn by other seeds than": {"run.json": {"seed": 7}},
    "must hold the method 'fed|prox'": {"run.json": {"method": "fedavg"}},
    "is failed, and all runs are needed": {"result.json": {"status": "failed"}},
}


def test_what_is_unpaired_or_unfinished_is_refused(copy: Path) -> None:
    path = copy / name(METHODS[1], (0, 1, 0, 0))
    for said, changes in FAULTS.items():
        for file, values in changes.items():
            before = {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()}
            edit(path / file, **values)
            with pytest.raises(RunFolderError, match=re.escape(said)):
                read_results(copy, design())
            for each, content in before.items():
                (path / each).write_bytes(content)
    for method in METHODS:  # a pair by its batches, which are those of another draw
        edit(copy / name(method, (0, 1, 0, 0)) / "run.json", seed=101)
    with pytest.raises(RunFolderError, match="Two draws of the design have the same seed"):
        read_results(copy, design())


def test_swapped_levels_are_refused(folder: Path) -> None:
    swapped = design()
    runs = {
        method: {key: places["-".join([key[0], key[4], key[2], key[6]])] for key in places}
        for method, places in swapped.runs.items()
    }
    with pytest.raises(RunFolderError, match="than the runs that it is compared with"):
        read_results(folder, DesignRecord(**{**vars(swapped), "runs": runs}))


def test_tables_and_figure_are_written_and_the_same_bytes_each_time(folder: Path, tmp_path: Path) -> None:
    for turn in ("one", "two"):
        written = write_variance(folder, design(), formats=("svg",), out=tmp_path / turn)
        assert [path.name for path in (*written.tables, *written.figures)] == [
            *("variance.md", "variance.json", "variance.svg")
        ]
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path.name
    stored = json.loads((tmp_path / "one" / "report" / "variance.json").read_text())
    assert stored["components"][0]["difference"]["value"] == pytest.approx(0.001**2 / 2)
    assert stored["mean_difference"]["mean"] == pytest.approx(0.0015)
    none = write_variance(folder, design(), formats=None, out=tmp_path / "three")
    assert none.figures == ()


def test_without_unseen_clients_the_test_set_judges_and_the_untrained_model_never_counts(copy: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            del row["unseen_accuracy"]
            if 0 < row["round"] < 4:
                del row["test_accuracy"]

    for method, place in product(METHODS, product(*map(range, DRAWS))):
        edit_rows(copy / name(method, place), change)
    found = read_results(copy, design())
    assert (found.column, found.sampling, found.rounds) == ("test_accuracy", None, (4,))
    said = decompose(found)
    assert (said.included, said.way(TWICE), said.way(MEANS)) == ((), None, None)
    assert len(words.sentences(said)) > 3
    assert len(components(said).axes) == 2
