"""What noise on label counts costs in privacy, by the privacy loss distributions of the library dp_accounting."""

from typing import Any

from fedreach.errors import ConfigError

EPSILON = "[0.001, inf)"  # at 0.001 the noise is that of thousands of examples


def loss_distributions() -> Any:
    """Return the module ``dp_accounting.pld.privacy_loss_distribution``.

    Raises:
        ConfigError: If the library is not installed.
    """
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise ConfigError(
            "Accounting for privacy needs the library dp_accounting; install it with pip install 'fedreach[privacy]'."
        ) from error
    return privacy_loss_distribution


def spent_epsilon(one_count: Any, delta: float) -> float:
    """Return the epsilon that replacing an example costs, given the loss distribution of changing one count by 1.

    Another example in place of one lowers a count by 1 and raises another by 1, whose noises are independent.
    """
    return float(one_count.self_compose(2).get_epsilon_for_delta(delta))
