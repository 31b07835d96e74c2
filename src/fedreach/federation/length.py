"""Whether the rounds of a run depend on how many there are in all: only where they do not can a run be extended."""

from __future__ import annotations

from fedreach.federation.federation import Federation
from fedreach.federation.round import server_tunes
from fedreach.federation.traits import name_of

FIRST = 1000  # rounds after which a server is asked whether it learns then


def refers_to_length(federation: Federation, rounds: int, longer: int | None = None) -> str:
    """Say what of the first `rounds` rounds is another in a run of `longer`; empty where they are the same.

    Args:
        federation: Whose rounds they are.
        rounds: Length of one run.
        longer: Length of the other; None: a round longer.

    Example:
        >>> from dataclasses import replace
        >>> from fedreach.federation.local_sgd import LocalSGD
        >>> from fedreach.testing.problems import tiny_federation
        >>> refers_to_length(tiny_federation(), 10)
        ''
        >>> cosine = replace(tiny_federation(), local=LocalSGD(schedule="cosine", decay=0.1))
        >>> refers_to_length(cosine, 10)
        "local.schedule 'cosine' spreads its decay over all rounds of a run"
    """
    longer = rounds + 1 if longer is None else longer
    if federation.local.schedule == "cosine":
        return "local.schedule 'cosine' spreads its decay over all rounds of a run"
    if federation.traits["selection"].reads_length:
        return f"the selection {name_of(federation.selection)} goes by how many rounds a run has"
    asked = [*range(1, min(rounds, FIRST) + 1), rounds]
    if any(server_tunes(federation, each, rounds) != server_tunes(federation, each, longer) for each in asked):
        return f"the server step {name_of(federation.server)} learns by how many rounds a run has"
    return ""
