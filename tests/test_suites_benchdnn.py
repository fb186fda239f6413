"""benchdnn's shapes and flags, with normal data: its own 16-bit data is nearly all zeros.

BENCHDNN_INPUTS=<oneDNN>/tests/benchdnn/inputs/bnorm pytest -m suites
"""

import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from cases import FORMATS, dtype
from judged import judge

import bn_ext
from bn_ext.testing import _formulas as reference

pytestmark = pytest.mark.suites

EPSILON = 1e-3
#: G: given statistics; C: scale; H: shift; R: a ReLU follows; A: src_1 is added, a ReLU follows.
FLAGS = ("", "G", "C", "H", "CH", "GCH", "CHR", "GCHR", "CHA", "GCHA")
#: Files of shapes, and the flags that they are run with.
FILES = {
    **dict.fromkeys(["shapes_ci", "shapes_1d", "shapes_2d", "shapes_3d"], FLAGS),
    **dict.fromkeys(["shapes_regressions", "shapes_topologies_small"], ("CHR", "GCH")),
    **dict.fromkeys(["shapes_resnet_50", "shapes_googlenet_v2"], ("CHA",)),
    **dict.fromkeys(["shapes_densenet_121", "shapes_googlenet_v3"], ("CHR",)),
}
#: Elements of a problem; larger problems get fewer samples, but at least one.
MOST = 1 << 17


@pytest.fixture
def inputs():
    if not (folder := os.environ.get("BENCHDNN_INPUTS")):
        pytest.skip("no BENCHDNN_INPUTS: benchdnn's shapes were not fetched")
    return Path(folder)


def shapes(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        if not (text := line.partition("#")[0].partition('n"')[0].strip()):
            continue
        sizes = {key: int(size) for key, size in re.findall(r"(mb|ic|id|ih|iw)(\d+)", text)}
        spatial = []  # an absent size equals the size of the axis before it
        for key in ("id", "ih", "iw"):
            if key in sizes or spatial:
                spatial.append(sizes.get(key) or spatial[-1])
        rest = sizes["ic"] * math.prod(spatial)
        yield (min(sizes.get("mb", 2), max(1, MOST // rest)), sizes["ic"], *spatial)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("file", FILES)
def test_benchdnn(rng, inputs, ran, file, name):
    for shape in shapes(inputs / file):
        src, src_1, diff_dst = rng.normal(0.5, 2, (3, *shape)).astype(dtype(name))
        gamma, beta, mean = rng.normal(0, 1, (3, shape[1])).astype(np.float32)
        arguments = mean, rng.uniform(0.5, 4, shape[1]).astype(np.float32)
        for flags in FILES[file]:
            frozen, relu = "G" in flags, "R" in flags or "A" in flags
            scale, shift = gamma if "C" in flags else None, beta if "H" in flags else None
            added = src_1 if "A" in flags else None
            wide = {"epsilon": EPSILON, "axis": 1, "wide": np.longdouble}
            behind = {"relu": relu, "src_1": added, **wide}
            if frozen:
                want = reference.batch_norm_inference(src, *arguments, scale, shift, **behind)
            else:
                want = reference.batch_norm_training(src, scale, shift, **behind)
            sizes = want.product_terms + want.shift_terms
            for data_format, axis in FORMATS.items():

                def moved(a, axis=axis):
                    return np.ascontiguousarray(np.moveaxis(a, 1, axis))

                options = {"epsilon": EPSILON, "data_format": data_format}
                behind = {"relu": relu, "src_1": None if added is None else moved(added), **options}
                x, dy = moved(src), moved(diff_dst)
                if frozen:
                    stats = arguments
                    dst = bn_ext.batch_norm_inference(x, *stats, scale, shift, **behind)
                else:
                    dst, *stats = bn_ext.batch_norm_training(x, scale, shift, **behind)
                    # Squared distances are from a pivot up to two standard deviations off the mean.
                    terms = abs(want.mean) + want.deviation, 5 * want.variance
                    judge(stats, [want.mean, want.variance], terms, "float32")
                back = np.moveaxis(dst, axis, 1)
                judge([back], [want.dst], [sizes], name)
                options |= {"is_training": not frozen, "relu": relu, "dst": dst if relu else None}
                grads = bn_ext.batch_norm_backward(x, dy, *stats, scale, **options)
                options = {"is_training": not frozen, "gate": back > 0 if relu else None, **wide}
                right = reference.batch_norm_backward(src, diff_dst, *stats, scale, **options)
                terms = right.diff_src_terms + right.diff_src_sums
                judge([np.moveaxis(grads[0], axis, 1)], right[:1], [terms], name)
                terms = [abs(a).sum(axis=1) for a in (right.gamma_terms, right.beta_terms)]
                judge(grads[1:], right[1:3], terms, "float32")
                ran["benchdnn", name] += 2
