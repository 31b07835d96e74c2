"""Streams: clients whose inputs come in a meaningful order, each predicted before the rule learns from it.

    python benchmarks/online.py --seeds 5 --write             # docs/records/online.md, ten minutes on one core

Models and clients are those of `harm.py`. A stream has a client's inputs as drawn, sorted by class (each client in its
own order), in runs of 20 of a class, or 60 inputs ten times each as near copies. Or it changes to another client's
inputs, midway or every 50 inputs. Or its inputs turn dark, midway or from the start. Clients alike have random
examples. Compared are `label_shift`, the same without its safeguard, and without safeguard with one half-life: infinite
(the earlier rule) and 50. Half-lives and window were chosen on seeds 500 to 503.

In the second table a client learns from the first 20 or 200 inputs of its stream, as a batch, and is scored on 200 of
its inputs in random order. A second client also follows those inputs one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

import harm
from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.streams import generator
from fedreach.data.datasets import Dataset
from fedreach.engines.models.networks import lenet
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.types import Outputs, State
from seeds import asked, kept, tell
from tables import table

FEWEST, MOST, CLIENTS, RUN, COPIED, COPIES, PERIOD, DARK = 400, 600, 25, 20, 60, 10, 50, 0.45
LEARNED, SCORED = (20, 200), 200
LOST = 5.0
RULES: Mapping[str, LabelShift] = {
    "label_shift": LabelShift(),
    "no safeguard": LabelShift(guard=False),
    "never forgets": LabelShift(guard=False, half_life="never"),
    "half-life 50": LabelShift(guard=False, half_life=50.0),
}


class Stream(NamedTuple):
    """What the model says of a client's inputs, in their order, and their classes."""

    outputs: Outputs
    y: Ints

    def at(self, places: Ints | slice) -> Stream:
        outputs = self.outputs.at(places)
        return Stream(outputs, self.y[places])


def joined(*parts: Stream) -> Stream:
    """Return one stream of several."""
    logits, features = (
        np.concatenate([np.asarray(getattr(part.outputs, name)) for part in parts]) for name in ("logits", "features")
    )
    return Stream(Outputs(logits, features), np.concatenate([part.y for part in parts]))


def alternating(one: Stream, other: Stream) -> Stream:
    m = min(len(one.y), len(other.y)) // PERIOD * PERIOD
    parts = [(one, other)[i % 2].at(slice(i * PERIOD, (i + 1) * PERIOD)) for i in range(m // PERIOD)]
    return joined(*parts)


def by_class(y: Ints, classes: int, rng: np.random.Generator) -> Ints:
    return np.argsort(rng.permutation(classes)[y], kind="stable").astype(np.int64)


def in_runs(y: Ints, rng: np.random.Generator) -> Ints:
    """Return places: runs of `RUN` inputs of a class."""
    of = [np.flatnonzero(y == label) for label in np.unique(y)]
    runs = [places[i : i + RUN] for places in of for i in range(0, len(places), RUN)]
    return np.concatenate([runs[i] for i in rng.permutation(len(runs))])


def near_copies(x: AnyArray, rng: np.random.Generator) -> AnyArray:
    """Return each of the first images several times, a little lighter or darker and with some noise."""
    many = np.repeat(x[:COPIED].astype(np.float64), COPIES, axis=0)
    light = 1 + 0.05 * rng.standard_normal((len(many),) + (1,) * (many.ndim - 1))
    found: AnyArray = np.clip(many * light + 8 * rng.standard_normal(many.shape), 0, 255).astype(np.uint8)
    return found


def dark(x: AnyArray) -> AnyArray:
    found: AnyArray = np.clip(x * DARK, 0, 255).astype(np.uint8)
    return found


def streams(trained: harm.Trained, seed: int) -> Iterator[tuple[str, Stream]]:
    """Yield each stream of each client."""
    data, rng, d = trained.data, generator(seed, "streams of inputs"), trained.data.dataset

    def stream(x: AnyArray, y: Ints) -> Stream:
        outputs = trained.outputs(x)
        return Stream(Outputs(outputs.logits, outputs.features), y)

    held = [rng.permutation(np.concatenate([data.train[c], data.held_out[c]])) for c in data.population.unseen.tolist()]
    held = [index[:MOST] for index in held if len(index) >= FEWEST][:CLIENTS]
    own = [stream(d.train_x[index], d.train_y[index]) for index in held]
    dim = [stream(dark(d.train_x[index]), d.train_y[index]) for index in held]
    for i, index in enumerate(held):
        drawn, then = own[i], own[(i + 1) % len(own)]
        half = min(len(drawn.y), len(then.y)) // 2
        yield "as drawn", drawn
        yield "sorted by class", drawn.at(by_class(drawn.y, d.num_classes, rng))
        yield f"runs of {RUN} of a class", drawn.at(in_runs(drawn.y, rng))
        yield "near copies", stream(near_copies(d.train_x[index], rng), np.repeat(drawn.y[:COPIED], COPIES))
        yield "another client's from midway on", joined(drawn.at(slice(half)), then.at(slice(half)))
        yield f"another client's every {PERIOD}", alternating(drawn, then)
        yield "dark from midway on", joined(drawn.at(slice(half)), dim[i].at(slice(half, 2 * half)))
        yield "dark", dim[i]
    pool, dark_pool = joined(*own), joined(*dim)
    for places in np.array_split(rng.permutation(len(pool.y)), len(own)):
        yield "alike, as drawn", pool.at(places)
        yield "alike, dark", dark_pool.at(places)


def right(log_p: Floats, y: Ints) -> float:
    return 100 * float((log_p.argmax(axis=1) == y).mean())


def measure(name: str, dataset: Dataset, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row a stream of each client."""
    trained = harm.train(dataset, seed, lenet if name.endswith(harm.LENET) else harm.network)
    state = harm.fitted(trained, LabelShift())
    for kind, stream in streams(trained, seed):
        plain = right(stream.outputs.logits, stream.y)
        row: dict[str, Any] = {"stream": kind, "unadapted": plain}
        for rule_name, rule in RULES.items():
            log_p, _ = rule.predict_online(state, rule.start(state), stream.outputs)
            row[rule_name] = right(log_p, stream.y) - plain
        yield row | beginnings(stream, state)
    print(f"{name}, seed {seed}", flush=True)


def beginnings(stream: Stream, state: State) -> dict[str, float]:
    """Return the gain on inputs as they were drawn, after the first ones of the stream, as a batch and followed."""
    found = {}
    for n in LEARNED:
        if len(stream.y) < n + SCORED:
            continue
        rest = stream.at(np.random.default_rng(n).permutation(np.arange(n, len(stream.y)))[:SCORED])
        plain = right(rest.outputs.logits, rest.y)
        for way, rule in {"batch": LabelShift(repairs=False), "followed": LabelShift(online=True)}.items():
            client = rule.update(state, rule.start(state), stream.outputs.at(slice(n)))
            if rule.online:
                log_p, _ = rule.predict_online(state, client, rest.outputs)
            else:
                log_p = rule.predict(state, client, rest.outputs)
            found[f"{way} {n}"] = right(log_p, rest.y) - plain
    return found


def signed(points: float) -> str:
    text = f"{points:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def text(rows: list[dict[str, Any]]) -> str:
    """Return the two tables: means over clients, then over seeds, and the seeds' lowest mean."""
    seeds = sorted({row["seed"] for row in rows})
    kinds = list(dict.fromkeys(row["stream"] for row in rows))

    def means(name: str, kind: str, what: str) -> list[float]:
        found = []
        for seed in seeds:
            own = [r[what] for r in rows if (r["data"], r["stream"], r["seed"]) == (name, kind, seed) and what in r]
            found += [float(np.mean(own))] if own else []
        return found

    gains, starts = [], []
    for name in dict.fromkeys(row["data"] for row in rows):
        for kind in kinds:
            own = [row for row in rows if (row["data"], row["stream"]) == (name, kind)]
            lost = np.mean([row["label_shift"] < -LOST for row in own])
            cells = [signed(float(np.mean(means(name, kind, rule)))) for rule in RULES]
            lowest = signed(min(means(name, kind, "label_shift")))
            plain = f"{np.mean(means(name, kind, 'unadapted')):.1f}"
            gains.append([name, kind, plain, *cells, lowest, f"{100 * lost:.1f}"])
            ways = [f"{way} {n}" for n in LEARNED for way in ("batch", "followed")]
            cells = [signed(float(np.mean(found))) if (found := means(name, kind, way)) else "-" for way in ways]
            starts.append([name, kind, *cells])
    head = ["data", "stream", "unadapted %", *RULES, "lowest seed", "clients that lose > 5 points %"]
    begun = [f"{way}, {n} inputs" for n in LEARNED for way in ("batch", "followed")]
    about = f"{len(seeds)} seeds, from {seeds[0]} on; gains in points over the unadapted model."
    return "\n\n".join([about, table(head, gains, left=2), table(["data", "stream", *begun], starts, left=2)])


def main() -> None:
    seeds, file, write = asked(__doc__, "runs/online.jsonl", first=600)
    sets = harm.data_sets()
    names = [name + (harm.LENET if name == "cifar10" else "") for name in sets]
    models = [{"data": name, "seed": seed} for seed in seeds for name in names]
    rows = kept(file, models, lambda data, seed: measure(data, sets[data.removesuffix(harm.LENET)], seed))
    tell("online", text(rows), write=write)


if __name__ == "__main__":
    main()
