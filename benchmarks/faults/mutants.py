"""A random sample of mutants of the core, and how many of them the tests kill.

    python benchmarks/faults/mutants.py --sample 400 --seed 1    # goes on where it stopped; an hour or two on one core
    python benchmarks/faults/mutants.py --sample 400 --seed 1 --score    # what is known so far

`make mutate` tries all of them, which takes a day. mutmut makes the mutants (see `[tool.mutmut]` in pyproject.toml) and
tries each with the tests that ran through its function; what became of it stands in mutants/. A mutant that took too
long, or ended the process, counts as killed. Left out are mutants of `strict=True` alone, which asks that what is
zipped is of one length: where it is, they change nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import subprocess
import sys
from pathlib import Path

MUTANTS = Path("mutants")
SURVIVED, UNTESTED, UNKNOWN = (0,), (5, 33), (None, 2)  # what mutmut writes down; 2 of what was interrupted


def outcomes() -> dict[str, int | None]:
    """Return what became of each mutant, by name; None of those not yet tried."""
    found: dict[str, int | None] = {}
    for file in sorted(MUTANTS.rglob("*.meta")):
        found |= json.loads(file.read_text())["exit_code_by_key"]
    return found


class WithoutStrict(ast.NodeTransformer):
    """Takes `strict=...` out of calls."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "strict"]
        return node


def of_strict_alone() -> set[str]:
    """Return the mutants that differ from what they are made of by `strict=...` alone."""
    found = set()
    for file in sorted(MUTANTS.rglob("*.meta")):
        names, source = json.loads(file.read_text())["exit_code_by_key"], file.with_suffix("").read_text()
        if not names or "strict=" not in source:
            continue
        bodies: dict[str, str] = {}
        for node in ast.walk(WithoutStrict().visit(ast.parse(source))):
            if isinstance(node, ast.FunctionDef):
                bodies[node.name] = "\n".join(map(ast.unparse, [node.args, *node.body]))
        for name in names:
            own = name.rpartition(".")[2]
            if bodies[own] == bodies[own.rpartition("_")[0] + "_orig"]:
                found.add(name)
    return found


def sampled(size: int, seed: int) -> dict[str, int | None]:
    """Return what became of a random sample of mutants."""
    known = outcomes()
    counted = sorted(known.keys() - of_strict_alone())
    return {name: known[name] for name in random.Random(seed).sample(counted, min(size, len(counted)))}


def wilson(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share that was seen in n trials."""
    middle, width = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - width) / (1 + z * z / n), (middle + width) / (1 + z * z / n)


def main() -> int:
    """Try those of the sample that were not tried, and print the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--score", action="store_true", help="only print what is known")
    options = parser.parse_args()
    mutmut = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", "1"]
    if not options.score:
        if not outcomes():  # makes all mutants, and tries the one of this file
            subprocess.run([*mutmut, "fedreach.federation.weighting*"], check=True)
        for _ in range(2):  # where tests were selected anew, mutmut forgets first what it knew
            left = [name for name, code in sampled(options.sample, options.seed).items() if code in UNKNOWN]
            if left:
                subprocess.run([*mutmut, *left], check=True)
    codes = sampled(options.sample, options.seed)
    tried = [code for code in codes.values() if code not in UNKNOWN]
    if not tried:
        return 0
    killed = sum(code not in SURVIVED + UNTESTED for code in tried)
    low, high = wilson(killed / len(tried), len(tried))
    for name, code in codes.items():
        if code in SURVIVED + UNTESTED:
            print(f"{'survived' if code in SURVIVED else 'no test'}  {name}")
    share = f"{killed / len(tried):.1%} [{low:.1%}, {high:.1%}]"
    print(f"{killed} of {len(tried)} killed, {share}; {len(outcomes())} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
