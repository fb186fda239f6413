"""A call whose first, second, third, ... allocation fails: MemoryError, and nothing written.

Where no error is raised the bits are the right ones, and no call keeps a block.
Run by test_memory.py with fail_malloc.c preloaded:

    LD_PRELOAD=fail_malloc.so PYTHONMALLOC=malloc python tests/no_memory.py
"""

import ctypes
import functools
import itertools

import numpy as np
from cases import DATA_DTYPES, Family, as_stats

import bn_ext

library = ctypes.CDLL(None)
library.fail_after.argtypes = [ctypes.c_long]
library.blocks_held.restype = ctypes.c_long
SHAPES = [((6, 5), "NXC"), ((300, 40), "NXC"), ((3, 4, 50), "NCX"), ((9, 3, 900), "NCX"),
          ((0, 5), "NXC"), ((2, 5, 0), "NCX")]  # fmt: skip
MOST = 2000
#: A leak keeps a block in each of so many calls, in each of so many rounds of them; the
#: interpreter's own caches keep some too, until they are full.
CALLS, ROUNDS = 10, 10


def attempt(call, n):
    """(did the n-th allocation happen and fail, the result or None, the exception or None)."""
    result = raised = None
    try:
        library.fail_after(n)
        result = call()
    except MemoryError as error:
        raised = error.with_traceback(None)  # which holds this frame, and so itself
    while True:
        try:
            failed = bool(library.has_failed())
            library.fail_after(-1)
            return failed, result, raised
        except (MemoryError, ctypes.ArgumentError):
            continue  # the n-th was one of these


def bits(result):
    """Of all arrays and numbers of a result, which may be one."""
    several = result if isinstance(result, (list, tuple)) else (result,)
    return [np.asarray(a).tobytes() for a in several]


def check(call, out):
    """Fail each allocation in turn until the call has no more; how many there are."""

    def fill():
        for array in out:
            array.view(np.uint8)[:] = 0xA5

    fill()
    wanted = bits(call()) + bits(out)
    for n in range(MOST):
        fill()
        failed, result, raised = attempt(call, n)
        if raised is None:
            # Python survives some failures by itself; then the call has done its work.
            found = bits(result) + bits(out)
            assert found == wanted, f"allocation {n}: other bits and no error"
        else:
            assert failed, f"nothing failed, and yet {raised!r}"
            untouched = all((array.view(np.uint8) == 0xA5).all() for array in out)
            assert untouched, f"allocation {n}: outputs written, then {raised!r}"
        if not failed:
            return n
    raise AssertionError(f"more than {MOST} allocations")


def check_freed(call, allocations):
    """Whether the n-th allocation fails or none does: afterwards as many blocks as before."""
    for n in (*range(allocations), -1):
        for _ in range(ROUNDS):
            before = library.blocks_held()
            for _ in range(CALLS):
                attempt(call, n)
            kept = library.blocks_held() - before
            if kept < CALLS:
                break
        else:
            raise AssertionError(f"allocation {n} fails: {kept} blocks kept by {CALLS} calls")


class Operands(Family):
    """What the members take, with results of every kind, whose memory is kept beside them."""

    def __init__(self, shape, layout, data):
        super().__init__(np.random.default_rng([*shape]), shape, layout, data)
        # Every other element: these go through copies.
        self.wide = np.empty((*shape[:-1], 2 * shape[-1]), self.src.dtype)
        self.spread = np.zeros_like(self.wide)[..., ::2]
        self.spread[...] = self.diff_dst
        self.turned = [np.asfortranarray(a) for a in (self.src, self.diff_dst)]
        self.stats = as_stats(np.ones((2, len(self.mean))), self.count)
        self.gate = np.full(-(-self.src.size // 8), 0x5A, np.uint8)
        self.options = {"data_format": layout, "num_threads": 1}

    def results(self, tensors, vectors):
        """(`out`, the memory it may write to): none, arrays, and the first through a copy."""
        plain = [np.empty_like(self.src) for _ in range(tensors)]
        rest = [np.empty_like(self.mean) for _ in range(vectors)]
        yield None, []
        yield (*plain, *rest), [*plain, *rest]
        yield (self.wide[..., ::2], *plain[1:], *rest), [self.wide, *plain[1:], *rest]


def backward_calls(p):
    """The gradient and its halves: without a gate and with each."""
    vectors = p.vectors()
    apply = bn_ext.batch_norm_backward_apply, (*vectors, p.stats[:3])
    backward = bn_ext.batch_norm_backward, vectors
    from_src = {"relu": True, "beta": p.beta}
    more = {"variance": p.variance, "gamma": p.gamma, "epsilon": 1e-3}
    for x, dy in ((p.src, p.diff_dst), (p.src, p.spread), p.turned):
        reduce = functools.partial(bn_ext.batch_norm_backward_reduce, x, dy, p.mean, **p.options)
        gates = {"relu": True, "dst": dy}, {"relu": True, "workspace": p.gate}
        yield reduce, []
        yield functools.partial(reduce, **from_src, **more), []
        for gate in gates:
            yield functools.partial(reduce, **gate), []
        for (function, given), is_training in itertools.product((backward, apply), (True, False)):
            call = functools.partial(
                function, x, dy, *given, epsilon=1e-3, is_training=is_training, **p.options
            )
            for out, memory in p.results(1, 2):
                yield functools.partial(call, out=out), memory
                for gate in (from_src, *gates):
                    yield functools.partial(call, out=out, **gate), memory
            for out, memory in p.results(2, 2):
                out = None if out is None else (out[0], *out[2:], out[1])
                for gate in gates:
                    yield functools.partial(call, out=out, diff_src_1=True, **gate), memory


def forward_calls(p):
    """Training, its halves and inference: plain, and with all that is fused."""
    affine = p.gamma, p.beta
    running = {
        "running_mean": p.running_mean, "running_variance": p.running_variance,
        "exponential_avg_factor": 0.1, "correction": 0,
    }  # fmt: skip
    written = np.empty_like(p.gate)
    for x, added in ((p.src, p.src_1), (p.src, p.spread), p.turned):
        yield functools.partial(bn_ext.batch_norm_training_reduce, x, **p.options), []
        fused = {"src_1": added, "relu": True, "workspace": written}
        call = functools.partial(
            bn_ext.batch_norm_inference, x, p.mean, p.variance, *affine, epsilon=1e-3, **p.options
        )
        for out, memory in p.results(1, 0):
            out = None if out is None else out[0]
            yield functools.partial(call, out=out), memory
            yield functools.partial(call, out=out, **fused), [*memory, written]
        for function, given in (
            (bn_ext.batch_norm_training, ()),
            (bn_ext.batch_norm_training_apply, (p.stats,)),
        ):
            call = functools.partial(function, x, *given, *affine, epsilon=1e-3, **p.options)
            for out, memory in p.results(1, 2):
                yield functools.partial(call, out=out), memory
                changed = [*memory, written, p.running_mean, p.running_variance]
                yield functools.partial(call, out=out, **fused, **running), changed


def exact_calls(p):
    """Exact sums, and what takes them."""
    for x, dy in ((p.src, p.diff_dst), p.turned):
        reduce = functools.partial(
            bn_ext.batch_norm_backward_reduce, x, dy, p.mean, exact=True, **p.options
        )
        moments = functools.partial(bn_ext.batch_norm_training_reduce, x, exact=True, **p.options)
        yield reduce, []
        yield functools.partial(moments, mean=p.mean), []
        for out, memory in p.results(1, 2):
            yield functools.partial(
                bn_ext.batch_norm_backward_apply, x, dy, *p.vectors(), reduce(), epsilon=1e-3,
                out=out, **p.options,
            ), memory  # fmt: skip
    for function, state in (
        (bn_ext.batch_norm_training_merge, [p.stats, p.stats]),
        (bn_ext.batch_norm_sums, reduce()),
        (bn_ext.batch_norm_count, reduce()),
        (bn_ext.batch_norm_canonical, reduce()),
        (bn_ext.batch_norm_training_stats, moments()),
    ):
        yield functools.partial(function, state), []


def double_backward_calls(p):
    """The gradient of the gradient."""
    for dy, g in ((p.diff_dst, p.diff_diff_src), (p.spread, p.diff_diff_src), p.turned):
        for (out, memory), is_training in itertools.product(p.results(2, 1), (True, False)):
            yield functools.partial(
                bn_ext.batch_norm_double_backward, p.src, dy, *p.vectors(), g, p.diff_diff_gamma,
                p.diff_diff_beta, epsilon=1e-3, is_training=is_training, out=out, **p.options,
            ), memory  # fmt: skip


MEMBERS = forward_calls, backward_calls, exact_calls, double_backward_calls


def steps_of(kind, relu, added, mode):
    """A new layer, and the steps to take with it."""
    src = np.arange(30, dtype=np.float32).reshape(6, 5)
    layer = bn_ext.BatchNorm(5, relu=relu, dtype=kind)
    getattr(layer, mode)()
    forward = functools.partial(layer.forward, src, src if added else None)
    return layer, [forward, functools.partial(layer.backward, src)] * 2


def check_layer(*options):
    """A step of the layer that fails changes nothing of it; how many allocations failed."""
    failures = 0
    for number in range(4):
        for n in range(MOST):
            layer, steps = steps_of(*options)
            for step in steps[:number]:
                step()

            def kept(layer=layer):
                return bits([*layer.state_dict().values(), *layer.gradients]), id(layer._saved)

            before = kept()
            failed, _, raised = attempt(steps[number], n)
            if raised is not None:
                assert failed, f"nothing failed, and yet {raised!r}"
                assert kept() == before, f"{options}, step {number}, allocation {n}: {raised!r}"
                steps[number]()
            if not failed:
                break
            failures += 1
    return failures


def main():
    counts = []
    for shape, layout in SHAPES:
        for data in DATA_DTYPES:
            p = Operands(shape, layout, data)
            for call, memory in itertools.chain(*(calls(p) for calls in MEMBERS)):
                counts.append(check(call, [array.reshape(-1) for array in memory]))
                if data == "float32":
                    check_freed(call, counts[-1])
    assert min(counts) >= 2  # working space and the team's, at the least
    modes = itertools.product(
        (np.float64, np.float32), (False, True), (False, True), ("train", "eval", "freeze")
    )
    layers = sum(check_layer(*options) for options in modes)
    assert layers > 0
    print(f"{sum(counts)} allocations failed in {len(counts)} calls, {layers} in a layer's steps")


if __name__ == "__main__":
    main()
