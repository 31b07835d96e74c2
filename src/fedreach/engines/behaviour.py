"""What a trial on a few examples tells of a module: whether it fits the data, draws, mixes examples, or keeps count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedreach.engines.observation import refers_elsewhere, remembers, repeats_itself
from fedreach.engines.samples import Samples
from fedreach.errors import ConfigError
from fedreach.models.copying import copied
from fedreach.models.draws import drawn_from, generators_kept, states
from fedreach.models.flat import narrow_types
from fedreach.models.outputs import not_a_tensor
from fedreach.models.state import Snapshot

TRIED = 8  # examples of a trial
ALONE = 4  # of these are evaluated in a batch of themselves alone, too
FAR = 1e-3  # relative: outputs of one example that differ by more, in batches of one size, do not differ by rounding,
FAR_IN_HALF = 3e-2  # and these in batches of two sizes, which kernels for bfloat16 round otherwise


@dataclass(frozen=True)
class Behaviour:
    """What a trial found.

    Attributes:
        draws: Whether random numbers are drawn in training, as dropout does; by the loss, too.
        draws_in_evaluation: Whether they are drawn in evaluation.
        remembers: Whether it keeps something that neither parameters and buffers nor plain attributes hold, see
            `fedreach.engines.observation.remembers`.
        mixes: Whether what it returns for an example in evaluation depends on the batch, as of BatchNorm without
            running statistics. Then a client is evaluated in batches of its own examples.
        counts: Names of constants and plain attributes that training changes and that cannot be averaged, see
            `fedreach.models.state`; each client starts from their first values.
    """

    draws: bool
    draws_in_evaluation: bool
    remembers: bool
    mixes: bool
    counts: tuple[str, ...]

    @property
    def note(self) -> str:
        """Return what people are told of the module; mostly nothing."""
        if not self.counts:
            return ""
        return (
            f"model: training changes {', '.join(self.counts)}, which cannot be averaged; every client starts from the "
            "first value"
        )


def batches_of(x: Tensor, size: int, even: bool = False) -> Sequence[Tensor]:
    """Return batches of at most so many examples; `even` ones differ by one example at most, so that none is tiny.

    Example:
        >>> [len(part) for part in batches_of(torch.zeros(5), 4)], [len(p) for p in batches_of(torch.zeros(5), 4, True)]
        ([4, 1], [3, 2])
    """
    return torch.tensor_split(x, max(1, -(-len(x) // size))) if even else torch.split(x, size)


def normalizes_by_batch(module: nn.Module) -> bool:
    """Return whether a module has BatchNorm layers that go by the batch in evaluation, too.

    Example:
        >>> normalizes_by_batch(nn.BatchNorm1d(2, track_running_stats=False)), normalizes_by_batch(nn.BatchNorm1d(2))
        (True, False)
    """
    return any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in module.modules())


def mixes_examples(module: nn.Module, x: Tensor) -> bool:
    """Return whether a module's outputs for an example in evaluation depend on the others of its batch.

    Args:
        module: Stays as it is.
        x: (m, ...) inputs that differ, at least two.

    Example:
        >>> x = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
        >>> mixes_examples(nn.Linear(2, 1), x), mixes_examples(nn.BatchNorm1d(2, track_running_stats=False), x)
        (False, True)
    """
    with torch.no_grad(), generators_kept(x.device):
        return normalizes_by_batch(module) or _mixes(copied(module).eval(), x)


def behaviour_of(
    module: nn.Module, samples: Samples, outputs: tuple[int, ...], losses: Callable[..., Any]
) -> Behaviour:
    """Return what a trial on a few examples tells; the module stays as it is.

    Args:
        module: The model.
        samples: The training data.
        outputs: Shape of an example's: how many numbers, after positions where these have labels.
        losses: Of outputs, targets and None.

    Raises:
        ConfigError: If the model does not accept such examples or does not return so many numbers for each; or if
            copies of it that were just made return different numbers for the same inputs and seeds; or if a copy of it
            trains the original.
    """
    trial = copied(module)
    first = Snapshot(trial)
    several, targets = samples.batch(torch.arange(TRIED, device=samples.y.device).clamp(max=len(samples) - 1))
    x, y = several[:2], targets[:2]
    name, drew, counts = type(module).__name__, list[bool](), tuple[str, ...]()
    with torch.no_grad(), generators_kept(x.device):
        for training in (True, False):
            before = states(x.device)
            try:
                logits = trial.train(training)(x)
            except ConfigError:  # of its output
                raise
            except Exception as error:
                raise ConfigError(
                    f"The model {name} does not take this data, two examples of shape {tuple(x.shape[1:])} and type "
                    f"{x.dtype}: {error}{_advice(trial, x)}"
                ) from error
            if not isinstance(logits, Tensor):
                raise not_a_tensor(name, logits, (2, *outputs))
            if logits.shape != (2, *outputs):
                raise _other_outputs(name, logits, outputs)
            if training:
                counts = tuple(first.changed())
                with suppress(Exception):  # a loss that fails is told of with the client and the round
                    losses(logits, y, None)
            drew.append(bool(drawn_from(before, x.device)))
        mixes = normalizes_by_batch(trial) or _mixes(trial, several)
    if refers_elsewhere(trial, x):
        raise ConfigError(
            f"The model {name} must go on by itself when it is copied; got hooks or functions that refer to the layers "
            "they were written for. Make them methods of the module, which are given the layer."
        )
    keeps_more = remembers(copied(module), x)
    if keeps_more and not repeats_itself(module, x):
        raise ConfigError(
            f"The model {name} must return the same outputs for the same inputs, parameters, buffers and seeds; got "
            "different ones. Draw random numbers from torch, numpy.random or random, and keep what changes in buffers."
        )
    return Behaviour(drew[0], drew[1], keeps_more, mixes, counts)


def _other_outputs(name: str, logits: Tensor, outputs: tuple[int, ...]) -> ConfigError:
    """Return what to say of a model that returns a tensor of another shape."""
    *positions, numbers = outputs
    wanted, got = f"{numbers} numbers an example, (2, {numbers})", f"{tuple(logits.shape)}."
    if positions:
        first, last = (2, numbers, *positions), (2, *outputs)
        wanted = f"{numbers} numbers at each position, {last} or {first}"
        got += (
            " Labels of whole numbers with more than one axis stand at positions: give num_classes where the model has "
            "more classes than the labels show, and class numbers, y.argmax(1), in place of one-hot labels."
        )
    elif logits.dim() > 2:
        got += " Give a label at every position, or take the outputs of one position, such as [:, -1]."
    return ConfigError(f"The model {name} must return {wanted}; got {got}")


def _advice(module: nn.Module, x: Tensor) -> str:
    """Return what to do where a model of narrow parameters may not take inputs of float32; mostly nothing."""
    types = narrow_types(module) if isinstance(x, Tensor) and x.is_floating_point() else ""
    return f". Its parameters are {types}: cast inputs in forward(), as by x.to(torch.{types})" if types else ""


def _mixes(module: nn.Module, x: Tensor) -> bool:
    """Return whether an example's outputs in evaluation depend on the others of its batch, or on how many these are."""
    first = Snapshot(module)

    def outputs(batch: Tensor) -> Tensor:
        first.restore()
        found: Tensor = module(batch).float()
        return found

    try:
        together, again, pair = outputs(x), outputs(x), outputs(x[:2])
        alone = [outputs(x[[place] * len(x)])[0] for place in range(min(ALONE, len(x)))]
    except Exception:
        return False
    if not torch.equal(together, again):  # it draws numbers in evaluation
        return False
    largest = float(together.abs().max())
    pairs = [(one, other, FAR) for one, other in zip(alone, together, strict=False)]
    pairs += [(one, other, FAR_IN_HALF) for one, other in zip(pair, together, strict=False)]
    return not all(
        torch.allclose(one, other, rtol=far, atol=far * largest, equal_nan=True) for one, other, far in pairs
    )
