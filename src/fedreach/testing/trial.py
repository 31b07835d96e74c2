"""Checks of parts by the laws of their kind: for tests (`check_selection(MyPolicy())`) and for ``fedreach verify``."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedreach import registry
from fedreach.errors import ConfigError, nearest
from fedreach.federation.traits import kinds_of
from fedreach.testing.law import NEEDS_LIBRARY, BrokenLaw, Law, Subject, Verdict, judge
from fedreach.testing.laws.variants import variants


def kind_of(thing: Any) -> str:
    """Return which kind of part this is, by its methods, or a function's number of arguments and their names.

    Raises:
        ConfigError: If it has the methods of no kind.

    Example:
        >>> from fedreach.federation.weighting import Equal
        >>> kind_of(Equal())
        'weighting'
    """
    for kind in kinds_of(thing):
        return kind
    if inspect.isfunction(thing):
        taken = [p.name for p in inspect.signature(thing).parameters.values() if p.default is p.empty]
        handed = {kind: row.handed for kind, row in registry.KINDS.items() if row.function}
        return min(handed, key=lambda kind: (abs(len(handed[kind]) - len(taken)), -len({*taken} & {*handed[kind]})))
    name = thing.__name__ if inspect.isclass(thing) else type(thing).__name__
    methods = "; ".join(f"{kind}: {', '.join(registry.KINDS[kind].known_by)}" for kind in registry.VERIFIED)
    raise ConfigError(f"{name} has the methods of no kind of part ({methods}). Say which it is meant to be: --kind.")


def laws_of(kind: str, as_: Sequence[str] = ()) -> tuple[Law, ...]:
    """Return the laws of a kind, and those of the built-in parts of these names beside them."""
    if kind not in registry.VERIFIED:
        raise ConfigError(f"There is no kind of part {kind!r}.{nearest(kind, registry.VERIFIED)}")
    laws = importlib.import_module(registry.KINDS[kind].laws)
    found: tuple[Law, ...] = laws.LAWS
    for name in as_:
        if name not in registry.table(kind):
            raise ConfigError(f"There is no {kind} {name!r}.{nearest(name, registry.table(kind))}")
        found += tuple(law for law in laws.METHOD_LAWS.get(name, ()) if law not in found)  # one may have two names
    return found


def like(kind: str, part: Any) -> tuple[str, ...]:
    """Return the built-in parts whose laws this one must keep: those that it is, inherits from, or is named after.

    Example:
        >>> from fedreach.federation.solvers import Scaffold
        >>> class Mine(Scaffold): ...
        >>> like("solver", Mine())
        ('scaffold',)
    """
    names = {cls.__name__ for cls in type(part).__mro__}
    return tuple(name for name, cls in registry.table(kind).items() if isinstance(part, cls) or cls.__name__ in names)


def verdict(
    kind: str,
    part: Any,
    *,
    as_: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    name: str = "",
    without: Sequence[str] = (),
) -> Verdict:
    """Try a part by the laws of its kind, and of the built-in parts that it stands for.

    Args:
        kind: One of `fedreach.registry.VERIFIED`.
        as_: Built-in parts whose laws it must keep beside those that `like` finds.
        options: What the part was made with.
        name: What messages call it.
        without: Laws that are left out.
    """
    row = registry.KINDS[kind]
    wrapper = registry.imported(row.function) if row.function else None
    if wrapper is not None and inspect.isfunction(part):
        part = wrapper(part)
    made_with = {"function": part.function} if wrapper is not None and isinstance(part, wrapper) else options
    subject = Subject.of(kind, part, made_with, name)
    laws = laws_of(kind, tuple(dict.fromkeys([*like(kind, part), *as_])))
    for law in without:
        if law not in {each.name for each in laws}:
            raise ConfigError(f"There is no law {law!r} for {subject.name}.{nearest(law, [x.name for x in laws])}")
    return judge(subject, [each for each in laws if each.name not in without])


def verdict_of_built_in(kind: str, name: str) -> Verdict:
    """Try a built-in part with several sets of options; its own laws with the first."""
    cls = registry.table(kind)[name]
    laws = 0
    found: list[BrokenLaw] = []
    for i, options in enumerate(variants(kind, name)):
        shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
        try:
            subject = Subject.of(kind, cls(**options), options, f"{name}({shown})" if shown else name)
        except TypeError as error:
            raise ConfigError(f"{name} cannot be made: {error}. fedreach.testing.laws.variants says how.") from error
        except ConfigError as error:
            if NEEDS_LIBRARY not in str(error):
                raise
            return Verdict(kind, name, skipped=str(error))
        one = judge(subject, laws_of(kind, () if i else like(kind, subject.part)))
        if one.skipped:
            return Verdict(kind, name, skipped=one.skipped)
        laws += one.laws
        found += one.broken
    return Verdict(kind, name, laws, tuple(found))


def check(kind: str, part: Any, *, as_: str = "", without: Sequence[str] = ()) -> None:
    """Raise `BrokenLaw` for the first law that a part breaks; `check_selection` and so on are this for one kind.

    Args:
        kind: One of `fedreach.registry.VERIFIED`.
        part: The part, or a function ``(view, k, rng) -> ids`` that selects or ``(reports) -> numbers`` that weighs.
        as_: A built-in part whose laws it must keep, too.
        without: Laws that are left out.

    Raises:
        BrokenLaw: Which law, with which input, what happened; further ones are in its notes.

    Example:
        >>> from fedreach.federation.selection import Uniform
        >>> check_selection(Uniform())
    """
    found = verdict(kind, part, as_=[as_] if as_ else [], without=without)
    if found.skipped:
        raise ConfigError(found.skipped)
    if found.broken:
        first, *others = found.broken
        for other in others:
            first.add_note(f'It also breaks "{other.law}": {other.statement}')
        raise first


check_selection = partial(check, "selection")
check_weighting = partial(check, "weighting")
check_solver = partial(check, "solver")
check_server = partial(check, "server")
check_measurement = partial(check, "measurement")
check_label_statistics = partial(check, "label_statistics")
check_participation = partial(check, "participation")
check_allocation = partial(check, "allocation")
