"""The floating-point environment: calls compute in the default mode, then restore the caller's."""

import every_call
import guarded
import numpy as np
import pytest
from fp_modes import FP_MODES, SERIOUS, fp_mode, fp_mode_in_effect, math_library
from needs import needs_linux, needs_openmp
from processes import with_libgomp


@pytest.mark.parametrize("name", FP_MODES)
def test_fp_modes_take_effect(name):
    """Without this, the tests below would test nothing."""
    with fp_mode(name):
        found = fp_mode_in_effect()
    assert (found, fp_mode_in_effect()) == (name, "default")


@pytest.mark.quick
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", FP_MODES)
def test_the_callers_fp_mode_is_back_afterwards(rng, name, threads):
    """Our operations raise no serious exception flag, either."""
    a = guarded.dense(rng, (300, 70), "NXC", "float32")
    # For invalid operations and divisions by zero.
    a.epsilon, a.variance[:2], a.diff_dst[5] = 0.0, [-1, 0], np.inf
    libm = math_library()
    for call in guarded.calls(a, {"num_threads": threads}):
        with fp_mode(name):
            libm.feclearexcept(SERIOUS)
            call()
            flags = libm.fetestexcept(SERIOUS)
            found = fp_mode_in_effect()
        assert (found, flags) == (name, 0), call


@pytest.mark.quick
def test_every_public_function_and_method_is_called():
    assert set(every_call.public()) == set(every_call.CALLS)


@pytest.mark.quick
@pytest.mark.parametrize("name", every_call.ONCE)
def test_every_call_gives_the_same_in_any_mode(name, capfd):
    """It gives the same bits, and no error, warning or output, in np.seterr's modes, too."""
    assert every_call.changes(name) == []
    assert capfd.readouterr() == ("", "")


@needs_openmp
@needs_linux
def test_pool_that_another_made_in_another_mode():
    """Threads keep the mode in which they started, but run our calls in the default mode."""
    code = """
from fp_modes import fp_mode, fp_mode_in_effect
with fp_mode("flush"):
    region(4, lambda data: None)
dy, v = np.full((300_000, 8), 1e-40, np.float32), np.ones(8, np.float32)
for training in (True, False):
    one, four = (
        bn_ext.batch_norm_backward(
            dy, dy, v, v, epsilon=0, is_training=training, num_threads=k, out=None
        ).diff_src.tobytes()
        for k in (1, 4)
    )
    print(one == four, any(one), _core._last_call()["threads"])
modes = {}
def look(data):
    modes[threading.get_ident()] = fp_mode_in_effect()
region(4, look)
here = modes.pop(threading.get_ident())
print(here, len(modes), *set(modes.values()))
"""
    printed = with_libgomp(code)
    assert printed[:6] == ["True", "True", "4"] * 2
    assert printed[6:] == ["default", "3", "flush"]
