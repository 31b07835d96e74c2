"""The numbers of a method, each declared once: where it is read, what it is called, and how it is shown."""

from dataclasses import dataclass

from fedreach.evidence.scores import ACCURACY, MAE, MainScore

WIDE = 150  # width of a terminal from which a column is shown that is not needed at first sight


@dataclass(frozen=True)
class Quantity:
    """One number of a method; tables, CSV, JSON, page and figures take name, words and unit from here.

    Columns and units are those of accuracy; where models are judged by another score, it stands in its place.

    `unit` is "%" (a fraction told in per cent), "points" (a difference of fractions), "MB", "clients", "seconds" or
    "joules" (in the unit that fits the whole column), or nothing. `words` stand for it in a sentence.
    """

    name: str  # in summaries and records
    column: str  # of the stored rounds
    head: str  # of its column in tables
    unit: str = ""
    words: str = ""
    scale: float = 1.0  # what the rows hold of it to make one
    from_width: int = WIDE  # of the terminal, at which its column is shown

    def column_by(self, score: MainScore) -> str:
        """Return its column where models are judged by this score."""
        return self.column.replace(ACCURACY.name, score.name)

    @property
    def is_radio(self) -> bool:
        """Whether it is known of simulated radio only."""
        return self.unit in ("seconds", "joules")


QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        Quantity("round", "round", "rounds"),
        Quantity("participants", "id_accuracy", "participants", "%", "participants' held-out data", from_width=100),
        Quantity("unseen", "unseen_accuracy", "unseen clients", "%", "unseen clients", from_width=0),
        Quantity("test", "test_accuracy", "test set", "%", "the test set"),
        Quantity("gap", "participation_gap", "gap", "points", from_width=0),
        Quantity("participants_worst_decile", "id_accuracy_worst_decile", "worst decile, participants", "%"),
        Quantity("unseen_worst_decile", "unseen_accuracy_worst_decile", "worst decile, unseen", "%"),
        Quantity("megabytes", "bytes_total", "sent", "MB", scale=1e6),  # 10^6 bytes, down and up, probes included
        # Simulated, of all rounds so far, probes included.
        Quantity("seconds", "seconds_total", "time", "seconds", "simulated time", 1.0, 130),
        Quantity("joules", "joules_total", "energy", "joules", "energy", 1.0, 130),
    )
}
FURTHER = {
    quantity.name: quantity
    for quantity in (
        Quantity("participants", "id_{}", "participants", from_width=0),
        Quantity("unseen", "unseen_{}", "unseen clients", from_width=0),
        Quantity("test", "test_{}", "test set", from_width=110),
        Quantity("participants_worst_decile", "id_{}_worst_decile", "worst decile, participants", from_width=130),
        Quantity("unseen_worst_decile", "unseen_{}_worst_decile", "worst decile, unseen", from_width=100),
        Quantity("participants_pooled", "id_{}_pooled", "pooled, participants", from_width=130),
        Quantity("unseen_pooled", "unseen_{}_pooled", "pooled, unseen", from_width=100),
        Quantity("participants_left_out", "id_{}_undefined", "left out, participants", "clients", from_width=120),
        Quantity("unseen_left_out", "unseen_{}_undefined", "left out, unseen", "clients", from_width=90),
    )
}
"""Those of a metric beside accuracy and loss; its name stands in the column."""

SPENT = ("round", "megabytes", "seconds", "joules")  # what it may take to reach the target accuracy
RADIO = tuple(quantity for quantity in QUANTITIES.values() if quantity.is_radio)
POPULATION = {
    quantity.column_by(score): quantity
    for score in (ACCURACY, MAE)
    for quantity in QUANTITIES.values()
    if quantity.column.endswith(f"_{ACCURACY.name}")
}
"""What a comparison may be judged by, by its column: accuracies, or errors."""
