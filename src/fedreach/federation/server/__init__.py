"""What the server does with the weighted mean of the updates."""

from __future__ import annotations

from fedreach.federation.server.average import Average

SERVERS: dict[str, type] = {"average": Average}

__all__ = ["SERVERS", "Average"]
