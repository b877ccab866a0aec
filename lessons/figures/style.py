"""One look for all figures: an opaque background, readable on a light page and on a dark one."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from minimoe.plot import COLORS    # told apart by the colour-blind too

plt.rcParams.update({
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white", "font.size": 11,
    "axes.prop_cycle": matplotlib.cycler(color=COLORS), "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.alpha": 0.25, "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 1.8,
    "svg.hashsalt": "minimoe", "svg.fonttype": "path", "figure.constrained_layout.use": True,
})


def figure(columns: int = 1, rows: int = 1, width: float = 7.0, height: float = 3.4, **options: Any) -> tuple[Any, Any]:
    """Return (figure, axes) as `plt.subplots` does, in inches: 7 wide fills the width of a page."""
    return plt.subplots(rows, columns, figsize=(width, height), **options)


def save(fig: Any, name: str) -> None:
    """Write lessons/figures/NAME.svg: the same bytes for the same picture."""
    path = Path(__file__).parent / f"{name}.svg"
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)
    print(f"wrote {path}")
