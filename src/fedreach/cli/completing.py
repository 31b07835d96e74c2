"""What the shell offers on TAB: names of kinds and of parts, and where in an experiment they stand."""

from __future__ import annotations

import os

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from fedreach import registry
from fedreach.registry import KINDS, METHOD, VERIFIED

PLACES = {".".join((*row.path, kind)): kind for kind, row in KINDS.items() if row.path is not None}
"""Keys of an experiment that name something, and the kinds of it."""


def kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a kind."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def trackers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a tracker."""
    return [name for name in registry.table("tracker") if name.startswith(incomplete)]


def verified_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a kind that has checks."""
    return [kind for kind in VERIFIED if kind.startswith(incomplete)]


def parts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a part whose kind has checks, or else a file."""
    asked = ctx.params.get("kind")
    found = dict.fromkeys(
        name
        for kind in ([asked] if asked in VERIFIED else VERIFIED)
        for name in registry.table(kind)
        if name.startswith(incomplete)
    )
    return list(map(CompletionItem, found)) or [CompletionItem(incomplete, type="file")]


def settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete ``method.selection=uniform``: the key, and once there is only one such key, what may stand there."""
    key, equals, _ = incomplete.partition("=")
    if equals:
        kind = _kind_at(key)
        found = {} if kind is None else {key: kind}
    else:
        found = {place: kind for place, kind in PLACES.items() if place.startswith(key)}
    if len(found) > 1:
        return list(found)
    pairs = [f"{place}={name}" for place, kind in found.items() for name in registry.table(kind)]
    return [pair for pair in pairs if pair.startswith(incomplete)]


def _kind_at(key: str) -> str | None:
    """Return what kind of thing a key of an experiment names.

    Example:
        >>> _kind_at("method.selection"), _kind_at("methods.mine.selection.name"), _kind_at("local.rate")
        ('selection', 'selection', None)
    """
    steps = key.removesuffix(".name").split(".")
    if steps[0] == "methods" and len(steps) == 3:
        steps = [*METHOD, steps[2]]
    return PLACES.get(".".join(steps))


class Bash(BashComplete):
    """bash takes ``a.b=c`` for three words, of which it completes the last; commands see one word."""

    def get_completion_args(self) -> tuple[list[str], str]:
        shown, last = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        words: list[str] = []
        joined = False  # to the word before
        for word in shown[1 : last + 1]:
            if words and (joined or word == "="):
                words[-1] += word
            else:
                words.append(word)
            joined = word == "="
        return words, words.pop() if last < len(shown) else ""

    def format_completion(self, item: CompletionItem) -> str:
        if "=" not in split_arg_string(os.environ["COMP_WORDS"]):  # it stands in no word, or parts none
            return super().format_completion(item)
        _, incomplete = self.get_completion_args()
        before = incomplete[: incomplete.rfind("=") + 1]
        if before.startswith("-"):  # --option=value
            before = before.partition("=")[2]
        return f"{item.type},{item.value.removeprefix(before)}"


add_completion_class(Bash)
