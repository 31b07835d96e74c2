"""Costs of rounds without training: the selection and allocation of each round."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np

import fedreach as fr
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach._util.processes import one_thread
from fedreach.data.stored import OwnData
from fedreach.experiment.build import Builder
from fedreach.experiment.components import locate_user_errors
from fedreach.experiment.schema import DefaultMethod, Experiment
from fedreach.federation.base import name_of
from fedreach.federation.costs import round_cost
from fedreach.federation.steps import AskUpdates, next_request, run_round
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import HARMLESS_OPTIONS
from fedreach.runs.simulation import Simulation
from papers.measured import Floats, Measured
from papers.recipe import Recipe

ROWS = "decisions.jsonl"
QUANTITIES = ("seconds", "joules", "cost")
Key = tuple[float | None, str, int]  # value of the sweep, method, seed
Progress = Callable[[int, int], None]
"""Is called with how many rounds are decided, and of how many, all values, methods and seeds together: before the first
one that is decided now, and as more are."""


@one_thread()
def decide(recipe: Recipe, folder: RunFolder, progress: Progress = lambda done, rounds: None) -> Measured:
    """Decide the rounds of a recipe that are not in the folder yet, and return what all of them cost.

    Rows are appended to ``decisions.jsonl`` as they are decided. No decision depends on another one, so that the same
    command resumes where it was interrupted, and with more rounds or seeds decides only what is new.

    Raises:
        ConfigError: If the experiment lacks a radio, or a method needs to hear from clients before it chooses.
        RunFolderError: If the folder holds another recipe.
    """
    experiments = {value: recipe.at(value) for value in recipe.values or (None,)}
    first = next(iter(experiments.values()))
    if first.radio is None or not first.methods:
        raise ConfigError(f"{recipe.source}: a recipe of decisions needs a [radio] and methods.")
    with folder.locked():
        _check_same(folder, recipe, experiments)
        costs = _stored_costs(folder)
        rounds, keys = range(1, first.rounds + 1), product(first.seeds, experiments, first.methods)
        missing = {
            (value, method, seed): [n for n in rounds if n not in costs.setdefault((value, method, seed), {})]
            for seed, value, method in keys
        }
        remaining, total, cache = sum(map(len, missing.values())), len(missing) * len(rounds), _SimulationCache(recipe)
        progress(total - remaining, total)
        for key, numbers in missing.items():
            if numbers:
                value, method, seed = key
                simulation = cache.simulation(experiments[value].resolved(method), seed)
                for row in _rows(simulation, numbers):
                    folder.append_json(ROWS, _with_digest({"value": value, "method": method, "seed": seed, **row}))
                    costs[key][row["round"]] = _numbers(row)
                remaining -= len(numbers)
                progress(total - remaining, total)
    return _to_measured(recipe, first, costs)


class _SimulationCache:
    """Makes simulations that share data, and the engine if they differ only in selection and radio."""

    def __init__(self, recipe: Recipe) -> None:
        self.base = recipe.source.parent
        self.datasets: dict[str, fr.Dataset | OwnData] = {}
        self.simulations: dict[str, Simulation] = {}

    def simulation(self, experiment: Experiment, seed: int) -> Simulation:
        method = DefaultMethod.model_validate({"solver": experiment.choice("solver")})
        same = experiment.model_copy(update={"method": method, "radio": None})
        builder, key = Builder(experiment, self.base), f"{seed} {same.model_dump_json()}"
        with locate_user_errors(experiment, self.base):
            if key not in self.simulations:
                name = experiment.data.model_dump_json()
                if name not in self.datasets:
                    self.datasets[name] = builder.dataset()
                data = builder.federated(self.datasets[name], seed)
                self.simulations = {key: builder.simulation(data, seed)}  # of one seed at a time: data take memory
            return replace(self.simulations[key], federation=builder.federation(seed))


def _rows(simulation: Simulation, rounds: list[int]) -> Iterator[dict[str, Any]]:
    """Yield what each round would choose and cost: its steps, up to where the cohort is asked to train."""
    federation, radio, start = simulation.federation, simulation.federation.radio, simulation.start()
    assert radio is not None  # `decide` asked for one
    if federation.server.trains_server:
        raise _needs_training(federation.server)
    if federation.selection.declares("reads_updates") or federation.schedule is not None:
        raise _needs_training(federation.selection)
    for number in rounds:
        state = replace(start, round=number - 1)
        request = next_request(run_round(federation, state, simulation.view(state), rounds=simulation.rounds))
        if not isinstance(request, AskUpdates) or request.probe:
            raise _needs_training(federation.selection)
        selection = request.selection
        cost = round_cost(federation, request.view, selection, start.models.shape[1])
        assert cost is not None  # as there is a radio
        row = {"round": number, "seconds": cost.seconds, "joules": cost.joules}
        row["cost"] = radio.time_weight * cost.seconds + radio.energy_weight * cost.joules
        yield row | {"cohort": selection.ids.tolist()} | ({"remark": selection.remark} if selection.remark else {})


def _needs_training(component: object) -> ConfigError:
    return ConfigError(
        f"{name_of(component)} needs training, and a recipe of decisions trains nothing. "
        'Give the recipe kind = "training".'
    )


def _check_same(folder: RunFolder, recipe: Recipe, experiments: dict[float | None, Experiment]) -> None:
    """Refuse a folder with rows of other options; the lengths of the sweep and the run may differ."""

    def plain(experiment: Experiment) -> dict[str, Any]:
        dumped = experiment.model_dump(mode="json", exclude={"rounds", "seeds", "baseline"})
        for key in HARMLESS_OPTIONS:
            table, _, option = key.removeprefix("config.").rpartition(".")
            (dumped[table] if table else dumped).pop(option, None)
        return dumped

    config = {str(value): plain(e) for value, e in experiments.items()}
    stored = folder.read_json("recipe.json")
    if stored is not None:
        stored_config = stored.get("config", {})
        changed = [value for value, now in config.items() if stored_config.get(value, now) != now]
        if stored.get("recipe") != recipe.name or changed:
            raise RunFolderError(
                f"{folder.path} holds decisions of another recipe, or of other options. Choose another folder with "
                "--out, or move this one away."
            )
        config = {**stored_config, **config}
    folder.write_json("recipe.json", {"recipe": recipe.name, "config": config})


def _stored_costs(folder: RunFolder) -> dict[Key, dict[int, tuple[float, ...]]]:
    """Return the stored costs: key -> round -> `QUANTITIES`; a row that was cut off is removed."""
    lines, path = list(folder.lines(ROWS)), folder.path / ROWS
    costs: dict[Key, dict[int, tuple[float, ...]]] = {}
    for number, line in enumerate(lines, start=1):
        row = _read_row(line)
        if row is None:
            raise RunFolderError(
                f"{path}: line {number} was changed. Delete the line, so that its round is "
                "decided again, or move the folder away."
            )
        costs.setdefault((row["value"], row["method"], row["seed"]), {})[row["round"]] = _numbers(row)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return costs


def _with_digest(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its digest."""
    return {**row, "check": sha256(json.dumps(row).encode()).hexdigest()[:16]}


def _read_row(line: str) -> dict[str, Any] | None:
    """Return what a line holds; None if it is not what was written."""
    try:
        row = json.loads(line)
        check = row.pop("check")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    return row if _with_digest(row)["check"] == check else None


def _numbers(row: dict[str, Any]) -> tuple[float, ...]:
    return tuple(row[quantity] for quantity in QUANTITIES)


def _to_measured(recipe: Recipe, e: Experiment, costs: dict[Key, dict[int, tuple[float, ...]]]) -> Measured:
    """Return means over rounds along the sweep; without one, sums over the rounds so far."""
    methods, seeds, rounds = tuple(e.methods), tuple(e.seeds), range(1, e.rounds + 1)

    def table(value: float | None) -> Floats:  # (methods, seeds, rounds, quantities)
        return np.array([[[costs[value, m, s][number] for number in rounds] for s in seeds] for m in methods])

    sweep = recipe.about.sweep
    if sweep is None:
        so_far = np.cumsum(table(None), axis=2)
        numbers = {f"{quantity}_total": so_far[..., q] for q, quantity in enumerate(QUANTITIES)}
        return Measured(methods, seeds, "round", tuple(map(float, rounds)), numbers)
    mean = np.stack([table(value).mean(axis=2) for value in recipe.values], axis=2)
    x = tuple(value / sweep.unit for value in recipe.values)
    return Measured(methods, seeds, sweep.label, x, {quantity: mean[..., q] for q, quantity in enumerate(QUANTITIES)})
