"""Draw a sample of sentences for a review of the language: ``python docs/review/sample.py --seed 7``.

The sample is stratified: `STRATA` says how many sentences come from each kind of text. The same seed and the same
texts give the same sample. A reader who did not write the text grades each sentence; README.md explains the grades.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedreach"
sys.path.insert(0, str(ROOT / "tests"))

import test_messages  # noqa: E402  (its list of messages)

STRATA = {"README": 10, "documentation": 30, "docstrings": 25, "help": 10, "messages": 15, "captions": 10}
MIN_WORDS = 4
Place = tuple[str, str]  # where a sentence stands, and the sentence


def main() -> None:
    """Print the sample as a Markdown table with an empty column for grades."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7, help="seed of the draw (default: %(default)s)")
    rng = random.Random(parser.parse_args().seed)
    print("| # | kind | place | sentence | grade |\n| ---: | --- | --- | --- | --- |")
    number = 0
    for kind, count in STRATA.items():
        candidates = sorted(set(TEXTS[kind]()))
        for place, sentence in sorted(rng.sample(candidates, count)):
            number += 1
            print(f"| {number} | {kind} | {place} | {sentence.replace('|', chr(92) + '|')} | |")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text with at least `MIN_WORDS` words."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\"(])", " ".join(paragraph.split())):
            if len(sentence.split()) >= MIN_WORDS:
                yield sentence.strip("-* ")


def prose(page: Path) -> Iterator[Place]:
    """Yield the sentences of a Markdown page, without code, tables, headings, pictures and comments."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "\n", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", re.sub(r"!\[.*?\]\(.*?\)", "", text)).replace("**", "")
    lines = ["" if line.startswith(("|", "#", "[!")) else line for line in text.splitlines()]
    yield from ((page.relative_to(ROOT).as_posix(), sentence) for sentence in sentences("\n".join(lines)))


def readme() -> list[Place]:
    return list(prose(ROOT / "README.md"))


def documentation() -> list[Place]:
    return [place for page in sorted((ROOT / "docs").glob("*.md")) for place in prose(page)]


def docstrings() -> list[Place]:
    """Return the sentences of the docstrings of public modules, classes and functions, without examples."""
    found: list[Place] = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            text = re.sub(r"^ *(>>>|\.\.\.).*?(?=^\s*$|\Z)", "", ast.get_docstring(node) or "", flags=re.M | re.S)
            text = re.sub(r"^ *(Args|Raises|Returns|Example|Examples|Attributes):$", "", text, flags=re.MULTILINE)
            text = re.sub(r"\n +(?=\w+: )", "\n\n", text)  # one paragraph for each argument
            if not getattr(node, "name", "module").startswith("_"):
                found += [(file.relative_to(ROOT).as_posix(), sentence) for sentence in sentences(text)]
    return found


def help_texts() -> list[Place]:
    """Return the sentences of the help of commands and their options, and of the keys of an experiment file."""
    from fedreach.cli import main as command

    found: list[Place] = []
    for name, sub in command.commands.items():
        texts = [sub.help or "", *(p.help or "" for p in sub.params if isinstance(p, click.Option))]
        found += [(f"fedreach {name} --help", s) for text in texts for s in sentences(text.replace("\b", ""))]
    schema = SOURCE / "experiment" / "schema.py"
    for node in ast.walk(ast.parse(schema.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            keys = [(a, b.value) for a, b in pairs if isinstance(a, ast.AnnAssign) and isinstance(b, ast.Expr)]
            for key, text in keys:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found += [(f"key {ast.unparse(key.target)}", sentence) for sentence in sentences(text.value)]
    return found


def error_messages() -> list[Place]:
    """Return the sentences of error messages, warnings and notes."""
    return [
        (f"src/fedreach/{file}", sentence)
        for file, texts in test_messages.messages(SOURCE).items()
        for text in texts
        for sentence in sentences(text)
    ]


def captions() -> list[Place]:
    """Return the sentences that the terminal and the report print: strings of their code that are no docstrings."""
    found: list[Place] = []
    for file in [*sorted((SOURCE / "report").rglob("*.py")), SOURCE / "api" / "terminal.py"]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        raised = {id(x) for n in ast.walk(tree) if isinstance(n, ast.Raise) for x in ast.walk(n)}
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and not {id(node)} & (inside | raised | alone):
                text = re.sub(r"<[^>]+>", "", test_messages.text_of(node))
                found += [(file.relative_to(ROOT).as_posix(), sentence) for sentence in sentences(text)]
    for file in sorted((SOURCE / "report" / "templates").glob("*.html")):
        blocks = re.sub(
            r"<script.*?</script>|<style.*?</style>|\{[%#].*?[%#]\}", "\n\n", file.read_text("utf-8"), flags=re.S
        )
        text = re.sub(r"</?(?:p|li|h\d|td|th|div|summary|figcaption)\b[^>]*>", "\n\n", blocks)
        text = re.sub(r"<[^>]+>", "", text)
        found += [(file.relative_to(ROOT).as_posix(), sentence) for sentence in sentences(text)]
    return found


TEXTS = {
    "README": readme,
    "documentation": documentation,
    "docstrings": docstrings,
    "help": help_texts,
    "messages": error_messages,
    "captions": captions,
}

if __name__ == "__main__":
    main()
