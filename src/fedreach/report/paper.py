"""What a paper takes from a report: figures at the width of a column, with their captions, beside ``table.tex``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedreach.forks import map_forked
from fedreach.report.figures import Asked
from fedreach.report.figures.paper import in_print
from fedreach.report.figures.saving import save
from fedreach.report.figures.style import drawn_in
from fedreach.report.render.latex import escaped, label_of, unknown_letters

FOLDER = "paper"  # within the report
ONE_COLUMN = 4.0  # inches, above which a figure takes both columns of a page
DOCUMENT = r"""% All figures and tables of this report on a few pages: pdflatex paper.tex, in this folder.
\documentclass[10pt,twocolumn]{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs,graphicx}
\usepackage[textwidth=TEXTin,textheight=9.3in,columnsep=0.25in]{geometry}
\setcounter{topnumber}{9}
\setcounter{totalnumber}{9}
\setcounter{dbltopnumber}{9}
\renewcommand{\topfraction}{1}
\renewcommand{\dbltopfraction}{1}
\renewcommand{\floatpagefraction}{0.6}
\renewcommand{\dblfloatpagefraction}{0.6}
\begin{document}
\input{../table}
\clearpage
\input{figures}
\IfFileExists{references.bib}{\clearpage\nocite{*}\bibliographystyle{plain}\bibliography{references}}{}
\end{document}
"""


class _Drawn(NamedTuple):
    name: str
    files: tuple[Path, ...]
    caption: str


def write_paper(
    pictures: Sequence[Asked], report: Path, name: str, *, width: float, formats: Sequence[str], seeds: str, made: str
) -> tuple[Path, ...]:
    r"""Write the figures into ``paper/`` of a report, each as PDF, and what LaTeX needs to show them.

    ``figures.tex`` has a float for each, with caption and label; ``paper.tex`` shows all of it and ``table.tex``.

    Args:
        pictures: That may be drawn.
        report: Its folder.
        name: Of the comparison, for labels.
        width: Of the figures in inches, exactly.
        formats: Of further files beside PDF.
        seeds: A sentence that says from how many seeds the numbers are.
        made: A sentence that says what they were made by.

    Returns:
        All files, those of LaTeX first.
    """
    import matplotlib.backends.backend_pdf
    import matplotlib.figure  # noqa: F401  # here, so that forked processes have it

    folder = report / FOLDER
    folder.mkdir(parents=True, exist_ok=True)

    def drawn(picture: Asked) -> _Drawn | None:
        figure = picture.draw()
        if figure is None:
            return None
        files = save(figure, folder / picture.name, ["pdf", *(each for each in formats if each != "pdf")])
        return _Drawn(picture.name, files, f"{_sentence(picture.title)} {picture.caption}")

    with drawn_in(in_print(width)):
        found = [each for each in map_forked(drawn, pictures) if each is not None]
    floats = "\n".join(_float(each, label_of(name), width, seeds, made) for each in found)
    text_width = 2 * width + 0.25 if width <= ONE_COLUMN else width  # two columns of figures, or one across both
    head = f"{unknown_letters(floats)}% Needs \\usepackage{{graphicx}}.\n\n"
    texts = {"figures.tex": head + floats, "paper.tex": DOCUMENT.replace("TEXT", f"{text_width:g}")}
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    return (*(folder / file for file in texts), *(path for each in found for path in each.files))


def _sentence(title: str) -> str:
    return title if title.endswith(("?", ".")) else f"{title}."


def _float(picture: _Drawn, name: str, width: float, seeds: str, made: str) -> str:
    where = "figure*" if width > ONE_COLUMN else "figure"
    return "\n".join(
        [
            f"\\begin{{{where}}}[t]",
            "\\centering",
            f"\\includegraphics{{{picture.name}.pdf}} % {width:g} in wide; do not scale it, its letters have 7 to 8 pt",
            f"\\caption{{{escaped(f'{picture.caption} {seeds} {made}')}}}",
            f"\\label{{fig:{name}-{picture.name}}}",
            f"\\end{{{where}}}",
            "",
        ]
    )
