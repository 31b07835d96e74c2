"""Where the runs of a comparison are computed: processes of this machine, or of a Ray cluster."""

from fedreach.errors import ConfigError, nearest
from fedreach.experiments.executors.base import Executor

NAMES = ("local", "ray")


def chosen(name: str, address: str | None = None) -> Executor:
    """Return an executor by name.

    The address is that of a Ray cluster; None starts one on this machine.

    Raises:
        ConfigError: If there is no such executor, the address is not for it, or Ray is not installed.

    Example:
        >>> chosen("local")
        Local(tries=1)
    """
    from fedreach.experiments.executors.local import Local
    from fedreach.experiments.executors.ray import OnRay

    if name not in NAMES:
        raise ConfigError(f"There is no executor {name!r}.{nearest(name, NAMES)}")
    if name == "ray":
        return OnRay(address)
    if address is not None:
        raise ConfigError(f"--address is that of a Ray cluster; got {address!r} without Ray. Add --executor ray.")
    return Local()
