"""What `bn-ext bench` measures: problems, peers, times. The repository's benchmarks add to it.

A peer is bn_ext, or what one could use instead: a function that returns a call on a problem's
arrays, to be measured while the problem exists. It returns None if it does not have the operation,
and raises ImportError if it is not installed.

Times are those of whole calls as programs make them: behind other work, in turns with other
packages'. Idle threads of the one slow down the other, so the pair of both is timed as well, and no
package begins while threads of another still spin.
"""

import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

import bn_ext._core as _core
import bn_ext._functions as _functions
from bn_ext._dtypes import dtype_of

Array = NDArray[Any]
Shape = tuple[int, ...]


class Streams(NamedTuple):
    """The operands that are read and written, each as large as the problem."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


#: The gradient in training; the forward pass in training and in inference.
OPS = {
    "backward": Streams(("src", "diff_dst"), ("diff_src",)),
    "training": Streams(("src",), ("dst",)),
    "inference": Streams(("src",), ("dst",)),
}
LAYOUTS = ("NXC", "NCX")
#: ResNet-50's with a batch of 50, and one that fits a cache.
SHAPES: list[Shape] = [(50, 64, 112, 112), (50, 256, 56, 56), (50, 64, 56, 56), (50, 512, 28, 28)]
SHAPES += [(50, 256, 14, 14), (50, 2048, 7, 7), (8, 64, 28, 28)]


@dataclass(frozen=True)
class Case:
    """What a row is about. The shape is (N, C, ...); threads: None is each package's default."""

    shape: Shape
    layout: str
    dtype: str
    op: str = "backward"
    threads: int | None = None
    behind: str = "nothing"

    ops: ClassVar[Mapping[str, Streams]] = OPS

    @property
    def title(self) -> str:
        return "x".join(map(str, self.shape))


class Problem:
    """The arguments of a case, allocated once."""

    src: Array
    diff_dst: Array

    def __init__(self, case: Case):
        self.case, self.op, self.layout, self.threads = case, case.op, case.layout, case.threads
        self.dtype, self.epsilon = dtype_of(case.dtype), 1e-5
        self.streams, (count, channels, *lengths) = case.ops[case.op], case.shape
        self.axis = _core.channel_axis_of(case.layout)
        #: The sizes in memory.
        self.sizes: Shape = (count, *lengths, channels) if self.axis < 0 else case.shape
        values = np.random.default_rng(0).standard_normal(min(math.prod(self.sizes), 1 << 20))
        self.tensors: dict[str, Array] = {}
        for name in dict.fromkeys(("src", *self.streams.reads)):  # src for its shape, too
            self.tensors[name] = self.new()
            self.tensors[name][...] = np.resize(values.astype(self.dtype), self.sizes)
            setattr(self, name, self.tensors[name])
        number = np.float64 if case.dtype == "float64" else np.float32
        self.mean, self.variance, self.gamma, self.beta = (
            np.full(channels, value, number) for value in (0.01, 0.9, 1.1, 0.1)
        )
        #: Arguments of all operations but the training forward pass.
        self.vectors = self.mean, self.variance, self.gamma

    def new(self) -> Array:
        """An array for a tensor."""
        return np.empty(self.sizes, self.dtype)


# ---- peers -----------------------------------------------------------------------------

Call = Callable[[], object]
Peer = Callable[[Problem], Call | None]


def bn_ext_call(problem: Problem, **extra: Any) -> Call:
    """A call to bn_ext, which returns new results if `extra` names no outputs."""
    p = problem
    options = {"epsilon": p.epsilon, "data_format": p.layout, "num_threads": p.threads, **extra}
    if p.op.startswith("training"):  # benchmarks/ has more operations of this kind
        return lambda: _functions.batch_norm_training(p.src, p.gamma, p.beta, **options)
    if p.op.startswith("inference"):
        return lambda: _functions.batch_norm_inference(p.src, *p.vectors, p.beta, **options)
    return lambda: _functions.batch_norm_backward(p.src, p.diff_dst, *p.vectors, **options)


def formulas(problem: Problem, numpy: Any) -> dict[str, tuple[Callable[..., object], Any]]:
    """{operation: (function, arguments)}, as users of `numpy` (NumPy's or JAX's) write them."""
    p, number, m = problem, problem.mean.dtype, problem.src.size // problem.mean.size
    axes = tuple(i for i in range(p.src.ndim) if i != p.axis % p.src.ndim)
    shape = [1 if i in axes else -1 for i in range(p.src.ndim)]
    mean, variance, gamma, beta = (v.reshape(shape) for v in (*p.vectors, p.beta))
    epsilon = number.type(p.epsilon)

    def backward(src: Any, diff_dst: Any, mean: Any, variance: Any, gamma: Any) -> object:
        x, dy = numpy.asarray(src, number), numpy.asarray(diff_dst, number)
        rstd = 1 / numpy.sqrt(variance + epsilon)
        xhat = (x - mean) * rstd
        diff_beta = dy.sum(axis=axes, keepdims=True)
        diff_gamma = (dy * xhat).sum(axis=axes, keepdims=True)
        diff_src = gamma * rstd * (dy - (diff_beta + xhat * diff_gamma) / m)
        return diff_src.astype(p.dtype), diff_gamma, diff_beta

    def inference(src: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
        factor = gamma / numpy.sqrt(variance + epsilon)
        return (factor * (numpy.asarray(src, number) - mean) + beta).astype(p.dtype)

    def training(src: Any, gamma: Any, beta: Any) -> object:
        x = numpy.asarray(src, number)
        mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
        return inference(x, mean, variance, gamma, beta), mean, variance

    return {
        "backward": (backward, (p.src, p.tensors.get("diff_dst"), mean, variance, gamma)),
        "training": (training, (p.src, gamma, beta)),
        "inference": (inference, (p.src, mean, variance, gamma, beta)),
    }


def numpy_call(problem: Problem) -> Call | None:
    """The formula in NumPy."""
    function, arguments = formulas(problem, np).get(problem.op, (None, ()))
    return function and partial(function, *arguments)


def tensor_of(array: Array) -> Any:  # pragma: no cover - held by pytest -m peers
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@cache
def torchs_threads() -> int:  # pragma: no cover - held by pytest -m peers
    """The default of torch, asked before it is changed."""
    import torch

    threads: int = torch.get_num_threads()
    return threads


def torch_arguments(problem: Problem) -> tuple[list[Any], list[Any]]:  # pragma: no cover - likewise
    """The tensors that are read, in the same memory format; mean, variance, gamma and beta."""
    import torch

    torch.set_num_threads(problem.threads or torchs_threads())
    p = problem
    arrays = [p.tensors[name] for name in dict.fromkeys(("src", *p.streams.reads))]
    # torch has channels-last formats for four and five axes. With three axes it is slow, but not
    # with the same data reshaped to two.
    if p.layout == "NXC" and p.src.ndim == 3:
        arrays = [a.reshape(-1, a.shape[-1]) for a in arrays]
    tensors = [tensor_of(a).movedim(p.axis, 1) for a in arrays]
    return tensors, [torch.from_numpy(v) for v in (*p.vectors, p.beta)]


def torch_call(problem: Problem) -> Call | None:  # pragma: no cover - held by pytest -m peers
    """The operator of torch."""
    (x, *others), (mean, variance, gamma, beta) = torch_arguments(problem)
    import torch

    aten, epsilon = torch.ops.aten, problem.epsilon
    if problem.op == "training":
        return partial(aten.native_batch_norm, x, gamma, beta, None, None, True, 0.1, epsilon)
    if problem.op == "inference":
        return partial(aten.native_batch_norm, x, gamma, beta, mean, variance, False, 0.1, epsilon)
    saved = mean, variance, mean, (variance + epsilon).rsqrt(), True, epsilon, [True] * 3
    return partial(aten.native_batch_norm_backward, *others, x, gamma, *saved)


PEERS: dict[str, Peer] = {"bn_ext": bn_ext_call, "numpy": numpy_call, "torch": torch_call}


# ---- times -----------------------------------------------------------------------------

#: In seconds: successive calls of one package; the longest wait for threads to sleep.
BURST, REST = 0.05, 1.0
#: The least number of bursts of each call.
TURNS = 3

VECTOR, SQUARE = np.ones(1_000_000, np.float32), np.ones((256, 256), np.float32)
#: What stands before each call.
WORK: dict[str, Call] = {
    "nothing": lambda: None,
    "pass": lambda: np.maximum(VECTOR, 0),
    "product": lambda: SQUARE @ SQUARE,
}

Row = dict[str, Any]


class Times(NamedTuple):
    """Seconds of a call, and of it with the work before it."""

    call: float
    pair: float


def burst(call: Call, before: Call) -> list[Times]:
    """The times of each of some calls."""
    times: list[Times] = []
    end = time.perf_counter() + BURST
    while not times or time.perf_counter() < end:
        first = time.perf_counter()
        before()
        start = time.perf_counter()
        call()
        done = time.perf_counter()
        times.append(Times(done - start, done - first))
    return times


def wait_until_idle() -> None:
    """Wait until the process uses no CPU: before idle threads sleep, they spin for milliseconds,
    OpenBLAS's for 26, those of some OpenMP runtimes for 200.
    """
    end, spins = time.perf_counter() + REST, True
    while spins and time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.02)
        spins = time.process_time() - before > 0.004


def in_turns(
    bursts: Mapping[str, Callable[[], list[Times]]], seconds: float
) -> dict[str, list[Times]]:
    """The times of each call. Bursts take turns until the time is up, the first place too."""
    times: dict[str, list[Times]] = {name: [] for name in bursts}
    order, turns, end = deque(bursts), 0, time.perf_counter() + seconds
    while turns < TURNS or time.perf_counter() < end:
        for name in order:
            wait_until_idle()
            times[name] += bursts[name]()
        order.rotate(1)
        turns += 1
    return times


def row_of(case: Case, times: Mapping[str, list[Times]], used: int) -> Row:
    """The case with what was measured.

    bytes_moved: of all tensors that the operation reads and writes; threads_used: the most in a
    call of bn_ext; medians, shortest, pairs: by package, the median and the shortest time of a
    call, and the median of a pair, in seconds.
    """
    nbytes = math.prod(case.shape) * dtype_of(case.dtype).itemsize
    return {
        **asdict(case),
        "title": case.title,
        "threads": case.threads or _core.default_threads(),
        "threads_used": used,
        "bytes_moved": sum(map(len, case.ops[case.op])) * nbytes,
        "medians": {n: statistics.median(t.call for t in own) for n, own in times.items()},
        "shortest": {n: min(t.call for t in own) for n, own in times.items()},
        "pairs": {n: statistics.median(t.pair for t in own) for n, own in times.items()},
    }


def row(case: Case, peers: dict[str, Peer], seconds: float) -> Row:
    """A row with all packages in this process; one that is not installed leaves `peers`."""
    problem, bursts, used = Problem(case), {}, [0]

    def timed(call: Call) -> list[Times]:
        times = burst(call, WORK[case.behind])
        used.append(_core.last_call()["threads"])
        return times

    for name, peer in list(peers.items()):
        try:
            if call := peer(problem):
                call()
                bursts[name] = partial(timed, call)
        except ImportError:
            del peers[name]
        except RuntimeError as error:  # torch refuses it
            print(f"{name}: {error}", file=sys.stderr)
    return row_of(case, in_turns(bursts, seconds), max(used))
