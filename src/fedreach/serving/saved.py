"""The fitted rule that lies beside the model in the folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from numpy.typing import ArrayLike

from fedreach import registry
from fedreach.arrays import Float32s
from fedreach.config.parts import make
from fedreach.config.sections import Choice
from fedreach.errors import ConfigError, RunFolderError
from fedreach.federation.protocols import Serving
from fedreach.federation.serving import trust
from fedreach.federation.traits import Traits
from fedreach.federation.values import State
from fedreach.runs.folder import SERVING, RunFolder
from fedreach.runs.identity import run_of
from fedreach.runs.schema import RunRecord, ServingRecord
from fedreach.serving.adapter import Adapter

Which = Literal["last", "best", "refit"]
"""The last model, the best by participants' held-out data, or the one that was trained once more on all rows."""


class SavedRule(NamedTuple):
    """A rule as it was fitted at the end of a run."""

    rule: Serving
    state: State
    name: str  # of the rule in the experiment, such as "label_shift" or "my.py:Mine"
    run: RunRecord
    round: int  # of the model that it was fitted for


def read(
    folder: Path | str, which: Which = "last", *, cluster: int | None = None, base: Path | None = None
) -> SavedRule:
    """Return the rule that was fitted for a model of a finished run; arguments as those of `load`.

    Raises:
        RunFolderError: If the folder holds no fitted rule of that model.
        ConfigError: If the rule learns from labels of those that it serves.
    """
    held = RunFolder(Path(folder))
    run, record, stored = run_of(held), held.read(ServingRecord), held.read_tensors(SERVING)
    if record is None or stored is None:
        raise RunFolderError(f"{folder} holds no serving rule ({SERVING}). {_why(run)}")
    choice = Choice.model_validate(run.config["method"]["serving"])
    rule: Serving = make("serving", choice, registry.base_of(choice.name, base or Path.cwd(), held.path.resolve()))
    if Traits.of(rule).learns_labels and Traits.of(rule).is_reference:
        raise ConfigError(
            f"{folder}: {type(rule).__name__} learns from labels of those that it serves: a reference, which none can "
            "deploy. Export or load a method with serving 'label_shift'."
        )
    head = which if cluster is None else f"{which}/{cluster}"
    state = {key[len(head) + 1 :]: value for key, value in stored[0].items() if key.startswith(f"{head}/")}
    if not state or any("/" in key for key in state):
        raise RunFolderError(f"{folder}: {SERVING} holds no single rule {head!r}; it has {_heads(stored[0])}.")
    return SavedRule(rule, state, choice.name, run, record.rounds[which])


def load(
    folder: Path | str,
    which: Which = "last",
    *,
    cluster: int | None = None,
    base: Path | None = None,
    model: Callable[[Float32s], tuple[ArrayLike, ArrayLike | None]] | None = None,
) -> Adapter:
    """Return the adapter of a finished run.

    Args:
        folder: The run folder, which holds the fitted rule beside the model.
        which: Of the last or the best model.
        cluster: Number of the model, where the run has one a cluster.
        base: Folder that the name of a rule of one's own is relative to; default: the current one.
        model: See `Adapter`.

    Raises:
        RunFolderError: If the folder holds no fitted rule of that model.
        ConfigError: If the rule learns from labels of those that it serves.
    """
    saved = read(folder, which, cluster=cluster, base=base)
    return Adapter(saved.rule, saved.state, model)


def check_supported(saved: SavedRule) -> None:
    """Refuse a rule that participants do not support, by a ConfigError."""
    if not trust.is_supported(saved.state):
        labels = "" if Traits.of(saved.rule).learns_labels else "Where clients learn some labels, try 'few_shot'. "
        raise ConfigError(
            f"Participants of this run do not support {saved.name}: by their own labels, no gain is decided. {labels}"
            "With --force the rule is written all the same."
        )


def _why(run: RunRecord) -> str:
    """Return what to do about a run without a fitted rule."""
    said = run.config["method"]["serving"]
    if said is None or Choice.model_validate(said).name == "none":
        return "The run serves clients by the model as it is. Run with method.serving, such as 'label_shift'."
    return "The run is not finished: the same command again goes on with it."


def _heads(names: Iterable[str]) -> str:
    return ", ".join(repr(head) for head in dict.fromkeys(name.rpartition("/")[0] for name in names)) or "none"
