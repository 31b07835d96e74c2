"""Names and words in figures: cut or wrapped where they are long, in a legend, at rows, beside an axis."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedreach.report.figures.style import look, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 2  # of a name or a label that is wrapped
ROW_NAME = 20  # letters
ROW_LINE = 24  # letters on a line, in print
STRIP_NAME = 40  # letters above a strip
HANDLE = 0.5  # inches, of a legend's line and the gaps around it
PANEL, ALONE = 1.75, 2.2  # inches on the page, of one of several panels and of a single one
BESIDE = 0.97  # of a panel's height, that a label beside it may take: prose has narrower letters than names


def short(name: str, length: int = 26) -> str:
    """Return a name that fits, cut in its middle.

    Example:
        >>> short("my_experiments.policies:ByDistance", 20)
        'my_experim…yDistance'
    """
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1) // 2 :]}"


def wrapped(text: str, most: int) -> list[str]:
    """Return lines of at most so many letters, broken behind a space or a sign between words where there is one.

    Example:
        >>> wrapped("power_of_choice with ten candidates", 20), wrapped("undivided", 5)
        (['power_of_choice with', 'ten candidates'], ['undiv', 'ided'])
    """
    lines = [""]
    for word in re.findall(r"[^\s_.:/-]+[\s_.:/-]?|[\s_.:/-]", text):
        rest = word
        while len((lines[-1] + rest).rstrip()) > most:
            if lines[-1]:
                lines.append("")
            else:
                lines, rest = [*lines[:-1], rest[:most], ""], rest[most:]
        lines[-1] += rest
    return [line.rstrip() for line in lines if line]


@dataclass(frozen=True)
class Legend:
    """The names of the drawn methods above the axes, in as many columns as fit, so that no data are covered."""

    names: tuple[str, ...]
    positions: tuple[int, ...]  # of the methods, for their looks

    @staticmethod
    def of(methods: Sequence[str], drawn: Iterable[int]) -> Legend:
        """Return the legend of the methods at these positions; empty if there is but one method."""
        positions = tuple(drawn) if len(methods) > 1 else ()
        # Two columns of short names beat one of long ones when there are many; in print they are whole if they can be.
        on_page = 26 if len(positions) <= 4 else 17
        most = style().letters(style().width - HANDLE) if style().printed else on_page
        return Legend(tuple(short(methods[j], most) for j in positions), positions)

    @property
    def columns(self) -> int:
        """Columns that fit into the figure's width."""
        inches = HANDLE + style().letter * max((len(name) for name in self.names), default=1)
        return max(1, min(len(self.names), int(style().width / inches)))

    @property
    def height(self) -> float:
        """Height in inches, before the style makes the figure lower."""
        return style().line / style().height * math.ceil(len(self.names) / self.columns)

    def draw(self, figure: Figure) -> None:
        """Put the legend above everything."""
        from matplotlib.lines import Line2D

        if self.names:
            handles = [Line2D([], [], **look(j)) for j in self.positions]
            figure.legend(handles, self.names, loc="outside upper left", ncols=self.columns)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Give rows their names, the first one on top."""
    axes.set_yticks(range(len(names)), [row_name(name) for name in names], linespacing=1.0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def row_name(name: str) -> str:
    """Return the name of a row: on the page cut in its middle, in a paper on two lines where it is long."""
    if not style().printed:
        return short(name, ROW_NAME)
    lines = wrapped(name, ROW_LINE)
    if len(lines) > MOST_LINES:
        name = short(name, MOST_LINES * ROW_LINE)
        lines = [name[:ROW_LINE], name[ROW_LINE:]]
    return "\n".join(lines)


def strip_name(name: str) -> str:
    """Return the name above a strip of a method."""
    return short(name, style().letters(style().width - HANDLE) if style().printed else STRIP_NAME)


def heading(axes: Axes, text: str, tall: float = PANEL) -> None:
    """Say what the y-axis shows: above it, or in a paper beside it where that has the room.

    Args:
        tall: Inches of the panel on the page.
    """
    lines = textwrap.wrap(text, style().letters(BESIDE * tall * style().height))
    if style().printed and len(lines) <= MOST_LINES:
        axes.set_ylabel("\n".join(lines))
    else:
        axes.set_title(text)
