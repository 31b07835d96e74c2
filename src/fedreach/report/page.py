"""The HTML report."""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import jinja2
from markupsafe import Markup, escape

from fedreach._util.tables import visible_lines
from fedreach.report.figures import Picture
from fedreach.report.figures.style import METHOD, METHOD_ON_DARK
from fedreach.report.findings import find, gather_facts
from fedreach.report.formats import group_columns, tables_of
from fedreach.report.numbers import TEMPLATES
from fedreach.report.overview import Analysis
from fedreach.report.tables import allocations
from fedreach.report.theory import recorded_terms, theorem_terms, worst_case

LETTERS = 136  # letters of a row that fit on a screen of 1280 pixels and on paper
MAX_METHODS = 10  # methods above which the main figure is too tall next to the findings


def render(analysis: Analysis, pictures: Sequence[Picture], tables: Sequence[str]) -> str:
    """Return the page with these pictures, and with links to the files of pictures and tables."""
    by_name = {table.name: table for table in tables_of(analysis)}
    drawn = {picture.name: picture for picture in pictures}
    return render_template(
        "page.html",
        comparison=analysis.comparison,
        findings=find(analysis),
        facts=gather_facts(analysis.comparison),
        tables=by_name if analysis.judged() else {},
        leading={name: leaders.methods for name, leaders in analysis.leaders.items()},
        baselines=[row.method for row in analysis.baselines],
        allocations=allocations(analysis.comparison),
        terms=[term.name for term in recorded_terms(analysis)],
        worst_case=worst_case(analysis.comparison) if "theory" in by_name else None,
        theorems=theorem_terms(analysis) if "theory" in by_name else [],
        main=_main_figure(analysis, drawn),
        figures=drawn,
        files=tables,
    )


def render_template(file: str, **values: object) -> str:
    """Render a template of this package with the style that all pages share."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_printable
    )
    environment.filters |= {"breakable": _breakable, "folded": partial(group_columns, width=LETTERS)}
    return environment.from_string((TEMPLATES / file).read_text(encoding="utf-8")).render(
        palette=list(zip(METHOD, METHOD_ON_DARK, strict=True)),
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        **values,
    )


def _main_figure(analysis: Analysis, drawn: Mapping[str, Picture]) -> Picture | None:
    """Return the figure that a reader should see first; None if it would push the table off the first screen."""
    if len(analysis.comparison.methods) > MAX_METHODS:
        return None
    return drawn.get("differences") or drawn.get("accuracy")


def _printable(value: object) -> object:
    return visible_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    # Names of components are long words; they may break after these signs.
    return Markup(re.sub(r"([_.:])", r"\1<wbr>", str(escape(visible_lines(name)))))
