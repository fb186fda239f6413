"""A call with anything at all wrong: a documented error, and nothing is written.

Hypothesis prints the arguments of a failing example, and how to run it again.
"""

import ml_dtypes
import numpy as np
import pytest
from cases import DATA_DTYPES, FORMATS, TENSORS, Problem, all_bits
from hypothesis import HealthCheck, given, settings, strategies as st
from test_layouts import any_view

import bn_ext

pytestmark = pytest.mark.quick

WRONG_DTYPES = [np.dtype(d) for d in (">f4", "int32", "bool", "complex64", object, "datetime64[s]")]
sizes = st.one_of(st.integers(0, 3), st.integers(1, 40), st.sampled_from([127, 128, 257, 1030]))


@st.composite
def shapes(draw):
    shape = draw(st.lists(sizes, min_size=2, max_size=5))
    while np.prod([max(n, 1) for n in shape]) > 10_000:
        shape[int(np.argmax(shape))] //= 2
    return tuple(shape)


@st.composite
def calls(draw):
    """The arguments and the options of a call in which nothing is wrong."""
    shape, data_format = draw(shapes()), draw(st.sampled_from(list(FORMATS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = Problem(rng, shape, data_format, draw(st.sampled_from(DATA_DTYPES)))
    views = [any_view(rng, shape, p.src.dtype) for _ in range(2)] if p.src.size else []
    for name, view in zip(TENSORS, views, strict=False):
        setattr(p, name, view if view.flags.writeable else view.copy())
    options = {
        "epsilon": draw(st.sampled_from([0.0, 1e-5, 0.5, 3])),
        "data_format": data_format,
        "is_training": draw(st.booleans()),
        "param_grads": draw(st.booleans()),
        "num_threads": draw(st.sampled_from([None, 1, 2, 5, 1000])),
    }
    return tuple(p.arguments().values()), options


def broken(arguments, options, draw):
    """The same call with one thing wrong, and whether it is wrong (None: that is open)."""
    arguments, options = list(arguments), dict(options)
    src = arguments[0]
    out = (np.full(src.shape, 7, src.dtype), *(np.full_like(arguments[2], 7) for _ in range(2)))
    kind = draw(
        st.sampled_from(
            ["dtype", "shape", "rank", "no array", "option", "out", "overlap", "read-only"]
        )
    )
    which = draw(st.integers(0, 4))
    wrong = True
    if kind == "dtype":
        arguments[which] = np.zeros(arguments[which].shape, draw(st.sampled_from(WRONG_DTYPES)))
    elif kind == "shape":
        shape = tuple(n + draw(st.integers(0, 1)) for n in arguments[which].shape)
        wrong = shape != arguments[which].shape
        arguments[which] = np.ones(shape, arguments[which].dtype)
    elif kind == "rank":
        ranks = [arguments[which][None]]
        if arguments[which].size:
            ranks.append(arguments[which][..., 0])
        arguments[which] = draw(st.sampled_from(ranks))
    elif kind == "no array":
        arguments[which] = draw(
            st.sampled_from([None, 3.5, "x", [[b"1"]], object(), np.ma.zeros((2, 2)), {}])
        )
        wrong = not (which == 4 and arguments[which] is None)  # gamma
    elif kind == "option":
        name, value, wrong = draw(
            st.sampled_from(
                [
                    ("epsilon", -1.0, True), ("epsilon", np.nan, True), ("epsilon", np.inf, True),
                    ("epsilon", "1", True), ("epsilon", None, True), ("data_format", "NHWC", True),
                    ("data_format", None, True), ("num_threads", 0, True),
                    ("num_threads", -2, True), ("num_threads", 1.5, True),
                    ("num_threads", 2**40, False), ("num_threads", "2", True),
                ]
            )
        )  # fmt: skip
        options[name] = value
    elif kind == "out":
        twice = (out[0], out[1], out[1])
        out = draw(
            st.sampled_from(
                [
                    (out[0], out[1]), out[0], "no", twice, (out[1], *out[1:]),
                    (out[0].astype(ml_dtypes.float8_e4m3fn), *out[1:]), (None, out[0], None),
                    (out[0], out[1].astype(np.float16), out[2]), (np.float32(1), None, None),
                ]
            )
        )  # fmt: skip
        # If nothing is written, sharing does no harm.
        wrong = None if out is twice and src.size == 0 else True
    elif kind == "overlap":
        memory = np.zeros((src.shape[0] + 1, *src.shape[1:]), src.dtype)
        arguments[which % 2] = memory[1:]
        out = (memory[:-1], *out[1:])
        wrong = src.shape[0] > 1 and src.size > 0
    else:
        for array in out:
            array.flags.writeable = False
    # All of out is given, which without parameter gradients is wrong by itself.
    return tuple(arguments), options, out, wrong if options["param_grads"] else True


def own(thing):
    """A copy, its axes in the same order in memory."""
    return thing.copy(order="K") if isinstance(thing, np.ndarray) else thing


@given(calls(), st.data())
@settings(
    deadline=None, max_examples=300, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
def test_whatever_is_wrong_is_refused_and_nothing_is_written(call, data):
    arguments, options, out, wrong = broken(*call, data.draw)
    watched = [a for a in (*arguments, *(out if isinstance(out, tuple) else (out,)))
               if isinstance(a, np.ndarray) and a.dtype != object]  # fmt: skip
    before = [a.tobytes() for a in watched]
    plain = [own(a) for a in arguments]
    found = error = None
    try:
        found = bn_ext.batch_norm_backward(*arguments, **options, out=out)
    except (TypeError, ValueError) as raised:
        error = raised
    if error is None:
        assert not wrong
        wanted = bn_ext.batch_norm_backward(*plain, **{**options, "num_threads": 1})
        assert all_bits(found) == all_bits(wanted)
    else:
        assert wrong is not False, f"{error!r}, and all is right"
        assert str(error)
        assert [a.tobytes() for a in watched] == before, f"{error!r}, and something is written"
