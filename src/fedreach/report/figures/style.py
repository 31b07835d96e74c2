"""Style, names and files of figures."""

from __future__ import annotations

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fedreach._util.errors import ConfigError, nearest
from fedreach._util.tables import shorten as shorten
from fedreach._util.tables import visible
from fedreach.report.numbers import TEMPLATES, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


# ---- Style
# Widths and sizes come from the current `Style`, as figures are drawn both for the page and for papers.

P = ParamSpec("P")
R = TypeVar("R")

INK, MUTED, GRID = "#20262d", "#5f6973", "#dde2e7"
HEAT = "#125f9c"  # full color of a heat map; 0 is transparent, which suits light and dark pages
# Chosen one after the other so that any two stay 0.1 apart in OKLab for normal sight and for simulated protanopia
# and deuteranopia (Machado et al. 2009), with a contrast of 3 to the background.
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
MAX_HEIGHT = 8.8  # inches of a figure in print, which leave room for its caption on a page


@dataclass(frozen=True)
class Style:
    """Sizes and settings that differ between figures on the page and in a paper."""

    width: float = 4.0  # inches: full width on a phone, two columns on a desktop
    size: float = 9.0  # points, of letters
    smaller: float = 8.5
    smallest: float = 8.0
    letter: float = 0.074  # inches, of a letter at `smaller`, estimated generously
    line: float = 0.17  # inches, from one line of a legend to the next
    height: float = 1.0  # factor on the height of a figure
    muted: str = MUTED  # color of labels
    printed: bool = False  # for paper, perhaps in gray, with a caption below

    def letters(self, inches: float) -> int:
        """Return the number of characters that fit into a width."""
        return int(inches / self.letter)


PAGE = Style()
_STYLE: ContextVar[Style] = ContextVar("style", default=PAGE)


def style() -> Style:
    """Return the current style."""
    return _STYLE.get()


@contextmanager
def use_style(chosen: Style) -> Iterator[None]:
    """Draw in another style inside the block, including in forked processes."""
    token = _STYLE.set(chosen)
    try:
        yield
    finally:
        _STYLE.reset(token)


def with_style(draw: Callable[P, R]) -> Callable[P, R]:
    """Run `draw` with the matplotlib settings of the style, without changing the caller's settings."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(_settings(printed=style().printed)), warnings.catch_warnings():
            # A name in a script that the fonts lack is complete in an SVG; other formats show boxes.
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
            return draw(*args, **kwargs)

    return inside


@cache
def _settings(*, printed: bool) -> Any:
    """Return matplotlib's settings for the page or for paper."""
    import matplotlib

    settings: Any = {}
    for name in ("page", "paper") if printed else ("page",):
        settings |= matplotlib.rc_params_from_file(TEMPLATES / f"{name}.mplstyle", use_default_template=False)
    return settings


def new_figure(height: float) -> Figure:
    """Return an empty figure of the style's width, `height` inches tall on the page."""
    from matplotlib.figure import Figure

    tall = height * style().height
    return Figure(figsize=(style().width, min(tall, MAX_HEIGHT) if style().printed else tall), layout="constrained")


def method_color(method: int) -> str:
    """Return the color of the method at this position; after eight methods, repeated colors have other dashes."""
    return METHOD[method % len(METHOD)]


def line_style(method: int) -> dict[str, Any]:
    """Return the color, dash and marker of the method at this position for `Axes.plot`, also readable in gray."""
    dash = DASH[method // len(METHOD) % len(DASH)]
    return {
        "color": method_color(method),
        "linestyle": DASH_IN_PRINT[method % len(DASH_IN_PRINT)] if style().printed else dash,
        "marker": MARKER[method % len(MARKER)],
        "markersize": 4.0 if style().printed else 4.5,
        "markeredgewidth": 0,
    }


def marks(method: int) -> dict[str, Any]:
    """Return the markers along a line: in print a few, at different positions per method; on the page none."""
    if not style().printed:
        return {"marker": ""}
    return {"markevery": (MARKS_APART * (method % len(MARKER)) / len(MARKER), MARKS_APART)}


def tag(artist: Any, method: int, part: str) -> None:
    """Mark an artist as part of a method, so that the page can highlight it."""
    artist.set_gid(f"method{method}-{part}")


def in_percent(axes: Axes, axis: str = "y") -> None:
    """Label an axis with fractions in percent."""
    from matplotlib.ticker import FuncFormatter

    formatter = FuncFormatter(lambda value, _: f"{round(100 * value, 6):g}".replace("-", "−"))
    (axes.yaxis if axis == "y" else axes.xaxis).set_major_formatter(formatter)


def plain_numbers(axis: Axis, *, far: bool, ticks: Sequence[float] = (1.0, 3.0)) -> None:
    """Write ticks as plain numbers; on a logarithmic axis, place them at these multiples of powers of 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if far:
        axis.set_major_locator(LogLocator(subs=tuple(ticks)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def heat_colormap() -> Any:
    """Return the color map from transparent to `HEAT`."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    red, green, blue, _ = to_rgba(HEAT)
    return LinearSegmentedColormap.from_list("heat", [(red, green, blue, 0.0), (red, green, blue, 1.0)])


# ---- Names and labels

MAX_LINES = 2  # most lines of a wrapped name or label
ROW_NAME = 20  # letters
ROW_LINE = 24  # letters on a line, in print
STRIP_NAME = 40  # letters above a strip
HANDLE = 0.5  # inches, of a legend's line and the gaps around it
PANEL, SINGLE_PANEL = 1.75, 2.2  # inches on the page, of one of several panels and of a single one
LABEL_SHARE = 0.97  # share of a panel's height for the label of its y-axis: prose has narrower letters than names


def wrap_words(text: str, max_letters: int) -> list[str]:
    """Return lines of at most `max_letters` characters, broken after spaces or signs between words if possible.

    Example:
        >>> wrap_words("power_of_choice with ten candidates", 20), wrap_words("undivided", 5)
        (['power_of_choice with', 'ten candidates'], ['undiv', 'ided'])
    """
    ends = rf".{{1,{max_letters}}}(?:\s|$|(?<=[_.:/-]))"
    return [line.rstrip() for line in re.findall(rf"{ends}|.{{{max_letters}}}", text)]


@dataclass(frozen=True)
class Legend:
    """Legend with the names of the drawn methods above the axes, in as many columns as fit."""

    names: tuple[str, ...]
    positions: tuple[int, ...]  # of the methods, for their looks

    @staticmethod
    def of(methods: Sequence[str], drawn: Iterable[int]) -> Legend:
        """Return the legend of the methods at these positions; empty for a single method."""
        positions = tuple(drawn) if len(methods) > 1 else ()
        # Two columns of short names beat one of long ones if there are many; in print, names are complete if they fit.
        on_page = 26 if len(positions) <= 4 else 17
        max_letters = style().letters(style().width - HANDLE) if style().printed else on_page
        return Legend(tuple(shorten(methods[j], max_letters) for j in positions), positions)

    @property
    def columns(self) -> int:
        """Number of columns that fit into the figure's width."""
        inches = HANDLE + style().letter * max((len(name) for name in self.names), default=1)
        return max(1, min(len(self.names), int(style().width / inches)))

    @property
    def height(self) -> float:
        """Height in inches, before the style scales the figure."""
        return style().line / style().height * math.ceil(len(self.names) / self.columns)

    def draw(self, figure: Figure) -> None:
        """Draw the legend above the axes."""
        from matplotlib.lines import Line2D

        if self.names:
            handles = [Line2D([], [], **line_style(j)) for j in self.positions]
            figure.legend(handles, self.names, loc="outside upper left", ncols=self.columns)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label rows with names, with the first name at the top."""
    axes.set_yticks(range(len(names)), [row_name(name) for name in names], linespacing=1.0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def row_name(name: str) -> str:
    """Return the name of a row; a long name is shortened on the page, and wrapped to two lines in a paper."""
    if not style().printed:
        return shorten(name, ROW_NAME)
    lines = wrap_words(visible(name), ROW_LINE)
    if len(lines) > MAX_LINES:
        name = shorten(name, MAX_LINES * ROW_LINE)
        lines = [name[:ROW_LINE], name[ROW_LINE:]]
    return "\n".join(lines)


def strip_name(name: str) -> str:
    """Return the name to show above the strip of a method."""
    return shorten(name, style().letters(style().width - HANDLE) if style().printed else STRIP_NAME)


def heading(axes: Axes, text: str, tall: float = PANEL) -> None:
    """Label the y-axis above the panel, or, in a paper, along the axis if the text fits.

    Args:
        tall: Height of the panel on the page in inches.
    """
    lines = textwrap.wrap(text, style().letters(LABEL_SHARE * tall * style().height))
    if style().printed and len(lines) <= MAX_LINES:
        axes.set_ylabel("\n".join(lines))
    else:
        axes.set_title(text)


# ---- Files and inline SVG
# The same figure gives the same bytes: without dates, with fixed ids.

FORMATS = ("svg", "png", "pdf")
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Colors that follow the page's light or dark scheme.
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    colour: f"var(--m{j})" for j, colour in enumerate(METHOD)
}


def check_formats(formats: Sequence[str]) -> None:
    """Raise ConfigError if a figure format is unknown."""
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"formats must be among {', '.join(FORMATS)}; got {name!r}.{nearest(name, FORMATS)}")


@with_style
def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Write the figure as ``stem.svg``, ``stem.png`` and so on; return the paths."""
    check_formats(formats)
    _lay_out(figure)
    paths = []
    for name in formats:
        path = stem.with_name(f"{stem.name}.{name}")
        figure.savefig(path, format=name, dpi=220, facecolor="white", metadata=_METADATA[name])
        paths.append(path)
    return tuple(paths)


@with_style
def inline_svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an SVG element for an HTML page.

    Colors become CSS variables. Ids receive the prefix `name`, so that they are unique on a page. Artists of method j
    receive the classes ``method mj``.
    """
    _lay_out(figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=_METADATA["svg"])
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub("<[^>]*>", lambda tag: _adapt_tag(tag[0], name), svg)  # texts between tags keep what names contain
    box = re.search(r'viewBox="([^"]*)"', svg)
    opening = (
        f'<svg role="img" aria-labelledby="{name}-title" viewBox="{box[1] if box else ""}"'
        ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{name}-title">{html.escape(visible(title))}</title>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)


def _adapt_tag(tag: str, name: str) -> str:
    tag = re.sub(r'id="method(\d+)-', r'class="method m\1" id="method\1-', tag)
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = re.sub(r'href="#', f'href="#{name}-', tag)
    tag = re.sub(r"url\(#", f"url(#{name}-", tag)
    for colour, variable in _VARIABLES.items():
        tag = tag.replace(colour, variable)
    return tag


def _lay_out(figure: Figure) -> None:
    # Once for all formats: it takes as long as drawing.
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine(None)  # not "none": with a layout that may change, each save draws twice


# ---- Style of papers

COLUMNS = {"single": 3.25, "double": 6.75}  # inches of ICML; IEEE has 3.5 and 7.16, the text of NeurIPS is 5.5 wide
NARROWEST, WIDEST = 2.5, 10.0


def print_style(width: float) -> Style:
    """Return the style of printed figures of this width in inches: 7 to 8 points, dashes and markers, no titles."""
    return Style(
        width=width,
        size=8.0,
        smaller=7.5,
        smallest=7.0,
        letter=0.054,
        line=0.135,
        height=0.85,
        muted=INK,
        printed=True,
    )


def paper_width(width: str | float) -> float:
    """Return the width of a figure in inches.

    Args:
        width: ``"single"`` or ``"double"`` (see `COLUMNS`), or inches.

    Raises:
        ConfigError: If `width` is neither a name nor a number, or out of range.

    Example:
        >>> paper_width("single"), paper_width("3.5"), paper_width(5.5)
        (3.25, 3.5, 5.5)
    """
    try:
        inches = COLUMNS[width] if width in COLUMNS else float(width)
    except ValueError:
        inches = 0.0
    if not NARROWEST <= inches <= WIDEST:
        named = " or ".join(f"{name} ({inches:g})" for name, inches in COLUMNS.items())
        raise ConfigError(
            f"The width of a paper's figures must be {named}, or inches from {NARROWEST:g} to {WIDEST:g}; "
            f"got {width!r}."
        )
    return inches
