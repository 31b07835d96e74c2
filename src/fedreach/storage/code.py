"""What a file of code means: its digest changes with what the code does, not with how it is laid out or explained."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

READS_ITSELF = re.compile(rb"__doc__|__file__|__code__|\b(inspect|linecache|tokenize|traceback|jit)\b")
"""Whoever says so may look at its own text, or at where it stands: then every letter counts."""


def digest_of_code(path: Path) -> str:
    """Return the sha256 of what a file of Python means: of its syntax tree without comments, layout and docstrings.

    Of other files, of text that is no Python, and of code that may read itself (see `READS_ITSELF`) all bytes count.
    The tree is written in a way of our own, which does not depend on the version of Python.

    Raises:
        OSError: If it cannot be read.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "my.py"
        >>> def digest(text):
        ...     return file.write_text(text) and digest_of_code(file)
        >>> digest("def f(x): return x + 1") == digest('def f(x):\\n    "Explained."\\n    return (x + 1)  # one more')
        True
        >>> digest("def f(x): return x + 1") == digest("def f(x): return x + 1.0")
        False
    """
    content = path.read_bytes()
    meaning = meaning_of(content) if path.suffix == ".py" else None
    return hashlib.sha256(content if meaning is None else b"python " + meaning.encode()).hexdigest()


def meaning_of(content: bytes) -> str | None:
    """Return what `digest_of_code` is the digest of; None where all bytes count."""
    if READS_ITSELF.search(content):
        return None
    try:
        return "".join(_written(ast.parse(content)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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
