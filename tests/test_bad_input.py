"""Bad input gets a clear error, and nothing is written."""

import array
import re

import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, FORMATS, Problem, all_bits, dtype

import bn_ext

pytestmark = pytest.mark.quick


@pytest.fixture
def p(rng):
    return Problem(rng, (6, 4, 5), "NXC")


def outs(p):
    return [np.full_like(p.src, 7), np.full_like(p.mean, 7), np.full_like(p.mean, 7)]


def refused(kind, message, p, **changed):
    """The general function and both halves raise this, and write nothing."""
    arguments = {
        "src": p.src, "diff_dst": p.diff_dst, "mean": p.mean, "variance": p.variance,
        "gamma": p.gamma, "epsilon": EPSILON, "out": tuple(outs(p)), **changed,
    }  # fmt: skip
    written = [a for a in (*arguments["out"], p.src, p.diff_dst, *p.vectors()) if a is not None]
    before = [np.array(a).tobytes() for a in written]
    with pytest.raises(kind, match=message):
        bn_ext.batch_norm_backward(**arguments)
    sums = np.zeros((2, len(p.mean)))
    with pytest.raises(kind, match=message):
        bn_ext.batch_norm_backward_apply(**arguments, sums=sums, count=24)
    if changed.keys() & {"src", "diff_dst", "mean", "data_format", "num_threads"}:
        names = ("src", "diff_dst", "mean", "data_format", "num_threads")
        with pytest.raises(kind, match=message):
            bn_ext.batch_norm_backward_reduce(**{n: arguments[n] for n in names if n in arguments})
    assert [np.array(a).tobytes() for a in written] == before


# ---- TypeError ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int32", "uint8", "bool", "complex64", "longdouble", "object"])
@pytest.mark.parametrize("argument", ["src", "diff_dst", "mean", "variance", "gamma"])
def test_dtypes_outside_the_table(p, argument, name):
    array = getattr(p, argument).astype(name)
    refused(
        TypeError, rf"^{argument}: expected .*float32.*, got {array.dtype}", p, **{argument: array}
    )


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_mixed_data(rng, data):
    p = Problem(rng, (6, 5), "NXC", data)
    for other in DATA_DTYPES:
        if other != data:
            refused(
                TypeError, rf"^diff_dst: expected {data}, like src, got {other}", p,
                diff_dst=p.diff_dst.astype(dtype(other)),
            )  # fmt: skip


@pytest.mark.parametrize("argument", ["mean", "variance", "gamma"])
def test_float64_statistics_with_float32_data_name_the_fix(p, argument):
    message = (
        f"^{argument}: expected float32 with float32 data, got float64; "
        f"pass np.asarray\\({argument}, np.float32\\)$"
    )
    refused(TypeError, message, p, **{argument: getattr(p, argument).astype(np.float64)})


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_mixed_vectors(rng, data):
    p = Problem(rng, (6, 5), "NXC", data, data)
    for argument in ("variance", "gamma"):
        refused(
            TypeError, rf"^{argument}: expected {data}, like mean, got float32", p,
            **{argument: getattr(p, argument).astype(np.float32)},
        )  # fmt: skip


def test_vectors_of_the_other_16_bit_type(rng):
    p = Problem(rng, (6, 5), "NXC", "float16", "float16")
    refused(
        TypeError, "^mean: expected float32 or float16 with float16 data, got bfloat16", p,
        mean=p.mean.astype(dtype("bfloat16")),
    )  # fmt: skip


@pytest.mark.parametrize("argument", ["src", "diff_dst", "mean", "variance", "gamma"])
def test_big_endian_names_the_fix(p, argument):
    array = getattr(p, argument)
    swapped = array.astype(array.dtype.newbyteorder())
    message = rf"^{argument}: expected native byte order, got .f4; pass {argument}.astype\("
    refused(TypeError, message, p, **{argument: swapped})
    fixed = swapped.astype(swapped.dtype.newbyteorder("="))
    grads = bn_ext.batch_norm_backward(
        **{
            "src": p.src, "diff_dst": p.diff_dst, "mean": p.mean, "variance": p.variance,
            "epsilon": EPSILON, argument: fixed,
        }
    )  # fmt: skip
    assert np.isfinite(grads.diff_src).all()


@pytest.mark.parametrize("argument", ["src", "diff_dst", "mean", "variance", "gamma"])
def test_masked_arrays_name_the_fix(p, argument):
    masked = np.ma.masked_greater(getattr(p, argument), 0)
    refused(
        TypeError,
        rf"^{argument}: masked arrays .* pass {argument}.filled\(value\)",
        p,
        **{argument: masked},
    )


@pytest.mark.parametrize(
    "thing", [None, 1.0, "abc", b"abc", object(), {1: 2}, np.float32(1), range(3)]
)
@pytest.mark.parametrize("argument", ["src", "diff_dst", "mean", "variance"])
def test_not_array_like(p, argument, thing):
    refused(TypeError, rf"^{argument}: expected an array, got", p, **{argument: thing})


class OnDevice:
    """What a CUDA tensor tells of itself; DLPack's device 2 is CUDA's own memory."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        raise AssertionError("asked for data that cannot be reached")


class OldOnDevice:
    __cuda_array_interface__ = ()

    def __array__(self, *_, **__):
        raise AssertionError("asked for data that cannot be reached")


@pytest.mark.parametrize("argument", ["src", "diff_dst", "mean", "variance", "gamma"])
@pytest.mark.parametrize("kind", [OnDevice, OldOnDevice])
def test_memory_of_an_accelerator(p, argument, kind):
    message = rf"^{argument}: this .*{kind.__name__} cannot be .* is not in CPU memory; copy it"
    refused(TypeError, message, p, **{argument: kind()})


@pytest.mark.parametrize("rubbish", [None, (), (1,), "ab", (None, 0), ([], 0), {}, 1, (1, 2, 3)])
def test_a_device_that_is_none(p, rubbish):
    class Strange:
        def __dlpack_device__(self):
            return rubbish

    refused(TypeError, "^src: this .*Strange cannot be .*__dlpack_device__", p, src=Strange())


@pytest.mark.parametrize("argument", ["src", "diff_dst", "mean", "variance", "gamma"])
def test_a_mask_behind_an_array_method(p, argument):
    class Masked:
        def __array__(self, *_, **__):
            return np.ma.masked_greater(getattr(p, argument), 0)

    message = rf"^{argument}: masked arrays .* pass {argument}.filled\(value\)"
    refused(TypeError, message, p, **{argument: Masked()})


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, ValueError])
def test_an_exporter_that_refuses(p, error):
    class Refusing:
        dtype = "torch.bfloat16"

        def __array__(self, *_, **__):
            raise error("it does not want to")

    refused(
        TypeError,
        r"^src: this .*Refusing cannot be viewed as a NumPy array: it does not want to; "
        r"pass src.view\(torch.int16\).numpy\(\).view\(ml_dtypes.bfloat16\)",
        p,
        src=Refusing(),
    )


def test_an_exporters_own_failure_is_not_hidden(p):
    class Broken:
        def __array__(self, *_, **__):
            raise MemoryError

    with pytest.raises(MemoryError):
        bn_ext.batch_norm_backward(
            Broken(), p.diff_dst, p.mean, p.variance, p.gamma, epsilon=EPSILON
        )


def test_sequences_are_what_numpy_makes_of_them(rng, p):
    message = "^mean: expected float64 with float64 data, got float32"
    refused(TypeError, message, p, src=p.src.tolist(), diff_dst=p.diff_dst.tolist())
    refused(TypeError, "^src: expected an array of numbers: ", p, src=[[1.0], [2.0, 3.0]])
    refused(TypeError, "^diff_dst: expected an array of numbers: ", p, diff_dst=([1.0], 2.0))
    refused(TypeError, "^src: expected float32, .*, got int64", p, src=[[1, 2], [3, 4]])
    refused(TypeError, "^src: expected float32, .*, got <U1", p, src=["a", "b"])
    double = Problem(rng, (6, 4, 5), "NXC", "float64")
    want = double.run(bn_ext.batch_norm_backward)
    double.src, double.diff_dst = double.src.tolist(), tuple(double.diff_dst)
    for found, wanted in zip(double.run(bn_ext.batch_norm_backward), want, strict=True):
        assert found.tobytes() == wanted.tobytes()


def test_sequences_as_vectors_only_in_the_exact_dtype(rng, p):
    refused(
        TypeError, "^mean: expected float32 with float32 data, got float64", p, mean=p.mean.tolist()
    )
    refused(
        TypeError, "^gamma: expected float32 with float32 data, got int", p, gamma=[1, 2, 3, 4, 5]
    )
    refused(TypeError, "^gamma: ", p, gamma=[[1.0], [2.0, 3.0]])
    double = Problem(rng, (6, 4, 5), "NXC", "float64")
    grads = double.run(bn_ext.batch_norm_backward)
    double.mean, double.gamma = double.mean.tolist(), tuple(double.gamma)
    assert double.run(bn_ext.batch_norm_backward).diff_src.tobytes() == grads.diff_src.tobytes()
    double.mean = [1, 2, 3, 4, 5]
    with pytest.raises(TypeError, match="^mean: expected float64"):
        double.run(bn_ext.batch_norm_backward)


@pytest.mark.parametrize(
    "epsilon",
    [
        None,
        "1e-3",
        b"1",
        [1.0],
        1j,
        object(),
        np.complex128(1),
        np.array(1j),
        np.timedelta64(1),
        np.array("1e-3", object),
        np.array("1e-3"),
        np.ones(1),
        np.ones(2),
    ],
)
def test_epsilon_that_is_no_number(p, epsilon):
    refused(TypeError, "^epsilon: expected a real number, got", p, epsilon=epsilon)


@pytest.mark.parametrize("num_threads", [1.0, "2", [1], 2.5])
def test_num_threads_that_is_no_integer(p, num_threads):
    refused(TypeError, "^num_threads: expected an integer or None, got", p, num_threads=num_threads)


@pytest.mark.parametrize("count", [1.5, "3", None])
def test_count_that_is_no_integer(p, count):
    with pytest.raises(TypeError, match="^count: expected an integer"):
        bn_ext.batch_norm_backward_apply(
            p.src, p.diff_dst, *p.vectors(), np.zeros((2, 5)), count, epsilon=EPSILON
        )


def test_epsilon_has_no_default(p):
    with pytest.raises(TypeError, match="epsilon"):
        bn_ext.batch_norm_backward(p.src, p.diff_dst, *p.vectors())


# ---- ValueError -----------------------------------------------------------------


@pytest.mark.parametrize(
    "dims", [(6, 4), (6, 4, 5, 1), (6, 4, 6), (5, 4, 5), (6, 20), (0, 4, 5), (), (5,)]
)
def test_diff_dst_of_another_shape(p, dims):
    message = re.escape(f"diff_dst: expected shape (6, 4, 5), like src, got {dims}")
    refused(ValueError, message, p, diff_dst=np.zeros(dims, np.float32))


@pytest.mark.parametrize("dims", [(), (5,), (0,)])
def test_fewer_than_two_dimensions(p, dims):
    array = np.zeros(dims, np.float32)
    refused(
        ValueError, "^src: expected at least 2 dimensions, got shape", p, src=array, diff_dst=array
    )


@pytest.mark.parametrize("argument", ["mean", "variance", "gamma"])
@pytest.mark.parametrize("dims", [(4,), (6,), (), (1,), (5, 1), (1, 5), (0,)])
def test_vectors_of_another_shape(p, argument, dims):
    message = re.escape(f"{argument}: expected shape (5,)") + ".*" + re.escape(f"got {dims}")
    refused(ValueError, message, p, **{argument: np.zeros(dims, np.float32)})


def test_channels_on_another_axis_name_the_fix(rng):
    p = Problem(rng, (6, 2, 4, 5), "NXC")
    vectors = dict.fromkeys(("mean", "variance", "gamma"), np.ones(4, np.float32))
    refused(
        ValueError, r"on axis 2, pass np.moveaxis\(src, 2, -1\).* copies nothing$", p, **vectors
    )
    moved = bn_ext.batch_norm_backward(
        np.moveaxis(p.src, 2, -1), np.moveaxis(p.diff_dst, 2, -1), **vectors, epsilon=EPSILON
    )
    straight = bn_ext.batch_norm_backward(
        np.moveaxis(p.src, 2, 1), np.moveaxis(p.diff_dst, 2, 1), **vectors, epsilon=EPSILON,
        data_format="NCX",
    )  # fmt: skip
    assert (np.moveaxis(moved.diff_src, -1, 1) == straight.diff_src).all()


def test_the_other_layout_is_named(rng):
    """Vectors that fit the other place of the channels: the most common mistake."""
    for dims, mine, other in (((8, 3, 7, 5), "NXC", "NCX"), ((8, 7, 5, 3), "NCX", "NXC")):
        p = Problem(rng, dims, mine)
        p.mean = p.variance = p.gamma = np.ones(3, np.float32)
        hint = f'.*, pass data_format="{other}"$'
        message = re.escape("got (3,); if the channels are on ") + hint
        refused(ValueError, "^mean: .*" + message, p, data_format=mine)
        keepdims = {n: np.ones((1, 3, 1, 1), np.float32) for n in ("mean", "variance", "gamma")}
        message = rf'pass data_format="{other}"; pass mean.reshape\(-1\)$'
        refused(ValueError, message, p, data_format=mine, **keepdims)
        p.run(bn_ext.batch_norm_backward, data_format=other)


def test_one_vector_that_does_not_fit_where_mean_does(rng):
    """It is that vector that is wrong, whatever other axis has its length."""
    p = Problem(rng, (4, 6, 5, 3), "NXC")
    for size in (4, 5, 6, 7):
        message = rf"got \({size},\)$"
        refused(
            ValueError, "^gamma: expected shape .*" + message, p, gamma=np.ones(size, np.float32)
        )


def test_a_list_can_be_converted_as_its_message_says(p):
    message = r"^mean: .*, got float64; pass np.asarray\(mean, np.float32\)$"
    mean = p.mean.tolist()
    refused(TypeError, message, p, mean=mean)
    p.mean = np.asarray(mean, np.float32)
    p.run(bn_ext.batch_norm_backward)


@pytest.mark.parametrize("argument", ["mean", "variance", "gamma"])
def test_statistics_with_kept_dimensions_name_the_fix(p, argument):
    kept = getattr(p, argument).reshape(1, 1, -1)
    refused(ValueError, rf"got \(1, 1, 5\); pass {argument}.reshape\(-1\)$", p, **{argument: kept})


@pytest.mark.parametrize(
    ("name", "ours"),
    [("NHWC", "NXC"), ("NDHWC", "NXC"), ("channels_last", "NXC"), ("nxc", "NXC"),
     ("NCHW", "NCX"), ("NCDHW", "NCX"), ("channels_first", "NCX"), ("ncx", "NCX")],
)  # fmt: skip
def test_others_names_of_a_layout(p, name, ours):
    message = f"^data_format: expected 'NXC' or 'NCX', got '{name}', which is called '{ours}' here"
    refused(ValueError, message, p, data_format=name)


@pytest.mark.parametrize("data_format", ["NWHC", "", None, 3, ["NXC"], np.array(["NXC", "NCX"])])
def test_unknown_data_format(p, data_format):
    refused(ValueError, "^data_format: expected 'NXC' or 'NCX', got", p, data_format=data_format)


@pytest.mark.parametrize("flag", ["is_training", "param_grads"])
@pytest.mark.parametrize(
    "value", ["False", None, 2, -1, 1.0, np.array(True), np.zeros(2, bool), [], np.timedelta64(1)]
)
def test_flags_that_are_neither_true_nor_false(p, flag, value):
    refused(TypeError, f"^{flag}: expected True or False, got", p, **{flag: value})


@pytest.mark.parametrize("flag", ["is_training", "param_grads"])
def test_flags_by_other_names(p, flag):
    for value in (True, False):
        want = p.run(bn_ext.batch_norm_backward, **{flag: value})
        for same in (int(value), np.bool_(value), np.int64(value)):
            found = p.run(bn_ext.batch_norm_backward, **{flag: same})
            assert all_bits(found) == all_bits(want)


def test_messages_are_short(p):
    """Whatever was given, no more than a line of it is shown."""

    class Mute:
        def __repr__(self):
            raise RuntimeError

    long = "x" * 10_000
    for changed in (
        {"epsilon": 10**400}, {"epsilon": 10**5000}, {"epsilon": long}, {"num_threads": -(10**400)},
        {"num_threads": -(10**5000)}, {"data_format": long}, {"data_format": Mute()},
        {"is_training": long}, {"epsilon": Mute()}, {"num_threads": Mute()},
    ):  # fmt: skip
        (name,) = changed
        with pytest.raises((TypeError, ValueError), match=f"^{name}: ") as caught:
            p.run(bn_ext.batch_norm_backward, **changed)
        assert len(str(caught.value)) < 200
    refused(ValueError, "^epsilon: expected a finite number >= 0, got 1000", p, epsilon=10**400)


@pytest.mark.parametrize("epsilon", [-1e-9, np.inf, -np.inf, np.nan])
def test_epsilon_out_of_range(p, epsilon):
    refused(ValueError, "^epsilon: expected a finite number >= 0, got", p, epsilon=epsilon)


@pytest.mark.parametrize("num_threads", [0, -1, -(2**70)])
def test_num_threads_out_of_range(p, num_threads):
    refused(ValueError, "^num_threads: expected at least 1, got", p, num_threads=num_threads)


def test_count_and_sums(p):
    def apply(sums, count):
        return bn_ext.batch_norm_backward_apply(
            p.src, p.diff_dst, *p.vectors(), sums, count, epsilon=EPSILON
        )

    for count in (0, -1, 23, -(10**400)):
        with pytest.raises(ValueError, match="^count: expected at least 24, the elements per"):
            apply(np.zeros((2, 5)), count)
    with pytest.raises(
        ValueError, match="^count: expected a number that fits a float64, got 10000"
    ):
        apply(np.zeros((2, 5)), 10**400)
    for dims in ((2, 4), (5, 2), (10,), (2, 5, 1)):
        with pytest.raises(ValueError, match=r"^sums: expected shape \(2, 5\), got"):
            apply(np.zeros(dims), 24)
    for wrong in (np.zeros((2, 5), np.float32), np.zeros((2, 5), ">f8"), [[1] * 5] * 2):
        with pytest.raises(TypeError, match="^sums: expected"):
            apply(wrong, 24)
    strided = np.asfortranarray(np.arange(10.0).reshape(2, 5))
    assert (apply(strided, 24).diff_beta == strided[0]).all()
    assert (apply(strided.tolist(), 24).diff_beta == strided[0]).all()


# ---- out ------------------------------------------------------------------------


OUT_NAMES = ["diff_src", "diff_gamma", "diff_beta"]


def out_refused(kind, message, p, out):
    refused(kind, message, p, out=tuple(out))


@pytest.mark.parametrize("which", range(3))
def test_out_of_another_dtype(p, which):
    out = outs(p)
    out[which] = out[which].astype(np.float64)
    out_refused(
        ValueError, f"^out: {OUT_NAMES[which]}: expected dtype float32, got float64", p, out
    )


@pytest.mark.parametrize("which", range(3))
def test_out_of_another_shape(p, which):
    out = outs(p)
    out[which] = out[which][:-1]
    out_refused(ValueError, f"^out: {OUT_NAMES[which]}: expected shape", p, out)


@pytest.mark.parametrize("which", range(3))
def test_out_that_is_read_only(p, which):
    out = outs(p)
    out[which].flags.writeable = False
    out_refused(ValueError, f"^out: {OUT_NAMES[which]}: expected a writable array", p, out)


@pytest.mark.parametrize("which", range(3))
def test_out_that_is_no_array(p, which):
    out = outs(p)
    for thing in (out[which].tolist(), np.ma.masked_array(out[which]), "abc"):
        out[which] = thing
        with pytest.raises(TypeError, match=f"^out: {OUT_NAMES[which]}: expected a numpy.ndarray"):
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
    for out in ((None, outs(p)[1], None), (None, None, outs(p)[2])):
        with pytest.raises(ValueError, match="^out: expected None for diff_gamma and diff_beta"):
            p.run(bn_ext.batch_norm_backward, out=out, param_grads=False)
    diff_src = outs(p)[0]
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


def test_out_with_the_same_start_and_other_strides(rng):
    p = Problem(rng, (4, 4, 4), "NXC")
    with pytest.raises(ValueError, match="^out: diff_src: shares memory with src"):
        p.run(bn_ext.batch_norm_backward, out=(p.src.transpose(1, 0, 2), None, None))


@pytest.mark.parametrize("name", ["mean", "variance", "gamma"])
def test_out_vectors_that_share_memory_with_inputs(p, name):
    for which in (1, 2):
        out = [None, None, None]
        out[which] = getattr(p, name)
        message = f"^out: {OUT_NAMES[which]}: shares memory with {name}"
        out_refused(ValueError, message, p, out)


@pytest.mark.parametrize("dims", [(0, 4, 5), (6, 0, 5)])
def test_outs_that_share_memory_when_there_are_no_elements(rng, dims):
    """Zeros are written even then."""
    q = Problem(rng, dims, "NXC")
    vectors = dict(zip(("mean", "variance", "gamma"), q.vectors(), strict=True))
    for name, vector in vectors.items():
        for which in (1, 2):
            out = [np.empty_like(q.src), None, None]
            out[which] = vector
            message = f"^out: {OUT_NAMES[which]}: shares memory with {name}"
            refused(ValueError, message, q, out=tuple(out))
    # Arrays without elements share nothing, wherever they are.
    empty = np.empty_like(q.src)
    q.run(bn_ext.batch_norm_backward, src=empty, diff_dst=empty, out=(empty, None, None))


def test_outs_that_share_memory_with_each_other(p):
    diff_src, vector, _ = outs(p)
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
        out_refused(ValueError, "^out: diff_src: overlaps itself", p, [view, None, None])


def test_sums_are_not_written_over(p):
    sums = np.zeros((2, 5))
    q = Problem(np.random.default_rng(1), (6, 4, 5), "NXC", "float64")
    with pytest.raises(ValueError, match="^out: diff_gamma: shares memory with sums"):
        bn_ext.batch_norm_backward_apply(
            q.src, q.diff_dst, *q.vectors(), sums, 24, epsilon=EPSILON, out=(None, sums[0], None)
        )


# ---- what is accepted -------------------------------------------------------------


def test_accepted_kinds_of_arrays(rng, p, tmp_path):
    want = p.run(bn_ext.batch_norm_backward)

    def same(**changed):
        arguments = {
            "src": p.src, "diff_dst": p.diff_dst, "mean": p.mean, "variance": p.variance,
            "gamma": p.gamma, "epsilon": EPSILON, **changed,
        }  # fmt: skip
        grads = bn_ext.batch_norm_backward(**arguments)
        for got, expected in zip(grads, want, strict=True):
            assert type(got) is np.ndarray
            assert got.tobytes() == expected.tobytes()

    mapped = np.memmap(tmp_path / "src", np.float32, "w+", shape=p.src.shape)
    mapped[...] = p.src
    same(src=mapped)
    frozen = p.src.copy()
    frozen.flags.writeable = False
    same(src=frozen)
    same(mean=frozen_copy(p.mean), variance=frozen_copy(p.variance), gamma=frozen_copy(p.gamma))
    same(src=memoryview(p.src))
    same(mean=array.array("f", p.mean))

    class Wrapped:
        __array_interface__ = p.diff_dst.__array_interface__

    same(diff_dst=Wrapped())

    class Exported:
        def __dlpack__(self, **options):
            return p.diff_dst.__dlpack__(**options)

        def __dlpack_device__(self):
            return p.diff_dst.__dlpack_device__()

    same(diff_dst=Exported())
    every_other = np.zeros(10, np.float32)
    every_other[::2] = p.mean
    same(mean=every_other[::2])
    same(mean=p.mean[::-1].copy()[::-1])
    unaligned = np.zeros(21, np.uint8)[1:].view(np.float32)
    unaligned[...] = p.mean
    same(mean=unaligned)
    metadata = np.dtype(np.float32, metadata={"unit": "m"})
    same(src=p.src.astype(metadata), mean=p.mean.astype(metadata))
    same(num_threads=np.int64(2), epsilon=np.float64(EPSILON))
    same(num_threads=2**100)
    same(epsilon=np.array(EPSILON))


def frozen_copy(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def test_matrices(rng):
    p = Problem(rng, (6, 5), "NXC")
    want = p.run(bn_ext.batch_norm_backward)
    with pytest.warns(PendingDeprecationWarning):
        p.src = np.matrix(p.src)
    assert p.run(bn_ext.batch_norm_backward).diff_src.tobytes() == want.diff_src.tobytes()


def test_unaligned_out_vectors(p):
    want = p.run(bn_ext.batch_norm_backward)
    unaligned = np.zeros(21, np.uint8)[1:].view(np.float32)
    grads = p.run(bn_ext.batch_norm_backward, out=(None, unaligned, None))
    assert grads.diff_gamma is unaligned
    assert unaligned.tobytes() == want.diff_gamma.tobytes()


@pytest.mark.parametrize("data_format", FORMATS)
def test_no_memory(data_format):
    """Sums of 2^56 channels fit nowhere; the error comes before anything is touched."""
    huge = np.broadcast_to(np.float32(1), (2, 2**56) if data_format == "NXC" else (2, 2**56, 1))
    with pytest.raises(MemoryError):
        bn_ext.batch_norm_backward_reduce(
            huge, huge, np.broadcast_to(np.float32(1), 2**56), data_format=data_format
        )


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_vectors_that_fit_the_other_layout_or_are_empty(rng, data, data_format):
    """The message says where channels were looked for, and where they would fit."""
    p = Problem(rng, (6, 4, 5), data_format, data)
    here, there, other = ("the last axis", "axis 1", "NCX")
    if data_format == "NCX":
        here, there, other = there, here, "NXC"
    channels = p.src.shape[p.axis]
    expected = (
        rf"^mean: expected shape \({channels},\), one value for each channel on {here} of src,"
    )
    fits = np.zeros(9 - channels, p.mean.dtype)
    refused(
        ValueError, rf'{expected} .*channels are on {there}, pass data_format="{other}"', p,
        mean=fits, data_format=data_format,
    )  # fmt: skip
    refused(ValueError, rf"{expected} .*, got \(0,\)", p, mean=fits[:0], data_format=data_format)
