"""All error messages, warnings and notes of the source are in tests/messages.txt, for an editor to read in one place.

python tests/test_messages.py    # write the file again
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedreach"
SNAPSHOT = Path(__file__).with_name("messages.txt")
CALLS = ("Error", "warn", "warning", "info")  # ends of the names that are called with a message


def text_of(node: ast.expr) -> str:
    """Return the text of a string with ``{expression}`` for what is filled in; empty if it is computed elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else text_of(part)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def messages(source: Path) -> dict[str, list[str]]:
    """Return the messages of each file with at least three words, in their order."""
    listed: dict[str, list[str]] = {}
    for file in sorted(source.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        calls = [call for call in calls if ast.unparse(call.func).endswith(CALLS) and call.args]
        calls.sort(key=lambda call: (call.lineno, call.col_offset))
        texts = [" ".join(text.split()) for call in calls for argument in call.args if (text := text_of(argument))]
        if texts := [text for text in texts if text.count(" ") >= 2]:
            listed[file.relative_to(source).as_posix()] = texts
    return listed


def snapshot(source: Path) -> str:
    """Return the file of all messages."""
    return "\n".join(
        f"## {file}\n" + "".join(f"{text}\n" for text in texts) for file, texts in messages(source).items()
    )


def test_the_snapshot_has_the_messages_of_the_source() -> None:
    assert SNAPSHOT.read_text(encoding="utf-8") == snapshot(SOURCE), "run python tests/test_messages.py"


def test_a_changed_message_changes_the_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('def f(k):\n    raise ValueError(f"k: must be positive; got {k}. " "Choose another.")\n', "utf-8")
    assert snapshot(tmp_path) == "## module.py\nk: must be positive; got {k}. Choose another.\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(SOURCE), encoding="utf-8")
    sys.stdout.write(f"Wrote {SNAPSHOT}\n")
