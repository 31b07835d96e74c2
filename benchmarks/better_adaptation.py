"""Candidate adaptation rules against the defaults at that time: one training per seed, many comparisons.

    python benchmarks/better_adaptation.py --seeds 1 --first 50       # printed only
    python benchmarks/better_adaptation.py --seeds 20 --write         # docs/records/better_adaptation.md

- safeguard: uses the distance of inputs from their predicted classes (k = 0.15, power = 4), or not (k = 1.3, power =
  0); a cell is a kind of client, a shift and a number of inputs, as in `harm.py`
- odds: 3 or 9 in favor of no shift
- inference: the label distribution by collapsed variational inference, or the mode by EM
- streams: the prequential prior forgets with a half-life of 50 inputs, or never; 200 inputs of a client are followed by
  200 of its own or of another client

Each seed and data set writes a file in --rows, so more seeds cost only themselves. Intervals are from paired t tests
over seeds; p values are Holm-adjusted over all comparisons. Fashion-MNIST and MNIST are read from FEDREACH_DATA.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
from scipy.stats import t

import harm
from fedreach._util.arrays import Floats
from fedreach.data.datasets import Dataset
from fedreach.data.shifts import Examples, Shift
from fedreach.evaluation.statistics import holm
from fedreach.federation.adaptation import base as mixing
from fedreach.federation.adaptation import base as priors
from fedreach.federation.adaptation import inference as evidence
from fedreach.federation.adaptation.base import log_softmax, weights
from fedreach.federation.adaptation.label_shift import LabelShift, scores
from fedreach.federation.adaptation.safeguard import Guard, GuardedOutputs
from fedreach.federation.types import Outputs, State
from harm_shifts import Change, Pixels, affine
from harm_tables import OF_LABELS, signed
from seeds import asked, tell
from tables import table

RULE = LabelShift()
GUARDS = {"before": Guard(k=1.3, power=0.0), "distance": Guard(k=0.15, power=4.0)}
ODDS = (9.0, 3.0)
HALF_LIFE = 50.0
CLIENTS, HALF = 15, 200
KIND = harm.KINDS[0]
SLOW = "elastic 1.5 pixels"


def mirrored(x: Floats, rng: np.random.Generator) -> Floats:
    """Left for right."""
    return x[..., ::-1]


def half_in_shade(x: Floats, rng: np.random.Generator) -> Floats:
    """The left half is darker."""
    return x * np.where(np.arange(x.shape[3]) < x.shape[3] // 2, 0.45, 1.0)


def coarse(x: Floats, rng: np.random.Generator) -> Floats:
    """Pixels of two by two."""
    m, c, h, w = x.shape
    return np.kron(x.reshape(m, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5)), np.ones((1, 1, 2, 2)))


def blended(x: Floats, rng: np.random.Generator) -> Floats:
    """Another of the client's images shines through."""
    return 0.75 * x + 0.25 * x[rng.permutation(len(x))]


def speckle(x: Floats, rng: np.random.Generator) -> Floats:
    """Noise in proportion to the light."""
    return x * (1 + 0.6 * rng.standard_normal(x.shape))


NEW: Mapping[str, Change] = {
    "mirrored": mirrored,
    "half in the shade": half_in_shade,
    "pixels of 2 by 2": coarse,
    "another image, 25 %": blended,
    "speckle 0.6": speckle,
    "squeezed 1.35": affine(np.diag([1.0, 1.35])),
}
"""Kinds on which nothing of what is compared was chosen."""


def shifts() -> dict[str, Shift | None]:
    """Return those of `harm.py` but the slowest, and new ones."""
    found = {name: shift for name, shift in harm.shifts().items() if name != SLOW}
    return found | {name: Pixels(change) for name, change in NEW.items()}


def collapsed(u: Floats, base: Floats, pseudo_counts: float) -> Floats:
    """Return the (c,) mean of the class shares by collapsed variational inference, as CVB0 of Asuncion et al., 2009.

    q_ic is proportional to (A base_c + sum over the other inputs of q_c) exp u_ic.
    """
    ratios = np.exp(u - u.max(axis=1, keepdims=True))
    q = ratios * base
    q /= q.sum(axis=1, keepdims=True)
    for _ in range(priors.MAX_ITERATIONS):
        before, q = q, (pseudo_counts * base + q.sum(axis=0) - q) * ratios
        q /= q.sum(axis=1, keepdims=True)
        if np.abs(q.sum(axis=0) - before.sum(axis=0)).max() < 1e-6 * len(u):
            break
    shares: Floats = (pseudo_counts * base + q.sum(axis=0)) / (pseudo_counts + len(u))
    return shares


def adapted(trained: harm.Trained, state: State, clients: Sequence[Examples]) -> Iterator[dict[str, float]]:
    """Yield, for each client and number of inputs, what a guard looks at, and the accuracies either way."""
    base, spread = state["base"], float(state["pseudo_counts"][0])
    outputs = [trained.outputs(examples.x) for examples in clients]

    def priors_of(asked: Sequence[Outputs]) -> Floats:
        return np.stack([priors.map_em(scores(state, one), base, spread) for one in asked])

    def classes_of(one: Outputs, prior: Floats) -> Floats:
        return np.exp(log_softmax(scores(state, one) + np.log(prior)))

    for n in harm.INPUTS:
        begins = [HALF if len(c.y) >= HALF + harm.FEWEST else n for c in clients]
        able = [i for i, c in enumerate(clients) if len(c.y) >= begins[i] + harm.FEWEST]
        seen = [outputs[i].at(slice(n)) for i in able]
        # Guards that differ in k and power accept the same repairs.
        for i, chosen in zip(able, Guard().choose(state, seen, base, priors_of, classes_of), strict=True):
            end, y = outputs[i].at(slice(begins[i], None)), clients[i].y[begins[i] :]
            row = {"n": n, "unadapted": float((end.logits.argmax(axis=1) == y).mean())}
            if chosen.repaired:
                assert end.again is not None
                end = end.again(chosen.intensity.of(end.inputs))
            log_w = float(evidence.evidence_path(scores(state, chosen.outputs), base, spread).log_w[-1, 0])
            row |= {"log_w": log_w, "s": chosen.signal, "R": chosen.distance, "d": chosen.total_drift}
            row["raw"] = float((end.logits.argmax(axis=1) == y).mean())
            for odds in ODDS:
                own = np.log(mixing.blend_priors(chosen.prior, weights(np.array([log_w]), odds), base))
                row[f"odds {odds:g}"] = float(((scores(state, end) + own).argmax(axis=1) == y).mean())
            yield row


def record(name: str, dataset: Dataset, seed: int, path: Path) -> None:
    """Train, adapt, and write what is compared."""
    began, rows = time.process_time(), []
    trained = harm.train(dataset, seed)
    state = harm.fitted(trained, RULE)
    clean: dict[str, Any] = {}
    for kind, held in harm.holdings(trained.data, seed).items():
        for shift, made in shifts().items():
            clients = list(harm.shown(trained, made, held, seed))[:CLIENTS]
            rows += [{"kind": kind, "shift": shift, **row} for row in adapted(trained, state, clients)]
        if kind == "label-shifted":
            able = [index for index in held if len(index) >= harm.INPUTS[0] + harm.FEWEST][:CLIENTS]
            whole = [index[: 2 * HALF] for index in able if len(index) >= 2 * HALF]
            index = np.stack(whole)
            u = scores(state, trained.outputs(dataset.train_x[index.ravel()])).reshape(*index.shape, -1)
            clean = {"u": u.astype(np.float32), "y": dataset.train_y[index]}
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, base=state["base"], pseudo_counts=state["pseudo_counts"], **clean, **columns)
    print(f"{name}, seed {seed}: {time.process_time() - began:.0f} s", flush=True)


def mean_gains(rows: Mapping[str, Any], guard: Guard, odds: float) -> dict[tuple[str, str, int], float]:
    """Return, of each cell (kind, shift, inputs), the mean over clients of the points gained over the plain model."""
    found = gains(rows, guard, odds)
    cells: dict[tuple[str, str, int], list[float]] = {}
    for kind, shift, n, gain in zip(rows["kind"], rows["shift"], rows["n"], found, strict=True):
        cells.setdefault((str(kind), str(shift), int(n)), []).append(gain)
    return {cell: float(np.mean(values)) for cell, values in cells.items()}


def gains(rows: Mapping[str, Any], guard: Guard, odds: float) -> Floats:
    """Return, of each client, the points of accuracy that it gains over the plain model."""
    adapted = []
    for s, far, d, log_w in zip(rows["s"], rows["R"], rows["d"], rows["log_w"], strict=True):
        chosen = GuardedOutputs(
            Outputs(np.zeros((0, 0))), np.zeros(0), True, signal=s, distance=far, total_drift=d, deviation=0.0
        )
        adapted.append(guard.adapts(chosen, float(weights(np.array([log_w]), odds)[0])))
    found: Floats = 100 * (np.where(adapted, rows[f"odds {odds:g}"], rows["raw"]) - rows["unadapted"])
    return found


def by_inference(rows: Mapping[str, Any], n: int) -> tuple[float, float]:
    """Return the accuracy on inputs 201 to 400, in percent, of shares from the first n: by EM, and collapsed."""
    base, spread = rows["base"], float(rows["pseudo_counts"][0])
    right = np.zeros(2)
    for u, y in zip(rows["u"].astype(np.float64), rows["y"], strict=True):
        weight = weights(evidence.evidence_path(u[:n], base, spread).log_w[-1], RULE.odds)
        for way, prior in enumerate((priors.map_em(u[:n], base, spread), collapsed(u[:n], base, spread))):
            right[way] += (
                (u[HALF:] + np.log(mixing.blend_priors(prior, weight, base))).argmax(axis=1) == y[HALF:]
            ).mean()
    found = 100 * right / len(rows["u"])
    return float(found[0]), float(found[1])


def online(rows: Mapping[str, Any], half_life: float, drifts: bool) -> float:
    """Return the accuracy, in percent, of streams of 400 inputs, each predicted before it is learnt from."""
    base = rows["base"]
    state = {"a": np.ones(1), "b": np.log(base), "base": base, "pseudo_counts": rows["pseudo_counts"]}
    rule, right = LabelShift(guard=False, half_life=half_life), []
    for i in range(len(rows["u"])):
        then = (i + 1) % len(rows["u"]) if drifts else i  # whose inputs come in the second half
        u, y = (np.concatenate([rows[name][i, :HALF], rows[name][then, HALF:]]) for name in ("u", "y"))
        predicted, _ = rule.predict_online(state, rule.start(state), Outputs(u.astype(np.float64)))
        right.append((predicted.argmax(axis=1) == y).mean())
    return 100 * float(np.mean(right))


def differences(files: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, Floats, Floats]]:
    """Yield each comparison of one data set: what, where, (seeds,) values before and (seeds,) of what may be better."""
    new, old = ([mean_gains(rows, GUARDS[name], 9.0) for rows in files] for name in ("distance", "before"))
    kinds = {"kinds of `harm.py`": set(harm.shifts()) - set(OF_LABELS), "new kinds": set(NEW)}
    for title, of in kinds.items():
        for n in harm.INPUTS:
            ways = [
                np.array(
                    [np.mean([g for (k, s, m), g in seed.items() if k == KIND and s in of and m == n]) for seed in way]
                )
                for way in (old, new)
            ]
            yield "guard with distances, gain where both shift", f"{title}, {n} inputs", *ways
    ways = [
        np.array([mean_gains(rows, GUARDS["distance"], odds)[KIND, "none", harm.INPUTS[0]] for rows in files])
        for odds in ODDS
    ]
    yield "odds 3 for 9, gain where classes alone shift", f"{harm.INPUTS[0]} inputs", *ways
    for n in harm.INPUTS:
        before, after = np.array([by_inference(rows, n) for rows in files]).T
        yield "collapsed for MAP, accuracy", f"{n} inputs", before, after
    for title, drifts in {"class shares change midway": True, "they stay": False}.items():
        ways = [np.array([online(rows, life, drifts) for rows in files]) for life in (math.inf, HALF_LIFE)]
        yield "half-life 50 for none, accuracy online", title, *ways


def compared(files: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of differences."""
    found = [(name, *one) for name, of in files.items() for one in differences(of)]
    lines, p_values = [], []
    for name, what, where, before, after in found:
        gap, error = (after - before).mean(), (after - before).std(ddof=1) / math.sqrt(len(after))
        half = error * t.ppf(0.975, len(after) - 1)
        p_values.append(float(2 * t.sf(abs(gap) / error, len(after) - 1)) if error else 1.0)
        values = [
            f"{before.mean():.1f}",
            f"{after.mean():.1f}",
            f"{signed2(gap)} [{signed2(gap - half)}, {signed2(gap + half)}]",
        ]
        lines.append([what, where, name, *values])
    for line, p in zip(lines, holm(p_values), strict=True):
        line.append("< 0.001" if p < 0.001 else f"{p:.3f}")
    head = ["what", "where", "data", "before", "after", "difference, points [95% CI]", "adjusted p"]
    return table(head, lines, left=3)


def harms(files: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of cells that lose, and of what is kept where classes alone shift."""
    lines = []
    for label, guard, odds in (
        ("before", GUARDS["before"], 9.0),
        ("with distances", GUARDS["distance"], 9.0),
        ("with distances, odds 3", GUARDS["distance"], 3.0),
        ("always adapts", Guard(k=0.0, min_weight=0.0), 9.0),
    ):
        for n in harm.INPUTS:
            here = {
                (name, *cell): [one[cell] for one in seeds]
                for name, of in files.items()
                for seeds in [[mean_gains(rows, guard, odds) for rows in of]]
                for cell in seeds[0]
                if cell[2] == n and all(cell in one for one in seeds)
            }
            means = {cell: float(np.mean(values)) for cell, values in here.items()}
            worst = min(means, key=means.__getitem__)
            single = np.concatenate([np.array(values) for values in here.values()])
            clean = " / ".join(signed(means[name, KIND, "none", n]) for name in files)
            alike = " / ".join(signed(means[name, "alike", "none", n]) for name in files)
            lines.append([str(n), label, f"{signed(means[worst])} ({', '.join(worst[:3])})"])
            lines[-1] += [f"{sum(v < -1 for v in means.values())} of {len(means)}"]
            lines[-1] += [f"{int((single < -1).sum())} of {len(single)}", clean, alike]
    head = ["inputs", "safeguard", "worst cell, points", "cells below −1", "single seeds below −1"]
    shown = " / ".join(files)
    head += [f"gain, classes alone shift ({shown})", f"gain, neither shifts ({shown})"]
    return table(head, sorted(lines, key=lambda line: int(line[0])), left=3)


def signed2(value: float) -> str:
    """Return a number of points with its sign and two decimals."""
    return f"{value:+.2f}".replace("-", "−")


def main() -> None:
    seeds, folder, write = asked(__doc__, "runs/better", first=200)
    files = {}
    for name, dataset in harm.data_sets().items():
        paths = [folder / f"{name}-{seed}.npz" for seed in seeds]
        for seed, path in zip(seeds, paths, strict=True):
            if not path.exists():
                record(name, dataset, seed, path)
        files[name] = [dict(np.load(path)) for path in paths]
    command = f"python benchmarks/better_adaptation.py --seeds {len(seeds)} --write        # one core"
    text = "\n\n".join([f"```text\n{command}\n```", compared(files), harms(files)])
    tell("better_adaptation", text, write=write)


if __name__ == "__main__":
    main()
