"""The benchmark of speed compares like with like, knows the limit, and leaves nothing behind."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedreach.engines.choice import ENGINES

from .benchmarked import benchmarks

NAMES = (
    "cases",
    "chip",
    "contenders",
    "engine",
    "fedreach_run",
    "gpu",
    "gpu_zoo",
    "limit",
    "page",
    "phases",
    "tables",
    "turns",
)


@pytest.fixture(scope="module")
def bench():
    """The benchmark's modules."""
    with benchmarks(*NAMES, folders=("", "peers")) as modules:
        yield SimpleNamespace(**dict(zip(NAMES, modules, strict=True)))


def row(rate, **more):
    return {"samples_per_second": rate, "rounds_per_second": rate / 100, "peak_rss_mb": 300.0, "versions": {}} | more


# ------------------------------------------------------------------------------------------------------------ the limit


@pytest.mark.parametrize("name", ["logistic", "mlp", "lenet", "digits", "cifar_plain", "femnist", "feddyn_cnn"])
def test_the_limit_counts_all_multiplications_of_a_training_step_and_no_other(bench, name):
    case = bench.cases.CASES[name]
    model, x = case.make_model(), torch.randn(2, *case.example_shape)
    with FlopCounterMode(display=False) as counter:
        model(x).square().mean().backward()
    assert counter.get_total_flops() == 2 * 2 * bench.limit.multiplications(case)


def test_the_limit_of_an_lstm_is_the_products_of_its_cells(bench):
    # Per example and layer: 4 x 100 gates times width (8 of the embedding, then 100) for each of 80 inputs, and times
    # 100 for each of the 79 states that are not zero; forward, for weights, and for what comes in. Then 100 x 80.
    cells = 80 * 400 * 8 + 80 * 400 * 100 + 2 * 79 * 400 * 100
    assert bench.limit.multiplications(bench.cases.CASES["lstm"]) == 3 * (cells + 100 * 80)


def test_an_lstm_s_cells_are_computed_by_these_products(bench):
    layer = torch.nn.LSTM(3, 5, 2, batch_first=True)
    shapes = {op.name: op.ways[0][0]().shape for op in bench.limit.recurrences(layer, batch=2, steps=7)}
    assert shapes["inputs"] == (14, 20)  # all gates, of all examples and steps
    assert shapes["state"] == (2, 20)
    assert shapes["state weights' gradient"] == layer.weight_hh_l1.shape
    assert shapes["input weights' gradient"] == layer.weight_ih_l1.shape
    assert shapes["state's gradient"] == (2, 5)


@pytest.mark.parametrize("name", ["femnist", "feddyn_cnn", "lenet", "lstm"])
def test_a_case_is_the_model_that_has_its_name(bench, name):
    from fedreach.engines.models.networks import build

    ours = {"femnist": None, "feddyn_cnn": "cnn"}.get(name, name)
    case = bench.cases.CASES[name]
    found = [tuple(p.shape) for p in case.make_model().parameters()]
    if ours is None:  # McMahan et al. 2017, section 3: 1,663,370 parameters for ten classes
        assert sum(math.prod(shape) for shape in found) == 1_663_370 + 52 * 513
    else:
        assert found == [tuple(p.shape) for p in build(ours, case.example_shape, case.num_classes, seed=0).parameters()]


@pytest.mark.parametrize("how", ["nn", "nt", "tn"])
def test_all_forms_of_a_product_are_that_product(bench, how):
    product = bench.limit.product("any", 3, 5, 7, how)
    one, clients = product.ways[0]
    many, stack = product.ways[1]
    assert (clients, one().shape) == (1, (3, 7))
    assert many().shape == (stack, 3, 7)
    assert stack > 1
    assert product.multiplications == 3 * 5 * 7


def test_a_whole_epoch_is_in_the_limit(bench):
    for case in bench.cases.CASES.values():
        assert sum(size * times for size, times in bench.limit.batches(case).items()) == case.samples


# ----------------------------------------------------------------------------------------------------------- the tables


def test_every_engine_and_the_automatic_choice_are_compared(bench):
    names = {contender.name for contender in bench.contenders.CONTENDERS}
    assert {f"fedreach {name}" for name in (*ENGINES, "auto")} < names


def test_ratios_are_taken_within_a_pass(bench):
    # The machine is half as fast in the second pass, and in the third one was not measured.
    rows = {
        "fedreach one": {(1, 1): {0: row(200.0), 1: row(100.0)}},
        "fedreach auto": {(1, 1): {0: row(190.0), 1: row(95.0)}},
        "pfl": {(1, 2): {0: row(50.0), 1: row(25.0), 2: row(99.0)}, (2, 1): {0: row(80.0), 1: row(40.0), 2: row(80.0)}},
        "flower": {(2, 1): {0: row(2.0), 1: row(1.0)}},
        "plain torch": {(1, 1): {0: row(40.0), 1: row(20.0)}},
        "plain torch, channels last": {(1, 1): {0: row(50.0), 1: row(25.0)}},
        "limit": {(2, 1): {0: row(400.0), 1: row(200.0)}},
    }
    lines = bench.tables.main_table({"mlp": rows}).splitlines()
    cells = {line.split(" | ")[1]: line.strip("| ").split(" | ")[4:9] for line in lines}
    assert cells["fedreach one"] == ["4.00", "2.50", "100", "4.00", "50%"]  # to the better layout of torch
    assert cells["pfl, one process"] == ["1.00", "0.62 (0.62 to 1.24)", "25", "1.00", "12.5%"]
    assert not any("limit |" in line for line in lines[2:])


def test_the_automatic_choice_is_compared_with_the_best_engine(bench):
    rows = {
        "fedreach slow": {(1, 1): {0: row(10.0)}},
        "fedreach fast": {(1, 1): {0: row(80.0)}, (1, 2): {0: row(100.0)}},
        "fedreach auto": {(1, 1): {0: row(95.0)}},
    }
    assert bench.tables.limit_table({"mlp": rows}).splitlines()[2].startswith("| mlp | 0.95 | - |")


def test_a_setting_that_failed_once_does_not_stand_for_its_contender(bench):
    settings = {(1, 1): {0: row(10.0), 1: row(12.0)}, (1, 2): {0: row(99.0)}}
    assert bench.tables.best(settings)[0] == (1, 1)


def test_settings_near_the_best_and_pfls_single_process_are_tried_again(bench):
    contenders, again = bench.contenders, bench.turns.again
    first = {(1, 1): row(100.0), (1, 2): row(10.0), (2, 1): row(95.0), (3, 1): None}
    assert again(contenders.PLAIN, first) == [(1, 1), (2, 1)]
    assert contenders.PFL_ONE in again(contenders.PFL, dict.fromkeys(contenders.PFL.settings, row(1.0)))
    assert again(contenders.PFL, {(7, 7): row(100.0), contenders.PFL_ONE: row(1.0)}) == [(7, 7), contenders.PFL_ONE]


def test_a_share_of_the_chip_is_that_of_its_rate_in_the_same_precision(bench):
    rows = {"pfl, fp32": {(1, 1): {0: row(10.0, gpu_mb=5.0)}}, "pfl, tf32": {(1, 1): {0: row(20.0, gpu_mb=5.0)}}}
    chip = {"flops": {"fp32": 1000.0, "tf32": 8000.0}, "flops_per_sample": 10.0}
    lines = bench.gpu.gpu_table({"mlp": rows}, {"mlp": chip}).splitlines()
    assert [line.strip("| ").split(" | ")[5:7] for line in lines[2:]] == [["1.00", "10%"], ["1.00", "2.5%"]]


# ------------------------------------------------------------------------------------------------------------- the page


def test_writing_a_section_keeps_all_others(bench, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Speed\n\n<!-- engine -->\nold\n<!-- /engine -->\n\n<!-- other -->\nkept\n<!-- /other -->\n")
    for _ in range(2):
        bench.page.put("engine", "new\n", page)
        bench.page.put("gpu", "added", page)
    assert page.read_text() == (
        "# Speed\n\n<!-- engine -->\nnew\n<!-- /engine -->\n\n<!-- other -->\nkept\n<!-- /other -->\n\n"
        "<!-- gpu -->\nadded\n<!-- /gpu -->\n"
    )


def test_a_section_without_an_end_is_refused(bench, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- engine -->\nold\n\n<!-- other -->\nprecious\n<!-- /other -->\n")
    with pytest.raises(ValueError, match="must have <!-- /engine -->"):
        bench.page.put("engine", "new", page)
    assert "precious" in page.read_text()


def test_each_benchmark_has_a_record(bench, tmp_path, monkeypatch):
    for name in ("engine", "allocation", "decisions", "memory", "adaptation", "small_rounds"):
        assert bench.page.section(name, bench.page.RECORDS / f"{name}.md"), name
    monkeypatch.setattr(bench.page, "RECORDS", tmp_path)
    bench.page.put("gpu", "first")
    assert (tmp_path / "gpu.md").read_text() == "# gpu\n\n<!-- gpu -->\nfirst\n<!-- /gpu -->\n"


# ------------------------------------------------------------------------------------------------- where the time goes


def test_a_part_within_another_interrupts_it(bench, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bench.phases, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    watch = bench.phases.Watch()

    def passes(seconds):
        now[0] += seconds

    inner = watch.watched("inner", lambda: passes(2.0))

    def outer():
        passes(1.0)
        inner()
        passes(4.0)

    passes(8.0)
    watch.watched("outer", outer)()
    watch.note()
    assert watch.seconds == {"rest": 8.0, "outer": 5.0, "inner": 2.0}


def test_all_of_a_round_is_in_its_parts(bench):
    seconds = bench.phases.seconds_of_parts("digits", "sequential", rounds=3, warmup=1, seed=0)
    assert tuple(seconds) == bench.phases.PARTS
    assert min(seconds.values()) >= 0
    training = seconds["products"] + seconds["other training"]
    assert training > seconds["selection"] > 0
    assert seconds["products"] > 0


# ---------------------------------------------------------------------------------------------------------- processes


def test_what_a_measurement_started_ends_with_it_and_leaves_no_files(bench, tmp_path, monkeypatch):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import json, os, pathlib, subprocess, sys, tempfile, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = subprocess.Popen(sleep, start_new_session=True)\n"  # as torchrun starts its workers
        f"pathlib.Path({str(tmp_path / 'told')!r}).write_text(json.dumps([child.pid, tempfile.mkdtemp()]))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(bench.contenders, "LIMIT_SECONDS", 2.0)
    contender = bench.contenders.Contender("hangs", str(script))
    assert bench.contenders.run_script(contender, "mlp", (1, 1), [])[1:] == ("took more than 2 s", False)
    child, folder = json.loads((tmp_path / "told").read_text())
    assert not Path(folder).exists()
    until = time.monotonic() + 10
    while alive(child):
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(process):
    """Whether it still runs; one that has ended but was not waited for does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("options", [[], ["--zoo"]], ids=["speed", "zoo"])
def test_a_machine_without_a_gpu_is_told_so(bench, monkeypatch, capsys, options):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", *options])
    with pytest.raises(SystemExit) as end:
        bench.gpu.main()
    assert end.value.code == 3
    assert capsys.readouterr().err.startswith("not run: this benchmark needs a GPU with CUDA")


def test_modules_of_the_zoo_are_compared_with_the_cpu(bench, monkeypatch):
    names = ["mlp", "Temperature", "tutorial"]
    outcomes = list(bench.gpu_zoo.zoo_outcomes("cpu", names))
    assert bench.gpu_zoo.zoo_table(outcomes, "cpu").startswith(
        "6 trainings of the zoo's modules on cpu: 6 as on the CPU"
    )
    train = bench.gpu_zoo.trained

    def train_otherwise(member, data, classes, engine, device):
        used, update = train(member, data, classes, engine, device)
        return used, update + 1e-3 * (engine == "auto")

    monkeypatch.setattr(bench.gpu_zoo, "trained", train_otherwise)
    outcomes = list(bench.gpu_zoo.zoo_outcomes("cpu", names))
    assert [each.is_wrong for each in outcomes] == [False, True] * 3
    shown = bench.gpu_zoo.zoo_table(outcomes, "cpu")
    assert "3 as on the CPU" in shown
    assert shown.count("FAILED: it trains otherwise") == 3


def test_who_cannot_train_a_case_is_left_out_with_a_word(bench, tmp_path, capsys):
    script = tmp_path / "cannot.py"
    script.write_text("raise SystemExit('cannot: no such layer')")
    contender = bench.contenders.Contender("fedreach other", str(script))
    assert bench.contenders.measure(contender, "lstm", (1, 1), []) is None
    assert capsys.readouterr().err == "  fedreach other (1, 1) on lstm: cannot: no such layer\n"
    assert bench.turns.check(["lstm"], [contender])  # that is no wrong result,
    script.write_text("raise SystemExit('broken')")
    assert not bench.turns.check(["lstm"], [contender])  # as this is
    assert capsys.readouterr().out.splitlines()[-1] == "lstm, fedreach other: FAILED: broken"


def test_who_aborts_is_tried_again(bench, tmp_path, capsys):
    script, tried = tmp_path / "aborts.py", tmp_path / "tried"
    script.write_text(
        f"import os, pathlib\ntried = pathlib.Path({str(tried)!r})\n"
        "if not tried.exists():\n    tried.touch()\n    os.abort()\nprint('{\"samples\": 1}')\n"
    )
    contender = bench.contenders.Contender("other", str(script))
    assert bench.contenders.measure(contender, "lstm", (1, 1), []) == {"samples": 1}
    assert capsys.readouterr().err.startswith("  other (1, 1) on lstm: ")


def test_an_engine_says_that_it_cannot_train_a_model(bench):
    with pytest.raises(SystemExit, match=r"cannot: engine.name = 'manual' requires"):
        bench.fedreach_run.make_simulation(bench.cases.CASES["lstm"], "manual", seed=0, threads=1)


def test_every_case_has_a_first_pass_and_later_ones_while_there_is_time(bench, monkeypatch):
    now, taken = [0.0], []

    def measured(contender, case, setting, options):
        taken.append((case, contender.name))
        now[0] += 10.0 if case == "mlp" else 40.0
        return row(1.0)

    monkeypatch.setattr(bench.turns, "measure", measured)
    monkeypatch.setattr(bench.turns, "time", SimpleNamespace(monotonic=lambda: now[0]))
    plain = bench.contenders.PLAIN._replace(settings=((1, 1),))
    found = bench.turns.run_cases({"mlp": [plain], "lenet": [plain]}, passes=3, repeats=1, quick=True, seconds=70)
    assert taken == [("mlp", "plain torch"), ("lenet", "plain torch"), ("mlp", "plain torch"), ("mlp", "plain torch")]
    assert [len(found[case]["plain torch"][plain.settings[0]]) for case in ("mlp", "lenet")] == [3, 1]


def test_layouts_are_for_images(bench):
    assert bench.turns.suits(bench.contenders.PLAIN_LAST, "lenet")
    assert not bench.turns.suits(bench.contenders.PLAIN_LAST, "mlp")
    assert bench.turns.suits(bench.contenders.PLAIN, "mlp")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain torch", "pfl", "flower", *(f"fedreach {name}" for name in (*ENGINES, "auto"))])
def test_contenders_compute_the_same(bench, capsys, name):
    contender = next(contender for contender in bench.contenders.CONTENDERS if contender.name == name)
    if not bench.contenders.present([contender]):
        pytest.skip(f"{contender.needs} is not installed")
    assert bench.turns.check(["digits"], [contender]), capsys.readouterr().out


@pytest.mark.slow
def test_the_smoke_tests_run(bench, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--quick", "--cases", "mlp_device"])
    bench.gpu.main()
    peers = bench.contenders.present([bench.contenders.PFL, bench.contenders.PLAIN])
    assert capsys.readouterr().out.count("| mlp_device |") == len(ENGINES) + 1 + len(peers)
    few = ["--contenders", "plain torch", "limit", "fedreach auto"]
    monkeypatch.setattr(sys, "argv", ["engine.py", "--quick", "--cases", "digits", *few])
    bench.engine.main()
    assert "| digits | fedreach auto |" in capsys.readouterr().out
