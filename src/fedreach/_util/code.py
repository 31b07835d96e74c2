"""Digest of what a file of code does: layout, comments and docstrings do not change it."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

READS_ITSELF = re.compile(rb"__doc__|__file__|__code__|\b(inspect|linecache|tokenize|traceback|jit)\b")
"""Code with one of these may read its own text or path: then every byte counts."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest_of_code(path: Path) -> str:
    """Return the sha256 of the syntax tree of a Python file, without comments, layout and docstrings.

    All bytes count in other files, in text that is not Python, and in code that may read itself (see `READS_ITSELF`).
    The tree is serialized in a form that does not depend on the version of Python.

    Raises:
        OSError: If the file cannot be read.

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
    if path.suffix == ".py" and not READS_ITSELF.search(content):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # not Python: its bytes count
            content = b"python " + "".join(_serialize(ast.parse(content))).encode()
    return hashlib.sha256(content).hexdigest()


def _serialize(node: object) -> Iterator[str]:
    if isinstance(node, list):
        yield "["
        for child in node:
            yield from _serialize(child)
        yield "]"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name in node._fields:
            value: Any = getattr(node, name, None)
            if name == "body" and isinstance(node, DOCUMENTED):
                value = value[1:] if _is_docstring(value) else value
            if value is not None and value != []:  # fields that newer versions of Python add are empty in older code
                yield f" {name}="
                yield from _serialize(value)
        yield ")"
    else:
        yield f"{type(node).__name__}:{node!r}"


def _is_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
