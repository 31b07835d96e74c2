"""What a file of code means: its digest changes with what the code does, not with how it is laid out or explained."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedreach.storage.definitions import definition_of

READS_ITSELF = re.compile(rb"__doc__|__file__|__code__|\b(inspect|linecache|tokenize|traceback|jit)\b")
"""Whoever says so may look at its own text, or at where it stands: then every letter counts."""


def digest_of_code(path: Path, name: str = "") -> str:
    """Return the sha256 of what a file of Python means: of its syntax tree without comments, layout and docstrings.

    Of other files, of text that is no Python, and of code that may read itself (see `READS_ITSELF`) all bytes count.
    The tree is written in a way of our own, which does not depend on the version of Python.

    Args:
        path: The file.
        name: A function or class of the file, of which its definition counts and what that refers to, see
            `fedreach.storage.definitions`; "": all of the file counts. Where all of it counts in spite of a name, the
            digest is followed by the reason.

    Raises:
        OSError: If it cannot be read.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "my.py"
        >>> def digest(text, name=""):
        ...     return file.write_text(text) and digest_of_code(file, name)
        >>> digest("def f(x): return x + 1") == digest('def f(x):\\n    "Explained."\\n    return (x + 1)  # one more')
        True
        >>> digest("def f(x): return x + 1") == digest("def f(x): return x + 1.0")
        False
        >>> digest("def f(x): return x + 1", "f") == digest("def f(x): return x + 1\\nprint('read')", "f")
        True
        >>> digest("def f(x): return eval(x)", "f").partition(" ")[2]
        '(the whole file counts: it uses eval)'
    """
    content = path.read_bytes()
    meaning, because = _meaning_of(content, name) if path.suffix == ".py" else (None, "")
    found = hashlib.sha256(content if meaning is None else b"python " + meaning.encode()).hexdigest()
    return f"{found} (the whole file counts: {because})" if because and name else found


def name_in(called: str) -> str:
    """Return the NAME of ``FILE.py:NAME`` or ``module:NAME``; "" of the path of a file.

    Example:
        >>> name_in("my.py:Net"), name_in("lib/my.py")
        ('Net', '')
    """
    return called.rpartition(":")[2] if ":" in called else ""


def _meaning_of(content: bytes, name: str) -> tuple[str | None, str]:
    """Return what `digest_of_code` is the digest of, None where all bytes count; and why a name is not enough."""
    try:
        tree = ast.parse(content)
        if not name:
            return (None if READS_ITSELF.search(content) else _text(tree)), ""
        part = definition_of(tree, name)
        text = "\n".join(map(ast.unparse, part.statements)).encode()
        if READS_ITSELF.search(content if part.whole_because else text):
            return None, "it may read its own text"
        return _text(tree if part.whole_because else [*part.statements]), part.whole_because
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, ""


def _text(tree: ast.Module | list[ast.stmt]) -> str:
    return "".join(_written(tree))


def _written(node: object) -> Iterator[str]:
    if isinstance(node, list):
        yield "["
        for each in node:
            yield from _written(each)
        yield "]"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name in node._fields:
            value: Any = getattr(node, name, None)
            if name == "body" and isinstance(node, DOCUMENTED):
                value = value[1:] if _is_docstring(value) else value
            if value is not None and value != []:  # fields that newer versions add are empty where nobody uses them
                yield f" {name}="
                yield from _written(value)
        yield ")"
    else:
        yield f"{type(node).__name__}:{node!r}"


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
