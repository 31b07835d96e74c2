"""Predict a number: how many days patients stay, at hospitals that train and at those that never do.

python examples/deeper/15_days_in_hospital.py
"""

import csv
from pathlib import Path

import fedreach as fr

table = Path(__file__).parents[1] / "patients.csv"
data = fr.FederatedData.from_frame(
    table, client="hospital", target="days", participants=["alder", "birch", "cedar", "elm"]
)
comparison = fr.compare(
    data,
    {"squares": {"loss": "mse"}, "huber": {"loss": {"name": "huber", "delta": 2.0}}},
    model="linear",
    rounds=40,
    local={"lr": 0.05},
    metrics=["r2"],
    out="runs/days",
)
print(data, comparison, sep="\n\n")
print(comparison["huber"].clients())  # the mean absolute error of each hospital, in days

with table.open(encoding="utf-8", newline="") as file:
    days = [float(row["days"]) for row in csv.DictReader(file)]
print(comparison["huber"].model().predict(table)[:5].round(1), days[:5])
