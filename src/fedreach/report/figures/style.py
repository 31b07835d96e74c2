"""How all figures look: one colour, dash and marker per method, legible on a phone, the same bytes every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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

WIDTH = 4.0  # inches: read at full width on a phone, two abreast on a desk
INK, MUTED, GRID = "#20262d", "#5f6973", "#dde2e7"
HEAT = "#125f9c"  # full colour of a heat map; 0 is transparent, so that light and dark paper both work
# Chosen one after the other so that any two stay 0.1 apart in OKLab for normal sight and for simulated protanopia
# and deuteranopia (Machado et al. 2009), with a contrast of 3 to the paper.
METHOD = ("#0072b2", "#d55e00", "#431096", "#2a9f9a", "#8a1538", "#6180fe", "#670463", "#b45054")
METHOD_ON_DARK = ("#4aa8e8", "#ff8a3d", "#7a5cf0", "#3fe0d6", "#d0566e", "#f7e612", "#abf8aa", "#6676b6")
MARKER = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASH: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)))

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


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run `draw` under the report's matplotlib settings; the caller's are left alone."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return inside


def new_figure(height: float) -> Figure:
    """Return an empty figure of the report's width, `height` inches tall."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def colour(method: int) -> str:
    """Return the colour of the method at this position; after eight, dashes tell repeats apart."""
    return METHOD[method % len(METHOD)]


def look(method: int) -> dict[str, Any]:
    """Return colour, dash and marker of the method at this position, for `Axes.plot`."""
    return {
        "color": colour(method),
        "linestyle": DASH[method // len(METHOD) % len(DASH)],
        "marker": MARKER[method % len(MARKER)],
        "markersize": 4.5,
        "markeredgewidth": 0,
    }


def tag(artist: Any, method: int, part: str) -> None:
    """Mark what belongs to a method, so that the page can bring it out."""
    artist.set_gid(f"method{method}-{part}")


def short(name: str, length: int = 26) -> str:
    """Return a name that fits, cut in its middle.

    Example:
        >>> short("my_experiments.policies:ByDistance", 20)
        'my_experim…yDistance'
    """
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1) // 2 :]}"


@dataclass(frozen=True)
class Legend:
    """The names of the drawn methods above the axes, in as many columns as fit, so that no data are covered."""

    names: tuple[str, ...]
    positions: tuple[int, ...]  # of the methods, for their looks

    @staticmethod
    def of(methods: Sequence[str], drawn: Iterable[int]) -> Legend:
        """Return the legend of the methods at these positions; empty if there is but one method."""
        positions = tuple(drawn) if len(methods) > 1 else ()
        # Two columns of short names beat one of long ones when there are many.
        return Legend(tuple(short(methods[j], 26 if len(positions) <= 4 else 17) for j in positions), positions)

    @property
    def columns(self) -> int:
        """Columns that fit into the figure's width."""
        inches = 0.5 + 0.074 * max((len(name) for name in self.names), default=1)  # handle, gaps, 8.5 pt letters
        return max(1, min(len(self.names), int(WIDTH / inches)))

    @property
    def height(self) -> float:
        """Height in inches."""
        return 0.17 * math.ceil(len(self.names) / self.columns)

    def draw(self, figure: Figure) -> None:
        """Put the legend above everything."""
        from matplotlib.lines import Line2D

        if self.names:
            handles = [Line2D([], [], **look(j)) for j in self.positions]
            figure.legend(handles, self.names, loc="outside upper left", ncols=self.columns)


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


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Give rows their names, the first one on top."""
    axes.set_yticks(range(len(names)), [short(name, 20) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0, labelcolor=MUTED)


def heat_colours() -> Any:
    """Return the colour map from transparent to `HEAT`."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    red, green, blue, _ = to_rgba(HEAT)
    return LinearSegmentedColormap.from_list("heat", [(red, green, blue, 0.0), (red, green, blue, 1.0)])
