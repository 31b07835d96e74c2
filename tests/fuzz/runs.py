"""What goes on behind an experiment that is right by itself: data, model and cohort must fit together, and fit in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st

from fedreach.experiment.build import Builder
from fedreach.experiment.load import load

from .campaign import Target
from .experiments import RIGHT, as_toml

SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 10**3, 10**5, 10**6, 10**9, 10**12, 2**53, 2**62, 2**63 - 1])
SHARES = st.sampled_from([0.0, -0.0, 1e-300, 1e-9, 0.1, 0.5, 0.999, 1.0, 1e9, 1e300])
CHANGES = st.one_of(
    st.tuples(st.just("partition.clients"), SIZES),
    st.tuples(st.just("partition.alpha"), SHARES),
    st.tuples(st.just("partition.min_size"), SIZES),
    st.tuples(
        st.just("partition"),
        st.builds(
            lambda name, n, **more: {"name": name, "clients": n, **more},
            st.sampled_from(["iid", "shards", "natural"]),
            SIZES,
        )
        | st.builds(
            lambda name, n, a: {"name": name, "clients": n, "alpha": a, "min_size": 0},
            st.sampled_from(["hybrid", "dirichlet_by_client", "dirichlet_by_class"]),
            SIZES,
            SHARES,
        ),
    ),
    st.tuples(st.just("population.participants"), SIZES | SHARES | st.just("all")),
    st.tuples(st.just("population.held_out"), SHARES),
    st.tuples(st.just("population.exclude_labels"), st.lists(SIZES, max_size=3)),
    st.tuples(st.just("server_data.examples"), SIZES),
    st.tuples(st.just("method.cohort_size"), SIZES),
    st.tuples(st.just("model.hidden"), st.lists(SIZES, max_size=3)),
    st.tuples(st.just("model"), st.sampled_from(["linear", "lenet", "cnn", "lstm", "resnet20"])),
    st.tuples(st.just("model"), st.builds(lambda w: {"name": "resnet20", "width": w}, SIZES)),
    st.tuples(st.just("model"), st.builds(lambda h, e: {"name": "lstm", "hidden": h, "embedding": e}, SIZES, SIZES)),
    st.tuples(st.just("engine.threads"), SIZES),
    st.tuples(st.just("engine.name"), st.sampled_from(["native", "manual", "sequential", "vmap"])),
    st.tuples(st.just("engine.device"), st.sampled_from(["cpu", "cuda", "cuda:7", "tpu", "meta", "", "cpu:9"])),
    st.tuples(st.just("local.epochs"), SIZES),
    st.tuples(st.just("local.steps"), SIZES),
    st.tuples(st.just("local.batch_size"), SIZES),
    st.tuples(st.just("local.lr"), SHARES),
    st.tuples(
        st.just("noise"),
        st.builds(lambda n, r: {"name": n, "rate": r}, st.sampled_from(["symmetric", "pairflip"]), SHARES),
    ),
    st.tuples(
        st.just("shift"), st.sampled_from(["brightness", "contrast", "rotation", "translation", "labels", "blur"])
    ),
    st.tuples(st.just("rounds"), SIZES),
    st.tuples(st.just("evaluation.inputs"), st.lists(SIZES, max_size=2)),
    st.tuples(st.just("evaluation.examples_per_client"), SIZES),
)


LEFT_OUT = ("methods", "baseline", "statistics", "shift", "noise", "radio")


def begun(folder: Path, changes: list[tuple[str, Any]]) -> None:
    """Build everything that the first round needs, and look at who would train."""
    (folder / "x.toml").write_text(tomli_w.dumps({key: value for key, value in RIGHT.items() if key not in LEFT_OUT}))
    experiment = load(folder / "x.toml", [f"{key}={as_toml(value)}" for key, value in changes]).resolved()
    builder = Builder(experiment, folder)
    data = builder.federated(builder.dataset(), 0)
    simulation = builder.simulation(data, 0, experiment.engine.threads or 1)
    simulation.view(simulation.start())
    simulation.engine.groups(data.population.participants)


TARGETS = [Target("runs that are begun", st.lists(CHANGES, min_size=1, max_size=3), begun, 2)]
