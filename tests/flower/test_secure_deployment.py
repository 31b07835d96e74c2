"""Secure aggregation between real processes, with a roster of the keys with which SuperNodes authenticate."""

from __future__ import annotations

from pathlib import Path

import pytest

from .deployment import Deployment
from .same import app_with_both, rows_of, simulated

pytestmark = pytest.mark.slow


class FourKeys(Deployment):
    """Nodes are started one by one, each with a key."""

    def make_keys(self, nodes: int) -> None:
        super().make_keys(4)


def test_between_machines_secure_aggregation_with_a_roster_gives_the_simulators_model(tmp_path: Path) -> None:
    app = app_with_both(tmp_path / "app")
    file = app / "flower_app" / "digits.toml"
    file.write_text(
        file.read_text(encoding="utf-8") + '\n[methods.secure]\nlabel_statistics = "secure_aggregation"\n',
        encoding="utf-8",
    )
    with FourKeys(tmp_path / "flower", tls=True, partitions=4) as flower:
        for node in range(4):
            keys = f'secure-key="{flower.key(f"node{node}")}" secure-roster="{flower.key("roster.txt")}"'
            flower.start_node(node, config=f"partition-id={node} num-partitions=4 {keys}")
        flower.run(app, tmp_path / "real", 'experiment="digits.toml" method="secure" min-clients=3')
        ours = simulated(file, "secure", tmp_path / "simulated")
        assert [row["cohort"] for row in rows_of(tmp_path / "real")] == [row["cohort"] for row in rows_of(ours)]
        name = "last.safetensors"
        assert (tmp_path / "real" / name).read_bytes() == (ours / name).read_bytes()
        assert "trusts the server" not in "".join(flower.log(f"node{node}").read_text() for node in range(4))
