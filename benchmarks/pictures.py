"""Figures that are drawn and saved without a screen."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["GREY", "picture"]

#: Can be read on white and on black.
GREY = "#7a7a7a"
INK = "text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"


@contextmanager
def picture(
    path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], dpi: int
) -> Iterator[tuple[Any, Any]]:
    """The figure and its (rows, columns) panels; written to `path` at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(dict.fromkeys(INK, GREY))
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    yield figure, panels
    figure.savefig(path, dpi=dpi, transparent=True)
    plt.close(figure)
