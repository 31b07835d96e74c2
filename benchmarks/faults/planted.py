"""Faults planted into a copy of the sources, one at a time, and which tests catch each.

    python benchmarks/faults/planted.py                  # all: an hour on one core
    python benchmarks/faults/planted.py hull tolerance   # those whose names have one of these words

A fault is a line that someone could have written: the first eleven were planted by others and caught by no test, the
rest by one, or by accident, and those of `survivors.toml` by none or few. Each names the tests that should catch it,
and the parts whose checks should (`fedreach verify`); an edit that no longer fits the sources is an error, so that the
table stays true. It ends with 1 if a fault is caught by nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCES = "src/fedreach/"
SURVIVORS = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8"))
"""Kind of fault -> faults of that kind, see the file."""


class Fault(NamedTuple):
    """An edit, and what should catch it."""

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]  # below tests/
    methods: Sequence[tuple[str, str]] = ()  # kinds and names of those whose own checks, in tests/methods, say so, too


FAULTS = (
    Fault(
        "measured with the broadcast model",
        "engines/trainer.py",
        'self._logits(start + self._tensor(update[row]), "train", index)',
        'self._logits(start, "train", index)',
        ["engines/test_engines_agree.py -k measure"],
    ),
    Fault(
        "best round judged on the test set",
        "runs/recorder.py",
        'columns.get("participant_loss", np.inf)',
        'columns.get("test_loss", np.inf)',
        ["runs/test_loop.py"],
    ),
    Fault(
        "c_i by the rate of round 1 under schedules",
        "federation/steps.py",
        "federation.local.lr_at(view.round, rounds), federation.local.moved_steps",
        "federation.local.lr, federation.local.moved_steps",
        ["federation/test_memory_solvers.py"],
        [("solver", "scaffold")],
    ),
    Fault(
        "the server's batch the same in every round",
        "federation/steps.py",
        'generator(seed, "server-batches", round_)',
        'generator(seed, "server-batches", 1)',
        ["engines/test_server_rounds.py", "federation/test_safari.py"],
        [("server", "fine_tune"), ("server", "feddf")],
    ),
    Fault(
        "the server stops by the test set",
        "runs/simulation.py",
        'self.engine.predict(params, "server", index)',
        'self.engine.predict(params, "test", index)',
        ["engines/test_server_learning.py"],
    ),
    Fault(
        "distilled with dropout at work",
        "engines/trainer.py",
        "        self.module.eval()\n\n        def loss(x: Tensor, _: Tensor)",
        "        self.module.train()\n\n        def loss(x: Tensor, _: Tensor)",
        ["engines/test_server_learning.py"],
    ),
    Fault(
        "taught by what the clients were sent",
        "runs/simulation.py",
        "yield sent.models[sent.clusters[row]] + update",
        "yield sent.models[sent.clusters[row]]",
        ["engines/test_server_learning.py"],
    ),
    Fault(
        "every cluster's model taught by all",
        "runs/simulation.py",
        "if self.request.state.clusters[row] == self.model:",
        "if self.model >= 0:",
        ["engines/test_server_learning.py"],
    ),
    Fault(
        "the same dropout in each of the server's steps",
        "engines/trainer.py",
        '"server-dropout", round_, step)',
        '"server-dropout", round_)',
        ["engines/test_server_learning.py"],
    ),
    Fault(
        "a probe for updates writes clients' memories",
        "federation/steps.py",
        "            answers = yield AskUpdates(state, view, Cohort(probe.ids), probe=True)\n",
        "            answers = yield AskUpdates(state, view, Cohort(probe.ids), probe=True)\n"
        "            state, answers = update_client_state(federation, state, view, answers, rounds)\n",
        ["federation/test_memory_solvers.py"],
    ),
    Fault(
        "the hull from the innermost vertex",
        "federation/selection/geometry.py",
        "axis=0) if chosen else out\n",
        "axis=0) if chosen else -out\n",
        ["federation/test_hull.py"],
        [("selection", "convex_hull")],
    ),
    Fault(
        "the tolerance not passed on",
        "federation/selection/radio.py",
        "tolerance=self.tolerance, time_limit_seconds",
        "time_limit_seconds",
        [],
        [("selection", "csra")],
    ),
    Fault(
        "buffers scaled by the server's rate",
        "federation/round.py",
        "params[p:] + mean[p:]",
        'params[p:] + getattr(federation.server, "lr", 1.0) * mean[p:]',
        ["federation/test_round.py"],
    ),
    *(
        Fault(
            f"a lower bound of {factor} of what was proven",
            "wireless/solve.py",
            "min(proof.lower_bound, allocation.cost)",
            f"min({factor} * proof.lower_bound, allocation.cost)",
            ["wireless/test_solve_checks.py -k proof"],
        )
        for factor in (1.0001, 1.05)
    ),
    Fault(
        "a report that falls back on test accuracy",
        "report/analysis.py",
        "with_loss[[np.argmin(losses[with_loss])]]",
        'with_loss[[np.argmax(run.column("test_accuracy")[with_loss])]]',
        ["report/test_summary.py"],
    ),
    Fault(
        "one Dirichlet draw for all classes",
        "data/partition.py",
        "assignment.log_dirichlet(alpha, (class_sizes.size, num_clients), rng)",
        "np.tile(assignment.log_dirichlet(alpha, (1, num_clients), rng), (class_sizes.size, 1))",
        ["data/test_partition_dirichlet.py", "data/test_partition_arithmetic.py", "data/test_partition_kinds.py"],
    ),
    Fault(
        "the same clients reached in all rounds",
        "federation/steps.py",
        'generator(federation.seed, "participation", view.round)',
        'generator(federation.seed, "participation", 1)',
        ["federation/test_participation.py", "federation/test_steps.py", "federation/test_two_quadratics.py"],
    ),
    Fault(
        "the same replies lost in all rounds",
        "federation/steps.py",
        '"replies", round_)',
        '"replies", 1)',
        ["federation/test_participation.py", "federation/test_steps.py", "federation/test_two_quadratics.py"],
    ),
    Fault(
        "the same coin of the server in all rounds",
        "federation/round.py",
        'generator(federation.seed, "coin", state.round + 1)',
        'generator(federation.seed, "coin", 1)',
        ["engines/test_server_rounds.py"],
    ),
    Fault(
        "nearest neighbours of an earlier round",
        "federation/selection/geometry.py",
        "if old is None else update_nearest(rows, length, old, changed)",
        "if old is None else old",
        ["federation/test_nearest.py", "federation/test_minimax.py"],
        [("selection", "minimax"), ("selection", "max_similarity")],
    ),
    Fault(
        "a neighbour that left still counts as near",
        "federation/selection/geometry.py",
        "orphaned = np.isin(whom, changed) & ~is_new",
        "orphaned = np.zeros_like(is_new)",
        ["federation/test_nearest.py", "federation/test_minimax.py"],
        [("selection", "minimax"), ("selection", "max_similarity")],
    ),
    Fault(
        "KL to the pool of those available",
        "federation/selection/random.py",
        "label_divergences(view.label_counts, self.direction, self.smoothing).round(12)[view.available]",
        "label_divergences(view.label_counts[view.available], self.direction, self.smoothing).round(12)",
        ["federation/test_kl_filter.py"],
        [("selection", "kl_filter")],
    ),
    Fault(
        "Clip.times_equal not divided by the replies",
        "federation/weighting.py",
        "self.times_equal / r]",
        "self.times_equal]",
        ["federation/test_weighting_combined.py"],
        [("weighting", "clip")],
    ),
    Fault(
        "the higher of Clip's two limits",
        "federation/weighting.py",
        "max(min(limits), 1 / r)",
        "max(max(limits), 1 / r)",
        ["federation/test_weighting_combined.py"],
        [("weighting", "clip")],
    ),
    Fault(
        "fading fixed for the run",
        "wireless/radio.py",
        'generator(seed, "fading", round_)',
        'generator(seed, "fading", 1)',
        ["wireless/test_radio.py", "federation/test_time_energy.py"],
    ),
    Fault(
        "fading by its amplitude",
        "wireless/radio.py",
        ".exponential(self.mean_gain, size=len(path))",
        ".exponential(self.mean_gain, size=len(path)) ** 0.5",
        ["wireless/test_radio.py", "federation/test_time_energy.py"],
    ),
    Fault(
        "devices faster than they are, allocated exactly",
        "wireless/exact.py",
        "share / max(1.0, share.sum()), np.minimum(hertz, problem.max_hertz), float(mu[0])",
        "share / max(1.0, share.sum()), 1.5 * hertz, float(mu[0])",
        ["wireless/test_exact.py", "wireless/test_rules.py"],
        [("allocation", "exact")],
    ),
    Fault(
        "devices faster than they are, alone",
        "wireless/rules.py",
        "np.minimum(problem.max_hertz, frequency_alone(problem))",
        "np.full(len(problem), frequency_alone(problem))",
        ["wireless/test_rules.py"],
        [("allocation", "equal")],
    ),
    Fault(
        "a cluster's score is the sum",
        "federation/bounds.py",
        "np.bincount(clusters, share * scores) / np.bincount(clusters, share)",
        "np.bincount(clusters, share * scores)",
        ["theory/test_rademacher.py", "federation/test_rademacher_selection.py"],
        [("selection", "rademacher")],
    ),
    Fault(
        "members of a cluster count alike whatever they hold",
        "federation/selection/losses.py",
        'view.num_examples[has_cluster] if self.average == "by_examples" else None',
        "None",
        ["federation/test_rademacher_selection.py"],
        [("selection", "rademacher")],
    ),
    Fault(
        "a bit too many in secure aggregation",
        "federation/secure_aggregation.py",
        "38 - (self.clients - 1).bit_length()",
        "39 - (self.clients - 1).bit_length()",
        ["federation/test_secure_aggregation.py"],
    ),
    Fault(
        "bits of secure aggregation for one client",
        "federation/secure_aggregation.py",
        "38 - (self.clients - 1).bit_length()",
        "38",
        ["federation/test_secure_aggregation.py"],
    ),
    Fault(
        "bits lost in secure aggregation",
        "federation/secure_aggregation.py",
        "38 - (self.clients - 1).bit_length()",
        "30 - (self.clients - 1).bit_length()",
        ["federation/test_secure_aggregation.py"],
    ),
    *(
        Fault(f"{kind}: {row['what']}", row["file"], row["old"], row["new"], [row["test"]])
        for kind, rows in SURVIVORS.items()
        for row in rows
    ),
)


def plant(fault: Fault, folder: Path) -> None:
    """Write the fault into a copy of the sources.

    Raises:
        ValueError: If the sources no longer have the line once.
    """
    file = folder / SOURCES / fault.file
    text = file.read_text()
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {fault.file} has {text.count(fault.old)} times {fault.old!r}, and not once.")
    file.write_text(text.replace(fault.old, fault.new))


def catchers(fault: Fault) -> list[str]:
    """Return the tests that fail with the fault planted."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(ROOT / SOURCES, Path(name) / SOURCES, ignore=shutil.ignore_patterns("__pycache__"))
        plant(fault, Path(name))
        where = {**os.environ, "PYTHONPATH": str(Path(name) / "src")}
        found = []
        for tests in [*(f"tests/{tests}".split() for tests in fault.tests), *map(of_method, fault.methods)]:
            said = _run(["-m", "pytest", "--tb=no", "-rfE", *tests], where)
            if not re.search(r"^\d+ (passed|failed|error)", said, re.MULTILINE):
                raise ValueError(f"{fault.name}: no test ran. {said}")
            found += re.findall(r"^(?:FAILED|ERROR) \S*?(\w+)\.py::(.+?)(?: - .*)?$", said, re.MULTILINE)
    return [f"{file}: {test}" for file, test in found]


def of_method(method: tuple[str, str]) -> list[str]:
    """Return what selects the tests of the checks of a built-in method."""
    kind, name = method
    files = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob(f"tests/methods/test_{kind}*.py"))
    return [*files, "-k", f"test_a_method_passes_its_checks and {name}"]


def _run(arguments: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def main() -> int:
    """Plant each fault, print what catches it, and return 1 if one is caught by nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the names of faults; default: all")
    words = parser.parse_args().words
    chosen = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    missed = 0
    for fault in chosen:
        found = catchers(fault)
        missed += not found
        shown = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
        print(f"{'caught by ' + str(len(found)) if found else 'NOT CAUGHT':12} {fault.name:54} {shown}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
