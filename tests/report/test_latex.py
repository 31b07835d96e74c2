from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fedreach.report.formats import width_of
from fedreach.report.latex import TEXT_WIDTH, escape, numeric_column, to_latex
from fedreach.report.numbers import RunSet
from fedreach.report.overview import Analysis, analyse
from fedreach.report.read import read
from fedreach.report.tables import Table, seeds_sentence, tabulate, tabulate_contrasts
from fedreach.report.write import write_report

from .made_up import edit, write_comparison

AWKWARD = (r"50%|A&B\~{x}<b>$1$", "a_b#c^d--e", '*star "quoted" `x`', "[bracket] é ö ł", "α-β → x")
ENGINE = next((found for name in ("pdflatex", "lualatex", "tectonic") if (found := shutil.which(name))), None)


def latex(*tables: Table) -> str:
    return to_latex(tables, "Small & new", seeds="5 seeds.", provenance="Made by hand.")


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("awkward"), AWKWARD, [0, 1, 2], rounds=4, radios=("best",))


def environments(text: str) -> list[str]:
    return re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.DOTALL)


def rows(tabular: str) -> list[str]:
    return [line for line in tabular.splitlines() if line.endswith(r"\\")]


def cells(row: str) -> list[str]:
    return re.split(r"(?<!\\)&", row.removesuffix(r"\\"))


def test_every_row_has_as_many_cells_as_columns_are_declared(awkward: Path) -> None:
    text = (write_report([awkward], awkward, formats=None).page.parent / "table.tex").read_text(encoding="utf-8")
    assert len(environments(text)) > 3
    for tabular in environments(text):
        declared = re.search(r"\\begin\{tabular\}\{@\{\}(.*)@\{\}\}\n", tabular)
        assert declared
        columns = len(re.sub(r"p\{[^}]*\}|S\[table-format=(?:[^{}\]]|\{[^}]*\})*\]", "c", declared[1]))
        assert {len(cells(row)) for row in rows(tabular)} == {columns}


def test_braces_balance_and_dollars_are_even_with_every_awkward_name(awkward: Path) -> None:
    text = latex(tabulate(analyse(read([awkward]))))
    for line in text.splitlines():
        bare = re.sub(r"\\[\\{}$%&#_]", "", line).partition("%")[0]
        depth = 0
        for character in bare:
            depth += {"{": 1, "}": -1}.get(character, 0)
            assert depth >= 0, line
        assert depth == 0, line
        assert bare.count("$") % 2 == 0, line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a_b", r"a\_b"),
        ("50%", r"50\%"),
        ("A&B", r"A\&B"),
        ("#1", r"\#1"),
        ("$x$", r"\$x\$"),
        ("a\\b", r"a\textbackslash{}b"),
        ("{x}", r"\{x\}"),
        ("~", r"$\sim$"),
        ("^", r"\textasciicircum{}"),
        ("a|b<c>d", r"a\textbar{}b$<$c$>$d"),  # printed as dashes and Spanish marks else
        ("x--y---z", "x-{}-y-{}-{}-z"),  # dashes else
        ("é ö ł", "é ö ł"),
        ("α → Ω", r"$\alpha$ $\rightarrow$ $\Omega$"),
        ("two\nlines\x1b[2J", r"two lines\textbackslash{}x1b[2J"),
    ],
)
def test_names_are_printed_as_they_stand(name: str, said: str) -> None:
    assert escape(name) == said


def test_a_name_in_brackets_is_no_option_of_the_line_above(awkward: Path) -> None:
    for tabular in environments(latex(tabulate(analyse(read([awkward]))))):
        assert not any(line.startswith(("[", "*")) for line in tabular.splitlines())


def test_letters_that_pdflatex_does_not_know_are_told() -> None:
    table = Table("C", ("method",), ("",), (("数",), ("ł",)), (0,), "")
    assert latex(table).startswith("% Contains letters that pdflatex does not support (数)")
    assert latex(replace(table, rows=(("ł",),))).startswith(r"% Needs \usepackage{booktabs,siunitx}")


COLUMN = [
    "80.5 ± 8.6",
    "9.2 ± 10.4",
    "−71.25",
    "+3.1 [−0.2, +14.0]",
    "12 (3 of 5)",
    "-",
    "baseline",
    "< 0.001",
    "1e-05",
]


def test_nothing_of_a_cell_is_lost() -> None:
    _, texts = numeric_column([*COLUMN, "12,345.5"], bold=[0])
    shown = [re.sub(r"\\(?:bfseries |mdseries\{\})|[{}$]", "", text).replace(r"\pm", "±") for text in texts]
    assert [text.replace("--", "-").replace("−", "-") for text in shown] == [
        cell.replace("−", "-") for cell in [*COLUMN, "12345.5"]
    ]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (COLUMN[:3], r"S[table-format=+2.2{ $\pm$ 10.4}]"),
        ([COLUMN[3], "−12.5 [−100.0, +0.5]", "-", "baseline"], r"S[table-format=+2.1{ [$-$100.0, +0.5]}]"),
        (["0.018", "< 0.001", "12,345.5"], "S[table-format={$<$ }5.3]"),
        (["2/2", "10/12"], "S[table-format=2.0{/12}]"),
    ],
)
def test_a_column_has_room_for_the_longest_part_of_its_cells(cells: list[str], kind: str) -> None:
    assert numeric_column(cells)[0] == kind


def test_siunitx_reads_no_text_around_a_number_and_no_cell_without_one() -> None:
    """It would stop at a word, and take the digits of an interval for those of the number."""
    number = re.compile(r"(?:\{[^}]*\})?(?:\\bfseries )?[+-]?\d+(?:\.\d+)?(?:\{.*\})?|\{[^}]*\}")
    assert all(number.fullmatch(text) for text in numeric_column(COLUMN, bold=[0])[1])


def test_wide_tables_are_several_each_of_which_fits(awkward: Path) -> None:
    analysis = analyse(read([awkward]))
    table = tabulate(analysis)
    assert width_of(table, range(len(table.header))) > TEXT_WIDTH
    text = latex(table)
    assert len(environments(text)) > 1
    heads = [cells(rows(tabular)[0])[0] for tabular in environments(text)]
    assert len(heads) == text.count(r"\label{tab:small-new-last") == len(environments(text))
    assert text.count(r"More columns of Table~\ref{tab:small-new-last}") == len(heads) - 1


def test_the_caption_says_the_seeds_of_the_runs_and_not_those_that_were_asked_for(
    comparison: RunSet, tmp_path: Path
) -> None:
    assert seeds_sentence(comparison) == "4 to 5 seeds of 5 planned."
    two = write_comparison(tmp_path, ["a", "b"], [3, 7], rounds=4)
    written = write_report([two], two, formats=None)
    text = (written.page.parent / "table.tex").read_text(encoding="utf-8")
    assert "2 seeds." in text
    shutil.rmtree(two / "runs" / "a" / "seed-7")
    edit(two / "runs" / "b" / "seed-7" / "result.json", status="failed", error="gone")
    text = (write_report([two], two, formats=None).page.parent / "table.tex").read_text(encoding="utf-8")
    assert "1 seed of 2 planned." in text


def test_the_caption_says_intervals_correction_and_what_could_be_seen(comparison: RunSet) -> None:
    analysis = analyse(comparison)
    text = latex(tabulate(analysis))
    assert r"Each CI has the level of its Holm step, at most 98.75\%." in text
    assert "adjusted for 4 comparisons (Holm)" in text
    assert "Made by hand." in text


def test_the_best_number_is_bold_and_nothing_else(comparison: RunSet) -> None:
    table = replace(tabulate(analyse(comparison)), bold=frozenset({(2, 2)}))
    text = latex(table)
    (row,) = [line for line in text.splitlines() if line.startswith(escape(table.rows[2][0]))][:1]
    assert rf"\bfseries {table.rows[2][2].split()[0]}{{\mdseries{{}}" in row
    assert text.count(r"\bfseries") == 1


def test_all_tables_of_a_report_have_labels_of_their_own(analysis: Analysis, tmp_path: Path) -> None:
    tables = [tabulate(analysis, "last"), tabulate(analysis, "best"), tabulate_contrasts(analysis)]
    labels = re.findall(r"\\label\{(.*?)\}", latex(*[table for table in tables if table]))
    assert len(labels) == len(set(labels)) > 2


@pytest.fixture(scope="module")
def analysis(comparison: RunSet) -> Analysis:
    return analyse(comparison)


@pytest.mark.slow
@pytest.mark.skipif(ENGINE is None, reason="no pdflatex, lualatex or tectonic is installed")
@pytest.mark.parametrize("which", ["unadapted", "awkward"])
def test_latex_sets_the_tables_and_figures_without_a_complaint(
    folder: Path, awkward: Path, tmp_path: Path, which: str
) -> None:
    written = write_report([folder if which == "unadapted" else awkward], tmp_path, formats=None, paper="single")
    place = written.paper[0].parent
    assert ENGINE is not None
    options = [] if "tectonic" in ENGINE else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run([ENGINE, *options, "paper.tex"], cwd=place, capture_output=True, text=True, check=False)
    log = done.stdout + (place / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log[-3000:]
    assert (place / "paper.pdf").stat().st_size > 20_000
    assert not re.findall(r"Overfull \\hbox \((?:[2-9]|\d\d+)\.", log)
    assert "Missing character" not in log
    narrow = (
        r"\documentclass{article}\usepackage{booktabs,siunitx}\usepackage[textwidth=5.5in]{geometry}\begin{document}"
    )
    (place / "narrow.tex").write_text(narrow + r"\input{../table}\end{document}", encoding="utf-8")
    done = subprocess.run([ENGINE, *options, "narrow.tex"], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert not re.findall(r"Overfull \\hbox \((?:[2-9]|\d\d+)\.", done.stdout)
