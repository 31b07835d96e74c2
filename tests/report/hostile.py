"""Hostile names for tests, and what a name must not do to a page, a LaTeX file, a CSV file, JSON or a terminal."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from fedreach._util.tables import FORMULA, UNFIT_FOR_CSV, visible

PIECES = (
    # HTML and JavaScript
    *("<script>alert(1)</script>", "</script>", "<img src=x onerror=alert(1)>", '" onclick="x', "' onload='x", "<!--"),
    *("]]>", "&lt;", "&#60;", "</style>", "</title>", "javascript:x", "{{ 7 * 7 }}", "{% raw %}", "<b>", "</td>"),
    # LaTeX, BibTeX and Markdown
    *(
        "\\input{/etc/passwd}",
        "\\write18{x}",
        "\\end{tabular}",
        "\\",
        "%",
        "&",
        "$",
        "#",
        "_",
        "^",
        "~",
        "{",
        "}",
        "^^5c",
    ),
    *("@article{x,", "``", "[x](http://x)", "![x](http://x)", "**", "|", "`", "\n\n# x", "--", "$$", "\\\\"),
    # terminals
    *("\x1b[2J", "\x1b]8;;http://x\x07", "\x9b2J", "\b\b", "\r", "\a", "\x7f", "\x85", "[red]", "[link=x]", ":smile:"),
    # spreadsheets
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "=cmd|' /C calc'!A0", "＝1", "'", '"', ",", ";", '""'),
    # Unicode
    *("\u202e", "\u2066", "\u200b", "\ufeff", "\u2028", "\u2029", "\0", "\ud800", "\udc80", "\U000e0041", "e\u0301"),
    *(
        "\u0301" * 9,
        "é",
        "病院",
        "ﷺ",
        "\U0001f468\u200d\U0001f469",
        "٣",
        "½",
        "\ufffe",
        "\U0010ffff",
        "\u00a0",
        "\u3000",
    ),
    # files and words that programs read as something else
    *("../x", "/etc/passwd", "a\\b", "C:", "con", "NUL.txt", "aux", ".", "..", "nan", "None", "inf", "1e5", "007", "-"),
    *("null", "true", "N/A", "__proto__", "a: b", "- ", "plain-1"),
    *("\n", "\r\n", "\t", " "),
)
ROUGH = st.lists(st.one_of(st.sampled_from(PIECES), st.text(st.characters(codec=None), max_size=4)), max_size=4)
NAMES = st.one_of(
    ROUGH.map("".join),
    st.sampled_from(PIECES),
    st.sampled_from(
        ["", " ", "\n", "\u3000", "x" * 10_000, "long name " * 1000, "é" * 999, "病" * 3000, "\x1b[2J" * 999]
    ),
)
ALIKE = st.sampled_from([("a\x1b", "a\\x1b"), ("a", "a "), ("a\n", "a\\n"), ("a", "'a"), ("é", "e\u0301"), ("a", "A")])
"""Pairs of names that look the same once they are escaped."""


def different_names(size: int) -> st.SearchStrategy[list[str]]:
    """Draw names of which no two are the same, though some look the same."""
    drawn = st.lists(NAMES, min_size=size, max_size=size, unique=True)
    return st.one_of(drawn, st.tuples(ALIKE, drawn).map(lambda pair: list(dict.fromkeys([*pair[0], *pair[1]]))[:size]))


def replaced(value: Any, names: Mapping[str, str]) -> Any:
    """Return a JSON value with other names, in its texts and its keys."""
    if isinstance(value, dict):
        return {replaced(key, names): replaced(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, names) for inner in value]
    if isinstance(value, str):
        return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], value)
    return value


# ---- Pages


class Page(html.parser.HTMLParser):
    """Elements of a page with the names of their attributes, the values of attributes, and the text."""

    VOID = frozenset(("meta", "wbr", "br", "img", "link", "input", "hr", "path", "use", "rect", "line", "circle"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[tuple[str, ...]] = set()
        self.links: set[str] = set()
        self.scripts, self.open, self.text = 0, [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add((tag, *(key for key, _ in attrs)))
        self.links |= {str(value) for key, value in attrs if key in ("href", "src", "style", "xlink:href")}
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


# ---- LaTeX

CONTROL = re.compile(r"\\(?:[a-zA-Z]+\*?|.)", re.DOTALL)


def check_latex(text: str, known: Iterable[str] | None = None) -> set[str]:
    """Check the structure of a LaTeX file, and return its commands; `known` are the only ones that it may have."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", text), "a control character"
    lines = [line for line in text.split("\n") if not line.startswith("%")]
    body = re.sub(r" % [\d.]+ in wide; .*", "", "\n".join(lines))
    assert "%" not in CONTROL.sub("", body), "an unescaped %"
    commands = set(CONTROL.findall(body))
    assert known is None or commands <= set(known), commands - set(known)
    bare = CONTROL.sub("", body)
    depth = 0
    for sign in re.findall("[{}]", bare):
        depth += 1 if sign == "{" else -1
        assert depth >= 0, "a } too many"
    assert depth == 0, "a { too many"
    for line in re.sub(r"\\[$]", "", body).split("\n"):
        outside = line.split("$")
        assert len(outside) % 2 == 1, f"an odd number of $: {line}"
        if not line.startswith(
            ("\\label", "\\begin", "\\includegraphics", "\\setlength", "\\sisetup", "\\end", "\\input")
        ):
            assert not re.search(r"[_^#]", CONTROL.sub("", "".join(outside[::2]))), line
    opened: list[str] = []
    for which, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", body):
        if which == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    for rows in re.findall(r"\\midrule\n(.*?)\n\\bottomrule", body, re.DOTALL):
        counts = {re.sub(r"\\&", "", row).count("&") for row in rows.split("\n")}
        assert len(counts) == 1, "rows differ in their number of cells"
        assert all(row.endswith("\\\\") for row in rows.split("\n"))
    for caption in re.findall(r"\\caption\{(.*)", body):
        assert caption.endswith("}"), "a caption of several lines"
    return commands


# ---- CSV, JSON, terminals


def check_csv(text: str) -> list[list[str]]:
    """Check that a CSV file has no formula and reads the same in pandas; return its cells without apostrophes."""
    import pandas as pd

    text.encode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len({len(row) for row in rows}) == 1
    frame = pd.read_csv(io.StringIO(text, newline=""), header=None, dtype=str, keep_default_na=False, na_filter=False)
    assert frame.to_numpy().tolist() == rows
    for cell in (cell for row in rows for cell in row):
        assert not cell.startswith(FORMULA) or float(cell) is not None
    return [
        [cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell for cell in row] for row in rows
    ]


def csv_name(name: str) -> str:
    """Return a name as CSV has it."""
    return UNFIT_FOR_CSV.sub(lambda found: visible(found[0]), name)


def strict_json(text: str) -> Any:
    """Return a JSON document, which has neither nan nor infinity, and no key twice."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), "a key twice"
        return dict(pairs)

    text.encode()
    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def check_terminal(text: str, width: int | None = None) -> None:
    """Check that no character of a text commands a terminal or turns the text, and that the text fits the width."""
    from rich.cells import cell_len

    odd = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not odd, ascii(odd)
    assert width is None or max(map(cell_len, text.split("\n"))) <= width
