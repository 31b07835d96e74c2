"""What this machine can do at best on a case: its products alone, and its memory.

    python limit.py --case mlp    # prints one line of JSON

No training step can do without the products and convolutions of its forward pass, its weight gradients and its input
gradients (the first layer needs none). They are timed by themselves: no autograd, no loss, nothing gathered, and the
same buffers again and again, so that they stay in the cache. Each product is timed for one client, `torch.mm(out=)`,
and for a stack of clients, `torch.bmm(out=)`; each convolution with channels first and last. The faster form counts.
An LSTM is the products of its cells: those with its inputs and for its weight gradients over all steps at once, those
with its state step by step, but for the first, whose state is zero. One process a core, of one thread, all at the same
time.

`products`: samples a second by the sum of these times, over all cores.
`memory`: samples a second if examples and labels are only read, once, at the rate of summing an array that is as long.
`multiply`: samples a second if all multiplications ran at the rate of 1024 x 1024 matrices: a harder limit, which
small products cannot reach.
The limit is the smaller of the first two. It is that of torch's kernels, and of all products: who leaves out those that
a maximum multiplies by zero, on the way back, can pass it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import numpy as np
import torch
from cases import CASES, Case
from measure import CORES, parse_arguments, versions
from torch import Tensor, nn

SECONDS = 0.04  # of one timing, of which there are
TIMINGS = 3
STACK_BYTES = 1_000_000  # of a stack's largest operand: it has to stay in a core's cache
Way = Callable[[], object]


class Operation(NamedTuple):
    """A product or a convolution of one step, in all the forms that it can be computed in."""

    name: str
    multiplications: int  # of all its calls
    ways: list[tuple[Way, int]]  # what to call, and how many clients' products that is
    calls: int = 1  # in a step


def layers(model: nn.Module, x: Tensor) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """Return each layer that multiplies, with its input and its output."""
    found: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        found.append((layer, inputs[0], output[0] if isinstance(output, tuple) else output))

    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.LSTM):
            layer.register_forward_hook(note)
    with torch.no_grad():
        model(x)
    return found


def product(name: str, rows: int, inner: int, columns: int, how: str, calls: int = 1) -> Operation:
    """Return products of (rows, inner) and (inner, columns); a 't' in `how` says which factor is transposed."""

    def factor(clients: int, height: int, width: int, transposed: bool) -> Tensor:
        shape = (clients, width, height) if transposed else (clients, height, width)
        factor = torch.randn(shape)
        return factor.transpose(1, 2) if transposed else factor

    ways: list[tuple[Way, int]] = []
    for clients in (1, max(2, min(64, STACK_BYTES // (4 * max(rows * inner, inner * columns, rows * columns))))):
        a, b = factor(clients, rows, inner, how[0] == "t"), factor(clients, inner, columns, how[1] == "t")
        out = torch.empty(clients, rows, columns)
        if clients == 1:
            ways.append((lambda a=a[0], b=b[0], out=out[0]: torch.mm(a, b, out=out), 1))
        else:
            ways.append((lambda a=a, b=b, out=out: torch.bmm(a, b, out=out), clients))
    return Operation(name, calls * rows * inner * columns, ways, calls)


def convolutions(layer: nn.Conv2d, x: Tensor, y: Tensor, first: bool) -> Iterator[Operation]:
    """Yield a convolution and its backward pass, which is one operation for both gradients."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise ValueError(f"convolutions must be padded with zeros, by a number; got {layer}")
    geometry = (list(layer.stride), list(layer.padding), list(layer.dilation))
    multiplications = y.numel() * layer.weight[0].numel()
    forward: list[tuple[Way, int]] = []
    backward: list[tuple[Way, int]] = []
    for form in (torch.contiguous_format, torch.channels_last):
        x_, y_, w = (t.detach().contiguous(memory_format=form) for t in (x, y, layer.weight))
        forward.append((lambda x=x_, w=w: torch.conv2d(x, w, None, *geometry), 1))
        backward.append(
            (
                lambda x=x_, y=y_, w=w: torch.ops.aten.convolution_backward(
                    y, x, w, None, *geometry, False, [0, 0], layer.groups, [not first, True, False]
                ),
                1,
            )
        )
    yield Operation("convolution", multiplications, forward)
    yield Operation("convolution, gradients", multiplications * (1 if first else 2), backward)


def recurrences(layer: nn.LSTM, batch: int, steps: int) -> Iterator[Operation]:
    """Yield the products of an LSTM over so many steps; its input is an embedding, which is trained, too."""
    hidden, gates, with_state = layer.hidden_size, 4 * layer.hidden_size, steps - 1
    for width in [layer.input_size] + [hidden] * (layer.num_layers - 1):
        yield product("inputs", batch * steps, width, gates, "nt")
        yield product("state", batch, hidden, gates, "nt", with_state)
        yield product("input weights' gradient", gates, batch * steps, width, "tn")
        yield product("state weights' gradient", gates, batch * with_state, hidden, "tn")
        yield product("inputs' gradient", batch * steps, gates, width, "nn")
        yield product("state's gradient", batch, gates, hidden, "nn", with_state)


def operations(case: Case, batch_size: int) -> list[Operation]:
    """Return the products and convolutions of one step of one client."""
    found: list[Operation] = []
    some = torch.zeros(batch_size, *case.example_shape, dtype=torch.int64)
    for layer, x, y in layers(case.make_model().eval(), some if case.tokens else torch.randn(some.shape)):
        first = not found
        if isinstance(layer, nn.Conv2d):
            found += convolutions(layer, x, y, first)
            continue
        if isinstance(layer, nn.LSTM):
            found += recurrences(layer, *x.shape[:2])
            continue
        b, i, o = batch_size, x.shape[1], y.shape[1]
        found += [product("forward", b, i, o, "nt"), product("weight gradient", o, b, i, "tn")]
        found += [] if first else [product("input gradient", b, o, i, "nn")]
    return found


def batches(case: Case) -> dict[int, int]:
    """Return how often each size of batch comes in a client's epoch.

    Example:
        >>> batches(CASES["digits"])
        {16: 1, 12: 1}
    """
    full, left = divmod(case.samples, case.batch_size)
    return {case.batch_size: full} | ({left: 1} if left else {})


def multiplications(case: Case) -> float:
    """Return how many multiplications (each with an addition) one sample takes.

    Example:
        >>> multiplications(CASES["logistic"])  # forward and weight gradient of 784 x 10
        15680.0
    """
    return sum(operation.multiplications for operation in operations(case, 2)) / 2


def seconds_of(way: Way, barrier: Barrier) -> float:
    """Return the median seconds of a call, while all other processes do the same."""
    way()
    began = time.perf_counter()
    way()
    calls = max(1, round(SECONDS / (time.perf_counter() - began + 1e-7)))
    found = []
    for _ in range(TIMINGS):
        barrier.wait()
        began = time.perf_counter()
        for _ in range(calls):
            way()
        found.append((time.perf_counter() - began) / calls)
    return statistics.median(found)


def worker(case: Case, cores: int, barrier: Barrier, results: multiprocessing.Queue[dict[str, float]]) -> None:
    """Put one core's rates: samples a second by products, multiplications a second, and bytes a second."""
    torch.set_num_threads(1)
    epoch = 0.0
    with torch.inference_mode():
        for size, times in batches(case).items():
            for operation in operations(case, size):
                fastest = min(seconds_of(way, barrier) / clients for way, clients in operation.ways)
                epoch += times * operation.calls * fastest
        a, out = torch.randn(1024, 1024), torch.empty(1024, 1024)
        multiply = 1024**3 / seconds_of(lambda: torch.mm(a, a, out=out), barrier)
        share = torch.ones(case.num_clients * case.samples * int(np.prod(case.example_shape)) // cores)
        memory = share.nbytes / seconds_of(share.sum, barrier)
    results.put({"products": case.samples / epoch, "multiply": multiply, "memory": memory})


def limits(case: Case, cores: int) -> dict[str, float]:
    """Return samples a second of all cores together, by each of the limits, and what they were computed from."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(cores), context.Queue()
    processes = [
        context.Process(target=worker, args=(case, cores, barrier, results), daemon=True) for _ in range(cores)
    ]
    for process in processes:
        process.start()
    rates = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    total = {name: sum(rate[name] for rate in rates) for name in rates[0]}
    example_bytes = (8 if case.tokens else 4) * int(np.prod(case.example_shape)) + 8
    return {
        "products": total["products"],
        "memory": total["memory"] / example_bytes,
        "multiply": total["multiply"] / multiplications(case),
        "gigaflops": 2e-9 * total["multiply"],
        "gigabytes": 1e-9 * total["memory"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments = parse_arguments(parser)
    case = CASES[arguments.case]
    found = limits(case, CORES)
    rate = min(found["products"], found["memory"])
    row = {"peer": "limit", "case": case.name, "samples_per_second": rate, "workers": CORES, "threads": 1}
    row |= {"rounds_per_second": rate / case.samples_per_round, "peak_rss_mb": None, "versions": versions()}
    print(json.dumps(row | found))


if __name__ == "__main__":
    main()
