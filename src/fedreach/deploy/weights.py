"""Files with weights of trained models, and files with graphs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn

from fedreach._util import files, registry
from fedreach._util.arrays import AnyArray
from fedreach._util.errors import ConfigError, DataError, regular
from fedreach._util.files import UNFINISHED, digest_of
from fedreach.deploy.fitted_rule import SavedRule
from fedreach.engines.models.draws import changed_generators, generator_states, preserve_generators
from fedreach.engines.models.state import array_of, tensor_of
from fedreach.engines.trainer import logits_and_features
from fedreach.experiment.components import make
from fedreach.experiment.schema import Choice
from fedreach.federation.base import Adaptation
from fedreach.runs.schema import RunRecord

# -------------------- A model as one safetensors file
# The tensors are the weights; the metadata describe how to build the model. Metadata ``fedreach`` is JSON: the content
# of ``model.json`` of other exports (the model's origin, the form of its examples, its classes), and in addition
#
# - ``construction``: ``model``, the table of the experiment; ``data``, its columns of client and label; ``code``, the
#   sha256 of the user's own files that are needed,
# - ``adaptation``: the component ``method.adaptation`` of the experiment, or null.
#
# The tensors are those of the module's ``state_dict()`` by name, its buffers that are not persistent, and
# ``adaptation/NAME``, the state fitted on the participants. A type that numpy does not know, such as bfloat16, is
# stored as integers with the same bits.

FILE, KEY, FITTED = "model.safetensors", "fedreach", "adaptation/"


class Stored(NamedTuple):
    """Description and tensors in a file."""

    about: dict[str, Any]
    tensors: dict[str, AnyArray]

    def run(self) -> RunRecord:
        """Return the fields of the run's record that the model requires."""
        construction, config = self.about["construction"], {"name": self.about["name"]}
        config |= {"model": construction["model"], "method": {"adaptation": self.about["adaptation"]}}
        return RunRecord(
            method=self.about["method"],
            seed=self.about["seed"],
            config=config,
            code=construction["code"],
            environment={},
            git=None,
        )


def weights_file_content(net: nn.Module, run: RunRecord, saved: SavedRule | None, about: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file with a model and its rule."""
    config = run.config
    metadata = {
        **about,
        "construction": {
            "model": config.get("model", {"name": ""}),
            "code": dict(run.code),
        },
        "adaptation": None if saved is None else config["method"]["adaptation"],
    }
    tensors = {name: array_of(tensor) for name, tensor in _state(net).items()}
    fitted = {} if saved is None else saved.state
    tensors |= {FITTED + name: np.asarray(value) for name, value in fitted.items()}
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    return save(tensors, {KEY: json.dumps(with_digest(metadata, tensors))})


def with_digest(metadata: Mapping[str, Any], tensors: Mapping[str, AnyArray]) -> dict[str, Any]:
    """Return the metadata of a file, with the digest of its tensors and all other metadata."""
    unsigned = {key: value for key, value in json.loads(json.dumps(metadata)).items() if key != "sha256"}
    return {**unsigned, "sha256": digest_of(tensors, unsigned)}


def read_weights_file(path: Path) -> Stored:
    """Read a file that `weights_file_content` wrote.

    Raises:
        DataError: If `weights_file_content` did not write the file, or the file was altered.
    """
    try:
        with safe_open(regular(path), framework="numpy") as file:
            about = json.loads(file.metadata()[KEY])
            about["construction"], about["adaptation"]  # missing in other files
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            is_complete = about == with_digest(about, tensors)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is not a model of `fedreach export --to safetensors` ({error}). Pass an exported model or a run "
            "folder."
        ) from error
    if not is_complete:
        raise DataError(f"{path} was altered. Copy the file again, or export the model again.")
    return Stored(about, tensors)


def load_weights(net: nn.Module, stored: Stored, path: Path) -> None:
    """Load stored weights into a new module."""
    module_state, persistent = _state(net), net.state_dict().keys()
    try:
        state = {
            name: tensor_of(values, module_state[name].dtype)
            for name, values in stored.tensors.items()
            if not name.startswith(FITTED)
        }
        for name in module_state.keys() - persistent:
            module_state[name].copy_(state.pop(name))
        net.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise DataError(
            f"{path} has the weights of another model: {error}. Pass the model that was trained."
        ) from error


def _state(net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module by name: its `state_dict`, and buffers that are not persistent."""
    return {**dict(net.named_buffers()), **net.state_dict()}


def rule(path: Path, base: Path, *, trust_code: bool) -> SavedRule | None:
    """Return the adaptation rule in a file, or None if the file has no rule."""
    stored = read_weights_file(path)
    if stored.about["adaptation"] is None:
        return None
    choice = Choice.model_validate(stored.about["adaptation"])
    with registry.code_of(path, trust_code=trust_code):
        adaptation: Adaptation = make("adaptation", choice, base)
    state = {name[len(FITTED) :]: value for name, value in stored.tensors.items() if name.startswith(FITTED)}
    return SavedRule(adaptation, state, choice.name, stored.run(), stored.about["round"])


# -------------------- A model as graphs for processes with torch or onnxruntime alone

ABOUT = "fedreach.json"
COLOR = re.compile(r"\x1b\[[0-9;]*m")
ENDINGS = {"torch": ".pt2", "onnx": ".onnx"}


class Features(nn.Module):
    """Module that also returns the input of its last linear layer, like `logits_and_features`."""

    def __init__(self, net: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.net = net
        self.has_features = logits_and_features(net, example)[1] is not None

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        if not self.has_features:
            return (self.net(inputs).float(),)
        captured: list[Tensor] = []
        last = [part for part in self.net.modules() if isinstance(part, nn.Linear)][-1]
        with last.register_forward_pre_hook(lambda _, args: captured.append(args[0])):
            logits = self.net(inputs).float()
        return logits, captured[0]


def content(
    module: nn.Module, example: Tensor, library: str, about: Mapping[str, Any], outputs: Sequence[str] = ("logits",)
) -> bytes:
    """Return the bytes of a file with a graph that accepts any number of examples, and its description.

    Args:
        module: Module in evaluation mode.
        example: Two examples with which torch traces the module.
        library: ``"torch"``, for a graph that `torch.export.load` reads, or ``"onnx"``.
        about: Description of the model.
        outputs: Names of the outputs of an ONNX graph. The name of its input is ``samples``.

    Raises:
        ConfigError: If torch.export cannot trace the module, the module draws random numbers, the ONNX writer is not
            installed, or onnxruntime cannot run the graph.
    """
    _refuse_draws(module, example)
    with _quiet():
        try:
            dynamic = ({0: torch.export.Dim("m")},)
            program = torch.export.export(module, (example,), dynamic_shapes=dynamic, strict=False)
        except Exception as error:  # a user's module may raise anything
            raise ConfigError(
                f"torch.export cannot trace the module of this model: {type(error).__name__}: {_first_line(error)}. "
                "Avoid Python code that depends on values or on the number of samples, or pickle the model for "
                "processes that have FedReach."
            ) from error
        if library == "onnx":
            written = _onnx(program, about, outputs)
            _check_onnx_runs(written, example)
            return written
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files={ABOUT: json.dumps(about, indent=1)})
        return buffer.getvalue()


def _refuse_draws(module: nn.Module, example: Tensor) -> None:
    """Reject a module that draws random numbers in evaluation, as a graph draws them without a seed or not at all.

    Raises:
        ConfigError: If the module draws random numbers.
    """
    before = generator_states(example.device)
    with torch.no_grad(), preserve_generators(example.device):
        module(example)
        drawn = changed_generators(before, example.device)
    if drawn:
        raise ConfigError(
            f"The model draws random numbers in evaluation (by {' and '.join(drawn)}). An exported graph cannot seed "
            "them as FedReach does. Use --to safetensors, or draw only in training mode."
        )


def _onnx(program: torch.export.ExportedProgram, about: Mapping[str, Any], outputs: Sequence[str]) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch.onnx needs it)
    except ImportError as error:
        raise ConfigError(
            f"Writing ONNX needs {error.name}, which is not installed. Run: pip install 'fedreach[onnx]'."
        ) from error
    try:
        exported = torch.onnx.export(program, dynamo=True, input_names=["samples"], output_names=outputs, verbose=False)
    except Exception as error:  # an operation that ONNX lacks
        raise ConfigError(
            f"torch.onnx cannot write this model: {type(error).__name__}: {_first_line(error)}. Use --to torch."
        ) from error
    assert exported is not None  # with dynamo
    onnx.helper.set_model_props(exported.model_proto, {ABOUT: json.dumps(about)})
    written: bytes = exported.model_proto.SerializeToString()
    return written


def _check_onnx_runs(graph: bytes, example: Tensor) -> None:
    """Reject a graph that onnxruntime, if installed, cannot run, such as one with operations in bfloat16.

    Raises:
        ConfigError: If onnxruntime cannot run the graph.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    try:
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        session.run(None, {"samples": example.cpu().numpy()})
    except Exception as error:  # onnxruntime has its own exception classes
        raise ConfigError(f"onnxruntime cannot run this model: {_first_line(error)}. Use --to torch.") from error


def write_whole(path: Path, text: bytes | str) -> None:
    """Write a file completely, or leave no file if the write fails.

    Raises:
        ConfigError: If the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        files.make_folders(path.parent)
        files.put(temporary, text.encode() if isinstance(text, str) else text)
        files.replace(temporary, path)
        files.sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Choose another file.") from error
    finally:
        with suppress(OSError):
            files.unlink(temporary)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about its LSTM layers, its serialization, and optional libraries."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without the colors that torch.onnx gives it."""
    return COLOR.sub("", f"{error}").strip().partition("\n")[0].rstrip(".")
