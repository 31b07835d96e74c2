"""The next character of a speaking role's text, after LEAF: each role is a client.

Reference: Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedreach.arrays import AnyArray
from fedreach.data.datasets import Dataset, from_arrays
from fedreach.data.sets import readers
from fedreach.data.sets.download import Place, Source
from fedreach.errors import ConfigError, DataError

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters of one sample

_INDEX = np.zeros(128, np.uint8)
_INDEX[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))


def encode(text: str) -> NDArray[np.uint8]:
    """Return the index in `VOCABULARY` of each character, after LEAF's cleaning.

    A newline becomes a space, then a run of three or more spaces one space. So index 0, the newline, is free, and
    any character outside the vocabulary gets it. (LEAF's own code gives those the index -1.)

    Example:
        >>> encode("a\\nb$").tolist() == [VOCABULARY.index("a"), 1, VOCABULARY.index("b"), 0]
        True
    """
    text = re.sub(" {3,}", " ", text.replace("\n", " "))
    code = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.where(code < 128, _INDEX[np.minimum(code, 127)], 0).astype(np.uint8)


def shakespeare(
    place: Place,
    source: Source,
    stride: int = 1,
    min_samples: int = 64,
    max_samples: int | None = None,
    roles: int | None = None,
    train_fraction: float = 0.8,
) -> Dataset:
    """Samples of 80 characters and the one that follows, every `stride` characters of each role's whole text.

    A text of L characters has w = L - 80 windows. Those that start before ``cut = max(1, int(train_fraction * w))``
    train; those that start at ``cut + 79`` or later test, so that no input of the test set overlaps one of the
    training set. The test parts of all roles together are the standard test set.

    FedDyn's setting is ``train_fraction=5/6, min_samples=2000, max_samples=2000, roles=100``.

    Args:
        stride: Characters from one window to the next, at least 1.
        min_samples: Roles with fewer training samples, before `max_samples`, are left out.
        max_samples: Keep at most the first so many training samples of a role, and at most so many test samples as
            `train_fraction` gives to that: ``round(max_samples * (1 - f) / f)``.
        roles: Keep at most so many roles, those with most training samples before `max_samples` (equal: by name).
            Clients are numbered in this order, whether limited or not.
        train_fraction: f, in (0, 1]; at 1 there is no test set.

    Raises:
        ConfigError: An option out of range.
        DataError: A damaged file, or no role with `min_samples`.
    """
    for option, value in {
        "stride": stride,
        "min_samples": min_samples,
        "max_samples": max_samples,
        "roles": roles,
    }.items():
        optional = option in ("max_samples", "roles")
        if not (optional and value is None) and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"shakespeare {option} must be a whole number of at least 1; got {value!r}.")
    if not isinstance(train_fraction, int | float) or not 0 < train_fraction <= 1:
        raise ConfigError(f"shakespeare train_fraction must be in (0, 1]; got {train_fraction!r}.")
    most_test = None if max_samples is None else round(max_samples * (1 - train_fraction) / train_fraction)

    path = place.locate(source, source.folders)
    kept = []
    for role, text in read_roles(path).items():
        parts = _windows(encode(text), stride, train_fraction, max_samples, most_test)
        if parts.available >= min_samples:
            kept.append((role, parts))
    if not kept:
        raise DataError(f"{path}: no role has {min_samples} training samples. Lower `min_samples` or `stride`.")
    kept.sort(key=lambda entry: (-entry[1].available, entry[0]))
    kept = kept[:roles]
    return from_arrays(
        np.concatenate([parts.train_x for _, parts in kept]),
        np.concatenate([parts.train_y for _, parts in kept]),
        np.concatenate([parts.test_x for _, parts in kept]),
        np.concatenate([parts.test_y for _, parts in kept]),
        owners=np.repeat(np.arange(len(kept)), [len(parts.train_y) for _, parts in kept]),
        owner_names=[role for role, _ in kept],
        num_classes=len(VOCABULARY),
        kind="tokens",
        **source.about,
    )


@dataclass(frozen=True)
class _Windows:
    train_x: AnyArray  # (m, 80) uint8
    train_y: AnyArray  # (m,)
    test_x: AnyArray
    test_y: AnyArray
    available: int  # training samples before the limit


def _windows(
    code: NDArray[np.uint8], stride: int, train_fraction: float, most_train: int | None, most_test: int | None
) -> _Windows:
    count = max(len(code) - LENGTH, 0)
    cut = min(count, max(1, int(train_fraction * count)))
    starts = np.arange(0, cut, stride)
    train = starts[:most_train]
    test = np.arange(cut + LENGTH - 1, count, stride)[:most_test]
    if not count:
        code = np.zeros(LENGTH, np.uint8)  # too short for any window: only a shape to select nothing from
    view = np.lib.stride_tricks.sliding_window_view(code, LENGTH)
    return _Windows(view[train], code[train + LENGTH], view[test], code[test + LENGTH], len(starts))


def read_roles(path: Path) -> dict[str, str]:
    """Return the text of each role.

    They stand in ``roles.json.gz``, where a user holds whole ``speeches``; or in a folder of LEAF's ``all_data`` JSON
    files, where a user holds the text as ``raw``, or windows ``x`` and next characters ``y`` at stride 1.

    Raises:
        DataError: A file is damaged or of another form.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise readers.damaged(path, "holds no .json file")
    texts: dict[str, str] = {}
    for file in files:
        try:
            users = json.loads(readers.read_bytes(file))["user_data"]
            for role, user in users.items():
                if role in texts:
                    raise ValueError(f"role {role!r} occurs a second time")
                texts[role] = _text(role, user)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
            if isinstance(error, DataError):  # is a ValueError, and says it already
                raise
            raise readers.damaged(file, f"is not roles with their text ({type(error).__name__}: {error})") from error
    return texts


def _text(role: str, user: dict[str, Any]) -> str:
    if "speeches" in user:
        return "\n".join(user["speeches"])
    if "raw" in user:
        return str(user["raw"])
    text = user["x"][0] + "".join(user["y"])
    if user["x"] != [text[start : start + LENGTH] for start in range(len(user["y"]))]:
        raise ValueError(f"the windows of {role!r} do not follow each other; give LEAF's all_data, not sampled data")
    return str(text)
