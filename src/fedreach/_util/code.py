"""Digests of custom components and of the code that they refer to."""

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

# ---- The statements of a Python file that a name depends on
# FedReach identifies a custom component by these statements, so that other changes in its file do not invalidate runs.
# Only the syntax tree is read; nothing is imported or run.

AT_RUN_TIME = frozenset({"exec", "eval", "globals", "locals", "vars", "__import__", "__builtins__"})
"""Builtins that bind or read names at run time, which the syntax tree does not show."""
CHANGERS = frozenset({"setattr", "delattr"})
BUILTINS = frozenset(dir(builtins)) | {"__name__", "__annotations__", "__class__"}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Definition:
    """The statements of a file that a name depends on.

    Args:
        statements: Top-level statements in the order of the file.
        whole_because: Reason why the digest includes the whole file; "" if it includes only these statements.
    """

    statements: tuple[ast.stmt, ...]
    whole_because: str = ""


def definition_of(tree: ast.Module, name: str) -> Definition:
    """Return the statements of a module that `name` depends on.

    These are the statements that bind the name and all names that it refers to, directly or indirectly. Statements
    that change a value later, such as ``SIZES.append(3)``, are included. All statements are returned if the syntax
    tree cannot show the dependencies, as with ``exec``, or if no statement binds one of the names.

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
        return Definition(tuple(tree.body), f"it uses {sorted(run_time_names)[0]}")
    imports = [(statement, statement.node) for statement in statements if isinstance(statement.node, ast.ImportFrom)]
    stars = [statement for statement, node in imports if node.names[0].name == "*"]
    needed, chosen = {name}, {*stars, *(statement for statement, node in imports if node.module == "__future__")}
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
        return Definition(tuple(tree.body), f"it binds {sorted(unknown)[0]!r} nowhere at its top")
    rebound = needed & {name for statement in statements for name in statement.rebinds}
    if rebound:
        return Definition(tuple(tree.body), f"a function of it rebinds {sorted(rebound)[0]!r}")
    return Definition(tuple(statement.node for statement in statements if statement in chosen))


def imports_for_effect(tree: ast.Module) -> list[ast.stmt]:
    """Return the imports whose names the module never uses; such imports may have side effects."""
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


def _is_main_guard(node: ast.stmt) -> bool:
    """Return whether a statement is ``if __name__ == "__main__":``, which an import does not run."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


@dataclass(frozen=True, eq=False)
class _Statement:
    """A top-level statement with the module's names that it reads, binds and changes."""

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
        """Names of the module that it reads, in any scope."""
        return frozenset(
            symbol.get_name()
            for table in self._tables
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global())
        )

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names of the module that it binds when it runs."""
        return frozenset(
            symbol.get_name()
            for symbol in self._tables[0].get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        )

    @cached_property
    def rebinds(self) -> frozenset[str]:
        """Names of the module that its functions bind when they are called."""
        return frozenset(
            symbol.get_name()
            for table in self._tables[1:]
            for symbol in table.get_symbols()
            if symbol.is_declared_global() and symbol.is_assigned()
        )

    def changes(self, needed: set[str]) -> bool:
        """Return whether it can change the value of one of these names without binding the name."""
        return bool(self._changed_names & needed)

    def aliases(self, needed: set[str]) -> set[str]:
        """Return the names that it binds to the value of one of these names, or to part of it, as ``table = TABLE``."""
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
        """Names whose values it can change: by assigning to a part, calling a method, or passing the value on."""
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
    """Yield the nodes that run with the statement; skip the bodies of functions and classes."""
    if isinstance(node, SCOPES):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _at_top(child)


def _root(node: ast.AST) -> str | None:
    """Return the name at the start of ``name.a[b].c``; None if the start is not a name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in BUILTINS - CHANGERS


# ---- Digests of code that layout, comments and docstrings do not change

READS_ITSELF = re.compile(rb"__doc__|__file__|__code__|\b(inspect|linecache|tokenize|traceback|jit)\b")
"""Names that code uses to read its own text or path; the digest of code with such a name includes every byte."""


def digest_of_code(path: Path, name: str = "") -> str:
    """Return the SHA-256 digest of a Python file's syntax tree, without comments, layout and docstrings.

    For other files, for invalid Python, and for code that may read its own text (see `READS_ITSELF`), the digest
    includes all bytes. The digest does not depend on the version of Python.

    Args:
        path: Path of the file.
        name: Name of a function or class in the file. The digest includes only its definition and the code that it
            refers to. With ``""``, the digest includes the whole file. If the digest includes the whole file although a
            name is given, the reason is appended to the digest. Run folders store these reasons, so their text must not
            change.

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
    """Return NAME from ``FILE.py:NAME`` or ``module:NAME``; "" for a plain path.

    Example:
        >>> name_in("my.py:Net"), name_in("lib/my.py")
        ('Net', '')
    """
    return reference.rpartition(":")[2] if ":" in reference else ""


def _meaning_of(content: bytes, name: str) -> tuple[str | None, str]:
    """Return the text to hash (None: all bytes), and the reason if it is more than the definition of the name."""
    try:
        tree = ast.parse(content)
        if not name:
            return (None if READS_ITSELF.search(content) else "".join(_serialize(tree))), ""
        part = definition_of(tree, name)
        text = "\n".join(map(ast.unparse, part.statements)).encode()
        if READS_ITSELF.search(content if part.whole_because else text):
            return None, "it may read its own text"
        nodes = tree if part.whole_because else [*part.statements]
        return "".join(_serialize(nodes)), part.whole_because
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, ""


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
            if value is not None and value != []:  # newer versions of Python add fields, which are empty in older code
                yield f" {name}="
                yield from _serialize(value)
        yield ")"
    else:
        yield f"{type(node).__name__}:{node!r}"


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
