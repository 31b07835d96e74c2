"""Run folders as FedReach writes them, with made-up but lifelike numbers (of the format that is read).

Shown methods differ by a known amount on unseen clients, so that a table made from them has a known answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.report.files import FORMAT

CLASSES = 10
METHODS = ("fedavg", "power_of_choice", "minimax_gap", "entropy_weighting", "feddyn")


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def federation(clients: int = 50, unseen: int = 15, alpha: float = 0.3, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sizes = np.maximum(12, rng.lognormal(np.log(60), 0.6, clients).astype(int))
    counts = np.stack([rng.multinomial(size, rng.dirichlet([alpha] * CLASSES)) for size in sizes])
    apart = np.sort(rng.choice(clients, unseen, replace=False))
    return {
        "hash": f"{seed:02x}" + "3f9a6c1be8d24705" * 3,
        "dataset": {
            "name": "digits",
            "source": "scikit-learn: load_digits",
            "licence": "CC BY 4.0",
            "sha256": "ab" * 32,
            "notes": "1797 images of 8 x 8 pixels",
        },
        "num_clients": clients,
        "num_classes": CLASSES,
        "label_counts": counts.tolist(),
        "sizes": counts.sum(1).tolist(),
        "participants": np.setdiff1d(np.arange(clients), apart).tolist(),
        "unseen": apart.tolist(),
        "statistics": {"scheme": "dirichlet_by_class", "alpha": alpha, "smallest": int(sizes.min()), "emd": 0.83},
        "noise": None,
    }


def write_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    *,
    rounds: int = 60,
    every: int = 2,
    cohort: int = 10,
    level: float = 0.7,
    gap: float = 0.06,
    weights: str = "examples",
    held: Mapping[str, Any] | None = None,
    test: bool = True,
    measured: bool = False,
    radio: str | None = None,
    status: str | None = "finished",
    error: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write one run; `level` and `gap` are participants' final accuracy and the participation gap, up to noise.

    With `radio` ("best", "equal" or "random", after how the band is shared) the rounds cost seconds and joules.
    """
    held = dict(held or federation())
    rng = np.random.default_rng([seed, *method.encode()])
    shared = np.random.default_rng(seed)  # what all methods of a seed have in common, so that pairing helps
    luck = shared.normal(0, 0.012)
    participants, unseen = np.array(held["participants"]), np.array(held["unseen"], dtype=int)
    sizes = np.array(held["sizes"])
    own = {int(i): float(x) for i, x in enumerate(shared.normal(0, 0.09, len(sizes)) + rng.normal(0, 0.03, len(sizes)))}
    chance = rng.dirichlet(np.full(len(participants), 40.0 if "choice" not in method else 2.0))
    rows, clients, timing, total = [], [], [], 0
    for r in range(rounds + 1):
        row: dict[str, Any] = {"round": r}
        if r:
            ids = np.sort(rng.choice(participants, min(cohort, len(participants)), replace=False, p=chance))
            row["metrics"] = {"loss": (2.0 + 0.1 * (ids % 3)).tolist()}
            if measured:
                row["metrics"] |= {"disagreement": (1.5 + 0.01 * (ids % 7)).tolist(), "wlrc": [0.03] * len(ids)}
            w = np.ones(len(ids)) if weights == "equal" else sizes[ids].astype(float)
            if weights == "sharp":
                w = np.exp(rng.normal(0, 1.2, len(ids)))
            row |= {"cohort": ids.tolist(), "weights": (w / w.sum()).tolist(), "lost": []}
            row["train_loss"] = float(2.0 * np.exp(-r / 15) + 0.4 + rng.normal(0, 0.02))
            probe = 4 * len(participants) if "choice" in method else 0
            down, up = 19_000 * len(ids), 19_000 * len(ids)
            total += down + up + probe
            row |= {"bytes_down": down, "bytes_up": up, "bytes_total": total, "probe_bytes": probe}
            timing.append({"round": r, "train_seconds": 0.006, "evaluate_seconds": 0.002, "decide_seconds": 0.0003})
        else:
            row |= {"cohort": [], "weights": [], "lost": [], "bytes_total": 0}
        if radio is not None:
            row |= _spending(row, radio, "choice" in method, np.random.default_rng([r, seed]), rows[-1] if r else None)
        if r % every == 0 or r == rounds:
            row |= _evaluation(r, clients, rng, own, level + luck, gap, participants, unseen, sizes, test)
        rows.append(row)
    write_json(
        folder / "run.json",
        {
            "format": FORMAT,
            "fedreach": "0.1.0",
            "method": method,
            "seed": seed,
            "config": dict(config or {"rounds": rounds, "cohort": cohort, "selection": {"policy": method}}),
            "environment": {"python": "3.11.9", "torch": "2.8.0+cpu", "numpy": "2.3.1", "device": "cpu", "threads": 2},
            "git": {"commit": "1f2e3d4c5b6a", "dirty": False},
        },
    )
    write_json(folder / "federation.json", held)
    write_lines(folder / "rounds.jsonl", rows)
    write_lines(folder / "clients.jsonl", clients)
    write_lines(folder / "timing.jsonl", timing)
    if status is not None:
        losses = [(row["id_loss"], row["round"]) for row in rows if "id_loss" in row]
        result = {"status": status, "rounds": rounds, "best_round": min(losses)[1], "error": error}
        write_json(folder / "result.json", result)
    return folder


def _spending(
    row: Mapping[str, Any], radio: str, probes: bool, rng: np.random.Generator, last: Mapping[str, Any] | None
) -> dict[str, Any]:
    names = ("seconds", "joules", "probe_seconds", "probe_joules")
    if last is None:
        return dict.fromkeys((*names, "seconds_total", "joules_total"), 0.0)
    k = len(row["cohort"])
    share = rng.dirichlet(np.full(k, 0.3)) + 1e-3 if radio == "random" else np.ones(k)
    share /= share.sum()
    upload = 0.09 * rng.uniform(0.5, 1.5, k) / share
    hertz = rng.uniform(1e9, 3e9, k)
    cycles = 1e8 * rng.uniform(0.5, 2.0, k)
    if radio == "best":  # all end at once, as slowly as the slowest must
        upload = upload.mean() * rng.uniform(0.8, 1.1, k)
        hertz = cycles / (1.2 * upload.max() - upload)
    compute = cycles / hertz
    joules = 0.2 * upload + 1e-27 * cycles * hertz**2
    probe_seconds, probe_joules = (0.4, 0.3) if probes else (0.0, 0.0)
    spent = (float((upload + compute).max()) + probe_seconds, float(joules.sum()) + probe_joules)
    return dict(zip(names, (*spent, probe_seconds, probe_joules), strict=True)) | {
        "seconds_total": last["seconds_total"] + spent[0],
        "joules_total": last["joules_total"] + spent[1],
        "allocation": {
            "ids": row["cohort"],
            "share": share.tolist(),
            "hertz": hertz.tolist(),
            "upload_seconds": upload.tolist(),
            "compute_seconds": compute.tolist(),
            "joules": joules.tolist(),
        },
    }


def _evaluation(
    r: int,
    clients: list[dict[str, Any]],
    rng: np.random.Generator,
    own: Mapping[int, float],
    level: float,
    gap: float,
    participants: np.ndarray,
    unseen: np.ndarray,
    sizes: np.ndarray,
    test: bool,
) -> dict[str, Any]:
    grown = 1 - np.exp(-r / 12)
    row: dict[str, Any] = {}
    means: dict[str, float] = {}
    for prefix, population, ids, drop in (("id", "participants", participants, 0.0), ("unseen", "unseen", unseen, gap)):
        if not len(ids):
            continue
        middle = 0.1 + (level - drop - 0.1) * grown + rng.normal(0, 0.004)
        accuracy = np.clip(middle + grown * np.array([own[int(i)] for i in ids]), 0, 1)
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
        clients.append(
            {
                "round": r,
                "population": population,
                "ids": ids.tolist(),
                "examples": sizes[ids].tolist(),
                "accuracy": accuracy.tolist(),
                "loss": loss.tolist(),
            }
        )
    row["train_accuracy"] = min(1.0, means["id"] + 0.08 * grown)
    row["out_of_sample_gap"] = row["train_accuracy"] - means["id"]
    row["local_accuracy"] = min(1.0, means["id"] + 0.05)
    if "unseen" in means:
        row["participation_gap"] = means["id"] - means["unseen"]
        row |= {f"participation_gap_{s}": row["participation_gap"] + d for s, d in (("low", -0.04), ("high", 0.04))}
    if test:
        row |= {"test_accuracy": means["id"] - 0.02, "test_loss": 0.7}
    return row


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
    runs: dict[str, dict[str, str]] = {}
    kinds = ("examples", "examples", "equal", "sharp", "equal")
    for j, method in enumerate(methods):
        runs[method] = {}
        for seed in seeds:
            path = f"runs/{method}/seed-{seed}"
            runs[method][str(seed)] = path
            settings = {"gap": 0.085 - 0.015 * j, "level": 0.72 - 0.002 * (j % 5), "weights": kinds[j % 5]} | options
            settings["radio"] = radios[j % len(radios)]
            write_run(out / path, method, seed, **settings)
    comparison = {
        "format": FORMAT,
        "name": name,
        "baseline": baseline or methods[0],
        "target_accuracy": target,
        "methods": list(methods),
        "seeds": list(seeds),
        "runs": runs,
        "config": {
            "rounds": 60,
            "cohort": 10,
            "data": {"name": "digits", "partition": {"scheme": "dirichlet_by_class"}},
        },
    }
    write_json(out / "comparison.json", comparison)
    return out


def write_curve(
    folder: Path,
    method: str,
    seed: int,
    columns: Mapping[str, Sequence[float | None]],
    *,
    held: Mapping[str, Any] | None = None,
    best_round: int | None = None,
) -> Path:
    """Write a finished run with exactly these columns, round 0 first, for tests with known answers."""
    length = len(next(iter(columns.values())))
    write_run(folder, method, seed, rounds=length - 1, every=1, held=held, test=False)
    rows = [{"round": r} | {name: values[r] for name, values in columns.items()} for r in range(length)]
    write_lines(folder / "rounds.jsonl", rows)
    write_json(
        folder / "result.json", {"status": "finished", "rounds": length - 1, "best_round": best_round, "error": None}
    )
    return folder
