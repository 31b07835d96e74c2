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

CANNOT = "cannot: "
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_arguments(parser: argparse.ArgumentParser, threads: int | None = None) -> argparse.Namespace:
    """Add the shared options to `parser`, read the command line and set torch's seed, threads and precision."""
    workers = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun; 1 without it
    threads = threads or max(1, CORES // workers)
    parser.add_argument("--case", required=True, choices=list(CASES))
    parser.add_argument("--rounds", type=_positive, default=5, help="rounds in one repeat (default: %(default)s)")
    parser.add_argument("--repeats", type=_positive, default=5, help="timings to take (default: %(default)s)")
    parser.add_argument("--warmup", type=_positive, default=2, help="rounds before the clock (default: %(default)s)")
    parser.add_argument("--threads", type=_positive, default=threads, help="threads (default: %(default)s)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="default: %(default)s")
    parser.add_argument(
        "--tf32", action="store_true", help="let a GPU multiply with inputs rounded to 10 bits, convolutions included"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a fifth of the clients, as for a check")
    parser.add_argument("--check", action="store_true", help="test the peer's results instead of timing it")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.tf32
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    return arguments


def case_of(arguments: argparse.Namespace) -> Case:
    """Return the case that is asked for; for a check with fewer clients and no dropout."""
    case = CASES[arguments.case]
    if arguments.check or arguments.quick:
        case = case.with_fewer_clients()
    return case.without_dropout() if arguments.check else case


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return number


@dataclass
class Clock:
    """Times at which rounds ended; call `lap()` after each round, warm-up included."""

    ends: list[float] = field(default_factory=list)

    def lap(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def seconds_per_round(self, warmup: int, rounds: int) -> list[float]:
        """Return the mean seconds of a round for each repeat of `rounds` rounds after the `warmup` rounds.

        Example:
            >>> Clock([9.0, 10.0, 12.0, 14.0, 15.0, 16.0]).seconds_per_round(warmup=2, rounds=2)
            [2.0, 1.0]
        """
        marks = self.ends[warmup - 1 :: rounds]
        return [(end - start) / rounds for start, end in pairwise(marks)]


def peak_rss_mb(process: int | str = "self") -> float:
    """Return the most memory this process, or another, has held so far, in MB of 10^6 bytes; 0 if it has ended.

    Data that processes share, as those do that were forked, are divided among them; program code is not.

    Linux hands a new program the `ru_maxrss` of the process that started it, so a peer started from a large
    process would report that one's memory; the kernel's VmHWM starts anew, and is used where there is one.
    """
    folder = Path(f"/proc/{process}")
    if not Path("/proc/self/smaps_rollup").exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
        return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
    try:
        lines = [line for name in ("status", "smaps_rollup") for line in (folder / name).read_text().splitlines()]
    except OSError:
        return 0.0
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    shared = kib["RssAnon"] + kib["RssShmem"] - kib["Pss_Anon"] - kib["Pss_Shmem"]
    return (kib["VmHWM"] - shared) * 1024 / 1e6


def family(of: int | None = None) -> list[int]:
    """Return this process, or another, and all that descend from it; where the system does not tell, it alone."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(status.parent.name))
    found = [of or os.getpid()]
    for process in found:  # grows while we go
        found += children.get(process, [])
    return found


def family_peak_rss_mb(of: int | None = None) -> float:
    """Return the sum of `peak_rss_mb` over this process, or another, and all that descend from it."""
    return sum(map(peak_rss_mb, family(of)))


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
        "gpu_mb": round(torch.cuda.max_memory_allocated() / 1e6, 1) if torch.cuda.is_initialized() else 0.0,
        "threads": arguments.threads,
        "workers": workers,
        "versions": versions(*packages),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of python, torch, numpy and these packages."""
    return {"python": platform.python_version(), **{p: version(p) for p in ("torch", "numpy", *packages)}}


def in_float64(numbers: torch.Tensor) -> torch.Tensor:
    """Return examples in float64, and tokens as they are."""
    return numbers.double() if numbers.is_floating_point() else numbers


@torch.no_grad()
def mean_loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the mean cross-entropy in nats over the examples of the first clients, x (N, m, ...) and y (N, m).

    They train first, and twenty do: all clients of a large model would take minutes.
    """
    losses = [nn.functional.cross_entropy(net(own), labels) for own, labels in zip(x[:20], y[:20], strict=True)]
    return float(torch.stack(losses).mean())


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between two state dicts of the same model."""
    if a.keys() != b.keys():
        raise ValueError(f"state dicts must have the same names; got {sorted(a)} and {sorted(b)}")
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def cannot(reason: object) -> SystemExit:
    """Return what ends the program where its engine cannot train the model of the case."""
    return SystemExit(f"{CANNOT}{reason}")


def require(holds: bool, rule: str) -> None:
    """End the program with status 1 and the broken rule, or say on stderr that the rule holds."""
    if not holds:
        raise SystemExit(f"FAILED: {rule}")
    if os.environ.get("RANK", "0") == "0":  # of torchrun's workers one speaks
        print(f"ok: {rule}", file=sys.stderr)
