"""A recipe: an experiment file with a table ``[recipe]`` of what a paper's table or figure shows and claims."""

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
from pydantic import Field

import fedreach as fr
from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.experiment.load import checked, folders, set_option, with_setting
from fedreach.experiment.messages import Path_, Problem, explain_errors, format_problems
from fedreach.experiment.schema import Experiment, Section, Setting
from papers.claims import Claim

SCALES = ("smoke", "cpu", "full")
FOLDER = Path(__file__).parent / "recipes"


class Series(Section):
    """An option of the experiment under whose values all methods run, each then a line of its own: METHOD, LABEL VALUE.

    The table `settings` holds what goes with a value, by its place: options of the experiment by their dotted names.
    """

    key: str
    values: Annotated[list[Any], Field(min_length=1)]
    label: str
    settings: list[dict[str, Any]] = Field(default_factory=list)

    def settings_at(self, place: int) -> dict[str, Any]:
        """Return the settings of the value at a place."""
        return {self.key: self.values[place], **(self.settings[place] if self.settings else {})}

    def line_name(self, place: int) -> str:
        """Return the name of lines at a place, without the method.

        Example:
            >>> Series(key="partition.classes_per_client", values=[5, 1], label="p =").line_name(1)
            'p = 1'
        """
        value = self.values[place]
        return (
            f"{self.label} {value:g}".lstrip() if isinstance(value, int | float) else f"{self.label} {value}".lstrip()
        )


class Sweep(Section):
    """The option that a recipe varies, the horizontal axis of a panel.

    A step ``*`` of `key` means all methods, as in ``methods.*.selection.min_examples``. With training, the values of
    an option of methods make one comparison; each value of any other option needs its own.
    """

    key: str
    values: Annotated[list[int | float], Field(min_length=2)]
    label: str  # of the axis, with its unit
    unit: Annotated[float, Field(gt=0)] = 1.0  # the label's unit, in units of the option


class Printed(Section):
    """Numbers that the paper prints, as it prints them: accuracies in per cent."""

    where: str  # as "Table 1, page 8"
    quantity: str
    at: list[float] = Field(default_factory=list)  # values of the axis, where these are not those of the sweep
    over: str = ""  # numbers are what each line has more than this method, under the same value of the series
    numbers: dict[str, float | list[float | None]]  # line -> one, or one a value of the axis; nan: not printed

    @pydantic.field_validator("numbers")
    @classmethod
    def _none_for_nan(cls, numbers: dict[str, Any]) -> dict[str, Any]:
        """TOML has no null."""
        return {
            line: [None if x != x else x for x in values] if isinstance(values, list) else values
            for line, values in numbers.items()
        }

    def baseline_line(self, line: str) -> str:
        """Return the line of the method `over` that goes with a line."""
        _, comma, setting = line.partition(",")
        return self.over + comma + setting


class RecipeSection(Section):
    """The table ``[recipe]``."""

    title: str
    reference: str
    kind: Literal["training", "decisions"]
    choices: list[str] = Field(default_factory=list)  # what the paper leaves open, and what is done here
    cut: list[str] = Field(default_factory=list)  # what is smaller here than in the paper
    methods: list[str] = Field(default_factory=list)  # those of the file that take part; empty: all
    sweep: Sweep | None = None
    series: Series | None = None  # of a recipe with training
    stand_in: str | None = None  # data set that is taken where the file's own is not here
    paper: list[Printed] = Field(default_factory=list)
    curves: list[Literal["accuracy", "train_loss"]] = Field(default=["accuracy"])  # over the rounds
    instead: dict[str, str] = Field(
        default_factory=dict
    )  # method -> another; claims about the first are judged for both
    claims: list[Claim] = Field(default_factory=list)


class Cell(NamedTuple):
    """One comparison of a recipe, and its folder within the recipe's."""

    folder: Path
    experiment: Experiment


class Place(NamedTuple):
    """Where the runs of a line at one value of the axis are."""

    cell: int
    method: str  # its name there


@dataclass(frozen=True, eq=False)
class Recipe:
    """What to run for a figure at one scale, and what the paper says about it."""

    name: str
    scale: str  # one of `SCALES`
    source: Path
    raw: Mapping[str, Any]  # the experiment, at this scale
    stand_in_note: str = ""  # a sentence about data that stand in for those of the file; empty: these are available

    @cached_property
    def about(self) -> RecipeSection:
        """The table ``[recipe]``.

        Raises:
            ConfigError: If it cannot be understood, or a claim names a method that is not there.
        """
        try:
            about = RecipeSection.model_validate(self.raw.get("recipe", {}))
        except pydantic.ValidationError as error:
            raise self._refusal(
                explain_errors(error, self.raw.get("recipe", {}), ("recipe",), RecipeSection.model_fields)
            ) from error
        methods = list(self.raw.get("methods", {}))
        lines = list(lines_of(about, about.methods or methods))
        named: list[tuple[Path_, list[str], list[str]]] = [(("methods",), about.methods, methods)]
        named += [(("instead",), [*about.instead, *about.instead.values()], lines)]
        named += [(("claims", i, "methods"), claim.methods, lines) for i, claim in enumerate(about.claims)]
        for i, printed in enumerate(about.paper):
            below = [printed.baseline_line(line) for line in printed.numbers] if printed.over else []
            named.append((("paper", i, "numbers"), [*printed.numbers, *below], list(lines_of(about, methods))))
        problems = [
            Problem(("recipe", *path), f"there is no method {name!r}.{nearest(name, available)}")
            for path, names_, available in named
            for name in names_
            if name not in available
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
        return self._checked_experiment(raw)

    @property
    def lines(self) -> tuple[str, ...]:
        """What is drawn along the axis: each method, or each under each value of the series."""
        return tuple(lines_of(self.about, self.methods))

    def cells(self) -> tuple[list[Cell], dict[str, tuple[Place, ...]]]:
        """Return the comparisons of a recipe with training, and where in them the runs of each line are, by value.

        Values of an option of methods share one comparison, a method for each; one without that option is the same
        at every value, and runs once. Values of any other option need a comparison each.
        """
        sweep, series = self.about.sweep, self.about.series
        by_method = sweep is not None and sweep.key.partition(".")[0] == "methods"
        rows: list[tuple[str, Setting]] = [("", {})]
        if series is not None:
            rows = [(f", {series.line_name(place)}", series.settings_at(place)) for place in range(len(series.values))]
        columns: list[Setting] = [{}]
        if sweep is not None and not by_method:
            columns = [{sweep.key: value} for value in sweep.values]
        settings = [{**row, **column} for (_, row), column in product(rows, columns)]
        swept_cells = [
            self._with_methods_swept(with_setting(self._experiment(), setting), by_method) for setting in settings
        ]
        where = [Path()] if len(swept_cells) == 1 else folders(settings, Path("cells"))
        cells = [
            Cell(folder, self._checked_experiment(raw)) for folder, (raw, _) in zip(where, swept_cells, strict=True)
        ]
        places = {}
        for method, (number, (suffix, _)) in product(self.methods, enumerate(rows)):
            line_cells = range(number * len(columns), (number + 1) * len(columns))
            places[method + suffix] = tuple(
                Place(cell, name) for cell in line_cells for name in swept_cells[cell][1][method]
            )
        return cells, places

    def _with_methods_swept(
        self, raw: dict[str, Any], by_method: bool
    ) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
        """Return an experiment with a method for each value of the sweep, and what each method is called at each."""
        sweep = self.about.sweep
        if sweep is None or not by_method:
            return raw, {method: (method,) for method in self.methods}
        method, _, option = sweep.key.partition(".")[2].partition(".")
        if not option:
            rule = f"options of methods are swept as methods.NAME.OPTION or methods.*.OPTION; got {sweep.key!r}."
            raise self._refusal([Problem(("recipe", "sweep", "key"), rule)])
        swept = self.methods if method == "*" else (method,)
        followed = {name: _followed(table) for name, table in raw["methods"].items()}
        changing = [name for name in raw["methods"] if name in swept or followed[name] in swept]
        names, methods = {}, {}
        for name, table in raw["methods"].items():
            names[name] = tuple(f"{name}-{value:g}" if name in changing else name for value in sweep.values)
            for swept_name, value in zip(names[name], sweep.values, strict=True):
                methods[swept_name] = copy.deepcopy(table)
                if name in swept:
                    set_option(methods[swept_name], option, value)
                if followed[name] in changing:
                    methods[swept_name]["cohort_size"]["as"] += f"-{value:g}"
        if raw.get("baseline") in names:
            raw["baseline"] = names[raw["baseline"]][0]
        return {**raw, "methods": methods}, names

    def _experiment(self) -> dict[str, Any]:
        raw = copy.deepcopy({key: table for key, table in self.raw.items() if key != "recipe"})
        raw["methods"] = {name: raw["methods"][name] for name in self.methods}
        return {"name": self.name.replace("/", "-"), **raw}

    def _checked_experiment(self, raw: Mapping[str, Any]) -> Experiment:
        return checked(raw, self.source.parent, self.source.name)

    def _refusal(self, problems: list[Problem]) -> ConfigError:
        return ConfigError(format_problems(problems, self.source.name))


def _followed(table: Mapping[str, Any]) -> str | None:
    """Return the method whose cohorts those of a method equal, if any."""
    size = table.get("cohort_size")
    return size.get("as") if isinstance(size, dict) else None


def lines_of(about: RecipeSection, methods: list[str] | tuple[str, ...]) -> Iterator[str]:
    """Yield what is drawn along the axis."""
    for method in methods:
        if about.series is None:
            yield method
        else:
            yield from (f"{method}, {about.series.line_name(place)}" for place in range(len(about.series.values)))


def names() -> list[str]:
    """Return the names of all recipes.

    Example:
        >>> names()[-1]
        'safari/table1'
    """
    files = sorted(FOLDER.glob("*/[!_]*.toml"))
    return [f"{file.parent.name}/{file.stem}" for file in files]


def find(name: str) -> list[str]:
    """Return the recipes of a paper, of its table or figure in all variants, or of a recipe file.

    Example:
        >>> find("csra/fig2")
        ['csra/fig2a', 'csra/fig2b']
        >>> find("entropy/table2")
        ['entropy/table2-cifar10', 'entropy/table2-emnist']

    Raises:
        ConfigError: If there is none.
    """
    if name.endswith(".toml"):
        return [name]
    recipes = names()
    if name in recipes:
        return [name]
    paper, _, item = name.strip("/").partition("/")
    if item[-1:].isdigit():  # fig2 is fig2a and fig2b, table2 is table2-cifar10 and table2-emnist
        matches = [recipe for recipe in recipes if re.fullmatch(rf"{re.escape(f'{paper}/{item}')}([a-z]|-.+)", recipe)]
    else:
        matches = [] if item else [recipe for recipe in recipes if recipe.startswith(f"{paper}/")]
    if not matches:
        everything = [*dict.fromkeys(recipe.partition("/")[0] for recipe in recipes), *recipes]
        raise ConfigError(
            f"There is no recipe {name!r}.{nearest(name, everything)} `python -m papers list` lists them; "
            "a file of your own ends in .toml."
        )
    return matches


def title(name: str) -> str:
    """Return the title of a recipe, without looking for its data."""
    text: str = _read(_path(name, Path()))["recipe"]["title"]
    return text


def load(name: str, scale: str, *, device: str | None = None) -> Recipe:
    """Return a recipe by its name, or by the path of a recipe file.

    A recipe inherits what it does not set from the one that ``[recipe] extends`` names: a file, relative to its
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
    raw = _merge(raw, scales.get(scale, {}))
    if device is not None:
        raw = _merge(raw, {"engine": {"device": device}})
    raw, note = _with_available_data(raw)
    return Recipe(source.stem if name.endswith(".toml") else name, scale, source, raw, note)


def _with_available_data(raw: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a recipe with data that are available, and a sentence about its stand-in; nothing is downloaded."""
    stand_in, data = raw["recipe"].get("stand_in"), raw.get("data", {})
    if not isinstance(stand_in, str) or is_available(data):
        return raw, ""
    return {
        **raw,
        "data": {"name": stand_in},
    }, f"{data['name']} is not in the data folder: {stand_in} stands in for it."


def is_available(data: Mapping[str, Any]) -> bool:
    """Return whether a data set can be read without downloading."""
    options = {key: value for key, value in data.items() if key != "name"}
    try:
        fr.load(data["name"], download=False, **options)
    except DataError:
        return False
    return True


def _read(source: Path, parents: tuple[Path, ...] = ()) -> dict[str, Any]:
    try:
        raw = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"The recipe {source} cannot be read: {error}.") from error
    if not isinstance(raw.get("recipe"), dict):
        raise ConfigError(f"{source} has no table [recipe]; `fedreach run` and `compare` take plain experiments.")
    parent = raw["recipe"].pop("extends", None)
    if parent is None:
        return raw
    if not isinstance(parent, str) or source in parents:
        raise ConfigError(f"{source}: `extends` must name another recipe file; got {parent!r}.")
    return _merge(_read(_path(parent, source.parent), (*parents, source)), raw)


def _path(name: str, base: Path) -> Path:
    return base / name if name.endswith(".toml") else FOLDER / f"{name}.toml"


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with another laid over it; where the `name` of a part differs, nothing of the other remains.

    Example:
        >>> _merge({"a": {"x": 1, "y": 2}, "p": {"name": "one", "x": 1}}, {"a": {"y": 3}, "p": {"name": "two"}})
        {'a': {'x': 1, 'y': 3}, 'p': {'name': 'two'}}
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("name") in (None, old.get("name")):
            result[key] = _merge(old, value)
        else:
            result[key] = value
    return result
