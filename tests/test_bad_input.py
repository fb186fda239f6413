"""Bad input gets a clear error, and nothing is written. test_outputs.py: what out= may not be."""

import re

import numpy as np
import pytest
from cases import EPSILON, INPUTS, VECTORS, Problem
from refusals import ARRAYS, NUMBERS, RAISED, check_passes, raising, refused

import bn_ext

pytestmark = pytest.mark.quick


# ---- TypeError ------------------------------------------------------------------


@pytest.mark.parametrize("argument", VECTORS)
def test_statistics_of_another_dtype_name_the_fix(p, argument):
    message = (
        f"^{argument}: expected float32 or float64 with float32 data, got float16; "
        f"pass np.asarray\\({argument}, np.float32\\)$"
    )
    refused(TypeError, message, p, **{argument: getattr(p, argument).astype(np.float16)})


@pytest.mark.parametrize("argument", INPUTS)
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


@pytest.mark.parametrize("argument", INPUTS)
def test_masked_arrays_name_the_fix(p, argument):
    masked = np.ma.masked_greater(getattr(p, argument), 0)

    class Masked:
        def __array__(self, *_, **__):
            return masked

    message = rf"^{argument}: masked arrays .* pass {argument}.filled\(value\)"
    for thing in (masked, Masked()):
        refused(TypeError, message, p, **{argument: thing})


@pytest.mark.parametrize(
    "thing", [None, 1.0, "abc", b"abc", object(), {1: 2}, np.float32(1), range(3)]
)
@pytest.mark.parametrize("argument", [name for name in INPUTS if name != "gamma"])
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


@pytest.mark.parametrize("argument", INPUTS)
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


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, ValueError])
def test_an_exporter_that_refuses(p, error):
    """Its error passes; a note says whose it is, and the fix for torch's bfloat16."""

    class Refusing:
        dtype = "torch.bfloat16"

        def __array__(self, *_, **__):
            raise error("it does not want to")

    refused(
        error,
        r"^it does not want to\nsrc: this .*Refusing cannot be viewed as a NumPy array; "
        r"pass src.view\(torch.int16\).numpy\(\).view\(ml_dtypes.bfloat16\)",
        p,
        src=Refusing(),
    )


@pytest.mark.parametrize("wrong", [{"version": 3}, {"shape": None, "typestr": "f4", "version": 3}])
def test_an_exporter_that_numpy_refuses(p, wrong):
    class Odd:
        __array_interface__ = wrong

    for given in (Odd(), [[Odd()]]):
        refused(TypeError, "^src: this .*Odd cannot be viewed as a NumPy array: ", p, src=given)


@pytest.mark.parametrize("kind", RAISED)
def test_errors_of_the_callers_own_pass_as_they_are(p, kind):
    """Whatever they are, and wherever in an argument they are raised."""
    error = kind("my src has no epsilon")
    for ways, names in (
        (ARRAYS, [*INPUTS, "beta", "dst", "workspace"]),
        (NUMBERS, ["epsilon"]),
        (["__index__"], ["num_threads"]),
    ):
        for name in names:
            gate = {"relu": True} if name in ("beta", "dst", "workspace") else {}
            for thing in (raising(error, way) for way in ways):
                for given in [thing, [thing]] if hasattr(type(thing), "__array__") else [thing]:
                    changed = {**p.arguments(), "epsilon": EPSILON, name: given, **gate}
                    check_passes(error, lambda: bn_ext.batch_norm_backward(**changed))  # noqa: B023


@pytest.mark.parametrize("kind", RAISED)
def test_errors_of_the_callers_own_pass_forward_too(p, kind):
    error = kind("my src has no epsilon")
    running = dict(
        running_mean=np.zeros(5), running_variance=np.ones(5), exponential_avg_factor=0.1,
        correction=1,
    )  # fmt: skip
    for name, way in (
        ("exponential_avg_factor", "__float__"), ("correction", "__index__"),
        ("src_1", "__array__"), ("gamma", "__dlpack__"),
    ):  # fmt: skip
        changed = {**running, name: raising(error, way)}
        check_passes(error, lambda: bn_ext.batch_norm_training(p.src, epsilon=1, **changed))  # noqa: B023
    sums = raising(error, "__array__")
    check_passes(
        error,
        lambda: bn_ext.batch_norm_backward_apply(p.src, p.diff_dst, *p.vectors(), sums, epsilon=1),
    )


#: What an option may not be: its error, and what all of these are told.
OPTIONS = [
    ("epsilon", TypeError, "a real number, got",
     [None, "1e-3", b"1", [1.0], 1j, object(), np.complex128(1), np.array(1j),
      np.timedelta64(1, "s"), np.array("1e-3", object), np.array("1e-3"), np.ones(1), np.ones(2)]),
    ("epsilon", ValueError, "a finite number >= 0, got", [-1e-9, np.inf, -np.inf, np.nan]),
    ("num_threads", TypeError, "an integer or None, got", [1.0, "2", [1], 2.5]),
    ("num_threads", ValueError, "at least 1, got", [0, -1, -(2**70)]),
    ("data_format", ValueError, "'NXC' or 'NCX', got",
     ["NWHC", "", None, 3, ["NXC"], np.array(["NXC", "NCX"])]),
    *((flag, TypeError, "True or False, got",
       ["False", None, 2, -1, 1.0, np.array(True), np.zeros(2, bool), [], np.timedelta64(1, "s")])
      for flag in ("is_training", "param_grads")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "expected", "value"),
    [(name, kind, expected, v) for name, kind, expected, values in OPTIONS for v in values],
)
def test_options_that_are_refused(p, name, kind, expected, value):
    refused(kind, f"^{name}: expected {expected}", p, **{name: value})


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


@pytest.mark.parametrize("argument", VECTORS)
@pytest.mark.parametrize("dims", [(4,), (6,), (), (1,), (5, 1), (1, 5), (0,)])
def test_vectors_of_another_shape(p, argument, dims):
    message = re.escape(f"{argument}: expected shape (5,)") + ".*" + re.escape(f"got {dims}")
    refused(ValueError, message, p, **{argument: np.zeros(dims, np.float32)})


def test_channels_on_another_axis_name_the_fix(rng):
    p = Problem(rng, (6, 2, 4, 5), "NXC")
    vectors = dict.fromkeys(VECTORS, np.ones(4, np.float32))
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
    for dims, mine, here, other, there in (
        ((8, 3, 7, 5), "NXC", "the last axis", "NCX", "axis 1"),
        ((8, 7, 5, 3), "NCX", "axis 1", "NXC", "the last axis"),
    ):
        p = Problem(rng, dims, mine)
        p.mean = p.variance = p.gamma = np.ones(3, np.float32)
        message = (
            rf"^mean: expected shape \(\d,\), one value for each channel on {here} of src, .*, got "
            rf'\(3,\); if the channels are on {there}, pass data_format="{other}"$'
        )
        refused(ValueError, message, p, data_format=mine)
        keepdims = {n: np.ones((1, 3, 1, 1), np.float32) for n in VECTORS}
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


@pytest.mark.parametrize("argument", VECTORS)
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
