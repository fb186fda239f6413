"""Figures that are drawn and saved without a screen."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["picture"]


@contextmanager
def picture(
    path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], dpi: int
) -> Iterator[tuple[Any, Any]]:
    """The figure and its (rows, columns) panels; written to `path` at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    yield figure, panels
    figure.savefig(path, dpi=dpi)
    plt.close(figure)
