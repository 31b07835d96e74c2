"""Tables for the terminal fit it, and show cells as they are."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from fedreach._util.text_tables import folded, text_table
from fedreach.cli import options

from .terminals import on_terminal

ROWS = [["a name that is rather long", "trains", "1,234.5 ± 6.7"], ["b", "never", "0.1"]]


def test_texts_stand_left_and_numbers_right_under_headers_of_several_lines() -> None:
    assert text_table(["client", "role", "mean\nscore"], ROWS, None, left=2).splitlines() == [
        "                                             mean",
        "client                      role            score",
        "──────────────────────────  ──────  ─────────────",
        "a name that is rather long  trains  1,234.5 ± 6.7",
        "b                           never             0.1",
    ]


@pytest.mark.parametrize("width", [49, 48, 40, 35, 31])
def test_a_table_fits_as_texts_are_folded_and_numbers_are_not(width: int) -> None:
    lines = text_table(["client", "role", "score over rounds"], ROWS, width, left=2).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[-1] for line in lines if line.startswith(("b ", "a "))] == ["6.7", "0.1"]
    assert sum("1,234.5 ± 6.7" in line for line in lines) == 1
    first = [
        line[: line.find("  ")] if "  " in line else line for line in lines if not line.startswith(("b", " ", "─"))
    ]
    assert " ".join(first).split()[-6:] == ROWS[0][0].split()


def test_numbers_stay_whole_where_the_terminal_has_no_room_for_them() -> None:
    lines = text_table(["client", "role", "score"], ROWS, 10, left=2).splitlines()
    assert sum(line.endswith(" 1,234.5 ± 6.7") for line in lines) == 1


def test_a_very_long_cell_leaves_room_for_the_other_rows() -> None:
    text = text_table(["client", "n"], [["x" * 5000 + "y" * 5000, "1"], ["b", "2"]], 80)
    assert text.count("\n") <= 6
    assert text.count("x") == 100
    assert "x" * 9 + "…" in text
    assert "x" * 5000 in text_table(["client", "n"], [["x" * 5000, "1"]], None)


def test_the_widest_column_is_folded_first() -> None:
    lines = text_table(["x", "y", "n"], [["one two three four five", "six seven ate", "9"]], 31, left=2).splitlines()
    assert lines[2:] == ["one two three  six seven ate  9", "four five"]


def test_headers_of_numbers_are_folded_down_to_the_numbers() -> None:
    lines = text_table(["client", "ankle boots", "t-shirts"], [["a", "12", "3456"]], 22).splitlines()
    assert max(map(len, lines)) <= 22
    assert lines[-1].split() == ["a", "12", "3456"]
    assert {"ankle", "boots"} <= {word for line in lines for word in line.split()}


def test_a_column_without_numbers_may_become_as_narrow_as_a_letter() -> None:
    lines = text_table(["client", "seen"], [["a", ""]], 9).splitlines()
    assert [line[8:] for line in lines] == ["s", "e", "e", "n", "─", ""]


def test_wide_letters_are_counted_twice_and_accents_not_at_all() -> None:
    lines = text_table(["病院", "n"], [["東京都の病院", "1"], ["Zu\u0308rich", "23"]], None).splitlines()
    assert {cell_len(line) for line in lines} == {16}
    assert [line[-2:] for line in lines[2:]] == [" 1", "23"]
    narrow = text_table(["h", "n"], [["東京都の病院", "1"]], 11).splitlines()
    assert narrow[2:] == ["東京都の  1", "病院"]


@pytest.mark.parametrize("cell", ["[bold]x[/bold]", "**x**", ":smile:", "False", "1e5", "007", "", "a  b", " c"])
def test_a_cell_is_shown_as_it_is(cell: str) -> None:
    assert text_table(["h" * 20, "n"], [[cell, "1"]], None).splitlines()[2] == f"{cell:20}  1"


def test_no_cell_header_or_note_moves_the_cursor() -> None:
    bad = "a\x1b[2J\r\u2028b"
    shown = text_table([bad, "n"], [[f"{bad}\n", "1"]], 80, title=bad, note=bad)
    assert shown.replace("\n", "").isprintable()
    assert shown.count(r"a\x1b[2J\r\u2028b") == 4
    assert r"\u2028b\n  1" in shown


def test_title_and_note_are_folded_to_the_terminal() -> None:
    lines = text_table(["x", "n"], [["a", "1"]], 12, title="the title of it", note="and one note").splitlines()
    assert lines == ["the title of", "it", "", "x  n", "─  ─", "a  1", "", "and one note"]


def test_a_table_without_rows_is_its_header() -> None:
    assert text_table(["client", "n"], [], 80).splitlines() == ["client  n", "──────  ─"]


def test_lines_keep_their_indent_and_words_are_whole_where_they_can_be() -> None:
    assert folded("one two\n  three-four five", 12) == ["one two", "  three-four", "  five"]
    assert folded("ab three-four", 10) == ["ab", "three-four"]
    assert folded("abcdefgh", 3) == ["abc", "def", "gh"]
    assert folded("one two", None) == ["one two"]
    assert folded("", 5) == [""]


def test_tables_are_as_wide_as_the_terminal_and_wider_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_terminal():
        monkeypatch.setenv("COLUMNS", "91")
        assert options.width() == 91
    assert options.width() == options.LOG_WIDTH
