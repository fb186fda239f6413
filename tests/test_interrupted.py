"""A layer's step, interrupted anywhere by any exception, counts in full or not at all."""

import contextlib
import dis
import itertools
import math
import os
import sys

import numpy as np
import pytest
from cases import all_bits, bits

import bn_ext

pytestmark = pytest.mark.quick
HERE = os.path.dirname(bn_ext.__file__)
CHANNELS = 5


class TroubleError(Exception):
    """What a caller's signal handler may raise."""


@contextlib.contextmanager
def interruption(number, error):
    """Raise the error at the number-th place in bn_ext's Python where a signal handler may run:
    at the beginning of a function, or after a call. Yield [how many places have been passed].
    """
    seen = [0]

    def at_call(frame, event, _):
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        last = "RESUME"

        def at_instruction(frame, event, _):
            nonlocal last
            if event == "opcode":
                may = last.startswith(("RESUME", "CALL"))
                last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                seen[0] += may
                if may and seen[0] == number:
                    raise error
            return at_instruction

        return at_instruction

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield seen
    finally:
        sys.settrace(before)


class Steps:
    """Two batches, and a layer that has seen the first."""

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
        """A layer's batch count and running statistics after `steps` more steps."""
        layer = self.layer()
        for _ in range(steps):
            layer.forward(self.other, self.src_1)
        return counted(layer)

    def gradients(self, layer):
        return all_bits([np.array(layer.backward(self.diff_dst)), *layer.gradients])


def interrupted_layers(steps, error, call):
    """Yield each place's number, and a layer whose call was interrupted at this place."""
    for number in itertools.count(1):
        layer, another = steps.layer(), steps.layer()
        with interruption(number, error) as seen, contextlib.suppress(error):
            seen[0] = -math.inf  # CPython 3.13 traces instructions only from the second call on
            call(another)
            seen[0] = 0
            call(layer)
        if seen[0] < number:
            break
        yield number, layer
    assert number > 3


def counted(layer):
    return layer.num_batches_tracked, bits(layer.running_mean), bits(layer.running_variance)


LAYERS = {
    "training": {"mode": "train"},
    "training, fused": {"mode": "train", "added": True, "relu": True},
    "average of all": {"mode": "train", "exponential_avg_factor": None, "dtype": np.float32},
    "several processes": {"mode": "train", "allreduce": lambda sums: sums + sums, "relu": True},
    "eval": {"mode": "eval", "relu": True},
    "frozen, fused": {"mode": "freeze", "added": True, "relu": True},
    "eval, exact": {"mode": "eval", "allreduce": lambda sums: sums, "exact": True},
}
every_layer = pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
every_error = pytest.mark.parametrize("error", [KeyboardInterrupt, TroubleError])


@every_layer
@every_error
def test_forward_interrupted_anywhere(rng, options, error):
    """The batch is in the count and in the running statistics, or in neither; nothing is saved."""
    steps = Steps(rng, **options)
    whole = [steps.after(0), steps.after(1)]
    before = steps.gradients(steps.layer())
    found = set()

    def forward(layer):
        layer.forward(steps.other, steps.src_1)

    for number, layer in interrupted_layers(steps, error, forward):
        assert counted(layer) in whole
        found.add(whole.index(counted(layer)))
        if number == 1:  # the step had not begun
            assert steps.gradients(layer) == before
            continue
        with pytest.raises(RuntimeError, match="^backward: expected a successful forward"):
            layer.backward(steps.diff_dst)
        forward(layer)  # the layer can go on
        layer.backward(steps.diff_dst)
    assert found == ({0, 1} if options["mode"] == "train" else {0})


@every_layer
@every_error
def test_backward_interrupted_anywhere(rng, options, error):
    """What forward saved stays as it was: backward can be called again."""
    steps = Steps(rng, **options)
    before, gradients = steps.after(0), steps.gradients(steps.layer())
    for _, layer in interrupted_layers(steps, error, lambda layer: layer.backward(steps.diff_dst)):
        assert steps.gradients(layer) == gradients
        assert counted(layer) == before
