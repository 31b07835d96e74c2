"""Speed of FedReach's engines, pfl-research and plain torch on a GPU, against the chip's limit.

    python benchmarks/gpu.py                         # needs CUDA; prints the table
    python benchmarks/gpu.py --write                 # also puts it into docs/records/gpu.md
    python benchmarks/gpu.py --zoo                   # whether all kinds of modules train there as on the CPU
    python benchmarks/gpu.py --device cpu --quick    # tests this script where there is no GPU

The cases are those of `engine.py` with larger models, and `cifar`, the setting of pfl-research's own CIFAR-10
benchmark: 1000 clients of 50 examples, 50 per round, batch 10, two 3x3 convolutions of 32 and 64 filters and a layer of
128, 1,626,442 parameters, with dropout (`cifar_plain`: without); the images are random. The data are on the GPU. Each
contender runs in fp32 and with tf32, convolutions included. Without CUDA the script reports "not run" and exits with
status 3.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "peers"))

import torch

from contenders import ENGINE_NAMES, PFL, PLAIN, Contender, Row, end_cleanly, fedreach, measure, present
from gpu_zoo import zoo_outcomes, zoo_table
from page import processor, put
from tables import Rows, best, rates, ratios, spread, table
from turns import check, run_cases

GPU_CASES = ("mlp", "lenet", "mlp_device", "cifar", "cifar_plain")
PRECISIONS = {"fp32": (), "tf32": ("--tf32",)}
CHIP = Contender("chip", "chip.py", settings=((1, 1),))
NO_CUDA = 3


def on(contender: Contender, device: str, precision: str) -> Contender:
    """Return the contender on this device, in one process of one thread."""
    extra = ("--device", device, *PRECISIONS[precision])
    name = f"{contender.name}, {precision}"
    return contender._replace(name=name, arguments=(*contender.arguments, *extra), settings=((1, 1),))


def gpu_table(found: dict[str, Rows], chips: dict[str, Row]) -> str:
    """Return each contender of each case, with its ratio to pfl and its share of the chip's rate in that precision."""
    lines = []
    for case, rows in found.items():
        chip = chips[case]
        for name, settings in rows.items():
            passes = best(settings)[1]
            engine, _, precision = name.rpartition(", ")
            reference = rows.get(f"pfl, {precision}")
            to_pfl = ratios(rates(passes), rates(best(reference)[1])) if reference else []
            rate = statistics.median(rates(passes).values())
            limit = chip["flops"].get(precision, 0.0) / chip["flops_per_sample"]
            rounds = statistics.median(row["rounds_per_second"] for row in passes.values())
            memory = max(row["gpu_mb"] for row in passes.values())
            share = f"{100 * rate / limit:.3g}%" if limit else "-"
            cells = [f"{rate:,.0f}", f"{rounds:.3g}", spread(to_pfl), share, f"{memory:,.0f}"]
            lines.append([case, engine, precision, *cells])
    head = "case, engine, precision, samples/s, rounds/s, ratio to pfl, of the chip's rate, peak MB on the GPU"
    return table(head.split(", "), lines, left=3)


def arguments_of(line: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(GPU_CASES), choices=list(GPU_CASES))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--passes", type=int, default=3, help="times all contenders take turns (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="timings in one process (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one pass with a fifth of the clients: a smoke test")
    parser.add_argument("--check", action="store_true", help="test the results in fp32 instead of timing them")
    parser.add_argument("--zoo", action="store_true", help="train the tests' zoo of modules instead, in fp32")
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/gpu.md")
    arguments = parser.parse_args(line)
    if arguments.quick:
        arguments.passes = arguments.repeats = 1
    return arguments


def main() -> None:
    arguments = arguments_of()
    end_cleanly()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "not run: this benchmark needs a GPU with CUDA; torch finds none here. Run it on a machine that has one "
            "and a CUDA build of torch, or test the script by --device cpu with --quick or --zoo.",
            file=sys.stderr,
        )
        sys.exit(NO_CUDA)
    if arguments.zoo:
        outcomes = list(zoo_outcomes(arguments.device))
        print(zoo_table(outcomes, arguments.device))
        sys.exit(1 if any(each.is_wrong for each in outcomes) else 0)
    everybody = present([*map(fedreach, ENGINE_NAMES), PLAIN, PFL])
    precisions = ("fp32",) if arguments.check or arguments.device == "cpu" else tuple(PRECISIONS)
    wanted = [on(contender, arguments.device, precision) for precision in precisions for contender in everybody]
    if arguments.check:
        sys.exit(0 if check(arguments.cases, wanted) else 1)

    chips: dict[str, Row] = {}
    for case in arguments.cases:
        chip = measure(CHIP._replace(arguments=("--device", arguments.device)), case, (1, 1), [])
        if chip is None:
            sys.exit(1)
        chips[case] = chip
    cases = dict.fromkeys(arguments.cases, wanted)
    found = run_cases(cases, arguments.passes, arguments.repeats, arguments.quick)
    chip = chips[arguments.cases[0]]
    speeds = ", ".join(f"{kind} {rate / 1e12:.3g}" for kind, rate in chip["flops"].items())
    versions = ", ".join(f"{name} {version}" for name, version in sorted(chip["versions"].items()))
    about = (
        f"Made by `python benchmarks/gpu.py --write` on {chip['chip']} with {processor()}: {versions}. The chip "
        f"multiplies large matrices at {speeds} TFLOP/s. {arguments.passes} passes in which all contenders take turns, "
        f"{arguments.repeats} timings in each; medians, with the range over passes. `cifar` is pfl-research's own "
        f"CIFAR-10 setting: 1000 users of 50 samples, 50 a round, batch 10, a CNN of 1.6 million parameters with "
        f"dropout, `cifar_plain` the same without dropout."
    )
    page = "\n\n".join([textwrap.fill(about, 120), gpu_table(found, chips)])
    print(page)
    if arguments.write:
        put("gpu", page)
        print("\nWrote docs/records/gpu.md")


if __name__ == "__main__":
    main()
