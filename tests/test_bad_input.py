"""Arguments that are not arrays, and messages that name the fix. Other errors: test_refused.py."""

import array
import inspect
import itertools
import re

import numpy as np
import pytest
import refusals
from cases import INPUTS, VECTORS, Problem
from refusals import OPERANDS, RESULTS, arguments, check_passes, four, function_of, refused

import bn_ext

pytestmark = pytest.mark.quick


# ---- what is not an array ---------------------------------------------------------


class OldOnDevice:
    __cuda_array_interface__ = ()

    def __array__(self, *_, **__):
        raise AssertionError("asked for data that cannot be reached")


@pytest.mark.parametrize("argument", INPUTS)
def test_memory_of_an_accelerator(p, argument):
    """test_arguments.py tests DLPack's devices."""
    message = rf"^{argument}: this .*OldOnDevice cannot be .* is not in CPU memory; copy it"
    refused(TypeError, message, p, **{argument: OldOnDevice()})


@pytest.mark.parametrize("rubbish", [None, (), (1,), "ab", (None, 0), ([], 0), {}, 1, (1, 2, 3)])
def test_a_device_that_is_none(p, rubbish):
    class Strange:
        def __dlpack_device__(self):
            return rubbish

    refused(TypeError, "^src: this .*Strange cannot be .*__dlpack_device__", p, src=Strange())


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, ValueError])
def test_an_exporter_that_refuses(p, error):
    """Its error reaches the caller; a note names the argument and how to pass torch's bfloat16."""

    class Refusing:
        dtype = "torch.bfloat16"

        def __array__(self, *_, **__):
            raise error("it does not want to")

    refused(
        error,
        r"^it does not want to\nsrc: this .*Refusing cannot be viewed as a NumPy array; "
        r"pass src.detach\(\).view\(torch.int16\).numpy\(\).view\(ml_dtypes.bfloat16\)",
        p,
        src=Refusing(),
    )


@pytest.mark.parametrize("wrong", [{"version": 3}, {"shape": None, "typestr": "f4", "version": 3}])
def test_an_exporter_that_numpy_refuses(p, wrong):
    class Odd:
        __array_interface__ = wrong

    for given in (Odd(), [[Odd()]]):
        refused(TypeError, "^src: this .*Odd cannot be viewed as a NumPy array: ", p, src=given)


@pytest.mark.parametrize("kind", refusals.RAISED)
@pytest.mark.parametrize("name", OPERANDS)
def test_errors_of_the_callers_own_pass(p, name, kind):
    """Any error from any part of an argument reaches the caller, unchanged but for notes."""
    error, function = kind("my src has no epsilon"), function_of(name)
    takes = inspect.signature(function).parameters
    gates = {"beta", "dst", "workspace"} & takes.keys() if "diff_dst" in takes else set()
    numbers = {"epsilon", "exponential_avg_factor"} if name in RESULTS else set()
    for ways, places in (
        (refusals.ARRAYS, {*OPERANDS[name], "src_1", *gates}),
        (refusals.NUMBERS, numbers),
        (["__index__"], {"num_threads", "correction"}),
    ):
        for place, way in itertools.product(takes.keys() & places, ways):
            given = arguments(p, name) | ({"relu": True} if place in gates else {})
            if place in four(p):
                given |= four(p)
            thing = refusals.raising(error, way)
            check_passes(error, lambda: function(**{**given, place: thing}))  # noqa: B023
            if way == "__array__":
                check_passes(error, lambda: function(**{**given, place: [thing]}))  # noqa: B023


# ---- messages that name the fix -----------------------------------------------------


@pytest.mark.parametrize("argument", VECTORS)
def test_the_dtype_that_a_hint_names_is_accepted(p, argument):
    for wrong in (bool, np.int8, np.int64, np.longdouble):
        changed = getattr(p, argument).astype(wrong)
        hint = rf"; pass np.asarray\({argument}, np.float64\)$"
        refused(TypeError, hint, p, "backward", **{argument: changed})
        p.run(bn_ext.batch_norm_backward, **{argument: np.asarray(changed, np.float64)})


@pytest.mark.parametrize("argument", VECTORS)
def test_a_number_for_each_channel_names_the_fix(p, argument):
    for number in (1, 1.0, np.float32(1)):
        message = "; np.full makes an array of it$"
        refused(
            TypeError, f"^{argument}: expected an array, got .*{message}", p, **{argument: number}
        )
    setattr(p, argument, np.full(5, 1.0, p.src.dtype))
    p.run(bn_ext.batch_norm_backward)


@pytest.mark.parametrize("kind", [np.int16, np.uint16, "V2"])
def test_bits_of_bfloat16_name_the_fix(p, kind):
    """np.load returns V2 where np.save wrote bfloat16."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    src, diff_dst = (a.astype(ml_dtypes.bfloat16) for a in (p.src, p.diff_dst))
    message = r"; if these are bits of bfloat16, pass np.asarray\(src\).view\(ml_dtypes.bfloat16\)"
    message += "$" if kind == "V2" else r"; if not, np.asarray\(src, np.float32\)$"
    refused(TypeError, f"^src: expected .*{message}", p, src=src.view(kind))
    p.run(
        bn_ext.batch_norm_backward, src=src.view(kind).view(ml_dtypes.bfloat16), diff_dst=diff_dst
    )


def test_channels_on_another_axis_name_the_fix(rng):
    p = Problem(rng, (6, 2, 4, 5), "NXC")
    vectors = dict.fromkeys(VECTORS, np.ones(4, np.float32))
    moved = r"on axis 2, pass np.moveaxis\(np.asarray\(src\), 2, -1\)"
    refused(ValueError, f"{moved}, and diff_dst likewise, which copies nothing$", p, **vectors)
    with pytest.raises(ValueError, match=", and diff_dst and diff_diff_src likewise, which copi"):
        p.run(bn_ext.batch_norm_double_backward, diff_diff_src=p.src, **vectors)
    moved, straight = (
        p.run(
            bn_ext.batch_norm_backward, *(np.moveaxis(a, 2, axis) for a in (p.src, p.diff_dst)),
            **vectors, data_format=data_format,
        )
        for axis, data_format in ((-1, "NXC"), (1, "NCX"))
    )  # fmt: skip
    assert (np.moveaxis(moved.diff_src, -1, 1) == straight.diff_src).all()


def test_the_other_layout_is_named(rng):
    """Vectors fit the channel axis of the other layout: the most common mistake."""
    for dims, mine, here, other, there in (
        ((8, 3, 7, 5), "NXC", "the last axis", "NCX", "axis 1"),
        ((8, 7, 5, 3), "NCX", "axis 1", "NXC", "the last axis"),
    ):
        p = Problem(rng, dims, mine)
        p.mean = p.variance = p.gamma = np.ones(3, np.float32)
        message = (
            rf"^mean: expected shape \(\d,\), one value for each channel on {here} of src, got "
            rf"\(3,\); src has shape {re.escape(str(dims))}; if the channels are on {there}, "
            rf'pass data_format="{other}"$'
        )
        refused(ValueError, message, p, data_format=mine)
        keepdims = {n: np.ones((1, 3, 1, 1), np.float32) for n in VECTORS}
        message = rf'pass data_format="{other}"; pass np.asarray\(mean\).reshape\(-1\)$'
        refused(ValueError, message, p, data_format=mine, **keepdims)
        p.run(bn_ext.batch_norm_backward, data_format=other)


def test_kept_dimensions_tell_the_layout_if_two_axes_have_one_length(rng):
    p = Problem(rng, (8, 3, 7, 3), "NXC")
    first, last = (
        {n: np.ones(shape, np.float32) for n in VECTORS} for shape in ((3, 1, 1), (1, 3))
    )
    for mine, other, there, kept in (
        ("NXC", "NCX", "axis 1", first),
        ("NCX", "NXC", "the last axis", last),
    ):
        hint = rf'; if the channels are on {there}, pass data_format="{other}"; pass np.asarr.*$'
        refused(ValueError, rf"\(8, 3, 7, 3\){hint}", p, data_format=mine, **kept)
        refused(
            ValueError,
            r"\(8, 3, 7, 3\); pass np.asarray\(mean\).resh.*$",
            p,
            data_format=other,
            **kept,
        )


def test_one_vector_that_does_not_fit_where_mean_does(rng):
    """The error is about that vector, even if another axis has its length."""
    p = Problem(rng, (4, 6, 5, 3), "NXC")
    for size in (4, 5, 6, 7):
        message = rf"got \({size},\); src has shape \(4, 6, 5, 3\)$"
        refused(
            ValueError, "^gamma: expected shape .*" + message, p, gamma=np.ones(size, np.float32)
        )


def test_no_copy_is_suggested_of_what_is_written(p):
    swapped = p.mean.astype(p.mean.dtype.newbyteorder())
    running = {"running_variance": p.variance, "exponential_avg_factor": 0.1, "correction": 1}
    with pytest.raises(TypeError, match=r"^running_mean: expected native byte order, got .f4$"):
        training(p.src, data_format="NXC", running_mean=swapped, **running)


def test_one_dimension_names_the_fix(p):
    message = r"src: expected at least 2 dimensions, got shape \(4,\); pass np.asarray\(src\).resh"
    flat = p.src.reshape(-1)[:4]
    refused(ValueError, f"^{message}", p, src=flat, diff_dst=flat)
    with pytest.raises(ValueError, match=message):
        bn_ext.batch_norm_training(flat, epsilon=0)
    assert bn_ext.batch_norm_training(flat.reshape(-1, 1), epsilon=0).mean.shape == (1,)


@pytest.mark.parametrize("argument", VECTORS)
def test_statistics_with_kept_dimensions_name_the_fix(p, argument):
    kept = getattr(p, argument).reshape(1, 1, -1)
    message = (
        rf"got \(1, 1, 5\); src has shape \(6, 4, 5\); pass np.asarray\({argument}\).reshape\(-1\)$"
    )
    refused(ValueError, message, p, **{argument: kept})


# ---- hints, followed ------------------------------------------------------------------------


def training(src, **options):
    return bn_ext.batch_norm_training(src, epsilon=1, **options)


def inference(**changed):
    vectors = dict.fromkeys(VECTORS, np.ones(2))
    given = {"src": np.ones((3, 2), np.float32), **vectors, **changed}
    return bn_ext.batch_norm_inference(**given, epsilon=1)


def frame(values):
    return pytest.importorskip("pandas").DataFrame(values)


def bfloat16(values, order="="):
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    return np.array(values).astype(dtype).astype(np.dtype(dtype).newbyteorder(order))


ROW = [1.0, 2.0, 4.0]
TABLE = [[1, 2], [3, 4], [5, 7]]
BITS = np.array(TABLE, np.uint16) + 0x3F80
#: {the hint's beginning: objects that get it, made when they are needed}, all as src
OF_SRC = {
    "np.asarray(src).reshape(": {
        "list": lambda: ROW,
        "tuple": lambda: tuple(ROW),
        "ndarray": lambda: np.array(ROW),
        "memoryview": lambda: memoryview(np.array(ROW)),
        "array.array": lambda: array.array("f", ROW),
        "Series": lambda: frame({"a": ROW})["a"],
    },
    "np.asarray(src, np.float": {
        "integers": lambda: TABLE,
        "memoryview of integers": lambda: memoryview(np.array(TABLE)),
        "int32": lambda: np.array(TABLE, np.int32),
        "other order of integers": lambda: np.array(TABLE, ">i4"),
        "bool": lambda: np.array(TABLE, bool),
        "long double": lambda: np.array(TABLE, np.longdouble),
        "objects": lambda: np.array(TABLE, object),
        "a list of objects": lambda: [[1, 2.5], [10**40, 1]],
        "frame": lambda: frame(TABLE),
        "frame of objects": lambda: frame(TABLE).astype(object),
        "other order": lambda: np.array(TABLE, np.dtype(float).newbyteorder()),
        "other order of float16": lambda: np.array(TABLE, np.dtype(np.float16).newbyteorder()),
        "memoryview of the other order": lambda: memoryview(
            np.array(TABLE, np.dtype(np.float32).newbyteorder())
        ),
    },
    "np.asarray(src, ml_dtypes.bfloat16)": {"other order": lambda: bfloat16(TABLE, "S")},
    "np.asarray(src).view(ml_dtypes.bfloat16)": {
        "uint16": lambda: BITS,
        "int16": lambda: BITS.view(np.int16),
        "memoryview": lambda: memoryview(BITS),
        "list of arrays": lambda: list(BITS),
        "frame": lambda: frame(BITS),
        "saved": lambda: BITS.view("V2"),
    },
    "src.filled(": {"masked": lambda: np.ma.masked_equal(np.array(TABLE, float), 4)},
    "src.toarray()": {
        "sparse": lambda: pytest.importorskip("scipy.sparse").csr_array(np.array(TABLE, float))
    },
}  # fmt: skip
#: {what is wrong: (argument, the hint's beginning, value of the argument)}
OTHERS = {
    "kept axes": ("mean", "np.asarray(mean).reshape(-1)", lambda: [[1.0, 1.0]]),
    "a frame": ("gamma", "np.asarray(gamma).reshape(-1)", lambda: frame([[1.0, 1.0]])),
    "integers": ("gamma", "np.asarray(gamma, np.float64)", lambda: [1, 2]),
    "moved": ("src", "np.moveaxis(np.asarray(src), 0, -1)", lambda: [ROW, ROW]),
    "a moved frame": ("src", "np.moveaxis(np.asarray(src), 0, -1)", lambda: frame([ROW, ROW])),
}


def follow(call, name, begins, value):
    """Do all that the error says; each must be accepted."""
    with pytest.raises((TypeError, ValueError)) as error:
        call(value)
    message = str(error.value)
    said = re.findall(
        rf"(?:pass|if not,|or) ((?:np|{name})\..+?\))(?= for|, which|, or|;|$)", message
    )
    assert any(advice.startswith(begins) for advice in said), message
    for advice in said:
        modules = {"np": np}
        if "ml_dtypes" in advice:
            modules["ml_dtypes"] = pytest.importorskip("ml_dtypes")
        print(advice)
        call(eval(advice, {**modules, name: value, "value": 0.0}))


@pytest.mark.parametrize(
    ("begins", "kind"), [(begins, kind) for begins, kinds in OF_SRC.items() for kind in kinds]
)
def test_hints_for_data_work(begins, kind):
    follow(training, "src", begins, OF_SRC[begins][kind]())


@pytest.mark.parametrize("kind", OTHERS)
def test_hints_for_vectors_and_axes_work(kind):
    name, begins, value = OTHERS[kind]
    follow(lambda value: inference(**{name: value}), name, begins, value())


def test_int64_is_not_advised_to_lose_digits(p):
    """Where float64 is accepted."""
    whole = np.array([[2**53 - 1], [2**53 - 2]])
    for given in (whole, whole.astype(np.uint64), whole.astype(np.int32), whole.astype(object)):
        with pytest.raises(TypeError, match=r"; pass np.asarray\(src, np.float64\)$"):
            training(given)
    for changed in (p.mean.astype(np.int64), p.mean.astype(np.longdouble)):
        refused(
            TypeError, r"; pass np.asarray\(mean, np.float64\)$", p, "GradientSums", mean=changed
        )
    state = bn_ext.BatchNorm(2).state_dict() | {"weight": np.arange(2)}
    with pytest.raises(TypeError, match=r"; pass np.asarray\(weight, np.float64\)$"):
        bn_ext.BatchNorm(2).load_state_dict(state)


class Refusing:
    """As a tensor of torch.bfloat16."""

    dtype = "torch.bfloat16"

    def __array__(self, *_, **__):
        raise TypeError("it does not want to")


def test_what_lends_memory_to_results_is_named(p):
    class Tensor:
        dtype = "torch.float32"

        def numpy(self):
            raise AssertionError

    class Detachable(Tensor, Refusing):
        detach = None

    class Half(Detachable):
        dtype = "torch.bfloat16"

    for made, hint in (
        (Tensor, "its numpy()"),
        (Detachable, "its detach().numpy()"),
        (Half, "it.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)"),
    ):
        message = f"got {made.__name__}; pass {hint}, which "
        with pytest.raises(TypeError, match=re.escape(message)):
            training(p.src, out=(made(), None, None))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([["a", 1.0]], object),
        lambda: np.array([["a", "b"]]),
        lambda: np.array([[1j, 2.0]], object),
        lambda: [["a", "b"]],
        lambda: [[1.0], [2.0, 3.0]],
        lambda: [[object(), 1.0]],
        lambda: frame({"a": [1.0, 2.0], "b": ["x", "y"]}),
        lambda: [np.ma.masked_equal([1.0, 2.0], 2)],
        lambda: [Refusing()],
    ],
)
def test_what_no_conversion_helps_gets_no_hint(make):
    with pytest.raises(TypeError) as error:
        training(make())
    assert "pass " not in "".join([str(error.value), *getattr(error.value, "__notes__", [])])


def test_one_vector_that_does_not_fit_where_others_do(rng):
    """Whichever it is, the data format is not blamed; if none fits, it is."""
    names = "mean", "variance", "gamma", "beta"
    src = np.ones((4, 6, 5, 3), np.float32)
    end = r"got \(6,\); src has shape \(4, 6, 5, 3\)"
    blamed = '; if the channels are on axis 1, pass data_format="NCX"$'
    running = ("running_mean", "running_variance"), {"exponential_avg_factor": 1, "correction": 0}
    for function, (own, options) in (
        (bn_ext.batch_norm_inference, (names, {})),
        (bn_ext.batch_norm_training, (("gamma", "beta"), {})),
        (bn_ext.batch_norm_training, running),
    ):
        for wrong in own:
            sizes = {name: np.ones(6 if name == wrong else 3, np.float32) for name in own}
            with pytest.raises(ValueError, match=f"^{wrong}: .*{end}$"):
                function(src, **sizes, **options, epsilon=1, data_format="NXC")
        sizes = {name: np.ones(6, np.float32) for name in own}
        with pytest.raises(ValueError, match=f"^{own[0]}: .*{end}{blamed}"):
            function(src, **sizes, **options, epsilon=1, data_format="NXC")


def test_autograds_boxes_are_sent_to_its_module():
    """bn_ext's own functions cannot be differentiated; nor can lists."""
    autograd = pytest.importorskip("autograd")
    import bn_ext.autograd

    ours = "autograd differentiates the functions of bn_ext.autograd"
    listed = "pass autograd.numpy.array(src) to bn_ext.autograd"
    src = np.array([[1.0], [2.0], [4.0]])
    layer = bn_ext.BatchNorm(1)
    for call, hint in (
        (lambda a: training(a).dst, ours),
        (lambda a: bn_ext.batch_norm_training(src, a[0], epsilon=1).dst, ours),
        (layer, ours),
        (lambda a: training([a[0], a[1]]).dst, listed),
        (lambda a: training([[a[0, 0]], [a[1, 0]]]).dst, listed),
        (lambda a: bn_ext.autograd.batch_norm_training([a[0], a[1]], epsilon=1), listed),
    ):
        with pytest.raises(TypeError, match=f"; {re.escape(hint)}$"):
            autograd.elementwise_grad(call)(src)

    def followed(a):
        src = [a[0], a[1]]
        return bn_ext.autograd.batch_norm_training(autograd.numpy.array(src), epsilon=1)

    assert autograd.elementwise_grad(followed)(src).shape == src.shape
