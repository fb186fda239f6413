"""Speed over size: GB/s of the gradient and of the floor, from 1 KB to 1 GB per tensor."""

import math

from bn_ext._bench.peers import bn_ext_call
from bn_ext._bench.pictures import picture
from bn_ext._bench.problems import Problem, dtype_of
from bn_ext._bench.timing import least_seconds

from . import bare_loops

CHANNELS = 64


def cases(most):
    """(N, C) problems of 64 channels whose tensors double in size."""
    size = 1 << 10
    while size <= most:
        yield size
        size *= 2


def measure(dtype, threads, most, seconds, library, advance):
    """GB/s of three tensors' bytes, by name, for each size."""
    found = []
    for size in cases(most):
        shape = (size // CHANNELS // dtype_of(dtype).itemsize, CHANNELS)
        problem, frozen = (
            Problem(shape, "NXC", dtype, op=op) for op in ("backward", "backward-frozen")
        )
        calls = {
            "bn_ext": bn_ext_call(problem, threads),
            "bn_ext, frozen": bn_ext_call(frozen, threads),
            "floor": bare_loops.loop(library, problem, threads),
            "five streams": bare_loops.loop(library, problem, threads, passes=2),
        }
        best = least_seconds(calls, seconds)
        found.append({"bytes": size, "gb_per_s": {n: 3e-9 * size / t for n, t in best.items()}})
        advance()
    return found


def count(most):
    return sum(1 for _ in cases(most))


def plot(found, caches, title, path):
    """Lines over the size of a tensor, with the caches marked where three tensors fill them."""
    size = 6 * len(found), 4
    with picture(path, columns=len(found), size=size, dpi=110) as (figure, panels):
        for panel, (dtype, points) in zip(panels[0], found.items(), strict=True):
            for name in points[0]["gb_per_s"]:
                panel.plot(
                    [p["bytes"] for p in points],
                    [p["gb_per_s"].get(name, math.nan) for p in points],
                    label=name,
                )
            for label, full in zip(("L2 of a core", "last level"), caches, strict=True):
                panel.axvline(full / 3, color="grey", linewidth=0.8, linestyle=":")
                panel.text(full / 3, panel.get_ylim()[1], label, rotation=90, va="top", fontsize=8)
            panel.set_xscale("log", base=2)
            panel.set_xlabel("bytes of one tensor")
            panel.set_ylabel("GB/s (three tensors' bytes / time)")
            panel.set_title(dtype)
            panel.legend(fontsize=8)
        figure.suptitle(title, fontsize=10)
