"""`fedreach predict` and `export`: what they take, print and write, and what they say of what they do not take."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedreach.cli import main
from fedreach.deploy.deployed import Deployed
from fedreach.deploy.deployed import main as run_alone
from fedreach.deploy.predictions import MIN_PROBABILITY, Rows, predictions

ROOT = Path(__file__).parents[2]
STUDY = """
rounds = 3
seeds = [0]
data = { name = "patients.csv", client = "hospital", label = "readmitted" }
partition = { name = "natural" }
model = "linear"

[method]
cohort_size = 2

[methods.plain]

[methods.adapted]
adaptation = "label_shift"

[methods.truth]
adaptation = "oracle_prior"

[methods.few]
adaptation = { name = "few_labels", labels = 5 }
"""

NUMBERS: dict[str, Any] = {
    **{"name": "numbers", "method": "plain", "seed": 0, "model": "last", "cluster": None, "round": 1, "rule": None},
    **{"outputs": 1, "targets": 1, "classes": None, "client_column": None, "label_columns": ["label"]},
    **{"kind": "features", "dtype": "float32", "shape": [1], "reads_inputs": False, "mixes": False},
}
"""The description of an exported model that predicts one number from one number."""

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and a finished comparison, ``out``."""
    folder = tmp_path_factory.mktemp("predict")
    (folder / "patients.csv").write_bytes((ROOT / "examples" / "patients.csv").read_bytes())
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(
            main, ["compare", "study.toml", "--formats", "none", "--workers", "1", "--out", "out"]
        )
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls ``fedreach predict out ...`` there, with the method that is adapted."""
    monkeypatch.chdir(folder)

    def called(*arguments: object, method: str = "adapted", command: str = "predict") -> Result:
        return CliRunner().invoke(main, [command, "out", *map(str, arguments), "--method", method])

    return called


def write(path: Path, change: Callable[[list[str], list[list[str]]], None]) -> Path:
    """Write the table, changed: its names and its rows."""
    names, *rows = csv.reader((ROOT / "examples" / "patients.csv").read_text(encoding="utf-8").splitlines())
    change(names, rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_predictions_are_printed_and_what_is_told_goes_elsewhere(call: Call) -> None:
    done = call("patients.csv")
    assert done.exit_code == 0, done.output
    rows = rows_of(done.stdout)
    assert list(rows[0]) == ["hospital", "prediction", "decision", "p_no", "p_yes"]
    assert len(rows) == 200
    assert all(float(row["p_no"]) + float(row["p_yes"]) == pytest.approx(1) for row in rows)
    assert "adapted to each client from its own rows (LabelShift)" in done.stderr
    assert "unadapted_accuracy" in done.stderr
    plain = call("patients.csv", "--unadapted")
    assert list(rows_of(plain.stdout)[0]) == ["hospital", "prediction", "p_no", "p_yes"]
    assert plain.stdout == call("patients.csv", method="plain").stdout


def test_a_packed_table_is_predicted_as_the_table_is(call: Call, folder: Path) -> None:
    (folder / "patients.csv.gz").write_bytes(gzip.compress((folder / "patients.csv").read_bytes()))
    assert call("patients.csv.gz").stdout == call("patients.csv").stdout


def test_json_is_one_document_with_the_same_numbers(call: Call, tmp_path: Path) -> None:
    told: dict[str, Any] = json.loads(call("patients.csv", "--json").stdout)
    assert [{key: str(value) for key, value in row.items()} for row in told["predictions"]] == rows_of(
        call("patients.csv").stdout
    )
    assert {client["decision"] for client in told["clients"]} <= {"adapted", "abstained"}
    assert sum(client["rows"] for client in told["clients"]) == told["rows"] == 200
    out = tmp_path / "p.csv"
    told = json.loads(call("patients.csv", "--json", "--out", out).stdout)
    assert (told["out"], "predictions" in told) == (str(out), False)
    assert out.read_text(encoding="utf-8") == call("patients.csv").stdout


def test_what_the_model_does_not_know_is_told(call: Call, tmp_path: Path) -> None:
    def change(names: list[str], rows: list[list[str]]) -> None:
        rows[0][names.index("smoker")] = "now and then"
        rows[1][names.index("age")] = rows[2][names.index("age")] = ""
        rows[3][names.index("readmitted")] = "perhaps"
        rows[4][names.index("readmitted")] = ""

    done = call(write(tmp_path / "new.csv", change), "--json")
    notes = json.loads(done.stdout)["notes"]
    assert "smoker: no participant had 'now and then' (1 row), which counts as no category" in notes
    assert any(note.startswith("age: missing in 2 rows, but in no row of participants") for note in notes)
    assert "readmitted: 'perhaps' is not in the model's classes, so these rows are not scored" in notes


def test_values_far_from_what_participants_had_and_unknown_columns_are_told(call: Call, tmp_path: Path) -> None:
    def strange(names: list[str], rows: list[list[str]]) -> None:
        names.append("insurer")
        age = names.index("age")
        for row in rows:
            row.append("A")
        rows[7][age] = "4000"

    def months(names: list[str], rows: list[list[str]]) -> None:
        for row in rows:
            row[names.index("age")] = str(12 * float(row[names.index("age")]))

    notes = json.loads(call(write(tmp_path / "a.csv", strange), "--json").stdout)["notes"]
    assert "column 'insurer' is not in the training data and not used" in notes
    assert any(
        note.startswith("age: far from the participants' values in 1 row, such as 4000 in row 7") for note in notes
    )
    assert len(notes) == 2
    (note,) = json.loads(call(write(tmp_path / "b.csv", months), "--json").stdout)["notes"]
    assert note.startswith("age: half of the values are far from the participants' values, ")
    assert json.loads(call("patients.csv", "--json").stdout)["notes"] == []


def test_the_schema_is_printed_without_a_file(call: Call) -> None:
    done = call("--schema")
    assert done.exit_code == 0, done.output
    names, *_ = csv.reader((ROOT / "examples" / "patients.csv").read_text(encoding="utf-8").splitlines())
    assert {line.split()[0] for line in done.stdout.splitlines()} == set(names)
    assert "hospital" in done.stdout.splitlines()[0]
    columns = json.loads(call("--schema", "--json").stdout)
    assert {each["name"] for each in columns["columns"] + columns["other_columns"]} == set(names)
    done = call()
    assert (done.exit_code, "--schema prints the required columns" in done.stderr) == (2, True)


def test_words_stay_words_where_all_cells_are_numbers(call: Call, tmp_path: Path) -> None:
    def change(names: list[str], rows: list[list[str]]) -> None:
        for row in rows:
            row[names.index("smoker")], row[names.index("hospital")] = "1", "007"

    done = call(write(tmp_path / "new.csv", change))
    assert done.exit_code == 0, done.output
    assert {row["hospital"] for row in rows_of(done.stdout)} == {"007"}
    assert "no participant had '1' (200 rows)" in done.stderr


def test_without_clients_and_labels_all_rows_are_one_clients(call: Call, tmp_path: Path) -> None:
    def change(names: list[str], rows: list[list[str]]) -> None:
        for row in (names, *rows):
            del row[5], row[0]

    done = call(write(tmp_path / "new.csv", change))
    assert list(rows_of(done.stdout)[0]) == ["prediction", "decision", "p_no", "p_yes"]
    assert "No column identifies clients" in done.stderr
    assert "accuracy" not in done.stderr
    named = call("patients.csv", "--client", "smoker", "--label", "readmitted")
    assert {row["smoker"] for row in rows_of(named.stdout)} == {"no", "yes"}


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (3, ["absent.csv"], "absent.csv: file not found"),
        (3, ["study.toml"], "rows must be a .csv, a .parquet or an .npz file; got '.toml'"),
        (2, ["patients.csv", "--client", "hospitel"], "unknown column 'hospitel'. Did you mean 'hospital'?"),
        (2, ["patients.csv", "--label", "readmited"], "unknown column 'readmited'. Did you mean 'readmitted'?"),
        (2, ["patients.csv", "--out", "patients.csv"], "must differ from the file of rows"),
        (2, ["patients.csv", "--out", "p.parquet"], "--out must end with .csv"),
        (2, ["patients.csv", "--seed", "3"], "has no seed '3'"),
        (2, ["patients.csv", "--cluster", "1"], "has one model for all clients"),
    ],
)
def test_a_wrong_call_says_what_to_do(call: Call, code: int, arguments: list[str], said: str) -> None:
    done = call(*arguments)
    assert (done.exit_code, said in " ".join(done.stderr.split())) == (code, True), done.output


def test_a_column_that_is_not_there_is_told_with_the_nearest_name(call: Call, tmp_path: Path) -> None:
    def change(names: list[str], rows: list[list[str]]) -> None:
        names[names.index("medicines")] = "medicine"

    done = call(write(tmp_path / "new.csv", change))
    assert done.exit_code == 2
    assert "missing column 'medicines'. Did you mean 'medicine'?" in " ".join(done.stderr.split())


@pytest.mark.parametrize("method", ["truth", "few"])
def test_a_rule_that_none_can_deploy_is_refused_unless_the_plain_model_is_asked_for(call: Call, method: str) -> None:
    done = call("patients.csv", method=method)
    assert done.exit_code == 2
    assert "cannot be deployed" in done.stderr
    assert "--unadapted" in done.stderr
    assert call("patients.csv", "--unadapted", method=method).stdout == call("patients.csv", method="plain").stdout


def test_one_of_several_runs_must_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, ["predict", "out", "patients.csv"])
    assert done.exit_code == 2
    assert "Name one of its runs with --method: plain, adapted, truth, few" in done.stderr
    done = CliRunner().invoke(main, ["predict", "out/runs/adapted/seed-0", "patients.csv", "--method", "adapted"])
    assert done.exit_code == 2
    assert "--method and --seed require a comparison" in done.stderr


def test_weights_predict_what_the_run_does(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "weights"
    told = json.loads(call("--to", "safetensors", "--out", out, "--json", "--force", command="export").stdout)
    assert told["files"] == ["model.safetensors"]
    assert told["rule"].startswith("LabelShift(")
    done = CliRunner().invoke(main, ["predict", str(out), "patients.csv"])
    assert done.stdout == call("patients.csv").stdout
    again = call("--to", "safetensors", "--out", out, "--force", command="export")
    assert again.exit_code == 2
    assert "already exists. Remove it, or choose another folder with --out" in " ".join(again.stderr.split())


def test_a_client_column_called_as_another_one_of_the_predictions_is_not_lost(call: Call, tmp_path: Path) -> None:
    def change(names: list[str], rows: list[list[str]]) -> None:
        names[names.index("hospital")] = "prediction"

    rows = rows_of(call(write(tmp_path / "rows.csv", change), "--client", "prediction").stdout)
    assert list(rows[0]) == ["client", "prediction", "decision", "p_no", "p_yes"]
    assert rows[0]["client"] == "elm"


def test_names_of_clients_move_no_terminals_cursor(call: Call, tmp_path: Path) -> None:
    def change(names: list[str], rows: list[list[str]]) -> None:
        for row in rows:
            row[names.index("hospital")] = "\x1b[2Jelm"

    rows = write(tmp_path / "rows.csv", change)
    told = call(rows, "--out", tmp_path / "p.csv", "--json")
    assert json.loads(told.stdout)["clients"][0]["name"] == "\x1b[2Jelm"  # for machines, as it is
    assert "\\x1b[2Jelm  200" in call(rows, "--out", tmp_path / "p.csv").stdout


def test_the_program_refuses_a_prediction_that_is_not_finite_and_its_json_is_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("a,label\n1e30,1\n", encoding="utf-8")
    diverged = Deployed(NUMBERS, lambda graph, x: [np.full((len(x), 1), np.inf, np.float32)], None, None, 10)
    assert run_alone(diverged, [str(tmp_path / "rows.csv"), "--json"]) == 3
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert run_alone(diverged, ["--schema"]) == 0
    assert (
        capsys.readouterr().out
        == "features of shape (1,), float32, as array x of an .npz file, or one column per value\n"
    )
    assert told == {"error": "The prediction for row 0 is not finite. Correct the row, or remove it."}


@pytest.mark.parametrize("mixes", [False, True])
def test_an_exported_model_predicts_each_row_once_in_batches_that_are_not_too_large(mixes: bool) -> None:
    sizes: list[int] = []

    def graph(name: str, x: np.ndarray) -> list[np.ndarray]:
        sizes.append(len(x))
        return [2 * x]

    model = Deployed(NUMBERS | {"mixes": mixes}, graph, None, None, batch=4)
    for count in (0, 1, 4, 5, 9):
        sizes.clear()
        rows = np.arange(count, dtype=np.float32)[:, None]
        assert model.logits(rows).tolist() == (2 * rows).tolist()
        assert max(sizes) <= 4
        assert not mixes or max(sizes) - min(sizes) <= 1  # no batch is so small that its statistics are noise


def test_the_log_loss_is_that_of_the_rows_with_a_label_in_nats() -> None:
    p = np.array([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1], [1e-20, 1.0]])
    rows = Rows(np.arange(4)[:, None], ("a", "b", "a", "b"), np.array([0, 1, -1, 0]), ())
    about = NUMBERS | {"targets": None, "classes": ("no", "yes"), "outputs": 2}
    model: Any = SimpleNamespace(
        logits=lambda x: np.log(p[x[:, 0]]), answers=lambda x: (np.log(p[x[:, 0]]), None, None)
    )

    class Swapping:
        decision_ = "adapted"

        def fit(self, *answers: Any) -> Swapping:
            return self

        def predict_proba(self, logits: np.ndarray, *more: Any) -> np.ndarray:
            return np.exp(logits[:, ::-1])

    plain = predictions(model, rows, about)
    of_a, of_b = -np.log(0.8), -np.log([0.6, MIN_PROBABILITY]).mean()
    assert plain.scores["log_loss"] == pytest.approx((of_a + 2 * of_b) / 3)
    assert [client.scores["log_loss"] for client in plain.clients] == pytest.approx([of_a, of_b])
    adapted = predictions(model, rows, about, Swapping)  # type: ignore[arg-type]
    assert adapted.scores["unadapted_log_loss"] == pytest.approx(plain.scores["log_loss"])
    assert adapted.scores["log_loss"] == pytest.approx(-np.log([0.2, 0.4, 1.0]).mean())
    assert MIN_PROBABILITY == 1e-12
