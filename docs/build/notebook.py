"""The tutorial as a notebook: text as Markdown cells, Python and commands as code cells."""

from __future__ import annotations

import json
import re
from typing import Any

BLOCK = re.compile(r"^```(python|sh|toml)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"\A# (\S+\.(?:py|toml))\n")
NOTE = "You can also open this page [as a notebook](tutorial.ipynb).\n"


def made(page: str) -> tuple[str, str]:
    """Return the notebook, and the page with a link to it below its title.

    A block whose first line names a file becomes a cell that writes it. Other Python and all commands become cells to
    run.
    """
    pieces = BLOCK.split(page)
    cells: list[dict[str, Any]] = []
    for text, (language, block) in zip(
        pieces[::3], [*zip(pieces[1::3], pieces[2::3], strict=True), ("", "")], strict=True
    ):
        if text.strip():
            cells.append(cell("markdown", text.strip()))
        named = FILE.match(block)
        if named:
            cells.append(cell("code", f"%%writefile {named[1]}\n{block}"))
        elif language == "sh":
            cells.append(cell("code", "".join(f"!{line}\n" for line in block.splitlines() if line)))
        elif language == "python":
            cells.append(cell("code", block))
        elif block:
            cells.append(cell("markdown", f"```{language}\n{block}```"))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    document = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 4}
    title, _, rest = page.partition("\n\n")
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n", f"{title}\n\n{NOTE}\n{rest}"


def cell(kind: str, text: str) -> dict[str, Any]:
    """Return a cell."""
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip("\n").splitlines(keepends=True), **code}
