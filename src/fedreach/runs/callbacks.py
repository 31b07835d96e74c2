"""Callbacks of a run, such as progress on the terminal and experiment trackers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedreach.data.federated import FederatedData
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing


class Callback:
    """Base class of callbacks, which does nothing; subclasses override its methods.

    An error in a callback of the loop ends the run. A callback may also be a tracker (option ``run.trackers``). A
    tracker first receives row 0 and the rounds of earlier commands. Its errors do not affect the run (see
    `fedreach.runs.trackers`). A tracker is created before the run, so open files in `begin`.

    Example:
        >>> class Losses(Callback):
        ...     def round(self, row, timing, lost):
        ...         print(f"round {row.round}: {row.train_loss:.2f}")
    """

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        """Handle the start of the run, before the first round.

        Args:
            run: Record of the run.
            data: Data of the federation. None: this process has no data, as on Flower.
            engine: Engine, the reason for its choice, and optionally lines about the model.
            folder: Run folder, where a tracker may write files with names that the run does not use.
        """

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        """Handle the end of a round; `lost` maps clients whose reply does not count to the reason, if known.

        If rounds are very short, their rows may not have been written yet.
        """

    def refit_round(self, round_: int, rounds: int) -> None:
        """Handle the end of a round of the refit on all rows (see `population.refit`).

        Trackers do not receive these rounds, because no result of the run depends on them.

        Args:
            round_: Number of finished rounds, from 0.
            rounds: Total number of rounds.
        """

    def end(self, result: Result) -> None:
        """Handle the end of a successful run, when all files have been written."""

    def close(self, error: BaseException | None) -> None:
        """Release resources; `error` is the exception that ended the run, or None if the run finished."""


@contextmanager
def callback_lifecycle(
    callbacks: Sequence[Callback], run: RunRecord, data: FederatedData | None, engine: str, folder: Path
) -> Iterator[None]:
    """Begin all callbacks, and close them even if an error ends the run."""
    try:
        for callback in callbacks:
            callback.begin(run, data, engine, folder)
        yield
    except BaseException as error:
        for callback in callbacks:
            callback.close(error)
        raise
    for callback in callbacks:
        callback.close(None)
