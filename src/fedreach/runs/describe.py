"""Descriptions that a run stores: environment, data and baselines."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import fedreach
from fedreach.data.assignment import statistics
from fedreach.data.datasets import form_to_json
from fedreach.data.federated import FederatedData
from fedreach.evaluation.baselines import NO_PARAMETERS, leaks, mean_target, score_baselines
from fedreach.evaluation.evaluator import Evaluator
from fedreach.evaluation.metrics import Metric
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import BaselinesRecord, FederationRecord

# ---- Provenance of a run's numbers

STATUS = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
"""Command of git that lists changed files; git would run itself in submodules to look for changes there."""


def environment() -> dict[str, Any]:
    """Return the versions of packages and a description of the machine."""
    versions = {}
    for package in ("numpy", "torch", "pydantic", "safetensors", "matplotlib"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "fedreach": fedreach.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": versions,
    }


def git_revision(folder: Path) -> dict[str, Any] | None:
    """Return the revision of the git checkout of a folder and whether it was changed; None outside a checkout."""
    try:
        revision = _git(folder, "rev-parse", "HEAD")
        changed = bool(_git(folder, *STATUS))
    except (OSError, subprocess.SubprocessError):
        return None
    return {"revision": revision, "changed": changed}


def package_revision(file: Path = Path(__file__)) -> str | None:
    """Return the revision of FedReach, marked if its code was changed; None outside a checkout of FedReach.

    A virtual environment inside a user's repository does not count, because the repository does not track `file`.
    """
    package = str(file.parents[1])
    try:
        _git(file.parent, "ls-files", "--error-unmatch", file.name)
        changed = _git(file.parent, *STATUS, "--", package)
        return _git(file.parent, "rev-parse", "HEAD") + (" (changed)" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git in a checkout that may be somebody else's: no program that its files name is run."""
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    listed = _run_git(folder, *safe, "config", "--null", "--name-only", "--get-regexp", r"^filter\.", codes=(0, 1))
    filters = [name for name in listed.split("\0") if name]
    if any("=" in name for name in filters):  # `-c` cannot set such a name
        raise subprocess.SubprocessError(f"the git filter {filters} cannot be turned off")
    return _run_git(folder, *safe, *(word for name in filters for word in ("-c", f"{name}=")), *arguments).strip()


def _run_git(folder: Path, *arguments: str, codes: Sequence[int] = (0,)) -> str:
    # Git's variables could name another checkout, and a partial clone would fetch its missing objects.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "--no-pager", "-C", str(folder), *arguments],
        env=environment | {"GIT_ALLOW_PROTOCOL": "", "GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=10,
    )
    if done.returncode not in codes:
        raise subprocess.CalledProcessError(done.returncode, "git", done.stdout, done.stderr)
    return done.stdout


def federation_record(data: FederatedData) -> FederationRecord:
    """Return the federation record: data, partition and participants.

    Counts and sizes refer to the partition, without examples that a shift dropped. The record separately lists the
    examples that the server took from each client.
    """
    d, population = data.dataset, data.population
    counts = data.partition.label_counts(d.train_y, d.example_classes)
    counts = counts if data.shift is None else counts - data.shift.dropped
    participants = population.participants
    return FederationRecord(
        hash=data.digest(),
        dataset={
            "name": d.name,
            "source": d.source,
            "licence": d.licence,
            "sha256": d.sha256,
            "notes": d.notes,
            "kind": d.kind,
            "dtype": d.train_x.dtype.name,
            "shape": list(d.train_x.shape[1:]),
            "mean": list(d.mean),
            "std": list(d.std),
            **form_to_json(d),
        },
        partition={"kind": data.partition.kind, "parameters": dict(data.partition.parameters)},
        num_clients=data.num_clients,
        num_classes=d.num_classes,
        label_counts=counts,
        sizes=counts.sum(axis=1) if d.example_classes else data.partition.sizes,
        participants=participants,
        unseen=population.unseen,
        participants_without_held_out_data=participants[data.held_out.sizes[participants] == 0],
        statistics=statistics(data.partition, d.train_y, d.num_classes).summary() if d.example_classes else {},
        noise=None if data.noise is None else dict(data.noise),
        server_data=_server_data(data),
        shift=None if data.shift is None else dict(data.shift.record),
        client_names=None if data.client_names is None else list(data.client_names),
        class_names=None if d.class_names is None else list(d.class_names),
        preparation=None if d.preparation is None else d.preparation.to_json(),
        targets=None if d.num_classes else d.outputs,
        target_scale=None if d.target_scale is None else d.target_scale.to_json(),
        mean_mae=None if d.num_classes else mean_mae(data),
    )


def mean_mae(data: FederatedData) -> float | None:
    """Return the mean absolute error of the mean baseline on participants' held-out data; None without such data.

    A run computes this error before the first round to detect models that diverge.
    """
    columns, _ = Evaluator(mean_target(data), data).evaluate(NO_PARAMETERS, 0)
    return columns.get("participant_mae")


def _server_data(data: FederatedData) -> dict[str, Any] | None:
    if data.server is None:
        return None
    classes = data.dataset.example_classes
    counts = np.bincount(data.server.y, minlength=classes).tolist() if classes else []
    return {"examples": len(data.server.y), "label_counts": counts, "taken": data.taken_by_server().tolist()}


# ---- Baselines in the folder of a run
# They are fitted and scored after the last round, so no other number depends on them. They belong to the federation,
# not to a method: the first run of a comparison that ends stores them for the others.

WAIT_SECONDS = 600.0
"""Maximum wait for another run of the comparison that computes the baselines, which takes seconds."""


@dataclass(frozen=True, eq=False)
class Baselines:
    """Baselines that the models of a federation must beat.

    Args:
        data: Data of the federation.
        examples_per_client: Maximum number of scored examples per client, as for models. None: all.
        metrics: Metrics of the models.
        shared: Folder in which the runs of one comparison share baselines. None: baselines are not shared.
    """

    data: FederatedData
    examples_per_client: int | None = None
    metrics: Sequence[Metric] = ()
    shared: Path | None = None

    def write(self, folder: RunFolder) -> None:
        """Write the baselines into the folder of a run."""
        folder.write(BaselinesRecord(**self._load_or_score()))

    def _load_or_score(self) -> Mapping[str, Any]:
        if self.shared is None:
            return self._score()
        shared_folder, name = RunFolder(self.shared), f"{self.data.digest()[:16]}.json"
        with shared_folder.locked(WAIT_SECONDS):
            stored = shared_folder.read_json(name)
            if stored is None:
                shared_folder.write_json(name, self._score())
                stored = shared_folder.read_json(name) or {}
        return {key: stored[key] for key in BaselinesRecord.known_keys() if key in stored}

    def _score(self) -> Mapping[str, Any]:
        scored, left_out = score_baselines(self.data, self.examples_per_client, self.metrics)
        return {
            "columns": {name: dict(baseline.columns) for name, baseline in scored.items()},
            "clients": {name: dict(baseline.clients) for name, baseline in scored.items()},
            "left_out": left_out or None,
            "leaks": [leak._asdict() for leak in leaks(self.data)],
        }
