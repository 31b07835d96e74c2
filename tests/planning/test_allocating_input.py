"""Mistakes in a table of clients or in the options of `fedreach allocate`: named, with the first bad client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedreach.wireless.planning import RANGES, read_clients

from .small_tables import G1, RADIO, RADIO_QUESTION, text_of, with_

Refused = Callable[..., str]


# ------------------------------------------------------------------------------------------- what spreadsheets write


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + text_of(G1).encode(),
        text_of(G1, ";").encode(),
        text_of(G1, "\t").encode("utf-16"),
        text_of(G1).replace("\n", "\r\n").encode(),
        text_of(G1).replace(",", " , ").encode(),
        text_of(G1).replace("\n", ",,\n").encode(),
        ("\n\n" + text_of(G1).replace("\n", "\n , ,,,,\n\n")).encode(),
        text_of(G1).replace("num_examples", '"num_examples"').replace(",100\n", ',"100"\n').encode(),
        text_of(G1).rstrip().encode(),
    ],
    ids=["mark", "semicolons", "utf16", "crlf", "spaces", "trailing", "blank", "quoted", "no-end"],
)
def test_what_spreadsheets_write_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "clients.csv").write_bytes(content)
    clients = read_clients(tmp_path / "clients.csv")
    assert clients.names == ("a", "b", "c", "d", "e")
    assert set(clients.numbers) == set(G1[0]) - {"client"}
    for name, values in clients.numbers.items():
        assert values.tolist() == [row[name] for row in G1]


BAD_TABLES = {
    "empty": ("", "clients.csv: must have a line of column names"),
    "no clients": (text_of(G1).splitlines()[0], "clients.csv: must have at least one client"),
    "ragged": (text_of(G1) + "f,0.1,1\n", "clients.csv:7: must have 6 cells, one per column; got 3."),
    "more": (text_of(G1).replace("100000000.0", "1,000,000.0"), "csv:2: must have 6 cells, one per column; got 8."),
    "twice": (text_of(with_(G1, 2, client="a")), "csv:4: each client must have one line; 'a' is also in line 2."),
    "nameless": (text_of(with_(G1, 2, client="")), "clients.csv:4: the client must have a name"),
    "unknown": (
        text_of(with_(G1, max_ghz=2)),
        "clients.csv: unknown column 'max_ghz'. Did you mean 'max_gigahertz'?",
    ),
    "no header": (text_of(G1).split("\n", 1)[1], "clients.csv: unknown column 'a'."),
    "same": (text_of(G1).replace("power_watts", "cycles"), "different names; got 'cycles' 2 times."),
    "missing": (
        text_of(with_(G1, drop=["power_watts"])),
        "clients.csv: the power requires one of the columns power_watts, power_dbm.",
    ),
    "examples": (text_of(with_(G1, drop=["num_examples"])), "clients.csv: the column num_examples is missing."),
    "mixed": (
        text_of(with_(G1, max_hertz=2e9)),
        "clients.csv: the highest CPU frequency must have one column; got max_hertz and max_gigahertz.",
    ),
    "fading": (text_of(with_(G1, fading_gain=1)), "fading_gain requires distance_meters; other columns"),
    "gap": (text_of(with_(G1, label_0=1, label_2=1)), "without gaps; label_2 exists, but not label_1."),
    "both": (text_of(with_(G1, label_0=1, divergence=0)), "divergence and label_0 must not be given together"),
    "labels": (
        text_of(with_(with_(G1, label_0=50, label_1=50), 3, label_0=70)),
        "clients.csv:3: client 'b': the sum of its labels must be num_examples = 150; got 100.",
    ),
    "quote": (text_of(G1) + 'f,"0.1,1,1,1,1', "clients.csv:7: unexpected end of data."),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_cannot_be_used_is_refused(refused: Refused, home: Path, case: str) -> None:
    content, message = BAD_TABLES[case]
    (home / "clients.csv").write_text(content, encoding="utf-8")
    assert message in refused(3, "allocate", "clients.csv", "--min-examples", 300)


def test_a_file_that_is_no_text_is_refused(refused: Refused, home: Path) -> None:
    for content, message in (
        (b"PK\x03\x04\xffrest", "clients.csv:1: must be UTF-8 text. Save the table as CSV (UTF-8)."),  # a workbook
        (text_of(with_(G1, 1, client="Zürich")).encode("cp1252"), "clients.csv:3: must be UTF-8 text."),
    ):
        (home / "clients.csv").write_bytes(content)
        assert message in refused(3, "allocate", "clients.csv", "--min-examples", 300)
    assert "other.csv: No such file" in refused(3, "allocate", "other.csv", "--min-examples", 300)
    assert ".: Is a directory" in refused(3, "allocate", ".", "--min-examples", 300)


BAD_CELLS = [
    ("upload_seconds", "0", "upload_seconds must be from 1e-09 to 100000; got 0. It is the upload time"),
    ("upload_seconds", "inf", "upload_seconds must be from 1e-09 to 100000; got inf."),
    ("upload_seconds", "1e999", "upload_seconds must be from 1e-09 to 100000; got 1e999."),
    ("upload_seconds", "nan", "upload_seconds must be a number with a decimal point, without unit"),
    ("upload_seconds", "", "thousands separators; got ''."),
    ("upload_seconds", "0,1", "thousands separators; got '0,1'."),
    (
        "upload_seconds",
        "0.1 s",
        "without unit and thousands separators; got '0.1 s'.",
    ),
    ("power_watts", "-0.2", "power_watts must be from 1e-06 to 10; got -0.2."),
    (
        "power_watts",
        "23",
        "power_watts must be from 1e-06 to 10; got 23. Use the column",
    ),
    ("cycles", "-1", "cycles must be from 1000 to 1e+18, or 0; got -1."),
    ("cycles", "2.5", "cycles must be from 1000 to 1e+18, or 0; got 2.5."),
    ("cycles", "1_000_000", "thousands separators; got '1_000_000'."),
    ("max_gigahertz", "0", "max_gigahertz must be from 0.0001 to 100; got 0."),
    (
        "max_gigahertz",
        "2e9",
        "max_gigahertz must be from 0.0001 to 100; got 2e9. Use the column max_hertz",
    ),
    ("max_gigahertz", "#N/A", "thousands separators; got '#N/A'."),
    (
        "num_examples",
        "10.5",
        "a whole number from 0 to 1.09951e+12, without a decimal point; got 10.5.",
    ),
    (
        "num_examples",
        "1.000",
        "a whole number from 0 to 1.09951e+12, without a decimal point; got 1.000.",
    ),
    ("num_examples", "1 000", "thousands separators; got '1 000'."),
    (
        "num_examples",
        "1e15",
        "a whole number from 0 to 1.09951e+12, without a decimal point; got 1e15.",
    ),
    ("num_examples", "1" * 5000, "without a decimal point; got 111111111111111111111111111111111111111…."),
    ("num_examples", "-1", "without a decimal point; got -1."),
]


@pytest.mark.parametrize(("column", "cell", "message"), BAD_CELLS, ids=lambda value: str(value)[:24])
def test_the_first_bad_client_is_named(refused: Refused, home: Path, column: str, cell: str, message: str) -> None:
    rows = with_(with_(G1, 3, **{column: cell}), 2, **{column: cell})
    (home / "clients.csv").write_text(text_of(rows), encoding="utf-8")
    said = refused(3, "allocate", "clients.csv", "--min-examples", 300)
    assert said.startswith("clients.csv:4: client 'c': ")
    assert message in said


@pytest.mark.parametrize(
    ("swap", "cell", "message"),
    [
        (
            {"max_gigahertz": "max_hertz"},
            "2.4",
            "max_hertz must be from 100000 to 1e+11; got 2.4. Use the column",
        ),
        ({"power_watts": "power_dbm"}, "200", "power_dbm must be from -30 to 60; got 200. Use the column power_watts"),
        ({"upload_seconds": "bits_per_second"}, "0", "bits_per_second must be from 1000 to 1e+13; got 0."),
        ({"upload_seconds": "bits_per_second"}, "20", "bits_per_second must be from 1000 to 1e+13; got 20."),
        (
            {"upload_seconds": "distance_meters"},
            "0.25",
            "distance_meters must be from 1 to 100000; got 0.25. The unit is",
        ),
    ],
)
def test_a_number_of_another_unit_is_refused(
    refused: Refused, home: Path, swap: dict[str, str], cell: str, message: str
) -> None:
    rows = [{swap.get(name, name): cell if name in swap else v for name, v in row.items()} for row in G1]
    (home / "clients.csv").write_text(text_of(rows), encoding="utf-8")
    assert message in refused(3, "allocate", "clients.csv", "--min-examples", 300, "--report-bits", 1e6)


# ---------------------------------------------------------------------------------------------------- the options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-examples", 0], "--min-examples must be from 1 to 1.09951e+12; got 0."),
        (["--min-examples", 300, "--bandwidth", 2], "--bandwidth must be from 10000 to 1e+12; got 2. The unit"),
        (["--min-examples", 300, "--bandwidth", "nan"], "--bandwidth must be from 10000 to 1e+12; got nan."),
        (["--min-examples", 300, "--bandwidth", "inf"], "--bandwidth must be from 10000 to 1e+12; got inf."),
        (["--min-examples", 300, "--noise-dbm", 174], "--noise-dbm must be from -300 to -50; got 174."),
        (["--min-examples", 300, "--time-weight", 0], "--time-weight must be from 1e-12"),
        (["--min-examples", 300, "--energy-weight", -1], "--energy-weight must be from 0"),
        (["--min-examples", 300, "--max-divergence", "nan"], "--max-divergence must be at least 0; got nan."),
        (["--min-examples", 300, "--max-divergence", 0.2], "--max-divergence requires the column"),
        (["--min-examples", 300, "--epochs", 2], "--epochs requires the column cycles_per_bit"),
        (["--min-examples", 300, "--report-bits", 9, "--model-parameters", 9], "must not be given together."),
        (["--min-examples", 300, "--carrier", 2.4e9], "--carrier requires the column"),
        (["--min-examples", 300, "--figure", "clients.gif"], "formats must be among svg, png, pdf; got 'gif'."),
        (["--min-examples", 300, "--out", "clients.csv"], "--out clients.csv would replace the table of clients"),
    ],
    ids=lambda value: " ".join(map(str, value))[20:] if isinstance(value, list) else "",
)
def test_an_option_that_cannot_be_meant_is_refused(
    refused: Refused, home: Path, options: list[object], message: str
) -> None:
    (home / "clients.csv").write_text(text_of(G1), encoding="utf-8")
    assert message in refused(2, "allocate", "clients.csv", *options)
    assert (home / "clients.csv").read_text() == text_of(G1)


@pytest.mark.parametrize("missing", ["bandwidth_hertz", "report_bits", "bits_per_example"])
def test_a_column_that_needs_an_option_says_so(refused: Refused, home: Path, missing: str) -> None:
    (home / "clients.csv").write_text(text_of(RADIO), encoding="utf-8")
    given = {name: value for name, value in RADIO_QUESTION.to_json().items() if name in RANGES and name != missing}
    options = [word for name, value in given.items() for word in (RANGES[name].flag, value)]
    assert f"requires {RANGES[missing].flag}" in refused(2, "allocate", "clients.csv", *options)


def test_too_few_examples_are_answered_with_the_nearest_thresholds(refused: Refused, home: Path) -> None:
    (home / "clients.csv").write_text(text_of(G1), encoding="utf-8")
    said = refused(2, "allocate", "clients.csv", "--min-examples", 651)
    assert "All 5 clients together have 650 examples; min_examples is 651. Lower min_examples to 650" in said
    divergence = ("0.4", "0.1", "inf", "0.25", "0.3")
    rows = [{**row, "divergence": far} for row, far in zip(G1, divergence, strict=True)]
    (home / "clients.csv").write_text(text_of(rows), encoding="utf-8")
    said = refused(2, "allocate", "clients.csv", "--min-examples", 400, "--max-divergence", 0.26)
    assert "2 of 5 clients are within max_divergence = 0.26 and have 270 examples;" in said
    assert "Lower min_examples to 270 or less or raise max_divergence to 0.3000." in said
    (home / "clients.csv").write_text(text_of(with_(rows, divergence="inf")), encoding="utf-8")
    said = refused(2, "allocate", "clients.csv", "--min-examples", 400, "--max-divergence", 0.26)
    assert "0 of 5 clients are within max_divergence = 0.26 and have 0 examples;" in said
    assert "All clients with a finite divergence together have 0 examples." in said
    assert "5 clients lack a class" in said
