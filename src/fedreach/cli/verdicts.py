"""Finding the parts that ``fedreach verify`` is asked about, and saying what became of them."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pydantic

from fedreach import registry
from fedreach.config import parts
from fedreach.config.messages import explained
from fedreach.config.options import options_model
from fedreach.config.reading import toml_value
from fedreach.config.sections import Choice
from fedreach.errors import ConfigError, nearest
from fedreach.testing import trial
from fedreach.testing.law import Law, Verdict


def verdicts(
    wanted: Sequence[str],
    base: Path,
    *,
    kind: str | None = None,
    as_: Sequence[str] = (),
    options: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Iterator[Verdict]:
    """Try parts by their laws, one after the other.

    Args:
        wanted: Names of built-in parts, ``FILE.py:NAME`` or ``module:NAME``; none takes all built-in ones.
        base: Folder that files are relative to.
        kind: Of the parts, where it does not follow from the name or the methods.
        as_: Built-in parts whose laws they must keep, too.
        options: ``"name=value"``, the value as in TOML.
        without: Laws that are left out.

    Raises:
        ConfigError: If there is no such part, kind, option or law, or a part cannot be made.
    """
    if kind is not None and kind not in registry.VERIFIED:
        raise ConfigError(f"There is no kind of part {kind!r}.{nearest(kind, registry.VERIFIED)}")
    if not wanted and (as_ or options or without):
        raise ConfigError("--as, --set and --without are about the part that is named; name one.")
    given = dict(_option(text) for text in options)
    found = [target for name in wanted for target in _targets(name, base, kind)] if wanted else _all(kind)
    for of, name, thing in found:
        if thing is None and not (as_ or given or without):
            yield trial.verdict_of_built_in(of, name)
            continue
        part = _made(of, name, registry.table(of)[name] if thing is None else thing, given, base)
        yield trial.verdict(of, part, as_=as_, options=given, name=name, without=without)


def listed() -> list[dict[str, str]]:
    """Return all laws: of which kind, of which built-in part (or of all), name, sentence and source."""
    result = []
    for kind in registry.VERIFIED:
        owners = [("", trial.laws_of(kind))]
        shared = len(owners[0][1])
        owners += [(name, trial.laws_of(kind, [name])[shared:]) for name in registry.table(kind)]
        result += [_law(kind, name, law) for name, laws in owners for law in laws]
    return result


def list_text(laws: Sequence[Mapping[str, str]]) -> str:
    """Return the laws for people."""
    blocks = []
    for (kind, part), group in groupby(laws, itemgetter("kind", "part")):
        lines = [f"{kind} {part}" if part else f"every {kind}"]
        lines += [f"  {one['law']}: {one['statement']}" + f" ({one['source']})" * bool(one["source"]) for one in group]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def line(verdict: Verdict) -> str:
    """Return what became of a part in one line, and what broke below it; a cause is printed once."""
    head = f"{verdict.kind:<16} {verdict.name:<24} "
    if verdict.skipped:
        return f"{head}skipped: {verdict.skipped}"
    if verdict.keeps_all:
        return f"{head}{verdict.laws:>3} laws kept"
    lines, printed = [f"{head}{len(verdict.broken)} of {verdict.laws} laws broken"], set()
    for breach in verdict.broken:
        if breach.happened in printed:
            lines.append(f'  "{breach.law}" for the same reason')
            continue
        printed.add(breach.happened)
        lines += ["  " + text for text in str(breach).splitlines()]
    return "\n".join(lines)


def record(verdict: Verdict) -> dict[str, Any]:
    """Return what became of a part, for machines."""
    broken = [
        {
            "part": breach.part,
            "law": breach.law,
            "statement": breach.statement,
            "with": breach.given,
            "happened": breach.happened,
        }
        for breach in verdict.broken
    ]
    return {**vars(verdict), "broken": broken}


def _all(kind: str | None) -> list[tuple[str, str, Any]]:
    return [(of, name, None) for of in ([kind] if kind else registry.VERIFIED) for name in registry.table(of)]


def _targets(name: str, base: Path, kind: str | None) -> list[tuple[str, str, Any]]:
    """Return (kind, name, what it stands for, None for a built-in part); one name may be of several kinds."""
    if ":" in name:
        thing = registry.load_users(name, base)
        return [(kind or trial.kind_of(thing), name, thing)]
    kinds = [of for of in ([kind] if kind else registry.VERIFIED) if name in registry.table(of)]
    if not kinds:
        known = dict.fromkeys(other for _, other, _ in _all(kind))
        raise ConfigError(f"There is no part {name!r}.{nearest(name, known)} Your own: 'FILE.py:NAME'.")
    return [(of, name, None) for of in kinds]


def _made(kind: str, name: str, thing: Any, options: dict[str, Any], base: Path) -> Any:
    """Return the part: an object as it is, a class or function with its options."""
    if not inspect.isclass(thing) and not inspect.isfunction(thing):
        if options:
            raise ConfigError(f"{name!r} is an object already; --set is for classes and functions.")
        return thing
    model = options_model(thing, registry.given(kind, name, thing))
    if model is not None:
        try:
            model.model_validate(options)
        except pydantic.ValidationError as error:
            problems = explained(error, options, known=list(model.model_fields), owner=f"{kind} {name!r}")
            said = " ".join(f"--set {'.'.join(map(str, path))}: {message}" for path, message in problems)
            raise ConfigError(said) from error
    try:
        return parts.make(kind, Choice.model_validate({"name": name, **options}), base)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{name!r} cannot be made: {type(error).__name__}: {error}.") from error


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set must be of the form name=value, such as alpha=0.5; got {text!r}.")
    return key.strip(), toml_value(value)


def _law(kind: str, part: str, law: Law) -> dict[str, str]:
    return {"kind": kind, "part": part, "law": law.name, "statement": law.statement, "source": law.source}
