"""Tables of any library, and files of them: the same columns, cell by cell."""

import gzip
from datetime import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedreach._util.errors import RELATIVE, ConfigError, DataError
from fedreach.data.cells import BOOLEANS, EMPTY, cells_by_name, index_names, named_rows
from fedreach.data.federated import FederatedData
from fedreach.data.table_source import as_arrow, read_table

N = 40
TIME = datetime(2024, 2, 28)


@st.composite
def frames(draw):
    """A frame of pandas with a column of each kind that people have, some cells empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    days = pd.to_datetime(TIME) + pd.to_timedelta(rng.integers(0, 99, N), "D")
    moments = pd.to_datetime(TIME) + pd.to_timedelta(rng.integers(0, 10**6, N), "s")
    columns = {
        "site": rng.permutation(np.resize(["007", "7", "1_1", "11", "x y", 'q"u,o'], N)),
        "ill": rng.choice(["no", "yes"], N),
        "number": rng.normal(size=N),
        "narrow": rng.normal(size=N).astype(np.float32),
        "whole": rng.integers(-(10**9), 10**9, N),
        "smoker": rng.random(N) > 0.5,
        "level": pd.Categorical(rng.integers(0, 4, N)),
        "word": pd.Categorical(rng.choice(["a", "b b", "c,d"], N)),
        "digits": [f"{value:03}" for value in rng.integers(0, 99, N)],
        "day": days,
        "moment": moments,
        "zoned": moments.tz_localize("Europe/Paris"),
        "nullable": pd.array(rng.integers(0, 9, N), dtype="Int64"),
        "maybe": pd.array(rng.random(N) > 0.5, dtype="boolean"),
    }
    frame = pd.DataFrame(columns)
    for name in draw(st.sets(st.sampled_from(["number", "word", "day", "nullable", "maybe", "zoned"]))):
        frame.loc[rng.integers(0, N, 3), name] = None
    return frame


@st.composite
def column_options(draw):
    """What may be said of these columns."""
    named = draw(st.permutations(["whole", "word", "smoker", "level", "digits", "nullable", "day", "maybe", "number"]))
    drop, category, other = (named[3 * i : 3 * i + draw(st.integers(0, 3))] for i in range(3))
    kinds = {"smoker": "boolean", "maybe": "boolean", "day": "date"}
    options = {"drop": drop, "category": [name for name in category if name != "number"]}  # 1e-05 has many spellings
    for name in other:
        if name != "word":
            options.setdefault(kinds.get(name, "number"), []).append(name)
    missing = draw(st.lists(st.sampled_from(["a", 3, -9, "true", "2024-03-01", "b b", "?"]), max_size=3))
    return {**options, "missing": missing, "decimal": draw(st.sampled_from(".,"))}


def sources(frame, folder, decimal="."):
    """Yield a table by all ways that it can come in."""
    frame.to_csv(folder / "a.csv", index=False, decimal=decimal)
    frame.to_parquet(folder / "a.parquet")
    other = pl.from_pandas(frame)
    other.write_csv(folder / "b.csv", separator=";", decimal_comma=decimal == ",")
    (folder / "c.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + (folder / "a.csv").read_bytes()))
    yield from (folder / name for name in ("a.csv", "a.parquet", "b.csv", "c.csv.gz"))
    yield from (other, other.lazy(), pa.Table.from_pandas(frame), frame.sort_values("whole").sort_index())
    yield {name: frame[name].to_numpy() if name == "narrow" else list(frame[name]) for name in frame}


@settings(max_examples=8, deadline=None)
@given(frames())
def test_a_table_is_the_same_whatever_it_comes_from(tmp_path_factory, frame):
    folder = tmp_path_factory.mktemp("sources")
    wanted = FederatedData.from_frame(frame, client="site", label="ill", participants=3)
    for source in sources(frame, folder):
        found = FederatedData.from_frame(source, client="site", label="ill", participants=3, name="table")
        assert found.client_names == wanted.client_names
        assert found.dataset.preparation == wanted.dataset.preparation
        assert found.digest() == wanted.digest()


@settings(max_examples=15, deadline=None)
@given(frames(), column_options())
def test_what_is_said_of_columns_means_the_same_for_all_sources(tmp_path_factory, frame, columns):
    said = {"client": "site", "label": "ill", "participants": 3, "columns": columns}
    wanted = FederatedData.from_frame(frame, **said)
    held = {column.name: column.kind for column in wanted.schema.columns}
    assert [held[name] for name in columns["drop"]] == ["dropped"] * len(columns["drop"])
    for kind in ("category", "number", "date", "boolean"):
        assert {held[name] for name in columns.get(kind, ())} <= {kind, "left out"}
    for source in sources(frame, tmp_path_factory.mktemp("sources"), columns["decimal"]):
        found = FederatedData.from_frame(source, name="table", **said)
        assert found.schema == wanted.schema
        assert found.digest() == wanted.digest()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip), min_size=2))
@example(["True", "True"])
@example(["True", "true", "FALSE"])
def test_there_are_as_many_clients_as_texts(tmp_path_factory, names):
    held = [name for name in names if name.strip() not in EMPTY]
    path = tmp_path_factory.mktemp("names") / "t.csv"
    pd.DataFrame({"site": held, "x": range(len(held))}).to_csv(path, index=False)
    for source in (path, {"site": held}):
        if held:
            clients = index_names("site", named_rows("site", read_table(source)["site"]))[1]
            written = {name.casefold() if name.casefold() in BOOLEANS else name for name in held}
            assert set(clients) <= set(held) | written
            assert len(clients) == len(set(held))


def test_names_that_look_alike_are_two_and_that_is_told():
    sites = ["north", "north ", "North", "007", "7", "south"] * 4
    table = {"site": sites, "age": range(24), "ill": ["no", "yes", "yes"] * 8}
    data = FederatedData.from_frame(table, client="site", label="ill")
    assert data.num_clients == 6
    assert "site  client   ('North' and 'north' are different names)" in str(data.schema)
    assert "different names" not in str(
        FederatedData.from_frame({**table, "site": ["007", "7"] * 12}, client="site", label="ill").schema
    )


def test_an_index_is_no_column(tmp_path):
    frame = pd.DataFrame({"b": [2, 1], "a": [1.5, 2.5]}).sort_values("b")
    frame.to_csv(tmp_path / "i.csv")
    frame.to_parquet(tmp_path / "i.parquet")
    frame.reset_index(drop=True).to_csv(tmp_path / "j.csv")
    assert list(read_table(frame)) == list(read_table(tmp_path / "i.parquet")) == ["b", "a"]
    assert list(read_table(pa.Table.from_pandas(frame))) == ["b", "a"]
    assert list(read_table(tmp_path / "i.csv")) == list(read_table(tmp_path / "j.csv")) == ["b", "a"]
    (tmp_path / "r.csv").write_text('"","b","a"\n"1",2,1.5\n"2",1,2.5\n')  # as R writes it
    assert list(read_table(tmp_path / "r.csv")) == ["b", "a"]


@pytest.mark.parametrize("text", [",b\nx,1\ny,2\n", ",b\n1,1\n1,2\n", "b,\n1,0\n2,1\n"])
def test_a_column_without_a_name_that_numbers_no_rows_is_refused(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=r"column . of 2 has none"):
        read_table(tmp_path / "t.csv")


def test_an_index_is_told_whatever_it_comes_from(tmp_path):
    frame = pd.DataFrame({"site": ["n", "s"] * 8, "age": range(30, 46), "ill": ["no", "yes", "yes", "no"] * 4})
    frame.to_csv(tmp_path / "i.csv")
    frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "i.parquet")
    for name in ("i.csv", "i.parquet"):
        data = FederatedData.from_frame(tmp_path / name, client="site", label="ill", name="t")
        assert "__index_level_0__  left out  pandas index" in str(data.schema)
        assert data.digest() == FederatedData.from_frame(frame, client="site", label="ill", name="t").digest()


def test_an_index_that_pandas_read_as_a_column_is_no_input():
    columns = {"site": ["n", "s"] * 20, "age": [i * 7 % 50 for i in range(40)], "ill": ["no", "yes", "yes", "no"] * 10}
    table = {"Unnamed: 0": range(40), **columns}
    data = FederatedData.from_frame(table, client="site", label="ill", participants=["n", "s"])
    assert data.schema.feature_names == ("age",)
    assert "Unnamed: 0  left out  probably a row number" in str(data.schema)


def test_separators_in_a_name_do_not_count(tmp_path):
    (tmp_path / "t.csv").write_text('"a, b, c, d";e;f\n1;2;3\n')
    assert list(read_table(tmp_path / "t.csv")) == ["a, b, c, d", "e", "f"]


def test_lines_of_an_old_mac_are_lines(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a;b\r1;2,5\r3;4,5,6,7\r")  # commas of other lines are none of the first
    assert list(read_table(tmp_path / "t.csv")) == ["a", "b"]


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a,a\n1,2\n")
    for source in (frame, pa.table([[1], [2]], names=["a", "a"]), tmp_path / "t.parquet", tmp_path / "t.csv"):
        with pytest.raises(DataError, match="got 'a' twice"):
            read_table(source)


def test_what_is_no_table_is_refused():
    for nothing in (np.zeros((3, 2)), [1, 2], 5):
        with pytest.raises(ConfigError, match="table must have named columns"):
            read_table(nothing)


def test_tensors_and_mixed_cells_are_columns_and_lists_are_none():
    import torch

    assert as_arrow(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).to_pylist() == [1.0, 1.0]
    assert as_arrow([torch.tensor(3), torch.tensor(4)]).to_pylist() == [3, 4]
    assert as_arrow([12, "12", None, float("nan")]).to_pylist() == ["12", "12", None, None]
    cells = cells_by_name(read_table({"x": [[1, 2], [3]], "y": np.zeros((2, 3)), "z": [1j, 2j]}))
    assert list(cells.values()) == [None, None, None]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_cells_of_a_file_stay_as_they_stand(tmp_path, separator):
    text = 'hospital,age,ward\nnorth,030,heart\n" south",,"a ""b""\nc"\n\neast,50.5, \n'.replace(",", separator)
    (tmp_path / "p.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = {name: column.to_pylist() for name, column in read_table(tmp_path / "p.csv").items()}
    assert found == {
        "hospital": ["north", " south", "east"],
        "age": ["030", "", "50.5"],
        "ward": ["heart", 'a "b"\nc', " "],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n", "at least one row"),
        (b"", "at least one row"),
        (b"a,b\n1,2\n\n3\n", "must have 2 cells; got 1: '3'"),
        (b"a,b\n\xff,1\n", "must be text in UTF-8.*iconv -f LATIN1"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16.*iconv -f UTF-16"),
        ("a,b\n1,2\n".encode("utf-16-le"), "UTF-16.*iconv -f UTF-16"),
        ("a,b\n1,2\n".encode("utf-16-be"), "UTF-16.*iconv -f UTF-16"),
        ("a,b\n1,2\n".encode("utf-32"), "a NUL, byte "),
        ("a,b\n1,2\n".encode("utf-32-be"), "a NUL, byte 0"),
        (b"a,b\n1,\0\n", "a NUL, byte 6"),
    ],
)
def test_a_damaged_text_file_is_refused_with_what_to_do(tmp_path, content, message):
    (tmp_path / "p.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "p.csv")


def test_other_files_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"got '.xlsx'. Save a spreadsheet as .csv, or .*pandas.read_excel"):
        read_table("p.xlsx")
    with pytest.raises(DataError, match=r"must end in .csv, .*got '.json'"):
        read_table("p.json")
    with pytest.raises(DataError, match="must be a readable table"):
        read_table(tmp_path / ("p" * 300 + ".csv"))  # a name that no file may have
    (tmp_path / "p.csv.gz").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(DataError, match="must be a readable table"):
        read_table(tmp_path / "p.csv.gz")
    (tmp_path / "p.parquet").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(DataError, match="must be a readable Parquet file"):
        read_table(tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("name", "others", "advice"),
    [
        ("patient.csv", 0, " Did you mean 'patients.csv'?"),
        ("patient.csv", 30, " Did you mean 'patients.csv'?"),
        ("visit.parquet", 0, " Did you mean 'visits.parquet'?"),
        ("zzz.csv", 30, ""),  # too many to name them
        ("folder/patients.csv", 0, ""),
    ],
)
def test_of_a_file_that_is_missing_the_nearest_is_named(tmp_path, name, others, advice):
    for there in ("patients.csv", "visits.parquet", *(f"{i:032x}.csv" for i in range(others))):
        (tmp_path / there).touch()
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: file not found.{advice} {RELATIVE}"


def test_a_name_over_two_lines_leaves_all_cells_texts(tmp_path):
    (tmp_path / "t.csv").write_text('a,"b\nc",d,e\n1,2,3,4\n')
    assert {name: column.to_pylist() for name, column in read_table(tmp_path / "t.csv").items()} == {
        "a": ["1"],
        "b\nc": ["2"],
        "d": ["3"],
        "e": ["4"],
    }


def test_what_arrow_has_no_type_for_is_read_cell_by_cell():
    frame = pl.DataFrame({"a": pl.Series([1, 2], dtype=pl.Int128), "b": ["x", "y"]})
    assert {name: column.to_pylist() for name, column in read_table(frame).items()} == {"a": [1, 2], "b": ["x", "y"]}


def test_a_table_without_rows_is_refused():
    with pytest.raises(DataError, match=r"table: must have at least one row; got none"):
        FederatedData.from_frame(pd.DataFrame({"site": [], "ill": []}), client="site", label="ill")
