"""Data sets of Hugging Face and Flower, by client: tables, or examples with arrays or images as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data.checks import Kind
from fedreach.data.images import as_numpy, is_picture
from fedreach.data.own import check_roles, numbered_column, numbered_list, of_frame, together_of
from fedreach.data.samples import of_samples, samples, size
from fedreach.data.stored import OwnData
from fedreach.data.table_source import INDEX, as_arrow


def of_huggingface(
    ds: Any,
    client: str | None,
    label: str,
    inputs: str | Sequence[str] | None,
    split: str,
    kind: Kind | None,
    name: str,
    rules: Any = None,
    *,
    group: str | None = None,
    time: str | None = None,
) -> OwnData:
    """Read a Hugging Face Dataset by client; see `fedreach.data.federated.FederatedData.from_huggingface`."""
    named = [] if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    if inputs is not None and not (named and all(isinstance(column, str) for column in named)):
        raise ConfigError(f"from_huggingface: inputs must name a column, or several in a list; got {inputs!r}.")
    parts, ids, is_natural = _parts(ds, client, split)
    for part in parts:
        size(part, name)
        if label not in part.column_names:
            raise ConfigError(f"table: there is no column {label!r}.{nearest(label, part.column_names)}")
    columns = [c for c in parts[0].column_names if c not in (client, label) and not INDEX.fullmatch(c)]
    of_client = client or "client"
    if ids is None:
        owners, names = numbered_column({str(client): _column(parts, str(client))}, str(client))
    else:
        numbers, names = numbered_list("clients", ids)
        owners = np.repeat(numbers, [len(part) for part in parts])
        if is_natural:  # the column that names the client is not an input
            naming = [c for c in columns if _names_parts(parts, c, ids)]
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
    roles = {str(client): "client", label: "label", **dict.fromkeys(named, "column of inputs")}
    check_roles({"group": group, "time": time}, roles)
    together = together_of({column: _column(parts, column) for column in (group, time) if column}, group, time)
    columns = [column for column in columns if column not in (group, time)]
    if inputs is None and len(columns) > 1:
        raise ConfigError(
            f"from_huggingface: name the column of inputs, one of {columns}, such as inputs={nested[0]!r}."
        )
    named = named or columns
    for column in named:
        if column not in parts[0].column_names:
            raise ConfigError(f"table: there is no column {column!r}.{nearest(column, parts[0].column_names)}")
        if type((getattr(parts[0], "features", None) or {}).get(column)).__name__ == "Image":
            parts = [_with_pictures(part) for part in parts]
    every = (row for part in parts for row in (part[i] for i in range(len(part))))
    if isinstance(inputs, str | None):
        rows = ((row[named[0]], row[label]) for row in every)
    else:
        rows = (({column: _plain(row[column]) for column in named}, row[label]) for row in every)
    x, y = samples(rows, len(owners), name, kind)
    class_names = _words(parts[0], label)
    return of_samples(x, y, owners, names, kind=kind, name=name, class_names=class_names, together=together)


def _column(parts: Sequence[Any], name: str) -> pa.Array:
    """Return a column of all parts; for a column of classes, their names, and None for unknown numbers (-1)."""
    if name not in parts[0].column_names:
        raise ConfigError(f"table: there is no column {name!r}.{nearest(name, parts[0].column_names)}")
    columns = [
        part.with_format("arrow", columns=[name])[:][name] if hasattr(part, "with_format") else part[name]
        for part in parts
    ]
    column = pa.concat_arrays([as_arrow(part_column) for part_column in columns])
    words = _words(parts[0], name)
    if words is None:
        return column
    class_texts = [
        words[number] if number is not None and 0 <= number < len(words) else None for number in column.to_pylist()
    ]
    return pa.array(class_texts, pa.string())


def _names_parts(parts: Sequence[Any], column: str, names: Sequence[str]) -> bool:
    """Return whether every row of a column holds the name of its part."""
    columns = [as_arrow(part[column]) for part in parts]
    if any(pa.types.is_nested(values.type) for values in columns):
        return False
    return all(
        set(map(str, values.unique().to_pylist())) <= {name} for values, name in zip(columns, names, strict=True)
    )


def _parts(ds: Any, client: str | None, split: str) -> tuple[list[Any], list[str] | None, bool]:
    """Return the parts of a FederatedDataset, their clients, and whether a column names the clients.

    Another data set is a single part, without clients.
    """
    if not hasattr(ds, "load_partition"):
        if client is None:
            raise ConfigError("from_huggingface: say which column names the client, such as client='writer_id'.")
        return [ds], None, False
    if client is not None:
        raise ConfigError("from_huggingface: a FederatedDataset is partitioned already; leave `client` out.")
    first = ds.load_partition(0, split)  # the number of partitions is known only after this call
    partitioner = ds.partitioners[split]
    natural = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    count = int(partitioner.num_partitions)
    parts = [first, *(ds.load_partition(number, split) for number in range(1, count))]
    return parts, [str(natural.get(number, number)) for number in range(count)], bool(natural)


def _words(ds: Any, column: str) -> list[str] | None:
    """Return the class names of a column of classes; None for other columns."""
    return getattr((getattr(ds, "features", None) or {}).get(column), "names", None)


def _with_pictures(part: Any) -> Any:
    """Return data with images as Pillow images: as arrays, palette images would be color indices."""
    return part if part.format["type"] in (None, "custom") else part.with_format(None)


def _plain(value: Any) -> Any:
    """Return a list of numbers as an array."""
    return np.asarray(value) if isinstance(value, list) else value


def _is_scalar(value: Any) -> bool:
    if is_picture(value) or (isinstance(value, Mapping) and "bytes" in value):  # an image that is not decoded
        return False
    return value is None or isinstance(value, str) or (np.isscalar(value) or np.ndim(as_numpy(value)) == 0)
