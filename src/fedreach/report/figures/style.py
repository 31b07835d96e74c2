"""How all figures look: one colour, dash and marker per method, legible on a phone, the same bytes every time.

Functions that draw ask here how wide a figure is and how large its letters are, as figures are drawn for the page and,
in another `Style`, for papers (`paper.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fedreach.report.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

INK, MUTED, GRID = "#20262d", "#5f6973", "#dde2e7"
HEAT = "#125f9c"  # full colour of a heat map; 0 is transparent, so that light and dark paper both work
# Chosen one after the other so that any two stay 0.1 apart in OKLab for normal sight and for simulated protanopia
# and deuteranopia (Machado et al. 2009), with a contrast of 3 to the paper.
METHOD = ("#0072b2", "#d55e00", "#431096", "#2a9f9a", "#8a1538", "#6180fe", "#670463", "#b45054")
METHOD_ON_DARK = ("#4aa8e8", "#ff8a3d", "#7a5cf0", "#3fe0d6", "#d0566e", "#f7e612", "#abf8aa", "#6676b6")
MARKER = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASH: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
DASH_IN_PRINT: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1.2)),
    (0, (5, 1.2, 1, 1.2)),
    (0, (2.5, 1.2)),
    (0, (5, 1.2, 1, 1.2, 1, 1.2)),
)
MARKS_APART = 0.22  # along a line in print, as a share of the frame's diagonal
WIDE = 5.0  # inches, from which panels stand side by side in a paper
ABREAST = 3  # panels at most
TALLEST = 8.8  # inches of a figure in print: what stands on a page beside a caption

RC: Any = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same layout everywhere
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titlepad": 4,
    "axes.titley": 1.0,  # said, it is not searched for: no ticks stand above axes that have a title
    "axes.titlecolor": INK,
    "axes.labelsize": 9,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.0,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "legend.borderaxespad": 0.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedreach",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a `$` in a method's name is a `$`
    "figure.constrained_layout.w_pad": 0.04,
    "figure.constrained_layout.h_pad": 0.04,
}


@dataclass(frozen=True)
class Style:
    """What differs between figures on the page and those in a paper."""

    rc: Any  # matplotlib's settings
    width: float = 4.0  # inches: read at full width on a phone, two abreast on a desk
    size: float = 9.0  # points, of letters
    smaller: float = 8.5
    smallest: float = 8.0
    letter: float = 0.074  # inches, of a letter at `smaller`, on the wide side
    line: float = 0.17  # inches, from one line of a legend to the next
    height: float = 1.0  # of a figure, in heights on the page
    muted: str = MUTED  # colour of labels
    printed: bool = False  # on paper, perhaps in grey, with a caption below

    def letters(self, inches: float) -> int:
        """Return how many letters fit into a width."""
        return int(inches / self.letter)


PAGE = Style(RC)
_STYLE: ContextVar[Style] = ContextVar("style", default=PAGE)


def style() -> Style:
    """Return the style that is drawn in."""
    return _STYLE.get()


@contextmanager
def drawn_in(chosen: Style) -> Iterator[None]:
    """Draw in another style; forked processes do so, too."""
    token = _STYLE.set(chosen)
    try:
        yield
    finally:
        _STYLE.reset(token)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run `draw` under the style's matplotlib settings; the caller's are left alone."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(style().rc):
            return draw(*args, **kwargs)

    return inside


def new_figure(height: float) -> Figure:
    """Return an empty figure of the style's width, `height` inches tall on the page."""
    from matplotlib.figure import Figure

    tall = height * style().height
    return Figure(figsize=(style().width, min(tall, TALLEST) if style().printed else tall), layout="constrained")


def new_panels(
    count: int, tall: float, *, rest: float = 0.4, legend: float = 0.0, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return so many panels with one x-axis, one below the other; side by side where a paper is wide.

    Args:
        tall: Inches of a panel on the page; `rest` and `legend` stand above and below.
    """
    beside = style().printed and style().width >= WIDE and count <= ABREAST
    rows, columns = (1, count) if beside else (count, 1)
    figure = new_figure(rest + tall * rows + legend)
    grid = figure.subplots(rows, columns, sharex=True, sharey=sharey, squeeze=False)
    return figure, list(grid.ravel())


def label_x(panels: Sequence[Axes], text: str) -> None:
    """Label the x-axis that all panels share."""
    figure, grid = panels[0].get_figure(), panels[0].get_subplotspec()
    if figure is not None and grid is not None and grid.get_gridspec().ncols > 1:
        figure.supxlabel(text, fontsize=style().size, color=style().muted)
    else:
        panels[-1].set_xlabel(text)


def colour(method: int) -> str:
    """Return the colour of the method at this position; after eight, dashes tell repeats apart."""
    return METHOD[method % len(METHOD)]


def look(method: int) -> dict[str, Any]:
    """Return colour, dash and marker of the method at this position, for `Axes.plot`; dash and marker do in grey."""
    dash = DASH[method // len(METHOD) % len(DASH)]
    return {
        "color": colour(method),
        "linestyle": DASH_IN_PRINT[method % len(DASH_IN_PRINT)] if style().printed else dash,
        "marker": MARKER[method % len(MARKER)],
        "markersize": 4.0 if style().printed else 4.5,
        "markeredgewidth": 0,
    }


def marks(method: int) -> dict[str, Any]:
    """Return the marks along a line: in print some, elsewhere in each method, on the page none."""
    if not style().printed:
        return {"marker": ""}
    return {"markevery": (MARKS_APART * (method % len(MARKER)) / len(MARKER), MARKS_APART)}


def tag(artist: Any, method: int, part: str) -> None:
    """Mark what belongs to a method, so that the page can bring it out."""
    artist.set_gid(f"method{method}-{part}")


def in_percent(axes: Axes, axis: str = "y") -> None:
    """Label an axis of fractions in per cent."""
    from matplotlib.ticker import FuncFormatter

    formatter = FuncFormatter(lambda value, _: f"{round(100 * value, 6):g}".replace("-", "−"))
    (axes.yaxis if axis == "y" else axes.xaxis).set_major_formatter(formatter)


def plain_numbers(axis: Axis, *, far: bool, ticks: Sequence[float] = (1.0, 3.0)) -> None:
    """Write ticks as plain numbers; on a logarithmic axis at these multiples of powers of 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if far:
        axis.set_major_locator(LogLocator(subs=tuple(ticks)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def heat_colours() -> Any:
    """Return the colour map from transparent to `HEAT`."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    red, green, blue, _ = to_rgba(HEAT)
    return LinearSegmentedColormap.from_list("heat", [(red, green, blue, 0.0), (red, green, blue, 1.0)])
