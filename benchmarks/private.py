"""Accuracy with differential privacy of clients, against the same training without clipping and without noise.

    python benchmarks/private.py --seeds 5 --out runs/private             # printed only: about ten minutes on one core
    python benchmarks/private.py --seeds 5 --out runs/private --write     # docs/records/private.md

1,000 of 1,250 clients of Fashion-MNIST participate, with 48 images each. In each round, every participant trains with
probability `COHORT` / 1,000. Scores are accuracies of the last model on the whole test set. Folders with finished runs
are not run again. Fashion-MNIST is read from FEDREACH_DATA.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedreach as fr
import page
from fedreach.evaluation.statistics import run_paired_test, spread
from fedreach.federation.aggregation import Mean
from fedreach.federation.differential_privacy import DPFTRL, DPFedAvg
from fedreach.federation.robust import NormBound
from fedreach.federation.selection import LeastOften
from fedreach.report.read import read
from tables import table

COHORT, ROUNDS, DELTA, CLIP = 100, 100, 1e-5, 0.3
FTRL = LeastOften(max_participations=ROUNDS * COHORT // 1000, min_gap=1000 // COHORT)
METHODS: Mapping[str, Mapping[str, Any]] = {
    "no privacy": {"aggregation": Mean()},
    "clipping only": {"aggregation": NormBound(bound=CLIP)},
    "dp_fedavg, ε = 8": {"aggregation": DPFedAvg(clip=CLIP, delta=DELTA, epsilon=8.0)},
    "dp_fedavg, ε = 8, adaptive clipping": {
        "aggregation": DPFedAvg(clip=CLIP, delta=DELTA, epsilon=8.0, quantile=0.5, count_noise=10.0)
    },
    "dp_fedavg, ε = 2": {"aggregation": DPFedAvg(clip=CLIP, delta=DELTA, epsilon=2.0)},
    "dp_ftrl, ε = 8": {"aggregation": DPFTRL(clip=CLIP, delta=DELTA, epsilon=8.0), "selection": FTRL},
    "dp_ftrl, ε = 2": {"aggregation": DPFTRL(clip=CLIP, delta=DELTA, epsilon=2.0), "selection": FTRL},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/private"))
    parser.add_argument("--write", action="store_true", help="write the record")
    options = parser.parse_args()
    data = fr.load("fashion_mnist").partition("iid", clients=1250, participants=1000)
    methods = {f"m{number}": fr.Method(**parts) for number, parts in enumerate(METHODS.values())}
    fr.compare(
        data,
        methods,
        method={"selection": "poisson", "weighting": "equal"},
        model="linear",
        local={"lr": 0.05, "batch_size": 16},
        rounds=ROUNDS,
        cohort_size=COHORT,
        evaluation={"every": ROUNDS},
        workers=1,
        seeds=options.seeds,
        out=options.out,
    )
    runs = read([options.out])
    scores = {
        method: {run.seed: float(run.column("test_accuracy")[-1]) for run in runs.counted(method)} for method in methods
    }
    lines = []
    for name, method in zip(METHODS, methods, strict=True):
        over_seeds, statement = spread([*scores[method].values()]), runs.counted(method)[0].privacy
        change = run_paired_test([100 * (value - scores["m0"][seed]) for seed, value in scores[method].items()])
        lacks_interval = change.low is None or change.high is None
        lines.append(
            [
                name,
                statement.partition(" noise ")[2].partition(";")[0] if statement else "none",
                f"{100 * over_seeds.mean:.1f} ± {100 * (over_seeds.sd or 0):.1f}",
                "" if lacks_interval else f"{change.mean:+.1f} [{change.low:+.1f}, {change.high:+.1f}]",
            ]
        )
    text = (
        f"Test accuracy after {ROUNDS} rounds, % (mean ± sd over {options.seeds} seeds), with a linear model on "
        f"Fashion-MNIST. 1,000 participants, {COHORT} per round on average, δ = {DELTA:g}, clipping norm {CLIP}.\n\n"
        + table(["method", "noise", "accuracy", "to no privacy, points [95% CI]"], lines, left=1)
    )
    print(text)
    if options.write:
        page.put("private", text)


if __name__ == "__main__":
    main()
