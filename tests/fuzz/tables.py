"""Tables: data and clients as CSV or parquet, in some encoding, ragged, or not what their header says."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedreach.data import table_source
from fedreach.data.federated import FederatedData
from fedreach.data.own import of_file
from fedreach.wireless.planning import COLUMNS, read_clients

from .campaign import Target, WrongError
from .damage import damaged
from .files import TABLE

CELLS = st.sampled_from(
    [
        "",
        " ",
        "1",
        "1.5",
        "-3",
        "nan",
        "NA",
        "inf",
        "-inf",
        "1e400",
        "1_000",
        "0x1f",
        "١٢",
        "yes",
        "no",
        "a,b",
        'a"b',
        "a\nb",
        "x" * 10**6,
        "=1+1",
        "\0",
        "\x1b[2J",
        "9" * 5000,
        "9" * 19,
        "true",
        "1979-05-27",
        "ß",
        "\ufeff",
        "1;2",
        "1\t2",
        "'",
    ]
) | st.text(max_size=6)
HEADS = st.sampled_from(["who", "ill", "age", "who", "", " ", "ward", "age", "x\n", '"']) | st.text(max_size=4)


@st.composite
def csv_files(draw: st.DrawFn) -> bytes:
    """Draw a table as CSV, ragged or not, in some encoding."""
    head = draw(st.lists(HEADS, min_size=1, max_size=4, unique=draw(st.booleans())))
    head = head if draw(st.integers(0, 3)) == 0 else ["who", "ill", *head]
    rows = draw(st.lists(st.lists(CELLS, min_size=len(head), max_size=len(head)), max_size=6))
    if rows and draw(st.integers(0, 4)) == 0:
        rows[0] = draw(st.lists(CELLS, max_size=6))
    out = io.StringIO()
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    csv.writer(out, delimiter=draw(st.sampled_from(",;\t|")), quoting=quoting).writerows([head, *rows])
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32"]))
    return out.getvalue().encode(encoding, "replace")


def right_csv() -> bytes:
    rows = zip(*TABLE.values(), strict=True)
    return "\n".join([",".join(TABLE), *(",".join(map(str, row)) for row in rows)]).encode()


CSV = st.one_of(
    csv_files(), damaged(right_csv()), st.binary(max_size=40), st.sampled_from([b"", b"a", b"\n\n", b'"', b"\xff\xfe"])
)
OPTIONS = st.fixed_dictionaries(
    {"client": st.sampled_from(["who", "ward", "age"]), "label": st.sampled_from(["ill", "ward"])}
) | st.fixed_dictionaries(
    {
        "client": st.sampled_from(["who", "ward", "age"]),
        "target": st.sampled_from(["age", "ill", "x", [], ["age"], ["age", "age"], ["age", "ward"], ["age", "who"], 3]),
    }
)


def of_csv(folder: Path, given: tuple[bytes, dict[str, Any], str]) -> None:
    content, columns, ending = given
    path = folder / f"t{ending}"
    path.write_bytes(content)
    read = of_file(path, **columns)
    if "target" in columns and not np.isfinite(read.train_y.astype(np.float64)).all():
        raise WrongError("a target is not finite")
    FederatedData.from_frame(path, **columns)


CLEAN = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters="\ufeff"),
    min_size=1,
    max_size=8,
)


def of_written_csv(folder: Path, rows: list[tuple[str, str]]) -> None:
    """What the csv module wrote is what is read."""
    path = folder / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("p", "q"), *rows])
    read = table_source.read_table(path)
    for name, cells in zip(("p", "q"), zip(*rows, strict=True), strict=True):
        if read[name].to_pylist() != list(cells):
            raise WrongError(f"{cells} were read as {read[name].to_pylist()}")


def parquet_bytes() -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return b"PAR1"
    out = io.BytesIO()
    pq.write_table(pa.table(TABLE), out)
    return out.getvalue()


ALLOCATE_HEADS = st.sampled_from([*COLUMNS, "client", "label_0", "label_1", "label_3", "", "x"])
RIGHT_CLIENTS = (
    b"client,num_examples,upload_seconds,power_watts,cycles,max_hertz,label_0,label_1\n"
    b"a,100,2.5,0.2,2e8,1e9,50,50\nb,200,1.5,0.1,2e8,2e9,100,100\nc,300,0.5,0.2,3e8,1e9,0,300\n"
)


@st.composite
def client_tables(draw: st.DrawFn) -> bytes:
    lines = [line.split(",") for line in RIGHT_CLIENTS.decode().splitlines()]
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.integers(0, len(lines) - 1))
        column = draw(st.integers(0, len(lines[row]) - 1))
        lines[row][column] = draw(ALLOCATE_HEADS if row == 0 else CELLS)
    out = io.StringIO()
    csv.writer(out, delimiter=draw(st.sampled_from(",,;\t"))).writerows(lines)
    return out.getvalue().encode(draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])), "replace")


CLIENT_TABLES = client_tables() | damaged(RIGHT_CLIENTS) | CSV


def of_client_table(folder: Path, content: bytes) -> None:
    (folder / "clients.csv").write_bytes(content)
    read_clients(folder / "clients.csv")


TARGETS = [
    Target("CSV data", st.tuples(CSV, OPTIONS, st.sampled_from([".csv", ".tsv"])), of_csv, 4),
    Target("CSV data as written", st.lists(st.tuples(CLEAN, CLEAN), min_size=1, max_size=5), of_written_csv, 2),
    Target(
        "parquet data",
        st.tuples(damaged(parquet_bytes()) | st.binary(max_size=20), OPTIONS, st.just(".parquet")),
        of_csv,
    ),
    Target("tables of clients", CLIENT_TABLES, of_client_table, 4),
]
