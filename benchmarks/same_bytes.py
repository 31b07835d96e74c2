"""Check that an older and a newer FedReach give the same bytes: both run small experiments, and all files are compared.

    python benchmarks/same_bytes.py HEAD~3                    # a revision, beside the working tree
    python benchmarks/same_bytes.py ../old --only killed labels
    python benchmarks/same_bytes.py --list

Each checkout is copied first, so that it may change meanwhile. It runs through its command line, in its own processes
and folder, with the same files. Output and exit codes are compared as well. All files must have the same bytes, except
for what `MASKED` lists and the places of the two copies. Exits with status 0 if they do, 1 if not, and 2 if the older
checkout cannot run something.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("src", "papers", "examples", "tests/flower")  # of a checkout
SECONDS = 300  # a command that takes longer hangs
TOLD = 8  # files of an experiment that are told of
DATA = (".jsonl", ".json", ".safetensors", ".npz", ".csv", ".npy")  # files of results
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8}

MASKED = {
    "digests of records": (r".*\.json", r"(?<=\"sha256\": \")[0-9a-f]{64}(?=\"\n\})"),
    "seconds of rounds": (r"timing\.jsonl", r"(?<=_seconds\": )[0-9.e-]+|(?<=\"check\": \")[0-9a-f]+"),
    "their mean on the page": (r"index\.html", r"(?s)<h3>Seconds per round[^<]*</h3>.*?</table>"),
    "seconds of progress": (r"std.*", r"\d+:\d\d(?= left|, |\))|[0-9.]+(?= s/round| s/evaluation)"),
    "seconds of a command": (r"std.*", r"(?<= in )[0-9.]+(?= ?s\b)"),
    "the version": (r"run\.json|index\.html", r"((?<=\"fedreach\": \")|(?<=<dt>fedreach</dt><dd>))[^\"<]+"),
    "what a run on Flower draws by chance": (r"facts\.json", r"((?<=\"run\": \")|(?<=\"public_key\": \"))[0-9a-f]+"),
}
"""What is left out of a comparison, by the pattern of a file's name and that of the text."""

RENAMED = {
    "local.lr": "local.rate",
    "lr = ": "rate = ",
    "cohort_size": "cohort",
    "examples_per_client": "samples_per_client",
    "secure_aggregation": "secure_sum",
    "engine.name=manual": "engine.name=chain",
    "engine.name=vmap": "engine.name=stacked",
}
"""Terms in files and commands -> those of checkouts before the terms were renamed."""

RENAMED_RESULTS = {
    r'(?<=[" ])id_(?=[a-z]+)': "participant_",
    r"(?<=_)plain(?=_)": "unadapted",
    r"served": "adapted",
    r"serving": "adaptation",
    r"true_prior": "oracle_prior",
    r"secure_sum": "secure_aggregation",
    r'(?<="local": \{")rate|(?<=local\.)rate': "lr",
    r'(?<=")(seconds|joules)_price': lambda match: {"seconds": "time_weight", "joules": "energy_weight"}[match[1]],
    r'(?<=")cohort(?=": \d)': "cohort_size",
    r'(?<="format": )3\b': "4",
    r"(?<=\")detectable": "mde",
    r"\bverdict": "conclusion",
    r"not decided": "inconclusive",
    r'(?<=")chain(?=")': "manual",
    r'(?<=")stacked(?=")': "vmap",
    r"facts(?=\.json)": "client_statistics",
}
"""What stands in results of such checkouts -> the terms of today."""

USUAL = """
name = "same"
rounds = 6
evaluation.every = 2
partition = { clients = 14, alpha = 0.5 }
population.participants = 10
model = { name = "mlp", hidden = [24] }
local = { batch_size = 16 }
engine = { name = "native", threads = 1 }
method.cohort_size = 4
"""
"""The start of ``same.toml`` in each experiment."""

OWN = """
import time
from dataclasses import dataclass

import numpy as np
from torch import nn

import fedreach as fr


@dataclass(frozen=True)
class Waiting(fr.Selection):
    rest: int = 0

    def init(self, view):
        return {"waited": np.full(len(view.ids), self.rest), "ids": view.ids}

    def probe(self, state, view, k, rng):
        return None

    def select(self, state, view, k, rng):
        waited = state["waited"] + rng.random(len(view.ids))
        return fr.Cohort(view.ids[view.available][np.argsort(-waited[view.available])[:k]])

    def observe(self, state, reports):
        return {**state, "waited": np.where(np.isin(state["ids"], reports.ids), 0, state["waited"] + 1)}


def most_data(view, k, rng):
    return view.ids[view.available][np.argsort(-view.num_examples[view.available])[:k]]


def by_root(reports):
    return np.sqrt(reports.metrics["num_examples"])


def slow(reports):
    time.sleep(0.05)
    return np.ones(len(reports.ids))


def wrong(view, k, rng):
    return view.ids[[0, 0]]


def fails(reports):
    raise ValueError("on purpose")


def net(sample_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, num_classes))
"""
"""``own.py`` in each experiment: only what is public is imported."""

FLOWER = """
import sys
from pathlib import Path

sys.path.append(sys.argv[1])
from in_process import InProcess

from fedreach.flower.experiment import FlowerExperiment

PARTS = {
    "memory": ["method.selection=minimax", "method.weighting=entropy", "method.solver=scaffold"],
    "losses": ['method.selection={name="power_of_choice", loss="batch", batch_size=8}', "method.solver=feddyn"],
    "clusters": ['method.selection={name="clustered", eps1=1000.0, eps2=0.0, thresholds="absolute", first_round=1}'],
    "secure": ["method.label_statistics=secure_aggregation", "method.weighting=entropy",
               'noise={name="symmetric", rate=0.3}'],
    "server": ['method.server={name="safari", client_probability=0.5}', "server_data.examples=100"],
    "lost": ["method.selection=csra", "radio.name=gigahertz", "population.participation.name=bernoulli",
             "population.participation.act_prob=0.8", "population.participation.reply_prob=0.7"],
}
for name, parts in PARTS.items():
    setup = FlowerExperiment("same.toml", overrides=("engine.name=sequential", "evaluation.local=false", *parts))
    setup.strategy(Path(name), timeout=5, patience=5).run(InProcess(setup.client_app(), range(14)))
"""
"""``flower.py`` in each experiment: its grid is that of the tests, which hands messages over in one process."""

COMPARE = "compare same.toml --out c --workers 1 --formats svg"
MEMORY = "--set method.solver=scaffold --set method.selection=minimax --set method.server=yogi"
SLOW = f"run same.toml --out r -q {MEMORY} --set method.weighting=own.py:slow --set run.checkpoint_seconds=0.2"
ALLOCATE = "allocate CHECKOUT/examples/clients.csv --bandwidth 2e6 --model-parameters 62006 --bits-per-example 24576"
IMAGES = "run same.toml -q --set data.name=fashion_mnist --set model={name='lenet'} --set local.steps=2 --set rounds=2"
TRAINING = """
methods.fedavg = {}
methods.loss.selection = { name = "power_of_choice", candidates = 7 }
methods.loss.solver = { name = "fedprox", mu = 0.1 }
methods.loss.local = { momentum = 0.5, weight_decay = 0.01, clip_norm = 1.0, schedule = "cosine", decay = 0.1 }
methods.scaffold = { selection = "minimax", solver = "scaffold", server = "yogi" }
methods.feddyn.selection = { name = "power_of_choice", loss = "batch", batch_size = 8 }
methods.feddyn.weighting = "disagreement"
methods.feddyn.solver = "feddyn"
methods.feddyn.server = "adam"
methods.rademacher.selection = { name = "rademacher", every = 2 }
methods.rademacher.local = { steps = 3, schedule = "exponential", decay = 0.9 }
"""


class Experiment(NamedTuple):
    """Commands, one a line: FedReach's, or a program of Python, or, after the word ranks, those of two processes.

    After an arrow stands how a command ends, if not with 0: with another code, or killed after so many rows of its run.
    CHECKOUT is the folder of the checkout, OLDER that of the older one.
    """

    commands: str
    methods: str = ""  # the end of ``same.toml``


EXPERIMENTS = {
    "native": Experiment(f"{COMPARE} -q", TRAINING),
    "manual": Experiment(f"{COMPARE} -q --set engine.name=manual", TRAINING),
    "sequential": Experiment(
        f"{COMPARE} -q --set engine.name=sequential --set engine.threads=2 --set model={{name='own.py:net'}}", TRAINING
    ),
    "vmap": Experiment(f"{COMPARE} -q --set engine.name=vmap", TRAINING),
    "images": Experiment(f"""
{IMAGES} --set engine.name=manual --set evaluation.examples_per_client=9 --out c
{IMAGES} --set engine.name=vmap --set evaluation.examples_per_client=9 --out s
"""),
    "selection": Experiment(
        f"{COMPARE} -q",
        """
methods.full = { selection = "full" }
methods.last_loss = { selection = { name = "power_of_choice", loss = "last" } }
methods.entropy_topk = { selection = "entropy_topk" }
methods.kl_filter = { selection = "kl_filter" }
methods.clustered.selection = { name = "clustered", eps1 = 2.0, eps2 = 0.0, first_round = 2 }
methods.clustered.solver = "scaffold"
methods.clustered.cohort_size = 10
methods.clustered_feddyn.selection.name = "clustered"
methods.clustered_feddyn.selection.thresholds = "absolute"
methods.clustered_feddyn.selection.eps1 = 1000.0
methods.clustered_feddyn.selection.eps2 = 0.0
methods.clustered_feddyn.selection.first_round = 1
methods.clustered_feddyn.selection.sketch = 8
methods.clustered_feddyn.solver = { name = "feddyn", alpha = 0.1 }
methods.clustered_feddyn.cohort_size = 10
methods.rademacher.selection = { name = "rademacher", use = "soft", estimator = "closed_form", every = 3 }
methods.max_similarity = { selection = { name = "max_similarity", refresh = 2 } }
methods.minimax = { selection = { name = "minimax", sketch = 16, dtype = "float16", storage = "disk" } }
methods.convex_hull = { selection = "convex_hull" }
methods.hull_distance = { selection = "hull_distance" }
methods.interior = { selection = { name = "interior", normalize = true } }
""",
    ),
    "weighting": Experiment(
        f"""
{COMPARE} --seeds 2
report c/runs/equal/seed-0 c/runs/entropy/seed-0 --out some --formats pdf --json
""",
        """
baseline = "equal"
target_accuracy = 0.5
methods.equal = { weighting = "equal" }
methods.entropy = { weighting = { name = "entropy", temperature = 0.5 } }
methods.disagreement.weighting = { name = "disagreement", confidence = 0.9 }
methods.disagreement.server = { name = "average", lr = 0.7, momentum = 0.5 }
methods.combined.weighting.name = "clip"
methods.combined.weighting.times_equal = 2.0
methods.combined.weighting.inner = { name = "product", parts = ["entropy", "disagreement"] }
methods.combined.server = { name = "torch_optim", optimizer = "RMSprop", lr = 0.01 }
methods.mixed.weighting = { name = "mix", parts = ["equal", "by_examples"], shares = [0.3, 0.7] }
methods.mixed.solver = { name = "scaffold", memory_dtype = "float16" }
""",
    ),
    "labels": Experiment(
        f"{COMPARE} -q --set partition={{name='dirichlet_by_client',clients=14,alpha=0.3,sigma=0.3}}",
        """
noise = { name = "symmetric", rate = 0.2, scope = "per_client" }
method.weighting = "entropy"
methods.secure_aggregation = { label_statistics = "secure_aggregation" }
methods.secure_disagreement = { weighting = "disagreement", label_statistics = "secure_aggregation" }
methods.gaussian.selection = "entropy_topk"
methods.gaussian.label_statistics = { name = "discrete_gaussian", epsilon = 1.0, delta = 1e-5 }
methods.laplace = { selection = "kl_filter", label_statistics = { name = "discrete_laplace", epsilon = 1.0 } }
""",
    ),
    "radio": Experiment(
        f"{COMPARE} --set partition={{name='hybrid',clients=14,share=0.2}}",
        """
radio = { bandwidth_hertz = 1e6 }
methods.csra = { selection = { name = "csra", threshold = 1.0 } }
methods.csra_paper = { selection = { name = "csra", threshold = 1.0, search = "paper" }, allocation = "greedy" }
methods.csra_genetic = { selection = { name = "csra", threshold = 1.0, search = "genetic" }, allocation = "equal" }
methods.random = { selection = "power_of_choice", allocation = "random" }
methods.best_channels = { selection = "best_channels" }
""",
    ),
    "lost": Experiment(
        f"{COMPARE} -q --set partition={{name='shards',clients=14,classes_per_client=3}}",
        """
population.participation = { name = "bernoulli", act_prob = 0.7, reply_prob = 0.6 }
methods.scaffold = { solver = "scaffold" }
methods.feddyn = { selection = "full", solver = "feddyn" }
methods.minimax = { selection = { name = "minimax", refresh = 2 } }
methods.clustered = { selection = { name = "clustered", eps1 = 2.0, eps2 = 0.0, first_round = 1 }, cohort_size = 10 }
methods.secure = { label_statistics = "secure_aggregation", weighting = "entropy" }
""",
    ),
    "server": Experiment(
        f"""
{COMPARE} -q
run same.toml --method safari --out loud --set population.exclude_clients=[3,5] --set evaluation.patience=1
""",
        """
noise = { name = "to_one_class", rate = 0.1 }
server_data.examples = 60
methods.safari = { server = { name = "safari", client_probability = 0.5, batch_size = 16 } }
methods.safari_adam.solver = "scaffold"
methods.safari_adam.weighting = "equal"
methods.safari_adam.server = { name = "safari", inner = "adam", client_probability = 0.5, batch_size = 16 }
methods.server_only = { server = { name = "server_only", batch_size = 16 } }
""",
    ),
    "own": Experiment(
        f"""
{COMPARE}
partition same.toml --save p.npz --plot p.svg
run same.toml --json --out p --set partition.file=p.npz
""",
        """
methods.own = { selection = { name = "own.py:Waiting", rest = 2 }, weighting = "own.py:by_root" }
methods.function = { selection = "own.py:most_data" }
""",
    ),
    "killed": Experiment(f"""
{SLOW} --set rounds=12 -> killed after 4
{SLOW} --set rounds=12 -> killed after 9
{SLOW} --set rounds=12
"""),
    "ranks": Experiment(f"""
ranks run same.toml --out r -q {MEMORY}
report r --formats svg
"""),
    "printed": Experiment(f"""
list
list --json
verify minimax entropy scaffold greedy
verify --list
partition same.toml --json --set partition={{name='iid',clients=14}}
{ALLOCATE} --min-examples 900 --figure a.svg --out a.csv
{ALLOCATE} --min-examples 900 --max-divergence 0.3 --json
{ALLOCATE} --min-examples 3000 --max-divergence 0.06 -> 2
init mine
run mine/experiment.toml --set engine.name=native --set rounds=1 --out e
"""),
    "refused": Experiment("""
run same.toml --set method.wieghting=equal --set local.lr=fast -> 2
run same.toml --set method.selection=minmax -> 2
run same.toml --set model=own.py:net --out a -> 2
run same.toml --set method.selection=own.py:wrong --out b -> 1
run same.toml --set method.weighting=own.py:fails --out c -> 1
verify own.py:wrong -> 1
"""),
    "papers": Experiment("""
papers csra/fig5 --scale smoke --workers 1 --formats svg --out 5
papers csra/fig9a --scale smoke --workers 1 --formats svg --out 9a -q
"""),
    "examples": Experiment("""
CHECKOUT/examples/deeper/11_rounds.py
CHECKOUT/examples/deeper/14_bandwidth.py
"""),
    "flower": Experiment("flower.py OLDER/tests/flower"),
}


class UnusableError(Exception):
    """The older checkout cannot do what it is asked, so that there is nothing to compare with."""


class Step(NamedTuple):
    """A command of an experiment."""

    words: str
    code: int  # with which it ends
    killed_after: int  # rows; 0: not at all

    @classmethod
    def of(cls, line: str) -> Step:
        """Read a line of an experiment."""
        words, _, end = line.partition(" -> ")
        number = int(end.split()[-1]) if end else 0
        return cls(words, 0, number) if "killed" in end else cls(words, number, 0)

    def arguments(self, checkout: Path) -> list[str]:
        """Return what Python is told."""
        before = ["-m", "fedreach"]
        older = str(checkout.parents[1] / "old" / "checkout")
        first, *others = self.words.replace("CHECKOUT", str(checkout)).replace("OLDER", older).split()
        if first == "papers":
            return ["-m", first, *others] if (checkout / first).is_dir() else [*before, "reproduce", *others]
        if first == "ranks":
            return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *before, *others]
        return [first, *others] if first.endswith(".py") else [*before, first, *others]


def steps(name: str) -> list[Step]:
    """Return the commands of an experiment."""
    return [Step.of(line) for line in EXPERIMENTS[name].commands.strip().splitlines()]


# ------------------------------------------------------------------------------------------------- to have them run


def copied(source: str, to: Path) -> Path:
    """Copy what is needed of a folder or of a revision of this repository, so that neither may change meanwhile."""
    if Path(source).is_dir():
        for folder in (Path(source) / name for name in NEEDED):
            if folder.is_dir():
                shutil.copytree(folder, to / folder.relative_to(source), ignore=shutil.ignore_patterns("__pycache__"))
    else:
        git = subprocess.run(["git", "-C", ROOT, "archive", source], capture_output=True, check=False)
        if git.returncode:
            raise UnusableError(f"{source} is neither a folder nor a revision: {git.stderr.decode().strip()}")
        with tarfile.open(fileobj=io.BytesIO(git.stdout)) as archive:
            archive.extractall(to, filter="data")
    if not (to / "src" / "fedreach").is_dir():
        raise UnusableError(f"There is no FedReach in {source}.")
    return to


def python(checkout: Path, words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start Python with a checkout's FedReach; the files ``stdout`` and ``stderr`` take what it prints."""
    switches = {"COLUMNS": "150", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env = {"FEDREACH_DATA": str(ROOT.parent / "shared" / "data"), **os.environ, **switches}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, [checkout / "src", checkout])), "FLWR_HOME": str(folder / ".flwr")}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        return subprocess.Popen([sys.executable, *words], cwd=folder, env=env, stdout=out, stderr=err)


def check_place(checkout: Path, folder: Path) -> None:
    """Make sure that this checkout is imported, and not the one that is installed."""
    folder.mkdir(parents=True)
    python(checkout, ["-c", "import fedreach; print(fedreach.__file__)"], folder).wait(SECONDS)
    place = (folder / "stdout").read_text(encoding="utf-8").strip()
    if not Path(place).is_relative_to(checkout / "src"):
        raise UnusableError(f"Python imports {place or 'nothing'}, and not the FedReach in {checkout}.")
    print(f"{checkout.parent.name}: {place}")


def take(step: Step, checkout: Path, folder: Path) -> int:
    """Run one command to its end, or kill it in mid-run; return its exit code."""
    words = step.arguments(checkout)
    process, began = python(checkout, words, folder), time.monotonic()
    rows = folder / words[words.index("--out") + 1] / "rounds.jsonl" if step.killed_after else None
    try:
        while rows is not None and (not rows.exists() or rows.read_bytes().count(b"\n") < step.killed_after):
            if process.poll() is not None or time.monotonic() > began + SECONDS:
                raise UnusableError(f"It was to be killed after {step.killed_after} rows: {step.words}")
            time.sleep(0.01)
        return step.code if rows is not None else process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()


def is_before_renaming(checkout: Path) -> bool:
    """Return whether a checkout is of before the terms were renamed."""
    return not any(
        "cohort_size: " in path.read_text(encoding="utf-8") for path in (checkout / "src").rglob("schema.py")
    )


def in_older_terms(text: str) -> str:
    """Return files and commands in the terms of older checkouts."""
    for new, old in RENAMED.items():
        text = text.replace(new, old)
    return text


def work(name: str, checkout: Path, folder: Path) -> list[int]:
    """Run an experiment; return the exit codes. What command i prints is kept in ``stdout-i`` and ``stderr-i``."""
    folder.mkdir(parents=True)
    older = is_before_renaming(checkout)
    for file, text in {"same.toml": USUAL + EXPERIMENTS[name].methods, "own.py": OWN, "flower.py": FLOWER}.items():
        (folder / file).write_text(in_older_terms(text) if older else text, encoding="utf-8")
    codes = []
    for number, step in enumerate(steps(name), 1):
        if older:
            step = step._replace(words=in_older_terms(step.words))
        codes.append(take(step, checkout, folder))
        for stream in ("stdout", "stderr"):
            (folder / stream).rename(folder / f"{stream}-{number}")
    return codes


# --------------------------------------------------------------------------------------------------- to compare them


def first_difference(a: Any, b: Any, where: str = "") -> str:
    """Return where two JSON values differ first, their keys in order, and both values there."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key, other in itertools.zip_longest(a, b):
            if key != other:
                return f"key {where}{key!r} became {other!r}"
            if repr(a[key]) != repr(b[key]):
                return first_difference(a[key], b[key], f"{where}{key}.")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            if repr(one) != repr(other):
                return first_difference(one, other, f"{where}{i}.")
    return f"{where.rstrip('.')}: {shown(repr(a), repr(b))}"


def parting(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return how long the two are the same."""
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def shown(a: str, b: str, width: int = 70) -> str:
    """Return two unequal texts side by side, from a little before they part."""
    begin = max(0, parting(a, b) - 25)
    one, other = (
        ("..." if begin else "") + text[begin : begin + width] + ("..." if len(text) > begin + width else "")
        for text in (a, b)
    )
    return f"{one!r} became {other!r}" if begin or '"' in a else f"{one} became {other}"


def tensors(content: bytes) -> tuple[dict[str, Any], dict[str, tuple[Any, bytes]]]:
    """Return the record of a safetensors file, and each tensor's type and shape with its bytes."""
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    record = {key: json.loads(text) for key, text in header.pop("__metadata__", {}).items()}
    return record, {
        name: ((each["dtype"], each["shape"]), content[begin:][slice(*each["data_offsets"])])
        for name, each in header.items()
    }


def in_tensors(a: bytes, b: bytes) -> str:
    """Return what differs in two safetensors files."""
    (record, before), (other, after) = tensors(a), tensors(b)
    if list(before) != list(after):
        return first_difference(dict.fromkeys(before), dict.fromkeys(after), "tensor ")
    for name, (kind, numbers) in before.items():
        if kind != after[name][0]:
            return f"tensor {name!r}: {kind} became {after[name][0]}"
        if numbers != after[name][1]:
            if kind[0] not in DTYPES:
                return f"tensor {name!r} {kind}"
            one, two = (np.frombuffer(raw, DTYPES[kind[0]]).astype(np.float64) for raw in (numbers, after[name][1]))
            return f"tensor {name!r} {kind}: {(one != two).sum()} numbers, by up to {np.abs(one - two).max():.3g}"
    return f"record {first_difference(record, other)}" if record != other else f"byte {parting(a, b)}"


def in_text(name: str, a: str, b: str) -> str:
    """Return the first differing line of two texts; of rows, the first differing key."""
    for number, (one, other) in enumerate(itertools.zip_longest(a.split("\n"), b.split("\n")), 1):
        if one != other:
            if name.endswith(".jsonl") and one and other:
                before, after = json.loads(one), json.loads(other)
                told = first_difference(before, after) if repr(before) != repr(after) else shown(one, other)
                return f"row {number}: {told}"
            return f"line {number}: {shown(one or '(nothing)', other or '(nothing)')}"
    return "ends of lines"


def difference(name: str, old: Path, new: Path, places: tuple[Path, Path]) -> str | None:
    """Return what differs in a file of both, or None."""
    a, b = old.read_bytes(), new.read_bytes()
    if a == b:
        return None
    try:
        if name.endswith(".safetensors"):
            return in_tensors(a, b)
        one, other = (text.decode().replace(str(place), "PLACE") for text, place in zip((a, b), places, strict=True))
        if is_before_renaming(places[0] / "checkout"):
            for pattern, term in RENAMED_RESULTS.items():
                one = re.sub(pattern, term, one)
        for pattern, inner in MASKED.values():
            if re.fullmatch(pattern, Path(name).name):
                one, other = (re.sub(inner, "MASKED", text) for text in (one, other))
        return None if one == other else in_text(name, one, other)
    except (ValueError, KeyError):  # no text, or not what its name says
        return f"byte {parting(a, b)} of {len(a)} and {len(b)}"


def files(folder: Path, numbers_only: bool = False) -> dict[str, Path]:
    """Return all files below a folder by name."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    names = {path: path.relative_to(folder).as_posix() for path in found}
    for old, term in (("serving", "adaptation"), ("served", "adapted"), ("facts.json", "client_statistics.json")):
        names = {path: name.replace(old, term) for path, name in names.items()}
    return {name: path for path, name in names.items() if not numbers_only or path.suffix in DATA}


def differences(name: str, codes: list[list[int]], old: Path, new: Path, numbers_only: bool) -> Iterator[str]:
    """Yield in words what differs between the two folders of an experiment."""
    for number, (step, before, after) in enumerate(zip(steps(name), *codes, strict=True), 1):
        if before != step.code:
            said = (old / f"stderr-{number}").read_text(encoding="utf-8", errors="replace").strip()[-1500:]
            raise UnusableError(f"The older one ended with {before}, not {step.code}, at: {step.words}\n{said}")
        if before != after:
            yield f"exit code {before} became {after}: {step.words}"
    before, after = files(old, numbers_only), files(new, numbers_only)
    for file in sorted({**before, **after}, key=lambda file: (not file.endswith("rounds.jsonl"), file)):  # causes first
        if file not in before or file not in after:
            yield f"{file}: {'new' if file in after else 'missing'}"
        elif told := difference(file, before[file], after[file], (old.parent, new.parent)):
            yield f"{file}: {told}"


def try_out(name: str, home: Path, numbers_only: bool) -> tuple[list[str], int, int]:
    """Run an experiment with both checkouts side by side; return what differs, and how much was compared."""
    sides = [home / "old", home / "new"]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda side: work(name, side / "checkout", side / name), sides))
    found = list(differences(name, codes, *(side / name for side in sides), numbers_only))
    sizes = [path.stat().st_size for path in files(sides[0] / name, numbers_only).values()]
    return found, len(sizes), sum(sizes)


def compare(old: str, new: str, names: list[str], home: Path, numbers_only: bool) -> int:
    """Try these experiments; return the exit code."""
    for source, side in ((old, "old"), (new, "new")):
        check_place(copied(source, home / side / "checkout"), home / side / "place")
    began, different, number, size, unusable = time.monotonic(), 0, 0, 0, 0
    for name in names:
        start = time.monotonic()
        if name == "flower" and find_spec("flwr") is None:
            print(f"{name:12} left out: flwr is not installed")
            continue
        try:
            found, count, length = try_out(name, home, numbers_only)
        except (UnusableError, subprocess.TimeoutExpired) as error:
            print(f"{name:12} COULD NOT BE RUN: {error}", flush=True)
            unusable += 1
            continue
        number, size, different = number + count, size + length, different + len(found)
        conclusion = f"{len(found)} DIFFER" if found else "the same"
        print(f"{name:12} {time.monotonic() - start:5.1f} s  {count:3} files  {conclusion}", flush=True)
        for told in found[:TOLD]:
            print(f"    {told}")
        if len(found) > TOLD:
            print(f"    ... and {len(found) - TOLD} more")
    conclusion = f"{different} DIFFERENCES" if different else "no difference"
    print(
        f"{conclusion} in {number} files, {size:,} bytes, of {len(names)} experiments; {time.monotonic() - began:.0f} s"
    )
    return 2 if unusable else 1 if different else 0


def main() -> int:
    """Read the command line, compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ref", nargs="?", help="the older: a revision of git, or the folder of a checkout")
    parser.add_argument("--new", default=str(ROOT), help="the newer, likewise; default: the checkout of this file")
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, metavar="NAME", help="these experiments only")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this new folder and leave it there")
    parser.add_argument("--numbers", action="store_true", help="results only, without what is printed and drawn")
    parser.add_argument("--list", action="store_true", help="list the experiments and their commands")
    options = parser.parse_args()
    names = options.only or list(EXPERIMENTS)
    if options.list or options.ref is None:
        for name in names:
            print(name, *EXPERIMENTS[name].commands.strip().splitlines(), sep="\n    ")
        return 0 if options.list else 2
    try:
        if options.keep is not None:
            options.keep.mkdir(parents=True)
            return compare(options.ref, options.new, names, options.keep.resolve(), options.numbers)
        with tempfile.TemporaryDirectory(prefix="same-bytes-") as home:
            return compare(options.ref, options.new, names, Path(home).resolve(), options.numbers)
    except (UnusableError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
