"""What reaches the server in a run is what `what_the_server_learns` lists: no data more, no data fewer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedreach._util.arrays import Floats
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.registry import table
from fedreach.evaluation.modes import DECISIONS, Score, mode_names
from fedreach.federation.base import Selection
from fedreach.federation.disclosure import Disclosed, what_the_server_learns
from fedreach.federation.labels import released_entropy
from fedreach.federation.round import server_trains
from fedreach.federation.secure_aggregation import FixedPoint, Words, mean_of
from fedreach.federation.server import ServerOnly
from fedreach.federation.types import Cohort, Probe, ServerView, State
from fedreach.flower.experiment import FlowerExperiment
from fedreach.flower.messages import refuse_without_secure_aggregation_support
from fedreach.flower.tables import FlowerTables
from fedreach.testing.problems import tiny_simulation

from .in_process import InProcess
from .same import rows_of
from .test_equal import TINY
from .test_tables import Hospitals, with_prices, written


class Heard(NamedTuple):
    """One named value in a reply of a client."""

    key: str  # as in `Disclosed.keys`
    client: int
    round: int | None
    is_masked: bool


class Recording:
    """Records what clients send; a mixin of `InProcess`."""

    in_round = False  # Flower itself sends the messages of a round and of an evaluation, FedReach all others

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self.in_round = True
        try:
            return super().send_and_receive(messages, timeout=timeout)  # type: ignore[misc]
        finally:
            self.in_round = False

    def _answer(self, client: int, message: Message) -> Message:
        reply: Message = super()._answer(client, message)  # type: ignore[misc]
        self.heard = getattr(self, "heard", [])
        self.heard += heard_in(client, message, reply, in_round=self.in_round)
        return reply


class RecordingClients(Recording, InProcess):
    """Clients of an experiment."""


class RecordingHospitals(Recording, Hospitals):
    """Clients with a table each."""


def heard_in(client: int, message: Message, reply: Message, *, in_round: bool) -> Iterator[Heard]:
    """Yield the values in a reply, without the parts of the request that it repeats."""
    kind, asked = message.metadata.message_type, message.content.config_records.get("fedreach", {})
    if kind == "train" and not in_round and "memory" not in message.content.array_records:
        kind = "probe"
    number = asked.get("round")
    if reply.has_error():
        yield Heard("error", client, number, False)
        return
    content = reply.content
    assert {*content} == {*content.array_records, *content.metric_records, *content.config_records}
    for name, record in content.config_records.items():
        for key, value in record.items():
            if key == "told":
                yield from (Heard(f"{kind}/told/{part}", client, number, False) for part in json.loads(str(value)))
            elif name != "fedreach" or (asked.get(key) != value and key != "digest"):  # of the other values
                yield Heard(f"{kind}/{name}/{key}", client, number, False)
    for name, record in content.metric_records.items():
        yield from (Heard(f"{kind}/{name}/{key}", client, number, False) for key in record)
    for name, record in content.array_records.items():
        for key, array in record.items():
            values = array.numpy()
            if values.size:
                yield Heard(f"{kind}/{name}/{key}", client, number, values.dtype == np.uint64)


def check_learned(
    learned: list[Disclosed], heard: list[Heard], participants: set[int], unseen: set[int], rows: list[dict[str, Any]]
) -> None:
    """Assert that the values in the replies are those of the list, from the clients and in the form that it names."""
    patterns = {key.removesuffix("?"): row for row in learned for key in row.keys}
    assert len(patterns) == sum(len(row.keys) for row in learned), "one key in two rows"
    matches = {key: [p for p in patterns if fnmatchcase(key, p)] for key in {each.key for each in heard}}
    assert {key for key, found in matches.items() if len(found) != 1} == set(), "the list lacks it, or has it twice"
    required = {key for row in learned for key in row.keys if not key.endswith("?")}
    assert required - {found[0] for found in matches.values()} == set(), "the list names it, but no client sent it"
    cohorts = {row["round"]: {*row["cohort"], *map(int, row["lost"])} for row in rows}
    probed = {row["round"] for row in rows if row["probe_bytes"]}
    senders: dict[Disclosed, set[int]] = {}
    for each in heard:
        row = patterns[matches[each.key][0]]
        senders.setdefault(row, set()).add(each.client)
        assert each.is_masked == row.summed, each
        if row.whose == "cohort":
            assert each.client in cohorts[each.round], each
        elif row.whose == "probed clients":
            assert each.round in probed, each
    for row, clients in senders.items():
        if row.whose != "all clients":
            assert clients <= participants, row
        elif row.keys != ("error?",):
            assert clients & unseen, row


BOTH = "population.participants=10", "partition.clients=13", "partition.alpha=1.0"  # ten fit a rule and are scored
RADIO, SERVER, NUMBERS = "radio.name=gigahertz", "server_data.examples=100", "data.name=more.py:numbers"
IID = "partition={name='iid', clients=8}"
EXTRA: Mapping[str, tuple[str, ...]] = {
    "best_channels": (RADIO,),
    "csra": (RADIO,),
    **dict.fromkeys(("safari", "server_only", "fine_tune", "feddf"), (SERVER,)),
    "mse": (NUMBERS, IID),
    "huber": (NUMBERS, IID),
    "batchnorm": (f"model={Path(__file__).with_name('normalised.py')}:net", *BOTH),
    **dict.fromkeys(("label_shift", "bbse", "rlls"), BOTH),
    **dict.fromkeys(("few_labels", "few_shot"), ("model=mlp", *BOTH)),
    "multi_krum": ("method.cohort_size=5",),
    "krum": ("method.cohort_size=5",),
    "trimmed_mean": ("method.cohort_size=5",),
    "dp_fedavg": ("method.selection=poisson", "method.weighting=equal"),
    "dp_ftrl": ("method.selection={name='least_often', max_participations=9}", "method.weighting=equal"),
}
OPTIONS: Mapping[str, str] = {
    "product": "parts=['entropy', 'disagreement']",
    "mix": "parts=['entropy', 'disagreement']",
    "clip": "inner='entropy', max=0.5",
    "clustered": "first_round=1, eps1=1000.0, eps2=0.0, thresholds='absolute'",
    "rademacher": "n_clusters=3",
    "discrete_laplace": "epsilon=1.0",
    "discrete_gaussian": "epsilon=1.0, delta=1e-3",
    "safari": "client_probability=0.5",
    **dict.fromkeys(("dp_fedavg", "dp_ftrl"), "clip=1.0, delta=1e-5, noise_multiplier=1.0"),
    "least_often": "max_participations=9",
}
SECURE = "method.label_statistics=secure_aggregation"
ENTROPY = "method.weighting=entropy"  # so that label statistics have a reader
MORE = """
import numpy as np
from fedreach import from_arrays
def numbers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    return from_arrays(x, x[:, :1], num_classes=0)
"""
KINDS = ("selection", "weighting", "solver", "server", "aggregation", "loss", "adaptation", "label_statistics")
CASES: dict[str, tuple[str, ...]] = {
    f"{kind} {name}": (
        f"method.{kind}={{name='{name}', {OPTIONS.get(name, '')}}}".replace(", }", "}"),
        *EXTRA.get(name, ()),
    )
    for kind in KINDS
    for name in table(kind)
}
CASES |= {f"{case}, labels read": (*CASES[case], ENTROPY) for case in CASES if case.startswith("label_statistics")}
CASES |= {
    "losses of a batch": ("method.selection={name='power_of_choice', loss='batch', batch_size=8}",),
    "a probe of clients that store a vector": ("method.selection=minimax", "method.solver=scaffold"),
    "noise of clients": (
        f"method.aggregation={{name='dp_fedavg', {OPTIONS['dp_fedavg']}}}",
        "method.selection=full",
        "method.weighting=equal",
    ),
    "more metrics": ("evaluation.metrics=['macro_f1', 'auroc']",),
    "counts and entropies": ("method.selection=kl_filter", ENTROPY),
    "noise, counts and entropies": (
        "method.selection=kl_filter",
        ENTROPY,
        "method.label_statistics={name='discrete_laplace', epsilon=1.0}",
    ),
}


def setup_of(folder: Path, *overrides: str) -> FlowerExperiment:
    (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
    (folder / "more.py").write_text(MORE, encoding="utf-8")
    return FlowerExperiment(folder / "tiny.toml", overrides=("rounds=3", *overrides))


def check_run(
    folder: Path,
    setup: FlowerExperiment,
    learned: list[Disclosed] | None = None,
    after: Callable[[InProcess, int, Message], None] = lambda grid, client, message: None,
) -> list[Disclosed]:
    """Run an experiment, compare what clients send with the list, and return the list.

    `after` is called after each reply, and `learned` replaces the list.
    """

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        after(grid, client, message)
        return reply

    strategy, population = setup.strategy(folder / "flower", timeout=1, patience=1), setup.data.population
    grid = RecordingClients(setup.client_app(), range(setup.data.num_clients), answering=answering)
    strategy.run(grid)
    federation = setup.simulation.federation
    learned = learned or what_the_server_learns(federation, metrics=[metric.name for metric in strategy.metrics])
    clients = set(population.participants.tolist()), set(population.unseen.tolist())
    check_learned(learned, grid.heard, *clients, rows_of(folder / "flower"))
    base, more = mode_names(federation.adaptation, (5, 20), online=True)
    known = {f"{mode}_{name}" for mode in chain(base, *more) for name in Score._fields} | {*DECISIONS}
    sent = {each.key.rpartition("/")[2] for each in grid.heard if each.key.startswith("evaluate.adaptation/")}
    assert sent <= known
    return learned


def later(*quick: str) -> list[Any]:
    """Return all cases, those that are not quick marked as slow."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("case", later("selection minimax", "weighting disagreement"))
def test_the_server_receives_what_the_list_names(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_run(tmp_path, setup_of(tmp_path, *CASES[case]))


@pytest.mark.parametrize("case", later("weighting entropy", "noise of clients"))
def test_the_server_receives_what_the_list_names_of_secure_aggregation(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        setup = setup_of(tmp_path, *CASES[case], SECURE)
        federation = setup.simulation.federation
        refuse_without_secure_aggregation_support(federation)
    except ConfigError as error:
        pytest.skip(f"refused: {error}")
    learned = check_run(tmp_path, setup)
    assert all(data.summed for data in learned if "update" in data.what)
    assert not any(key.startswith("query.labels") for data in learned for key in data.keys)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [(), (SECURE,)], ids=["exact", "secure"])
@pytest.mark.parametrize("write", [written, with_prices], ids=["classes", "numbers"])
def test_the_list_names_what_clients_with_a_table_send(
    write: Callable[[Path], Path], secure: tuple[str, ...], tmp_path: Path
) -> None:
    setup = FlowerTables(write(tmp_path), overrides=secure)
    grid = RecordingHospitals(setup, tmp_path)
    setup.run(grid, tmp_path / "flower", patience=5, timeout=1)
    learned = what_the_server_learns(setup.builder.federation(setup.seed), tables=True)
    check_learned(learned, grid.heard, {0, 1, 2}, {3}, rows_of(tmp_path / "flower"))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["method.solver=scaffold", "method.loss=moon"])
def test_the_list_names_that_a_client_lost_its_vector(part: str, tmp_path: Path) -> None:
    def restart(grid: InProcess, client: int, message: Message) -> None:
        if message.metadata.message_type == "evaluate":
            grid.restart(client)

    setup = setup_of(tmp_path, part)
    learned = what_the_server_learns(setup.simulation.federation)
    (row,) = [data for data in learned if "train/metrics/lacks-memory-of-round?" in data.keys]
    sure = replace(row, keys=tuple(key.removesuffix("?") for key in row.keys))
    check_run(tmp_path, setup, [sure if data is row else data for data in learned], restart)


# --------------------------------------------------------------------------------------------- lists that are wrong


@dataclass(frozen=True)
class Quiet(Selection):
    """Asks all clients for their updates before the first selection, and declares nothing."""

    def probe(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Probe | None:
        return Probe(view.available_ids, asks="update") if view.round == 1 else None

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(view.available_ids[:k])


def test_a_selection_that_asks_for_more_than_it_declares_is_refused(tmp_path: Path) -> None:
    setup = setup_of(tmp_path)
    setup.simulation = replace(setup.simulation, federation=replace(setup.simulation.federation, selection=Quiet()))
    with pytest.raises(ComponentError, match=r"Quiet.probe asks for updates .* Set `reads_updates = True`"):
        check_run(tmp_path, setup)


def test_a_custom_selection_that_asks_for_updates_is_covered_by_its_attributes(tmp_path: Path) -> None:
    class Open(Quiet):
        reads_updates = True

    setup = setup_of(tmp_path)
    setup.simulation = replace(setup.simulation, federation=replace(setup.simulation.federation, selection=Open()))
    learned = check_run(tmp_path, setup)
    assert next(data.what for data in learned if data.whose == "probed clients").startswith("update")


def test_a_server_that_lets_clients_train_although_it_declares_to_train_alone_is_refused() -> None:
    class Seldom(ServerOnly):
        trains_alone = True

        def trains(self, rng: np.random.Generator) -> bool:
            return False

    tiny = tiny_simulation()
    with pytest.raises(ComponentError, match=r"Seldom.trains must return True in all rounds"):
        server_trains(replace(tiny.federation, server=Seldom()), tiny.start())


def test_a_wrong_list_is_found(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, "rounds=1")
    grid = RecordingClients(setup.client_app(), range(8))
    setup.strategy(tmp_path / "flower", timeout=1, patience=1).run(grid)
    participants, rows = set(setup.data.population.participants.tolist()), rows_of(tmp_path / "flower")
    learned = what_the_server_learns(setup.simulation.federation)
    (update,) = [data for data in learned if data.what == "update"]
    more = Disclosed("labels", "participants", "before round 1", keys=("query.labels/labels/label_counts",))
    faults = {
        "the list lacks it": [],
        "no client sent it": [update, more],
        "Heard": [replace(update, summed=True)],
        "Disclosed": [replace(update, whose="all clients")],
    }
    for message, wrong in {"": [update], **faults}.items():
        changed = [*(data for data in learned if data is not update), *wrong]
        expected = pytest.raises(AssertionError, match=message) if message else nullcontext()
        with expected:
            check_learned(changed, grid.heard, participants, set(range(8)) - participants, rows)


# --------------------------------------------------------------------- what follows from the sums of many rounds


def entropies_from_sums(folder: Path, *overrides: str) -> tuple[Floats, Floats, int]:
    """Return the label entropies that a server computes from what it received, the true ones, and the rank."""
    setup = setup_of(folder, "rounds=8", SECURE, "method.weighting=entropy", "evaluation.every=8", *overrides)
    sums: dict[int, Words] = {}
    cohorts: dict[int, list[int]] = {}

    strategy = setup.strategy(folder / "flower", timeout=1, patience=1)

    def answering(client: int, message: Message, answer: Callable[[], Message]) -> Message:
        if message.metadata.message_type == "train":
            cohorts.setdefault(message.content["fedreach"]["round"], []).append(client)
        return answer()

    def noting(total: Words, code: FixedPoint, replies: int) -> Floats:
        sums[len(sums) + 1] = total[-1:]  # what the server unmasks
        return mean_of(total, code, replies)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedreach.flower.rounds.mean_of", noting)
        strategy.run(InProcess(setup.client_app(), range(8), answering=answering))
    participants = setup.data.population.participants.tolist()
    matrix = np.array([[client in cohorts[number] for client in participants] for number in sums], float)
    totals = [float(FixedPoint(len(cohorts[number])).decode(words)[0]) for number, words in sums.items()]
    weights, *_ = np.linalg.lstsq(matrix, np.array(totals), rcond=None)
    counts = setup.data.label_counts()[participants]
    return np.log(weights), released_entropy(counts.astype(float)), int(np.linalg.matrix_rank(matrix))


def test_a_server_computes_single_label_entropies_from_the_sums_of_weights_of_many_rounds(tmp_path: Path) -> None:
    computed, true, rank = entropies_from_sums(tmp_path)
    assert rank == len(true) == 5
    np.testing.assert_allclose(computed, true, atol=1e-8)


@pytest.mark.slow
def test_cohorts_that_never_change_reveal_only_their_sum(tmp_path: Path) -> None:
    computed, true, rank = entropies_from_sums(tmp_path, "method.selection=full")
    assert rank == 1
    assert np.abs(computed - true).max() > 0.1
