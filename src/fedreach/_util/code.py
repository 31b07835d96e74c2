"""Identity of users' code: the digest of a function or class and of what it refers to."""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

# --- The part of a file of Python that one of its names depends on: its definition, and what that refers to
# A function or class is known by this part, so that other lines of its file can change without making another
# experiment.
# What is read from the syntax tree alone: nothing is imported or run.

AT_RUN_TIME = frozenset({"exec", "eval", "globals", "locals", "vars", "__import__", "__builtins__"})
"""Names of what can bind or read other names as the code runs, which its text does not tell."""
CHANGERS = frozenset({"setattr", "delattr"})
BUILTINS = frozenset(dir(builtins)) | {"__name__", "__annotations__", "__class__"}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Definition:
    """What of a file counts for a name.

    Args:
        statements: Statements at the top of the file, in its order.
        whole_because: Why all of the file counts; "" where a part of it does.
    """

    statements: tuple[ast.stmt, ...]
    whole_because: str = ""


def definition_of(tree: ast.Module, name: str) -> Definition:
    """Return the statements of a module that what it calls `name` depends on.

    These are the statement that binds the name, those that bind what it refers to, directly or not, and those that
    change one of these later, such as ``SIZES.append(3)``. All statements count where the text cannot tell, as with
    ``exec``, and where a name is bound by no statement.

    Example:
        >>> tree = ast.parse("WIDTH = 3\\ndef net(): return WIDTH\\ndef other(): return 4")
        >>> [ast.unparse(each) for each in definition_of(tree, "net").statements]
        ['WIDTH = 3', 'def net():\\n    return WIDTH']
    """
    statements = [_Statement(node) for each in tree.body if not _is_main_guard(each) for node in _one_by_one(each)]
    found = {name for each in statements for name in each.reads & AT_RUN_TIME}
    if found:
        return _whole(tree, f"it uses {sorted(found)[0]}")
    needed, stars = {name}, [each for each in statements if each.is_star]
    chosen = {each for each in statements if each in stars or each.is_future}
    while True:
        alike = needed | {name for each in statements for name in each.aliases(needed)}
        more = {each for each in statements if each not in chosen and (each.binds & needed or each.changes(alike))}
        if not more:
            break
        chosen |= more
        needed |= {name for each in more for name in each.reads}
    bound = {name for each in chosen for name in each.binds}
    unknown = needed - bound - BUILTINS
    if unknown and not stars:
        return _whole(tree, f"it binds {sorted(unknown)[0]!r} nowhere at its top")
    rebound = needed & {name for each in statements for name in each.rebinds}
    if rebound:
        return _whole(tree, f"a function of it rebinds {sorted(rebound)[0]!r}")
    return Definition(tuple(each.node for each in statements if each in chosen))


def imports_for_effect(tree: ast.Module) -> list[ast.stmt]:
    """Return the imports whose names no statement of the module refers to: they may be there for what they do."""
    statements = [_Statement(node) for each in tree.body for node in _one_by_one(each)]
    read = {name for each in statements for name in each.reads}
    return [
        each.node for each in statements if isinstance(each.node, ast.Import | ast.ImportFrom) and not each.binds & read
    ]


def _one_by_one(node: ast.stmt) -> list[ast.stmt]:
    """Return an import of several names as imports of one each; other statements as they are."""
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def _whole(tree: ast.Module, because: str) -> Definition:
    return Definition(tuple(tree.body), because)


def _is_main_guard(node: ast.stmt) -> bool:
    """Say whether a statement is ``if __name__ == "__main__":``, which nobody runs who imports the file."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


@dataclass(frozen=True, eq=False)
class _Statement:
    """A statement at the top of a module, with the names of the module that it reads, binds and changes."""

    node: ast.stmt

    @cached_property
    def _tables(self) -> list[symtable.SymbolTable]:
        waiting, found = [symtable.symtable(ast.unparse(self.node), "statement", "exec")], []
        while waiting:
            found.append(waiting.pop())
            waiting += found[-1].get_children()
        return found

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names that it looks up in the module, in whatever scope."""
        return frozenset(
            symbol.get_name()
            for table in self._tables
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global())
        )

    @cached_property
    def binds(self) -> frozenset[str]:
        """The names that it binds in the module as it is run."""
        return frozenset(
            symbol.get_name()
            for symbol in self._tables[0].get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        )

    @cached_property
    def rebinds(self) -> frozenset[str]:
        """The names that functions in it bind in the module when they are called."""
        return frozenset(
            symbol.get_name()
            for table in self._tables[1:]
            for symbol in table.get_symbols()
            if symbol.is_declared_global() and symbol.is_assigned()
        )

    @property
    def is_star(self) -> bool:
        return isinstance(self.node, ast.ImportFrom) and self.node.names[0].name == "*"

    @property
    def is_future(self) -> bool:
        return isinstance(self.node, ast.ImportFrom) and self.node.module == "__future__"

    def changes(self, needed: set[str]) -> bool:
        """Say whether it may change what one of these names stands for, without binding it."""
        return bool(self._changed & needed)

    def aliases(self, needed: set[str]) -> set[str]:
        """Return the names that it binds to what these names stand for, or to a part of it, as ``table = TABLE``."""
        found: set[str] = set()
        for node in _at_top(self.node):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                value, targets = node.value, node.targets if isinstance(node, ast.Assign) else [node.target]
            elif isinstance(node, ast.For):
                value, targets = node.iter, [node.target]
            else:
                continue
            values = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
            if any(_root(each) in needed for each in values if each is not None):
                found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        return found

    @cached_property
    def _changed(self) -> frozenset[str]:
        """The names whose values it may change: that it assigns parts of, or calls methods of, or hands to others."""
        found: set[str | None] = set()
        for node in _at_top(self.node):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found.add(_root(node))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found.add(_root(node.func))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in CHANGERS and node.args:
                found.add(_root(node.args[0]))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_builtin(node.value.func):
                found |= {_root(argument) for argument in node.value.args}
        return frozenset(name for name in found if name is not None)


def _at_top(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement that are run with it: not those in functions and classes."""
    if isinstance(node, SCOPES):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _at_top(child)


def _root(node: ast.AST) -> str | None:
    """Return the name that ``name.a[b].c`` starts with; None where it starts with something else."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in BUILTINS - CHANGERS


# --- What a file of code means: its digest changes with what the code does, not with how it is laid out or explained

READS_ITSELF = re.compile(rb"__doc__|__file__|__code__|\b(inspect|linecache|tokenize|traceback|jit)\b")
"""Whoever says so may look at its own text, or at where it stands: then every letter counts."""


def digest_of_code(path: Path, name: str = "") -> str:
    """Return the sha256 of what a file of Python means: of its syntax tree without comments, layout and docstrings.

    Of other files, of text that is no Python, and of code that may read itself (see `READS_ITSELF`) all bytes count.
    The tree is written in a way of our own, which does not depend on the version of Python.

    Args:
        path: The file.
        name: A function or class of the file, of which its definition counts and what that refers to, see
            `fedreach._util.code`; "": all of the file counts. Where all of it counts in spite of a name, the
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
