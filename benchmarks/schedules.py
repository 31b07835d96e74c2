"""Runs on Flower under seeded schedules of faults: how many end in the right model, and how many in words.

    python benchmarks/schedules.py                  # 1,000 schedules: less than half an hour
    python benchmarks/schedules.py 100 --write      # the first 100, into docs/records/schedules.md

Endings are kept in --out, so an interrupted benchmark resumes. Remove the file after a change of the code. The program
exits with status 1 if a run ended with a wrong model or a traceback, or hung, and prints the seed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

ENDINGS = ("right", "in words", "wrong", "traceback", "hung")
HEAD = ("fault", "schedules", "injected", *ENDINGS)
INTRODUCTION = """# Record: schedules of faults

`python benchmarks/schedules.py --write` writes the table. Each schedule runs six clients for six rounds on Flower's
messages in one process, with one to four kinds of faults. `tests/flower/schedules.py` describes the faults and the
checks.

- *right*: the final model was that of the simulator in which exactly the reported replies were lost, bit for bit.
- *in words*: the run ended with a message, also after restarts without faults.
- *wrong*, *traceback*, *hung*: the schedule found a mistake in FedReach.

A schedule counts in the row of each kind of fault that occurred in it.
"""


def table(endings: list[tuple[str, Counter[str]]], kinds: tuple[str, ...]) -> str:
    """Return the table of endings by kind of fault, given how each schedule ended and its faults."""
    lines = [HEAD, ("---", *["---:"] * (len(HEAD) - 1))]
    for kind in (*kinds, "none", "**all**"):
        chosen = [
            (how, injected)
            for how, injected in endings
            if kind == "**all**" or injected[kind] or (kind == "none" and not injected)
        ]
        count = sum(sum(injected.values()) if kind == "**all**" else injected[kind] for _, injected in chosen)
        hows = Counter(how for how, _ in chosen)
        lines.append((kind, str(len(chosen)), str(count), *(str(hows[how]) for how in ENDINGS)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Print the table, and return 1 if a schedule ended in another way than right or in words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=1000, help="number of schedules (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("runs/schedules.jsonl"), help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help="put the table into docs/records/schedules.md")
    arguments = parser.parse_args()
    from tests.flower.schedules import KINDS, Plan, run_schedule

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text(encoding="utf-8").splitlines() if arguments.out.exists() else []
    finished = {entry["seed"]: entry for entry in map(json.loads, lines)}
    endings: list[tuple[str, Counter[str]]] = []
    with arguments.out.open("a", encoding="utf-8") as file:
        for seed in range(arguments.first, arguments.first + arguments.count):
            if seed not in finished:
                ending = run_schedule(Plan.of(seed))
                finished[seed] = {"seed": seed, "how": ending.how, "why": ending.why, "injected": ending.injected}
                print(json.dumps(finished[seed]), file=file, flush=True)
            entry = finished[seed]
            endings.append((entry["how"], Counter(entry["injected"])))
            if entry["how"] != "right":
                print(f"seed {seed}, {entry['how']}: {entry['why']}", file=sys.stderr, flush=True)
    text = table(endings, KINDS)
    print(text)
    if arguments.write:
        from page import put

        page = ROOT / "docs" / "records" / "schedules.md"
        if not page.exists():
            page.write_text(INTRODUCTION, encoding="utf-8")
        put("schedules", text, page)
    return 0 if {how for how, _ in endings} <= {"right", "in words"} else 1


if __name__ == "__main__":
    sys.exit(main())
