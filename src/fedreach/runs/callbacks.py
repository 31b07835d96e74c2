"""Who is told as a run goes on: the terminal, a worker's comparison, a tracker of experiments."""

from collections.abc import Mapping

from fedreach.data.federated import FederatedData
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing


class Callback:
    """Is told of a run, and does nothing; subclasses say what they do. Whatever they raise ends the run as failed.

    Example:
        >>> class Losses(Callback):
        ...     def round(self, row, timing, lost):
        ...         print(f"round {row.round}: {row.train_loss:.2f}")
    """

    def begin(self, run: RunRecord, data: FederatedData, engine: str) -> None:
        """Before the first round that is to be run; `engine` says which one trains, and why."""

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        """After a round; `lost` says of each client why its reply does not count.

        Rows of rounds that take milliseconds may still wait to be written.
        """

    def end(self, result: Result) -> None:
        """After the last round, when all is written; not where the run failed."""
