"""A federation some of whose unseen clients are shifted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.data.datasets import content_hash
from fedreach.data.federated import FederatedData, Shifted
from fedreach.data.partition.draws import checked_number
from fedreach.data.shifts.base import Examples, InputScale, Shift
from fedreach.errors import ConfigError, PartError
from fedreach.streams import generator


def shift_unseen(data: FederatedData, shift: Shift, *, share: float = 1.0, seed: int = 0) -> FederatedData:
    """Return the federation with some of its unseen clients shifted, in all that they hold.

    round(share * unseen) clients are drawn, those of a smaller share among those of a larger one. Participants, the
    test set and the server's data stay as they are, and so does every run's training: only who is evaluated and served
    changes. The draws have streams of their own; what was drawn for the federation stays.

    Where inputs change, the training inputs are copied once for the federation, not for each client: the shifted
    clients' rows are others there. Of inputs that are mapped from a file the changed pages are held in memory, no more.

    Args:
        data: The federation.
        shift: What happens to each of them.
        share: Of the unseen clients that are shifted, from 0 to 1.
        seed: Of who is shifted, and of what the shift draws.

    Raises:
        ConfigError: If nobody is unseen, or the share is outside its range.
        DataError: If the shift cannot be applied to such data.
        PartError: If a shift of your own returns what is no client's examples.

    Example:
        >>> from fedreach.data.shifts.intensity import Brightness
        >>> from fedreach.testing.problems import tiny_data
        >>> data = tiny_data()
        >>> dark = shift_unseen(data, Brightness(-0.3), share=0.5)
        >>> data.population.unseen, dark.shift.clients
        (array([4, 5]), array([5]))
    """
    share = checked_number("shift.share", share, 0, 1)
    if not data.dataset.example_classes:
        other = "stand at positions" if data.dataset.positions else "are numbers"
        raise ConfigError(
            f"shift: it keeps count of classes, and targets of {data.dataset.name} {other}. Leave the shift out."
        )
    unseen = data.population.unseen
    if not len(unseen):
        raise ConfigError(
            "shift: it changes clients that never train, and everybody takes part. Lower population.participants, or "
            "leave the shift out."
        )
    drawn = generator(seed, "shifted-clients").permutation(unseen)
    clients = np.sort(drawn[: round(share * len(unseen))])
    d, scale = data.dataset, InputScale.of(data.dataset)
    x, y = d.train_x, d.train_y.copy()
    gone = np.zeros(len(y), np.bool_)
    for client in clients.tolist():
        index = np.concatenate([data.train[client], data.held_out[client]])
        before = Examples(np.asarray(d.train_x[index]), d.train_y[index], index)
        after = _checked(shift, before, shift.shifted(before, scale, generator(seed, "shift", client=client)), scale)
        gone[np.setdiff1d(index, after.index)] = True
        y[after.index] = after.y
        if not np.array_equal(after.x, d.train_x[after.index]):
            x = _copied(x) if x is d.train_x else x
            x[after.index] = after.x
    seen = np.where(data.labels == d.train_y, y, data.labels)  # label noise stays
    changed = np.concatenate([NOBODYS, *(part[c] for c in clients for part in (data.train, data.held_out))])
    dropped = np.zeros((data.num_clients, d.num_classes), np.int64)
    np.add.at(dropped, (data.partition.owner()[gone], y[gone]), 1)
    record = {
        "kind": repr(shift),
        "share": share,
        "clients": clients.tolist(),
        "dropped": int(gone.sum()),
    }
    return replace(
        data,
        dataset=replace(d, train_x=x, train_y=y),
        labels=seen,
        train=data.train.without(gone[data.train.order]),
        held_out=data.held_out.without(gone[data.held_out.order]),
        shift=Shifted(clients, dropped, content_hash(x[changed], y[changed]), record),
        draw=None if data.draw is None else partial(_redrawn, data, shift, share),
    )


NOBODYS = np.empty(0, np.int64)


def _redrawn(data: FederatedData, shift: Shift, share: float, seed: int) -> FederatedData:
    return shift_unseen(data.redrawn(seed), shift, share=share, seed=seed)


def _copied(x: AnyArray) -> AnyArray:
    """Return a copy that may be written to; of an array that is mapped from a file, one that copies what is written."""
    whole: Any = x
    while whole is not None and not isinstance(whole, np.memmap):
        whole = whole.base
    if whole is None or whole.filename is None or (whole.ctypes.data, whole.nbytes) != (x.ctypes.data, x.nbytes):
        return x.copy()
    return np.memmap(whole.filename, x.dtype, "c", whole.offset, x.shape)


def _checked(shift: Shift, before: Examples, after: Examples, scale: InputScale) -> Examples:
    """Return what a shift returned, or say why these are no examples of the client."""

    def refuse(rule: str, got: object) -> PartError:
        return PartError(f"{type(shift).__name__}.shifted must return {rule}; got {got}.")

    if not isinstance(after, Examples):
        raise refuse("Examples", type(after).__name__)
    index: Ints = after.index
    if not len(index) or len(np.unique(index)) < len(index) or not np.isin(index, before.index).all():
        raise refuse("at least one of the client's samples, each once", f"samples {index[:5]} of {before.index[:5]}")
    expected = (len(index), *before.x.shape[1:]), before.x.dtype
    if (after.x.shape, after.x.dtype) != expected or after.y.shape != index.shape:
        raise refuse(f"inputs of shape and type {expected} and as many labels", (after.x.shape, after.x.dtype))
    if after.x.dtype.kind == "f" and not np.isfinite(after.x).all():
        raise refuse("finite inputs", "some that are not")
    if after.y.dtype.kind not in "iu" or after.y.min() < 0 or after.y.max() >= scale.num_classes:
        raise refuse(f"labels from 0 to {scale.num_classes - 1}", after.y[:5])
    return after
