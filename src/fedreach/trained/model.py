"""A trained model as a torch module that takes raw samples, and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import fedreach
from fedreach import registry
from fedreach.arrays import AnyArray, Float32s, Floats
from fedreach.data.target_scale import TargetScale
from fedreach.engines.behaviour import TRIED, batches_of, mixes_examples
from fedreach.engines.several import add_hooks
from fedreach.engines.trainer import EVALUATION_BATCH, logits_and_features
from fedreach.errors import ConfigError, DataError, RunFolderError
from fedreach.federation.serving.softmax import log_softmax
from fedreach.models.draws import evaluated
from fedreach.runs.folder import SERVING
from fedreach.runs.schema import RunRecord
from fedreach.serving.adapter import Adapter
from fedreach.serving.saved import SavedRule, Which, read
from fedreach.trained import weights
from fedreach.trained.file import content, put
from fedreach.trained.inputs import Expected, Units


@dataclass(frozen=True)
class RunOrigin:
    """Where a model is from."""

    folder: Path  # of the run, or the file that `fedreach export --to safetensors` wrote
    which: Which
    cluster: int | None
    base: Path  # that names of the user's own code are relative to
    run: RunRecord
    round: int  # after which it was the model
    code: str | None  # the name of the user's own code that the module is made by


class Answers(NamedTuple):
    """What a model says of m samples: the arguments of `Adapter.fit` and the like, in their order."""

    logits: Floats  # (m, c)
    features: Floats | None  # (m, h) of the layer before the last, where it is a linear one
    inputs: Float32s | None  # (m, ...) as the model gets them; None of tokens


class TrainedModel(nn.Module):
    """The model of a run, whole: what makes inputs of raw samples, the trained module, and names; see `load`.

    It is in evaluation mode and its parameters want no gradient. Called, it returns the (m, c) logits of raw samples,
    or the (m, t) numbers that it predicts:

    - images: (m, C, H, W) uint8, 0 to 255;
    - a table: (m, k) float64, one number for each of its `columns`, which `raw` makes of a table: a number as it is,
      of a word the place of its category, -1 for a word that no participant had, nan where it is missing;
    - features: (m, ...) float32; tokens: (m, T) whole numbers;
    - several inputs: records of bytes, which `raw` makes of a dictionary or a tuple of arrays.

    Where labels stood at positions, logits are (m, positions..., c), and so is all that comes of them.

    Attributes:
        inputs: The module that makes inputs of raw samples.
        net: The module that was trained.
        num_classes: c; 0 where it predicts numbers,
        targets: t of them; None where it tells classes.
        scale: On which these were learned; None: as they are. `net` returns numbers on it,
        units: and this makes of them numbers in the units of their columns.
        class_names: (c,) what classes are called; None where they are numbers.
        mixes: Whether outputs for a sample depend on its batch, so that each client needs batches of its own.
        origin: The run that it is from.
    """

    def __init__(
        self,
        net: nn.Module,
        expected: Expected,
        num_classes: int,
        class_names: Any,
        origin: RunOrigin,
        targets: int | None = None,
        scale: TargetScale | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.net = expected.module(), net
        self.expected, self.num_classes, self.origin = expected, num_classes, origin
        self.targets, self.scale = targets, scale
        self.units: nn.Module = nn.Identity() if scale is None else Units(scale)
        add_hooks(net, expected.layout, expected.positions, num_classes)
        self.class_names: tuple[str, ...] | None = None if class_names is None else tuple(class_names)
        self.mixes = mixes_examples(net, self._several_inputs())
        self.requires_grad_(False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.units(self.net(self.inputs(x)).float())
        return logits

    def _several_inputs(self) -> Tensor:
        """Return inputs of the module, which differ in size and sign where they are numbers."""
        x: Tensor = self.inputs(self.expected.example())[:1].repeat_interleave(TRIED, 0)
        if x.is_floating_point():
            steps = torch.arange(1, TRIED + 1, device=x.device)
            x += torch.where(steps % 2 == 1, steps, -steps).view(-1, *[1] * (x.dim() - 1))
        return x

    def raw(self, samples: Any) -> Tensor:
        """Return what the model is called with: raw samples as a tensor.

        Args:
            samples: A table of pandas, polars or pyarrow, or a dictionary of a list for each column, where the model
                was trained on one; or else an array or a tensor.

        Raises:
            ConfigError: If a column is missing, or it is no table.
            DataError: If the samples are not like those that the model was trained on.
        """
        return self.expected.raw(samples)

    def predict(self, samples: Any) -> AnyArray:
        """Return the (m,) names of the samples' classes, or numbers where classes have no names; see `raw`.

        Where numbers were learnt, it is these, (m,) floats, or (m, t) of several.
        """
        said = self.logits(samples)
        if self.targets is not None:
            return said[:, 0] if self.targets == 1 else said
        classes = said.argmax(axis=-1)
        names: AnyArray = classes if self.class_names is None else np.array(self.class_names)[classes]
        return names

    def predict_proba(self, samples: Any) -> Floats:
        """Return the (m, c) probabilities of the classes; see `raw`.

        Raises:
            ConfigError: If the model predicts numbers.
        """
        if self.targets is not None:
            raise ConfigError("The model predicts numbers, which have no probabilities. Call predict.")
        logits = self.logits(samples)
        found: Floats = np.exp(log_softmax(logits.reshape(-1, self.num_classes))).reshape(logits.shape)
        return found

    def logits(self, samples: Any) -> Floats:
        """Return the (m, c) logits of samples, see `raw`, or the (m, t) numbers that are predicted, in float64."""
        x = self._asked(samples)
        if not len(x):
            return np.empty((0, *self.expected.positions, self.targets or self.num_classes))
        try:
            with torch.no_grad():
                logits = torch.cat(
                    [
                        self.units(outputs.float())
                        for part in batches_of(x, EVALUATION_BATCH, self.mixes)
                        for outputs in evaluated(self.net, self.inputs(part))
                    ]
                )
        except (RuntimeError, IndexError) as error:
            raise self._does_not_take(error) from error
        return logits.cpu().numpy().astype(np.float64)

    def answers(self, samples: Any) -> Answers:
        """Return all that an `adapter` wants to know of a client's samples; see `raw`."""
        x = self._asked(samples)
        try:
            with torch.no_grad():
                inputs = self.inputs(x)
            logits, features = logits_and_features(self.net, inputs, even=self.mixes)
        except (RuntimeError, IndexError) as error:
            raise self._does_not_take(error) from error
        return Answers(logits, features, inputs.cpu().numpy() if inputs.is_floating_point() else None)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """(d,) names of what the module is given, where the model was trained on a table."""
        preparation = self.expected.preparation
        return None if preparation is None else preparation.feature_names

    @property
    def columns(self) -> tuple[str, ...] | None:
        """(k,) names of the columns that a table must have, where the model was trained on one."""
        preparation = self.expected.preparation
        return None if preparation is None else tuple(column.name for column in preparation.used)

    @property
    def serving(self) -> SavedRule | None:
        """The serving rule that was fitted for the model, from the run folder; None where the run has none.

        Raises:
            RunFolderError: If the folder is not there any more.
            ConfigError: If the rule learns from labels of those that it serves.
        """
        origin = self.origin
        if origin.folder.is_file():
            return weights.rule(origin.folder, origin.base)
        if (origin.folder / SERVING).exists():
            return read(origin.folder, origin.which, cluster=origin.cluster, base=origin.base)
        if not origin.folder.exists():
            raise RunFolderError(f"{origin.folder}, where the serving rule lay, is not there any more. Put it back.")
        return None

    def adapter(self) -> Adapter:
        """Return one client's own use of the model: ``adapter.fit(*model.answers(samples))``, and `predict` likewise.

        Raises:
            ConfigError: If the run serves clients by the model as it is, or the rule learns from their labels.
        """
        saved = self.serving
        if saved is None:
            raise ConfigError(
                f"{self.origin.folder} holds no serving rule: its clients are served by the model as it is. Call "
                "predict, or run with method.serving, such as 'label_shift'."
            )
        return self.adapter_of(saved)

    def adapter_of(self, saved: SavedRule) -> Adapter:
        """Return one client's own use of the model by a rule that was fitted for it."""
        return Adapter(saved.rule, saved.state, self._again)

    def save(self, path: Path | str) -> None:
        """Write the model as a file for processes with torch alone, which `torch.export.load` reads.

        The file takes any number of samples. Beside the graph it holds ``fedreach.json``: where the model is from, what
        its samples are like, and names of classes, columns and their categories.

        Args:
            path: Ends with ``.pt2``; what stands there is written over.

        Raises:
            ConfigError: If the path does not end so, or torch.export cannot follow the module.
        """
        self._check_mode()
        self.expected.refuse_form("A .pt2 file")
        target = Path(path)
        if target.suffix != ".pt2":
            raise ConfigError(f"The file of a model must end with .pt2, as torch.export has it; got {target.name}.")
        example = self.expected.example().to(next(self.parameters()).device)
        put(target, content(self, example, "torch", self.about()))

    def about(self, rule: str | None = None) -> dict[str, Any]:
        """Return what an exported model says of itself, as plain JSON values.

        Args:
            rule: The serving rule that goes with it, for people to read.
        """
        run, table = self.origin.run, self.expected.preparation
        return {
            "fedreach": fedreach.__version__,
            "name": self.expected.name,
            "method": run.method,
            "seed": run.seed,
            "model": self.origin.which,
            "cluster": self.origin.cluster,
            "round": self.origin.round,
            "rule": rule,
            "outputs": self.targets or self.num_classes,
            "mixes": self.mixes,
            "targets": self.targets,
            "target_scale": None if self.scale is None else self.scale.to_json(),
            "classes": None if self.class_names is None else list(self.class_names),
            "client_column": None if table is None or table.client is None else table.client.name,
            "label_columns": [] if table is None else [each.name for each in table.labels],
            **self.expected.to_json(),
        }

    def extra_repr(self) -> str:
        origin = self.origin
        cluster = "" if origin.cluster is None else f", cluster {origin.cluster}"
        return f"{origin.run.method} on {self.expected.name}, seed {origin.run.seed}, {origin.which}{cluster}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Name the user's own code first, so that a process that unpickles the model finds the classes in it."""
        return _blank, (self.origin.code, self.origin.base), self.__dict__

    def _asked(self, samples: Any) -> Tensor:
        self._check_mode()
        return self.raw(samples).to(next(self.net.parameters()).device)

    def _check_mode(self) -> None:
        if self.training:
            raise ConfigError("The model is in training mode, in which it says other things. Call model.eval() first.")

    def _does_not_take(self, error: Exception) -> DataError:
        return DataError(
            f"The model does not take these samples, though they look like those of {self.expected.name!r} "
            f"({f'{error}'.rstrip('.')}). Give samples with the range of values that it was trained on."
        )

    def _again(self, inputs: Float32s) -> tuple[Floats, Floats | None]:
        """Return logits and features of inputs that a rule has changed."""
        x = torch.from_numpy(inputs).to(next(self.net.parameters()).device)
        return logits_and_features(self.net, x, even=self.mixes)


def _blank(code: str | None, base: Path) -> TrainedModel:
    """Return a model to be filled, once the user's own code is imported."""
    if code is not None:
        registry.load_users(code, base)
    return TrainedModel.__new__(TrainedModel)
