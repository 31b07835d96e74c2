"""What a live function, class or object means, as a digest: its own code and values, and all that it refers to.

A function of a script or notebook has no file of its own. It is known by its instructions, its defaults and closure,
and the functions, classes and values that it refers to, as they are now. So lines that are added elsewhere, comments
and docstrings change nothing, nor does the order in which the cells of a notebook were run.
"""

from __future__ import annotations

import dis
import hashlib
import io
import linecache
import re
import sys
from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, ClassVar

import cloudpickle
import torch
from torch import nn

from fedreach import registry
from fedreach.config.own_files import imported_by, module_files
from fedreach.models.copying import TensorHook, register_hooks, tensor_hooks
from fedreach.storage.code import READS_ITSELF, digest_of_code
from fedreach.storage.definitions import AT_RUN_TIME

TRACKER_ID = re.compile("[0-9a-f]{32}")  # cloudpickle's number of a class, another one in each process
EXPLAINING = ("__doc__", "__firstlineno__")  # what a class body says of itself that changes nothing


def meaning_of(thing: Any) -> tuple[str, str]:
    """Return the digest of what a thing means, and why whole files count for it; "" where they do not.

    The modules of one's own that it refers to count as files, with what they import.

    Raises:
        Exception: Whatever pickling it raises.

    Example:
        >>> def twice(x): return 2 * x
        >>> def thrice(x): return 3 * x
        >>> meaning_of(twice) == meaning_of(thrice)
        False
    """
    content = io.BytesIO()
    pickler = _MeaningPickler(content)
    pickler.dump(thing)
    digest = hashlib.sha256(content.getvalue())
    for path in sorted(pickler.own_modules(), key=lambda path: path.as_posix()):
        digest.update(path.name.encode() + digest_of_code(path).encode())
    for text in pickler.whole_files():
        digest.update(text)
    return digest.hexdigest()[: registry.SHORT], min(pickler.reasons, default="")


def tensor_reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor as an array: torch's own way writes addresses of this process."""
    return _tensor, (tensor.detach().cpu().numpy(),)


def parameter_reduced(parameter: nn.Parameter) -> tuple[Any, ...]:
    """Return a parameter as an array, likewise, with the hooks on its gradient, which torch's own way drops."""
    hooks = tensor_hooks(parameter)
    return _parameter, (parameter.detach().cpu().numpy(), parameter.requires_grad, *([hooks] if hooks else []))


def missing_reduced(missing: Any) -> str:
    """Return the name of what a field of a dataclass has for a default that it lacks, which is one object."""
    return "MISSING"


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array.copy())


def _parameter(array: Any, requires_grad: bool, hooks: Sequence[TensorHook] = ()) -> nn.Parameter:
    parameter = nn.Parameter(torch.from_numpy(array.copy()), requires_grad)
    register_hooks(parameter, hooks)
    return parameter


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it is not typed
    """Pickles as cloudpickle does, tensors as arrays."""

    dispatch_table: ClassVar = ChainMap(
        {torch.Tensor: tensor_reduced, nn.Parameter: parameter_reduced, type(MISSING): missing_reduced},
        cloudpickle.Pickler.dispatch_table,
    )


class _MeaningPickler(Pickler):
    """Writes what is to be digested, and never read: code as its instructions, texts as numbers.

    Texts are numbers, as a pickle writes equal texts otherwise where they are one object.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.words: set[str] = set()
        self.imports: set[str] = set()
        self.reasons: set[str] = set()
        self.files: set[str] = set()  # of code that only its whole file tells of

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is bytes:
            return _number(b"bytes " + obj)
        if type(obj) is not str:
            return None
        if TRACKER_ID.fullmatch(obj) and obj in cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.values():
            return 0
        self.words.add(obj)
        return _number(obj.encode("utf-8", "surrogatepass"))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            return str, ("".join(self._written(obj)),)
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) < 6:  # by its name, where others find it
            return reduced
        make, arguments, (state, slots), *rest = reduced
        if isinstance(obj, FunctionType):  # without the file that it is in, and its docstring
            arguments = arguments[0], {}, *arguments[2:]
            slots = {key: value for key, value in slots.items() if key not in EXPLAINING}
        else:
            state = {key: value for key, value in state.items() if key not in EXPLAINING}
        return make, arguments, (state, slots), *rest

    def _written(self, code: CodeType) -> Iterator[str]:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        yield f"{code.co_name} {counts} {code.co_varnames} {code.co_freevars} {code.co_cellvars} "
        yield code.co_exceptiontable.hex()
        before, module = None, ""
        for step in dis.get_instructions(code):
            if step.opname == "EXTENDED_ARG":
                continue
            if before is not None and not (step.opname == "STORE_NAME" and step.argval in EXPLAINING):
                yield f"\n{before.opname} {''.join(self._argument(before.argval))}"
            self._note(code, step, module)
            module = step.argval if step.opname == "IMPORT_NAME" else module
            before = None if step.opname == "STORE_NAME" and step.argval in EXPLAINING else step
        if before is not None:
            yield f"\n{before.opname} {''.join(self._argument(before.argval))}"

    def _argument(self, value: Any) -> Iterator[str]:
        if isinstance(value, CodeType):
            yield from self._written(value)
        elif isinstance(value, frozenset):
            yield f"{{{', '.join(sorted(''.join(self._argument(each)) for each in value))}}}"
        else:
            yield repr(value)

    def _note(self, code: CodeType, step: dis.Instruction, module: str) -> None:
        """Note what an instruction imports, and whether it makes the whole file count."""
        name = step.argval if isinstance(step.argval, str) else ""
        if step.opname == "IMPORT_NAME":
            self.imports.add(name)
        elif step.opname == "IMPORT_FROM":
            self.imports.add(f"{module}.{name}")
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in AT_RUN_TIME:
            self._whole(code, f"it uses {name}")
        elif step.opname.startswith("LOAD_") and name == "import_module":
            self.imports |= {each for each in code.co_consts if isinstance(each, str)}
        if step.opname != "LOAD_CONST" and name and READS_ITSELF.fullmatch(name.encode()):
            self._whole(code, "it may read its own text")

    def _whole(self, code: CodeType, because: str) -> None:
        self.files.add(code.co_filename)
        self.reasons.add(because)

    def own_modules(self) -> set[Path]:
        """Return the files of one's own modules that the thing refers to or imports, and of those that these import."""
        found: set[Path] = set()
        for name in self.words & sys.modules.keys() - {"__main__"}:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and name.partition(".")[0] != "fedreach" and not registry.is_installed(file):
                found |= {*imported_by(Path(file), name)}
        for name in self.imports:
            found |= module_files(name)
        for file in self.files:
            if Path(file).is_file():
                found |= {*imported_by(Path(file))}
        return found

    def whole_files(self) -> list[bytes]:
        """Return the texts of cells of a notebook that count whole; files are among the own modules."""
        return sorted("".join(linecache.getlines(file)).encode() for file in self.files if not Path(file).is_file())


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:16], "big")
