"""Programs for the ranks of test_mpi.py: python -m mpi4py on_ranks.py FUNCTION FOLDER [ARGUMENTS].

What a function returns is written to FOLDER/RANK.json.
"""

import doctest
import itertools
import json
import os
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from dealt import DEALS, EPSILON, KINDS, C, Problem, dealt, digest, steps
from mpi4py import MPI
from tree import ROOT

import bn_ext
from bn_ext import _mpi, mpi
from bn_ext._mpi import exchange


def started(*arguments, **options):
    pending = mpi.batch_norm_backward_start(*arguments, **options)
    pending.done()
    found = pending.wait()
    assert pending.wait() is found
    assert pending.done()
    return found


def of_all(comm, problem, parts, mine):
    """Arrays of all samples, from those of each rank's part."""
    whole = [np.empty_like(problem.src) for _ in mine]
    for part, arrays in zip(parts, comm.allgather(mine), strict=True):
        for to, a in zip(whole, arrays, strict=True):
            to[part] = a
    return whole


def digests(comm, exact):
    """{kind and deal: digest of the data of all ranks and of this rank's vectors}"""
    found = {}
    for (data, layout), deal in itertools.product(KINDS, DEALS):
        problem, parts = Problem(data, layout), dealt(deal, comm.size)
        for how, backward in (("", mpi.batch_norm_backward), ("started", started)):
            mine, vectors = steps(
                problem, parts[comm.rank], mpi.batch_norm_training, backward,
                comm=comm, exact=bool(int(exact)),
            )  # fmt: skip
            whole = of_all(comm, problem, parts, mine)
            name = " ".join(filter(None, (data, layout, deal, how)))
            found[name] = digest(problem, whole, vectors)
    return found


def layers(comm, size):
    """Digests of steps of the layer in each mode, with samples dealt to `size` ranks."""
    group = comm.Split(0 if comm.rank < int(size) else MPI.UNDEFINED)
    if group == MPI.COMM_NULL:
        return None
    problem, found = Problem("float32", "NXC"), []
    for options in ({}, {"relu": True}, {"affine": False}, {"exponential_avg_factor": None}):
        layer = mpi.BatchNorm(C, comm=group, **options)
        for deal in (*DEALS, "frozen", "eval"):
            parts = dealt("blocks" if deal in ("frozen", "eval") else deal, group.size)
            mine = parts[group.rank]
            layer.eval() if deal == "eval" else layer.freeze(deal == "frozen")
            dst = layer.forward(problem.src[mine], problem.src_1[mine]).copy()
            diff_src, _ = layer.backward(problem.diff_dst[mine])
            whole = of_all(group, problem, parts, [dst, diff_src])
            vectors = [*layer.parameters, *layer.gradients, layer.running_variance]
            found.append(digest(problem, whole, vectors))
        found.append(layer.num_batches_tracked)
    return found


# ---- interrupted ----------------------------------------------------------------------


class Interrupted(BaseException):
    """What a signal handler may raise: not an Exception."""


#: The files of bn_ext.mpi's Python code.
OVER_RANKS = f"{Path(_mpi.__file__).parent}{os.sep}", mpi.__file__


class Interrupter:
    """Raises at some events of a call: lines of bn_ext.mpi's Python, or single instructions."""

    def __init__(self, at, instructions):
        self.at, self.instructions, self.events = [*at], instructions, -1

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def __call__(self, frame, event, _):
        frame.f_trace_opcodes = self.instructions
        if not frame.f_code.co_filename.startswith(OVER_RANKS):
            return None
        if event == ("opcode" if self.instructions else "line"):
            self.events += 1
            if self.at and self.events >= self.at[0]:
                del self.at[0]
                raise Interrupted
        return self


#: How many instructions (True) or lines (False) of a call come before its first `try` block: from
#: there on, other ranks are told of errors.
BEGUN = {True: 16, False: 2}


def batch(function, number, comm):
    """A call's arguments on this rank, and what it must give."""
    arguments = FUNCTIONS[function][1]()
    whole = np.concatenate([arguments["src"] * (number + r) for r in range(comm.size)])
    arguments["src"] = arguments["src"] * (number + comm.rank)
    if function == "training":
        return arguments, whole.mean((0, 1))
    whole = (whole.reshape(comm.size, 6, 4, 8) - arguments["mean"]) * arguments["diff_dst"]
    return arguments, whole.sum((0, 1, 2)) / np.sqrt(arguments["variance"] + EPSILON)


def ended(function, number, comm, options):
    """How a call ends: "right", "wrong", or the class of the error."""
    arguments, wanted = batch(function, number, comm)
    try:
        found = FUNCTIONS[function][0](**arguments, comm=comm, **options)
    except Exception as error:
        return type(error).__name__
    value = found.mean if function == "training" else found.diff_gamma
    return "right" if np.allclose(value, wanted, rtol=1e-3, atol=1e-3) else "wrong"


def interrupted(comm, function, exact, instructions, step, again):
    """Interrupt one rank's call at every `step`-th event and, unless `again` is 0, once more
    `again` events later, while it ends. Then all ranks go on. Return {when and where: how this
    rank's calls ended}.
    """
    found, instructions = {}, bool(int(instructions))
    for when, timeout in itertools.product(("first", "later"), (None, 30.0)):
        for k in itertools.count(BEGUN[instructions] + int(again), int(step)):
            own, odd = comm.Dup(), k % comm.size
            options = {"exact": bool(int(exact)), "timeout": timeout}
            if when == "later":  # calls with 8 and 16 channels have been made
                assert ended(function, 1, own, options) == "right"
                wider = more(FUNCTIONS[function][1]())
                assert outcome(FUNCTIONS[function][0], **wider, comm=own, **options) == ""
            at = [k, k + int(again)] if int(again) else [k]
            tracer = Interrupter(at, instructions)
            try:
                with tracer if own.rank == odd else nullcontext():
                    ends = [ended(function, 2, own, options)]
            except Interrupted:
                ends = ["Interrupted"]
            ends += [ended(function, n, own, options) for n in (3, 4)]
            found[f"{when}, {timeout}, {k}"] = ends
            raised = own.bcast(ends[0] == "Interrupted", odd)
            own.Free()
            if not raised:
                break
    return found


def refused_by_a_layer(comm):
    """A layer refuses a call of one rank: in forward, and in backward after eval()."""
    good, options = backward_arguments(), {"timeout": 10}
    layer = mpi.BatchNorm(8, comm=comm, **options)
    found = [outcome(layer.forward, src=np.zeros((3, 9)) if comm.rank else good["src"])]
    layer.eval().forward(good["src"])
    found += [outcome(layer.backward, diff_dst=None if comm.rank else good["diff_dst"])]
    return [*found, ended("backward", 7, comm, options)]


def refused_of_several(comm):
    """One rank's call is refused, after several calls that differ only in exact and timeout."""
    good, found = backward_arguments() | {"comm": comm}, []
    known = [{"exact": e, "timeout": t} for e, t in ((False, 20), (True, 20), (True, 10))]
    for options in ({"exact": True}, *known):
        mpi.batch_norm_backward(**good, **options)
    for options in known[:2]:
        odd = {"epsilon": -1} if comm.rank else {}
        found.append(outcome(mpi.batch_norm_backward, **good | options | odd))
    return found


def ended_on_one_rank(comm, where):
    """One rank's gradient fails once its sums are on their way ("start") or have arrived ("wait").
    Does that rank's call alone fail? And how do the next two end? (In the first of these, the other
    rank is told.)
    """
    call, post = backward_arguments() | {"comm": comm}, exchange.OverRanks.post

    def fails(*_):
        raise MemoryError

    def posts_and_fails(*arguments):
        post(*arguments)
        fails()

    def ends():
        if comm.rank and where == "start":
            exchange.OverRanks.post = posts_and_fails
        pending = mpi.batch_norm_backward_start(**call)
        if comm.rank:
            pending._part.apply = fails
        pending.wait()

    started(**call)
    alone = outcome(ends) == ("MemoryError: " if comm.rank else "")
    exchange.OverRanks.post = post
    return [alone, *(ended("started", n, comm, {}) for n in (2, 3))]


def plain_statistics(comm):
    """The largest relative errors of variances: of data so far from 0 that few digits are left for
    its deviations, and of ranks whose means differ, also where only the variance fits a double.
    Then the variances of constants, and the errors of their means.
    """
    rng = np.random.default_rng(5)
    centred = rng.standard_normal((2, 901, 3))
    centred[1] += np.linspace(0, 40, 901)[:, None]
    large, constants = centred[1] * 2.0**505, np.full((901, 9), 0.1)
    src = np.concatenate([centred[0] + 1e15, centred[1], large, constants], axis=1)
    mine = np.array_split(src, comm.size)[comm.rank]
    found = mpi.batch_norm_training(mine, epsilon=1, comm=comm, exact=False)
    exact = np.concatenate([src[:, :3] - 1e15, centred[1]], axis=1).var(axis=0)
    exact = np.append(exact, exact[3:] * 2.0**1010)
    errors = abs(found.variance[:9] / exact - 1)
    return [errors[:3].max(), errors[3:].max(), *found.variance[9:], *(found.mean[9:] - 0.1)]


def apart(comm):
    """One rank's call fails, and the others cannot be told. In the next call, all are told."""
    own = comm.Dup()
    good, options = backward_arguments(), {"comm": own}
    for each in (good, more(good)):
        mpi.batch_norm_backward(**each, **options)
    if own.rank:  # its arguments do not tell which of the two calls it is
        nothing = dict.fromkeys(("src", "diff_dst", "mean", "variance", "gamma"))
        refused = outcome(mpi.batch_norm_backward, **good | nothing, **options)
        assert re.match("TypeError: (.|\n)*other ranks could not be told", refused)
    found = [outcome(mpi.batch_norm_backward, **good, **options) for _ in range(2)]
    return [*found, outcome(mpi.batch_norm_backward, **good, comm=own.Dup())]


def zeros_alike(comm):
    """0.0 and -0.0 count as the same epsilon."""
    options = {"epsilon": 0.0 if comm.rank else -0.0, "comm": comm}
    return [outcome(f, **(a() | options)) for f, a in FUNCTIONS.values()]


# ---- faults ---------------------------------------------------------------------------


def backward_arguments():
    rng = np.random.default_rng(1)
    src, diff_dst = rng.standard_normal((2, 6, 4, 8), dtype=np.float32)
    mean, variance = src.mean((0, 1)), src.var((0, 1))
    return {
        "src": src, "diff_dst": diff_dst, "mean": mean, "variance": variance,
        "gamma": np.ones(8, np.float32), "epsilon": EPSILON,
    }  # fmt: skip


def training_arguments():
    good = backward_arguments()
    return {
        "src": good["src"], "gamma": good["gamma"], "beta": good["mean"], "epsilon": EPSILON,
        "running_mean": np.zeros(8), "running_variance": np.ones(8),
        "exponential_avg_factor": 0.1, "correction": 1,
    }  # fmt: skip


def wide(good):
    """The same arguments with float64 data."""
    return {k: v.astype(np.float64) if isinstance(v, np.ndarray) else v for k, v in good.items()}


def more(good):
    return {
        k: np.concatenate((v, v), axis=-1) if isinstance(v, np.ndarray) else v
        for k, v in good.items()
    }


#: What one rank does differently: in a first call, in which ranks exchange hashes ("first"), in a
#: call that has been made before ("later"), or with check=True ("check").
BACKWARD = {
    "channels": (more, ["first", "check"]),
    "dtype": (wide, ["first", "check"]),
    "epsilon": (lambda good: good | {"epsilon": 1e-3}, ["first", "later", "check"]),
    "mean": (lambda good: good | {"mean": good["mean"] + 1}, ["first", "later", "check"]),
    "variance": (lambda good: good | {"variance": good["variance"] * 2}, ["first", "later"]),
    "gamma": (lambda good: good | {"gamma": None}, ["first", "later", "check"]),
    "is_training": (lambda good: good | {"is_training": False}, ["first", "later"]),
    "relu": (lambda good: good | {"relu": True, "beta": good["mean"]}, ["first", "later"]),
    "exact": (lambda good: good | {"exact": not good["exact"]}, ["first"]),
    "timeout": (lambda good: good | {"timeout": 30.0}, ["first"]),
    "check": (lambda good: good | {"check": True}, ["first"]),
}
TRAINING = {
    "channels": (more, ["first", "check"]),
    "epsilon": (lambda good: good | {"epsilon": 1e-3}, ["first", "later"]),
    "gamma": (lambda good: good | {"gamma": good["gamma"] * 2}, ["first", "later"]),
    "running_mean": (lambda good: good | {"running_mean": np.ones(8)}, ["first", "later"]),
    "correction": (lambda good: good | {"correction": 0}, ["first", "later"]),
    "relu": (lambda good: good | {"relu": True}, ["later"]),
}
#: Calls of one rank that are refused.
REFUSED = {
    "backward": {
        "shape": lambda good: good | {"diff_dst": good["diff_dst"][:-1]},
        "no array": lambda good: good | {"src": None},
        "a vector too long": lambda good: good | {"mean": np.zeros(9, np.float32)},
        "out shared": lambda good: good | {"out": (good["src"][::-1], None, None)},
        "diff_src_1 of another shape": lambda good: good | {
            "relu": True, "dst": good["src"], "diff_src_1": True,
            "out": (None, None, None, np.empty((5, 4, 8), np.float32))},
        "no gate": lambda good: good | {"relu": True},
        "no epsilon": lambda good: {k: v for k, v in good.items() if k != "epsilon"},
        "momentum": lambda good: good | {"momentum": 0.1},
        "exact": lambda good: good | {"exact": 2},
        "timeout": lambda good: good | {"timeout": -1},
    },
    "training": {
        "shape": lambda good: good | {"src_1": good["src"][:-1]},
        "workspace": lambda good: good | {"relu": True, "workspace": np.empty(3, np.uint8)},
        "momentum": lambda good: good | {"momentum": 0.1},
        "out": lambda good: good | {"out": (None, np.empty(8, np.float16), None)},
        "running shared": lambda good: good | {
            "running_mean": good["running_variance"]},
    },
}  # fmt: skip
FUNCTIONS = {
    "backward": (mpi.batch_norm_backward, backward_arguments),
    "started": (started, backward_arguments),
    "training": (mpi.batch_norm_training, training_arguments),
}


def outcome(function, **options):
    """The error with its notes, if there is one."""
    try:
        function(**options)
    except Exception as error:
        notes = getattr(error, "__notes__", ())
        return "\n".join([f"{type(error).__name__}: {error}", *notes])
    return ""


def faults(comm, exact):
    """{function, kind, when: the error of this rank, and of a good call after it}"""
    found = {}
    odd = comm.size - 1  # the rank that differs
    for name, (function, arguments) in FUNCTIONS.items():
        kinds = TRAINING if name == "training" else BACKWARD
        cases = [(kind, when, how) for kind, (how, whens) in kinds.items() for when in whens]
        refused = REFUSED["training" if name == "training" else "backward"]
        for when in ("first", "later", "check"):
            cases += [(f"refused {kind}", when, how) for kind, how in refused.items()]
        for kind, when, how in cases:
            own = comm.Dup()
            options = {"comm": own, "exact": bool(int(exact)), "check": when == "check"}
            if when == "later" or (when == "check" and kind in ("channels", "dtype")):
                assert outcome(function, **arguments(), **options) == ""
                if when == "check":  # both calls were made before, so only the check tells
                    assert outcome(function, **how(arguments()), **options) == ""
            good = arguments() | options
            error = outcome(function, **(how(good) if comm.rank == odd else good))
            after = outcome(function, **arguments(), **options)
            found[f"{name}, {kind}, {when}"] = error, after
            own.Free()
    return found


def functions_mixed(comm):
    """One rank calls batch_norm_backward, the other batch_norm_backward_start: is each told?"""
    function = mpi.batch_norm_backward_start if comm.rank else mpi.batch_norm_backward
    return "function: rank" in outcome(function, **backward_arguments(), comm=comm)


def no_call(comm, seconds):
    """Rank 0 calls; the others sleep."""
    if comm.rank:
        time.sleep(float(seconds) * 20)
        return None
    start = time.monotonic()
    call = {**backward_arguments(), "comm": comm, "timeout": float(seconds)}
    found = outcome(mpi.batch_norm_backward, **call), time.monotonic() - start
    return [*found, outcome(mpi.batch_norm_backward, **call)]


def never_waited(comm, who):
    """The process ends while what `start` has sent is on its way."""
    call = {**backward_arguments(), "comm": comm}
    started(**call)
    time.sleep(comm.rank if who == "late" else 0)
    for _ in range(3):
        mpi.batch_norm_backward_start(**call)  # no name refers to it: only bn_ext keeps it
    if who == "finalized":
        comm.Barrier()
        MPI.Finalize()
    return "started"


def let_go(comm):
    """Are calls forgotten if nobody waits for them?"""
    call = {**backward_arguments(), "comm": comm}
    for _ in range(100):
        mpi.batch_norm_backward_start(**call)
        comm.Barrier()
    return len(exchange._on_their_way) < 10


def refused_at_once(comm):
    """The errors of a wrong `comm`, `exact`, `check` or `timeout`."""
    call = backward_arguments() | {"comm": comm}
    wrong = [
        {"comm": None}, {"comm": MPI.COMM_NULL}, {"comm": "COMM_WORLD"},
        {"exact": 2}, {"check": None}, {"timeout": 0}, {"timeout": "soon"},
        {"timeout": float("nan")}, {"timeout": True},
    ]  # fmt: skip
    return [outcome(mpi.batch_norm_backward, **call | each) for each in wrong]


def intercommunicator(comm):
    """Refused: an intercommunicator's two groups have no sum in common."""
    half = comm.Split(comm.rank % 2)
    between = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    return outcome(mpi.batch_norm_backward, **backward_arguments(), comm=between)


def examples(comm):
    """Run the examples of the docstrings."""
    flags = doctest.NORMALIZE_WHITESPACE
    return list(doctest.testmod(mpi, optionflags=flags))


# ---- communicators --------------------------------------------------------------------


def groups(comm):
    """Each half of the ranks makes a call by itself. In a duplicate, and in a new communicator
    after one was freed, ranks have not yet compared arguments.
    """
    good = backward_arguments()
    own = comm.Split(comm.rank % 2, comm.rank)
    part = {**good, "diff_dst": good["diff_dst"] * (1 + comm.rank % 2)}
    found = mpi.batch_norm_backward(**part, comm=own).diff_beta
    alone = bn_ext.batch_norm_backward(**part).diff_beta
    near = bool(np.allclose(found, alone * own.size, rtol=1e-5))

    counts = []
    for each in (own, own.Dup()):
        counts.append(len(exchange._record_of(each).agreed))
    own.Free()
    again = comm.Dup()
    counts.append(len(exchange._record_of(again).agreed))
    none = comm.Split(MPI.UNDEFINED if comm.rank else 0)
    left = outcome(mpi.batch_norm_backward, **good, comm=none) if comm.rank else ""
    return [near, counts, left]


def in_order(comm):
    """Sums on their way may be waited for in any order, which may differ between ranks."""
    good = backward_arguments()
    pending = [
        mpi.batch_norm_backward_start(**good | {"gamma": good["gamma"] * n}, comm=comm)
        for n in range(6)
    ]
    order = np.random.default_rng(comm.rank).permutation(6)
    found = {n: pending[n].wait().diff_src for n in order}
    return all((found[n] == found[1] * n).all() for n in (0, 2, 4))  # exact products


def one_element(comm):
    """If a channel has one element over all ranks, its variance cannot be corrected. Each rank
    finds out by itself, so the next call has nothing to tell.
    """
    arguments = training_arguments()
    arguments["src"] = arguments["src"][: comm.rank == 0, :1]
    error = outcome(mpi.batch_norm_training, **arguments, comm=comm)
    return [error, ended("training", 2, comm, {})]


def no_samples(comm):
    """Without channels, or if no rank has samples, results are as in one process."""
    nothing = np.empty((comm.rank, 0), np.float32)
    for exact in (True, False):
        options = {"epsilon": EPSILON, "comm": comm, "exact": exact}
        found = mpi.batch_norm_training(nothing, **options)
        mpi.batch_norm_backward(nothing, nothing, *found[1:], **options)
    arguments = training_arguments()
    arguments["src"] = arguments["src"][:0]
    found = mpi.batch_norm_training(**arguments, comm=comm)
    grads = backward_arguments()
    grads |= {name: grads[name][:0] for name in ("src", "diff_dst")}
    diff = mpi.batch_norm_backward(**grads, comm=comm)
    return [
        bool(np.isnan(found.mean).all()), arguments["running_mean"].tolist(),
        diff.diff_gamma.tolist(), list(diff.diff_src.shape),
    ]  # fmt: skip


def page(comm):
    """Run the examples of docs/howto/several_machines.md."""
    text = (ROOT / "docs" / "howto" / "several_machines.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, "page", "page", 0)
    return list(doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test))


def main(function, folder, *arguments):
    rank = MPI.COMM_WORLD.rank
    # mpiexec may drop output that comes just before an abort; a file keeps it.
    errors = os.open(Path(folder) / f"{rank}.err", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(errors, sys.stderr.fileno())
    found = globals()[function](MPI.COMM_WORLD, *arguments)
    whole = Path(folder) / f"{rank}.json"
    part = whole.with_suffix(".part")  # another rank's abort may end this one while it writes
    part.write_text(json.dumps(found))
    part.replace(whole)


if __name__ == "__main__":
    main(*sys.argv[1:])
