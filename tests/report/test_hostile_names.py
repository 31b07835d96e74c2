"""Names drawn to do harm change nothing but text, in every output of comparisons, runs and sweeps."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import fedreach as fr
from fedreach._util.tables import csv_text, visible
from fedreach._util.text_tables import text_table
from fedreach.cli import main
from fedreach.report import latex
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, FederationRecord, RunRecord, SweepRecord, TuningRecord

from ..conftest import TINY  # noqa: TID252 (tests are no package that has a name)
from .hostile import (
    NAMES,
    PIECES,
    Page,
    check_csv,
    check_latex,
    check_terminal,
    csv_name,
    different_names,
    replaced,
    strict_json,
)
from .made_up import baselines_of, compared, edit, edit_rows, federation, listed, rewrite, write_run

METHODS = ("plain-method-1", "plain-method-2")
PLAIN = {
    kind: f"plain-{kind}"
    for kind in (
        *("comparison", "data", "licence", "component", "attack", "option", "column", "category", "error", "remark"),
        *("node", "reason", "class", "north", "measure", "machine"),
    )
}
EVERY = (*METHODS, *PLAIN.values())
LONG = 300  # characters of a name that a table does not show in one piece
SLOWLY = settings(  # an example takes too long to look for a shorter one
    deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck), database=None
)


def write_plain(out: Path) -> Path:
    """Write a comparison of two methods with two seeds, in which every kind of name occurs; one run failed."""
    preparation = (
        {"name": PLAIN["column"], "kind": "category", "missing": 0, "categories": [PLAIN["category"]]},
        {"name": "age", "kind": "number", "missing": 2, "mean": 40.0, "sd": 9.0, "odd": PLAIN["remark"]},
    )
    plain = federation(clients=8, unseen=3)
    held = replace(
        plain,
        dataset={**plain.dataset, "name": PLAIN["data"], "source": PLAIN["licence"], "licence": PLAIN["licence"]},
        client_names=[PLAIN["north"], *(f"ward {number}" for number in range(7))],
        class_names=[PLAIN["class"], *map(str, range(9))],
        preparation=preparation,
    )
    leaks = [{"column": PLAIN["column"], "measure": "AUROC", "value": 0.999}]
    baselines = baselines_of(held, 0.9, None, leaks=leaks)
    config = {
        "rounds": 4,
        "model": {"name": PLAIN["component"]},
        "attack": {"name": PLAIN["attack"], PLAIN["option"]: PLAIN["option"]},
        "method": {"selection": {"name": PLAIN["component"]}, "cohort_size": 2},
    }
    for number, seed in itertools.product(range(2), range(2)):
        path, method = out / f"runs/{number}/seed-{seed}", METHODS[number]
        more = {"method": {**config["method"], "weighting": {"name": f"{PLAIN['component']}{number}"}}}
        write_run(path, method, seed, rounds=4, cohort_size=2, held=held, config=config | more, baselines=baselines)
        edit(path / RunRecord.FILE, environment={"machine": PLAIN["machine"]})

        def change(rows: list[dict[str, object]]) -> None:
            rows[2] |= {"refused": {PLAIN["node"]: PLAIN["reason"]}, "remark": PLAIN["remark"]}
            rows[2]["metrics"] = {**rows[2]["metrics"], PLAIN["measure"]: [0.5, 0.5]}  # type: ignore[dict-item]
            for row in rows:
                if "unseen_accuracy" in row:
                    row |= {"unseen_auroc": 0.5, "participant_auroc": 0.6}

        edit_rows(path, change)
    places = {
        method: {str(seed): f"runs/{number}/seed-{seed}" for seed in range(2)} for number, method in enumerate(METHODS)
    }
    compared(out, places, name=PLAIN["comparison"], target=0.5, config={**config, "tune": {PLAIN["option"]: [1, 2]}})
    tuned = [{PLAIN["option"]: PLAIN["option"]}, {PLAIN["option"]: 2}]
    scores = {method: {"0": [0.5, 0.6], "1": [0.7, 0.6]} for method in METHODS}
    chosen = {method: {"0": 1, "1": 0} for method in METHODS}
    RunFolder(out).write(
        TuningRecord(
            settings=tuned, rounds=2, validation=0.2, score="accuracy", scores=scores, chosen=chosen,
            runs=dict.fromkeys(METHODS, 4),
        )
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plain(tmp_path_factory.mktemp("plain") / "comparison")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    numbers = itertools.count()
    return lambda: tmp_path / str(next(numbers))


def rename(folder: Path, out: Path, names: Mapping[str, str]) -> Path:
    """Copy a comparison and give it other names, as if it had been written with them."""
    shutil.copytree(folder, out)
    for path in sorted(out.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        stored = {key: value for key, value in content.items() if key not in ("format", "sha256")}
        if path.name != "result.json":
            rewrite(path, replaced(stored, names))
    for run in out.rglob("run.json"):
        edit_rows(run.parent, lambda rows: rows.__setitem__(slice(None), replaced(rows, names)))
        clients = run.with_name("clients.jsonl")
        lines = [replaced(json.loads(line), names) for line in clients.read_text(encoding="utf-8").splitlines()]
        clients.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        listed(run.parent)
    failed = next(out.rglob("seed-1"))
    edit(failed / "result.json", status="failed", error=names[PLAIN["error"]])
    return out


def report(folder: Path, *more: str) -> tuple[dict[str, object], str]:
    """Write a report by the command; return its JSON document, and what it prints with all columns."""
    done = CliRunner().invoke(main, ["report", str(folder), "--formats", "none", "--json", *more])
    assert done.exit_code == 0, (done.output, done.exception)
    printed = CliRunner().invoke(main, ["report", str(folder), "--formats", "none", "--verbose", *more])
    assert printed.exit_code == 0, (printed.output, printed.exception)
    check_terminal(done.stderr + printed.output)
    return strict_json(done.stdout), printed.output


@pytest.fixture(scope="module")
def shape(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, set[str]]:
    """The elements of pages, and the commands of LaTeX, with harmless names, short and long."""
    pages, commands = [], set[str]()
    for length in (1, 80):
        names = {name: f"{name}.{'very long ' * length}" for name in EVERY}
        out = rename(plain, tmp_path_factory.mktemp("names") / "comparison", names)
        report(out, "--style", "paper")
        pages.append(Page((out / "report/index.html").read_text(encoding="utf-8")))
        commands |= check_latex((out / "report/table.tex").read_text(encoding="utf-8"))
        commands |= check_latex((out / "report/paper/figures.tex").read_text(encoding="utf-8"))
    pages[0].elements |= pages[1].elements
    pages[0].links |= pages[1].links
    escapes = "".join(latex._ESCAPED.values())
    return pages[0], commands | set(re.findall(r"\\(?:[a-zA-Z]+|[^a-zA-Z])", escapes)) | {"\\allowbreak"}


@pytest.mark.slow
@settings(SLOWLY, max_examples=60)
@given(different_names(len(EVERY)))
@example(["=1+1\u202e", "\t@x\x1b[2J", *PIECES[: len(EVERY) - 2]])
def test_reports_of_comparisons_have_no_name_that_is_more_than_text(
    plain: Path, fresh: Callable[[], Path], shape: tuple[Page, set[str]], drawn: list[str]
) -> None:
    names = dict(zip(EVERY, drawn, strict=True))
    out = rename(plain, fresh(), names)
    document, printed = report(out)
    harmless, commands = shape
    read = {path.name: path.read_text(encoding="utf-8") for path in (out / "report").iterdir() if path.is_file()}

    page = Page(read["index.html"])
    assert page.elements <= harmless.elements, page.elements - harmless.elements
    assert page.links <= harmless.links, page.links - harmless.links
    assert page.scripts == 1
    text = " ".join(page.text.split())
    for kind in ("comparison", "component", "attack", "column", "reason", "error", "licence"):
        assert " ".join(visible(names[PLAIN[kind]].replace("\n", " ")).split()) in text, kind

    check_latex(read["table.tex"], commands)
    methods = [names[method] for method in METHODS]
    cells = check_csv(read["table.csv"])
    place = cells[0].index("method")
    assert [row[place] for row in cells[1:3]] == list(map(csv_name, methods))
    tables = [table for table in read["table.md"].split("\n\n") if table.startswith("| ")]
    assert len(tables) == 5
    assert all(len({line.count(" | ") for line in table.split("\n")}) == 1 for table in tables)
    for told in (document, strict_json(read["table.json"])):
        assert [method["method"] for method in told["methods"]] == methods  # type: ignore[attr-defined]
        assert all(contrast["second"] == methods[0] for contrast in told["contrasts"])  # type: ignore[attr-defined]
    for name in methods:
        assert "".join(visible(name).split()) in "".join(printed.split()) or len(name) > LONG
    shutil.rmtree(out)


@pytest.mark.slow
@settings(SLOWLY, max_examples=12)
@given(different_names(len(EVERY)))
def test_figures_and_paper_files_have_no_name_that_is_more_than_text(
    plain: Path, fresh: Callable[[], Path], shape: tuple[Page, set[str]], drawn: list[str]
) -> None:
    names = dict(zip(EVERY, drawn, strict=True))
    out = rename(plain, fresh(), names)
    done = CliRunner().invoke(main, ["report", str(out), "--style", "paper", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    page = Page((out / "report/index.html").read_text(encoding="utf-8"))
    assert page.scripts == 1
    assert not [element for element in page.elements if any(key.startswith("on") for key in element)]
    harmless = re.compile(r"[\w#:;,.()%' +/-]*|data:image/png;base64,[\w+/=\s]*")
    strange = [link for link in page.links - shape[0].links if not harmless.fullmatch(link)]
    assert strange == []
    for path in (out / "report/paper").glob("*.tex"):
        check_latex(path.read_text(encoding="utf-8"), shape[1] if path.name == "figures.tex" else None)
    bibliography = (out / "report/paper/references.bib").read_text(encoding="utf-8")
    heads = [line for line in bibliography.split("\n") if line.startswith("@")]
    assert all(re.fullmatch(r"@\w+\{[\w:-]+,", head) for head in heads)
    assert bibliography.count("@") == len(heads)
    html = fr.open(out)._repr_html_()
    assert Page(html).scripts == 0
    shutil.rmtree(out)


@pytest.mark.slow
@settings(SLOWLY, max_examples=25)
@given(different_names(6))
def test_reports_of_sweeps_have_no_name_that_is_more_than_text(
    plain: Path, fresh: Callable[[], Path], drawn: list[str]
) -> None:
    out, names = fresh(), dict(zip((*METHODS, PLAIN["comparison"]), drawn, strict=False))
    cells = ["cells/1", "cells/2"]
    for cell in cells:
        rename(plain, out / cell, {name: name for name in EVERY} | names)
    key, *values = drawn[3:]
    setting = [{key: value} for value in values]
    RunFolder(out).write(
        SweepRecord(name=names[PLAIN["comparison"]], keys=[key], settings=setting, cells=cells, config={})
    )
    document, _ = report(out)
    assert [cell["setting"] for cell in document["cells"]] == setting  # type: ignore[attr-defined, index]
    read = {path.name: path.read_text(encoding="utf-8") for path in (out / "report").iterdir() if path.is_file()}
    page = Page(read["index.html"])
    assert page.scripts == 0
    assert not [element for element in page.elements if any(k.startswith("on") for k in element)]
    check_latex(read["table.tex"])
    strict_json(read["table.json"])
    header, *rows = check_csv(read["table.csv"])
    assert header[0] == csv_name(key)
    assert {row[header.index("method")] for row in rows} >= set(map(csv_name, drawn[:2]))
    shutil.rmtree(out)


@settings(deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=6), st.integers(1, 4), st.sampled_from([40, 80, 120, None]))
@example(["x" * 10_000] * 6, 4, 80)
def test_tables_for_terminals_align_whatever_their_names(names: list[str], columns: int, width: int | None) -> None:
    from rich.cells import cell_len

    rows = [[name, *["12.5 ± 0.1"] * columns] for name in names]
    text = text_table(["method", *["accuracy, %"] * columns], rows, width, title=names[0], note=names[-1])
    check_terminal(text)
    lines = [line for line in text.split("\n") if line.endswith("12.5 ± 0.1")]
    assert len(lines) == len(names)
    assert len({cell_len(line) for line in lines}) == 1
    assert width is None or cell_len(lines[0]) <= max(width, 8 + 13 * columns)


# ---- Runs whose data have hostile names


def table_of(words: list[str]) -> str:
    """Return a table of 60 patients whose columns, classes, categories and clients have these names."""
    rng = np.random.default_rng(0)
    label, client, ward, age, *others = words
    classes, clients, wards = others[:2], others[2:6], others[6:9]
    rows = []
    for place in range(60):
        ill = int(rng.integers(2))
        row = {label: classes[ill], client: clients[place % 4], ward: wards[int(rng.integers(3))]}
        rows.append([*row.values(), f"{40 + 9 * ill + rng.normal():.3f}"])
    import csv
    import io

    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([label, client, ward, age])
    writer.writerows(rows)
    return out.getvalue()


UNFIT = re.compile("[\0\r\n\ud800-\udfff]")
WORDS = st.lists(NAMES, min_size=13, max_size=13).map(
    lambda names: [f"{UNFIT.sub('', name)} {place}".strip() for place, name in enumerate(names)]
)
"""Names that a CSV file can have, so that most of them are taken."""


def invoke(*arguments: object) -> tuple[int, object]:
    """Run a command with and without --json; return its exit status and its document."""
    words = [str(argument) for argument in arguments]
    runner = CliRunner()
    done = runner.invoke(main, [*words, "--json"])
    assert isinstance(done.exception, SystemExit | None), (words, done.exception)
    check_terminal(done.stderr)
    document = strict_json(done.stdout)
    plainly = runner.invoke(main, words)
    if words[0] == "predict":  # which prints a CSV file
        check_terminal(plainly.stderr)
    else:
        check_terminal(plainly.stdout + plainly.stderr)
    return done.exit_code, document


@pytest.mark.slow
@settings(SLOWLY, max_examples=25)
@given(st.one_of(WORDS, WORDS, WORDS, different_names(13)))
def test_commands_on_tables_with_hostile_names_print_strict_json_and_plain_text(
    fresh: Callable[[], Path], drawn: list[str]
) -> None:
    home = fresh()
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        (home / "t.csv").write_text(table_of(drawn), encoding="utf-8", errors="replace", newline="")
        label, client = drawn[0], drawn[1]
        options = [
            "--data",
            "t.csv",
            "--label",
            label,
            "--client",
            client,
            "--set",
            "rounds=2",
            "--set",
            "evaluation.every=1",
        ]
        options += ["--set", "method.adaptation=label_shift", "--set", "model=linear", "--participants", 3]
        code, document = invoke("run", *options, "--out", "r")
        if code:  # refused in words
            assert set(document) == {"error"}  # type: ignore[call-overload]
            return
        record = RunFolder(home / "r").required(FederationRecord)
        known = {text.strip() for text in drawn}
        assert set(map(str.strip, record.client_names or ())) <= known
        assert set(map(str.strip, record.class_names or ())) <= known
        code, document = invoke("predict", "r", "t.csv")
        if not code:
            rows = document["predictions"]  # type: ignore[index]
            assert {str(row[key]) for row in rows for key in row if key == "prediction"} <= {
                *(record.class_names or ())
            }
            printed = CliRunner().invoke(main, ["predict", "r", "t.csv"]).stdout
            assert len(check_csv(printed)) == 61
        for words in (
            ["report", "r", "--formats", "none"],
            ["export", "r", "--to", "safetensors", "--out", "m", "--force"],
        ):
            assert invoke(*words)[0] == 0, invoke(*words)
        for words in (["predict", "r", "--schema"], ["export", "r", "--to", "adapter", "--force"]):
            invoke(*words)
        overrides = ["--set", f"data={json.dumps({'name': 't.csv', 'label': label, 'client': client})}"]
        for words in (["partition", *overrides], ["disclose", *overrides]):
            invoke(*words)
        Page((home / "r/report/index.html").read_text(encoding="utf-8"))
        clients = [
            {"client": name, "num_examples": 100, "upload_seconds": 1 + place} for place, name in enumerate(drawn)
        ]
        rows = [client | {"power_watts": 0.2, "cycles": 2e8, "max_hertz": 1e9} for client in clients]
        (home / "c.csv").write_text(csv_text(rows), encoding="utf-8", newline="")
        code, document = invoke("allocate", "c.csv", "--min-examples", 300, "--time-limit", 1, "--out", "plan.csv")
        if not code:
            planned = {row["client"].strip() for row in document["clients"]}  # type: ignore[index]
            assert planned <= {csv_name(name).strip() for name in drawn} | {f"'{name}".strip() for name in drawn}
            check_csv((home / "plan.csv").read_text(encoding="utf-8"))
    shutil.rmtree(home)


@pytest.mark.slow
@settings(SLOWLY, max_examples=150)
@given(NAMES)
def test_names_of_methods_components_and_folders_are_taken_or_refused_in_words(
    fresh: Callable[[], Path], name: str
) -> None:
    home = fresh()
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        Path("tiny.toml").write_text(TINY, encoding="utf-8")
        for words in (
            ["run", "tiny.toml", "--set", f"methods={json.dumps({name: {}}).replace(': ', ' = ')}", "--explain"],
            ["run", "tiny.toml", "--set", f"name={json.dumps(name)}", "--explain"],
            ["run", "tiny.toml", "--set", f"method.selection={json.dumps(name + '.py:x')}", "--explain"],
            ["run", "tiny.toml", "--set", f"attack={{name = {json.dumps(name)}, share = 0.1}}", "--explain"],
            ["run", "tiny.toml", "--set", f"data={json.dumps(name)}", "--explain"],
            ["run", "tiny.toml", "--method", name, "--explain"],
            ["verify", name],
            ["list", name],
            ["report", name],
        ):
            if not any("\0" in word or any("\ud800" <= c <= "\udfff" for c in word) for word in words):
                invoke(*words)
    shutil.rmtree(home)


def test_a_comparison_is_renamed_whole(plain: Path, fresh: Callable[[], Path]) -> None:
    """Else the tests above would look for names that are nowhere."""
    out = rename(plain, fresh(), {name: f"other {name[6:]}" for name in EVERY})
    for path in [*out.rglob("*.json"), *out.rglob("*.jsonl")]:
        assert "plain-" not in path.read_text(encoding="utf-8"), path
    assert RunFolder(out).required(ComparisonRecord).methods == ["other method-1", "other method-2"]
