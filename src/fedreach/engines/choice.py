"""Selection of an engine that computes the model correctly, by name or by its speed in a short trial."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedreach._util.arrays import Ints
from fedreach._util.errors import ConfigError, TrainingError, nearest
from fedreach.engines.engine import TorchEngine
from fedreach.engines.examination import Examination
from fedreach.engines.manual import Manual
from fedreach.engines.native import Native
from fedreach.engines.protocols import Precision, Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.trainer import GroupTrainer
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD

ENGINES: dict[str, type[GroupTrainer]] = {
    "native": Native,
    "manual": Manual,
    "sequential": Sequential,
    "vmap": Vmap,
}
# Engine -> engines that are always faster. If one of them works, the engine is not tried: it computes the same products
# with more overhead. vmap also takes a second to load.
SLOWER_THAN = {"manual": {"native"}, "vmap": {"native", "manual"}}

STEPS = 2  # local steps per client in a trial
TRIAL_SECONDS = 0.2  # a trial has the number of clients that would train one by one in this time
REPEATS = 3  # repetitions of a trial, of which the fastest is used


@dataclass(frozen=True)
class EngineChoice:
    """Selected engine, with the measurements and reasons behind the selection.

    Args:
        name: Name of the selected engine.
        seconds: Expected duration of one round in seconds, for each engine that was tried.
        refused: Reasons why engines cannot train this model, by engine.
        only_plain: Reason why only `sequential` can train the model. None if other engines were tried.
        wrong: Differences between engines and torch, by engine. `refused` also contains these engines.
    """

    name: str
    seconds: Mapping[str, float]
    refused: Mapping[str, str]
    only_plain: str | None = None
    wrong: Mapping[str, str] = field(default_factory=dict)

    @property
    def warning(self) -> str | None:
        """One line about the property of the model that excludes faster engines, or None if no property does."""
        if self.only_plain is not None:
            return f"engine {self.name}: {self.only_plain}"
        if not self.wrong:
            return None
        reasons = "; ".join(f"{name}: {why}" for name, why in self.wrong.items())
        return f"engine {self.name}: other engines compute different results from torch for this model ({reasons})"

    def __str__(self) -> str:
        if self.only_plain is not None:
            return f"engine {self.name}: {self.only_plain}"
        tried = sorted(self.seconds.items(), key=lambda item: item[1])
        timings = ", ".join(f"{name} {seconds:.3g} s per round" for name, seconds in tried)
        return "; ".join([f"engine {self.name}: {timings} (estimated in a short trial)", *self.refused.values()])


def build_engine(
    name: str,
    task: Task,
    device: str = "cpu",
    threads: int = 1,
    precision: Precision = "highest",
    *,
    cohort_size: int | None = None,
    examined: bool = False,
) -> TorchEngine:
    """Return the engine with this name.

    If the engine fails on a few examples, or its results differ from torch's results, FedReach uses `sequential`
    instead and issues a Python warning.

    Args:
        name: Name of the engine in `ENGINES`, or ``"auto"`` for the fastest engine (see `choose`).
        task: Model, data and local training.
        device: Device for tensors, such as ``"cpu"`` or ``"cuda"``.
        threads: Number of processes, at least 1.
        precision: Precision of matrix products (see `TorchEngine`).
        cohort_size: Number of clients per round. None: all participants.
        examined: Skip the comparison with torch (see `fedreach.engines.examination`).

    Raises:
        ConfigError: If the engine is unknown or cannot train the model.
        TrainingError: If every engine that ``"auto"`` tries fails.
    """
    if name == "auto":
        name, examined = choose(task, device, threads, precision, cohort_size=cohort_size).name, True
    if name not in ENGINES:
        raise ConfigError(f"Unknown engine {name!r}.{nearest(name, [*ENGINES, 'auto'])}")
    if not examined and (warning := examine_named(name, task, device)) is not None:
        warnings.warn(warning, stacklevel=2)
        name = "sequential"
    return TorchEngine(ENGINES[name], task, device, threads, precision)


def examine_named(name: str, task: Task, device: str = "cpu") -> str | None:
    """Return the warning that `sequential` replaces a named engine, or None if the engine agrees with torch.

    Raises:
        ConfigError: If the engine cannot train the model at all.
    """
    kind = ENGINES.get(name, Sequential)
    if kind is Sequential or not len(task.data.labels):
        return None
    examination = Examination(task, device)
    try:
        why = examination.only_plain or examination.difference(kind)
    except TrainingError as error:
        first_line = str(error.__cause__ or error).partition("\n")[0].rstrip(".")
        why = f"it fails on a few examples ({first_line})"
    if why is None:
        return None
    return f"engine sequential: {name} computes different results from torch for this model: {why}"


def choose(
    task: Task,
    device: str = "cpu",
    threads: int = 1,
    precision: Precision = "highest",
    *,
    cohort_size: int | None = None,
) -> EngineChoice:
    """Return the engine with the shortest expected time per round for cohorts of this size.

    In a short trial, each engine trains clients of median size for two steps in `threads` processes. FedReach excludes
    engines whose results differ from torch on a few examples (see `fedreach.engines.examination`). So results of
    different engines differ only by rounding. Specify the name of an engine to obtain the same bits on every machine.

    Args:
        task: Model, data and local training.
        device: Device for tensors.
        threads: Number of processes.
        precision: Precision of matrix products.
        cohort_size: Number of clients per round. None: all participants.

    Raises:
        ConfigError: If no engine can train the model.
        TrainingError: If every engine fails in training.
    """
    examination = Examination(task, device)
    if examination.only_plain is not None:
        return EngineChoice("sequential", {}, {}, examination.only_plain)
    data, local = task.data, task.local
    ids = data.population.participants
    ids = ids[np.argsort(data.train.sizes[ids], kind="stable")]
    ids = ids[data.train.sizes[ids] > 0]
    k = min(len(ids), cohort_size or len(ids))
    middle = np.sort(ids[(len(ids) - k) // 2 :][:k])
    steps = 1 if local.steps == 1 else STEPS
    trial = replace(task, local=replace(local, steps=steps), seed=0)
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    last: ConfigError | TrainingError | None = None
    for name, kind in ENGINES.items():
        if SLOWER_THAN.get(name, set()) & seconds.keys():
            continue
        try:
            engine = TorchEngine(kind, trial, device, threads, precision)
            if kind is not Sequential and (why := examination.difference(kind)) is not None:
                wrong[name] = why
                refused[name] = f"{name} computes different results from torch for {type(task.module).__name__}: {why}"
                continue
            seconds[name] = _round_seconds(engine, middle, local)
        except (ConfigError, TrainingError) as error:  # vmap fails only in training if it cannot stack the model
            refused[name], last = str(error), error
    if not seconds and last is not None:
        raise last  # the error of `sequential`, which supports any model
    return EngineChoice(min(seconds, key=lambda name: seconds[name]), seconds, refused, None, wrong)


def _round_seconds(engine: TorchEngine, cohort: Ints, local: LocalSGD) -> float:
    """Return the expected seconds of one round of this cohort."""
    device = engine.trainer.device
    sizes, cuda = engine.task.data.train.sizes, device.type == "cuda"
    # CPU time excludes other load on the machine, but it covers this process only.
    clock = time.process_time if engine.threads == 1 and not cuda else time.perf_counter

    def seconds(clients: Ints) -> float:
        terms = (
            engine.solver.prepare(np.zeros((len(clients), engine.num_trainable), np.float32), {}, np.ones(len(clients)))
            if engine.solver.is_stateful
            else {}
        )
        began = clock()
        engine.train(engine.initial, clients, 1, local.lr, terms)
        if cuda:
            torch.cuda.synchronize(device)
        return clock() - began

    clients = cohort[len(cohort) // 2 :][:1]
    seconds(clients)  # warm up
    took = min(seconds(clients) for _ in range(2))
    count = min(len(cohort), int(TRIAL_SECONDS / max(took, 1e-6)))
    if count > 1:  # some engines are faster only for many clients
        clients = cohort[(len(cohort) - count) // 2 :][:count]
        took = min(seconds(clients) for _ in range(REPEATS))
    return float(took * local.expected_steps(sizes[cohort]).sum() / engine.local.expected_steps(sizes[clients]).sum())
