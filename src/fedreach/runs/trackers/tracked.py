"""The trackers of a run: told of the whole of it, and never in its way."""

import copy
import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedreach.data.federated import FederatedData
from fedreach.errors import FedReachError, TrainingError
from fedreach.registry import is_installed
from fedreach.runs.callbacks import Callback, told
from fedreach.runs.folder import RunFolder, json_line
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing
from fedreach.tables import visible_lines

OURS = Path(__file__).parents[2]  # the package


class Named(NamedTuple):
    """A tracker, by the name that the experiment has for it."""

    name: str
    tracker: Callback


Warn = Callable[[str, str], object]
"""Is told the name of a tracker that failed, and what to say of it."""


def warn(name: str, text: str) -> None:
    """Say on standard error what is wrong with a tracker."""
    print(f"warning: {visible_lines(text)}", file=sys.stderr, flush=True)


class Tracked(Callback):
    """Hands on to trackers what a run tells, those rounds first that stand in its folder already.

    A tracker that raises anything but Ctrl-C is told of once, by `warn`, closed and left out from then on. What it is
    handed is a copy, as it is stored.
    """

    def __init__(self, trackers: Sequence[Named], folder: RunFolder, warn: Warn = warn) -> None:
        self.trackers, self.folder, self.warn = trackers, folder, warn
        self.caught_up = False

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        for each in self.trackers:
            self._tell(each, "begin", copy.deepcopy(run), data, engine, folder)

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self._catch_up(row.round)
        self._round(json_line(row.to_json()) if self.trackers else "", timing, lost)

    def end(self, result: Result) -> None:
        self._catch_up()
        for each in self.trackers:
            self._tell(each, "end", result)

    def close(self, error: BaseException | None) -> None:
        self._catch_up()
        for each in self.trackers:
            self._tell(each, "close", error)
        self.trackers = []

    def _catch_up(self, before: float = math.inf) -> None:
        """Tell, once, of the rounds that earlier commands ran."""
        if self.caught_up:
            return
        self.caught_up = True
        try:
            lines = self.folder.kept_text(RoundRow.FILE).splitlines() if self.trackers else []
            timings = {timing.round: timing for timing in self.folder.timing(len(lines) - 1)} if lines else {}
        except FedReachError as error:
            for each in self.trackers:
                self._leave_out(each, "what was told of earlier rounds", error)
            return
        for number, line in enumerate(lines):
            if number < before:
                lost = dict.fromkeys(json.loads(line)["lost"], "")
                self._round(line, timings.get(number, Timing(round=number)), lost)

    def _round(self, line: str, timing: Timing, lost: Mapping[int, str]) -> None:
        for each in self.trackers:
            row = RoundRow.of_json(json.loads(line), RoundRow.FILE)  # for each its own, which it may change
            self._tell(each, "round", row, timing, dict(lost))

    def _tell(self, each: Named, method: str, *arguments: Any) -> None:
        try:
            getattr(each.tracker, method)(*arguments)
        except (Exception, SystemExit) as error:
            self._leave_out(each, f"`{method}`", error)
            if method != "close":
                with suppress(Exception, SystemExit):
                    each.tracker.close(error)

    def _leave_out(self, each: Named, where: str, error: BaseException) -> None:
        self.trackers = [other for other in self.trackers if other is not each]
        self.warn(
            each.name,
            f"tracker {each.name!r} failed in {where}: {_in_words(error)}. It is left out, and no number changes. Once "
            f"that is mended, `fedreach report {self.folder.path} --track {each.name}` tells it of the whole run.",
        )


def _in_words(error: BaseException) -> str:
    """Return what was raised, and where in nobody's library that was."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not (is_installed(f.filename) or Path(f.filename).is_relative_to(OURS))]
    said = f"{error}".partition("\n")[0].rstrip(".")
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return type(error).__name__ + (f": {said}" if said else "") + place


def tell_again(folder: RunFolder, trackers: Sequence[Named], warn: Warn = warn) -> None:
    """Tell trackers of a run that was run before, as it stands in its folder.

    Raises:
        RunFolderError: If there is none, or it goes on just now.
    """
    with folder.locked():
        run, result = folder.required(RunRecord), folder.read(Result)
        tracked = Tracked(trackers, folder, warn)
        with suppress(TrainingError), told([tracked], run, None, "as it was recorded", folder.path):
            if result is not None and result.status == "finished":
                tracked.end(result)
            else:
                raise TrainingError("it has not finished" if result is None else f"{result.error}")
