"""Run folders -> values: what happened in each round, to whom, and how each run ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.errors import RunFolderError
from fedreach.report.analysis.airtime import airtime
from fedreach.report.analysis.theory import terms
from fedreach.report.files import field, no_collection, read_lines, read_object
from fedreach.report.rows import columns, last_scores, replies
from fedreach.report.values import Comparison, Partition, Run


def read(folders: Sequence[Path]) -> Comparison:
    """Read comparisons and single runs into one comparison.

    Args:
        folders: Folders with a ``comparison.json`` or a ``run.json``. Methods keep the order in which they
            are met; the first folder's baseline (for a run: its method) is the baseline.

    Raises:
        RunFolderError: If a folder is not a run folder, a file is missing, damaged or of another format, or
            the same method and seed come twice.
    """
    if not folders:
        raise RunFolderError("a report needs at least one folder; got none. Name the folder given as `--out`.")
    parts = [_read_folder(Path(folder)) for folder in folders]
    runs = tuple(run for part in parts for run in part.runs)
    met: dict[tuple[str, int], Path] = {}
    for folder, part in zip(folders, parts, strict=True):
        for run in part.runs:
            key = (run.method, run.seed)
            if key in met:
                raise RunFolderError(
                    f"method {run.method!r} with seed {run.seed} is in {met[key]} and again in {folder}. "
                    "Report them apart, or leave one out."
                )
            met[key] = folder
    absent = tuple(key for part in parts for key in part.absent if key not in met)
    targets = [part.target_accuracy for part in parts if part.target_accuracy is not None]
    return Comparison(
        name=parts[0].name,
        baseline=parts[0].baseline,
        target_accuracy=targets[0] if targets else None,
        methods=_unique(method for part in parts for method in part.methods),
        seeds=tuple(sorted({seed for part in parts for seed in part.seeds})),
        runs=runs,
        absent=absent,
        config=parts[0].config,
    )


def _read_folder(folder: Path) -> Comparison:
    if (folder / "comparison.json").exists():
        return _read_comparison(folder)
    if (folder / "run.json").exists():
        run = read_run(folder)
        return Comparison(folder.name, run.method, None, (run.method,), (run.seed,), (run,), (), run.config)
    raise RunFolderError(
        f"{folder} is not a run folder: it holds neither comparison.json nor run.json. "
        "Name the folder that `fedreach run` or `fedreach compare` wrote with `--out`."
    )


def _read_comparison(folder: Path) -> Comparison:
    path = folder / "comparison.json"
    stored = read_object(path, versioned=True)
    methods = tuple(field(stored, "methods", list, path))
    baseline = field(stored, "baseline", str, path)
    if baseline not in methods:
        raise RunFolderError(f"{path}: 'baseline' must be one of 'methods' {list(methods)}; got {baseline!r}.")
    runs, absent = [], []
    for method, places in field(stored, "runs", dict, path).items():
        for seed, place in places.items():
            if (folder / place).exists():
                runs.append(read_run(folder / place, str(place)))
            else:
                absent.append((method, int(seed)))
    order = {method: position for position, method in enumerate(methods)}
    runs.sort(key=lambda run: (order.get(run.method, len(order)), run.seed))
    for run in runs:
        if run.method not in order:
            raise RunFolderError(
                f"{folder / run.path}/run.json: 'method' must be one of {list(methods)}; got {run.method!r}."
            )
    return Comparison(
        name=field(stored, "name", str, path),
        baseline=baseline,
        target_accuracy=field(stored, "target_accuracy", (float, int, type(None)), path),
        methods=methods,
        seeds=tuple(field(stored, "seeds", list, path)),
        runs=tuple(runs),
        absent=tuple(absent),
        config=field(stored, "config", dict, path),
    )


@no_collection()
def read_run(folder: Path, path: str | None = None) -> Run:
    """Read one run folder.

    Args:
        folder: The folder with ``run.json``.
        path: What the report calls it; the folder's name if not given.

    Raises:
        RunFolderError: If a file is missing, damaged or of another format.
    """
    head_path = folder / "run.json"
    head = read_object(head_path, versioned=True)
    partition = _read_partition(folder / "federation.json")
    result_path = folder / "result.json"
    result: dict[str, Any] = read_object(result_path) if result_path.exists() else {"status": "unfinished"}
    status = field(result, "status", str, result_path)
    if status not in ("finished", "failed", "unfinished"):
        raise RunFolderError(f"{result_path}: 'status' must be 'finished' or 'failed'; got {status!r}.")
    whole = status == "finished"
    rows = read_lines(folder / "rounds.jsonl", whole=whole)
    rounds = columns(rows, folder / "rounds.jsonl")
    told = replies(rows, rounds["round"], folder / "rounds.jsonl")
    return Run(
        path=path or folder.name,
        method=field(head, "method", str, head_path),
        seed=field(head, "seed", int, head_path),
        version=str(head.get("fedreach", "unknown")),
        config=field(head, "config", dict, head_path),
        environment=head.get("environment") or {},
        git=head.get("git") or {},
        partition=partition,
        rounds=rounds,
        theory=terms(partition, told, rounds["round"], folder / "rounds.jsonl"),
        airtime=airtime(rows, folder / "rounds.jsonl"),
        replies=told,
        clients=last_scores(folder / "clients.jsonl", whole, bool(len(partition.unseen))),
        timing=columns(read_lines(folder / "timing.jsonl", whole=whole), folder / "timing.jsonl"),
        status=status,
        best_round=result.get("best_round"),
        error=result.get("error"),
    )


def _read_partition(path: Path) -> Partition:
    stored = read_object(path)
    counts = np.array(field(stored, "label_counts", list, path), dtype=np.int64)
    if counts.ndim != 2:
        raise RunFolderError(f"{path}: 'label_counts' must be clients x classes; got shape {counts.shape}.")
    return Partition(
        hash=field(stored, "hash", str, path),
        dataset=field(stored, "dataset", dict, path),
        label_counts=counts,
        sizes=np.array(field(stored, "sizes", list, path), dtype=np.int64),
        participants=np.sort(np.array(field(stored, "participants", list, path), dtype=np.int64)),
        unseen=np.sort(np.array(field(stored, "unseen", list, path), dtype=np.int64)),
        statistics=stored.get("statistics") or {},
        noise=stored.get("noise"),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
