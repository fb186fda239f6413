"""Memory of a process during training steps and after them, for docs/howto/memory.png."""

import gc
from pathlib import Path

import numpy as np

import bn_ext

from . import pages

STEPS, IDLE = 8, 6
OPTIONS = {"epsilon": 1e-5, "data_format": "NXC"}
#: Three layers, whose activations live until the backward pass.
SHAPES = [(32, 112, 112, 64), (32, 56, 56, 128), (32, 28, 28, 256)]
LIMITS = {"nothing": 0, "at most 512 MiB": 512 << 20, "the default": None}


def mebibytes():
    """(resident memory, how much of it is offered to the system)"""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
    return sizes["Rss"], sizes["LazyFree"]


def steps():
    """Memory after each call of the training steps, then after calls of a small problem."""
    for _ in range(STEPS):
        kept = []
        for shape in SHAPES:
            src = np.ones(shape, np.float32)
            kept.append((src, *bn_ext.batch_norm_training(src, **OPTIONS)))
            yield mebibytes()
        while kept:
            src, dst, mean, variance = kept.pop()
            bn_ext.batch_norm_backward(src, dst, mean, variance, **OPTIONS)
            yield mebibytes()
        del src, dst
    gc.collect()
    for _ in range(IDLE):
        bn_ext.batch_norm_training(np.ones((1000, 512), np.float32), **OPTIONS)
        yield mebibytes()


def report(options):
    """Draw the sizes with each limit of what is kept."""
    path = pages.ROOT / "docs" / "howto" / "memory.png"
    with pages.picture(path, rows=3, size=(4.3, 5.4), dpi=150) as (figure, axes):
        for panel, (title, limit) in zip(axes[:, 0], LIMITS.items(), strict=True):
            bn_ext.keep_memory(0)  # releases what the previous run left
            bn_ext.keep_memory(limit)
            sizes = list(steps())
            calls, taken = range(len(sizes)), [r - o for r, o in sizes]
            panel.fill_between(calls, [r for r, _ in sizes], color="#cfd8e0", label="offered")
            panel.fill_between(calls, taken, color="#1f6fb2", label="in use or held")
            panel.set(ylabel="MiB", ylim=(0, 700))
            panel.set_title(f"kept: {title}", fontsize=11)
            (resident, offered), most = sizes[-1], max(sizes)[0]
            at_the_end = f"{resident:.0f} at the end, {offered:.0f} of it offered"
            print(f"{title}: at most {most:.0f} MiB resident, {at_the_end}")
        axes[-1, 0].set_xlabel("call")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
