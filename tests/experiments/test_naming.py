"""What Python hands over is called by a name, and found by other processes: the same thing by the same name."""

from __future__ import annotations

import copy
import functools
import importlib
import pickle
import subprocess
import sys
import threading
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr
from fedreach._util import registry
from fedreach._util.errors import ConfigError
from fedreach.engines.models.networks import build
from fedreach.engines.models.state import ModuleInstance
from fedreach.experiment import components
from fedreach.experiment.naming import PickleStore, is_importable, to_config, to_toml_value
from fedreach.experiment.schema import Choice
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.random import FunctionSelection, Uniform
from fedreach.federation.weighting import ByEntropy


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PickleStore:
    monkeypatch.chdir(tmp_path)
    return PickleStore(tmp_path / "parts")


@dataclass(frozen=True)
class Mine(fr.Weighting):
    most: int = 3
    names: tuple[str, ...] = ()
    table: Any = None

    def weights(self, reports: Any) -> Any:
        return np.ones(self.most)


def made_here() -> Any:
    """Return a function that no other process can import."""

    def first(view, k, rng):
        return view.ids[:k]

    return first


def read_anew(name: str, shelf: PickleStore) -> Any:
    """Return what a name stands for, as a process that did not make it reads it."""
    shelf.write()
    registry.LOADED_OBJECTS.clear()
    return registry.load_users(name, Path.cwd())


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("selection", "uniform", "uniform"),
        ("selection", Uniform, "uniform"),
        ("selection", Uniform(), "uniform"),
        ("selection", PowerOfChoice(candidates=7), {"name": "power_of_choice", "candidates": 7}),
        ("selection", {"name": PowerOfChoice, "candidates": np.int64(7)}, {"name": "power_of_choice", "candidates": 7}),
        ("model", {"name": "mlp", "hidden": (8, 4)}, {"name": "mlp", "hidden": [8, 4]}),
        ("weighting", {"name": "product", "parts": [ByEntropy(), "equal"]}, None),
        ("metric", np.mean, "numpy:mean"),
        ("weighting", None, None),
        ("weighting", 3, 3),
    ],
)
def test_what_has_a_name_is_called_by_it(shelf, kind, value, expected):
    if expected is None and value is not None:
        expected = {"name": "product", "parts": ["entropy", "equal"]}
    assert to_config(kind, value, shelf) == expected
    assert not shelf.waiting


def test_numbers_lists_and_paths_are_pythons_own():
    made = to_toml_value({"a": np.float32(0.5), "b": (1, np.arange(2)), "c": Path("x/y"), "d": range(2), "e": True})
    assert made == {"a": 0.5, "b": [1, [0, 1]], "c": "x/y", "d": [0, 1], "e": True}
    assert [type(value) for value in (made["a"], made["b"][1][0], made["e"])] == [float, int, bool]


def test_a_part_that_options_do_not_say_is_kept_whole(shelf):
    name = to_config("weighting", Mine(most=5, table=np.arange(3)), shelf)
    made = components.make("weighting", Choice(name=name), Path.cwd())
    assert (made.most, made.table.tolist()) == (5, [0, 1, 2])
    again = read_anew(name, shelf)()
    assert (again.most, again.table.tolist()) == (5, [0, 1, 2])


def test_a_part_of_a_class_that_others_find_is_said_by_its_options(shelf, tmp_path, monkeypatch):
    code = "from dataclasses import dataclass\n@dataclass(frozen=True)\n"
    code += "class Own:\n    most: int = 3\n    names: tuple = ()\n"
    (tmp_path / "told_by_options.py").write_text(code + "    def weights(self, reports): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = importlib.import_module("told_by_options").Own(most=5, names=("a", "b"))
    assert to_config("weighting", own, shelf) == {"name": "told_by_options:Own", "most": 5, "names": ["a", "b"]}


def test_a_part_of_a_class_that_others_do_not_find_is_kept_whole(shelf):
    @dataclass(frozen=True)
    class Own(fr.Weighting):
        names: tuple[str, ...] = ()

        def weights(self, reports: Any) -> Any: ...

    made = components.make("weighting", Choice(name=to_config("weighting", Own(("a", "b")), shelf)), Path.cwd())
    assert made == Own(("a", "b"))


def test_types_of_options_are_known_though_a_class_came_without_its_modules_names(shelf):
    """Else a list would stay one where the class wants a tuple, in other processes only."""

    @dataclass(frozen=True)
    class Own(fr.Weighting):
        names: tuple[str, ...] = ()
        table: Any = None

        def weights(self, reports: Any) -> Any: ...

    again = read_anew(to_config("weighting", Own, shelf), shelf)
    assert "Any" not in again.__init__.__globals__
    assert components.is_tuple(components.hints(again)["names"])


def test_a_dataclass_that_is_read_anew_is_a_dataclass_all_the_same(shelf):
    @dataclass(frozen=True)
    class Own(fr.Weighting):
        most: int
        least: int = 2

        def weights(self, reports: Any) -> Any: ...

    name = to_config("weighting", Own, shelf)
    again = read_anew(name, shelf)
    assert [each.default is MISSING for each in fields(again)] == [True, False]
    assert all(each.default_factory is MISSING for each in fields(again))
    assert (again(most=5).most, again(most=5).least) == (5, 2)


def test_functions_lambdas_closures_and_partials_come_back_as_they_were(shelf):
    offset = 3

    def shifted(view, k, rng):
        return view + offset

    for function, expected in [
        (lambda view, k, rng: view + k, 12),
        (shifted, 13),
        (functools.partial(shifted, k=1), 13),
    ]:
        name = to_config("selection", function, shelf)
        assert read_anew(name, shelf)(10, k=2, rng=None) == expected


def test_a_function_is_a_part_by_the_wrapper_of_its_kind(shelf):
    name = to_config("selection", made_here(), shelf)
    assert name.endswith(".pkl:first")
    assert isinstance(components.make("selection", Choice(name=name), Path.cwd()), FunctionSelection)


def test_what_a_fresh_process_would_not_import_is_not_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "found_anew_by_all.py").write_text("def f(): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import found_anew_by_all  # type: ignore[import-not-found]

    assert is_importable(found_anew_by_all.f)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    assert not is_importable(found_anew_by_all.f)
    assert not is_importable(made_here())
    assert not is_importable(lambda: None)
    assert not is_importable(Mine.weights)


def test_what_cannot_leave_the_process_is_refused_with_its_name(shelf):
    lock = threading.Lock()

    def locked(view, k, rng):
        with lock:
            return view.ids[:k]

    with pytest.raises(ConfigError, match=r"locked cannot be sent to other processes: .*lock"):
        to_config("selection", locked, shelf)


def test_nothing_is_written_before_it_is_asked_for(shelf):
    first = made_here()
    name = to_config("selection", first, shelf)
    assert not shelf.folder.exists()
    assert registry.load_users(name, Path.cwd()) is first  # this process has it


# ------------------------------------------------------------------------------------------------------- modules


class Layers(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_module_is_drawn_anew_for_each_seed_unless_its_weights_are_kept(shelf):
    module = Layers()
    before = weights(module).clone()
    factory = read_anew(to_config("model", module, shelf), shelf)
    one, same, other = (build(factory, (4,), 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(weights(one), weights(same))
    assert not torch.equal(weights(one), weights(other))
    assert torch.equal(weights(module), before)  # the user's own is left alone
    table = to_config("model", {"name": module, "keep_weights": True}, shelf)
    kept = read_anew(table["name"], shelf)
    assert torch.equal(weights(build(kept, (4,), 2, seed=5, options={"keep_weights": True})), before)


def test_weights_that_are_not_kept_do_not_change_what_a_module_is_called(shelf):
    assert to_config("model", Layers(), shelf) == to_config("model", Layers(), shelf)
    kept = [to_config("model", {"name": Layers(), "keep_weights": True}, shelf)["name"] for _ in range(2)]
    assert kept[0] != kept[1]


def test_a_module_with_parameters_that_nobody_can_draw_is_refused(shelf):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

    with pytest.raises(ConfigError, match=r"have reset_parameters\(\).*got Scaled with parameters scale.*keep_"):
        to_config("model", Scaled(), shelf)


# ------------------------------------------------------------------------------------- the same program, run twice

PROGRAM = """
import sys
from dataclasses import dataclass
from pathlib import Path
import torch
import fedreach as fr
from fedreach.experiment.naming import PickleStore, to_config

STEP = {step}

def helper(x):
    return x + STEP

@dataclass(frozen=True)
class Mine(fr.Weighting):
    table: object = None
    def weights(self, state, reports):
        return helper(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, STEP)
        self.register_buffer("table", torch.arange(3.0))
    def forward(self, x):
        return self.layer(x)

shelf = PickleStore(Path("parts"))
for kind, thing in [("weighting", Mine), ("weighting", Mine(table=torch.ones(2))), ("model", Net), ("model", Net()),
                    ("selection", lambda v, k, r: helper(k))]:
    print(to_config(kind, thing, shelf))
shelf.write()
"""


@pytest.mark.slow
def test_the_same_program_gives_the_same_names_and_another_one_others(tmp_path):
    def names(step: int) -> list[str]:
        (tmp_path / "program.py").write_text(PROGRAM.format(step=step), encoding="utf-8")
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.split()

    once, again, other = names(2), names(2), names(3)
    assert once == again
    assert len(once) == 5
    assert not set(once) & set(other)  # `helper` is what all of them hold
    for name in once:
        assert pickle.loads((tmp_path / name.partition(":")[0]).read_bytes()) is not None


# --------------------------------------------------------------------------- what must not be taken for the same


def test_parts_that_differ_in_digits_alone_have_names_of_their_own(shelf):
    """cloudpickle's number of a class is 32 such digits; a part may hold as many of its own."""
    held: list[Any] = ["0" * 40, "1" * 40, b"0" * 64, np.full(64, ord("1"), np.uint8), np.full(64, ord("2"), np.uint8)]
    names = {to_config("weighting", Mine(table=[object, value]), shelf) for value in held}
    assert len(names) == len(held)


MODULE = """
import fedreach as fr
class Mine(fr.Weighting):
    def __init__(self, table):
        self.table = table
    def weights(self, reports):
        return {}
"""


@pytest.mark.slow
def test_a_part_of_a_module_of_ones_own_has_another_name_once_that_is_changed(tmp_path):
    """Its class is pickled by its name alone."""
    program = "from pathlib import Path\nfrom mine import Mine\n"
    program += "from fedreach.experiment.naming import PickleStore, to_config\n"
    program += "shelf = PickleStore(Path('parts'))\nprint(to_config('weighting', Mine([1]), shelf))\nshelf.write()\n"
    (tmp_path / "program.py").write_text(program, encoding="utf-8")

    def name(step: int) -> str:
        (tmp_path / "mine.py").write_text(f"{MODULE}STEP = {step}\n", encoding="utf-8")
        command = [sys.executable, "-B", "program.py"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert name(1) == name(1) != name(2)


@pytest.mark.slow
def test_a_part_of_a_module_of_ones_own_has_another_name_once_what_that_imports_is_changed(tmp_path):
    program = "from pathlib import Path\nfrom mine import Mine\n"
    program += "from fedreach.experiment.naming import PickleStore, to_config\n"
    program += "shelf = PickleStore(Path('parts'))\nprint(to_config('weighting', Mine([1]), shelf))\nshelf.write()\n"
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    (tmp_path / "mine.py").write_text(f"{MODULE}        import beside\n", encoding="utf-8")

    def name(step: int) -> str:
        (tmp_path / "beside.py").write_text(f"STEP = {step}\n", encoding="utf-8")
        command = [sys.executable, "-B", "program.py"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert name(1) == name(1) != name(2)


def hooked(factor: float) -> nn.Module:
    """Return a layer whose gradient is scaled by a hook on its weight."""
    module = nn.Linear(3, 2, bias=False)
    module.weight.register_hook(lambda gradient: factor * gradient)
    return module


def gradient(module: nn.Module) -> torch.Tensor:
    module(torch.ones(1, 3)).sum().backward()
    found = module.weight.grad
    assert isinstance(found, torch.Tensor)
    return found


def test_a_module_keeps_the_hooks_on_its_gradients_in_other_processes(shelf: PickleStore) -> None:
    """torch's own pickles and copies drop them, and the module would train otherwise."""
    name = to_config("model", hooked(0.0), shelf)
    assert name == to_config("model", hooked(0.0), shelf) != to_config("model", hooked(2.0), shelf)
    assert gradient(read_anew(name, shelf)()).tolist() == [[0.0] * 3] * 2


def test_a_copy_of_a_module_that_was_handed_over_keeps_the_hooks_on_its_gradients() -> None:
    made = copy.deepcopy(ModuleInstance(hooked(0.0)))()
    assert gradient(made).tolist() == [[0.0] * 3] * 2
