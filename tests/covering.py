"""Few rows in which all choices of several kinds meet, some at a time: a sample where all combinations are too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

Set = tuple[tuple[int, str], ...]  # (place, choice) of some kinds, by place


def covering(
    kinds: Sequence[Sequence[str]], together: int, goes: Callable[[tuple[int, str], tuple[int, str]], bool]
) -> list[tuple[str, ...]]:
    """Return rows, a choice of each kind, such that any choices of so many kinds stand together in one of them.

    Row by row: from the first set that is missing, each further choice is the one that brings most missing sets, of
    equals the one used least. The number of rows is hardly more than the product of the largest kinds, and hardly
    grows with their number.

    Args:
        kinds: The choices of each kind.
        together: How many kinds meet, at least 2.
        goes: Whether two choices of different kinds may stand in one row.

    Raises:
        AssertionError: If choices that go together two by two stand in no row.
    """
    missing = dict.fromkeys(sets(kinds, together, goes))
    rows: list[tuple[str, ...]] = []
    used = {(place, choice): 0 for place, kind in enumerate(kinds) for choice in kind}
    while missing:
        row = dict(next(iter(missing)))
        for place in (place for place in range(len(kinds)) if place not in row):
            best = None
            for choice in kinds[place]:
                if all(goes(item, (place, choice)) for item in row.items()):
                    others = combinations(row.items(), together - 1)
                    brings = sum(_set([*few, (place, choice)]) in missing for few in others)
                    best = max(best or (-1, 0, ""), (brings, -used[place, choice], choice))
            assert best is not None, f"nothing of {kinds[place]} goes with {row}"
            row[place] = best[2]
        for item in row.items():
            used[item] += 1
        for few in combinations(sorted(row.items()), together):
            missing.pop(few, None)
        rows.append(tuple(row[place] for place in range(len(kinds))))
    return rows


def sets(
    kinds: Sequence[Sequence[str]], together: int, goes: Callable[[tuple[int, str], tuple[int, str]], bool]
) -> Iterator[Set]:
    """Yield all sets of choices of so many kinds of which each two go together."""
    for places in combinations(range(len(kinds)), together):
        for choices in product(*(kinds[place] for place in places)):
            few = tuple(zip(places, choices, strict=True))
            if all(goes(a, b) for a, b in combinations(few, 2)):
                yield few


def _set(items: Sequence[tuple[int, str]]) -> Set:
    return tuple(sorted(items))
