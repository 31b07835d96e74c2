"""What examples are made of: bytes that are damaged, values that nobody expects, names that do not exist."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import strategies as st

DEEP = 10**4

STRANGE_TEXTS = st.sampled_from(
    [
        "",
        " ",
        "\0",
        "a\0b",
        "\x1b[2J",
        "\ufeff",
        "\u202e",
        "ß" * 300,
        "x" * 10**5,
        "../../x",
        "/",
        ".",
        "..",
        "~",
        "nan",
        "json:loads",
        "a:b:c",
        ":",
        "a.py:",
        ":f",
        "no.py:f",
        "no.npz",
        "no.csv",
        "con",
        "NUL",
        "[",
        "{}",
        "%s",
        "a.b",
        "a..b",
        "0",
        "-1",
        "1e999",
        "true",
        "\n",
        "\r\n",
        "🦀",
        "x.npy",
        "." * 255,
        "\u2028",
        "int=3",
        "*",
        "?",
    ]
)
SURROGATES = st.sampled_from(["\udcff", "a\ud800", "\udfff.npz"])
TEXTS = STRANGE_TEXTS | st.text(max_size=12)
STRANGE_NUMBERS = st.sampled_from(
    [
        0,
        1,
        2,
        -1,
        3,
        10,
        2**31,
        2**31 - 1,
        2**32,
        2**32 - 1,
        2**53,
        2**63,
        2**63 - 1,
        -(2**63),
        2**64,
        10**18,
        10**30,
        10**400,
        10**9,
        10**6,
        0.0,
        -0.0,
        0.5,
        1.0,
        1e-300,
        5e-324,
        1e300,
        float("inf"),
        float("-inf"),
        float("nan"),
        1e-9,
    ]
)
NUMBERS = STRANGE_NUMBERS | st.integers() | st.floats()
DATES = st.sampled_from([datetime.date(1979, 5, 27), datetime.time(7, 32), datetime.datetime(1979, 5, 27, 7, 32)])
SCALARS = NUMBERS | TEXTS | st.booleans() | DATES
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.sampled_from(["name", "seed"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def nested(depth: int, kind: type) -> Any:
    """Return a list of a list of ..., or tables likewise."""
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, most: int = 3) -> bytes:
    """Return bytes after a few of them were flipped, cut out, put in, doubled, swapped or zeroed."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, most))):
        size = len(content)
        at = draw(st.integers(0, max(0, size - 1)))
        length = draw(st.sampled_from([1, 1, 1, 2, 4, 8, 64, 1000]))
        what = draw(st.sampled_from(["flip", "flip", "set", "cut", "end", "put", "double", "zero", "swap"]))
        part = bytes(content[at : at + length])
        if what == "flip" and size:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "set" and size:
            content[at] = draw(st.sampled_from([0, 1, 9, 10, 13, 34, 44, 45, 48, 57, 0x7F, 0x80, 0xC3, 0xFE, 0xFF]))
        elif what == "cut":
            del content[at : at + length]
        elif what == "end":
            del content[at:]
        elif what == "put":
            content[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif what == "double":
            content[at:at] = part
        elif what == "zero":
            content[at : at + length] = bytes(len(part))
        elif what == "swap":
            other = draw(st.integers(0, max(0, size - 1)))
            content[at : at + length], content[other : other + length] = (
                content[other : other + length],
                content[at : at + length],
            )
    return bytes(content)
