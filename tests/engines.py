"""Run programs on MPI ranks with mpiexec, and check that no process is left over."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
from tree import TESTS

#: mpiexec is beside this Python, where the wheels of MPICH, Open MPI and Intel MPI put it, or on
#: PATH.
_BESIDE = Path(sys.executable).with_name("mpiexec")
MPIEXEC = str(_BESIDE) if _BESIDE.exists() else shutil.which("mpiexec")
PROGRAM = TESTS / "on_ranks.py"

if_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or MPIEXEC is None or sys.platform == "win32",
    reason="needs mpi4py and mpiexec: pip install mpi4py mpich",
)


def needs_mpi(test):
    """Mark a test over ranks: slow, because it starts several processes; skipped without MPI."""
    return pytest.mark.slow(if_mpi(test))


#: Open MPI refuses to run as root, or with more ranks than cores, unless it is told to.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Ended:
    """A program that has run: its exit status, what it printed, what each rank returned."""

    def __init__(self, status, printed, folder, ranks):
        errors = [file.read_text() for file in sorted(folder.glob("*.err"))]
        self.status, self.printed = status, "".join([printed, *errors])
        files = [folder / f"{rank}.json" for rank in range(ranks)]
        self.returned = [json.loads(f.read_text()) if f.exists() else None for f in files]


def run(ranks, arguments, folder, timeout=120):
    """Run a program on `ranks` ranks; an uncaught error ends them all, and none is left running."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, **_OPEN_MPI, "OMP_NUM_THREADS": "1", "BN_EXT_TEST_MARK": mark}
    environment.pop("PYTHONSAFEPATH", None)  # programs import files next to them
    process = subprocess.Popen(
        [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi4py", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=environment, start_new_session=True,
        cwd=folder,  # in the source tree, -m would import that, not what is installed
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        left_over(mark, kill=True)
        printed, _ = process.communicate()
        pytest.fail(f"ran for more than {timeout} s:\n{printed[-4000:]}")
    end = time.monotonic() + 20  # after an abort, signals take a while
    while left_over(mark) and time.monotonic() < end:
        time.sleep(0.1)
    assert left_over(mark) == [], printed
    return Ended(process.returncode, printed, folder, ranks)


def on_ranks(ranks, function, folder, *arguments, status=0, **options):
    """Run a function of on_ranks.py, check its exit status (None: any), return its Ended."""
    ended = run(ranks, [PROGRAM, function, folder, *arguments], folder, **options)
    if status is not None:
        assert ended.status == status, ended.printed[-4000:]
    return ended


def left_over(mark, kill=False):
    """Return processes with this mark that still run, on systems with /proc; kill them if asked."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append(int(path.parent.name))
        except OSError:  # it has ended, or is another user's
            continue
    for pid in found if kill else []:
        os.kill(pid, signal.SIGKILL)
    return found
