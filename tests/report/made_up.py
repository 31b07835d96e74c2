"""Run folders with made-up but lifelike numbers, written by the recorder that writes real ones.

Shown methods differ by a known amount on unseen clients, so that a table made from them has a known answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedreach.engines.models.flat import Layout
from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.federation.state import FederationState
from fedreach.federation.types import RoundCost, RoundResult
from fedreach.runs.folder import LISTED, RESUMED, RunFolder
from fedreach.runs.recorder import Evaluated, Recorder
from fedreach.runs.schema import (
    CHECKPOINT,
    BaselinesRecord,
    ComparisonRecord,
    FederationRecord,
    Result,
    RoundRow,
    RunRecord,
    Timing,
)
from fedreach.testing.problems import tiny_federation
from fedreach.wireless.problem import Allocation
from fedreach.wireless.radio import Radio

CLASSES = 10
METHODS = ("fedavg", "power_of_choice", "minimax_gap", "entropy_weighting", "feddyn")
STATE = FederationState(0, np.zeros((1, 2), np.float32), np.zeros(1, np.int64), np.zeros(1), {}, {}, ({},), ({},))


def federation(clients: int = 50, unseen: int = 15, alpha: float = 0.3, seed: int = 0) -> FederationRecord:
    rng = np.random.default_rng(seed)
    sizes = np.maximum(12, rng.lognormal(np.log(60), 0.6, clients).astype(int))
    counts = np.stack([rng.multinomial(size, rng.dirichlet([alpha] * CLASSES)) for size in sizes])
    apart = np.sort(rng.choice(clients, unseen, replace=False))
    return FederationRecord(
        hash=f"{seed:02x}" + "3f9a6c1be8d24705" * 3,
        dataset={
            "name": "digits",
            "source": "scikit-learn: load_digits",
            "licence": "CC BY 4.0",
            "sha256": "ab" * 32,
            "notes": "1797 images of 8 x 8 pixels",
            "kind": "image",
            "dtype": "uint8",
            "shape": [1, 8, 8],
            "mean": [0.0],
            "std": [16 / 255],
        },
        partition={"kind": "dirichlet_by_class", "parameters": {"alpha": alpha}},
        num_clients=clients,
        num_classes=CLASSES,
        label_counts=counts,
        sizes=counts.sum(1),
        participants=np.setdiff1d(np.arange(clients), apart),
        unseen=apart,
        participants_without_held_out_data=apart[:0],
        statistics={"scheme": "dirichlet_by_class", "alpha": alpha, "smallest": int(sizes.min()), "emd": 0.83},
        noise=None,
        server_data=None,
    )


def write_run(
    path: Path,
    method: str = "fedavg",
    seed: int = 0,
    *,
    rounds: int = 60,
    every: int = 2,
    cohort_size: int = 10,
    level: float = 0.7,
    gap: float = 0.06,
    weights: str = "examples",
    held: FederationRecord | None = None,
    test: bool = True,
    measured: bool = False,
    radio: str | None = None,
    finished: bool = True,
    config: Mapping[str, Any] | None = None,
    baselines: BaselinesRecord | None = None,
) -> Path:
    """Write one run; `level` and `gap` are participants' final accuracy and the participation gap, up to noise.

    With `radio` ("best", "equal" or "random", after how the band is shared) the rounds cost seconds and joules.
    """
    held = held or federation()
    rng = np.random.default_rng([seed, *method.encode()])
    shared = np.random.default_rng(seed)  # what all methods of a seed have in common, so that pairing helps
    luck = shared.normal(0, 0.012)
    participants, sizes, choice = held.participants, held.sizes, "choice" in method
    own = shared.normal(0, 0.09, len(sizes)) + rng.normal(0, 0.03, len(sizes))
    chance = rng.dirichlet(np.full(len(participants), 2.0 if choice else 40.0))
    model = tiny_federation() if radio is None else replace(tiny_federation(), radio=Radio())
    recorder = Recorder(RunFolder(path), model, Layout.of(nn.Linear(1, 1)))
    environment = {"fedreach": "0.1.0", "python": "3.11.9", "torch": "2.8.0+cpu", "numpy": "2.3.1", "threads": 2}
    recorder.describe(
        RunRecord(
            method=method,
            seed=seed,
            config=config or {"rounds": rounds, "cohort_size": cohort_size, "selection": {"policy": method}},
            code={},
            environment=environment,
            git={"revision": "1f2e3d4c5b6a", "changed": False},
        ),
        held,
    )
    snapshot, row = recorder.begin(STATE)
    timing = Timing(round=0)
    for r in range(rounds + 1):
        if r:
            ids = np.sort(rng.choice(participants, min(cohort_size, len(participants)), replace=False, p=chance))
            w = np.ones(len(ids)) if weights == "equal" else sizes[ids].astype(float)
            if weights == "sharp":
                w = np.exp(rng.normal(0, 1.2, len(ids)))
            metrics = {"loss": tuple((2.0 + 0.1 * (ids % 3)).tolist())}
            if measured:
                metrics |= {"disagreement": tuple((1.5 + 0.01 * (ids % 7)).tolist()), "wlrc": (0.03,) * len(ids)}
            probe = 4 * len(participants) if choice else 0
            report = RoundResult(
                cohort=tuple(ids.tolist()),
                weights=tuple((w / w.sum()).tolist()),
                lost={},
                train_loss=float(2.0 * np.exp(-r / 15) + 0.4 + rng.normal(0, 0.02)),
                bytes_down=19_000 * len(ids),
                bytes_up=19_000 * len(ids) + probe,
                probe_bytes=probe,
                metrics=metrics,
                cost=None if radio is None else _spending(ids, radio, choice, np.random.default_rng([r, seed])),
            )
            snapshot, row = recorder.after(snapshot, replace(STATE, round=r), report)
            timing = Timing(round=r, train_seconds=0.006, evaluate_seconds=0.002)
        due = r % every == 0 or r == rounds
        evaluated = _evaluation(r, rng, own, level + luck, gap, held, test) if due else None
        snapshot, _ = recorder.close(snapshot, row, timing, evaluated)
    snapshot = recorder.save(snapshot)
    if finished:
        recorder.finish(snapshot, lambda: _write_baselines(recorder.folder, baselines))
    return path


def _write_baselines(folder: RunFolder, baselines: BaselinesRecord | None) -> None:
    if baselines is not None:
        folder.write(baselines)


def baselines_of(
    held: FederationRecord, majority: float, pooled: float | None, *, leaks: Sequence[Mapping[str, Any]] = ()
) -> BaselinesRecord:
    """Return baselines of these accuracies, the same of every client of either population."""
    levels = {"majority": majority} | ({} if pooled is None else {"pooled": pooled})
    people = {"participants": held.participants.tolist(), "unseen": held.unseen.tolist()}
    return BaselinesRecord(
        columns={
            name: {f"{population}_accuracy": level for population in ("participant", "unseen", "test")}
            | {"participation_gap": 0.0, "unseen_loss": 1.0, "unseen_accuracy_worst_decile": level}
            for name, level in levels.items()
        },
        clients={
            name: {population: {"ids": ids, "accuracy": [level] * len(ids)} for population, ids in people.items()}
            for name, level in levels.items()
        },
        left_out="it would take too long" if pooled is None else None,
        leaks=leaks,
    )


def _spending(ids: np.ndarray, radio: str, probes: bool, rng: np.random.Generator) -> RoundCost:
    k = len(ids)
    share = rng.dirichlet(np.full(k, 0.3)) + 1e-3 if radio == "random" else np.ones(k)
    share /= share.sum()
    upload = 0.09 * rng.uniform(0.5, 1.5, k) / share
    hertz = rng.uniform(1e9, 3e9, k)
    cycles = 1e8 * rng.uniform(0.5, 2.0, k)
    if radio == "best":  # all end at once, as slowly as the slowest must
        upload = upload.mean() * rng.uniform(0.8, 1.1, k)
        hertz = cycles / (1.2 * upload.max() - upload)
    compute = cycles / hertz
    sending, computing = 0.2 * upload, 1e-27 * cycles * hertz**2
    probe_seconds, probe_joules = (0.4, 0.3) if probes else (0.0, 0.0)
    return RoundCost(
        seconds=float((upload + compute).max()) + probe_seconds,
        joules=float((sending + computing).sum()) + probe_joules,
        probe_seconds=probe_seconds,
        probe_joules=probe_joules,
        allocation=Allocation(ids, share, hertz, upload, compute, sending, computing, cost=0.0),
    )


def _evaluation(
    r: int, rng: np.random.Generator, own: np.ndarray, level: float, gap: float, held: FederationRecord, test: bool
) -> Evaluated:
    grown, sizes = 1 - np.exp(-r / 12), held.sizes
    row: dict[str, Any] = {}
    means: dict[str, float] = {}
    lines = []
    populations = (("participant", "participants", held.participants, 0.0), ("unseen", "unseen", held.unseen, gap))
    for prefix, population, ids, drop in populations:
        if not len(ids):
            continue
        middle = 0.1 + (level - drop - 0.1) * grown + rng.normal(0, 0.004)
        accuracy = np.clip(middle + grown * own[ids], 0, 1)
        accuracy = np.round(accuracy * sizes[ids]) / sizes[ids]
        loss = 2.3 - 2.0 * accuracy + 0.0006 * r
        means[prefix] = float(accuracy.mean())
        error = float(1.96 * accuracy.std() / np.sqrt(len(ids)))
        worst = np.sort(accuracy)[: max(1, len(ids) // 10)]
        row |= {
            f"{prefix}_accuracy": means[prefix],
            f"{prefix}_loss": float(loss.mean()),
            f"{prefix}_accuracy_low": means[prefix] - error,
            f"{prefix}_accuracy_high": means[prefix] + error,
            f"{prefix}_accuracy_worst_decile": float(worst.mean()),
            f"{prefix}_accuracy_pooled": float((accuracy * sizes[ids]).sum() / sizes[ids].sum()),
        }
        row |= {f"{prefix}_accuracy_p{q}": float(np.quantile(accuracy, q / 100)) for q in (10, 50, 90)}
        line = {"ids": ids.tolist(), "examples": sizes[ids].tolist(), "accuracy": accuracy.tolist()}
        lines.append({"round": r, "population": population, **line, "loss": loss.tolist()})
    row["train_accuracy"] = min(1.0, means["participant"] + 0.08 * grown)
    row["out_of_sample_gap"] = row["train_accuracy"] - means["participant"]
    row["local_accuracy"] = min(1.0, means["participant"] + 0.05)
    if "unseen" in means:
        row["participation_gap"] = means["participant"] - means["unseen"]
        row |= {f"participation_gap_{s}": row["participation_gap"] + d for s, d in (("low", -0.04), ("high", 0.04))}
    if test:
        row |= {"test_accuracy": means["participant"] - 0.02, "test_loss": 0.7}
    return row, lines


def write_comparison(
    out: Path,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    *,
    target: float | None = 0.6,
    name: str = "digits, 50 clients",
    baseline: str | None = None,
    radios: Sequence[str | None] = (None,),
    **options: Any,
) -> Path:
    """Write a comparison; method j reaches unseen clients 1.5 points better than method j - 1 (`radios` in turn)."""
    kinds = ("examples", "examples", "equal", "sharp", "equal")
    runs = {method: {str(seed): f"runs/{method}/seed-{seed}" for seed in seeds} for method in methods}
    for j, method in enumerate(methods):
        for seed in seeds:
            settings = {"gap": 0.085 - 0.015 * j, "level": 0.72 - 0.002 * (j % 5), "weights": kinds[j % 5]} | options
            write_run(out / runs[method][str(seed)], method, seed, radio=radios[j % len(radios)], **settings)
    config = {
        "rounds": 60,
        "cohort_size": 10,
        "data": {"name": "digits", "partition": {"scheme": "dirichlet_by_class"}},
    }
    compared(out, runs, name=name, baseline=baseline, target=target, config=config)
    return out


def compared(
    out: Path,
    runs: Mapping[str, Mapping[str, str]],
    *,
    name: str = "small",
    baseline: str | None = None,
    target: float | None = None,
    config: Mapping[str, Any] | None = None,
    plan: AnalysisPlan | None = None,
) -> None:
    """Write what is said of runs together: method -> seed -> folder."""
    record = ComparisonRecord(
        name=name,
        baseline=baseline or next(iter(runs)),
        target_accuracy=target,
        methods=list(runs),
        seeds=sorted({int(seed) for places in runs.values() for seed in places}),
        runs=runs,
        statistics=vars(plan or AnalysisPlan()),
        config=config or {},
    )
    RunFolder(out).write(record)


def write_curve(
    path: Path,
    method: str,
    seed: int,
    columns: Mapping[str, Sequence[float | None]],
    *,
    held: FederationRecord | None = None,
    best_round: int | None = None,
) -> Path:
    """Write a finished run with these columns, round 0 first, for tests with known answers."""
    length = len(next(iter(columns.values())))
    write_run(path, method, seed, rounds=length - 1, every=1, held=held, test=False)
    numbers = [{name: values[r] for name, values in columns.items() if values[r] is not None} for r in range(length)]
    write_rows(path, *(row(r, **numbers[r]) for r in range(length)))
    RunFolder(path).write(Result(status="finished", rounds=length - 1, best_round=best_round, error=None))
    listed(path)
    return path


def row(r: int, **values: Any) -> RoundRow:
    """Return a row with these columns, in which else nobody trained and nothing was sent."""
    nothing: dict[str, Any] = {"cohort": (), "weights": (), "lost": ()}
    nothing |= dict.fromkeys(("bytes_down", "bytes_up", "bytes_total", "probe_bytes"), 0)
    own = {name: value for name, value in values.items() if name in RoundRow.known_keys()}
    return RoundRow(round=r, **nothing | own, evaluated={k: v for k, v in values.items() if k not in own})


def write_rows(path: Path, *rows: RoundRow) -> None:
    """Put these rows in place of those of a run."""
    (path / RoundRow.FILE).unlink()
    folder = RunFolder(path)
    for each in rows:
        folder.append(each)
    listed(path)


def edit(path: Path, **values: Any) -> None:
    """Change keys of a JSON file as its writer might have; None removes one."""
    content = json.loads(path.read_text(encoding="utf-8")) | values
    gone = {key for key, value in values.items() if value is None}
    rewrite(path, {key: value for key, value in content.items() if key not in gone})


def rewrite(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as its writer might have."""
    RunFolder(path.parent).write_json(path.name, content)
    if path.name in LISTED:
        listed(path.parent)


def listed(path: Path) -> None:
    """Have a run list the files that now stand in its folder, as if they had been written so."""
    folder = RunFolder(path)
    stored = folder.read_tensors(CHECKPOINT)
    if stored is not None:
        tensors, record = stored
        folder.write_tensors(CHECKPOINT, tensors, {**record, "files": folder.list_files(RESUMED)})
    if (path / Result.FILE).exists():
        edit(path / Result.FILE, run=folder.run, files=folder.list_files(LISTED))


def edit_rows(path: Path, change: Any) -> list[dict[str, Any]]:
    """Change the rows of a run by hand, as `change` does to the list of them, and return them."""
    rows = [json.loads(line) for line in (path / RoundRow.FILE).read_text(encoding="utf-8").splitlines()]
    change(rows)
    (path / RoundRow.FILE).write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    listed(path)
    return rows


def fail(path: Path, error: str) -> None:
    """Let a run have failed in place of finished."""
    RunFolder(path).write(Result(status="failed", error=error))
