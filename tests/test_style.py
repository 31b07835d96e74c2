"""The source stays plain: its size, its shredding, its names and its prose, as figures that may only fall."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedreach"
LIMITS = {
    # Goal: 31,000. 37,340 before attacks, differential privacy, leavers of secure sums, and the list of disclosures.
    # 39,000 before tests by ranks, cohorts of another method, energy caps, changing clusters and theorems in reports.
    "lines of code": 40_200,
    "files": 246,  # 235 before them
    "entries at the top": 14,
    "percent of lines that import": 9.66,  # goal: 9
    "percent of names that say nothing": 0.2,
    "percent of functions named by a participle": 2.8,
    "private phrases per 1,000 words": 0.2,
}
"""Lower a limit whenever its figure falls, and never raise one without saying why in the commit."""

SAYS_NOTHING = {
    "found", "said", "own", "each", "one", "given", "told", "kept", "asked", "made", "some", "others", "other",
    "mine", "there", "wanted", "taken", "known", "seen", "here", "held", "again", "looks", "called", "meant",
    "further", "beside", "least", "most", "whole", "many", "few", "both", "such", "rest", "shown", "stated", "left",
}  # fmt: skip
PARTICIPLE = re.compile(r"_*[a-z]+(ed|en|wn|lt|ade|old|aid|ound|ept|eft|iven)_*")
NO_PARTICIPLES = {"embed", "speed", "seed", "need", "feed", "between", "open", "fold"}
PRIVATE = [
    *(rf"\b{words}\b" for words in ("told", "tells?", "whoever", "nobody", "everybody", "somebody", "anew", "beside")),
    *(rf"\b{words}\b" for words in ("shall", "learnt", "mended?", "dear(er|est)?", "of one's own", "go(es)? (on|by)")),
    *(rf"\b{words}\b" for words in ("gone on", "stands? (in|at|for|beside)", "so many", "made-up", "secure sums?")),
    r"\b(is|are) no [a-z]",
    r"\bless \(minus\)",
    r"\bfour (of|in) five\b",
    r"\bserved\b",
    r"(?<![\d.])\.\d",
    r"\d %",
]
ANY_PRIVATE = re.compile("|".join(PRIVATE))
SKIPPED = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are assigned, and those of arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def figures(source: Path) -> dict[str, float]:
    """Return the figures that `LIMITS` bounds, of all Python files below a folder."""
    files = sorted(source.rglob("*.py"))
    code = imports = words = phrases = 0
    assigned: list[str] = []
    functions: list[str] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        docstrings = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        with file.open("rb") as stream:
            tokens = list(tokenize.tokenize(stream.readline))[1:]
        covered = {line for t in tokens if t.type not in SKIPPED for line in range(t.start[0], t.end[0] + 1)}
        code += len(covered - docstrings)
        imports += sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        assigned += names(tree)
        functions += [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        prose = [lines[number - 1] for number in sorted(docstrings)]
        comments = [t.string for t in tokens if t.type == tokenize.COMMENT]
        words += sum(len(line.split()) for line in [*prose, *comments])
        read = [*comments, *(line for line in prose if not line.lstrip().startswith((">>>", "...")))]
        suspects = [line for line in read if ANY_PRIVATE.search(line)]
        phrases += sum(bool(re.search(pattern, line)) for line in suspects for pattern in PRIVATE)
    participles = [name for name in functions if PARTICIPLE.fullmatch(name) and name.strip("_") not in NO_PARTICIPLES]
    empty = [name for name in assigned if name.strip("_") in SAYS_NOTHING]
    top = [path for path in source.iterdir() if path.name != "__pycache__" and (path.is_dir() or path.suffix == ".py")]
    return {
        "lines of code": code,
        "files": len(files),
        "entries at the top": len([path for path in top if not path.name.startswith("__")]),
        "percent of lines that import": 100 * imports / max(code, 1),
        "percent of names that say nothing": 100 * len(empty) / max(len(assigned), 1),
        "percent of functions named by a participle": 100 * len(participles) / max(len(functions), 1),
        "private phrases per 1,000 words": 1000 * phrases / max(words, 1),
    }


DOC_LIMITS = {
    "words": 19_850,  # goal: 25,000. 19,500 before noise of clients under secure aggregation
    "private phrases per 1,000 words": 0.5,
    "percent of sentences with more than 25 words": 0.4,
}
"""Of the README and the pages of docs/; `MESSAGE_LIMITS` of tests/messages.txt."""
MESSAGE_LIMITS = {"private phrases per 1,000 words": 0.5, "percent of sentences with more than 25 words": 0.3}


def prose_figures(text: str) -> dict[str, float]:
    """Return the figures that `DOC_LIMITS` bounds, of Markdown without code, tables, headings and comments."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#"))]
    sentences = re.split(r"(?<=[.!?:])\s|\n\s*\n|\n\s*[-*] ", "\n".join(lines))
    lengths = [n for sentence in sentences if (n := len(sentence.split()))]
    phrases = sum(len(re.findall(pattern, line)) for line in lines for pattern in PRIVATE)
    return {
        "words": sum(lengths),
        "private phrases per 1,000 words": 1000 * phrases / max(sum(lengths), 1),
        "percent of sentences with more than 25 words": 100 * sum(n > 25 for n in lengths) / max(len(lengths), 1),
    }


@pytest.mark.parametrize("figure", DOC_LIMITS)
def test_the_documentation_is_as_plain_as_it_was(figure: str) -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    value = prose_figures("\n\n".join(page.read_text(encoding="utf-8") for page in pages))[figure]
    assert value <= DOC_LIMITS[figure], f"{figure}: {value:.2f}, and the limit is {DOC_LIMITS[figure]}"


@pytest.mark.parametrize("figure", MESSAGE_LIMITS)
def test_messages_are_as_plain_as_they_were(figure: str) -> None:
    text = re.sub(r"\{[^{}]*\}", "X", (ROOT / "tests" / "messages.txt").read_text(encoding="utf-8"))
    value = prose_figures(text.replace("\n", "\n\n"))[figure]
    assert value <= MESSAGE_LIMITS[figure], f"{figure}: {value:.2f}, and the limit is {MESSAGE_LIMITS[figure]}"


HELP_LIMITS = {"private phrases per 1,000 words": 0.5, "percent of sentences with more than 25 words": 0.5}
"""Of the help of commands, options and keys of an experiment file."""


@pytest.mark.parametrize("figure", HELP_LIMITS)
def test_help_is_as_plain_as_it_was(figure: str) -> None:
    from fedreach.cli import main
    from fedreach.experiment import schema

    texts = [
        text
        for command in main.commands.values()
        for text in (command.help, *(vars(p).get("help") for p in command.params))
    ]
    tree = ast.parse(Path(schema.__file__).read_text(encoding="utf-8"))
    texts += [n.value.value for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    value = prose_figures("\n\n".join(filter(None, texts)))[figure]
    assert value <= HELP_LIMITS[figure], f"{figure}: {value:.2f}, and the limit is {HELP_LIMITS[figure]}"


def test_a_page_of_long_and_private_sentences_is_found() -> None:
    figures_of_page = prose_figures(f"# Title\n\nIt goes on for nobody.\n\n{'word ' * 26}.\n\n```sh\nnobody\n```\n")
    assert figures_of_page == {
        "words": 32,
        "private phrases per 1,000 words": pytest.approx(1000 * 2 / 32),
        "percent of sentences with more than 25 words": 50.0,
    }


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    return figures(SOURCE)


@pytest.mark.parametrize("figure", LIMITS)
def test_the_source_is_as_plain_as_it_was(figure: str, measured: dict[str, float]) -> None:
    assert measured[figure] <= LIMITS[figure], f"{figure}: {measured[figure]:.2f}, and the limit is {LIMITS[figure]}"


def test_a_file_of_private_names_and_prose_is_found(tmp_path: Path) -> None:
    text = '"""Whoever reads it is told so."""\n\nimport os\n\n\n'
    text += "def told(found):\n    # nobody goes on .5 %\n    said = found\n"
    (tmp_path / "bad.py").write_text(text, encoding="utf-8")
    assert figures(tmp_path) == {
        "lines of code": 3,
        "files": 1,
        "entries at the top": 1,
        "percent of lines that import": pytest.approx(100 / 3),
        "percent of names that say nothing": 100.0,
        "percent of functions named by a participle": 100.0,
        "private phrases per 1,000 words": pytest.approx(1000 * 5 / 12),
    }
