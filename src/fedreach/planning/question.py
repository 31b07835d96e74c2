"""What a planner asks: the band, the examples needed, prices, and what turns columns into seconds and cycles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedreach.errors import ConfigError


class OptionRange(NamedTuple):
    """The range of an option, and the columns that it is about (none: all)."""

    flag: str
    low: float
    high: float
    hint: str = ""
    columns: tuple[str, ...] = ()


RADIO = ("distance_meters",)
RANGES = {
    "min_examples": OptionRange("--min-examples", 1, 2**40),
    "bandwidth_hertz": OptionRange("--bandwidth", 1e4, 1e12, "It is in hertz: write 2e6 for 2 MHz."),
    "noise_dbm": OptionRange("--noise-dbm", -300, -50, "It is in dBm a hertz; -174 at room temperature.", RADIO),
    "carrier_hertz": OptionRange("--carrier", 1e6, 1e12, "It is in hertz: write 2.4e9 for 2.4 GHz.", RADIO),
    "path_loss": OptionRange("--path-loss", 1, 10, "It is the exponent; 2 in free space.", RADIO),
    "report_bits": OptionRange("--report-bits", 1, 1e15, "", ("bits_per_second", *RADIO)),
    "model_parameters": OptionRange("--model-parameters", 1, 1e13, "", ("bits_per_second", *RADIO)),
    "bits_per_example": OptionRange("--bits-per-example", 1, 1e12, "", ("cycles_per_bit",)),
    "epochs": OptionRange("--epochs", 1, 1e6, "", ("cycles_per_bit",)),
    "max_divergence": OptionRange("--max-divergence", 0, math.inf, "It is in nats.", ("divergence", "label_0")),
    "smoothing": OptionRange("--smoothing", 0, 1e9, "", ("label_0",)),
    "seconds_price": OptionRange("--seconds-price", 1e-12, 1e12),
    "joules_price": OptionRange("--joules-price", 0, 1e12),
    "capacitance": OptionRange("--capacitance", 1e-40, 1e-15, "It is in J / (cycle Hz^2), about 1e-27."),
    "tolerance": OptionRange("--tolerance", 1e-9, 0.5),
    "time_limit_seconds": OptionRange("--time-limit", 1e-3, 1e7),
}


@dataclass(frozen=True)
class Question:
    """What a planner asks of a table of clients; None stands for the default where the columns need one.

    Raises:
        ConfigError: If an option is outside its range.
    """

    min_examples: int
    bandwidth_hertz: float | None = None
    noise_dbm: float | None = None
    carrier_hertz: float | None = None
    path_loss: float | None = None
    report_bits: float | None = None
    model_parameters: int | None = None
    bits_per_example: float | None = None
    epochs: int | None = None
    max_divergence: float | None = None
    smoothing: float | None = None
    seconds_price: float = 1.0
    joules_price: float = 1.0
    capacitance: float = 1e-27
    tolerance: float = 1e-6
    time_limit_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, rule in RANGES.items():
            value = getattr(self, name)
            if value is not None and not rule.low <= value <= rule.high:
                limits = f"from {rule.low:g} to {rule.high:g}" if rule.high < math.inf else f"at least {rule.low:g}"
                raise ConfigError(f"{rule.flag} must be {limits}; got {value:g}." + f" {rule.hint}".rstrip())
        if self.report_bits is not None and self.model_parameters is not None:
            raise ConfigError("--report-bits and --model-parameters say the same; give one of them.")

    def fit(self, columns: Mapping[str, Any], where: str) -> None:
        """Refuse an option that has no effect, and columns that need one that is not there, by a ConfigError."""
        for name, rule in RANGES.items():
            if getattr(self, name) is not None and rule.columns and not any(c in columns for c in rule.columns):
                wanted = " or ".join(rule.columns)
                raise ConfigError(f"{rule.flag} has no effect: it is about the column {wanted}, and {where} has none.")
        if self.smoothing is not None and self.max_divergence is None:
            raise ConfigError("--smoothing has no effect without --max-divergence.")
        needs = {
            "distance_meters": (("bandwidth_hertz",), ("report_bits", "model_parameters")),
            "bits_per_second": (("report_bits", "model_parameters"),),
            "cycles_per_bit": (("bits_per_example",),),
        }
        for column, wanted_ in needs.items():
            for names in wanted_ if column in columns else ():
                if all(getattr(self, name) is None for name in names):
                    flags = " or ".join(RANGES[name].flag for name in names)
                    raise ConfigError(f"The column {column} needs {flags}.")

    @property
    def bits(self) -> float:
        """Bits of a report; 32 a parameter."""
        return 32.0 * (self.model_parameters or 0) if self.report_bits is None else self.report_bits

    def given(self) -> dict[str, Any]:
        """Return the options that are not left at None."""
        return {name: value for name, value in vars(self).items() if value is not None}
