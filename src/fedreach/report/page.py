"""The HTML report."""

import re
from collections.abc import Sequence

import jinja2
from markupsafe import Markup, escape

from fedreach.report.adaptation import tabulate_adaptation
from fedreach.report.figures import Picture
from fedreach.report.figures.style import METHOD, METHOD_ON_DARK, TEMPLATES
from fedreach.report.findings import find, gather_facts
from fedreach.report.formats import group_columns
from fedreach.report.overview import Analysis
from fedreach.report.tables import tabulate, tabulate_contrasts, tabulate_metrics, tabulate_tuning
from fedreach.report.theory import recorded_terms, tabulate_theory, worst_case

LETTERS = 136  # letters of a row that fit on a screen of 1280 pixels and on paper
MAX_METHODS = 10  # methods above which the main figure is too tall next to the findings


def render(analysis: Analysis, pictures: Sequence[Picture], tables: Sequence[str]) -> str:
    """Return the page with the pictures of `gallery`, and links to the files of pictures and tables."""
    main, theory = _main_figure(analysis, pictures), tabulate_theory(analysis)
    return render_template(
        "page.html",
        comparison=analysis.comparison,
        findings=find(analysis),
        facts=gather_facts(analysis.comparison),
        tables=[
            {"table": tabulate(analysis, when), "leading": leaders.methods}
            for when, leaders in analysis.leaders.items()
            if analysis.judged(when)
        ],
        baselines=analysis.baselines,
        contrasts=tabulate_contrasts(analysis),
        metrics=tabulate_metrics(analysis),
        adaptation=tabulate_adaptation(analysis),
        tuning=tabulate_tuning(analysis.comparison),
        theory=theory,
        terms=[term.name for term in recorded_terms(analysis)],
        worst_case=worst_case(analysis.comparison) if theory is not None else None,
        main=main,
        figures=[picture for picture in pictures if picture is not main],
        files=tables,
    )


def render_template(file: str, **values: object) -> str:
    """Return a page from a template of this package, with the style that all pages share."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "tied": lambda text: text.replace(" %", "\u00a0%"),  # no line break between a number and its percent sign
        "breakable": _breakable,
        "folded": lambda table: group_columns(table, LETTERS),
    }
    return environment.from_string((TEMPLATES / file).read_text(encoding="utf-8")).render(
        palette=list(zip(METHOD, METHOD_ON_DARK, strict=True)),
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        **values,
    )


def _main_figure(analysis: Analysis, pictures: Sequence[Picture]) -> Picture | None:
    """Return the figure that a reader should see first; None if it would push the table off the first screen."""
    if len(analysis.comparison.methods) > MAX_METHODS:
        return None
    named = {picture.name: picture for picture in pictures}
    return named.get("differences") or named.get("accuracy")


def _breakable(name: str) -> Markup:
    # Names of components are long words; they may break after these signs.
    return Markup(re.sub(r"([_.:])", r"\1<wbr>", str(escape(name))))
