"""What all peers share: the command line, the clock, and the line of JSON they print."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case
from torch import nn


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the shared options to `parser`, read the command line and set torch's seed and threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun; 1 without it
    parser.add_argument("--case", required=True, choices=list(CASES))
    parser.add_argument("--rounds", type=_positive, default=5, help="rounds in one repeat (default: %(default)s)")
    parser.add_argument("--repeats", type=_positive, default=5, help="timings to take (default: %(default)s)")
    parser.add_argument("--warmup", type=_positive, default=2, help="rounds before the clock (default: %(default)s)")
    parser.add_argument(
        "--threads", type=_positive, default=max(1, cores // workers), help="torch threads (default: all cores)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="test the peer's results instead of timing it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    return arguments


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return number


@dataclass
class Clock:
    """Times at which rounds ended; call `lap()` after each round, warm-up included."""

    ends: list[float] = field(default_factory=list)

    def lap(self) -> None:
        self.ends.append(time.perf_counter())

    def seconds_per_round(self, warmup: int, rounds: int) -> list[float]:
        """Return the mean seconds of a round for each repeat of `rounds` rounds after the `warmup` rounds.

        Example:
            >>> Clock([9.0, 10.0, 12.0, 14.0, 15.0, 16.0]).seconds_per_round(warmup=2, rounds=2)
            [2.0, 1.0]
        """
        marks = self.ends[warmup - 1 :: rounds]
        return [(end - start) / rounds for start, end in pairwise(marks)]


def peak_rss_mb() -> float:
    """Return the most memory this process has held so far, in MB of 10^6 bytes.

    Linux hands a new program the `ru_maxrss` of the process that started it, so a peer started from a large
    process would report that one's memory; the kernel's VmHWM starts anew, and is used where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        kib = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return kib * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def make_row(
    peer: str,
    case: Case,
    arguments: argparse.Namespace,
    clock: Clock,
    *,
    packages: tuple[str, ...] = (),
    peak_mb: float | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Return the result to print; the rates are those of the median repeat."""
    seconds = clock.seconds_per_round(arguments.warmup, arguments.rounds)
    rounds_per_second = 1 / statistics.median(seconds)
    return {
        "peer": peer,
        "case": case.name,
        "samples_per_second": round(case.samples_per_round * rounds_per_second, 1),
        "rounds_per_second": round(rounds_per_second, 4),
        "seconds_per_round": [round(s, 6) for s in seconds],
        "peak_rss_mb": round(peak_rss_mb() if peak_mb is None else peak_mb, 1),
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "workers": workers,
        "versions": {"python": platform.python_version(), **{p: version(p) for p in ("torch", "numpy", *packages)}},
    }


@torch.no_grad()
def mean_loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the mean cross-entropy in nats over all clients' examples, x (N, m, ...) and y (N, m)."""
    return float(nn.functional.cross_entropy(net(x.flatten(0, 1)), y.flatten()))


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between two state dicts of the same model."""
    if a.keys() != b.keys():
        raise ValueError(f"state dicts must have the same names; got {sorted(a)} and {sorted(b)}")
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def require(holds: bool, rule: str) -> None:
    """End the program with status 1 and the broken rule, or say on stderr that the rule holds."""
    if not holds:
        raise SystemExit(f"FAILED: {rule}")
    if os.environ.get("RANK", "0") == "0":  # of torchrun's workers one speaks
        print(f"ok: {rule}", file=sys.stderr)
