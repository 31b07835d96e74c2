"""Tables as LaTeX for papers: booktabs rules, digits aligned by siunitx, self-contained captions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from string import Template

from fedreach._util.tables import visible
from fedreach.report.figures import FigureSpec, draw_figures
from fedreach.report.figures.style import print_style, use_style
from fedreach.report.formats import LONG_NAME, group_columns, head_lines, width_of
from fedreach.report.numbers import ABSENT, TEMPLATES
from fedreach.report.tables import Table

TEXT_WIDTH = 108  # letters at 8 points that fit into 5.5 inches, the narrowest usual text width
COLUMN_WIDTH = 62  # letters that fit into 3.25 inches
LONG_CELL = 30  # letters from which the words of a column are wrapped
LETTER = 0.055  # inches of such a letter, estimated generously
LAST_KNOWN_LETTER = 0x17F  # last code point that pdflatex knows by default
PREAMBLE = r"""% Needs \usepackage{booktabs,siunitx}. Made by fedreach report.
% Each caption is complete. Remove what your text already explains.
"""
# text before the first number, its sign, digits before the point, the point and digits after it, text after it
NUMERIC_CELL = re.compile(r"((?:< )?)([+−-]?)(\d[\d,]*)((?:\.\d+)?)(.*)")
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


def escape(text: str) -> str:
    r"""Return a text escaped so that LaTeX prints it unchanged.

    Example:
        >>> print(escape("50 % of A&B_1, 0.8 ± 0.1, ours--2"))
        50~\% of A\&B\_1, 0.8 $\pm$ 0.1, ours-{}-2
    """
    text = visible(re.sub(r"[\n\t]+", " ", text))
    text = re.sub(r"(\d) %", "\\1\u00a0%", text)
    return re.sub("-(?=-)", "-{}", "".join(_ESCAPED.get(c, c) for c in text))


def label_of(name: str) -> str:
    """Return a name with only the characters that labels allow.

    Example:
        >>> label_of("Digits & 50 %"), label_of("数")
        ('digits-50', 'comparison')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "comparison"


def to_latex(tables: Sequence[Table], name: str, *, seeds: str, provenance: str) -> str:
    """Return tables as one LaTeX file, each with a caption and a label; tables that are too wide are split.

    Args:
        tables: Tables to write.
        name: Name of the comparison for labels.
        seeds: Sentence on the number of seeds.
        provenance: Sentence on the software that wrote the numbers.
    """
    parts = [part for table in tables for part in _tables(table, name, seeds, provenance)]
    text = "\n".join(parts)
    return f"{unknown_letters(text)}{PREAMBLE}\n{text}"


def unknown_letters(text: str) -> str:
    """Return a comment on letters that pdflatex does not support; empty if all letters are supported."""
    unknown = "".join(sorted({c for c in text if ord(c) > LAST_KNOWN_LETTER}))
    if not unknown:
        return ""
    return f"% Contains letters that pdflatex does not support ({unknown}). Use lualatex with a font that has them.\n"


def _tables(table: Table, name: str, seeds: str, provenance: str) -> list[str]:
    label = f"tab:{label_of(name)}-{table.name}"
    title = table.caption[0].lower() + table.caption[1:]
    caption = " ".join(filter(None, [f"{name}: {title}.", seeds, table.note, table.details, table.stated, provenance]))
    main_columns, *extra_groups = group_columns(table, TEXT_WIDTH)
    environments = [_environment(table, main_columns, escape(caption), label)]
    for number, columns in enumerate(extra_groups, start=2):
        extra_caption = f"More columns of Table~\\ref{{{label}}}: {escape(title)}."
        environments.append(_environment(table, columns, extra_caption, f"{label}-{number}"))
    return environments


def _environment(table: Table, columns: Sequence[int], caption: str, label: str) -> str:
    kinds, cells = [], []
    for j in columns:
        kind, column = _column(
            [row[j] for row in table.rows], {i for i, k in table.bold if k == j}, name=j == columns[0]
        )
        kinds.append(kind)
        cells.append(column)
    heads = [head_lines(table, j) for j in columns]
    high = max(len(head) for head in heads)
    lines = zip(*([*[""] * (high - len(head)), *head] for head in heads), strict=True)
    return _fill(
        "table",
        where="table" if width_of(table, columns) <= COLUMN_WIDTH else "table*",
        caption=caption,
        label=label,
        kinds="".join(kinds),
        heads="\n".join(_line([f"{{{escape(text)}}}" for text in line]) for line in lines if any(line)),
        rows="\n".join(map(_line, zip(*cells, strict=True))),
    )


def _fill(template: str, **values: str) -> str:
    """Return a template of LaTeX with these values."""
    return Template((TEMPLATES / f"{template}.tex").read_text(encoding="utf-8")).substitute(values)


def _line(cells: Sequence[str]) -> str:
    line = " & ".join(cells)
    return (
        ("{}" if line.startswith(("[", "*")) else "") + line + r" \\"
    )  # else LaTeX reads it as an option of the line before


def _column(cells: Sequence[str], bold: Collection[int], *, name: bool) -> tuple[str, list[str]]:
    """Return the LaTeX type of a column, and its cells; the first column holds names."""
    numeric = [cell for cell in cells if NUMERIC_CELL.fullmatch(cell)]
    if not name and numeric and {*cells} - {*numeric} <= {*NO_NUMBER}:
        return numeric_column(cells, bold)
    max_letters = LONG_NAME if name else LONG_CELL
    if max(map(len, cells)) <= max_letters:
        return "l", ["--" if cell == ABSENT else escape(cell) for cell in cells]
    broken = [re.sub(r"(\\_|[.:/])", r"\1\\allowbreak{}", escape(cell)) for cell in cells]
    return f"p{{{LETTER * max_letters:.2f}in}}", [f"{{\\raggedright {cell}\\par}}" for cell in broken]


def numeric_column(cells: Sequence[str], bold: Collection[int] = ()) -> tuple[str, list[str]]:
    r"""Return the type of a siunitx column that aligns the first numbers of its cells, and the cells.

    Braces prevent siunitx from parsing the text around a number, and cells without a number.

    Example:
        >>> kind, column = numeric_column(["80.5 ± 8.6", "−1,009.25", "-"], bold=[0])
        >>> print(kind, *column, sep="\n")
        S[table-format=+4.2{ $\pm$ 8.6}]
        \bfseries 80.5{\mdseries{} $\pm$ 8.6}
        -1009.25
        {--}
    """
    matches = [NUMERIC_CELL.fullmatch(cell) for cell in cells]
    parts = zip(*(match.groups() for match in matches if match), strict=True)
    before, sign, integer, decimals, after = (max(part, key=len) for part in parts)
    places = f"{len(integer.replace(',', ''))}.{max(len(decimals) - 1, 0)}"
    kind = f"S[table-format={_braces(before)}{'+' if sign else ''}{places}{_braces(after)}]"
    column = []
    for i, (cell, match) in enumerate(zip(cells, matches, strict=True)):
        if match is None:
            column.append("{--}" if cell == ABSENT else f"{{{escape(cell)}}}")
            continue
        before, sign, integer, decimals, after = match.groups()
        digits = f"{sign}{integer}{decimals}".replace("−", "-").replace(",", "")
        weight, back = ("\\bfseries ", "\\mdseries{}") if i in bold else ("", "")
        column.append(f"{_braces(before)}{weight}{digits}{_braces(after, back)}")
    return kind, column


def _braces(text: str, command: str = "") -> str:
    return f"{{{command}{escape(text)}}}" if text else ""


# ---- Figures for a paper, with captions

FOLDER = "paper"  # within the report
ONE_COLUMN = 4.0  # inches, above which a figure takes both columns of a page


def write_paper(
    specs: Sequence[FigureSpec],
    report: Path,
    name: str,
    *,
    width: float,
    formats: Sequence[str],
    seeds: str,
    provenance: str,
) -> tuple[Path, ...]:
    r"""Write each figure as PDF into ``paper/`` of a report, and write LaTeX files that include the figures.

    ``figures.tex`` contains a float for each figure, with caption and label. ``paper.tex`` includes ``figures.tex`` and
    ``table.tex``.

    Args:
        specs: Figures to draw. Figures without data are omitted.
        report: Folder of the report.
        name: Name of the comparison, for labels.
        width: Exact width of the figures in inches.
        formats: File formats in addition to PDF.
        seeds: Sentence on the number of seeds.
        provenance: Sentence on the software that wrote the numbers.

    Returns:
        Paths of all files, LaTeX files first.
    """
    folder = report / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with use_style(print_style(width)):
        pictures = draw_figures(specs, folder, list(dict.fromkeys(["pdf", *formats])), inline=False)
    floats = "\n".join(
        _fill(
            "figure",
            where="figure*" if width > ONE_COLUMN else "figure",
            name=picture.name,
            width=f"{width:g}",
            caption=escape(f"{_sentence(picture.title)} {picture.caption} {seeds} {provenance}"),
            label=label_of(name),
        )
        for picture in pictures
    )
    text_width = 2 * width + 0.25 if width <= ONE_COLUMN else width  # two columns of figures, or one across both
    texts = {
        "figures.tex": f"{unknown_letters(floats)}% Needs \\usepackage{{graphicx}}.\n\n{floats}",
        "paper.tex": _fill("paper", width=f"{text_width:g}"),
    }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    return (*(folder / file for file in texts), *(path for picture in pictures for path in picture.files))


def _sentence(title: str) -> str:
    return title if title.endswith(("?", ".")) else f"{title}."
