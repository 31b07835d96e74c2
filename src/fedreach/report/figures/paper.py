"""Figures as papers print them: as wide as a column, in the letters of its text, told apart in grey."""

from __future__ import annotations

from fedreach.errors import ConfigError
from fedreach.report.figures.style import INK, RC, Style

COLUMNS = {"single": 3.25, "double": 6.75}  # inches: of ICML; IEEE's are 3.5 and 7.16, the text of NeurIPS is 5.5 wide
NARROWEST, WIDEST = 2.5, 10.0

IN_PRINT = RC | {
    # They ship with matplotlib: the same layout everywhere, and letters beside Times or Computer Modern.
    "font.family": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlepad": 3,
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.labelpad": 2,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "lines.linewidth": 1.1,
    "legend.fontsize": 7.5,
    "legend.handlelength": 2.8,
    "figure.constrained_layout.w_pad": 0.03,
    "figure.constrained_layout.h_pad": 0.03,
}


def in_print(width: float) -> Style:
    """Return the style of figures that are so many inches wide: 7 to 8 points, dashes and markers, no titles."""
    return Style(
        rc=IN_PRINT,
        width=width,
        size=8.0,
        smaller=7.5,
        smallest=7.0,
        letter=0.054,
        line=0.135,
        height=0.85,
        muted=INK,
        printed=True,
    )


def width_of(said: str | float) -> float:
    """Return the width of a figure in inches.

    Args:
        said: ``"single"`` or ``"double"``, see `COLUMNS`, or inches.

    Raises:
        ConfigError: If it is neither, or no width of a paper.

    Example:
        >>> width_of("single"), width_of("3.5"), width_of(5.5)
        (3.25, 3.5, 5.5)
    """
    try:
        inches = COLUMNS[said] if said in COLUMNS else float(said)
    except ValueError:
        inches = 0.0
    if not NARROWEST <= inches <= WIDEST:
        named = " or ".join(f"{name} ({inches:g})" for name, inches in COLUMNS.items())
        raise ConfigError(
            f"The width of a paper's figures must be {named}, or inches from {NARROWEST:g} to {WIDEST:g}; got {said!r}."
        )
    return inches
