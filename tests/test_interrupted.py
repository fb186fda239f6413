"""Whatever ends a layer's step early, wherever it comes: what has not ended counts as not done."""

import contextlib
import itertools
import os
import signal
import sys
import time

import numpy as np
import pytest
from cases import all_bits, bits

import bn_ext

pytestmark = pytest.mark.quick
HERE = os.path.dirname(bn_ext.__file__)
CHANNELS = 5


class Interrupted(BaseException):
    """None that anybody knows."""


class TroubleError(Exception):
    """What a signal handler of the caller's may raise."""


@contextlib.contextmanager
def interruption(number, error):
    """Raise it at the number-th line of bn_ext that would run; yields how many have."""
    seen = [0]

    def at_line(frame, event, _):
        if event == "line":
            seen[0] += 1
            if seen[0] == number:
                raise error
        return at_line

    def at_call(frame, event, _):
        return at_line if frame.f_code.co_filename.startswith(HERE) else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield seen
    finally:
        sys.settrace(before)


class Steps:
    """Two batches, and a layer that has taken the first."""

    def __init__(self, rng, mode, added=False, **options):
        self.src, self.other, self.diff_dst, src_1 = rng.standard_normal(
            (4, 8, CHANNELS), dtype=np.float32
        )
        self.src_1 = src_1 if added else None
        self.mode, self.options = mode, options

    def layer(self):
        layer = bn_ext.BatchNorm(CHANNELS, **self.options)
        layer.forward(10 * self.src)
        getattr(layer, self.mode)()
        layer.forward(self.src, self.src_1)
        return layer

    def after(self, steps):
        """What a layer has counted and gathered after `steps` more steps, as bits."""
        layer = self.layer()
        for _ in range(steps):
            layer.forward(self.other, self.src_1)
        return counted(layer)

    def gradients(self, layer):
        return all_bits([np.array(layer.backward(self.diff_dst)), *layer.gradients])


def interrupted_layers(steps, error, call):
    """(number, layer) after a call that was interrupted at line `number`, for each of its lines."""
    for number in itertools.count(1):
        layer = steps.layer()
        with interruption(number, error) as seen, contextlib.suppress(error):
            call(layer)
        if seen[0] < number:
            break
        yield number, layer
    assert number > 10


def counted(layer):
    return layer.num_batches_tracked, bits(layer.running_mean), bits(layer.running_variance)


LAYERS = [
    ({"mode": mode, "added": added, "relu": relu})
    for mode, added, relu in itertools.product(
        ("train", "eval", "freeze"), (False, True), (False, True)
    )
] + [{"mode": "train", "exponential_avg_factor": None, "dtype": np.float32, "relu": True}]


@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted, TroubleError, TypeError])
def test_forward_interrupted_at_any_line(rng, options, error):
    """It is counted, and the running statistics have taken it, or neither; nothing is saved."""
    steps = Steps(rng, **options)
    whole = [steps.after(0), steps.after(1)]
    before = steps.gradients(steps.layer())
    found = set()

    def forward(layer):
        layer.forward(steps.other, steps.src_1)

    for number, layer in interrupted_layers(steps, error, forward):
        assert counted(layer) in whole
        found.add(whole.index(counted(layer)))
        if number == 1:  # it has not begun
            assert steps.gradients(layer) == before
            continue
        with pytest.raises(RuntimeError, match="^backward: expected a forward .* succeeded$"):
            layer.backward(steps.diff_dst)
        forward(layer)  # and it can go on
        layer.backward(steps.diff_dst)
    assert found == ({0, 1} if options["mode"] == "train" else {0})


@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize("error", [KeyboardInterrupt, TroubleError])
def test_backward_interrupted_at_any_line(rng, options, error):
    """What forward saved is as it was: backward can be called again."""
    steps = Steps(rng, **options)
    before, gradients = steps.after(0), steps.gradients(steps.layer())
    for _, layer in interrupted_layers(steps, error, lambda layer: layer.backward(steps.diff_dst)):
        assert steps.gradients(layer) == gradients
        assert counted(layer) == before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")
def test_forward_interrupted_by_a_signal(rng):
    """At any moment; what comes while C runs is seen at its end."""
    src, other, diff_dst = rng.standard_normal((3, 20000, CHANNELS), dtype=np.float32)

    def after(*batches):
        layer = bn_ext.BatchNorm(CHANNELS, relu=True, num_threads=1)
        for batch in batches:
            layer.forward(batch)
        return layer

    def handler(*_):
        raise Interrupted

    whole = [counted(after(src)), counted(after(src, other))]
    first = bits(after(src).backward(diff_dst))
    layer = after(src)
    started = time.perf_counter()
    layer.forward(src)
    lasts = time.perf_counter() - started
    outcomes = dict.fromkeys(["not begun", "not taken", "taken", "returned"], 0)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(300):
            layer, returned = after(src), False
            with contextlib.suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, lasts * rng.uniform(0, 1.5) + 1e-6)
                layer.forward(other)
                returned = True
                signal.setitimer(signal.ITIMER_REAL, 0)
            taken = whole.index(counted(layer))
            if returned:
                assert taken == 1
                outcome = "returned"
            elif taken == 0 and layer._saved is not None:
                assert bits(layer.backward(diff_dst)) == first
                outcome = "not begun"
            else:
                with pytest.raises(RuntimeError, match="succeeded"):
                    layer.backward(diff_dst)
                outcome = ["not taken", "taken"][taken]
            outcomes[outcome] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(outcomes)
    assert outcomes["taken"] > 20
