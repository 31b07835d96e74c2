"""What the server learns about clients, derived from the attributes of the components.

In a simulation, all data are in one process. On Flower, the server receives the data in this list and no other data. A
test compares the list with the messages of all built-in components.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedreach.federation.base import Weighting
from fedreach.federation.federation import Federation
from fedreach.federation.types import NO_STATE

Whose = Literal["all clients", "participants", "probed clients", "cohort"]
When = Literal[
    "first contact",
    "before round 1",
    "before selection",
    "each round",
    "after n rounds",
    "each evaluation",
    "fit of the rule",
    "after the fit",
    "if it fails",
]
SETTINGS = (
    "solver",
    "local",
    "loss",
    "augmentation",
    "adaptation",
    "label_statistics",
    "seed",
    "measurements",
    "model",
)
"""Settings of a client's app, which the server compares with its own settings."""


@dataclass(frozen=True)
class Disclosed:
    """Data about clients that the server receives or can compute.

    Args:
        what: The data.
        whose: Clients that the data describe. ``"all clients"`` includes unseen clients.
        when: When the server learns the data.
        limit: How to limit what the server learns; "" if this is not possible.
        keys: Names of the data in replies on Flower, ``TYPE/RECORD/NAME``. A star replaces any characters. A final
            question mark belongs to data that only some replies contain. (): The server computes the data.
        summed: Whether the server learns only the sum over these clients. The sum over one client is its own data.
    """

    what: str
    whose: Whose
    when: When
    limit: str = ""
    keys: tuple[str, ...] = ()
    summed: bool = False

    @property
    def form(self) -> str:
        """Form in which the server learns the data."""
        return ("sum" if self.summed else "each client") + ("" if self.keys else ", computed")

    def to_json(self) -> dict[str, str]:
        """Return the fields that a run stores and reports show."""
        return {name: getattr(self, name) for name in ("what", "whose", "when", "form", "limit")}


def what_the_server_learns(
    federation: Federation, *, metrics: Sequence[str] = (), tables: bool = False
) -> list[Disclosed]:
    """Return the data about clients that the server of a federation learns on Flower, in the order of a run.

    The result depends on attributes of the components, so it also covers custom components. FedReach rejects a
    component that requests more data than its attributes declare.

    The server follows the protocol, and clients run `fedreach.flower.app.client_app`. An app with its own training code
    can send more data.

    Args:
        federation: Federation with its components.
        metrics: Names of the metrics in addition to loss and accuracy or mean absolute error.
        tables: Whether each client has its own table, see `fedreach.flower.tables.FlowerTables`.

    Example:
        >>> from fedreach.testing.problems import tiny_federation
        >>> for data in what_the_server_learns(tiny_federation()):
        ...     print(f"{data.when}: {data.what} ({data.form})")
        first contact: id, numbers and format of examples, settings (each client)
        each round: training loss, number of examples (each client)
        each round: update (each client)
        each round: examples and label counts, in part (each client, computed)
        each evaluation: scores on its examples, numbers of examples (each client)
        if it fails: error message of its app (each client)
    """
    hides, clients_train = federation.label_statistics.only_sum, not federation.server.trains_alone
    learned = [*_before_training(federation), *_at_evaluation(federation, metrics), *_in_adaptation(federation)]
    learned += _of_tables(hides) if tables else ()
    learned += _of_reports(federation) if clients_train else ()
    learned += _in_sums(federation) if clients_train and hides else ()
    return sorted(learned, key=when_learned)


def when_learned(data: Disclosed) -> int:
    """Return the position of the data in the order of a run."""
    return get_args(When).index(data.when)


def _names(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}/{name}" for name in names)


def _before_training(federation: Federation) -> Iterator[Disclosed]:
    hides, noise = federation.label_statistics.only_sum, federation.label_statistics.adds_noise
    keys = _names("query/metrics", "client", "num-examples", "held-out-examples", "bits-per-example")
    own_settings = ["weighting"] * hides + ["aggregation"] * (federation.distributed_noise is not None)
    keys += _names("query/fedreach", "samples", *SETTINGS, *own_settings)
    yield Disclosed("id, numbers and format of examples, settings", "all clients", "first contact", "", keys)
    needs = sorted(federation.needs())
    if needs and not hides:  # the server computes entropies from counts
        what = f"{needs[0].replace('_', ' ')}{' with noise' * noise}"
        limit = "smaller epsilon" if noise else "noise; other components"
        yield Disclosed(what, "participants", "before round 1", limit, _names("query.labels/labels", needs[0]))
    if hides:
        what, limit = "public keys, encrypted shares; what unmasks a sum", "secure-roster, against a server that lies"
        yield Disclosed(what, "participants", "each round", limit, ("query.secure/secure/content",))
    yield Disclosed("error message of its app", "all clients", "if it fails", "", ("error?",))


def _of_tables(hides: bool) -> Iterator[Disclosed]:
    keys = _names("query.table", "metrics/client", "told/name", "told/columns", "told/classes")
    limit = "data.columns.drop"
    yield Disclosed("name, names of columns and classes", "all clients", "first contact", limit, keys)
    keys = ("query.table/told/texts",)
    yield Disclosed("categories, up to 100 per column", "participants", "before round 1", limit, keys)
    keys, limit = ("query.table/sums/sums",), limit if hides else f"secure aggregation; {limit}"
    yield Disclosed("counts, sums, squares of columns", "participants", "before round 1", limit, keys, hides)


def _of_reports(federation: Federation) -> Iterator[Disclosed]:
    """Yield the data in the replies of clients that train, and in the replies to a probe."""
    selection, hides = federation.selection, federation.label_statistics.only_sum
    measured = [] if hides else [measurement.name for measurement in federation.measurements()]
    numbers = ["train_loss", "num-examples", *measured, *["lacks-memory-of-round?"] * federation.has_memory]
    report, limit = ", ".join(["training loss", "number of examples", *measured]), "other selection"
    if selection.probes and selection.reads_updates:
        keys = _names("probe", "update/update", *_names("metrics", *numbers))
        yield Disclosed(f"update, {report}", "probed clients", "before selection", limit, keys)
    elif selection.probes:
        keys = ("query.loss/metrics/train_loss",)
        what = "loss of the model" if selection.first_models == 1 else "loss of each model"
        yield Disclosed(what, "probed clients", "before selection", limit, keys)
    limit = "other components" if measured else ""
    yield Disclosed(report, "cohort", "each round", limit, _names("train/metrics", *numbers))
    limit = "larger cohort" if hides else "secure aggregation"
    what, name = ("update times weight, weight", "masked") if hides else ("update", "update")
    if federation.distributed_noise is not None:
        what, limit = "clipped update with noise", "larger noise"
    yield Disclosed(what, "cohort", "each round", limit, (f"train/{name}/{name}",), hides)
    yield Disclosed("examples and label counts, in part", "cohort", "each round", limit, summed=hides)
    if federation.has_memory and not hides:
        limit = "solver and loss without state"
        yield Disclosed("vector stored between rounds", "cohort", "each round", limit)


def _in_sums(federation: Federation) -> Iterator[Disclosed]:
    """Yield the data of single clients that the server can compute from the sums of many rounds."""
    if statistics := constant_weight_statistics(federation.weighting):
        what = f"weight, so {', '.join(statistics).replace('_', ' ')}"
        yield Disclosed(what, "participants", "after n rounds", "weights of public numbers; fewer rounds")


def constant_weight_statistics(weighting: Weighting) -> list[str]:
    """Return the client statistics on which weights depend that are the same in all rounds; [] if weights change.

    With secure aggregation, the server knows the cohort C_t of each round t and the sum s_t of its raw weights a_i:

        s_t = sum of a_i over i in C_t

    If each a_i is constant, these are linear equations with n unknowns. The server can solve them once the cohorts have
    rank n, after n or more rounds. Weights from a measurement change, so each round adds unknowns. Weights from numbers
    of examples and draws are public, so the equations add nothing.

    Example:
        >>> from fedreach.federation.weighting import ByDisagreement, ByEntropy, ByExamples
        >>> [constant_weight_statistics(weighting) for weighting in (ByEntropy(), ByExamples(), ByDisagreement())]
        [['label_entropy'], [], []]
    """
    parts = [*weighting.with_inner()]
    return [] if any(part.measures for part in parts) else sorted({name for part in parts for name in part.needs})


def _at_evaluation(federation: Federation, metrics: Sequence[str]) -> Iterator[Disclosed]:
    score = "mae" if federation.loss.declares("needs_numbers") else "acc"
    keys = ["num-examples", "train-examples", "both-examples"]
    keys += [f"{part}_{name}" for part in ("eval", "train", "both") for name in (score, "loss")]
    keys += [f"{part}_{name}?" for part in ("eval", "both") for name in metrics]  # undefined metrics are left out
    what, keys = "scores on its examples, numbers of examples", [*_names("evaluate/metrics", *keys)]
    yield Disclosed(what, "all clients", "each evaluation", "evaluation.every", tuple(keys))


def _in_adaptation(federation: Federation) -> Iterator[Disclosed]:
    if not federation.adapts:
        return
    hides, fit = federation.label_statistics.only_sum, "query.adaptation"
    keys = _names(fit, "metrics/num-examples")
    yield Disclosed("number of held-out examples", "participants", "fit of the rule", "", keys)
    if federation.adaptation.query(NO_STATE) is not None:
        what, limit = "sums over labels and outputs", "more participants" if hides else "secure aggregation"
        yield Disclosed(what, "participants", "fit of the rule", limit, (f"{fit}/sums-*/*",), hides)
    names = "*_accuracy", "*_loss", "*_calibration_error", "adapted?", "repaired?"
    keys = _names("evaluate.adaptation/metrics", *names)
    yield Disclosed("scores, decision to adapt", "all clients", "after the fit", "no adaptation", keys)
