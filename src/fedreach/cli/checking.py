"""Find the components that ``fedreach verify`` checks, and format the results."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pydantic

from fedreach._util import registry
from fedreach._util.errors import ConfigError, nearest
from fedreach.experiment import components
from fedreach.experiment.load import toml_value
from fedreach.experiment.messages import explain_errors
from fedreach.experiment.options import options_model
from fedreach.experiment.schema import Choice
from fedreach.testing import verify
from fedreach.testing.base import CheckResults


def check_all(
    names: Sequence[str],
    base: Path,
    *,
    kind: str | None = None,
    options: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Iterator[CheckResults]:
    """Check components, one after another.

    Args:
        names: Names of built-in components, ``FILE.py:NAME`` or ``module:NAME``; empty: all built-in components.
        base: Folder that files are relative to.
        kind: Type of the components, if the name or the methods do not determine it.
        options: Options of the component as ``"name=value"``, where the value is written as in TOML.
        without: Names of checks to skip.

    Raises:
        ConfigError: If a component, type, option or check is unknown, or if a component cannot be created.
    """
    if kind is not None and kind not in registry.VERIFIED:
        raise ConfigError(f"Unknown component type {kind!r}.{nearest(kind, registry.VERIFIED)}")
    if not names and (options or without):
        raise ConfigError("--set and --without need the name of a component.")
    settings = dict(_option(text) for text in options)
    targets = [target for name in names for target in _targets(name, base, kind)] if names else _all(kind)
    for of, name, thing in targets:
        if thing is None and not (settings or without):
            yield verify.check_built_in(of, name)
            continue
        component = _build(of, name, registry.table(of)[name] if thing is None else thing, settings, base)
        yield verify.check_component(of, component, options=settings, name=name, without=without)


def list_checks() -> list[dict[str, str]]:
    """Return the type, name and description of all checks."""
    return [
        {"kind": kind, "check": check.name, "statement": check.statement}
        for kind in registry.VERIFIED
        for check in verify.checks_of(kind)
    ]


def list_text(checks: Sequence[Mapping[str, str]]) -> str:
    """Return the checks as text."""
    blocks = []
    for kind, group in groupby(checks, itemgetter("kind")):
        lines = [f"every {kind}"]
        lines += [f"  {row['check']}: {row['statement']}" for row in group]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def result_line(results: CheckResults) -> str:
    """Return the results of a component in one line, followed by its failures; each cause is listed once."""
    head = f"{results.kind:<16} {results.name:<24} "
    if results.skipped:
        return f"{head}skipped: {results.skipped}"
    if results.passed:
        return f"{head}all checks passed ({results.checks})"
    lines, printed = [f"{head}{len(results.failures)} of {results.checks} checks failed"], set()
    for failure in results.failures:
        if failure.happened in printed:
            lines.append(f'  "{failure.check}" for the same reason')
            continue
        printed.add(failure.happened)
        lines += ["  " + text for text in str(failure).splitlines()]
    return "\n".join(lines)


def counts_text(results: Sequence[CheckResults]) -> str:
    """Return a line per type with the number of components that pass all checks."""
    passed: dict[str, list[bool]] = {}
    for result in results:
        passed.setdefault(result.kind, []).append(result.passed and not result.skipped)
    return "\n".join(f"{kind:<16} {sum(of)} of {len(of)} components pass" for kind, of in passed.items())


def result_record(results: CheckResults) -> dict[str, Any]:
    """Return the results of a component as a dictionary for JSON."""
    failures = [
        {
            "component": failure.component,
            "check": failure.check,
            "statement": failure.statement,
            "with": failure.case,
            "happened": failure.happened,
        }
        for failure in results.failures
    ]
    return {**vars(results), "failures": failures}


def _all(kind: str | None) -> list[tuple[str, str, Any]]:
    return [(of, name, None) for of in ([kind] if kind else registry.VERIFIED) for name in registry.table(of)]


def _targets(name: str, base: Path, kind: str | None) -> list[tuple[str, str, Any]]:
    """Return (type, name, object, or None for a built-in component); one name may belong to several types."""
    if ":" in name:
        thing = registry.load_users(name, base)
        return [(kind or verify.kind_of(thing), name, thing)]
    kinds = [of for of in ([kind] if kind else registry.VERIFIED) if name in registry.table(of)]
    if not kinds:
        part_names = dict.fromkeys(part for _, part, _ in _all(kind))
        raise ConfigError(
            f"Unknown component {name!r}.{nearest(name, part_names)} Name a custom component as FILE.py:NAME."
        )
    return [(of, name, None) for of in kinds]


def _build(kind: str, name: str, thing: Any, options: dict[str, Any], base: Path) -> Any:
    """Return the component: an object unchanged, a class or function with its options."""
    if not inspect.isclass(thing) and not inspect.isfunction(thing):
        if options:
            raise ConfigError(f"--set requires a class or a function; {name!r} is an object.")
        return thing
    model = options_model(thing, registry.supplied_arguments(kind, name, thing))
    if model is not None:
        try:
            model.model_validate(options)
        except pydantic.ValidationError as error:
            problems = explain_errors(error, options, known=model.model_fields, owner=f"{kind} {name!r}")
            message = " ".join(f"--set {'.'.join(map(str, path))}: {message}" for path, message in problems)
            raise ConfigError(message) from error
    try:
        return components.make(kind, Choice.model_validate({"name": name, **options}), base)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{name!r} cannot be created: {type(error).__name__}: {error}.") from error


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set must be of the form name=value, such as alpha=0.5; got {text!r}.")
    return key.strip(), toml_value(value)
