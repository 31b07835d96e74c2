"""Adaptation of unseen clients, cell by cell: the tables of two records.

    python benchmarks/adapted.py --list                          # the cells, each with its command
    python benchmarks/adapted.py --only fashion-class-0.1-40     # runs what is missing of this cell
    python benchmarks/adapted.py --write                         # all cells, and the tables: hours on two cores
    python benchmarks/adapted.py --there --write                 # the tables of cells that are finished

A cell is `fedreach compare` with an example and a few settings. Finished cells in `--runs` are not run again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import page
from tables import table

ROOT = Path(__file__).parents[1]
WAYS, RULES = "examples/fashion_mnist_adaptation.toml", "examples/fashion_mnist_adaptation_rules.toml"
EVERYBODY_TRAINS = "examples/fashion_mnist_adaptation_few.toml"  # 10 take part, 10 a round: no choice among them
MNIST = ("data.name=mnist",)
IID = ("partition={name='iid',clients=100}",)
LENET = ("model.name=lenet", "local.clip_norm=10")
FEW = ("population.participants=10",)
CHOICE_SHOWN = ("fashion-class-0.1-10", "fashion-class-0.3-10", "mnist-class-0.1-10")  # that it is none


def by_client(alpha: str) -> tuple[str, ...]:
    return (f"partition={{name='dirichlet_by_client',clients=100,alpha={alpha}}}",)


class Cell(NamedTuple):
    """A comparison: whose table it is in, what it is, and how it comes about."""

    experiment: str
    words: str
    settings: tuple[str, ...] = ()
    seeds: int | None = None  # None: as many as the example has

    def command(self, out: Path) -> list[str]:
        """Return the arguments of ``fedreach``."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        seeds = [] if self.seeds is None else ["--seeds", str(self.seeds)]
        return ["compare", self.experiment, *settings, *seeds, "--out", str(out)]


def _ways() -> dict[str, Cell]:
    """Return the cells of the ways of training: two data sets, seven partitions, 40 or 10 clients that take part."""
    partitions = {"class-0.1": ("Dirichlet .1 by class", ())}
    partitions |= {
        f"class-{a}": (f"Dirichlet {a.lstrip('0')} by class", (f"partition.alpha={a}",)) for a in ("0.3", "1")
    }
    partitions |= {"iid": ("clients alike", IID)}
    partitions |= {f"client-{a}": (f"Dirichlet {a.lstrip('0')} by client", by_client(a)) for a in ("0.1", "0.3", "1")}
    found = {}
    for data, data_words, source in (("fashion", "Fashion-MNIST", ()), ("mnist", "MNIST", MNIST)):
        for name, (words, partition) in partitions.items():
            for count, few in ((40, ()), (10, FEW)):
                cell, title = f"{data}-{name}-{count}", f"{data_words}, {words}, {count} take part"
                if few and cell not in CHOICE_SHOWN:
                    found[cell] = Cell(EVERYBODY_TRAINS, title, (*source, *partition))
                else:
                    found[cell] = Cell(WAYS, title, (*source, *partition, *few))
    return found


CELLS = _ways() | {
    "rules-class-0.1": Cell(RULES, "Fashion-MNIST, Dirichlet .1 by class, uniform choice"),
    "rules-iid": Cell(RULES, "Fashion-MNIST, clients alike, uniform choice", IID),
    "rules-lenet": Cell(RULES, "Fashion-MNIST, Dirichlet .1 by class, LeNet", LENET, 5),
    "rules-lenet-iid": Cell(RULES, "Fashion-MNIST, clients alike, LeNet", (*LENET, *IID), 5),
    "rules-cifar": Cell(RULES, "CIFAR-10, Dirichlet .1 by class, LeNet", ("data.name=cifar10", *LENET), 5),
}
HEAD = [
    "method",
    "unadapted %",
    "calibrated %",
    "adapted % ± sd",
    "oracle prior, needs labels %",
    "gain, points [95% CI]",
    "adjusted p",
    "MDE, points",
    "conclusion (~ seeds)",
    "with 5 inputs",
    "with 20 inputs",
    "worst 10% of clients, %",
    "log loss, nats",
    "clients worse %",
]


def record_of(cell: str) -> str:
    """Return the file in `docs/records` that has the table of a cell."""
    return "adapted_rules.md" if cell.startswith("rules") else "adapted.md"


def finished(out: Path) -> bool:
    """Whether all runs of a comparison are finished."""
    if not (out / "comparison.json").exists():
        return False
    runs = json.loads((out / "comparison.json").read_text(encoding="utf-8"))["runs"]
    return all((out / run / "result.json").exists() for seeds in runs.values() for run in seeds.values())


def answer(cell: Cell, out: Path, *, only_report: bool) -> list[dict[str, Any]]:
    """Run what is missing of a cell, and return what is told of its methods."""
    words = ["report", str(out)] if only_report else [*cell.command(out), "--quiet"]
    command = [sys.executable, "-m", "fedreach", *words, "--formats", "none", "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    methods: list[dict[str, Any]] = json.loads(done.stdout)["methods"]
    return methods


def signed(points: float) -> str:
    """Return points with their sign, a true minus; what is rounded to 0 has none."""
    text = f"{points:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def line(m: dict[str, Any]) -> list[str]:
    """Return a method's cells, in the order of `HEAD`."""

    def percent(mode: str, what: str = "accuracy") -> float:
        return 100 * float(m[f"adapted_{mode}_{what}_mean"])

    def gain(n: int) -> str:
        return signed(100 * (m.get(f"adapted_gain_with_{n}_typical") or m[f"adapted_gain_with_{n}_mean"]))

    p = m["adapted_gain_p_corrected"]
    more = m["adapted_gain_seeds_needed"]
    adapted = f"{percent('adapted'):.1f} ± {100 * m['adapted_adapted_accuracy_sd_over_seeds']:.1f}"
    limits = "" if p is None else f" [{signed(100 * m['adapted_gain_low'])}, {signed(100 * m['adapted_gain_high'])}]"
    prior = m.get("adapted_oracle_prior_accuracy_mean")
    return [
        m["method"],
        f"{percent('unadapted'):.1f}",
        f"{percent('calibrated'):.1f}",
        adapted,
        "-" if prior is None else f"{100 * prior:.1f}",
        signed(100 * (m.get("adapted_gain_typical") or m["adapted_gain_mean"])) + limits,
        "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
        "-" if p is None else f"{100 * m['adapted_gain_mde']:.1f}",
        m["adapted_gain_conclusion"] + ("" if more is None else f" (~{more})") if m["adapted_gain_conclusion"] else "-",
        gain(5),
        gain(20),
        f"{percent('unadapted', 'accuracy_worst_decile'):.1f} → {percent('adapted', 'accuracy_worst_decile'):.1f}",
        f"{m['adapted_unadapted_loss_mean']:.2f} → {m['adapted_adapted_loss_mean']:.2f}",
        f"{100 * m['adapted_worse_share']:.1f}",
    ]


def section(name: str, cell: Cell, methods: list[dict[str, Any]]) -> str:
    """Return the part of the page about one cell."""
    shown = shlex.join(["fedreach", *cell.command(Path("runs/adapted") / name)])
    seeds = min(m["seeds"] for m in methods)
    rows = table(HEAD, map(line, methods), 1)
    return f"**{cell.words}** ({seeds} seeds)\n\n```text\n{shown}\n```\n\n{rows}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="CELL", choices=CELLS, help="these cells only")
    parser.add_argument("--runs", type=Path, default=Path("runs/adapted"), help="folder of the comparisons")
    parser.add_argument("--there", action="store_true", help="run nothing: the cells that are finished")
    parser.add_argument("--write", action="store_true", help="put each table into its record in docs/records")
    parser.add_argument("--list", action="store_true", help="list the cells and their commands")
    arguments = parser.parse_args(words)
    chosen = {name: cell for name, cell in CELLS.items() if arguments.only is None or name in arguments.only}
    if arguments.list:
        for name, cell in chosen.items():
            print(f"{name}: {cell.words}\n    {shlex.join(['fedreach', *cell.command(arguments.runs / name)])}")
        return
    for name, cell in chosen.items():
        out = (arguments.runs / name).resolve()
        if arguments.there and not finished(out):
            continue
        found = section(name, cell, answer(cell, out, only_report=arguments.there))
        print(found, end="\n\n", flush=True)
        if arguments.write:
            page.put(name, found, page.RECORDS / record_of(name))


if __name__ == "__main__":
    main()
