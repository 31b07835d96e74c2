"""Digest of a user's function or class, and of the code that it refers to."""

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

# ---- The statements of a Python file that one of its names depends on
# A custom component is identified by these statements, so that a change elsewhere in its file keeps the experiment.
# The syntax tree alone is read: nothing is imported or run.

AT_RUN_TIME = frozenset({"exec", "eval", "globals", "locals", "vars", "__import__", "__builtins__"})
"""Builtins that can bind or read names at run time, which the syntax tree cannot show."""
CHANGERS = frozenset({"setattr", "delattr"})
BUILTINS = frozenset(dir(builtins)) | {"__name__", "__annotations__", "__class__"}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Definition:
    """The statements of a file that a name depends on.

    Args:
        statements: Top-level statements, in the order of the file.
        whole_because: Reason why the whole file counts; "" if only these statements count.
    """

    statements: tuple[ast.stmt, ...]
    whole_because: str = ""


def definition_of(tree: ast.Module, name: str) -> Definition:
    """Return the statements of a module that `name` depends on.

    These are the statement that binds the name and those that bind what it refers to, directly or indirectly. Later
    changes of one of these, such as ``SIZES.append(3)``, count too. All statements count if the text cannot decide, as
    with ``exec``, or if no statement binds a name.

    Example:
        >>> tree = ast.parse("WIDTH = 3\\ndef net(): return WIDTH\\ndef other(): return 4")
        >>> [ast.unparse(each) for each in definition_of(tree, "net").statements]
        ['WIDTH = 3', 'def net():\\n    return WIDTH']
    """
    statements = [
        _Statement(node) for statement in tree.body if not _is_main_guard(statement) for node in _one_by_one(statement)
    ]
    run_time_names = {name for statement in statements for name in statement.reads & AT_RUN_TIME}
    if run_time_names:
        return _whole_module(tree, f"it uses {sorted(run_time_names)[0]}")
    needed, stars = {name}, [statement for statement in statements if statement.is_star]
    chosen = {statement for statement in statements if statement in stars or statement.is_future}
    while True:
        alike = needed | {name for statement in statements for name in statement.aliases(needed)}
        more = {
            statement
            for statement in statements
            if statement not in chosen and (statement.binds & needed or statement.changes(alike))
        }
        if not more:
            break
        chosen |= more
        needed |= {name for statement in more for name in statement.reads}
    bound = {name for statement in chosen for name in statement.binds}
    unknown = needed - bound - BUILTINS
    if unknown and not stars:
        return _whole_module(tree, f"it binds {sorted(unknown)[0]!r} nowhere at its top")
    rebound = needed & {name for statement in statements for name in statement.rebinds}
    if rebound:
        return _whole_module(tree, f"a function of it rebinds {sorted(rebound)[0]!r}")
    return Definition(tuple(statement.node for statement in statements if statement in chosen))


def imports_for_effect(tree: ast.Module) -> list[ast.stmt]:
    """Return the imports whose names the module never uses: their side effects may be wanted."""
    statements = [_Statement(node) for statement in tree.body for node in _one_by_one(statement)]
    read = {name for statement in statements for name in statement.reads}
    return [
        statement.node
        for statement in statements
        if isinstance(statement.node, ast.Import | ast.ImportFrom) and not statement.binds & read
    ]


def _one_by_one(node: ast.stmt) -> list[ast.stmt]:
    """Split an import of several names into imports of one name; return other statements unchanged."""
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def _whole_module(tree: ast.Module, because: str) -> Definition:
    return Definition(tuple(tree.body), because)


def _is_main_guard(node: ast.stmt) -> bool:
    """Return whether a statement is ``if __name__ == "__main__":``, which an import does not run."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


@dataclass(frozen=True, eq=False)
class _Statement:
    """A top-level statement, and the names of the module that it reads, binds and changes."""

    node: ast.stmt

    @cached_property
    def _tables(self) -> list[symtable.SymbolTable]:
        waiting, tables = [symtable.symtable(ast.unparse(self.node), "statement", "exec")], []
        while waiting:
            tables.append(waiting.pop())
            waiting += tables[-1].get_children()
        return tables

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names that it looks up in the module, from any scope."""
        return frozenset(
            symbol.get_name()
            for table in self._tables
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global())
        )

    @cached_property
    def binds(self) -> frozenset[str]:
        """The names that it binds in the module when it runs."""
        return frozenset(
            symbol.get_name()
            for symbol in self._tables[0].get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        )

    @cached_property
    def rebinds(self) -> frozenset[str]:
        """The names of the module that its functions bind when they are called."""
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
        """Return whether it may change the value of one of these names without binding the name."""
        return bool(self._changed_names & needed)

    def aliases(self, needed: set[str]) -> set[str]:
        """Return the names that it binds to the value of these names, or to a part of it, as ``table = TABLE``."""
        alias_names: set[str] = set()
        for node in _at_top(self.node):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                value, targets = node.value, node.targets if isinstance(node, ast.Assign) else [node.target]
            elif isinstance(node, ast.For):
                value, targets = node.iter, [node.target]
            else:
                continue
            values = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
            if any(_root(expression) in needed for expression in values if expression is not None):
                alias_names |= {
                    name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
                }
        return alias_names

    @cached_property
    def _changed_names(self) -> frozenset[str]:
        """The names whose values it may change: it assigns to a part, calls a method, or passes the value on."""
        names: set[str | None] = set()
        for node in _at_top(self.node):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                names.add(_root(node))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                names.add(_root(node.func))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in CHANGERS and node.args:
                names.add(_root(node.args[0]))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_builtin(node.value.func):
                names |= {_root(argument) for argument in node.value.args}
        return frozenset(name for name in names if name is not None)


def _at_top(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run with a statement: not those inside functions and classes."""
    if isinstance(node, SCOPES):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _at_top(child)


def _root(node: ast.AST) -> str | None:
    """Return the name that ``name.a[b].c`` starts with; None if it starts with something else."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in BUILTINS - CHANGERS


# ---- Digest of what code does: layout, comments and docstrings do not change it

READS_ITSELF = re.compile(rb"__doc__|__file__|__code__|\b(inspect|linecache|tokenize|traceback|jit)\b")
"""Code with one of these may read its own text or path: then every byte counts."""


def digest_of_code(path: Path, name: str = "") -> str:
    """Return the sha256 of the syntax tree of a Python file, without comments, layout and docstrings.

    All bytes count in other files, in text that is not Python, and in code that may read itself (see `READS_ITSELF`).
    The tree is serialized in a form that does not depend on the version of Python.

    Args:
        path: The file.
        name: Function or class of the file; only its definition and the code that it refers to count. ``""``: the
            whole file counts. If the whole file counts in spite of a name, the reason follows the digest.

    Raises:
        OSError: If the file cannot be read.

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
    digest = hashlib.sha256(content if meaning is None else b"python " + meaning.encode()).hexdigest()
    return f"{digest} (the whole file counts: {because})" if because and name else digest


def name_in(reference: str) -> str:
    """Return the NAME of ``FILE.py:NAME`` or ``module:NAME``; "" for the path of a file.

    Example:
        >>> name_in("my.py:Net"), name_in("lib/my.py")
        ('Net', '')
    """
    return reference.rpartition(":")[2] if ":" in reference else ""


def _meaning_of(content: bytes, name: str) -> tuple[str | None, str]:
    """Return the text that `digest_of_code` hashes (None: all bytes), and why the name alone is not enough."""
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
    return "".join(_serialize(tree))


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


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
