"""A model as one file for processes with torch or onnxruntime alone: graphs, and what they say of themselves."""

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
from typing import Any

import torch
from torch import Tensor, nn

from fedreach.engines.trainer import logits_and_features
from fedreach.errors import ConfigError
from fedreach.models.draws import drawn_from, generators_kept, states
from fedreach.storage import disk
from fedreach.storage.files import UNFINISHED

ABOUT = "fedreach.json"
COLOR = re.compile(r"\x1b\[[0-9;]*m")
ENDINGS = {"torch": ".pt2", "onnx": ".onnx"}


class Features(nn.Module):
    """A module that also returns what comes to its last linear layer, as `logits_and_features` does."""

    def __init__(self, net: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.net = net
        self.has_features = logits_and_features(net, example)[1] is not None

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        if not self.has_features:
            return (self.net(inputs).float(),)
        seen: list[Tensor] = []
        last = [part for part in self.net.modules() if isinstance(part, nn.Linear)][-1]
        with last.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
            logits = self.net(inputs).float()
        return logits, seen[0]


def content(
    module: nn.Module, example: Tensor, library: str, about: Mapping[str, Any], outputs: Sequence[str] = ("logits",)
) -> bytes:
    """Return a file's content: a graph that takes any number of samples and tells what it is.

    Args:
        module: In evaluation mode.
        example: Two samples.
        library: ``"torch"``, for `torch.export.load`; or ``"onnx"``.
        about: What the file says.
        outputs: Names of what an ONNX graph returns; its input is ``samples``.

    Raises:
        ConfigError: If torch.export cannot follow the module, it draws random numbers, what writes ONNX is missing, or
            onnxruntime cannot run it.
    """
    _refuse_draws(module, example)
    with _quiet():
        try:
            dynamic = ({0: torch.export.Dim("m")},)
            program = torch.export.export(module, (example,), dynamic_shapes=dynamic, strict=False)
        except Exception as error:  # whatever the module of a user does
            raise ConfigError(
                f"torch.export cannot follow the module of this model: {type(error).__name__}: {_first(error)}. Write "
                "it without Python that depends on values or on the number of samples; or pickle the model, for "
                "processes that have FedReach."
            ) from error
        if library == "onnx":
            written = _onnx(program, about, outputs)
            _check_onnx_runs(written, example)
            return written
        found = io.BytesIO()
        torch.export.save(program, found, extra_files={ABOUT: json.dumps(about, indent=1)})
        return found.getvalue()


def _refuse_draws(module: nn.Module, example: Tensor) -> None:
    """Refuse a module that draws random numbers in evaluation, which a graph would draw without a seed, or never again.

    Raises:
        ConfigError: If it does.
    """
    before = states(example.device)
    with torch.no_grad(), generators_kept(example.device):
        module(example)
        drawn = drawn_from(before, example.device)
    if drawn:
        raise ConfigError(
            f"The model draws random numbers in evaluation (by {' and '.join(drawn)}), which FedReach seeds by each "
            "example and a graph cannot. Export it --to safetensors, or draw none where self.training is False."
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
        made = torch.onnx.export(program, dynamo=True, input_names=["samples"], output_names=outputs, verbose=False)
    except Exception as error:  # an operation that ONNX has not
        raise ConfigError(
            f"torch.onnx cannot write this model: {type(error).__name__}: {_first(error)}. Export it --to torch."
        ) from error
    assert made is not None  # with dynamo
    onnx.helper.set_model_props(made.model_proto, {ABOUT: json.dumps(about)})
    written: bytes = made.model_proto.SerializeToString()
    return written


def _check_onnx_runs(graph: bytes, example: Tensor) -> None:
    """Refuse a graph that onnxruntime does not run, where that is installed: it lacks operations in bfloat16, say.

    Raises:
        ConfigError: If it does not.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    try:
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        session.run(None, {"samples": example.cpu().numpy()})
    except Exception as error:  # it has classes of its own for each reason
        raise ConfigError(f"onnxruntime cannot run this model: {_first(error)}. Export it --to torch.") from error


def put(path: Path, text: bytes | str) -> None:
    """Write a file, whole or not at all.

    Raises:
        ConfigError: If it cannot be written there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        disk.make_folders(path.parent)
        disk.put(temporary, text.encode() if isinstance(text, str) else text)
        disk.replace(temporary, path)
        disk.sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Name another one.") from error
    finally:
        with suppress(OSError):
            disk.unlink(temporary)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch says of its own LSTM layers, its own serialisation, and of libraries that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first(error: Exception) -> str:
    """Return the first line of an error, without the colors that torch.onnx gives it."""
    return COLOR.sub("", f"{error}").strip().partition("\n")[0].rstrip(".")
