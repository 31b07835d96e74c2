"""One self-contained HTML page: nothing is fetched, and the same run folders give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import PurePosixPath

import jinja2
from markupsafe import Markup, escape

from fedreach.report.facts import gather
from fedreach.report.figures import Picture
from fedreach.report.figures.saving import inline_svg
from fedreach.report.figures.style import METHOD, METHOD_ON_DARK
from fedreach.report.findings import find
from fedreach.report.summary import POPULATION, primary_of, summarize
from fedreach.report.tables import tabulate
from fedreach.report.values import Comparison


def render(comparison: Comparison, pictures: Sequence[Picture], files: Sequence[PurePosixPath]) -> str:
    """Return the page.

    Args:
        comparison: What `read` returns.
        pictures: What `gallery` returns.
        files: Files written beside the page, relative to it; they are linked.
    """
    folder = resources.files("fedreach.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"tied": _tied, "breakable": _breakable}
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    rows = [row for row in summarize(comparison) if primary_of(row, comparison).mean is not None]
    best = max(rows, key=lambda row: (primary_of(row, comparison).mean, row.is_baseline)).method if rows else None
    return template.render(
        comparison=comparison,
        findings=find(comparison),
        facts=gather(comparison),
        tables=[tabulate(comparison, "last"), tabulate(comparison, "best")] if rows else [],
        best=best,
        where=POPULATION[comparison.primary],
        figures=[_figure(picture, files) for picture in pictures],
        files=[path for path in files if path.parent.name != "figures"],
        palette=list(zip(METHOD, METHOD_ON_DARK, strict=True)),
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
    )


def _tied(text: str) -> str:
    # No line break between a number and its per cent sign.
    return text.replace(" %", "\u00a0%")


def _breakable(name: str) -> Markup:
    # Names of parts are long words; they may break behind these signs.
    return Markup(re.sub(r"([_.:])", r"\1<wbr>", str(escape(name))))


def _figure(picture: Picture, files: Sequence[PurePosixPath]) -> dict[str, object]:
    svg = inline_svg(picture.figure, picture.name, picture.title, picture.description)
    links = [path for path in files if path.parent.name == "figures" and path.stem == picture.name]
    return {
        "name": picture.name,
        "title": picture.title,
        "caption": picture.caption,
        "svg": Markup(svg),
        "links": links,
    }
