from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fedreach._util.errors import ConfigError
from fedreach.report.figures import curves, figure_specs
from fedreach.report.figures.curves import differences
from fedreach.report.figures.style import Legend, line_style, paper_width, print_style, save, style, use_style
from fedreach.report.latex import write_paper
from fedreach.report.overview import Analysis, analyse
from fedreach.report.read import read
from fedreach.report.write import write_report

from .made_up import write_comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = "uniform_weighting_of_equal_reports_{}_clients"


def boxes(pdf: bytes) -> list[float]:
    (box,) = re.findall(rb"/MediaBox \[([^]]*)\]", pdf)
    return [float(number) for number in box.split()]


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    names = [LONG.format(j) for j in range(6)]
    return analyse(read([write_comparison(tmp_path_factory.mktemp("six"), names, [0, 1], rounds=6)]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("said", "inches"), [("single", 3.25), ("double", 6.75), ("3.5", 3.5)])
def test_a_figure_is_exactly_as_wide_as_its_column(
    analysis: Analysis, tmp_path: Path, said: str, inches: float
) -> None:
    with use_style(print_style(paper_width(said))):
        (path,) = save(curves.accuracy(analysis.comparison), tmp_path / "accuracy", ["pdf"])
    left, bottom, right, top = boxes(path.read_bytes())
    assert (left, bottom) == (0, 0)
    assert right == pytest.approx(72 * inches, abs=0.01)
    assert 1 < top / 72 < 9


@pytest.mark.parametrize("said", ["triple", "0", "-3", "nan", "300", ""])
def test_a_width_that_no_paper_has_is_refused(said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="single"):
        write_report([tmp_path], tmp_path / "out", paper=said)
    assert not (tmp_path / "out").exists()


def test_fonts_are_embedded_as_truetype_with_serifs(analysis: Analysis, tmp_path: Path) -> None:
    with use_style(print_style(3.25)):
        (path,) = save(
            curves.gap(analysis.comparison) or curves.accuracy(analysis.comparison, "megabytes"),
            tmp_path / "gap",
            ["pdf"],
        )
    pdf = path.read_bytes()
    fonts = re.findall(rb"/BaseFont /(\S+)", pdf)
    assert fonts
    assert all(b"STIX" in font or b"Serif" in font for font in fonts)
    assert pdf.count(b"/FontFile2") == pdf.count(b"/Type /FontDescriptor") > 0
    assert b"/Type3" not in pdf


def test_the_same_bytes_every_time_and_the_caller_keeps_his_style(analysis: Analysis, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    made = []
    for turn in ("one", "two"):
        (tmp_path / turn).mkdir()
        with use_style(print_style(3.25)):
            (path,) = save(curves.accuracy(analysis.comparison), tmp_path / turn / "accuracy", ["pdf"])
        made.append(path.read_bytes())
    assert made[0] == made[1]
    assert dict(matplotlib.rcParams) == before
    assert not style().printed


def test_twelve_lines_differ_in_grey() -> None:
    with use_style(print_style(3.25)):
        looks = [line_style(j) for j in range(12)]
    assert len({each["marker"] for each in looks}) == 12
    assert all(one["linestyle"] != other["linestyle"] for one, other in combinations(looks[:6], 2))
    assert len({str(line_style(j)["linestyle"]) for j in range(6)}) == 1  # on the page colours do it


def test_a_name_that_fits_into_a_column_is_whole() -> None:
    names = [LONG.format(j) for j in range(6)]
    with use_style(print_style(3.25)):
        assert Legend.of(names, range(6)).names == tuple(names)


def test_titles_become_labels_as_captions_say_the_rest(analysis: Analysis) -> None:
    with use_style(print_style(3.25)):
        drawn = [
            curves.accuracy(analysis.comparison, "megabytes"),
            curves.accuracy(analysis.comparison),
            differences(analysis),
        ]
    for figure in drawn:
        assert figure is not None
        assert {axes.get_title(loc="left") for axes in figure.axes} == {""}
    assert [axes.get_ylabel().replace("\n", " ") for axes in drawn[1].axes][1] == "Accuracy on unseen clients, %"


@pytest.mark.slow
def test_a_report_for_a_paper_has_a_pdf_and_a_caption_for_each_figure_and_leaves_the_rest(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "runs", ["a_b", "c"], [0, 1], rounds=4)
    plain = write_report([folder], tmp_path / "page", formats=None)
    printed = write_report([folder], tmp_path / "print", formats=None, paper=3.25)
    for one, other in zip((plain.page, *plain.tables), (printed.page, *printed.tables), strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert not (tmp_path / "page" / "report" / "paper").exists()
    place = tmp_path / "print" / "report" / "paper"
    text = (place / "figures.tex").read_text(encoding="utf-8")
    named = re.findall(r"\\includegraphics\{(.*?)\.pdf\}", text)
    assert len(named) == text.count(r"\caption{") == text.count(r"\label{fig:digits-50-clients-") > 4
    assert {place / f"{name}.pdf" for name in named} | {place / "figures.tex", place / "paper.tex"} == {*printed.paper}
    assert {boxes((place / f"{name}.pdf").read_bytes())[2] for name in named} == {234}
    assert "2 seeds. Made by fedreach report (FedReach 0.1.0, commit 1f2e3d4c5b6a)." in text
    assert "told below" not in text


def test_further_formats_lie_beside_the_pdf(analysis: Analysis, tmp_path: Path) -> None:
    first = figure_specs(analysis)[:1]
    written = write_paper(first, tmp_path, "x", width=6.0, formats=("svg", "pdf"), seeds="", provenance="")
    names = [path.name for path in written]
    assert names == ["figures.tex", "paper.tex", "differences.pdf", "differences.svg"]
    assert r"\begin{figure*}[t]" in written[0].read_text(encoding="utf-8")  # of both columns of a page


def texts(figure: Figure) -> Iterator[Text]:
    for artist in figure.findobj(Text):
        assert isinstance(artist, Text)
        if artist.get_visible() and artist.get_text().strip():
            yield artist


def drawn_texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Return what is written in a figure as it is drawn, and where; ticks outside of their axes are not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer: Any = canvas.get_renderer()
    shown: list[tuple[str, Bbox]] = []
    hidden: set[int] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            drawn = set(map(id, axis._update_ticks()))  # type: ignore[attr-defined]
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                hidden |= {id(tick.label1), id(tick.label2)} if id(tick) not in drawn else set()
    for text in texts(figure):
        if id(text) not in hidden:
            shown.append((text.get_text(), text.get_window_extent(renderer)))
    return shown


def check_texts(analysis: Analysis, width: float) -> int:
    looked = 0
    with use_style(print_style(width)):
        for picture in figure_specs(analysis):
            figure = picture.draw()
            if figure is None:
                continue
            looked += 1
            shown = drawn_texts(figure)
            sizes = {round(text.get_fontsize(), 1) for text in texts(figure)}
            assert 7 <= min(sizes) <= max(sizes) <= 9, picture.name
            frame = figure.bbox
            for said, box in shown:
                inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= frame.x1 + 1 and box.y1 <= frame.y1 + 1
                assert inside, (picture.name, said, box, frame)
            for (one, a), (other, b) in combinations(shown, 2):
                across = min(a.x1, b.x1) - max(a.x0, b.x0)
                along = min(a.y1, b.y1) - max(a.y0, b.y0)
                assert across < 2 or along < 2, (picture.name, one, other)
    return looked


@pytest.mark.slow
def test_no_text_is_cut_or_covers_another_with_six_long_names(analysis: Analysis) -> None:
    assert check_texts(analysis, 3.25) > 4


@pytest.mark.slow
@pytest.mark.parametrize("width", [3.25, 6.75])
@pytest.mark.parametrize("count", [2, 12])
def test_no_text_is_cut_or_covers_another(tmp_path: Path, count: int, width: float) -> None:
    names = [LONG.format(j) for j in range(count)]
    options = {"measured": True}
    folder = write_comparison(tmp_path, names, [0, 1], rounds=12, radios=("best", "equal"), **options)
    assert check_texts(analyse(read([folder])), width) > 9
