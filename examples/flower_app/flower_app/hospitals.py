"""Hospitals with a table each, which nobody else reads; ``hospitals.toml`` says which columns are what.

Each node names its table: ``flower-supernode ... --node-config 'partition-id=0 name="alder" data="/srv/alder.csv"'``.
To run it, set ``serverapp = "flower_app.hospitals:server"`` and ``clientapp = "flower_app.hospitals:client"`` in
pyproject.toml.
"""

from pathlib import Path

from fedreach.flower.tables import FlowerTables

setup = FlowerTables(Path(__file__).with_name("hospitals.toml"))
client = setup.client_app()
server = setup.server_app()
