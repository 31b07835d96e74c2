"""Trained models that predict raw examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

import fedreach
from fedreach._util import registry
from fedreach._util.arrays import AnyArray, Float32s, Floats
from fedreach._util.errors import ConfigError, DataError, RunFolderError
from fedreach.data.preparation import Preparation, TargetScale
from fedreach.data.samples import RawSamples, SampleFormat, form_of
from fedreach.deploy import weights
from fedreach.deploy.adapter import Adapter
from fedreach.deploy.fitted_rule import SavedRule, Which, read
from fedreach.deploy.predictions import check_finite
from fedreach.deploy.weights import content, write_whole
from fedreach.engines.batches import scaling
from fedreach.engines.models.draws import evaluate_examples
from fedreach.engines.observation import TRIAL_EXAMPLES, batches_of, mixes_examples
from fedreach.engines.several import add_hooks
from fedreach.engines.trainer import EVALUATION_BATCH, logits_and_features
from fedreach.experiment.schema import Choice
from fedreach.federation.adaptation.base import log_softmax
from fedreach.runs.schema import FederationRecord, RunRecord

# -------------------- Modules that turn raw examples into a model's inputs


class Expected(SampleFormat):
    """Required format of examples, for models in torch."""

    @classmethod
    def of(cls, record: FederationRecord) -> Self:
        """Return the format of a run's training examples.

        Raises:
            RunFolderError: If the run folder does not contain the format, because its clients kept their data private.
        """
        dataset, name = record.dataset, record.dataset["name"]
        if "shape" not in dataset:
            raise RunFolderError(
                f"{record.FILE} does not describe the examples of {name!r}. The clients did not report them, or an "
                "earlier version of FedReach wrote the file. Build the module yourself, and load its weights from "
                "last.safetensors with safetensors.torch.load_file."
            )
        prepared = None if record.preparation is None else Preparation.of_json(record.preparation)
        scale = tuple(dataset["mean"]), tuple(dataset["std"])
        return cls(name, dataset["kind"], tuple(dataset["shape"]), *scale, prepared, *form_of(dataset))

    def module(self) -> nn.Module:
        """Return the module that converts raw examples to inputs."""
        if self.preparation is not None:
            return Columns(self.preparation)
        if self.kind == "image":
            return Pixels(self.mean, self.std)
        return Tokens() if self.kind == "tokens" else nn.Identity()

    def example(self) -> Tensor:
        """Return two raw examples that contain only zeros."""
        return torch.zeros(2, *self.raw_shape, dtype=getattr(torch, self.dtype))

    def raw(self, samples: Any) -> Tensor:
        """Return raw examples as a tensor, see `SampleFormat.array`; return a tensor from this method unchanged."""
        if isinstance(samples, Tensor):
            samples = samples.detach().cpu().numpy()
            has_raw_form = self.preparation is not None or self.layout is not None
            if has_raw_form and samples.dtype == self.dtype and samples.shape[1:] == self.raw_shape:
                samples = samples.view(RawSamples)
        return torch.from_numpy(self.array(samples))


class Pixels(nn.Module):
    """Module that normalizes (m, C, H, W) uint8 images per channel to (x / 255 - mean) / std, as in training.

    Example:
        >>> Pixels([0.5], [0.25])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).round().tolist()
        [[[[-2.0, 2.0]]]]
    """

    factor: Tensor  # (C, 1, 1)
    offset: Tensor  # (C, 1, 1)

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        factor, offset = scaling(255.0, mean, std, 3)
        self.register_buffer("factor", factor)
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.offset, x.float(), self.factor)


class Units(nn.Module):
    """Module that converts (m, t) outputs from the scale of training to float64 in the units of the columns.

    Example:
        >>> Units(TargetScale((5.0,), (3.0,)))(torch.tensor([[1.0]]))
        tensor([[8.]], dtype=torch.float64)
    """

    mean: Tensor  # (t,)
    sd: Tensor  # (t,)

    def __init__(self, scale: TargetScale) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(scale.mean, dtype=torch.float64))
        self.register_buffer("sd", torch.tensor(scale.sd, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.double() * self.sd + self.mean


class Tokens(nn.Module):
    """Module that converts (m, T) whole numbers of any type to int64."""

    def forward(self, x: Tensor) -> Tensor:
        return x.long()


class Columns(nn.Module):
    """Module that converts (m, k) float64 numbers of a table's columns to (m, d) inputs.

    Each input is a standardized number, an indicator of a category, or an indicator of missing values. A number x
    becomes (x - mean) / sd, or 0 if it is missing. See `fedreach.data.preparation`.

    Example:
        >>> from fedreach.data.preparation import InputColumn
        >>> ward = InputColumn("ward", "category", categories=("heart", "surgery"))
        >>> columns = Columns(Preparation((InputColumn("age", "number", missing=1, mean=40.0, sd=10.0), ward)))
        >>> columns(torch.tensor([[50.0, 1.0], [torch.nan, 0.0], [30.0, -1.0]], dtype=torch.float64)).tolist()
        [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]
    """

    column: Tensor  # (d,) column of each input
    mean: Tensor  # (d,) mean of a number
    sd: Tensor  # (d,)
    category: Tensor  # (d,) category that an input indicates, or nan
    asks_missing: Tensor  # (d,) whether an input indicates missing values

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        rows: list[tuple[int, float, float, float, bool]] = []
        for place, input_column in enumerate(preparation.used):
            if input_column.kind != "category":
                rows.append((place, input_column.mean, input_column.sd, np.nan, False))
            rows += [(place, 0.0, 1.0, float(category), False) for category in range(len(input_column.categories))]
            if input_column.missing:
                rows.append((place, 0.0, 1.0, np.nan, True))
        column, mean, sd, category, asks_missing = zip(*rows, strict=True)
        self.register_buffer("column", torch.tensor(column))
        for name, values in (("mean", mean), ("sd", sd), ("category", category)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        self.register_buffer("asks_missing", torch.tensor(asks_missing))

    def forward(self, raw: Tensor) -> Tensor:
        x = raw.double().index_select(1, self.column)
        gone = torch.isnan(x)
        number = torch.where(gone, 0.0, (x - self.mean) / self.sd)
        indicator = (self.asks_missing & gone) | (x == self.category)  # no torch.where: onnxruntime has none for bools
        is_number = self.category.isnan() & ~self.asks_missing
        return torch.where(is_number, number, indicator.to(number.dtype)).float()


# -------------------- A trained model as a torch module that takes raw examples


@dataclass(frozen=True)
class RunOrigin:
    """Run, round and code that a model originates from."""

    folder: Path  # of the run, or the file that `fedreach export --to safetensors` wrote
    which: Which
    cluster: int | None
    base: Path  # folder that names of the user's code are relative to
    run: RunRecord
    round: int  # round after which the model was stored
    code: str | None  # name of the user's code that builds the module
    trust_code: bool = False  # whether code that the folder or file names may run


class ModelAnswers(NamedTuple):
    """Outputs of a model for m examples, in the order of the arguments of `Adapter.fit`."""

    logits: Floats  # (m, c)
    features: Floats | None  # (m, h) of the layer before the last, if the last is linear
    inputs: Float32s | None  # (m, ...) as the model takes them; None for tokens


class TrainedModel(nn.Module):
    """Model of a run with its preprocessing, trained module and class names; see `fedreach.deploy.saved.load`.

    The model is in evaluation mode, and its parameters do not require gradients. It returns the (m, c) logits of raw
    examples, or their (m, t) predicted numbers. Raw examples are:

    - images: (m, C, H, W) uint8, from 0 to 255;
    - a table: (m, k) float64, one number for each of its `columns`, as `raw` returns them. Numbers remain unchanged. A
      word becomes the index of its category, or -1 if it occurred at no participant. Missing values are nan;
    - features: (m, ...) float32;
    - tokens: (m, T) integers;
    - several inputs: records of bytes, as `raw` returns them for a dictionary or a tuple of arrays.

    If the model predicts one label per position, logits and probabilities have the shape (m, positions..., c).

    Attributes:
        inputs: Module that converts raw examples to inputs.
        net: Trained module.
        num_classes: Number of classes c, or 0 if the model predicts numbers.
        targets: Number t of predicted numbers, or None for a classifier.
        scale: Scale of the numbers that `net` predicts. None: `net` predicts in the units of the columns.
        units: Module that converts outputs of `net` to the units of the columns.
        class_names: (c,) names of classes, or None if classes have no names.
        mixes: Whether the output for an example depends on the other examples in its batch. Then the examples of
            different clients must be in different batches.
        origin: Run from which the model originates.
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
        """Return several inputs of the module; numbers differ in size and sign."""
        x: Tensor = self.inputs(self.expected.example())[:1].repeat_interleave(TRIAL_EXAMPLES, 0)
        if x.is_floating_point():
            steps = torch.arange(1, TRIAL_EXAMPLES + 1, device=x.device)
            x += torch.where(steps % 2 == 1, steps, -steps).view(-1, *[1] * (x.dim() - 1))
        return x

    def raw(self, samples: Any) -> Tensor:
        """Return raw examples as a tensor in the format that the model accepts.

        Args:
            samples: Table of pandas, polars or pyarrow, or dictionary of columns, if the model was trained on a table.
                Otherwise an array or a tensor.

        Raises:
            ConfigError: If a column is missing, or `samples` is not a table.
            DataError: If the examples differ in format from the training examples.
        """
        return self.expected.raw(samples)

    def predict(self, samples: Any) -> AnyArray:
        """Return the (m,) predicted class names of examples, or class numbers if classes have no names; see `raw`.

        If the model predicts numbers, the result is (m,) floats, or (m, t) floats for several targets.

        Raises:
            DataError: If a prediction is not finite, as of very large numbers.
        """
        outputs = self._finite_logits(samples)
        if self.targets is not None:
            return outputs[:, 0] if self.targets == 1 else outputs
        classes = outputs.argmax(axis=-1)
        names: AnyArray = classes if self.class_names is None else np.array(self.class_names)[classes]
        return names

    def predict_proba(self, samples: Any) -> Floats:
        """Return the (m, c) class probabilities of examples; see `raw`.

        Raises:
            ConfigError: If the model predicts numbers.
            DataError: If a prediction is not finite, as of very large numbers.
        """
        if self.targets is not None:
            raise ConfigError("The model predicts numbers, so it has no class probabilities. Call predict.")
        logits = self._finite_logits(samples)
        probabilities: Floats = np.exp(log_softmax(logits.reshape(-1, self.num_classes))).reshape(logits.shape)
        return probabilities

    def _finite_logits(self, samples: Any) -> Floats:
        samples = self.raw(samples)
        logits = self.logits(samples)
        check_finite(logits, samples.numpy(), np.arange(len(logits)), self.expected.preparation)
        return logits

    def logits(self, samples: Any) -> Floats:
        """Return the (m, c) logits of examples or their (m, t) predicted numbers, in float64; see `raw`."""
        x = self._prepare_samples(samples)
        if not len(x):
            return np.empty((0, *self.expected.positions, self.targets or self.num_classes))
        try:
            with torch.no_grad():
                logits = torch.cat(
                    [
                        self.units(outputs.float())
                        for part in batches_of(x, EVALUATION_BATCH, self.mixes)
                        for outputs in evaluate_examples(self.net, self.inputs(part))
                    ]
                )
        except (RuntimeError, IndexError) as error:
            raise self._refusal(error) from error
        return logits.cpu().numpy().astype(np.float64)

    def answers(self, samples: Any) -> ModelAnswers:
        """Return the outputs for a client's examples that an `adapter` requires; see `raw`."""
        x = self._prepare_samples(samples)
        try:
            with torch.no_grad():
                inputs = self.inputs(x)
            logits, features = logits_and_features(self.net, inputs, even=self.mixes)
        except (RuntimeError, IndexError) as error:
            raise self._refusal(error) from error
        return ModelAnswers(logits, features, inputs.cpu().numpy() if inputs.is_floating_point() else None)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """(d,) names of the module's inputs if the model was trained on a table."""
        preparation = self.expected.preparation
        return None if preparation is None else preparation.feature_names

    @property
    def columns(self) -> tuple[str, ...] | None:
        """(k,) names of the columns that a table must have if the model was trained on a table."""
        preparation = self.expected.preparation
        return None if preparation is None else tuple(column.name for column in preparation.used)

    @property
    def adaptation(self) -> SavedRule | None:
        """Fitted adaptation rule of the model, or None if its run has no rule.

        Raises:
            RunFolderError: If the folder no longer exists.
            ConfigError: If the rule needs labels of unseen clients.
        """
        origin = self.origin
        if origin.folder.is_file():
            return weights.rule(origin.folder, origin.base, trust_code=origin.trust_code)
        if not origin.folder.exists():
            raise RunFolderError(f"{origin.folder}, the folder of the adaptation rule, is missing. Restore it.")
        choice = origin.run.config.get("method", {}).get("adaptation")
        if choice is None or Choice.model_validate(choice).name == "none":
            return None
        return read(origin.folder, origin.which, cluster=origin.cluster, base=origin.base, trust_code=origin.trust_code)

    def adapter(self) -> Adapter:
        """Return an adapter for one client; call ``adapter.fit(*model.answers(samples))``, then `predict`.

        Raises:
            ConfigError: If the run does not have an adaptation rule, or the rule needs labels of unseen clients.
        """
        saved = self.adaptation
        if saved is None:
            raise ConfigError(
                f"{self.origin.folder} has no adaptation rule. Call predict, or run with method.adaptation, such as "
                "'label_shift'."
            )
        return self.adapter_of(saved)

    def adapter_of(self, saved: SavedRule) -> Adapter:
        """Return an adapter for one client with a rule that was fitted for this model."""
        return Adapter(saved.rule, saved.state, self._rerun_model)

    def save(self, path: Path | str) -> None:
        """Write the model to a file that `torch.export.load` reads in processes without FedReach.

        The model in the file accepts any number of examples. The file also contains ``fedreach.json`` with the model's
        origin, the format of its examples, and the names of classes, columns and categories.

        Args:
            path: File name that ends in ``.pt2``. An existing file is overwritten.

        Raises:
            ConfigError: If the name does not end in ``.pt2``, or torch.export cannot trace the module.
        """
        self._check_mode()
        self.expected.refuse_form("A .pt2 file")
        target = Path(path)
        if target.suffix != ".pt2":
            raise ConfigError(f"The file of a model must end with .pt2, the format of torch.export; got {target.name}.")
        example = self.expected.example().to(next(self.parameters()).device)
        write_whole(target, content(self, example, "torch", self.about()))

    def about(self, rule: str | None = None) -> dict[str, Any]:
        """Return the description of an exported model as JSON values.

        Args:
            rule: Adaptation rule of the model as text.
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
            "label_columns": [] if table is None else [label.name for label in table.labels],
            **self.expected.to_json(),
        }

    def extra_repr(self) -> str:
        origin = self.origin
        cluster = "" if origin.cluster is None else f", cluster {origin.cluster}"
        return f"{origin.run.method} on {self.expected.name}, seed {origin.run.seed}, {origin.which}{cluster}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Name the user's code first, so that a process that unpickles the model finds its classes."""
        return _blank, (self.origin.code, self.origin.base), self.__dict__

    def _prepare_samples(self, samples: Any) -> Tensor:
        self._check_mode()
        return self.raw(samples).to(next(self.net.parameters()).device)

    def _check_mode(self) -> None:
        if self.training:
            raise ConfigError("The model is in training mode, which changes its predictions. Call model.eval() first.")

    def _refusal(self, error: Exception) -> DataError:
        return DataError(
            f"The model rejects these examples, although their shape and type are those of {self.expected.name!r} "
            f"({f'{error}'.rstrip('.')}). Pass examples with values in the range of the training data."
        )

    def _rerun_model(self, inputs: Float32s) -> tuple[Floats, Floats | None]:
        """Return logits and features of inputs that a rule has changed."""
        x = torch.from_numpy(inputs).to(next(self.net.parameters()).device)
        return logits_and_features(self.net, x, even=self.mixes)


def _blank(code: str | None, base: Path) -> TrainedModel:
    """Import the user's code and return an empty model for pickle to fill."""
    if code is not None:
        registry.load_users(code, base)
    return TrainedModel.__new__(TrainedModel)
