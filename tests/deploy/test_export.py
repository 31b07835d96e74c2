"""A fitted rule as one archive: the same bits as here, where there is nothing but numpy."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.conftest import TINY, Command

from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.cli import main
from fedreach.data.sets import load as load_data
from fedreach.deploy.fitted_rule import load
from fedreach.deploy.program import adapter_archive, export, modules
from fedreach.federation.adaptation.base import Unadapted
from fedreach.federation.adaptation.few_labels import FewLabels
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BBSE, OraclePrior

MINE = """
from dataclasses import dataclass
from typing import TYPE_CHECKING
import numpy as np
import fedreach as fr
from fedreach.federation.adaptation import base as priors
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.types import NO_STATE

if TYPE_CHECKING:
    from fedreach.engines.models.networks import build


@dataclass(frozen=True)
class Mine(fr.Adaptation):
    '''Counts argmaxes.'''

    pull: float = 1.0

    def query(self, state):
        return None if state else NO_STATE

    def contribute(self, query, outputs, labels, counts):
        return {"held_out": np.bincount(labels, minlength=outputs.logits.shape[1]).astype(float)}

    def fold(self, state, sums):
        return {"base": priors.source_prior(sums["held_out"])}

    def start(self, state):
        return {"prior": state["base"], "seen": np.zeros(len(state["base"]))}

    def update(self, state, client, outputs: fr.types.Outputs):
        seen = client["seen"] + np.eye(len(state["base"]))[outputs.logits.argmax(axis=1)].sum(axis=0)
        return {"prior": (seen + self.pull * state["base"]) / (seen.sum() + self.pull), "seen": seen}

    def predict(self, state, client, outputs):
        return log_softmax(outputs.logits + np.log(client["prior"]) - np.log(state["base"]))
"""

RULES = {
    "shift": '{ name = "label_shift", strength = 1.0 }',
    "online": '{ name = "label_shift", guard = false, online = true, strength = 1.0 }',
    "bbse": '{ name = "bbse", hard = true }',
    "rlls": '"rlls"',
    "mine": '{ name = "mine.py:Mine", pull = 2.0 }',
    "truth": '"oracle_prior"',
    "few": '{ name = "few_shot", strength = 1.0 }',
    "off": '"label_shift"',
}
STUDY = TINY.replace('name = "linear"', 'name = "mlp"\nhidden = [24]') + "".join(
    f"\n[methods.{name}]\nadaptation = {rule}\n" for name, rule in RULES.items()
)

ALONE = """
import sys


class Nothing:
    '''Finds nothing but numpy and the standard library.'''

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"numpy", *sys.stdlib_module_names, *archives}:
            raise ImportError(name)


archives = set()
sys.meta_path.insert(0, Nothing())
try:
    import fedreach
except ImportError:
    pass
else:
    sys.exit("FedReach can be imported, so that this test says nothing")
archives |= {"client", "fedreach"}
sys.path.insert(0, "client.pyz")
"""
"""What a process begins with that has nothing but numpy, and ``client.pyz`` in its folder."""

FROM_THE_ARCHIVE = """
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "fedreach" and not module.__file__.startswith("client.pyz/"):
        sys.exit(f"{name} is from {module.__file__}")
"""

SERVE = """
import numpy as np


def answers(weights, x):
    h = np.maximum(x.reshape(len(x), -1) @ weights["1.weight"].T + weights["1.bias"], 0)
    return h @ weights["3.weight"].T + weights["3.bias"], h


def adapt(new_adapter, weights, x):
    z, h = answers(weights, x)
    found = {"start": new_adapter(None).predict_proba(z)}
    by_logits = new_adapter(None).fit(z[:20])
    found["fit"] = by_logits.predict_proba(z)
    found["partial_fit"] = by_logits.partial_fit(z[20:]).predict_proba(z)
    found["prior"] = by_logits.prior_
    for name, inputs in {"clean": x, "pale": 0.3 * x + 0.5, "mirrored": x[..., ::-1]}.items():
        z, h = answers(weights, inputs)
        guarded = new_adapter(lambda changed: answers(weights, changed)).fit(z, h, inputs)
        found[name] = guarded.predict_proba(z, h, inputs)
        found[name + "_prior"], found[name + "_classes"] = guarded.prior_, guarded.predict(z, h, inputs)
        found[name + "_decision"] = np.array([guarded.decision_, str(guarded.guarded_), str(guarded.n_inputs_)])
    return found
"""


def alone(folder: Path, script: str) -> str:
    """Run a script in a process that has nothing but numpy; return what it printed."""
    code = ALONE + script + FROM_THE_ARCHIVE
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with finished runs, one a rule, in ``out/runs/RULE/seed-0``."""
    from click.testing import CliRunner

    home = tmp_path_factory.mktemp("study")
    (home / "tiny.toml").write_text(STUDY, encoding="utf-8")
    (home / "mine.py").write_text(MINE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        done = CliRunner().invoke(
            main, ["compare", "tiny.toml", "--seeds", "1", "--formats", "none", "--workers", "1", "--out", "out"]
        )
        assert done.exit_code == 0, done.output
        yield home


def run_of(study: Path, rule: str) -> Path:
    return study / "out" / "runs" / rule / "seed-0"


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", ["shift", "online", "bbse", "rlls", "mine"])
def test_the_file_gives_the_bits_of_the_adapter_where_there_is_nothing_but_numpy(
    study: Path, tmp_path: Path, rule: str
) -> None:
    data, folder = load_data("digits"), run_of(study, rule)
    x = (data.train_x[np.flatnonzero(data.train_y < 3)[:60]] / 16).astype(np.float32)  # as the model sees them
    weights = load_file(folder / "last.safetensors")
    export(folder, tmp_path / "client.pyz", base=study)
    np.savez(tmp_path / "world.npz", x=x, **weights)
    alone(
        tmp_path,
        SERVE
        + """
import client
world = dict(np.load("world.npz"))
x = world.pop("x")
np.savez("found.npz", **adapt(client.new_adapter, world, x))
""",
    )
    here: dict[str, Any] = {}
    exec(SERVE, here)
    expected = here["adapt"](lambda model: load(folder, base=study, model=model), weights, x)
    with np.load(tmp_path / "found.npz") as found:
        assert set(found) == set(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name, strict=True)
        if rule == "shift":  # the guard is at work, and decides this and that
            assert found["pale_decision"].tolist() == ["repaired, adapted", "True", "60"]
            assert found["mirrored_decision"].tolist() == ["abstained", "True", "60"]


LABELED = """
import numpy as np


def told(new_adapter, weights, x, y):
    z, h = answers(weights, x)
    some, rest = np.where(np.arange(20) % 2, y[:20], -1), z[20:]
    mine = new_adapter(None).fit(z[:20], h[:20], labels=some)
    found = {"fit": mine.predict_proba(rest, h[20:]), "seen": np.array([mine.n_inputs_, mine.n_labels_])}
    mine.partial_fit(z[:4], h[:4], labels=y[:4])  # labels that arrive after their inputs
    found["late"] = mine.predict_proba(rest, h[20:])
    found["seen_late"] = np.array([mine.n_inputs_, mine.n_labels_])
    found["decision"] = np.array([mine.decision_])
    return found
"""


@pytest.mark.slow
def test_the_file_learns_from_labels_to_the_bits_of_the_adapter(study: Path, tmp_path: Path) -> None:
    data, folder = load_data("digits"), run_of(study, "few")
    rows = np.flatnonzero(data.train_y < 3)[:60]
    x, y = (data.train_x[rows] / 16).astype(np.float32), data.train_y[rows].astype(np.int64)
    weights = load_file(folder / "last.safetensors")
    export(folder, tmp_path / "client.pyz", base=study)
    np.savez(tmp_path / "world.npz", x=x, y=y, **weights)
    script = """
import client
world = dict(np.load("world.npz"))
x, y = world.pop("x"), world.pop("y")
np.savez("found.npz", **told(client.new_adapter, world, x, y))
"""
    alone(tmp_path, SERVE + LABELED + script)
    here: dict[str, Any] = {}
    exec(SERVE + LABELED, here)
    expected = here["told"](lambda model: load(folder, base=study, model=model), weights, x, y)
    with np.load(tmp_path / "found.npz") as found:
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name, strict=True)
        assert found["seen"].tolist() == [10, 10]
        assert found["seen_late"].tolist() == [8, 14]  # two of the four were inputs before; the others came twice
        assert found["decision"][0].startswith("labels, ")
        assert not np.array_equal(found["late"], found["fit"])


@pytest.mark.slow
def test_a_rule_that_participants_do_not_support_is_written_by_force_only(
    fedreach: Command, study: Path, tmp_path: Path
) -> None:
    run, out = run_of(study, "off"), tmp_path / "ward.pyz"
    with pytest.raises(ConfigError, match="do not support label_shift"):
        export(run, out)
    for form, where in (("adapter", out), ("safetensors", tmp_path / "model")):
        done = fedreach("export", run, "--to", form, "--out", where)
        assert done.exit_code == 2, done.output
        assert "--force" in done.output
        assert not where.exists()
        assert fedreach("export", run, "--to", form, "--out", where, "--force").exit_code == 0
        assert where.exists()


def test_what_was_seen_by_one_process_is_gone_on_with_by_another(study: Path, tmp_path: Path) -> None:
    export(run_of(study, "shift"), tmp_path / "client.pyz")
    first = "import client, pickle, numpy as np\nz = np.eye(10)[:4] * 5\nmine = client.new_adapter().fit(z)\n"
    alone(tmp_path, first + "open('mine.pickle', 'wb').write(pickle.dumps(mine))")
    then = "import pickle, numpy as np\nmine = pickle.load(open('mine.pickle', 'rb'))\nz = np.eye(10)[:4] * 5\n"
    said = alone(tmp_path, then + "print(mine.partial_fit(z).n_inputs_, mine.rule)")
    assert said == f"8 {LabelShift(strength=1.0)}\n"


def test_an_error_in_the_file_is_said_and_shows_its_line(study: Path, tmp_path: Path) -> None:
    export(run_of(study, "shift"), tmp_path / "client.pyz")
    script = "import client, traceback\ntry:\n    client.new_adapter().fit([[1.0]])\nexcept ValueError:\n"
    said = alone(tmp_path, script + "    print(traceback.format_exc())")
    assert "logits must be finite numbers of shape (m, 10); got shape (1, 1)" in said
    assert "= self._outputs(logits, features, inputs)" in said


def test_the_file_says_where_it_is_from_and_names_no_folder(study: Path, tmp_path: Path) -> None:
    for folder in ("once", "again"):
        export(run_of(study, "mine"), tmp_path / folder / "client.pyz", base=study)
    archive = tmp_path / "once" / "client.pyz"
    assert archive.read_bytes() == (tmp_path / "again" / "client.pyz").read_bytes()
    with zipfile.ZipFile(archive) as archived:
        texts = {name: archived.read(name).decode() for name in archived.namelist() if name.endswith(".py")}
    header = texts["client/__init__.py"]
    assert header.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert "but for rule.py, which is its author's" in header
    done = subprocess.run([sys.executable, "-I", archive], capture_output=True, text=True, check=True)
    for said in ("name: tiny", "method: mine", "seed: 0", "model: last", "round: 4", "rule: Mine(pull=2.0)"):
        assert f"\n{said}\n" in done.stdout
    for text in texts.values():
        assert str(tmp_path) not in text
        assert str(study) not in text
        assert str(Path(__file__).parents[2]) not in text


def test_an_archive_is_not_mixed_with_another_version_of_fedreach(study: Path, tmp_path: Path) -> None:
    export(run_of(study, "shift"), tmp_path / "client.pyz")
    script = "import fedreach\nfedreach.__version__ = '0.0.1'\ntry:\n    import client\nexcept ImportError as error:\n"
    said = alone(tmp_path, script + "    print(error)")
    assert "this process has already imported FedReach 0.0.1. Use a new process." in said


def test_the_best_model_has_a_file_of_its_own(study: Path, tmp_path: Path) -> None:
    saved = export(run_of(study, "bbse"), tmp_path / "client.pyz", "best")
    best = load(run_of(study, "bbse"), "best")
    assert (
        saved.round
        == json.loads((run_of(study, "bbse") / "adaptation.json").read_text(encoding="utf-8"))["rounds"]["best"]
    )
    alone(tmp_path, "import client, numpy as np\nnp.savez('state.npz', **client.STATE)")
    with np.load(tmp_path / "state.npz") as state:
        assert set(state) == set(best.state)
        for name, values in best.state.items():
            np.testing.assert_array_equal(state[name], values, strict=True)


def test_the_plain_model_can_be_written_too(tmp_path: Path) -> None:
    (tmp_path / "client.pyz").write_bytes(adapter_archive(Unadapted(), {}, {"rule": "none"}, "client"))
    said = alone(tmp_path, "import client\nprint(client.new_adapter().fit([[0.0, 0.0]]).predict_proba([[0.0, 0.0]]))")
    assert said == "[[0.5 0.5]]\n"


def test_nothing_is_taken_that_the_rule_does_not_need() -> None:
    names = {name.removeprefix("fedreach.federation.") for name in modules([LabelShift.__module__])}
    assert {"adaptation.label_shift", "adaptation.safeguard", "adaptation.base", "base"} <= names
    assert not names & {"adaptation", "adaptation.methods", "labels", "checks", "fedreach._util.registry"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import torch", r"mine\.py, line 1: .* may import numpy, .*; got 'import torch'"),
        ("def late():\n    from scipy import linalg", r"mine\.py, line 2: .*; got 'from scipy import linalg'"),
        ("from fedreach.engines.models.flat import Layout", r"mine\.py -> flat\.py, line \d+: .*torch"),
        ("from . import helpers", r"mine\.py, line 1: .* without imports of other local files"),
        ("import fedreach as fr\nfr.run()", r"mine\.py -> run\.py -> .*line \d+: .* may import numpy"),
    ],
)
def test_a_rule_that_needs_more_than_numpy_is_refused_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        modules([], tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("from fedreach._util.errors import (\n    check as a, nearest,\n)", {"_util.errors"}),
        ("from fedreach.federation.adaptation import safeguard as d", {"federation.adaptation.safeguard"}),
        ("from fedreach.federation.weighting import *", {"federation.weighting"}),
        ("import fedreach.federation.types", {"federation.types"}),
        ("import fedreach as fr\nfr.Adaptation, fr.types.Outputs", {"federation.base", "federation.types"}),
        ("from fedreach import Adaptation, types", {"federation.base", "federation.types"}),
        ("import fedreach as fr\nfr.adaptation.BBSE()", {"federation.adaptation", "federation.adaptation.methods"}),
    ],
)
def test_each_way_to_import_from_fedreach_is_followed(tmp_path: Path, line: str, needed: set[str]) -> None:
    (tmp_path / "mine.py").write_text(f"{line}\n", encoding="utf-8")
    assert {f"fedreach.{name}" for name in needed} <= set(modules([], tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (OraclePrior(), "OraclePrior needs labels of the clients that it adapts"),
        (FewLabels(), "FewLabels needs labels of the clients that it adapts"),
        (LabelShift(odds=np.float32(3.0)), r"LabelShift\.odds must be a number, a text"),
    ],
)
def test_a_rule_that_cannot_be_deployed_is_refused(rule: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        adapter_archive(rule, {"base": np.ones(2)}, {})


def test_a_folder_that_holds_no_fitted_rule_says_why(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "client.pyz"
    with pytest.raises(RunFolderError, match=r"is a comparison\. Name one of its runs, such as .*uniform.seed-0"):
        export(study / "out", out)
    with pytest.raises(RunFolderError, match=r"did not fit an adaptation rule\. Run with method\.adaptation"):
        export(run_of(study, "uniform"), out)
    with pytest.raises(RunFolderError, match=r"is not a run folder: run\.json not found"):
        export(tmp_path, out)
    with pytest.raises(RunFolderError, match=r"has no rule 'last/1'; it has 'best', 'last'"):
        export(run_of(study, "bbse"), out, cluster=1)
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "run.json").write_bytes((run_of(study, "bbse") / "run.json").read_bytes())
    with pytest.raises(RunFolderError, match=r"The run is not finished\. Rerun the command to resume it"):
        export(begun, out)
    assert not out.exists()


def test_a_rule_whose_file_was_changed_is_not_taken_for_the_fitted_one(study: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("self.pull * ", ""), encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"mine\.py changed after the run with mine\.py:Mine"):
        export(run_of(study, "mine"), tmp_path / "client.pyz", base=tmp_path, trust_code=True)


def test_no_file_is_written_over_and_none_that_cannot_be_imported(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "client.pyz"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"already exists"):
        export(run_of(study, "bbse"), out)
    assert out.read_text(encoding="utf-8") == "mine"
    for name in ("client.npz", "my-client.pyz", "fedreach.pyz"):
        with pytest.raises(ConfigError, match="must be named as a Python module"):
            export(run_of(study, "bbse"), tmp_path / name)


def test_the_command_writes_the_file_and_says_so(fedreach: Command, study: Path, tmp_path: Path) -> None:
    done = fedreach("export", run_of(study, "bbse"), "--to", "adapter", "--out", tmp_path / "x" / "ward.pyz")
    assert done.exit_code == 0, done.output
    assert "BBSE of bbse, seed 0, round 4" in done.output
    assert (tmp_path / "x" / "ward.pyz").exists()
    told = fedreach("export", run_of(study, "bbse"), "--to", "adapter", "--out", tmp_path / "y.pyz", "--json")
    assert json.loads(told.stdout)["rule"] == repr(replace(BBSE(), hard=True))
