"""A recipe: an experiment file with a table ``[recipe]`` that says what the paper says."""

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from fedreach.config.load import check
from fedreach.config.messages import Path_, Problem, explained, listed
from fedreach.config.section import Section
from fedreach.config.sections import Experiment
from fedreach.config.sweep import Sweep, put, with_setting
from fedreach.errors import ConfigError, nearest
from fedreach.reproduce.claims import Claim

SCALES = ("smoke", "cpu", "full")
FOLDER = Path(__file__).parent / "recipes"


class RecipeSection(Section):
    """The table ``[recipe]``."""

    title: str
    reference: str
    kind: Literal["training", "decisions"]
    choices: list[str] = Field(default_factory=list)  # what the paper leaves open, and what is done here
    methods: list[str] = Field(default_factory=list)  # those of the file that take part; empty: all
    sweep: Sweep | None = None
    instead: dict[str, str] = Field(default_factory=dict)  # method -> another; claims about it are judged for both
    claims: list[Claim] = Field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Recipe:
    """What to run for a figure at one scale, and what the paper says about it."""

    name: str
    scale: str  # one of `SCALES`
    source: Path
    raw: Mapping[str, Any]  # the experiment, at this scale

    @cached_property
    def about(self) -> RecipeSection:
        """The table ``[recipe]``.

        Raises:
            ConfigError: If it cannot be understood, or a claim names a method that is not there.
        """
        try:
            about = RecipeSection.model_validate(self.raw.get("recipe", {}))
        except pydantic.ValidationError as error:
            raise self._refusal(explained(error, self.raw.get("recipe", {}), ("recipe",), RecipeSection)) from error
        there = list(self.raw.get("methods", {}))
        part = about.methods or there
        named: list[tuple[Path_, list[str], list[str]]] = [(("methods",), about.methods, there)]
        named += [(("instead",), [*about.instead, *about.instead.values()], part)]
        named += [(("claims", i, "methods"), claim.methods, part) for i, claim in enumerate(about.claims)]
        problems = [
            Problem(("recipe", *path), f"there is no method {name!r}.{nearest(name, known)}")
            for path, names_, known in named
            for name in names_
            if name not in known
        ]
        if problems:
            raise self._refusal(problems)
        return about

    @property
    def values(self) -> tuple[float, ...]:
        """Values of the sweep; empty without one."""
        sweep = self.about.sweep
        return () if sweep is None else tuple(sweep.values)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that take part, before a sweep makes several of one."""
        return tuple(self.about.methods or self.raw.get("methods", {}))

    def at(self, value: float | None = None) -> Experiment:
        """Return the experiment at a value of the sweep, or as it stands."""
        raw = self._experiment()
        if value is not None and self.about.sweep is not None:
            raw = with_setting(raw, {self.about.sweep.key: value})
        return self._checked(raw)

    def compared(self) -> tuple[Experiment, dict[str, tuple[str, ...]]]:
        """Return one comparison that holds all values of the sweep, and each method's name in it at each value.

        A method without the option that is swept is the same at every value, and runs once.
        """
        sweep = self.about.sweep
        if sweep is None:
            return self.at(), {method: (method,) for method in self.methods}
        head, _, rest = sweep.key.partition(".")
        method, _, option = rest.partition(".")
        if head != "methods" or not option:
            rule = f"a recipe with training sweeps over methods.NAME.OPTION or methods.*.OPTION; got {sweep.key!r}."
            raise self._refusal([Problem(("recipe", "sweep", "key"), rule)])
        swept = self.methods if method == "*" else (method,)
        raw, names, methods = self._experiment(), {}, {}
        for name, table in raw["methods"].items():
            names[name] = tuple(f"{name}-{value:g}" if name in swept else name for value in sweep.values)
            for each, value in zip(names[name], sweep.values, strict=True):
                methods[each] = copy.deepcopy(table)
                if name in swept:
                    put(methods[each], option, value)
        raw["methods"] = methods
        if raw.get("baseline") in names:
            raw["baseline"] = names[raw["baseline"]][0]
        return self._checked(raw), names

    def _experiment(self) -> dict[str, Any]:
        raw = copy.deepcopy({key: table for key, table in self.raw.items() if key != "recipe"})
        raw["methods"] = {name: raw["methods"][name] for name in self.methods}
        return {"name": self.name.replace("/", "-"), **raw}

    def _checked(self, raw: Mapping[str, Any]) -> Experiment:
        experiment, problems = check(raw, self.source.parent)
        if problems or experiment is None:
            raise self._refusal(problems)
        return experiment

    def _refusal(self, problems: list[Problem]) -> ConfigError:
        return ConfigError(listed(problems, self.source, self.source.read_text(encoding="utf-8"), []))


def names() -> list[str]:
    """Return the names of all recipes that come with FedReach.

    Example:
        >>> names()[:2]
        ['csra/fig2a', 'csra/fig2b']
    """
    files = sorted(FOLDER.glob("*/[!_]*.toml"))
    return [f"{file.parent.name}/{file.stem}" for file in files]


def find(name: str) -> list[str]:
    """Return the recipes that a paper, an item or the path of a recipe file stands for.

    Example:
        >>> find("csra/fig2")
        ['csra/fig2a', 'csra/fig2b']

    Raises:
        ConfigError: If there is none.
    """
    if name.endswith(".toml"):
        return [name]
    known = names()
    if name in known:
        return [name]
    paper, _, item = name.strip("/").partition("/")
    variants = [each for each in known if each[-1].isalpha() and each[:-1] == f"{paper}/{item}"]
    found = variants if item else [each for each in known if each.startswith(f"{paper}/")]
    if not found:
        everything = [*dict.fromkeys(each.partition("/")[0] for each in known), *known]
        raise ConfigError(
            f"There is no recipe {name!r}.{nearest(name, everything)} `fedreach reproduce` lists them; "
            "a file of your own ends in .toml."
        )
    return found


def load(name: str, scale: str, *, device: str | None = None) -> Recipe:
    """Return a recipe by its name, or by the path of a file of one's own.

    A recipe takes all that it does not say itself from the one that ``[recipe] extends`` names: a file, relative to its
    own, or the name of a recipe. The table ``[recipe.scale.SCALE]`` is laid over the whole file.

    Raises:
        ConfigError: If the file cannot be read, or there is no such scale.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}; got {scale!r}.{nearest(scale, SCALES)}")
    source = _path(name, Path())
    raw = _read(source)
    scales = raw["recipe"].pop("scale", {})
    if not isinstance(scales, dict) or not isinstance(scales.get(scale, {}), dict):
        raise ConfigError(f"{source}: [recipe.scale.{scale}] must be a table.")
    raw = _over(raw, scales.get(scale, {}))
    if device is not None:
        raw = _over(raw, {"engine": {"device": device}})
    return Recipe(source.stem if name.endswith(".toml") else name, scale, source, raw)


def _read(source: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    try:
        raw = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"The recipe {source} cannot be read: {error}.") from error
    if not isinstance(raw.get("recipe"), dict):
        raise ConfigError(f"{source} has no table [recipe]; `fedreach run` and `compare` take plain experiments.")
    parent = raw["recipe"].pop("extends", None)
    if parent is None:
        return raw
    if not isinstance(parent, str) or source in seen:
        raise ConfigError(f"{source}: `extends` must name another recipe file; got {parent!r}.")
    return _over(_read(_path(parent, source.parent), (*seen, source)), raw)


def _path(name: str, base: Path) -> Path:
    return base / name if name.endswith(".toml") else FOLDER / f"{name}.toml"


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with another laid over it; where the `name` of a part differs, nothing of the other remains.

    Example:
        >>> _over({"a": {"x": 1, "y": 2}, "p": {"name": "one", "x": 1}}, {"a": {"y": 3}, "p": {"name": "two"}})
        {'a': {'x': 1, 'y': 3}, 'p': {'name': 'two'}}
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("name") in (None, old.get("name")):
            result[key] = _over(old, value)
        else:
            result[key] = value
    return result
