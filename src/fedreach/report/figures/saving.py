"""A figure as a file, or as SVG inside a page. The same figure gives the same bytes: no dates, fixed ids."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedreach.errors import ConfigError, nearest
from fedreach.report.figures.style import GRID, INK, METHOD, MUTED, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Colours that follow the page's light or dark scheme.
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    colour: f"var(--m{j})" for j, colour in enumerate(METHOD)
}


def check_formats(formats: Sequence[str]) -> None:
    """Raise ConfigError if a figure format is not known."""
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"formats must be among {', '.join(FORMATS)}; got {name!r}.{nearest(name, FORMATS)}")


@styled
def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Write the figure as ``stem.svg`` and so on and return the paths."""
    check_formats(formats)
    _lay_out(figure)
    paths = []
    for name in formats:
        path = stem.with_name(f"{stem.name}.{name}")
        figure.savefig(path, format=name, dpi=220, facecolor="white", metadata=_METADATA[name])
        paths.append(path)
    return tuple(paths)


@styled
def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Return the figure as an SVG element for an HTML page.

    Colours become CSS variables, ids get `name` in front so that several figures share a page, and what
    belongs to method j gets the classes ``method mj``.
    """
    _lay_out(figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=_METADATA["svg"])
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'id="method(\d+)-', r'class="method m\1" id="method\1-', svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    box = re.search(r'viewBox="([^"]*)"', svg)
    opening = (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" viewBox="{box[1] if box else ""}"'
        ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)


def _lay_out(figure: Figure) -> None:
    # Once for all formats: it takes as long as drawing.
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine(None)  # not "none": beside a layout that might change, each save draws twice
