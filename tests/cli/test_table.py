"""A table of one's own on the command line: hospitals by name, from a CSV file to the page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.conftest import Command, Refused, exact
from tests.data.hospitals import HOSPITALS, table

from fedreach.data.federated import FederatedData
from fedreach.data.table_source import read_table

COLUMNS = ["--data", "patients.csv", "--client", "hospital", "--label", "readmitted"]
SHORT = ["--set", "rounds=2", "--set", "engine.name=sequential", "--formats", "none"]
TOML = """\
name = "patients"
rounds = 2
seeds = [0]
[engine]
name = "sequential"
[data]
name = "patients.csv"
client = "hospital"
label = "readmitted"
[partition]
name = "natural"
seed = 0
[population]
participants = ["north", "south", "east"]
[model]
name = "mlp"
hidden = [32]
[methods.uniform]
cohort_size = 3
"""


@pytest.fixture
def patients(home: Path) -> Path:
    """Write the made-up hospitals to a file."""
    columns = table()
    with (home / "patients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))  # None is an empty cell
    return home


def federation(out: str, seed: int = 0, method: str = "uniform") -> dict:
    return json.loads((Path(out) / "runs" / method / f"seed-{seed}" / "federation.json").read_text())


def test_hospitals_are_compared_by_name(fedreach: Command, patients: Path) -> None:
    result = fedreach("compare", *COLUMNS, "--participants", "north, south,east", "--seeds", 2, "--out", "o", *SHORT)
    assert result.exit_code == 0, result.output
    assert "country: left out, all participants have the same value" in result.stderr
    one, two = federation("o"), federation("o", 1)
    assert one["hash"] == two["hash"]  # named: seeds draw the model and batches only
    assert one["client_names"] == sorted(HOSPITALS)
    assert [one["client_names"][c] for c in one["participants"]] == ["east", "north", "south"]
    assert one["class_names"] == ["no", "yes"]
    assert {column["name"]: column["kind"] for column in one["preparation"]}["ward"] == "category"


@pytest.mark.slow
def test_without_names_each_seed_draws_two_in_five_and_that_is_said(fedreach: Command, patients: Path) -> None:
    result = fedreach("compare", *COLUMNS, "--seeds", 4, "--out", "o", *SHORT)
    assert result.exit_code == 0, result.output
    assert "2 of 6 clients (40%) participate, drawn by each seed" in result.stderr
    drawn = [federation("o", seed) for seed in range(4)]
    assert {len(record["participants"]) for record in drawn} == {2}
    assert len({tuple(record["participants"]) for record in drawn}) > 1
    data = FederatedData.from_frame(read_table("patients.csv"), client="hospital", label="readmitted")
    assert [data.redrawn(seed).digest() for seed in range(4)] == [record["hash"] for record in drawn]


@pytest.mark.slow
def test_toml_says_the_same_to_the_byte(fedreach: Command, patients: Path) -> None:
    (patients / "patients.toml").write_text(TOML, encoding="utf-8")
    settings = ["model={name='mlp',hidden=[32]}", "method.cohort_size=3", "evaluation.every=5"]
    settings += [f"local.{each}" for each in ("lr=0.1", "weight_decay=0.0", "batch_size=32", "epochs=1")]
    own = [word for setting in settings for word in ("--set", setting)]
    own += ["--participants", "north,south,east", "--seeds", "1", "--out", "shell"]
    for arguments in ([*COLUMNS, *own, *SHORT], ["patients.toml", "--out", "toml", "--formats", "none"]):
        result = fedreach("compare", *arguments)
        assert result.exit_code == 0, result.output
    shell, toml = (Path(out) / "runs" / "uniform" / "seed-0" for out in ("shell", "toml"))
    assert exact(shell) == exact(toml)


@pytest.mark.slow
def test_what_columns_are_is_said_on_the_command_line_or_in_toml(fedreach: Command, patients: Path) -> None:
    said = ["--set", "data.columns.drop=country,ward", "--set", "data.columns.category=age"]
    shell = [*COLUMNS, "--participants", "north,south,east", "--seeds", 1, "--out", "shell", *said, *SHORT]
    result = fedreach("compare", *shell)
    assert "ward: dropped, listed in columns.drop" in result.stderr
    assert "  Columns   1 client, 1 label, " in result.stderr
    columns = 'columns = { drop = ["country", "ward"], category = ["age"] }\n[partition]'
    (patients / "patients.toml").write_text(TOML.replace("[partition]", columns), encoding="utf-8")
    assert fedreach("compare", "patients.toml", "--out", "toml", "--formats", "none").exit_code == 0
    one, other = federation("shell"), federation("toml")
    assert (one["hash"], one["preparation"]) == (other["hash"], other["preparation"])
    kinds = {column["name"]: column["kind"] for column in one["preparation"]}
    assert [kinds[name] for name in ("hospital", "readmitted", "age", "ward")] == [
        "client",
        "label",
        "category",
        "dropped",
    ]


def test_a_run_with_other_columns_is_another_run(fedreach: Command, refused: Refused, patients: Path) -> None:
    (patients / "patients.toml").write_text(TOML, encoding="utf-8")
    call = ["run", "patients.toml", "--method", "uniform", "--out", "o"]
    told = fedreach(*call, "--set", "data.columns.drop=country").stderr
    assert told.count("country: dropped") == 1
    full = fedreach(*call, "--set", "data.columns.drop=country", "--verbose", "--out", "p").stderr
    assert full.count("country     dropped") == full.count("hospital    client") == 1
    assert "data.columns" in refused(3, *call, "--set", "data.columns.drop=ward")
    assert "data.columns" in refused(3, *call)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--client", "hospital"], "--client needs --data"),
        (["--data", "patients.csv", "--client", "hospital"], "--data needs --client (the column"),
        ([*COLUMNS[:3], "hospitl", *COLUMNS[4:]], "unknown column 'hospitl'. Did you mean 'hospital'"),
        ([*COLUMNS, "--participants", "nroth"], "unknown client 'nroth'. Did you mean 'north'"),
        (["tiny.toml", *COLUMNS], "--data cannot be combined with an experiment file"),
        ([*COLUMNS, "--set", "data.columns.drop=agee"], "data.columns.drop: unknown column 'agee'. Did you mean"),
        ([*COLUMNS, "--set", "data.columns.decimal=x"], 'data.columns.decimal: must be "." or ","; got \'x\'.'),
    ],
)
def test_what_does_not_fit_is_refused(refused: Refused, patients: Path, arguments: list[str], message: str) -> None:
    assert message in refused(2, "compare", *arguments)


def test_a_table_that_cannot_be_read_is_refused(refused: Refused, home: Path) -> None:
    assert "patients.csv: file not found." in refused(3, "compare", *COLUMNS)
    assert "Unknown option 'clinet' of data 'p.csv'. Did you mean 'client'" in refused(
        2, "run", "--set", 'data={name="p.csv", clinet="a"}', "--set", 'partition={name="natural"}'
    )


def test_a_name_with_a_comma_stands_in_quotes_and_007_is_a_name(fedreach: Command, home: Path) -> None:
    names = ["St. Mary's, London", "007", "7", "birch"]
    rows = [f'"{names[i % 4]}",{i},{"yes" if i % 3 else "no"}' for i in range(80)]
    (home / "p.csv").write_text("site,age,ill\n" + "\n".join(rows) + "\n", encoding="utf-8")
    common = ("compare", "--data", "p.csv", "--client", "site", "--label", "ill", "--seeds", "1", "--set", "rounds=1")
    for given, who in (('"St. Mary\'s, London",birch', ["St. Mary's, London", "birch"]), ("007", ["007"])):
        out = home / given[:3].strip('"')
        fedreach(*common, "--participants", given, "--out", str(out), "--formats", "none")
        told, *_ = sorted(out.glob("runs/*/seed-0/federation.json"))
        said = json.loads(told.read_text(encoding="utf-8"))
        assert [said["client_names"][i] for i in said["participants"]] == sorted(who)
