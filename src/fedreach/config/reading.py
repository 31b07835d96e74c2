"""From the text of an experiment to its raw tables, and the values of --set, with what no TOML may hold refused."""

import csv
import json
import re
import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreach.errors import ConfigError

MOST_NESTED = 50  # tables and lists within each other
UNFIT = re.compile("[\0\ud800-\udfff]")  # no file, page or terminal takes these


def read(source: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of an experiment file, or of a run.json, and its raw tables.

    Raises:
        ConfigError: If it cannot be read, or is no valid TOML or JSON.
    """
    what = "TOML" if source.suffix != ".json" else "JSON"
    try:
        text = source.read_text(encoding="utf-8")
        return text, tomllib.loads(text) if what == "TOML" else _config_of(source, json.loads(text))
    except ConfigError:
        raise
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file {source}. `fedreach init` writes a commented one.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{source} is a folder. Name the TOML file in it.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source} is not a text in UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}. Make it readable.") from error
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a ValueError, and no decode error
        raise ConfigError(
            f"{source} is not valid {what}: {_said(error)}. `fedreach init` writes a valid one."
        ) from error


def _config_of(source: Path, stored: Any) -> dict[str, Any]:
    if not isinstance(stored, dict) or not isinstance(stored.get("config", {}), dict):
        raise ConfigError(f"{source} must hold a table of options, as run.json of a run folder does.")
    return dict(stored.get("config", stored))


def toml_value(text: str) -> Any:
    """Return a value written as in TOML; a bare word is a string.

    Raises:
        ConfigError: If it is nested too deeply, or a number too long to be read.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{reprlib.repr(text)} is no value: {_said(error)}.") from error
    check_plain(value, "a value")
    return value


def names_in(text: str) -> list[str]:
    """Return names that commas stand between; one with a comma of its own stands in quotes, as in a CSV file.

    Example:
        >>> names_in('north,"St. Mary, London", 007')
        ['north', 'St. Mary, London', '007']
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()]


def check_plain(value: Any, where: str) -> None:
    """Refuse what nests more than `MOST_NESTED` deep, whole numbers beyond 64 bits, and characters that are none.

    Raises:
        ConfigError: Naming the place.

    Example:
        >>> check_plain({"name": "x", "seeds": [0]}, "x.toml")
        >>> check_plain({"name": "a\\0b"}, "x.toml")
        Traceback (most recent call last):
        fedreach.errors.ConfigError: x.toml must not hold the character U+0000; it stands in 'a\\x00b'. Leave it out.
    """
    level = [value]
    for _ in range(MOST_NESTED + 1):
        for part in level:
            if isinstance(part, str) and (unfit := UNFIT.search(part)):
                said = f"must not hold the character U+{ord(unfit[0]):04X}; it stands in {reprlib.repr(part)}"
                raise ConfigError(f"{where} {said}. Leave it out.")
            if isinstance(part, int) and part.bit_length() > 63:
                raise ConfigError(f"{where}: a whole number must be of 64 bits, as TOML has them; got {_number(part)}.")
        keys = [key for table in level if isinstance(table, Mapping) for key in table]
        inner = [part for table in level if isinstance(table, Mapping) for part in table.values()]
        level = keys + inner + [part for values in level if isinstance(values, list | tuple) for part in values]
    if level:
        raise ConfigError(f"{where} nests tables and lists more than {MOST_NESTED} deep, as no experiment does.")


def _number(value: int) -> str:
    return f"{value}" if value.bit_length() < 200 else f"one of {value.bit_length()} bits"


def _said(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")
