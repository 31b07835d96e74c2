"""A fitted rule as one Python file, which serves a client where there is neither FedReach nor torch: numpy alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedreach
from fedreach.config.own_files import code_files
from fedreach.errors import ConfigError
from fedreach.federation.protocols import Serving
from fedreach.federation.traits import Traits
from fedreach.federation.values import State
from fedreach.runs.identity import check_code
from fedreach.serving.adapter import Adapter
from fedreach.serving.literals import arrays, authors, loader, made, said
from fedreach.serving.saved import SavedRule, Which, check_supported, read
from fedreach.serving.sources import modules

FILE = '''\
# SPDX-License-Identifier: Apache-2.0
# Written by FedReach {version}, of whose modules it consists{users}. It needs numpy alone.
"""How a client uses a federated model: by its own inputs, which have no labels and never leave it.

{about}

Whoever holds the model computes its logits, and the rule says what they mean for this client:

    import {stem}

    adapter = {stem}.new_adapter()  # one for each client; with `model`, a rule may ask it about repaired inputs
    adapter.fit(logits)             # (m, {classes}) of its inputs; `features`, `inputs` where the rule looks at them
    adapter.predict(logits)         # (m,) classes; `predict_proba`, `partial_fit`, `prior_`, `decision_`: see Adapter
"""

{loader}

RUN = {{
{run}}}

STATE = {{
{state}}}
"""What the participants fitted."""

RULE = {rule}
Adapter = {adapter}.Adapter


def new_adapter(model=None):
    """Return a client that has seen no input yet.

    Args:
        model: Returns (logits, features) for inputs, (m, ...): where a rule repairs inputs, it asks again.
    """
    return Adapter(RULE, STATE, model)
'''


def export(
    folder: Path | str,
    out: Path,
    which: Which = "last",
    *,
    cluster: int | None = None,
    base: Path | None = None,
    force: bool = False,
) -> SavedRule:
    """Write the fitted rule of a finished run as one Python file, and return what was written.

    Args:
        folder: The run folder.
        out: The file, whose name ends in .py; there must be none yet.
        which: Of the last or the best model.
        cluster: Number of the model, where the run has one a cluster.
        base: Folder that the name of a rule of one's own is relative to; default: the current one.
        force: Also a rule that participants do not support.

    Raises:
        RunFolderError: If the folder holds no fitted rule of that model, or a rule's own file is another one by now.
        ConfigError: If the rule needs labels, or more than numpy; if participants do not support it; or the file cannot
            be written there.
    """
    if out.suffix != ".py" or not out.stem.isidentifier():
        raise ConfigError(f"The file of a client must be named as a Python module, such as client.py; got {out.name}.")
    if out.exists():
        raise ConfigError(f"There is a file {out} already. Remove it, or name another one.")
    saved = read(folder, which, cluster=cluster, base=base)
    if not force:
        check_supported(saved)
    here = base or Path.cwd()
    check_code(saved.run, saved.name, here, code_files(saved.name, here))
    run = saved.run
    about = {
        "name": run.config["name"],
        "method": run.method,
        "seed": run.seed,
        "model": which if cluster is None else f"{which}, cluster {cluster}",
        "round": saved.round,
        "rule": repr(saved.rule),
    }
    text = written(saved.rule, saved.state, about, out.stem)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("x", encoding="utf-8") as file:
        file.write(text)
    return saved


def written(rule: Serving, state: State, about: Mapping[str, Any], stem: str = "client") -> str:
    """Return the text of the file.

    Args:
        rule: A dataclass; its options must be numbers, texts and the like.
        state: As it was fitted.
        about: What the file says of where the rule is from.
        stem: Name of the file without its ending.

    Raises:
        ConfigError: If the rule needs labels, its options cannot be written down, or it needs more than numpy.
    """
    check_deployable(rule)
    place = place_of(rule)
    found = modules([Adapter.__module__, place])
    return FILE.format(
        version=fedreach.__version__,
        users=authors(found.values()),
        about=said(about),
        stem=stem,
        classes=len(state["base"]) if "base" in state else "c",
        loader=loader(found.values()),
        run="".join(f"    {key!r}: {value!r},\n" for key, value in about.items()),
        state=arrays(state),
        rule=made(rule, found[str(place)].name),
        adapter=found[Adapter.__module__].name,
    )


def check_deployable(rule: Serving) -> None:
    """Refuse a rule by which nobody can be served who has nothing but inputs and a model, by a ConfigError."""
    kind = type(rule)
    if Traits.of(rule).is_reference:
        raise ConfigError(
            f"{kind.__name__} needs the labels of those that it serves: a reference, which none can deploy."
        )
    if Traits.of(rule).needs_batchnorm:
        raise ConfigError(
            f"{kind.__name__} refreshes BatchNorm layers inside the model, which a file that needs numpy alone cannot. "
            "Export a method with serving 'label_shift'."
        )


def place_of(rule: Serving) -> str | Path:
    """Return the module that a rule is of: its full name, or the path of a user's own file."""
    kind = type(rule)
    return kind.__module__ if kind.__module__.startswith("fedreach.") else Path(inspect.getfile(kind)).resolve()
