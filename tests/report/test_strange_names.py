"""Names that strangers chose change nothing but the text of pages, tables and terminals."""

from __future__ import annotations

import csv
import html.parser
import io
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.tables import FORMULA, UNFIT_FOR_CSV, csv_text, visible, visible_lines
from fedreach._util.text_tables import text_table
from fedreach.report.latex import escape
from fedreach.report.page import render_template
from fedreach.report.tables import Table

PIECES = ["<b onclick=x>", "</script>", "&lt;", '"', "'", "\\input{x}", "\\write18", "%", "&", "$", "#", "_", "{", "}"]
PIECES += ["^^5c", "\x1b[2J", "\x1b]8;;http://x\x07", "\r", "\b", "\u202e", "\u200b", "\0", "\n", "\t", "\ud800", "nan"]
PIECES += ["=1+1", "+", "-", "@", "[red]", "[link=x]", "None", "", " ", "é", "é", "＝", "\ufeff", "\u2028"]
NAMES = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=5).map("".join)
COMMAND = re.compile(r"\\(?:[a-z]+[0-9]*\{\}|[&%$#_{}])|\$(?:\\[a-zA-Z]+|[<>−-]|\^\{-\})\$|-\{\}|~")


class Parsed(html.parser.HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[object] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, [key for key, _ in attrs]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page(name: str) -> str:
    table = Table(name, ("setting", name), ("", name), ((name, name),), (0, 1), name)
    cells = {
        "figures": [],
        "cells": [],
        "methods": [],
        "table": table,
        "files": [name],
        "keys": [name],
        "settings": 1,
        "name": name,
    }
    return render_template("sweep.html", **cells)


PLAIN = Parsed(page("plain"))


@settings(max_examples=15, deadline=None)
@given(NAMES.filter(bool))
def test_a_page_has_the_same_elements_with_any_name(name: str) -> None:
    parsed = Parsed(page(name))
    assert parsed.elements == PLAIN.elements
    assert visible_lines(name) in "".join(parsed.texts)


@settings(max_examples=300, deadline=None)
@given(NAMES)
def test_latex_has_no_active_character_of_a_name(name: str) -> None:
    assert not re.search(r"[\\%&$#_{}^~\x00-\x1f]", COMMAND.sub("", escape(name)))


@settings(max_examples=100, deadline=None)
@given(NAMES, st.sampled_from([None, 40]))
def test_a_terminal_gets_no_command_and_no_markup(name: str, width: int | None) -> None:
    text = text_table([name, "n"], [[name, "1"]], width, title=name, note=name)
    assert visible_lines(text) == text
    if width is None and visible(name).strip() and "\n" not in name:
        assert visible(name).rstrip() in text


@settings(max_examples=300, deadline=None)
@given(NAMES, NAMES)
def test_csv_gives_the_same_name_and_no_formula(name: str, column: str) -> None:
    text = csv_text([{"number": -1.5, f"c{column}": name}])
    text.encode()
    header, row = csv.reader(io.StringIO(text, newline=""))
    fit = UNFIT_FOR_CSV.sub(lambda found: visible(found[0]), name)
    assert header[1] == "c" + UNFIT_FOR_CSV.sub(lambda found: visible(found[0]), column)
    assert row[0] == "-1.5"
    assert row[1] in (fit, f"'{fit}")
    if row[1].startswith(FORMULA):
        float(row[1])
