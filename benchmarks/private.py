"""Accuracy with differential privacy of clients, against training without clipping and noise, and against pfl-research.

A second table has clients with different label distributions, and adapts the model to the 250 unseen clients.

    python benchmarks/private.py --seeds 5 --out runs/private             # printed only: about ten minutes on one core
    python benchmarks/private.py --seeds 5 --out runs/private --write     # docs/records/private.md

1,000 of 1,250 clients of Fashion-MNIST participate, with 48 images each. In each round, every participant trains with
probability `COHORT` / 1,000. Scores are accuracies of the last model on the whole test set. If pfl (extra `bench`) is
installed, it trains three of the methods on the same data, with the same initial weights, cohorts and batches. Finished
runs and rows are not run again. Fashion-MNIST is read from FEDREACH_DATA. One process, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import fedreach as fr
import page
from contenders import PFL, present
from fedreach._util.arrays import AnyArray
from fedreach._util.streams import torch_seed
from fedreach.engines.batches import batch_plan
from fedreach.engines.models.networks import build
from fedreach.evaluation.statistics import run_paired_test, spread
from fedreach.federation.adaptation.base import Unadapted
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BBSE
from fedreach.federation.aggregation import Mean
from fedreach.federation.differential_privacy import DPFTRL, DPFedAvg
from fedreach.federation.labels import SecureAggregation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.robust import NormBound
from fedreach.federation.selection import LeastOften
from fedreach.report.numbers import RunData
from fedreach.report.read import read
from seeds import kept
from tables import table

COHORT, ROUNDS, DELTA, CLIP = 100, 100, 1e-5, 0.3
LOCAL = LocalSGD(lr=0.05, batch_size=16)
FTRL = LeastOften(max_participations=ROUNDS * COHORT // 1000, min_gap=1000 // COHORT)
METHODS: Mapping[str, Mapping[str, Any]] = {
    "no privacy": {"aggregation": Mean()},
    "clipping only": {"aggregation": NormBound(bound=CLIP)},
    "dp_fedavg, ε = 8": {"aggregation": DPFedAvg(clip=CLIP, delta=DELTA, epsilon=8.0)},
    "dp_fedavg, ε = 8, secure aggregation": {
        "aggregation": DPFedAvg(clip=CLIP, delta=DELTA, epsilon=8.0),
        "label_statistics": SecureAggregation(),
    },
    "dp_fedavg, ε = 8, adaptive clipping": {
        "aggregation": DPFedAvg(clip=CLIP, delta=DELTA, epsilon=8.0, quantile=0.5, count_noise=10.0)
    },
    "dp_fedavg, ε = 2": {"aggregation": DPFedAvg(clip=CLIP, delta=DELTA, epsilon=2.0)},
    "dp_ftrl, ε = 8": {"aggregation": DPFTRL(clip=CLIP, delta=DELTA, epsilon=8.0), "selection": FTRL},
    "dp_ftrl, ε = 2": {"aggregation": DPFTRL(clip=CLIP, delta=DELTA, epsilon=2.0), "selection": FTRL},
}
OF_PFL: Mapping[str, float | None] = {"no privacy": None, "dp_fedavg, ε = 8": 8.0, "dp_fedavg, ε = 2": 2.0}
"""Methods that pfl trains too, with their epsilon."""

ADAPTED_BY: Mapping[str, Any] = {
    "unadapted": Unadapted(),
    "label_shift": LabelShift(calibration="none", strength=1.0, pseudo_counts=1.0, guard=False),
    "bbse": BBSE(),
}
PRIVACY = ("no privacy", "dp_fedavg, ε = 8", "dp_fedavg, ε = 2")
ALPHA = 0.1


def percent(values: Sequence[float]) -> str:
    over_seeds = spread(values)
    return f"{100 * over_seeds.mean:.1f} ± {100 * (over_seeds.sd or 0):.1f}"


def points(differences: Sequence[float]) -> str:
    """Return the mean of paired differences in points, with its interval if it has one."""
    change = run_paired_test([100 * value for value in differences])
    lacks_interval = change.low is None or change.high is None
    mean = f"{change.estimate:+.1f}"
    return mean if lacks_interval else f"{mean} [{change.low:+.1f}, {change.high:+.1f}]"


def noise_of_run(run: RunData) -> str:
    return run.privacy.partition(" noise ")[2].partition(";")[0] if run.privacy else "none"


def text_of_fedreach(runs: Mapping[str, Sequence[RunData]], scores: Mapping[str, Mapping[int, float]]) -> str:
    """Return the table of FedReach's methods."""
    base = scores["no privacy"]
    lines = [
        [
            name,
            noise_of_run(runs[name][0]),
            percent([*own.values()]),
            "" if own is base else points([value - base[seed] for seed, value in own.items()]),
        ]
        for name, own in scores.items()
    ]
    return (
        f"Test accuracy after {ROUNDS} rounds, % (mean ± sd over {len(base)} seeds), with a linear model on "
        f"Fashion-MNIST. 1,000 participants, {COHORT} per round on average, δ = {DELTA:g}, clipping norm {CLIP}.\n\n"
        + table(["method", "noise", "accuracy", "to no privacy, points [95% CI]"], lines, left=1)
    )


def train(data: Any, methods: Mapping[str, fr.Method], out: Path, seeds: int) -> None:
    """Train what has not been trained."""
    fr.compare(
        data,
        methods,
        method={"selection": "poisson", "weighting": "equal"},
        model="linear",
        local={"lr": LOCAL.lr, "batch_size": LOCAL.batch_size},
        rounds=ROUNDS,
        cohort_size=COHORT,
        evaluation={"every": ROUNDS},
        engine={"threads": 1},
        workers=1,
        seeds=seeds,
        out=out,
    )


def text_of_adaptation(out: Path, seeds: int) -> str:
    """Return the table of adaptation, after running what has not run."""
    data = fr.load("fashion_mnist").partition("dirichlet_by_client", clients=1250, participants=1000, alpha=ALPHA)
    choices = [(privacy, rule) for privacy in PRIVACY for rule in ADAPTED_BY]
    methods = {
        f"m{number}": fr.Method(**METHODS[privacy], adaptation=ADAPTED_BY[rule])
        for number, (privacy, rule) in enumerate(choices)
    }
    train(data, methods, out, seeds)
    found, lines = read([out]), []
    for (privacy, rule), method in zip(choices, methods, strict=True):
        runs = found.counted(method)
        adapted = [run.adaptation.columns["last"] if run.adaptation else {} for run in runs]
        scores = [
            own.get("unseen_adapted_accuracy", float(run.column("unseen_accuracy")[-1]))
            for run, own in zip(runs, adapted, strict=True)
        ]
        harmed = "" if rule == "unadapted" else percent([own["unseen_harmed"] for own in adapted])
        fit = runs[0].privacy.partition("for the rule ")[2].partition(";")[0] or "none"
        lines.append([privacy, rule, noise_of_run(runs[0]).partition(",")[0], fit, percent(scores), harmed])
    head = ["training", "adaptation", "noise", "noise of the fit", "accuracy", "harmed"]
    return (
        f"Accuracy of the 250 unseen clients, mean over clients, % (mean ± sd over {seeds} seeds), as above, but with "
        f"partition `dirichlet_by_client` (α = {ALPHA:g}). ε covers training and fit. `label_shift` has fixed options, "
        "as on the security page. Harmed: share of clients that lose more than 5 points by adaptation, %.\n\n"
        + table(head, lines, left=2)
    )


# -------------------- The same training in pfl-research


def inputs(data: fr.FederatedData, images: AnyArray) -> torch.Tensor:
    """Return images as FedReach passes them to a model."""
    (mean,), (std,) = data.dataset.mean, data.dataset.std  # one channel
    return (torch.from_numpy(np.asarray(images)).float() / 255 - mean) / std


def examples_of(
    data: fr.FederatedData, cohorts: Iterable[Iterable[int]], seed: int
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield the inputs and labels of the clients of each round, in the order of FedReach's batches."""
    x, y = inputs(data, data.dataset.train_x), torch.from_numpy(data.dataset.train_y)
    for number, cohort in enumerate(cohorts, 1):
        plans = {c: batch_plan(seed, number, c, len(data.train[c]), LOCAL).ravel() for c in cohort}
        parts = [torch.from_numpy(data.train[c][plan[plan >= 0]]) for c, plan in plans.items()]
        yield [(x[part], y[part]) for part in parts]


def train_with_pfl(run: RunData, out: Path, data: fr.FederatedData, noise: float | None) -> tuple[nn.Module, float]:
    """Return the model and the processor seconds per round of pfl on the data and cohorts of a run of FedReach."""
    import pfl_private

    if data.digest() != run.partition.hash:
        raise RuntimeError(f"{run.path} was trained on other data than pfl would be; remove {out}")
    rows = [json.loads(line) for line in (out / run.path / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    cohorts = [row["cohort"] for row in rows if row["round"]]
    dataset = data.dataset
    net = build("linear", dataset.sample_shape, dataset.num_classes, seed=torch_seed(run.seed, "model"))
    seconds = pfl_private.train(
        net,
        examples_of(data, cohorts, run.seed),
        num_rounds=len(cohorts),
        cohort_size=COHORT,
        clip=CLIP,
        noise=noise,
        local=LOCAL,
        seed=run.seed,
    )
    return net, seconds


def measure_pfl(run: RunData, out: Path, data: fr.FederatedData, noise: float | None) -> dict[str, float]:
    """Return the accuracy and the processor seconds per round of pfl."""
    net, seconds = train_with_pfl(run, out, data, noise)
    with torch.inference_mode():
        right = net(inputs(data, data.dataset.test_x)).argmax(1) == torch.from_numpy(data.dataset.test_y)
    return {"accuracy": float(right.double().mean()), "seconds": seconds}


def text_of_pfl(
    runs: Mapping[str, Sequence[RunData]], scores: Mapping[str, Mapping[int, float]], out: Path, data: Any
) -> str:
    """Return the table that compares FedReach with pfl; an empty text if pfl is not installed."""
    if not present([PFL]):
        return ""
    from measure import versions
    from pfl_private import noise_of

    torch.set_num_threads(1)
    lines = []
    for name, epsilon in OF_PFL.items():
        noise = None if epsilon is None else noise_of(epsilon, DELTA, COHORT / 1000, ROUNDS)
        by_seed = {run.seed: run for run in runs[name]}

        def measure(method: str, seed: int) -> list[dict[str, float]]:
            federated = fr.FederatedData.from_spec(data, seed=seed)
            return [measure_pfl(by_seed[seed], out, federated, noise)]  # noqa: B023  # called in this iteration

        rows = kept(out / "pfl.jsonl", [{"method": name, "seed": seed} for seed in by_seed], measure)
        own = [scores[name][row["seed"]] for row in rows]
        seconds = [float(np.median(by_seed[row["seed"]].timing["train_seconds"][1:])) for row in rows]
        lines.append(
            [
                name,
                noise_of_run(runs[name][0]),
                "none" if noise is None else f"{noise:.4g} x clip",
                percent(own),
                percent([row["accuracy"] for row in rows]),
                points([value - row["accuracy"] for value, row in zip(own, rows, strict=True)]),
                f"{statistics.median(row['seconds'] / mine for row, mine in zip(rows, seconds, strict=True)):.0f}",
            ]
        )
    head = ["method", "noise, FedReach", "noise, pfl", "accuracy, FedReach", "accuracy, pfl"]
    return (
        f"The same training in pfl {versions('pfl')['pfl']}, with the same clients, initial weights, cohorts and "
        "batches. Each library computes its noise for the same ε and δ with Poisson sampling (PLD). pfl draws cohorts "
        "of a fixed size and divides by the number of replies; for this comparison, it trains FedReach's cohorts and "
        "divides the noisy sum by the expected size. The last column is pfl's processor time of a round, divided by "
        "FedReach's wall-clock time, with one thread each.\n\n"
        + table([*head, "FedReach minus pfl, points [95% CI]", "time of pfl / FedReach"], lines, left=1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/private"))
    parser.add_argument("--write", action="store_true", help="write the record")
    options = parser.parse_args()
    data = fr.load("fashion_mnist").partition("iid", clients=1250, participants=1000)
    methods = {f"m{number}": fr.Method(**parts) for number, parts in enumerate(METHODS.values())}
    train(data, methods, options.out, options.seeds)
    found = read([options.out])
    runs = {name: found.counted(method) for name, method in zip(METHODS, methods, strict=True)}
    scores = {name: {run.seed: float(run.column("test_accuracy")[-1]) for run in own} for name, own in runs.items()}
    sections = {
        "private": text_of_fedreach(runs, scores),
        "private_pfl": text_of_pfl(runs, scores, options.out, data),
        "private_adapted": text_of_adaptation(options.out.with_name(f"{options.out.name}-adapted"), options.seeds),
    }
    for section, text in sections.items():
        print(text, end="\n\n" if text else "")
        if options.write and text:
            page.put(section, text, page.RECORDS / "private.md")


if __name__ == "__main__":
    main()
