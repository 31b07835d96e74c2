"""Fitted adaptation rules in run folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from numpy.typing import ArrayLike

from fedreach._util import registry
from fedreach._util.arrays import Float32s
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.deploy.adapter import Adapter
from fedreach.experiment.components import make
from fedreach.experiment.schema import Choice
from fedreach.federation.adaptation import trust
from fedreach.federation.base import Adaptation
from fedreach.federation.types import State
from fedreach.runs.folder import ADAPTATION_FILE, RunFolder
from fedreach.runs.identity import run_of
from fedreach.runs.schema import AdaptationRecord, RunRecord

Which = Literal["last", "best", "refit"]
"""Last model, best model on participants' held-out data, or model that was refitted on all rows."""


class SavedRule(NamedTuple):
    """Adaptation rule that was fitted at the end of a run."""

    rule: Adaptation
    state: State
    name: str  # of the rule in the experiment, such as "label_shift" or "my.py:Mine"
    run: RunRecord
    round: int  # of the model for which it was fitted


def read(
    folder: Path | str,
    which: Which = "last",
    *,
    cluster: int | None = None,
    base: Path | None = None,
    trust_code: bool = False,
) -> SavedRule:
    """Return the fitted rule for a model of a finished run; the arguments are as in `load`.

    Raises:
        RunFolderError: If the folder does not contain a fitted rule for the requested model.
        ConfigError: If the rule needs labels of unseen clients.
    """
    run_folder = RunFolder(Path(folder))
    run, record = run_of(run_folder), run_folder.read(AdaptationRecord)
    stored = run_folder.read_tensors(ADAPTATION_FILE)
    if record is None or stored is None:
        raise RunFolderError(f"{folder} has no adaptation rule: {ADAPTATION_FILE} not found. {_why_not_fitted(run)}")
    choice = Choice.model_validate(run.config["method"]["adaptation"])
    with registry.code_of(folder, trust_code=trust_code):
        rule: Adaptation = make(
            "adaptation", choice, registry.base_of(choice.name, base or Path.cwd(), run_folder.path.resolve())
        )
    if rule.learns_labels and rule.is_reference:
        raise ConfigError(
            f"{folder}: {type(rule).__name__} needs labels of the clients that it adapts, so it cannot be deployed. "
            "Export or load a method with adaptation 'label_shift'."
        )
    head = which if cluster is None else f"{which}/{cluster}"
    state = {key[len(head) + 1 :]: value for key, value in stored[0].items() if key.startswith(f"{head}/")}
    if not state or any("/" in key for key in state):
        raise RunFolderError(f"{folder}: {ADAPTATION_FILE} has no rule {head!r}; it has {_heads(stored[0])}.")
    return SavedRule(rule, state, choice.name, run, record.rounds[which])


def load(
    folder: Path | str,
    which: Which = "last",
    *,
    cluster: int | None = None,
    base: Path | None = None,
    trust_code: bool = False,
    model: Callable[[Float32s], tuple[ArrayLike, ArrayLike | None]] | None = None,
) -> Adapter:
    """Return an adapter with the fitted rule of a finished run.

    Args:
        folder: Run folder, which contains the model and the fitted rule.
        which: Model for which the rule was fitted: the last, the best or the refitted model.
        cluster: Number of the cluster, if the run has one model per cluster.
        base: Folder to which the file name of a custom rule is relative. Default: the current folder.
        trust_code: Run the custom code that the run folder refers to, see `fedreach.deploy.saved.load`.
        model: Function that runs the model, see `Adapter`.

    Raises:
        RunFolderError: If the folder does not contain a fitted rule for the requested model.
        ConfigError: If the rule needs labels of unseen clients.
    """
    saved = read(folder, which, cluster=cluster, base=base, trust_code=trust_code)
    return Adapter(saved.rule, saved.state, model)


def check_supported(saved: SavedRule) -> None:
    """Raise ConfigError if participants do not support a rule."""
    if not trust.is_supported(saved.state):
        labels = "" if saved.rule.learns_labels else "If clients learn some labels, try 'few_shot'. "
        raise ConfigError(
            f"Participants of this run do not support {saved.name}: their labels show no significant gain. "
            f"{labels}--force exports the rule anyway."
        )


def _why_not_fitted(run: RunRecord) -> str:
    """Return the remedy for a run without a fitted rule."""
    adaptation = run.config["method"]["adaptation"]
    if adaptation is None or Choice.model_validate(adaptation).name == "none":
        return "This run did not fit an adaptation rule. Run with method.adaptation, such as 'label_shift'."
    return "The run is not finished. Rerun the command to resume it."


def _heads(names: Iterable[str]) -> str:
    return ", ".join(repr(head) for head in dict.fromkeys(name.rpartition("/")[0] for name in names)) or "none"
