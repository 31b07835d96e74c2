"""Data from Hugging Face Datasets and from FederatedDatasets of flwr-datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data.checks import ExampleKind
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
    kind: ExampleKind | None,
    name: str,
    rules: Any = None,
    *,
    group: str | None = None,
    time: str | None = None,
) -> OwnData:
    """Read a Hugging Face Dataset; see `fedreach.data.federated.FederatedData.from_huggingface`."""
    named = [] if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    if inputs is not None and not (named and all(isinstance(column, str) for column in named)):
        raise ConfigError(f"from_huggingface: inputs must be a column or a list of columns; got {inputs!r}.")
    parts, ids, is_natural = _parts(ds, client, split)
    for part in parts:
        size(part, name)
        if label not in part.column_names:
            raise ConfigError(f"table: unknown column {label!r}.{nearest(label, part.column_names)}")
    columns = [c for c in parts[0].column_names if c not in (client, label) and not INDEX.fullmatch(c)]
    of_client = client or "client"
    if ids is None:
        owners, names = numbered_column({str(client): _column(parts, str(client))}, str(client))
    else:
        numbers, names = numbered_list("clients", ids)
        owners = np.repeat(numbers, [len(part) for part in parts])
        if is_natural:  # the column with the names of the clients is not an input
            naming = [c for c in columns if _names_parts(parts, c, ids)]
            columns, of_client = [c for c in columns if c not in naming], naming[0] if naming else of_client
    if not len(owners):
        raise DataError(f"{name} must have at least one example; got none.")
    first = next(part for part in parts if len(part))[0]
    nested = [column for column in columns if not _is_scalar(first[column])]
    if inputs is None and not nested:
        table = {column: _column(parts, column) for column in [*columns, label]}
        while of_client in table:
            of_client += "_"
        table[of_client] = pa.array([names[owner] for owner in owners.tolist()])
        return of_frame(table, of_client, label, name, columns=rules, group=group, time=time)
    if rules is not None:
        raise ConfigError("from_huggingface: columns requires a table, but the inputs are arrays. Remove columns.")
    roles = {str(client): "client", label: "label", **dict.fromkeys(named, "column of inputs")}
    check_roles({"group": group, "time": time}, roles)
    together = together_of({column: _column(parts, column) for column in (group, time) if column}, group, time)
    columns = [column for column in columns if column not in (group, time)]
    if inputs is None and len(columns) > 1:
        raise ConfigError(
            f"from_huggingface: inputs must be one of the columns {columns}; got none. Use inputs={nested[0]!r}."
        )
    named = named or columns
    for column in named:
        if column not in parts[0].column_names:
            raise ConfigError(f"table: unknown column {column!r}.{nearest(column, parts[0].column_names)}")
        if type((getattr(parts[0], "features", None) or {}).get(column)).__name__ == "Image":
            # Arrays of palette images would contain color indices.
            parts = [part if part.format["type"] in (None, "custom") else part.with_format(None) for part in parts]
    every = (row for part in parts for row in (part[i] for i in range(len(part))))
    if isinstance(inputs, str | None):
        rows = ((row[named[0]], row[label]) for row in every)
    else:
        rows = (({column: _plain(row[column]) for column in named}, row[label]) for row in every)
    x, y = samples(rows, len(owners), name, kind)
    class_names = _words(parts[0], label)
    return of_samples(x, y, owners, names, kind=kind, name=name, class_names=class_names, together=together)


def _column(parts: Sequence[Any], name: str) -> pa.Array:
    """Return a column of all parts. Classes become their names, or None if the class is unknown (-1)."""
    if name not in parts[0].column_names:
        raise ConfigError(f"table: unknown column {name!r}.{nearest(name, parts[0].column_names)}")
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
    """Return whether all rows of a column contain the name of their part."""
    columns = [as_arrow(part[column]) for part in parts]
    if any(pa.types.is_nested(values.type) for values in columns):
        return False
    return all(
        set(map(str, values.unique().to_pylist())) <= {name} for values, name in zip(columns, names, strict=True)
    )


def _parts(ds: Any, client: str | None, split: str) -> tuple[list[Any], list[str] | None, bool]:
    """Return the parts of a FederatedDataset, their clients, and whether a column contains the clients.

    Another Dataset is a single part, without clients.
    """
    if not hasattr(ds, "load_partition"):
        if client is None:
            raise ConfigError("from_huggingface: client must be the column of the client, such as client='writer_id'.")
        return [ds], None, False
    if client is not None:
        raise ConfigError("from_huggingface: a FederatedDataset already has clients. Remove the argument client.")
    first = ds.load_partition(0, split)  # must be called before the number of partitions is known
    partitioner = ds.partitioners[split]
    natural = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    count = int(partitioner.num_partitions)
    parts = [first, *(ds.load_partition(number, split) for number in range(1, count))]
    return parts, [str(natural.get(number, number)) for number in range(count)], bool(natural)


def _words(ds: Any, column: str) -> list[str] | None:
    """Return the class names of a column of classes, or None for another column."""
    return getattr((getattr(ds, "features", None) or {}).get(column), "names", None)


def _plain(value: Any) -> Any:
    """Convert a list to an array."""
    return np.asarray(value) if isinstance(value, list) else value


def _is_scalar(value: Any) -> bool:
    if is_picture(value) or (isinstance(value, Mapping) and "bytes" in value):  # a compressed image
        return False
    return value is None or isinstance(value, str) or (np.isscalar(value) or np.ndim(as_numpy(value)) == 0)
