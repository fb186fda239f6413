"""The formulas, against three nested loops: examples/plain_loop.py says what they compute.

The loops are held against tests/reference.py too, which says the same of large arrays at
once and adds what error bounds are made of.
"""

import numpy as np
import pytest
from bounds import distance, errors, reference_of
from cases import DTYPES, FORMATS, OUTPUTS, Problem, shape
from tree import ROOT, load

import bn_ext

pytestmark = pytest.mark.quick

PLAIN_LOOP = ROOT / "examples" / "plain_loop.py"
plain_loop = load(PLAIN_LOOP)
#: N, C, X: one element, one row, one column, and some of each; more than a kernel's four rows,
#: and than the 32 of a group.
SIZES = [(1, 1, 1), (9, 5, 1), (1, 3, 7), (4, 1, 3), (35, 2, 3), (2, 3, 40)]
every_mode = pytest.mark.parametrize("is_training", [True, False])
with_and_without_gamma = pytest.mark.parametrize("with_gamma", [True, False])
wide_enough = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here"
)


def problems(rng, data_format, data, vector, with_gamma):
    for n, c, x in SIZES:
        p = Problem(rng, shape(n, c, x, data_format), data_format, data, vector)
        if not with_gamma:
            p.gamma = None
        yield p


@wide_enough
@every_mode
@with_and_without_gamma
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_the_plain_loop_gives_the_same(rng, data, vector, data_format, with_gamma, is_training):
    """Within the bounds of docs/numerics.md, which are those of the kernels."""
    options = {"is_training": is_training, "data_format": data_format}
    for p in problems(rng, data_format, data, vector, with_gamma):
        grads = p.run(bn_ext.batch_norm_backward, **options)
        plain = dict(zip(OUTPUTS, p.run(plain_loop.batch_norm_backward, **options), strict=True))
        sizes = reference_of(p, is_training)
        for name, error in errors(
            grads, sizes._replace(**plain), data, vector, is_training=is_training
        ).items():
            assert error.holds(), (name, p.src.shape)


@wide_enough
@every_mode
@with_and_without_gamma
@pytest.mark.parametrize("data_format", FORMATS)
def test_the_plain_loop_is_the_reference(rng, data_format, with_gamma, is_training):
    for p in problems(rng, data_format, "float64", "float64", with_gamma):
        plain = p.run(
            plain_loop.batch_norm_backward, is_training=is_training, data_format=data_format
        )
        want = reference_of(p, is_training)
        u = np.finfo(np.longdouble).eps / 2
        size = (want.diff_src_terms + want.diff_src_sums).max()
        terms = (want.gamma_terms, want.beta_terms)
        for found, wanted in zip(plain, want[:3], strict=True):
            most = max(size, *(abs(a).sum(axis=1).max() for a in terms))
            assert (distance(found, wanted) <= 100 * u * most).all()


@every_mode
def test_the_plain_loop_takes_any_rank(rng, is_training):
    for dims in ((3, 4), (2, 3, 2, 4), (2, 2, 3, 2, 2)):
        for data_format in FORMATS:
            p = Problem(rng, dims, data_format, "float64")
            options = {"is_training": is_training, "data_format": data_format}
            plain = p.run(plain_loop.batch_norm_backward, **options)
            for found, wanted in zip(
                p.run(bn_ext.batch_norm_backward, **options), plain, strict=True
            ):
                assert found.shape == wanted.shape
                np.testing.assert_allclose(found, wanted.astype(np.float64), rtol=1e-12, atol=1e-13)
