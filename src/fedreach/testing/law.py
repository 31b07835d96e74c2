"""Laws: sentences about a part that can be tried, and what is said where one is broken."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import AnyArray
from fedreach.errors import ConfigError, FedReachError
from fedreach.federation.traits import FACTS, name_of
from fedreach.registry import KINDS, imported

NEEDS_LIBRARY = "pip install 'fedreach["  # what stands in the refusal of a part whose optional library is missing


class BrokenLaw(AssertionError):  # noqa: N818 (as a test would say it)
    """A part breaks a law: which one, with which input, and what happened.

    Example:
        >>> print(BrokenLaw("Mine", "exact size", "The cohort has k clients.", "3 clients, k = 2", "it chose 3"))
        Mine breaks the law "exact size": The cohort has k clients.
          with:     3 clients, k = 2
          happened: it chose 3
    """

    def __init__(self, part: str, law: str, statement: str, given: str, happened: str) -> None:
        self.part, self.law, self.statement, self.given, self.happened = part, law, statement, given, happened
        lines = [f'{part} breaks the law "{law}": {statement}', f"  with:     {given}", f"  happened: {happened}"]
        super().__init__("\n".join(line for line in lines if not line.endswith(": ")))


class MissingLibraryError(Exception):
    """A part cannot be tried, because a library that it needs is not installed."""


class Broken(Exception):  # noqa: N818 (said inside a law, turned into `BrokenLaw` by whoever tries it)
    """What a law says when it is broken."""

    def __init__(self, happened: str, given: str = "") -> None:
        super().__init__(happened)
        self.happened, self.given = happened, given


def broken(happened: str, given: str = "") -> NoReturn:
    """Say that the law is broken.

    `happened` is what the part did, and should have done; `given` the input, where the law is not tried over inputs
    that say it themselves.
    """
    raise Broken(happened, given)


@dataclass(frozen=True)
class Subject:
    """A part on trial, and how to make others of its kind with other options."""

    kind: str
    name: str
    part: Any
    make: Callable[..., Any]
    noted: dict[str, Any] = field(default_factory=dict, compare=False)  # what laws need more than once

    @classmethod
    def of(cls, kind: str, part: Any, options: Mapping[str, Any] | None = None, name: str = "") -> Subject:
        """Return the subject for a part that was made with these options."""
        made: Callable[..., Any] = type(part)
        function = KINDS[kind].function
        is_function = bool(function) and isinstance(part, imported(function))
        own = name_of(part) if is_function else made.__name__  # a class's `name` may be that of a column
        return cls(kind, name or own, part, partial(made, **(options or {})))

    def once(self, key: str, work: Callable[[], Any]) -> Any:
        """Return what this work gave when it was first done for this subject."""
        if key not in self.noted:
            self.noted[key] = work()
        return self.noted[key]


@dataclass(frozen=True)
class Law:
    """A sentence, and how it is tried: `check` raises `Broken`."""

    name: str
    statement: str
    check: Callable[..., None]
    inputs: Callable[[], Iterable[Any]] | None = None  # each says in words what it is
    source: str = ""

    def break_by(self, subject: Subject) -> BrokenLaw | None:
        """Return how the subject breaks this law, or None where it does not.

        Raises:
            MissingLibraryError: If the subject cannot be tried here.
        """
        for given in [None] if self.inputs is None else self.inputs():
            said = "" if given is None else str(given)
            try:
                # Whether numpy warns depends on where this runs; what comes out does not, and that is looked at.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.check(subject, *(() if given is None else (given,)))
            except Broken as found:
                return BrokenLaw(subject.name, self.name, self.statement, found.given or said, found.happened)
            except (Exception, SystemExit) as error:
                if isinstance(error, ConfigError) and NEEDS_LIBRARY in str(error):
                    raise MissingLibraryError(str(error)) from error
                return BrokenLaw(subject.name, self.name, self.statement, said, _thrown(error))
        return None


def law(inputs: Callable[[], Iterable[Any]] | None = None) -> Callable[[Callable[..., None]], Law]:
    """Make a law of a function: its name is the law's, the first paragraph of its docstring the sentence.

    Example:
        >>> @law()
        ... def has_a_rate(subject):
        ...     '''A step has a positive rate.
        ...
        ...     Reference: nowhere
        ...     '''
        ...     if not subject.part.rate > 0:
        ...         broken(f"the rate is {subject.part.rate}")
        >>> has_a_rate.name, has_a_rate.statement, has_a_rate.source
        ('has a rate', 'A step has a positive rate.', 'nowhere')
    """

    def made(check: Callable[..., None]) -> Law:
        text = inspect.getdoc(check) or ""
        source = re.search(r"Reference:\s*(.*)\Z", text, re.DOTALL)
        return Law(
            name=check.__name__.replace("_", " "),
            statement=" ".join(text.partition("\n\n")[0].split()),
            check=check,
            inputs=inputs,
            source=" ".join(source[1].split()) if source else "",
        )

    return made


@dataclass(frozen=True)
class Verdict:
    """What became of one part's trial."""

    kind: str
    name: str
    laws: int = 0
    broken: Sequence[BrokenLaw] = field(default_factory=tuple)
    skipped: str = ""  # why it could not be tried

    @property
    def keeps_all(self) -> bool:
        """Whether no law is broken."""
        return not self.broken


def judge(subject: Subject, laws: Sequence[Law]) -> Verdict:
    """Try a part by these laws."""
    try:
        found = [breach for each in laws if (breach := each.break_by(subject)) is not None]
    except MissingLibraryError as error:
        return Verdict(subject.kind, subject.name, skipped=str(error))
    return Verdict(subject.kind, subject.name, len(laws), tuple(found))


# ------------------------------------------------------------------------------------------------- for laws to use


def shown(value: Any) -> str:
    """Return an array, a list of arrays or anything else, short enough for a sentence."""
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=6, threshold=24, separator=", ").replace("\n", "")
    return repr(value)


def must_be_close(
    what: str, got: ArrayLike, expected: ArrayLike, given: str = "", within: float = 1e-6, rule: str = ""
) -> None:
    """Say the law is broken unless all numbers are within `within` of the expected ones."""
    a, b = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not np.allclose(a, b, rtol=0, atol=within):
        broken(f"{what} should be {shown(b)}{f' ({rule})' if rule else ''}; got {shown(a)}", given)


def same(a: AnyArray, b: AnyArray) -> bool:
    """Say whether two arrays hold the same bits, nan included."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _thrown(error: BaseException) -> str:
    """Return an exception in words: the rule that the library names, or where the part's own code failed."""
    said = " ".join(str(error).split()) or "without a word"
    if isinstance(error, FedReachError):
        return f"it was refused: {said}"
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    own = [frame for frame in frames if frame.filename.endswith(".py") and "site-packages" not in frame.filename]
    where = f" in line {own[-1].lineno} of {Path(own[-1].filename).name}" if own else ""
    hint = ""
    if "NoneType" in said or (isinstance(error, KeyError) and error.args[0] in FACTS):
        hint = f". Facts ({', '.join(FACTS)}) are there only for a part whose attribute `needs` lists them"
    return f"it raised {type(error).__name__}{where}: {said}{hint}"
