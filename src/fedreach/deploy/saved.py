"""Loading of trained models from run folders and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from fedreach._util import registry
from fedreach._util.errors import ConfigError, RunFolderError, nearest
from fedreach._util.streams import torch_seed
from fedreach.data.preparation import TargetScale
from fedreach.deploy import weights
from fedreach.deploy.fitted_rule import Which
from fedreach.deploy.model import Expected, RunOrigin
from fedreach.deploy.model import TrainedModel as TrainedModel
from fedreach.engines.models.flat import Layout, bind
from fedreach.engines.models.networks import build
from fedreach.engines.models.outputs import is_code, with_functions
from fedreach.engines.models.state import set_constants
from fedreach.experiment.components import code_files
from fedreach.experiment.schema import ModelSection
from fedreach.runs.checkpoint import read_models
from fedreach.runs.folder import CONSTANTS, LAST, RunFolder
from fedreach.runs.identity import check_code, run_of
from fedreach.runs.schema import FederationRecord, RunRecord

# -------------------- Loading a model


def load(
    folder: Path | str,
    which: Which | None = None,
    *,
    cluster: int | None = None,
    base: Path | str | None = None,
    model: Callable[..., nn.Module] | None = None,
    trust_code: bool = False,
) -> TrainedModel:
    """Return the model of a finished run with its preprocessing; its inputs are raw images, tables or tokens.

    Args:
        folder: Run folder, or result of `fedreach export --to safetensors`, which contains one model.
        which: Model to load: ``"last"``, ``"best"`` on participants' held-out data, or ``"refit"``, which was refitted
            on all rows. Default: the refitted model if the run used `population.refit`, else the last model. A file
            contains only one model, which is the default.
        cluster: Number of the cluster, if the run has one model per cluster.
        base: Folder to which file names of custom code are relative, usually the folder of the experiment's TOML file.
            Default: the current folder.
        model: Function or class that builds the module (see `build`), required if the experiment does not name a model.
        trust_code: Run the custom code that the folder refers to, such as ``net.py:Net``. Default: False; FedReach then
            rejects a folder that refers to custom code, unless this process wrote the folder.

    Raises:
        ConfigError: If an argument is invalid, or custom code is missing or not trusted.
        RunFolderError: If the folder does not contain the requested model, or custom code was changed.
    """
    if which is not None and which not in get_args(Which):
        raise ConfigError(
            f"which must be 'last', 'best' or 'refit'; got {which!r}.{nearest(str(which), get_args(Which))}"
        )
    base = Path(base or Path.cwd()).resolve()
    written = _find_exported_file(Path(folder))
    with registry.code_of(folder, trust_code=trust_code):
        read = _of_run if written is None else _of_file
        trained = read(written or Path(folder), which, cluster, base, model)
    trained.origin = replace(trained.origin, trust_code=trust_code)
    return trained


def _of_run(
    folder: Path, which: Which | None, cluster: int | None, base: Path, model: Callable[..., nn.Module] | None
) -> TrainedModel:
    """Return the model of a run folder."""
    run_folder = RunFolder(folder)
    run = run_of(run_folder)
    which = which or ("refit" if _refits(run) else "last")
    federation = run_folder.read(FederationRecord)
    if federation is None:
        raise RunFolderError(f"{folder}: {FederationRecord.FILE} not found. {RESUME_HINT}")
    expected = Expected.of(federation)
    section = ModelSection.model_validate(run.config.get("model", {"name": ""}))
    folders = base, run_folder.path.resolve()
    base = registry.base_of(section.name, *folders)
    net = _build_module(run, section, expected.sample_shape, federation.outputs, folders, model)
    layout = Layout.of(net)
    stored = read_models(run_folder, which, layout)
    if stored is None:
        raise RunFolderError(
            f"{folder} has no {which} model: {which}.safetensors not found. {_why_not(run, which, run_folder)}"
        )
    constants = run_folder.read_tensors(CONSTANTS)
    if constants is not None:
        set_constants(net, constants[0])
    bind(net, torch.from_numpy(stored.vectors[_model_index(folder, len(stored.vectors), cluster)]), layout=layout)
    origin = RunOrigin(run_folder.path.resolve(), which, cluster, base, run, stored.round, _code_name(section, model))
    about = {name: getattr(federation, name) for name in ("outputs", "targets", "target_scale")}
    return _trained(net, expected, {**about, "classes": federation.class_names}, origin)


def _trained(net: nn.Module, expected: Expected, about: Mapping[str, Any], origin: RunOrigin) -> TrainedModel:
    """Return the model of a trained module, each of whose tensors gets its own storage."""
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.data = tensor.data.clone()
    targets, scale = about["targets"], about["target_scale"]
    classes, units = 0 if targets else about["outputs"], None if scale is None else TargetScale.of_json(scale)
    return TrainedModel(net, expected, classes, about["classes"], origin, targets, units)


def _refits(run: RunRecord) -> bool:
    return bool((run.config.get("population") or {}).get("refit"))


def _why_not(run: RunRecord, which: Which, run_folder: RunFolder) -> str:
    """Return why a run lacks a model, and what to do."""
    if which == "refit" and not _refits(run):
        return "The run did not train again on all rows. Use 'last', or run with population.refit = true."
    if which == "best" and (run_folder.path / LAST).exists():
        return "No participant holds out examples, so there is no best model. Use 'last'."
    return RESUME_HINT


def _find_exported_file(path: Path) -> Path | None:
    """Return the file of an exported model, given it or its folder; None for a run folder."""
    if path.suffix == ".safetensors" or path.is_file():
        return path
    if (path / "model.json").exists():
        raise RunFolderError(
            f"{path} is an exported model with its own program: python {path / 'predict.pyz'} FILE. Pass the run "
            "folder, or the result of `fedreach export --to safetensors`."
        )
    return path / weights.FILE if (path / weights.FILE).exists() else None


def _of_file(
    path: Path, which: Which | None, cluster: int | None, base: Path, model: Callable[..., nn.Module] | None
) -> TrainedModel:
    """Return the model of an exported file."""
    stored = weights.read_weights_file(path)
    about, run = stored.about, stored.run()
    if which not in (None, about["model"]) or cluster not in (None, about["cluster"]):
        cluster_name = "" if about["cluster"] is None else f" of cluster {about['cluster']}"
        raise ConfigError(
            f"{path} contains only the model {about['model']!r}{cluster_name}. Remove the name, or pass the run folder."
        )
    section = ModelSection.model_validate(run.config["model"])
    expected = Expected.of_json(about["name"], about)
    net = _build_module(run, section, expected.sample_shape, about["outputs"], (base,), model)
    weights.load_weights(net, stored, path)
    origin = RunOrigin(
        path.resolve(), about["model"], about["cluster"], base, run, about["round"], _code_name(section, model)
    )
    return _trained(net, expected, about, origin)


def _code_name(section: ModelSection, model: Callable[..., nn.Module] | None) -> str | None:
    """Return the name of the user's code that builds the module, or None."""
    return section.name if model is None and ":" in section.name else None


def _build_module(
    run: RunRecord,
    section: ModelSection,
    shape: Any,
    outputs: int,
    folders: tuple[Path, ...],
    model: Callable[..., nn.Module] | None,
) -> nn.Module:
    """Return the module as it was before training."""
    name = section.name
    if model is None and not name:
        raise ConfigError(
            "A Python program created this run, so the run folder does not name the model. Pass `model`, the function "
            "or class that creates the module."
        )
    for code in (name if model is None else "", section.output):
        if is_code(code):
            code_folder = registry.base_of(str(code), *folders)
            check_code(run, str(code), code_folder, code_files(str(code), code_folder))
    factory = model or (registry.find("model", name, registry.base_of(name, *folders)) if ":" in name else name)
    seed = torch_seed(run.seed if section.seed is None else section.seed, "model")
    return build(factory, shape, outputs, seed=seed, options=with_functions(section.options, *folders))


def _model_index(folder: Path | str, count: int, cluster: int | None) -> int:
    """Return the index of the requested model."""
    if count == 1 and cluster is None:
        return 0
    if count == 1:
        raise ConfigError(f"cluster: {folder} has one model for all clients; got {cluster}. Remove `cluster`.")
    if cluster is None or not 0 <= cluster < count:
        raise ConfigError(
            f"{folder} has {count} models, one per cluster: cluster must be from 0 to {count - 1}; got {cluster}. "
            "rounds.jsonl lists the cluster of each participant under 'clusters'; unseen clients have none."
        )
    return cluster


RESUME_HINT = "The run is not finished. Rerun the command to resume it."
