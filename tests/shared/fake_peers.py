"""Peers for test_bench.py, and for test_benchmarks.py, where processes of their own import them."""

import os

from bn_ext import _bench


def twice(problem):
    """Makes bn_ext's call twice."""
    call = _bench.bn_ext_call(problem)
    return lambda: (call(), call())


def adding(problem):
    """Does not call bn_ext."""
    return lambda: sum(range(len(problem.sizes)))


def absent(problem):
    raise ImportError("No module named 'absent'")


def refusing(problem):
    raise RuntimeError("not today")


def ending(problem):
    os._exit(1)


def nothing(problem):
    return None


FAKE = {each.__name__: each for each in (twice, adding, absent, refusing, ending, nothing)}
