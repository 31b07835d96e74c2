"""Tables as people have them, and what happens to them on the way: mutants, each made of its number alone."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from sklearn import datasets

Rows = list[list[str]]

STRANGE = [
    *("", " ", "NaN", "None", "NA", "N/A", "#N/A", "null", "-", "?", "<5", "12,5", "1.234,5", "+7", "-0.0", "1e3"),
    *("1e308", "-1e308", "1e400", "1e-320", "9" * 400, "inf", "-Infinity", "12345678901234567890", "0" * 19 + "1"),
    *("  7 ", "7.0", "007", "1_000", "0x1f", "١٢", "TRUE", "yes", "2024-02-30", "31.12.2023", "0000-00-00"),
    *("2024-01-01T00:00:00+02:00", "9999-12-31", "größe", "日本", "\u00a0", "\ufeff", "\u202e", "\u2028", "\x1b[2J"),
    *("a\nb", "a\r\nb", 'say "no"', "x,y", "x;y", "x\ty", "'", "=1+1", "[1, 2]", "x" * 1000, "\x85", "a | b"),
]
NAMES = ["", " ", "age", "age ", "AGE", "größe", "a\nb", "x,y", 'a"b', "Unnamed: 0", "id", "x" * 300, "1", "\ufeffage"]


@dataclass
class Draft:
    """A table, how it is written, and what is asked of it."""

    header: list[str]
    rows: Rows
    options: dict[str, str]  # of FederatedData.from_frame, whose values are columns
    rules: dict[str, Any] = field(default_factory=dict)  # its option `columns`
    separator: str = ","
    newline: str = "\n"
    encoding: str = "utf-8"
    quoting: int = csv.QUOTE_MINIMAL
    ending: str = ".csv"
    packed: bool = False
    damages: list[Callable[[bytes], bytes]] = field(default_factory=list)

    @property
    def named(self) -> list[int]:
        """Places of the columns that options name, as far as they are there."""
        return [place for place, name in enumerate(self.header) if name in self.options.values()]

    def written(self) -> bytes:
        """Return the bytes of the file, before it is packed."""
        out = io.StringIO()
        writer = csv.writer(out, delimiter=self.separator, lineterminator=self.newline, quoting=self.quoting)
        writer.writerow(self.header)
        writer.writerows(self.rows)
        content = out.getvalue().encode(self.encoding, "replace")
        for damage in self.damages:
            content = damage(content)
        return content


@dataclass(frozen=True)
class Mutant:
    """A file, and what is asked of it."""

    number: int
    base: str
    changes: tuple[str, ...]
    content: bytes  # not packed
    options: dict[str, str]
    rules: dict[str, Any]
    separator: str
    ending: str
    packed: bool

    @property
    def file_name(self) -> str:
        return f"m{self.number}{self.ending}{'.gz' if self.packed else ''}"

    @property
    def file_bytes(self) -> bytes:
        return gzip.compress(self.content, mtime=0) if self.packed else self.content

    def __str__(self) -> str:
        return f"mutant {self.number}: {self.base}, {', '.join(self.changes)}, {self.options}, {self.rules}"


# ------------------------------------------------------------------------------------------------------- base tables


def hospital() -> Draft:
    random, rows = Random(1), []
    for number in range(90):
        age = random.choice([str(random.randint(18, 95)), "?", ""] if number % 9 == 0 else [str(20 + number % 60)])
        crp = random.choice(["<5", f"{random.random() * 90:.1f}".replace(".", ","), f"{random.random() * 90:.1f}"])
        admitted = f"2024-{1 + number % 12:02}-{1 + number % 28:02}"
        place = random.choice(["007", "7", "12", "St. Mary, London", "ålesund"])
        ward, note = random.choice(["heart", "eyes", "lung", ""]), random.choice(["", "calm", 'says "no"'])
        smoker, ill = random.choice(["true", "false", "False"]), random.choice(["no", "yes"])
        rows.append([f"{number:05}", place, admitted, age, crp, smoker, ward, note, str(number % 13), ill])
    header = ["patient", "hospital", "admitted", "age", "crp", "smoker", "ward", "note", "days", "ill"]
    return Draft(header, rows, {"client": "hospital", "label": "ill"})


def stay() -> Draft:
    made = hospital()
    return replace(made, options={"client": "hospital", "target": "days", "group": "patient", "time": "admitted"})


def survey() -> Draft:
    random = Random(2)
    rows = [
        [
            random.choice(["Köln", "Zürich", "東京", "Paris, 5e", "Oslo"]),
            f"{random.random() * 3000:.2f}".replace(".", ","),
            random.choice(["1", "2", "3", "4", "5", "-"]),
            random.choice(["2023-05-01 10:00", "2023-05-02 11:30:15", ""]),
            str(random.randint(10**18, 10**19)),
            random.choice(["agree", "disagree", "don't know"]),
        ]
        for _ in range(60)
    ]
    header = ["stadt", "einkommen", "frage 1", "zeit", "nummer", "antwort"]
    return Draft(header, rows, {"client": "stadt", "label": "antwort"}, separator=";")


def shipped(name: str, label: bool, most_rows: int, most_columns: int) -> Draft:
    """Return a table of scikit-learn with a column of sites before it."""
    found = getattr(datasets, f"load_{name}")()
    names = [str(each) for each in found.feature_names][:most_columns]
    keep = range(0, len(found.data), -(-len(found.data) // most_rows))
    truth = [str(found.target_names[found.target[row]]) if label else f"{found.target[row]:g}" for row in keep]
    cells = [[f"{value:.6g}" for value in found.data[row][:most_columns]] for row in keep]
    rows = [[f"site {row % 6}", *each, answer] for row, (each, answer) in enumerate(zip(cells, truth, strict=True))]
    return Draft(["site", *names, "answer"], rows, {"client": "site", "label" if label else "target": "answer"})


BASES: dict[str, Callable[[], Draft]] = {
    "hospital": hospital,
    "stay": stay,
    "survey": survey,
    "breast cancer": lambda: shipped("breast_cancer", True, 100, 12),
    "wine": lambda: shipped("wine", True, 90, 13),
    "diabetes": lambda: shipped("diabetes", False, 100, 10),
}


# -------------------------------------------------------------------------------------------------- mutations of cells


def one_cell(draft: Draft, random: Random) -> None:
    random.choice(draft.rows)[random.randrange(len(draft.header))] = random.choice(STRANGE)


def named_cell(draft: Draft, random: Random) -> None:
    """Change a cell of the client, label, target, group or time."""
    random.choice(draft.rows)[random.choice(draft.named or [0])] = random.choice(STRANGE)


def many_cells(draft: Draft, random: Random) -> None:
    place, value = random.randrange(len(draft.header)), random.choice(STRANGE)
    for row in draft.rows:
        if random.random() < 0.2:
            row[place] = value


def swapped_cells(draft: Draft, random: Random) -> None:
    for _ in range(5):
        row, other = random.choice(draft.rows), random.choice(draft.rows)
        i, j = random.randrange(len(draft.header)), random.randrange(len(draft.header))
        row[i], other[j] = other[j], row[i]


def spaced_cells(draft: Draft, random: Random) -> None:
    """Put spaces around the cells of a column, here and there."""
    place = random.choice([*draft.named, random.randrange(len(draft.header))])
    for row in draft.rows:
        row[place] = random.choice(["", "", " ", "  ", "\t"]) + row[place] + random.choice(["", "", " "])


def letters_of_cells(draft: Draft, random: Random) -> None:
    """Write the cells of a column in capitals, here and there."""
    place = random.choice([*draft.named, random.randrange(len(draft.header))])
    for row in draft.rows:
        row[place] = row[place].upper() if random.random() < 0.3 else row[place]


# ------------------------------------------------------------------------------------------------ mutations of columns


def column(draft: Draft, random: Random, cell: Callable[[int], str]) -> None:
    place = random.randrange(len(draft.header))
    for number, row in enumerate(draft.rows):
        row[place] = cell(number)


def constant_column(draft: Draft, random: Random) -> None:
    value = random.choice(["1", "", "x", "NA", "-", "1e300"])
    column(draft, random, lambda _: value)


def column_of_ids(draft: Draft, random: Random) -> None:
    column(draft, random, lambda _: str(random.randint(10**19, 10**20)))


def column_of_lists(draft: Draft, random: Random) -> None:
    column(draft, random, lambda number: f"[{number}, 2]")


def column_of_huge_numbers(draft: Draft, random: Random) -> None:
    column(draft, random, lambda _: f"{random.uniform(-1, 1)}e{random.choice([30, 38, 60, 200, 300, 308])}")


def index_column(draft: Draft, random: Random) -> None:
    """Put an index before all columns, as pandas writes it."""
    draft.header.insert(0, random.choice(["", "", "index", "Unnamed: 0"]))
    for number, row in enumerate(draft.rows):
        row.insert(0, str(number))


def renamed_column(draft: Draft, random: Random) -> None:
    draft.header[random.randrange(len(draft.header))] = random.choice(NAMES)


def name_twice(draft: Draft, random: Random) -> None:
    draft.header[random.randrange(len(draft.header))] = random.choice(draft.header)


def reordered_columns(draft: Draft, random: Random) -> None:
    order = random.sample(range(len(draft.header)), len(draft.header))
    draft.header[:] = [draft.header[place] for place in order]
    for row in draft.rows:
        row[:] = [row[place] for place in order]


def dropped_column(draft: Draft, random: Random) -> None:
    place = random.randrange(len(draft.header))
    for row in (draft.header, *draft.rows):
        del row[place]


def one_name(draft: Draft, random: Random) -> None:
    """Give all rows one client, or one label."""
    place = random.choice(draft.named or [0])
    for row in draft.rows:
        row[place] = draft.rows[0][place]


def own_names(draft: Draft, random: Random) -> None:
    """Give each row a client, or a label, of its own."""
    place = random.choice(draft.named or [0])
    for number, row in enumerate(draft.rows):
        row[place] = f"n{number}"


def number_names(draft: Draft, random: Random) -> None:
    """Call clients, or labels, by numbers as programs write them."""
    place, write = random.choice(draft.named or [0]), random.choice([str, lambda n: f"{n}.0", lambda n: f"0{n}"])
    for number, row in enumerate(draft.rows):
        row[place] = write(number % 4)


# --------------------------------------------------------------------------------------------------- mutations of rows


def rows_twice(draft: Draft, random: Random) -> None:
    draft.rows += [list(random.choice(draft.rows)) for _ in range(random.randint(1, 30))]


def few_rows(draft: Draft, random: Random) -> None:
    del draft.rows[random.choice([0, 1, 2, 3, 5]) :]


def short_or_long_row(draft: Draft, random: Random) -> None:
    row = random.choice(draft.rows)
    row[:] = row[:-1] if random.random() < 0.5 else [*row, "more"]


def empty_rows(draft: Draft, random: Random) -> None:
    """Leave rows without any cell, or with empty cells alone, as spreadsheets do at the end."""
    empty = random.choice([[], [""] * len(draft.header)])
    for _ in range(random.randint(1, 3)):
        draft.rows.insert(random.choice([len(draft.rows), random.randrange(len(draft.rows) + 1)]), list(empty))


def header_again(draft: Draft, random: Random) -> None:
    draft.rows.insert(random.randrange(len(draft.rows) + 1), list(draft.header))


# ------------------------------------------------------------------------------------------ mutations of what is said


def kind_of_column(draft: Draft, random: Random) -> None:
    """Say of a column that is an input what it is, true or not."""
    free = [name for name in draft.header if name not in draft.options.values()]
    key = random.choice(["drop", "category", "number", "date", "boolean"])
    draft.rules[key] = random.sample(free, min(len(free), random.choice([1, 1, 2])))


def words_for_missing(draft: Draft, random: Random) -> None:
    draft.rules["missing"] = random.choice([["?"], ["-", "<5"], ["no"], [0], ["7"], [-9, "?"], "benign", ["site 0"]])


def other_decimal(draft: Draft, random: Random) -> None:
    draft.rules["decimal"] = ","


# ------------------------------------------------------------------------------------------------- mutations of writing


def other_separator(draft: Draft, random: Random) -> None:
    draft.separator = random.choice(";\t|, :")


def all_quoted(draft: Draft, random: Random) -> None:
    draft.quoting = random.choice([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])


def other_newline(draft: Draft, random: Random) -> None:
    draft.newline = random.choice(["\r\n", "\r\n", "\r"])


def other_encoding(draft: Draft, random: Random) -> None:
    draft.encoding = random.choice(["utf-8-sig", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252", "utf-32"])


def packed(draft: Draft, random: Random) -> None:
    draft.packed = True


def other_ending(draft: Draft, random: Random) -> None:
    draft.ending = random.choice([".tsv", ".txt", ".CSV", ".data", ""])


# --------------------------------------------------------------------------------------------------- mutations of bytes


def dropped_bytes(content: bytes, random: Random) -> bytes:
    at, length = random.randrange(len(content) + 1), random.choice([1, 1, 2, 10, 300])
    return content[:at] + content[at + length :]


def doubled_bytes(content: bytes, random: Random) -> bytes:
    at, length = random.randrange(len(content) + 1), random.choice([1, 1, 2, 10, 300])
    return content[: at + length] + content[at:]


def flipped_bytes(content: bytes, random: Random) -> bytes:
    found = bytearray(content)
    for _ in range(random.choice([1, 1, 3, 30]) if found else 0):
        found[random.randrange(len(found))] ^= 1 << random.randrange(8)
    return bytes(found)


def cut_file(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def put_byte(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    byte = random.choice([b"\0", b'"', b"\n", b"\r", b"'", b",", b"\xff", b"\xc3", b"\x1a"])
    return content[:at] + byte + content[at:]


def last_newline(content: bytes, random: Random) -> bytes:
    return content.rstrip(b"\r\n") + random.choice([b"", b"\n\n\n", b"\r\n\r\n", b"\x1a", b"\n \n"])


TABLES: tuple[Callable[[Draft, Random], None], ...] = (
    *(one_cell, one_cell, named_cell, named_cell, many_cells, swapped_cells, spaced_cells, letters_of_cells),
    *(constant_column, column_of_ids, column_of_lists, column_of_huge_numbers, index_column, renamed_column),
    *(name_twice, reordered_columns, dropped_column, one_name, own_names, number_names),
    *(rows_twice, few_rows, short_or_long_row, empty_rows, header_again),
    *(kind_of_column, kind_of_column, words_for_missing, other_decimal),
    *(other_separator, all_quoted, other_newline, other_encoding, packed, other_ending),
)
BYTES = (dropped_bytes, doubled_bytes, flipped_bytes, cut_file, put_byte, last_newline)


def mutant(number: int) -> Mutant:
    """Return a table after one to three mutations, all drawn by its number."""
    random = Random(number)
    base = list(BASES)[number % len(BASES)]
    draft, changes = BASES[base](), []
    for _ in range(random.choice([1, 1, 2, 3])):
        change = random.choice((*TABLES, *BYTES))
        changes.append(change.__name__)
        if change in BYTES:
            draft.damages.append(partial(change, random=Random(random.random())))
        elif draft.rows and min(map(len, draft.rows)) == len(draft.header):
            change(draft, random)
    said = draft.written(), draft.options, draft.rules, draft.separator, draft.ending, draft.packed
    return Mutant(number, base, tuple(changes), *said)
