"""Reference pages of what Python sees: the public names, each from its docstring."""

from __future__ import annotations

import ast
import importlib
import inspect

PUBLIC: dict[str, tuple[str, str, list[str]]] = {
    "comparisons": (
        "Comparisons",
        "What `import fedreach as fr` brings: data of clients, methods, and what compares or runs them.",
        ["fedreach"],
    ),
    "models": (
        "Models and deployed clients",
        "The model of a finished run, and a client that is adapted without it.",
        ["fedreach.deploy"],
    ),
    "components": (
        "Base classes and what components are handed",
        "A component of your own derives from the base class of its type, and is handed these values.",
        [
            "fedreach.federation.types",
            "fedreach.federation.base",
            "fedreach._util.component:Component",
            "fedreach.federation.participation:Participation",
            "fedreach.federation.weighting:OwnWeight",
            "fedreach.data.shifts",
            "fedreach.evaluation.metrics:Metric",
            "fedreach.wireless.rules:AllocationRule",
        ],
    ),
    "federations": (
        "Federations by hand",
        "The objects below a comparison, for those who write the loop themselves.",
        [
            "fedreach.data.federated:federate",
            "fedreach.data.assignment:Partition",
            "fedreach.data.stored:OwnData,OwnSamples,OwnTable",
            "fedreach.data.table_source:read_table",
            "fedreach.federation.federation",
            "fedreach.federation.local_sgd",
            "fedreach.runs.simulation",
            "fedreach.evaluation.evaluator:Evaluator,Scores,Group",
            "fedreach.runs.callbacks",
            "fedreach._util.streams:generator",
        ],
    ),
    "flower": ("Flower", "Real federations; `pip install 'fedreach[flower]'`.", ["fedreach.flower"]),
    "testing": ("Checks", "Checks of your own components.", ["fedreach.testing"]),
    "wireless": (
        "Seconds, joules and bandwidth",
        "Channels, costs, and who gets which share of the band.",
        [
            "fedreach.wireless.radio",
            "fedreach.wireless.problem",
            "fedreach.wireless.exact:allocate",
            "fedreach.wireless.solve:solve",
        ],
    ),
    "theory": (
        "Theory",
        "What the papers bound and measure, as numpy functions.",
        [
            "fedreach.federation.bounds",
            "fedreach.federation.convergence",
            "fedreach._util.divergence",
        ],
    ),
    "run-folders": ("Run folders", "What stands in the files of a run, a field a key.", ["fedreach.runs.schema"]),
    "errors": (
        "Errors",
        "All that FedReach raises of its own.",
        [
            "fedreach._util.errors:FedReachError,ConfigError,ComponentError,InfeasibleError,DataError,RunFolderError,TrainingError",
        ],
    ),
}
"""Page -> its title, a sentence, and modules, each with all of its names or with those after the colon."""


def pages() -> dict[str, str]:
    """Return a page of each group of names."""
    found = {}
    for page, (title, sentence, modules) in PUBLIC.items():
        lines = [f"# {title}", sentence]
        for where in modules:
            module, _, _ = where.partition(":")
            if len(modules) > 1:
                lines.append(f"## {module}")
                lines.append(
                    inspect.getdoc(importlib.import_module(module)).partition("\n\n")[0] if where == module else ""
                )
            lines += [f"::: {module}.{name}" for name in public(where)]
        found[f"reference/python/{page}.md"] = "\n\n".join(filter(None, lines)) + "\n"
    return found


def public(where: str) -> list[str]:
    """Return the public names of a module: those after the colon, or those that it exports, or that it defines."""
    name, _, chosen = where.partition(":")
    if chosen:
        return chosen.split(",")
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is not None:
        return list(exported)
    tree = ast.parse(inspect.getsource(module))
    handed_on = [
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    ]
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return handed_on + [found for found in defined if not found.startswith("_")]
