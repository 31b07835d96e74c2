"""A plan as a record for machines, and as rows of clients."""

from typing import Any

import numpy as np

from fedreach.planning.plan import Plan
from fedreach.wireless.allocation.problem import Solution


def record(plan: Plan) -> dict[str, Any]:
    """Return all of a plan in plain values, clients as they stand in the table."""
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
            "bandwidth_10_percent_more": _compared(plan, plan.more_band),
            "min_examples_10_percent_more": _compared(plan, plan.more_examples),
        },
        "clients": chosen,
        "question": plan.question.given(),
    }


def client_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each client that is chosen."""
    allocation, band = plan.solution.allocation, plan.question.bandwidth_hertz
    mine = plan.problem.only(plan.problem.rows(allocation.ids))
    slack = allocation.seconds - (allocation.upload_seconds + allocation.compute_seconds)
    columns = {
        "num_examples": mine.num_examples,
        "share": allocation.share,
        **({} if band is None else {"bandwidth_hertz": allocation.share * band}),
        "hertz": allocation.hertz,
        "max_hertz": mine.max_hertz,
        "compute_seconds": allocation.compute_seconds,
        "upload_seconds": allocation.upload_seconds,
        "slack_seconds": np.where(slack > 1e-9 * allocation.seconds, slack, 0.0),  # below it is rounding
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


def _compared(plan: Plan, other: Solution | None) -> dict[str, Any] | None:
    if other is None:
        return None
    return {
        **_totals(other),
        "lower_bound": other.lower_bound,
        "status": other.status,
        "change": other.cost - plan.solution.cost,
        "chosen": [plan.clients.names[i] for i in other.allocation.ids],
    }
