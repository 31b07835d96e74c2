"""A study as Python asks for it becomes an experiment, checked as one from a TOML file is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedreach import registry
from fedreach.config.load import check
from fedreach.config.messages import listed
from fedreach.config.sections import PARTS, Data, Experiment
from fedreach.config.user_code import locate_user_errors
from fedreach.data.datasets import Dataset, Recipe
from fedreach.data.federated import FederatedData, Origin
from fedreach.data.own_data import OwnData, OwnTable
from fedreach.data.stored import FILE, store
from fedreach.errors import ConfigError
from fedreach.experiments.build import Builder
from fedreach.experiments.naming import Shelf, function_said, plain, said
from fedreach.study.method import Method

BASIS = ["accuracy", "loss"]  # metrics that are always there
COHORT = 10  # clients a round, where nothing is said and so many take part


@dataclass(eq=False)
class PythonStudy:
    """An experiment that Python asked for, and what of it this process holds in its hands."""

    experiment: Experiment
    dataset: Dataset | OwnData
    shelf: Shelf
    out: Path
    base: Path = field(default_factory=Path.cwd)

    def federated(self) -> FederatedData:
        """Return the data of the first seed, which all methods take."""
        with locate_user_errors(self.experiment, self.base):
            return Builder(self.experiment, self.base).compared(self.dataset)

    def written(self) -> PythonStudy:
        """Write what other processes need: parts without names, and data of one's own."""
        self.shelf.write()
        if self.experiment.data.name != FILE:
            return self
        place = store(self.dataset, self.out / "data")
        data = Data(name=Path(os.path.relpath(place)).as_posix())
        self.experiment = self.experiment.model_copy(update={"data": data})
        return self


def ask(
    data: FederatedData | Recipe | Dataset,
    methods: Mapping[str, Any] | None,
    *,
    method: Any,
    model: Any,
    metrics: Sequence[Any],
    seeds: int | Sequence[int],
    cohort: int | None,
    out: Path,
    called: str,
    trackers: Sequence[Any] = (),
    **tables: Any,
) -> PythonStudy:
    """Return the experiment that Python asks for.

    Args:
        data: What the clients hold.
        methods: To compare, by name; None where there is one only.
        method: Parts that all methods share.
        model: What is trained.
        metrics: Beside accuracy and loss.
        seeds: How many, or which.
        cohort: Clients a round; None: 10, or all who take part where they are fewer.
        out: Where what has no name is kept.
        called: The function that was called, for messages.
        trackers: Who else is told of runs.
        **tables: Further keys of an experiment file; None is left out.

    Raises:
        ConfigError: With all mistakes at once, by their keys in an experiment file.
    """
    shelf, origin = Shelf(out / "parts"), origin_of(data)
    raw: dict[str, Any] = {key: _table(key, value, shelf) for key, value in tables.items() if value is not None}
    for kind, row in registry.KINDS.items():
        if row.path == () and kind in raw:
            raw[kind] = said(kind, raw[kind], shelf)
    raw |= {key: plain(table) for key, table in origin.tables.items() if key not in raw}
    raw["partition"] = said("partition", origin.tables["partition"], shelf)
    raw["population"] = {**plain(origin.tables["population"]), **_population(raw.get("population"), shelf)}
    raw["data"] = plain(getattr(origin.data, "section", None) or {"name": FILE})
    raw["model"] = said("model", model, shelf)
    number = plain(seeds)
    raw["seeds"] = list(range(number)) if isinstance(number, int) and not isinstance(number, bool) else number
    evaluation = raw.get("evaluation", {})
    asked = [*_several(evaluation.get("metrics", ())), *_several(metrics)] if isinstance(evaluation, Mapping) else []
    if asked:
        named = [said("metric", each, shelf) for each in asked]
        raw["evaluation"] = {**evaluation, "metrics": BASIS + [each for each in named if each not in BASIS]}
    if several := _several(trackers):
        raw["run"] = {"trackers": [said("tracker", each, shelf) for each in several]}
    raw["method"] = _method(method, shelf, called, "method")
    if isinstance(origin.data, OwnTable) and not origin.data.num_classes:  # of a column that was named as `target`
        raw["method"].setdefault("loss", "mse")
    if "cohort" not in raw["method"]:
        raw["method"]["cohort"] = min(COHORT, _participants(data)) if cohort is None else plain(cohort)
    if methods is not None:
        if not isinstance(methods, Mapping) or not methods:
            raise ConfigError(f'{called}() needs methods by name, such as {{"fedavg": {{}}}}; got {methods!r}.')
        raw["methods"] = {str(name): _method(one, shelf, called, f"methods.{name}") for name, one in methods.items()}
    experiment, problems = check(raw, Path.cwd())
    if problems or experiment is None:
        raise ConfigError(listed(problems, Path(f"{called}()"), "", ()))
    return PythonStudy(experiment, origin.data, shelf, out)


def origin_of(data: FederatedData | Recipe | Dataset) -> Origin:
    """Return what data were made of, and what an experiment says of how."""
    if isinstance(data, Dataset):
        if data.owners is None:
            raise ConfigError(
                f"{data.name} has no clients of its own: say how it is divided, such as "
                'data.partition("dirichlet_by_class", clients=50, alpha=0.3).'
            )
        data = data.partition("natural")
    if isinstance(data, Recipe):
        return Origin(data.dataset, data.tables())
    if not isinstance(data, FederatedData):
        raise ConfigError(
            f"data must be FederatedData, or a data set that is divided by .partition(...); got {type(data).__name__}. "
            "FederatedData.from_frame, from_torch, from_clients and from_huggingface make them of one's own."
        )
    origin = data.by_experiment
    if origin is None:
        raise ConfigError(
            "These FederatedData do not say how they came about, or were changed since, so that no other seed and no "
            "other process can make them. Hand over what FederatedData.from_... or .partition(...) returned; label "
            "noise, shifts and data of the server are the arguments `noise`, `shift` and `server_data`."
        )
    return origin


def _participants(data: FederatedData | Recipe | Dataset) -> int:
    """Return how many take part, as far as that is known before the data are divided."""
    if isinstance(data, FederatedData):
        return len(data.population.participants)
    if isinstance(data, Recipe):
        clients = data.clients
        if data.kind == "natural" and data.dataset.owners is not None:
            clients = int(data.dataset.owners.max()) + 1
        who = data.participants
        if who is None:
            return clients
        if isinstance(who, int | float):
            return who if isinstance(who, int) else max(1, round(who * clients))
        return len(who)
    return _participants(data.partition("natural"))


def _method(method: Any, shelf: Shelf, called: str, where: str) -> dict[str, Any]:
    if isinstance(method, Method):
        method = method.said()
    if not isinstance(method, Mapping):
        raise ConfigError(f"{called}(): {where} must be a Method or a dictionary of parts; got {method!r}.")
    return {
        key: said(key, value, shelf) if key in PARTS else _table(key, value, shelf) for key, value in method.items()
    }


def _several(things: Any) -> Sequence[Any]:
    """Return metrics or trackers as a list, one by itself, too."""
    alone = isinstance(things, str | Mapping) or not isinstance(things, Iterable)
    return [things] if alone else list(things)


def _population(table: Mapping[str, Any] | None, shelf: Shelf) -> dict[str, Any]:
    """Return what was said of the population beside the data."""
    found = dict(table or {})
    if "participation" in found:
        found["participation"] = said("participation", found["participation"], shelf)
    return found


def _table(key: str, value: Any, shelf: Shelf) -> Any:
    if key == "local" and isinstance(value, Mapping) and callable(value.get("schedule")):
        value = {**value, "schedule": function_said(value["schedule"], shelf)}
    return plain(dict(value)) if isinstance(value, Mapping) else value if key in registry.KINDS else plain(value)
