"""Teams of threads, by themselves. The first argument of each function is the library of teams.c.

Run by test_pool.py.
"""

import ctypes
import time

from calls import allow, main, region

#: Elements that are worth many threads.
MANY = 1 << 40


class Lesson(ctypes.Structure):
    _fields_ = [("alone_until", ctypes.c_double), ("patience", ctypes.c_int)]


def loaded(path):
    library = ctypes.CDLL(path)
    numbers = [ctypes.c_double] * 3
    library.bn_learn.argtypes, library.bn_learn.restype = [Lesson, *numbers, ctypes.c_int], Lesson
    library.run_team.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_bool]
    library.bn_seconds.restype = ctypes.c_double
    return library


def learnt(path, patience, start, now, worked, came):
    """How long to be alone from `now` on, and the patience afterwards."""
    lesson = loaded(path).bn_learn(Lesson(0, patience), now, start, worked, came)
    return max(0, lesson.alone_until - now), lesson.patience


def clocks(path):
    return time.monotonic(), loaded(path).bn_seconds(), time.monotonic()


def wait(library, seconds):
    ctypes.c_double.in_dll(library, "later").value += seconds


def after_a_late_team(path):
    """Threads of teams: at first; after a late one; then, if asked for two; a second later."""
    library = loaded(path)
    run_team = library.run_team
    used = [run_team(0, MANY, False)]
    # Now and then the system stops the caller just when it is done, and the team is not late.
    used.append(next((1 for _ in range(1000) if run_team(0, MANY, True) == 1), 0))
    used.append(run_team(2, MANY, False))
    wait(library, 1)
    return [*used, run_team(0, MANY, False)]


def started(path, threads, within=None, limit=None):
    """How many threads 400 teams of `threads` start on trial."""
    library = loaded(path)

    def teams():
        for _ in range(400):
            library.run_team(threads, MANY, False)

    if limit is not None:
        allow(limit)
    region(1, teams) if within else teams()
    return ctypes.c_int.in_dll(library, "started").value


def refused(path):
    """How many threads were tried when a team could not grow; five seconds later; ten later."""
    library, sizes = loaded(path), []
    allow(0)
    for seconds in (0, 5, 5):
        wait(library, seconds)
        library.run_team(8, MANY, False)
        sizes.append(ctypes.c_int.in_dll(library, "started").value)
    return sizes


if __name__ == "__main__":
    main(globals())
