"""The engine in C gives the same bits whatever compiles it, for whatever vectors and processors."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedreach.engines.native import library
from fedreach.engines.native import trainer as native
from fedreach.engines.native.trainer import Native

from .kernels import CORRECTED, IDS, IMAGES, PLAIN, SEQUENCES, compiled, engine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("family", [IMAGES, SEQUENCES], ids=["images", "sequences"]),
]
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None, reason="these are options of gcc for x86"
)
@pytest.mark.parametrize(
    "options", [("-mavx2", "-mfma"), ("-march=native", "-O2"), ("-march=native", "-funroll-loops")]
)
def test_the_bits_do_not_depend_on_vectors_or_options(options, family, federated, tmp_path):
    expected = family.fingerprints(federated)
    with compiled(tmp_path, options=options):
        assert family.fingerprints(federated) == expected


def test_the_bits_do_not_depend_on_the_compiler(family, federated, tmp_path, monkeypatch):
    pytest.importorskip("ziglang", reason="ziglang brings another compiler")
    expected = family.fingerprints(federated)
    monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    with compiled(tmp_path):
        assert family.fingerprints(federated) == expected


@pytest.mark.parametrize("here", [True, False], ids=["here", "arm64"])
def test_arm64_gives_the_same_bits(here, family, federated, tmp_path):
    pytest.importorskip("ziglang", reason="ziglang compiles for other processors")
    if not here and EMULATOR is None:
        pytest.skip("qemu-aarch64 is not installed")
    zig, program = [sys.executable, "-m", "ziglang", "cc"], tmp_path / "program"
    target = ["-march=native"] if here else ["-target", "aarch64-linux-musl", "-static"]
    files = [Path(__file__).with_name("elsewhere.c"), *library.SOURCES]
    options = [word for word in library.OPTIONS if word not in ("-shared", "-fPIC")]
    subprocess.run([*zig, *options, *target, "-o", program, *files, "-lm"], check=True, capture_output=True)
    for name in family.models:
        module, shape = family.model(name)
        data = family.data(federated, shape, kind=family.unscaled)
        for how in (PLAIN, CORRECTED):
            made = engine(Native, module, data, *how)
            expected = made.train(made.initial, IDS, 2, family.lr).update
            given = asked(made.trainer, *how, family.lr)
            command = [program] if here else [EMULATOR, program]
            done = subprocess.run(command, input=given, check=True, capture_output=True)
            assert done.stdout == expected.tobytes(), name


def asked(trainer, local, solver, rate):
    """Return what `elsewhere.c` reads, for all clients."""
    table, ranges, samples = trainer.table, trainer.ranges, trainer.samples["train"]
    sizes = np.diff(ranges.offsets)
    x = ((samples.x * samples.factor + samples.offset) if samples.factor is not None else samples.x).numpy()
    x = x.astype(np.int64 if samples.kind == "tokens" else np.float32)
    words = native.words_of(3, 2)
    batch, steps = min(local.batch_size, int(sizes.max())), local.steps_of(sizes, IDS, 3, 2)
    heads = [
        *table.shape,
        len(x),
        x[0].nbytes // 4,
        batch,
        batch * int(steps.max()),
        len(sizes),
        len(trainer.initial),
        len(words),
    ]
    order = np.resize(ranges.order, len(x))
    rates = [rate, local.momentum, local.weight_decay, local.clip_norm or 0.0]
    pull = np.full(len(sizes), getattr(solver, "mu", 0.0), np.float32)
    parts = [np.array(heads, np.int64), table, x, samples.y.numpy(), np.array(rates), pull]
    parts += [steps, order, ranges.offsets, words, trainer.initial]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
