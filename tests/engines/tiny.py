"""Running `tiny_simulation` with other parts."""

from dataclasses import replace

MODEL = 4 * 6  # bytes of the linear model on the plane with two classes
REPORT = MODEL + 8


def changed(simulation, **parts):
    return replace(simulation, federation=replace(simulation.federation, **parts))


def run(simulation, rounds, state=None):
    state, reports = simulation.start() if state is None else state, []
    for _ in range(rounds):
        state, report, _ = simulation.step(state)
        reports.append(report)
    return state, reports
