"""Planning of a round for a table of clients (`fedreach allocate`)."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.divergence import label_divergences
from fedreach._util.errors import ConfigError, DataError, InfeasibleError, nearest, regular
from fedreach.wireless import problem as cost
from fedreach.wireless import radio
from fedreach.wireless.problem import AllocationProblem, Solution
from fedreach.wireless.solve import solve

# -------------------- Options of a plan


class OptionRange(NamedTuple):
    """Range of an option, and the columns that it requires."""

    flag: str
    low: float
    high: float
    hint: str = ""
    columns: tuple[str, ...] = ()  # one of these columns is required; none: no column is


def option(default: Any, *rule: Any) -> Any:
    """Return the dataclass field of an option, given its default and the fields of its `OptionRange`."""
    return field(default=default, metadata={"rule": OptionRange(*rule)})


RADIO = ("distance_meters",)
RATES = ("bits_per_second", *RADIO)


@dataclass(frozen=True)
class Question:
    """Options of a plan. An option that is None has its default if the columns of the table require it.

    Raises:
        ConfigError: If an option is outside its range.
    """

    min_examples: int = option(MISSING, "--min-examples", 1, 2**40)
    bandwidth_hertz: float | None = option(None, "--bandwidth", 1e4, 1e12, "The unit is hertz: 2e6 is 2 MHz.")
    noise_dbm: float | None = option(
        None, "--noise-dbm", -300, -50, "The unit is dBm per hertz; room temperature has -174.", RADIO
    )
    carrier_hertz: float | None = option(None, "--carrier", 1e6, 1e12, "The unit is hertz: 2.4e9 is 2.4 GHz.", RADIO)
    path_loss: float | None = option(None, "--path-loss", 1, 10, "It is an exponent; free space has 2.", RADIO)
    report_bits: float | None = option(None, "--report-bits", 1, 1e15, "", RATES)
    model_parameters: int | None = option(None, "--model-parameters", 1, 1e13, "", RATES)
    bits_per_example: float | None = option(None, "--bits-per-example", 1, 1e12, "", ("cycles_per_bit",))
    epochs: int | None = option(None, "--epochs", 1, 1e6, "", ("cycles_per_bit",))
    max_divergence: float | None = option(
        None, "--max-divergence", 0, math.inf, "The unit is nats.", ("divergence", "label_0")
    )
    smoothing: float | None = option(None, "--smoothing", 0, 1e9, "", ("label_0",))
    time_weight: float = option(1.0, "--time-weight", 1e-12, 1e12)
    energy_weight: float = option(1.0, "--energy-weight", 0, 1e12)
    capacitance: float = option(1e-27, "--capacitance", 1e-40, 1e-15, "The unit is J / (cycle Hz^2), about 1e-27.")
    tolerance: float = option(1e-6, "--tolerance", 1e-9, 0.5)
    time_limit_seconds: float = option(30.0, "--time-limit", 1e-3, 1e7)

    def __post_init__(self) -> None:
        for name, rule in RANGES.items():
            value = getattr(self, name)
            if value is not None and not rule.low <= value <= rule.high:
                limits = f"from {rule.low:g} to {rule.high:g}" if rule.high < math.inf else f"at least {rule.low:g}"
                raise ConfigError(f"{rule.flag} must be {limits}; got {value:g}." + f" {rule.hint}".rstrip())
        if self.report_bits is not None and self.model_parameters is not None:
            raise ConfigError("--report-bits and --model-parameters must not be given together. Remove one of them.")

    def fit(self, columns: Mapping[str, Any], where: str) -> None:
        """Raise ConfigError if an option has no effect on a table with these columns, or if one is required."""
        for name, rule in RANGES.items():
            if getattr(self, name) is not None and rule.columns and not any(c in columns for c in rule.columns):
                columns_text = " or ".join(rule.columns)
                raise ConfigError(
                    f"{rule.flag} requires the column {columns_text}, which {where} does not have. Remove {rule.flag}."
                )
        if self.smoothing is not None and self.max_divergence is None:
            raise ConfigError("--smoothing requires --max-divergence. Remove --smoothing.")
        needs = {
            "distance_meters": (("bandwidth_hertz",), ("report_bits", "model_parameters")),
            "bits_per_second": (("report_bits", "model_parameters"),),
            "cycles_per_bit": (("bits_per_example",),),
        }
        for column, options in needs.items():
            for names in options if column in columns else ():
                if all(getattr(self, name) is None for name in names):
                    flags = " or ".join(RANGES[name].flag for name in names)
                    raise ConfigError(f"The column {column} requires {flags}.")

    @property
    def bits(self) -> float:
        """Size of a reply in bits, with 32 bits per parameter."""
        return 32.0 * (self.model_parameters or 0) if self.report_bits is None else self.report_bits

    def to_json(self) -> dict[str, Any]:
        """Return the options that are not None as JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None}


RANGES: Mapping[str, OptionRange] = {option.name: option.metadata["rule"] for option in fields(Question)}

# -------------------- Columns of the table


class TableColumn(NamedTuple):
    """Range of plausible numbers in a column. Numbers outside this range probably have another unit."""

    low: float
    high: float
    hint: str = ""
    zero: bool = False  # 0 is also allowed
    whole: bool = False  # only whole numbers are allowed


EXAMPLES = TableColumn(0, 2**40, whole=True)
COLUMNS = {
    "num_examples": EXAMPLES,
    "upload_seconds": TableColumn(1e-9, 1e5, "It is the upload time of a reply with the whole bandwidth, in seconds."),
    "bits_per_second": TableColumn(1e3, 1e13, "It is the data rate with the whole bandwidth: 2e7 is 20 Mbit/s."),
    "distance_meters": TableColumn(1, 1e5, "The unit is meters: 0.25 km is 250."),
    "fading_gain": TableColumn(1e-9, 1e3, "It is the power gain |h|^2, about 1, not in decibels."),
    "power_watts": TableColumn(1e-6, 10, "Use the column power_dbm for powers in dBm: 23 dBm is 0.2 W."),
    "power_dbm": TableColumn(-30, 60, "Use the column power_watts for powers in watts."),
    "cycles": TableColumn(1e3, 1e18, "It is the CPU cycles of all passes over the client's examples.", zero=True),
    "cycles_per_bit": TableColumn(1e-3, 1e6, zero=True),
    "max_hertz": TableColumn(1e5, 1e11, "Use the column max_gigahertz for frequencies in gigahertz."),
    "max_gigahertz": TableColumn(1e-4, 100, "Use the column max_hertz for frequencies in hertz."),
    "max_joules": TableColumn(1e-9, math.inf, "It is the largest acceptable energy of the client in the round."),
    "divergence": TableColumn(0, math.inf),
}
FORMS = {  # a table has exactly one column of each group
    "the upload": ("upload_seconds", "bits_per_second", "distance_meters"),
    "the power": ("power_watts", "power_dbm"),
    "the work": ("cycles", "cycles_per_bit"),
    "the highest CPU frequency": ("max_hertz", "max_gigahertz"),
}
LABEL = re.compile(r"label_(0|[1-9]\d{0,5})")
DELIMITERS = ",;\t"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|infinity", re.ASCII | re.IGNORECASE)
_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+")  # 1.000 can be 1 or, with thousands separators, 1000


@dataclass(frozen=True, eq=False)
class ClientTable:
    """Table of K clients with numbers in all columns."""

    path: Path
    lines: tuple[int, ...]  # (K,) line of each client in the file
    names: tuple[str, ...]  # (K,) client names
    numbers: dict[str, Floats]  # column -> (K,) numbers
    labels: Ints | None  # (K, c) label counts

    @property
    def num_examples(self) -> Ints:
        """(K,) number of examples."""
        return self.numbers["num_examples"].astype(np.int64)

    def refuse(self, k: int, what: str) -> NoReturn:
        """Raise an error with file, line and client."""
        raise DataError(f"{self.path}:{self.lines[k]}: client {self.names[k]!r}: {what}")


def read_clients(path: Path) -> ClientTable:
    """Read a table of clients from a CSV file in UTF-8 or UTF-16, with a header and one client per line.

    Raises:
        DataError: If the file is not such a table, if a column is unknown, missing or given in two units, or if a cell
            is not a plausible number.
    """
    cells, lines = _read_cells(path)
    _check_columns(path, cells)
    names = cells.get("client") or tuple(map(str, range(len(lines))))
    line_of: dict[str, int] = {}
    for name, line in zip(names, lines, strict=True):
        if not name:
            raise DataError(f"{path}:{line}: the client must have a name; got an empty cell.")
        if line_of.setdefault(name, line) != line:
            raise DataError(f"{path}:{line}: each client must have one line; {name!r} is also in line {line_of[name]}.")
    clients = ClientTable(path, lines, names, {}, None)
    for name in filter(cells.__contains__, COLUMNS):
        clients.numbers[name] = _numbers(clients, name, cells[name], COLUMNS[name])
    count = sum(LABEL.fullmatch(name) is not None for name in cells)
    if not count:
        return clients
    per_class = [_numbers(clients, f"label_{c}", cells[f"label_{c}"], EXAMPLES) for c in range(count)]
    labels: Ints = np.stack(per_class, axis=1).astype(np.int64)
    for k in np.flatnonzero(labels.sum(axis=1) != clients.num_examples)[:1]:
        total, examples = labels[k].sum(), clients.num_examples[k]
        clients.refuse(int(k), f"the sum of its labels must be num_examples = {examples}; got {total}.")
    return replace(clients, labels=labels)


def _check_columns(path: Path, have: Iterable[str]) -> None:
    known_names = ["client", *COLUMNS]
    for name in have:
        if name not in known_names and not LABEL.fullmatch(name):
            guess = name.lower().replace("ghz", "gigahertz").replace("_hz", "_hertz")
            raise DataError(f"{path}: unknown column {name!r}.{nearest(guess, [*known_names, 'label_0'])}")
    labels = sorted(int(name[len("label_") :]) for name in have if LABEL.fullmatch(name))
    for c, number in enumerate(labels):
        if c != number:
            raise DataError(f"{path}: classes must be numbered without gaps; label_{number} exists, but not label_{c}.")
    if "num_examples" not in have:
        raise DataError(f"{path}: the column num_examples is missing.")
    for what, forms in FORMS.items():
        present = [name for name in forms if name in have]
        if not present:
            raise DataError(f"{path}: {what} requires one of the columns {', '.join(forms)}. Add one of them.")
        if len(present) > 1:
            raise DataError(f"{path}: {what} must have one column; got {' and '.join(present)}. Remove one of them.")
    if "fading_gain" in have and "distance_meters" not in have:
        raise DataError(f"{path}: fading_gain requires distance_meters; other columns already include fading.")
    if labels and "divergence" in have:
        raise DataError(f"{path}: divergence and label_0 must not be given together. Remove one of them.")


def _numbers(clients: ClientTable, name: str, cells: Sequence[str], column: TableColumn) -> Floats:
    values = np.empty(len(cells))
    for k, text in enumerate(cells):
        excerpt = text if len(text) <= 40 else text[:39] + "…"
        if not _NUMBER.fullmatch(text):
            rule = "must be a number with a decimal point, without unit and thousands separators"
            clients.refuse(k, f"{name} {rule}; got {excerpt!r}.")
        value = values[k] = float(text)
        is_whole = not column.whole or (value % 1 == 0 and not _GROUPED.fullmatch(text))
        if not is_whole or not (column.low <= value <= column.high or (column.zero and value == 0)):
            rule = f"from {column.low:g} to {column.high:g}" + ", or 0" * column.zero
            rule = f"a whole number {rule}, without a decimal point" if column.whole else rule
            clients.refuse(k, f"{name} must be {rule}; got {excerpt}. {column.hint}".rstrip())
    return values


def _read_cells(path: Path) -> tuple[dict[str, tuple[str, ...]], tuple[int, ...]]:
    """Read the cells of each column of a CSV file, and the line of each row."""
    rows = _rows(path)
    if not rows:
        raise DataError(f"{path}: must have a line of column names, and one line per client; got an empty file.")
    (first, header), *body = rows
    while header and not header[-1]:  # spreadsheets add delimiters at the end of lines
        header = header[:-1]
    for column, name in enumerate(header, start=1):
        if not name:
            raise DataError(f"{path}:{first}: each column must have a name; column {column} has none.")
        if header.count(name) > 1:
            raise DataError(
                f"{path}:{first}: columns must have different names; got {name!r} {header.count(name)} times."
            )
    if not body:
        raise DataError(f"{path}: must have at least one client; got only column names.")
    for line, row in body:
        if len(row) < len(header) or any(row[len(header) :]):
            hint = " Check it for decimal commas and thousands separators." if len(row) > len(header) else ""
            raise DataError(f"{path}:{line}: must have {len(header)} cells, one per column; got {len(row)}.{hint}")
    cells = {name: tuple(row[j] for _, row in body) for j, name in enumerate(header)}
    return cells, tuple(line for line, _ in body)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return line number and stripped cells of each line that is not blank."""
    content = regular(path).read_bytes()
    try:
        text = content.decode("utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: must be UTF-8 text. Save the table as CSV (UTF-8).") from error
    header = next(filter(str.strip, text.splitlines()), "")

    def count_columns(delimiter: str) -> int:
        return len(COLUMNS.keys() & {name.strip(' "') for name in header.split(delimiter)})

    delimiter = max(DELIMITERS, key=count_columns)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}.") from error
    return [(line, cells) for line, cells in rows if any(cells)]


# -------------------- Plans

NOISE_DBM, CARRIER_HERTZ, PATH_LOSS, SMOOTHING, EPOCHS = -174.0, 2.4e9, 2.7, 1.0, 1


def problem_of(clients: ClientTable, question: Question, band: float = 1.0) -> AllocationProblem:
    """Build the allocation problem of all clients, with ids 0, 1, ... in the order of the table.

    `band` is a factor for the bandwidth. If the table has distances, the channel determines the data rates. If the
    table has data rates, they are proportional to the bandwidth.
    """
    have = clients.numbers
    return AllocationProblem(
        upload_seconds=_upload_seconds(clients, question, band),
        power_watts=power_watts(clients),
        cycles=_cycles(clients, question),
        max_hertz=have["max_hertz"] if "max_hertz" in have else 1e9 * have["max_gigahertz"],
        num_examples=clients.num_examples,
        time_weight=question.time_weight,
        energy_weight=question.energy_weight,
        capacitance=question.capacitance,
        max_joules=have.get("max_joules", np.empty(0)),
    )


def power_watts(clients: ClientTable) -> Floats:
    """Return the (K,) transmit powers."""
    have = clients.numbers
    return np.asarray(have["power_watts"] if "power_watts" in have else radio.watts(have["power_dbm"]))


def rate_elasticity(clients: ClientTable, question: Question) -> Floats:
    """Return the (K,) elasticity of the data rate: its change in percent for 1% more bandwidth.

    For R = B log2(1 + s) with s proportional to 1 / B, the elasticity is (B / R) dR/dB = 1 - s / ((1 + s) ln(1 + s)).
    If the table has data rates, it is 1.
    """
    if "distance_meters" not in clients.numbers:
        return np.ones(len(clients.names))
    s = _gain(clients, question) * power_watts(clients) / (_or(question.bandwidth_hertz, 0.0) * _noise(question))
    return np.asarray(1 - s / ((1 + s) * np.log1p(s)))


def divergence_of(clients: ClientTable, question: Question) -> Floats | None:
    """Return (K,) the divergence of each client's labels from all labels in nats; None without columns for it."""
    if clients.labels is None:
        return clients.numbers.get("divergence")
    # Rounded, because clients exactly at the limit must not depend on the order of summation.
    return label_divergences(clients.labels, smoothing=_or(question.smoothing, SMOOTHING)).round(12)


def _upload_seconds(clients: ClientTable, question: Question, band: float) -> Floats:
    have = clients.numbers
    if "upload_seconds" in have:
        return have["upload_seconds"] / band
    if "bits_per_second" in have:
        return question.bits / (have["bits_per_second"] * band)
    hertz = band * _or(question.bandwidth_hertz, 0.0)
    rate = radio.bits_per_second(hertz, _noise(question), _gain(clients, question), power_watts(clients))
    for k in np.flatnonzero(rate <= 0)[:1]:
        clients.refuse(int(k), "distance_meters is too large: the data rate is 0.")
    return np.asarray(question.bits / rate)


def _gain(clients: ClientTable, question: Question) -> Floats:
    have = clients.numbers
    carrier, exponent = _or(question.carrier_hertz, CARRIER_HERTZ), _or(question.path_loss, PATH_LOSS)
    return np.asarray(radio.path_gain(have["distance_meters"], carrier, exponent) * have.get("fading_gain", 1.0))


def _noise(question: Question) -> float:
    return float(radio.watts(_or(question.noise_dbm, NOISE_DBM)))


def _cycles(clients: ClientTable, question: Question) -> Floats:
    have = clients.numbers
    if "cycles" in have:
        return have["cycles"]
    epochs, bits = _or(question.epochs, EPOCHS), _or(question.bits_per_example, 0.0)
    return np.asarray(cost.training_cycles(epochs, clients.num_examples, bits, have["cycles_per_bit"]))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


@dataclass(frozen=True, eq=False)
class Plan:
    """Optimal plan, and plans with more bandwidth or with more examples."""

    clients: ClientTable
    question: Question
    kept: Bools  # (K,) mask of the clients within max_divergence
    problem: AllocationProblem  # allocation problem of these clients
    solution: Solution
    more_band: Solution | None  # with 10% more bandwidth; None if interrupted
    more_examples: Solution | None  # with 10% more min_examples; None if infeasible or interrupted
    interrupted: bool = False

    @property
    def examples_asked(self) -> int:
        """The `min_examples` of the plan `more_examples`, rounded up."""
        return -(-11 * self.question.min_examples // 10)

    @property
    def band_price(self) -> float | None:
        """Shadow price mu: decrease of the cost per additional bandwidth, in units of the current bandwidth."""
        return self.solution.allocation.band_price

    @property
    def megahertz_price(self) -> float | None:
        """Decrease of the cost per additional MHz of bandwidth B, -dY/dB.

        By the envelope theorem, dY/dtau_k = mu b_k / tau_k. With tau_k = C / R_k, -dY/dB is
        (mu / B) sum_k b_k (B / R_k) dR_k/dB.
        """
        if self.band_price is None or self.question.bandwidth_hertz is None:
            return None
        allocation = self.solution.allocation
        elasticity = rate_elasticity(self.clients, self.question)[allocation.ids]
        return float(self.band_price * (allocation.share @ elasticity) / (self.question.bandwidth_hertz / 1e6))


def plan(clients: ClientTable, question: Question, progress: Callable[[str], None] = lambda line: None) -> Plan:
    """Select clients and set their bandwidth and CPU frequencies, with a proven gap.

    The function solves three problems: with the given values, with 10% more bandwidth, and with 10% more examples. The
    time limit applies to each problem. `progress` is called with a message before each problem.

    Raises:
        ConfigError: If the options do not match the table.
        DataError: If a client has a data rate of 0.
        InfeasibleError: If the clients have too few examples. The message lists feasible limits.
    """
    columns = dict(clients.numbers) | ({} if clients.labels is None else {"label_0": None})
    question.fit(columns, str(clients.path))
    everybody = problem_of(clients, question)
    admitted = _admit(clients, question)
    problem = everybody.only(admitted)
    progress(f"Planning {len(problem)} clients, for at most {question.time_limit_seconds:g} s ...")

    def solve_for(problem: AllocationProblem, min_examples: int) -> Solution:
        return solve(
            problem, min_examples, tolerance=question.tolerance, time_limit_seconds=question.time_limit_seconds
        )

    try:
        solution = solve_for(problem, question.min_examples)
    except KeyboardInterrupt:
        progress("Interrupted. Computing the best plan without a proof ...")
        solution = solve(problem, question.min_examples, tolerance=question.tolerance, max_nodes=1)
        return Plan(clients, question, admitted, problem, solution, None, None, interrupted=True)
    answer = Plan(clients, question, admitted, problem, solution, None, None)
    try:
        progress("Planning with 10% more bandwidth ...")
        more = problem_of(clients, question, band=1.1).only(admitted)
        answer = replace(answer, more_band=solve_for(more, question.min_examples))
        if int(problem.num_examples.sum()) >= answer.examples_asked:
            progress("Planning with 10% more examples ...")
            with suppress(InfeasibleError):  # because of energy caps
                answer = replace(answer, more_examples=solve_for(problem, answer.examples_asked))
    except KeyboardInterrupt:
        answer = replace(answer, interrupted=True)
    return answer


def _admit(clients: ClientTable, question: Question) -> Bools:
    """Return the (K,) mask of clients within max_divergence; raise InfeasibleError if they have too few examples."""
    limit = math.inf if question.max_divergence is None else question.max_divergence
    divergence = divergence_of(clients, question) if question.max_divergence is not None else None
    if divergence is None:
        divergence = np.zeros(len(clients.names))
    if message := too_few_examples(divergence, clients.num_examples, limit, question.min_examples):
        raise InfeasibleError(f"{clients.path}: {message}")
    return np.asarray(divergence <= limit)


def too_few_examples(divergence: Floats, num_examples: Ints, max_divergence: float, min_examples: int) -> str:
    """Return a message with feasible limits if clients within `max_divergence` have too few examples, else "".

    Args:
        divergence: (K,) divergence from the labels of all clients, in nats, at least 0; may be infinite.
        num_examples: (K,) number of examples.
        max_divergence: Largest divergence e1. Infinity keeps all clients.
        min_examples: Smallest number of examples e2.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", constraints 37e
    and 37f. The paper does not mention that they can contradict each other.

    Example:
        >>> too_few_examples(np.array([0.1, 0.3, 0.2]), np.array([50, 70, 40]), 0.2, 120)[-67:]
        'Lower min_examples to 90 or less or raise max_divergence to 0.3000.'
    """
    within, finite = divergence <= max_divergence, np.isfinite(divergence)
    covered = int(num_examples[within].sum())
    if covered >= min_examples:
        return ""
    ways, notes = [f"lower min_examples to {covered} or less"] if covered else [], []
    if max_divergence == math.inf:
        summary = f"All {len(divergence)} clients together have {covered} examples;"
    else:
        summary = f"{within.sum()} of {len(divergence)} clients are within max_divergence = {max_divergence:g}"
        summary += f" and have {covered} examples;"
        order = np.argsort(divergence[finite], kind="stable")
        totals = np.cumsum(num_examples[finite][order])  # of the clients up to each divergence
        enough = int(np.searchsorted(totals, min_examples))
        if enough < len(totals):
            # Rounded up, so that the printed limit is feasible.
            ways.append(f"raise max_divergence to {math.ceil(divergence[finite][order][enough] * 1e4) / 1e4:.4f}")
        else:
            notes = [f"All clients with a finite divergence together have {num_examples[finite].sum()} examples."]
        if not finite.all():
            notes.append(f"{(~finite).sum()} clients lack a class; smoothing above 0 makes their divergence finite.")
    advice = [f"{' or '.join(ways).capitalize()}."] if ways else []
    return " ".join([summary, f"min_examples is {min_examples}.", *advice, *notes])


# -------------------- Records of plans


def record(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values, with clients in the order of the table."""
    solution, chosen = plan.solution, client_rows(plan)
    return {
        "status": solution.status,
        **_totals(solution),
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        "nodes": solution.nodes,
        "interrupted": plan.interrupted,
        "counts": {
            "clients": len(plan.kept),
            "chosen": len(chosen),
            "not_chosen": len(plan.problem) - len(chosen),
            "too_divergent": int((~plan.kept).sum()),
        },
        "examples": {
            "chosen": sum(row["num_examples"] for row in chosen),
            "needed": plan.question.min_examples,
            "kept": int(plan.problem.num_examples.sum()),
        },
        "shadow_prices": {"whole_band": plan.band_price, "megahertz": plan.megahertz_price},
        "what_if": {
            "bandwidth_10_percent_more": _comparison_record(plan, plan.more_band),
            "min_examples_10_percent_more": _comparison_record(plan, plan.more_examples),
        },
        "clients": chosen,
        "question": plan.question.to_json(),
    }


def client_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return one row per selected client."""
    allocation, band = plan.solution.allocation, plan.question.bandwidth_hertz
    chosen = plan.problem.only(plan.problem.rows(allocation.ids))
    slack = allocation.seconds - (allocation.upload_seconds + allocation.compute_seconds)
    columns = {
        "num_examples": chosen.num_examples,
        "share": allocation.share,
        **({} if band is None else {"bandwidth_hertz": allocation.share * band}),
        "hertz": allocation.hertz,
        "max_hertz": chosen.max_hertz,
        "compute_seconds": allocation.compute_seconds,
        "upload_seconds": allocation.upload_seconds,
        "slack_seconds": np.where(slack > 1e-9 * allocation.seconds, slack, 0.0),  # less is rounding
        "compute_joules": allocation.compute_joules,
        "upload_joules": allocation.upload_joules,
    }
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        {"client": plan.clients.names[i], **dict(zip(columns, row, strict=True))}
        for i, row in zip(allocation.ids, values, strict=True)
    ]


def _totals(solution: Solution) -> dict[str, float]:
    return {"cost": solution.cost, "seconds": solution.allocation.seconds, "joules": solution.allocation.joules}


def _comparison_record(plan: Plan, solution: Solution | None) -> dict[str, Any] | None:
    if solution is None:
        return None
    return {
        **_totals(solution),
        "lower_bound": solution.lower_bound,
        "status": solution.status,
        "change": solution.cost - plan.solution.cost,
        "chosen": [plan.clients.names[i] for i in solution.allocation.ids],
    }
