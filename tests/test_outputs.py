"""Outputs: what out= may be, and where it may lie. test_sharing.py has every overlap."""

import numpy as np
import pytest
from cases import EPSILON, OUTPUTS, VECTORS, Problem, with_count
from refusals import refused

import bn_ext

pytestmark = pytest.mark.quick


def out_refused(kind, message, p, out):
    refused(kind, message, p, out=tuple(out))


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("which", range(len(OUTPUTS)))
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda a: a.astype(np.float64), "expected dtype float32, got float64"),
        (lambda a: a[:-1], "expected shape"),
        (read_only, "expected a writable array"),
    ],
)
def test_out_that_does_not_fit(p, which, wrong, expected):
    out = p.outs()
    out[which] = wrong(out[which])
    out_refused(ValueError, f"^out: {OUTPUTS[which]}: {expected}", p, out)


@pytest.mark.parametrize("which", range(len(OUTPUTS)))
def test_out_that_is_no_array(p, which):
    out = p.outs()
    for thing in (out[which].tolist(), np.ma.masked_array(out[which]), "abc"):
        out[which] = thing
        with pytest.raises(TypeError, match=f"^out: {OUTPUTS[which]}: expected a numpy.ndarray"):
            p.run(bn_ext.batch_norm_backward, out=tuple(out))


@pytest.mark.parametrize("out", [np.zeros((3, 5)), 1, "abc"])
def test_out_that_is_no_tuple(p, out):
    with pytest.raises(TypeError, match=r"^out: expected \(diff_src, diff_gamma, diff_beta\)"):
        p.run(bn_ext.batch_norm_backward, out=out)


@pytest.mark.parametrize("length", [0, 1, 2, 4])
def test_out_of_another_length(p, length):
    with pytest.raises(ValueError, match=f"^out: expected .* got {length} entries"):
        p.run(bn_ext.batch_norm_backward, out=(None,) * length)


def test_out_entries_that_are_not_produced(p):
    for out in ((None, p.outs()[1], None), (None, None, p.outs()[2])):
        with pytest.raises(ValueError, match="^out: expected None for diff_gamma and diff_beta"):
            p.run(bn_ext.batch_norm_backward, out=out, param_grads=False)
    diff_src = p.outs()[0]
    grads = p.run(bn_ext.batch_norm_backward, out=(diff_src, None, None), param_grads=False)
    assert grads.diff_src is diff_src


def test_out_that_shares_memory(p):
    memory = np.zeros(2 * p.src.size + 2, np.float32)

    def at(start):
        return memory[start : start + p.src.size].reshape(p.src.shape)

    src = at(0)
    src[...] = p.src
    for start in (1, 5, p.src.size - 1):
        p.src = src
        message = "^out: diff_src: shares memory with src .it may be exactly src"
        out_refused(ValueError, message, p, [at(start), None, None])
        p.src, p.diff_dst = p.src.copy(), src
        out_refused(
            ValueError, "^out: diff_src: shares memory with diff_dst", p, [at(start), None, None]
        )
        p.diff_dst = src.copy()
    # Disjoint parts of one buffer are no trouble.
    p.src = src
    p.run(bn_ext.batch_norm_backward, out=(at(p.src.size), None, None))


@pytest.mark.parametrize("name", VECTORS)
def test_out_vectors_that_share_memory_with_inputs(p, name):
    for which in (1, 2):
        out = [None, None, None]
        out[which] = getattr(p, name)
        message = f"^out: {OUTPUTS[which]}: shares memory with {name}"
        out_refused(ValueError, message, p, out)


@pytest.mark.parametrize("dims", [(0, 4, 5), (6, 0, 5)])
def test_outs_that_share_memory_when_there_are_no_elements(rng, dims):
    """Zeros are written even then."""
    q = Problem(rng, dims, "NXC")
    vectors = dict(zip(VECTORS, q.vectors(), strict=True))
    for name, vector in vectors.items():
        for which in (1, 2):
            out = [np.empty_like(q.src), None, None]
            out[which] = vector
            message = f"^out: {OUTPUTS[which]}: shares memory with {name}"
            refused(ValueError, message, q, out=tuple(out))
    # Arrays without elements share nothing, wherever they are.
    empty = np.empty_like(q.src)
    q.run(bn_ext.batch_norm_backward, src=empty, diff_dst=empty, out=(empty, None, None))


def test_outs_that_share_memory_with_each_other(p):
    diff_src, vector, _ = p.outs()
    out_refused(
        ValueError, "^out: diff_gamma: shares memory with out: diff_beta", p, [None, vector, vector]
    )
    out_refused(
        ValueError, "^out: diff_src: shares memory with out: diff_beta", p,
        [diff_src, None, diff_src[0, 0]],
    )  # fmt: skip


def test_out_that_overlaps_itself(p):
    for strides in ((0, 20, 4), (80, 16, 4), (4, 4, 4)):
        view = np.lib.stride_tricks.as_strided(np.zeros(200, np.float32), p.src.shape, strides)
        out_refused(ValueError, "^out: diff_src: may overlap itself", p, [view, None, None])


def test_sums_are_not_written_over(p):
    sums = with_count(np.zeros((2, 5)), 24)
    q = Problem(np.random.default_rng(1), (6, 4, 5), "NXC", "float64")
    with pytest.raises(ValueError, match="^out: diff_gamma: shares memory with sums"):
        bn_ext.batch_norm_backward_apply(
            q.src, q.diff_dst, *q.vectors(), sums, epsilon=EPSILON, out=(None, sums[0], None)
        )


def test_unaligned_out_vectors(p):
    want = p.run(bn_ext.batch_norm_backward)
    unaligned = np.zeros(21, np.uint8)[1:].view(np.float32)
    grads = p.run(bn_ext.batch_norm_backward, out=(None, unaligned, None))
    assert grads.diff_gamma is unaligned
    assert unaligned.tobytes() == want.diff_gamma.tobytes()


def test_out_with_the_same_start_and_other_strides(rng):
    p = Problem(rng, (4, 4, 4), "NXC")
    with pytest.raises(ValueError, match="^out: diff_src: shares memory with src"):
        p.run(bn_ext.batch_norm_backward, out=(p.src.transpose(1, 0, 2), None, None))


def test_a_place_does_not_depend_on_axes_of_length_1(rng):
    """An axis of length 1 leads nowhere, whatever its stride: this is src itself."""
    p = Problem(rng, (6, 1, 4), "NXC")
    wanted = p.run(bn_ext.batch_norm_backward).diff_src
    strides = (p.src.strides[0], 4096, p.src.strides[2])
    same = np.lib.stride_tricks.as_strided(p.src, p.src.shape, strides)
    found = p.run(bn_ext.batch_norm_backward, out=(same, None, None))
    assert found.diff_src is same
    assert p.src.tobytes() == wanted.tobytes()
