"""A thousand tables after what happens to tables: each is read as it stands, or refused in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from fedreach.data import own, table_source
from fedreach.data.cells import Reading
from fedreach.data.table_source import Table

from .campaign import WrongError
from .mutated_tables import BASES, Mutant, mutant
from .table_checks import Law, checked, predicted, trained

QUICK, WHOLE = 40, 1000
QUICK_RUNS, RUNS = 6, 60


def tried(law: Law, numbers: Iterable[int], folder: Path) -> Counter[str]:
    """Return how mutants end; the first that breaks a law is named."""
    counts: Counter[str] = Counter()
    for number in numbers:
        own = folder / str(number)
        own.mkdir()
        try:
            counts[law(mutant(number), own)] += 1
        except Exception as error:
            raise WrongError(f"{mutant(number)}: {type(error).__name__}: {error}") from error
    return counts


def test_some_mutated_tables_are_read_as_they_stand_or_refused(tmp_path: Path) -> None:
    assert set(tried(checked, range(QUICK), tmp_path)) == {"read", "refused"}


@pytest.mark.slow
def test_a_thousand_mutated_tables_are_read_as_they_stand_or_refused(tmp_path: Path) -> None:
    counts = tried(checked, range(WHOLE), tmp_path)
    assert min(counts["read"], counts["refused"]) > WHOLE / 4, counts  # else one of the two is hardly tried


def test_some_mutated_tables_are_predicted_row_by_row_or_refused(tmp_path: Path) -> None:
    assert set(tried(predicted, range(QUICK), tmp_path)) == {"read", "refused"}


@pytest.mark.slow
def test_a_thousand_mutated_tables_are_predicted_row_by_row_or_refused(tmp_path: Path) -> None:
    counts = tried(predicted, range(WHOLE), tmp_path)
    assert min(counts["read"], counts["refused"]) > WHOLE / 4, counts


def test_a_few_mutated_tables_are_trained_on_or_refused_by_the_command(tmp_path: Path) -> None:
    tried(trained, range(0, WHOLE, WHOLE // QUICK_RUNS), tmp_path)


@pytest.mark.slow
def test_sixty_mutated_tables_are_trained_on_or_refused_by_the_command(tmp_path: Path) -> None:
    counts = tried(trained, range(0, WHOLE, WHOLE // RUNS), tmp_path)
    assert min(counts["read"], counts["refused"]) > RUNS / 4, counts


def whole(base: str, **changes: object) -> Mutant:
    """Return a base table as it is."""
    draft = BASES[base]()
    plain = Mutant(0, base, (), draft.written(), draft.options, {}, draft.separator, ".csv", False)
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("base", BASES)
def test_what_is_mutated_was_read_before(base: str, tmp_path: Path) -> None:
    """Else every mutant of it would be refused for the same fault."""
    assert checked(whole(base), tmp_path) == predicted(whole(base), tmp_path) == "read"


def losing(change: Callable[[Table], Table]) -> Callable[[object], Table]:
    read = table_source.read_whole
    return lambda source: change(read(source))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: {name: column[1:] for name, column in table.items()}, "rows hold all that is needed"),
        (lambda table: {name: column for name, column in table.items() if name != "ward"}, "of column 'ward' nothing"),
    ],
)
def test_the_laws_find_what_is_lost(
    change: Callable[[Table], Table], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "read_whole", losing(change))
    with pytest.raises(WrongError, match=message):
        checked(whole("hospital"), tmp_path)


def test_the_laws_find_clients_that_are_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = own.cells.named_rows

    def as_numbers(what: str, column: object, reading: Reading = Reading()) -> list[str | None]:  # noqa: B008
        return ["7" if name == "007" else name for name in names(what, column, reading)]

    monkeypatch.setattr(own.cells, "named_rows", as_numbers)
    with pytest.raises(WrongError, match=r"5 different names of client.*4 are known"):
        checked(whole("hospital"), tmp_path)
