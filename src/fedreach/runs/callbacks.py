"""Callbacks of a run: the terminal, the comparison of a worker, experiment trackers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedreach.data.federated import FederatedData
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing


class Callback:
    """Base class of callbacks, which does nothing; subclasses override its methods.

    An error in a callback of the loop ends the run. The same class may be a tracker, ``run.trackers``. A tracker first
    gets row 0 and the rounds of earlier commands, and its errors do not affect the run, see `fedreach.runs.trackers`.
    A tracker is created before the run, so open files in `begin`.

    Example:
        >>> class Losses(Callback):
        ...     def round(self, row, timing, lost):
        ...         print(f"round {row.round}: {row.train_loss:.2f}")
    """

    def begin(self, run: RunRecord, data: FederatedData | None, engine: str, folder: Path) -> None:
        """Run before the first round.

        Args:
            run: Record of the run.
            data: Data of the federation; None if this process does not have it, as on Flower.
            engine: The engine and why it was chosen; optionally followed by lines about the model.
            folder: Run folder, where a tracker may write files with names that the run does not use.
        """

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        """Run after a round; `lost` maps each client whose reply does not count to the reason, if it is known.

        The rows of very short rounds may not be written yet.
        """

    def refit_round(self, round_: int, rounds: int) -> None:
        """Run after each round of the refit on all rows, `population.refit`.

        Trackers do not get these rounds, because no number of the run depends on them.

        Args:
            round_: Number of finished rounds, from 0.
            rounds: Total number of rounds.
        """

    def end(self, result: Result) -> None:
        """Run after the last round, when all files are written; skipped if the run failed."""

    def close(self, error: BaseException | None) -> None:
        """Run last in any case; `error` ended the run, such as Ctrl-C, or is None if the run finished."""


@contextmanager
def callback_lifecycle(
    callbacks: Sequence[Callback], run: RunRecord, data: FederatedData | None, engine: str, folder: Path
) -> Iterator[None]:
    """Begin all callbacks and, whatever ends the run, close them."""
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
