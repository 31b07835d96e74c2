"""Faults injected, survived, told, lost, wrong: one table, with zeros in the last two columns.

    python benchmarks/faults/table.py                    # all: some hours on one core
    python benchmarks/faults/table.py --quick            # a sample, some minutes
    python benchmarks/faults/table.py lies --write       # one kind; its rows in docs/records/faults.md

It ends with 1 if anything was lost or wrong, and names it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "benchmarks"), str(ROOT)]  # as other tables are run, by file

from rows import Row, markdown, merged  # noqa: E402

PAGE = ROOT / "docs" / "records" / "faults.md"


def crashes(quick: bool) -> list[Row]:
    """A process killed, and power cut, at every moment of a run's writing."""
    from crash import crash

    found = crash(every=20, twice=5) if quick else crash(twice=100)
    return [Row.of(kind, counts) for kind, counts in found.items()]


def damages(quick: bool) -> list[Row]:
    """Run folders of which a byte, a value or a file is another one."""
    from damage import damage

    return [Row.of(f"damaged folder, {kind}", counts) for kind, counts in damage(5 if quick else 300).items()]


def disk_errors(quick: bool) -> list[Row]:
    """A disk that is full, fails or may not be written to."""
    from disk_errors import disk_errors

    return [disk_errors(every=20 if quick else 1)]


def inputs(quick: bool) -> list[Row]:
    """Experiments, command lines, data files and run folders with something wrong in them."""
    from tests.fuzz.targets import counted

    return [Row.of(f"input: {counts.target}", counts) for counts in counted(300 if quick else 12_000)]


def part_errors(quick: bool) -> list[Row]:
    """Errors of every kind that a user's part raises, of every kind of part."""
    from tests.conftest import TINY
    from tests.experiments.component_errors import every, tried

    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        (Path(home) / "tiny.toml").write_text(TINY, encoding="utf-8")
        found = tried(Path(home), itertools.islice(every(), 0, None, 20 if quick else 1))
    return [Row("error in a user's part", found.injected, 0, found.told, 0, len(found.wrong), tuple(found.wrong))]


def lies(quick: bool) -> list[Row]:
    """Clients on Flower that report what no honest client reports, or messages that are changed anywhere."""
    from lies import changed_messages, planted_lies

    return [planted_lies(quick), changed_messages(10 if quick else 300)]


def plants(quick: bool) -> list[Row]:
    """Mistakes in the sources, which a test must tell."""
    from planted import FAULTS, catchers

    chosen = FAULTS[:3] if quick else FAULTS
    return [Row.of_endings("mistake in the sources", [("told" if catchers(f) else "wrong", f.name) for f in chosen])]


KINDS: Mapping[str, Callable[[bool], list[Row]]] = {
    "crashes": crashes,
    "damages": damages,
    "disk-errors": disk_errors,
    "inputs": inputs,
    "part-errors": part_errors,
    "lies": lies,
    "plants": plants,
}


def main() -> int:
    """Print the table, and return 1 if a fault was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a sample of the faults of each kind")
    parser.add_argument("--write", action="store_true", help="put its rows into docs/records/faults.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - KINDS.keys():
        parser.error(f"KIND must be one of {', '.join(KINDS)}; got {', '.join(sorted(unknown))}")
    if arguments.quick and arguments.write:
        parser.error("--write is for all faults of a kind; leave --quick out")
    rows: list[Row] = []
    for kind in arguments.kinds or KINDS:
        print(f"{kind} ...", file=sys.stderr, flush=True)
        rows += KINDS[kind](arguments.quick)
    print(markdown(rows))
    for row in rows:
        print(*(f"{row.fault}: {what}" for what in row.found), sep="\n", end="\n" * bool(row.found))
    if arguments.write:
        from page import put, section

        put("faults", markdown(merged(section("faults", PAGE), rows)), PAGE)
    return 0 if all(row.is_clean for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
