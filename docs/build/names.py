"""Reference pages of the public names in Python, each from its docstring."""

from __future__ import annotations

import ast
import importlib
import inspect

PUBLIC: dict[str, tuple[str, str, list[str]]] = {
    "comparisons": (
        "Comparisons",
        "The names in `import fedreach as fr`: data, methods, comparisons and runs.",
        ["fedreach"],
    ),
    "models": (
        "Models and deployed clients",
        "The model of a finished run, and adapters for deployed clients.",
        ["fedreach.deploy"],
    ),
    "components": (
        "Base classes and arguments of components",
        "A custom component derives from the base class of its type. FedReach passes it these values.",
        [
            "fedreach.federation.types",
            "fedreach.federation.base",
            "fedreach._util.component:Component",
            "fedreach.federation.attacks:Attack",
            "fedreach.federation.participation:Participation",
            "fedreach.federation.weighting:OwnWeight",
            "fedreach.data.shifts",
            "fedreach.evaluation.metrics:Metric",
            "fedreach.wireless.rules:AllocationRule",
        ],
    ),
    "federations": (
        "Federations by hand",
        "The objects that a comparison consists of, to write the loop yourself.",
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
    "flower": ("Flower", "FedReach on Flower; needs `pip install 'fedreach[flower]'`.", ["fedreach.flower"]),
    "testing": ("Checks", "Checks of custom components.", ["fedreach.testing"]),
    "wireless": (
        "Time, energy, bandwidth",
        "Channels, costs, and shares of the bandwidth.",
        [
            "fedreach.wireless.radio",
            "fedreach.wireless.problem",
            "fedreach.wireless.exact:allocate",
            "fedreach.wireless.solve:solve",
        ],
    ),
    "theory": (
        "Theory",
        "Bounds and measures of the papers, as numpy functions.",
        [
            "fedreach.federation.bounds",
            "fedreach.federation.convergence",
            "fedreach._util.divergence",
        ],
    ),
    "run-folders": ("Run folders", "The files of a run; each field is a key.", ["fedreach.runs.schema"]),
    "errors": (
        "Errors",
        "All errors that FedReach raises.",
        [
            "fedreach._util.errors:FedReachError,ConfigError,ComponentError,InfeasibleError,DataError,RunFolderError,TrainingError",
        ],
    ),
}
"""Page -> title, description and modules, each with all of its names or with those after the colon."""


def pages() -> dict[str, str]:
    """Return one page per group of names."""
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
    """Return the public names of a module: those after the colon, else those that it exports or defines."""
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
