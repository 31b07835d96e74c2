r"""Tables as LaTeX for papers: rules of booktabs, digits below digits, captions that stand by themselves.

Nothing but booktabs is needed: what is shorter than the longest number of its column is filled up by ``\phantom``, and
bold letters, which are wider, take the room of plain ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from fedreach._util.processes import map_forked
from fedreach._util.tables import visible
from fedreach.report.figures import Asked
from fedreach.report.figures.style import drawn_in, in_print, save
from fedreach.report.formats import LONG_NAME, folded, two_lines, width_of
from fedreach.report.numbers import ABSENT
from fedreach.report.tables import Table

TEXT_WIDTH = 108  # letters of a row that fit at 8 points into 5.5 inches, the narrowest text that is usual
COLUMN_WIDTH = 62  # into 3.25 inches
LONG_CELL = 30  # letters, from which the words of a column are broken into lines
LETTER = 0.055  # inches, of such a letter, on the wide side
KNOWN = 0x17F  # the last of the letters that pdflatex knows without being told
PREAMBLE = r"""% Needs \usepackage{booktabs}, and no other package. Made by fedreach report.
% A caption stands by itself; cut what your text says already.
\providecommand{\best}[1]{\phantom{#1}\llap{\textbf{#1}}} % bold, in the room of plain digits
"""
NUMBER = re.compile(r"([+−-]?)(\d[\d,]*)((?:\.\d+)?(?:e[+−-]?\d+)?)")
FIRST = ("", "< ")  # what stands before the first number of a cell of numbers
NO_NUMBER = (ABSENT, "", "baseline", "not tuned")
_GREEK = {
    "αβγδεζηθικλμνξ": "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi",
    "πρσςτυφχψω": "pi rho sigma varsigma tau upsilon phi chi psi omega",
    "ΓΔΘΛΞΠΣΦΨΩ": "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega",
}
_ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"$\sim$",
    "^": r"\textasciicircum{}",
    '"': r"\char34{}",
    "`": r"\textquoteleft{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "−": "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    "…": r"\dots{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "’": "'",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "⁻": "$^{-}$",
    "\u00a0": "~",
}
_ESCAPED |= {c: "\\" + c for c in "&%$#_{}"}
_ESCAPED |= {
    c: f"$\\{name}$" for letters, names in _GREEK.items() for c, name in zip(letters, names.split(), strict=True)
}


def escaped(text: str) -> str:
    r"""Return a text that LaTeX prints as it stands.

    Example:
        >>> print(escaped("50 % of A&B_1, 0.8 ± 0.1, ours--2"))
        50~\% of A\&B\_1, 0.8 $\pm$ 0.1, ours-{}-2
    """
    text = visible(re.sub(r"[\n\t]+", " ", text))
    text = re.sub(r"(\d) %", "\\1\u00a0%", text)
    return re.sub("-(?=-)", "-{}", "".join(_ESCAPED.get(c, c) for c in text))


def label_of(name: str) -> str:
    """Return what stands for a name in labels.

    Example:
        >>> label_of("Digits & 50 %"), label_of("数")
        ('digits-50', 'comparison')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "comparison"


def to_latex(tables: Sequence[Table], name: str, *, seeds: str, made: str) -> str:
    """Return tables as one LaTeX file, each with a caption and a label; of a table that is too wide several.

    Args:
        tables: What is shown.
        name: Of the comparison, for the labels.
        seeds: A sentence that says from how many seeds all numbers are.
        made: A sentence that says what they were made by.
    """
    parts = [part for table in tables for part in _tables(table, name, seeds, made)]
    text = "\n".join(parts)
    return f"{unknown_letters(text)}{PREAMBLE}\n{text}"


def unknown_letters(text: str) -> str:
    """Return a comment on letters for which pdflatex would stop; "" where there are none."""
    unknown = "".join(sorted({c for c in text if ord(c) > KNOWN}))
    if not unknown:
        return ""
    return f"% Holds letters that pdflatex does not know ({unknown}): use lualatex, with a font that has them.\n"


def _tables(table: Table, name: str, seeds: str, made: str) -> list[str]:
    label = f"tab:{label_of(name)}-{table.name}"
    said = table.caption[0].lower() + table.caption[1:]
    caption = " ".join(filter(None, [f"{name}: {said}.", seeds, table.note, table.stated, made]))
    shown, *others = folded(table, TEXT_WIDTH)
    made_of = [_environment(table, shown, escaped(caption), label)]
    for number, columns in enumerate(others, start=2):
        further = f"Further columns of Table~\\ref{{{label}}}: {escaped(said)}."
        made_of.append(_environment(table, columns, further, f"{label}-{number}"))
    return made_of


def _environment(table: Table, columns: Sequence[int], caption: str, label: str) -> str:
    kinds, cells = [], []
    for j in columns:
        kind, column = _column(
            [row[j] for row in table.rows], {i for i, k in table.bold if k == j}, name=j == columns[0]
        )
        kinds.append(kind)
        cells.append(column)
    heads = [[*_head(table, j), table.units[j]] for j in columns]
    high = max(len(head) for head in heads)
    heads = [[*[""] * (high - len(head)), *head] for head in heads]
    where = "table" if width_of(table, columns) <= COLUMN_WIDTH else "table*"
    return "\n".join(
        [
            f"\\begin{{{where}}}[t]",
            "\\centering",
            f"\\caption{{{caption}}}",
            f"\\label{{{label}}}",
            "\\smallskip",
            "\\footnotesize",
            "\\setlength{\\tabcolsep}{4pt}",
            f"\\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}",
            "\\toprule",
            *[_line([escaped(head[i]) for head in heads]) for i in range(high) if any(head[i] for head in heads)],
            "\\midrule",
            *[_line(row) for row in zip(*cells, strict=True)],
            "\\bottomrule",
            "\\end{tabular}",
            f"\\end{{{where}}}",
            "",
        ]
    )


def _head(table: Table, j: int) -> list[str]:
    """Return the lines of a header: two where it is wider than what stands below."""
    widest = max(len(text) for text in (table.units[j], *(row[j] for row in table.rows)))
    return [table.header[j]] if len(table.header[j]) <= widest else two_lines(table.header[j]).split("\n")


def _line(cells: Sequence[str]) -> str:
    line = " & ".join(cells)
    return ("{}" if line.startswith(("[", "*")) else "") + line + r" \\"  # else taken for an option of the line before


def _column(cells: Sequence[str], bold: Collection[int], *, name: bool) -> tuple[str, list[str]]:
    """Return how a column is set, and its cells; the first one holds names."""
    numbers = [_Cell.of(cell) for cell in cells]
    if not name and any(numbers) and all(n or cell in NO_NUMBER for n, cell in zip(numbers, cells, strict=True)):
        return "r", aligned(cells, bold)
    most = LONG_NAME if name else LONG_CELL
    if max(map(len, cells)) <= most:
        return "l", ["--" if cell == ABSENT else escaped(cell) for cell in cells]
    broken = [re.sub(r"(\\_|[.:/])", r"\1\\allowbreak{}", escaped(cell)) for cell in cells]
    return f"p{{{LETTER * most:.2f}in}}", [f"{{\\raggedright {cell}\\par}}" for cell in broken]


class _Cell(NamedTuple):
    """A cell of numbers, taken apart."""

    before: str
    numbers: tuple[tuple[str, ...], ...]  # sign, digits before the point, the rest
    behind: tuple[str, ...]  # what follows each number

    @staticmethod
    def of(text: str) -> _Cell | None:
        """Return the parts of a cell; None where it begins with words."""
        found = list(NUMBER.finditer(text))
        if not found or text[: found[0].start()] not in FIRST:
            return None
        ends = [*(number.start() for number in found[1:]), len(text)]
        behind = (text[number.end() : end] for number, end in zip(found, ends, strict=True))
        return _Cell(text[: found[0].start()], tuple(number.groups() for number in found), tuple(behind))

    def begins(self, other: _Cell) -> bool:
        """Return whether the other one is built as this one, and goes on."""
        return self.behind[:-1] == other.behind[: len(self.behind) - 1]


def aligned(cells: Sequence[str], bold: Collection[int] = ()) -> list[str]:
    r"""Return cells that stand digit below digit in a column that is set to the right.

    Cells that have fewer numbers than others stand at their left part; those built in another way are left alone.

    Example:
        >>> print("\n".join(aligned(["80.5 ± 8.6", "9.25 ± 10.4", "71.0", "-"], bold=[0])))
        \best{80.5}\phantom{5} $\pm$ \phantom{1}8.6
        9.25 $\pm$ 10.4
        71.0\phantom{5}\phantom{ $\pm$ 10.6}
        --
    """
    parted = [_Cell.of(cell) for cell in cells]
    longest = max((each for each in parted if each), key=lambda each: len(each.numbers))
    alike = [each if each and each.begins(longest) else None for each in parted]
    widest = []
    for k in range(len(longest.numbers)):
        met = [each.numbers[k] for each in alike if each and k < len(each.numbers)]
        widest.append(tuple(max((number[part] for number in met), key=len) for part in range(3)))
    return [
        _set(each, longest, widest, bold=i in bold) if each else "--" if cell == ABSENT else escaped(cell)
        for i, (cell, each) in enumerate(zip(cells, alike, strict=True))
    ]


def _set(cell: _Cell, longest: _Cell, widest: Sequence[tuple[str, ...]], *, bold: bool) -> str:
    """Return a cell with room for the digits, and the numbers, that others have and it has not."""
    text = escaped(cell.before)
    for k, ((sign, whole, rest), behind) in enumerate(zip(cell.numbers, cell.behind, strict=True)):
        if k:  # nothing stands to the left of the first one
            no_sign = "−" if widest[k][0] and not sign else ""
            text += _phantom(widest[k][1][: len(widest[k][1]) - len(whole)] + no_sign)
        digits = escaped(whole + rest)
        text += "$+$" if sign == "+" else "$-$" if sign else ""
        text += f"\\best{{{digits}}}" if bold and not k else digits
        text += _phantom(widest[k][2][len(rest) :]) + escaped(behind)
    last = len(cell.numbers) - 1
    missing = zip(longest.behind[last:], [*map("".join, widest[last + 1 :]), ""], strict=True)
    return text + (_phantom("".join(map("".join, missing))) if last + 1 < len(widest) else "")


def _phantom(text: str) -> str:
    return f"\\phantom{{{escaped(text)}}}" if text else ""


# --- What a paper takes from a report: figures at the width of a column, with their captions, beside ``table.tex``

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
