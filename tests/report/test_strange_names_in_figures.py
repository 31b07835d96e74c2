"""Names that strangers chose are drawn as text: no formula, no markup, no command and no file that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from fedreach._util.tables import visible
from fedreach.report.figures import curves
from fedreach.report.figures.clients import allocation, partition_heatmap
from fedreach.report.figures.style import inline_svg, print_style, save, use_style
from fedreach.report.numbers import RunSet
from fedreach.report.overview import analyse

STRANGE = [
    "$\\frac{",
    "a$b \\c$",
    "_private",
    "中文 \U0001f600",
    'id="a#0072b2',
    "a\x1b[2Jb",
    "\u202ertl",
    "\ud800",
    "x\ny\r",
]


def texts_of(svg: str) -> list[str]:
    """The texts of an SVG; those of wrapped lines each."""
    return [text for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def drawn_sweep(names: list[str]) -> Figure | None:
    numbers = {"accuracy": {name: [[0.1, 0.2]] for name in names}}
    record = {"x": [0, 1], "axis": names[0], "methods": names, "numbers": numbers, "names": names[:2]}
    return curves.sweep(record, {"accuracy": names[1]})


def drawn_allocation(names: list[str]) -> Figure:
    row = {"share": 0.1, "hertz": 1e9, "max_hertz": 2e9, "compute_seconds": 0.2, "upload_seconds": 0.1}
    return allocation([{"client": name, **row} for name in names], 0.5)


@pytest.mark.parametrize(
    "draw",
    [
        drawn_sweep,
        drawn_allocation,
        lambda names: partition_heatmap([[1] * len(names)] * len(names), range(len(names)), [], names, names),
    ],
)
def test_figures_show_names_as_text(draw: Callable[[list[str]], Figure], tmp_path: Path) -> None:
    figure = draw(STRANGE)
    inline = texts_of(inline_svg(figure, "figure", "\x1btitle"))
    files = save(figure, tmp_path / "figure", ["svg", "png", "pdf"] if draw is drawn_sweep else ["svg"])
    for texts in (inline, texts_of(files[0].read_text(encoding="utf-8"))):
        assert {visible(name) for name in STRANGE} <= set(texts)


def test_a_printed_figure_shows_names_as_text(comparison: RunSet) -> None:
    old = comparison.baseline
    for name in ("$\\frac{", "\x1b[2J", "\ud800"):
        runs = tuple(replace(run, method=name) for run in comparison.counted(old))
        other = tuple(replace(run, method="中文") for run in comparison.counted(comparison.methods[1]))
        renamed = replace(comparison, methods=(name, "中文"), baseline=name, runs=runs + other, absent=())
        with use_style(print_style(3.25)):
            figure = curves.differences(analyse(renamed))
            assert figure is not None
            texts = texts_of(inline_svg(figure, "differences", name))
        assert any(visible(name) in text for text in texts)
        assert "中文" in texts
