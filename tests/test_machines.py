"""The programs of docs/howto/several_machines.md give the bits of one call, with every engine."""

import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
from textwrap import indent

import numpy as np
import pytest
from machines import BATCH, OPTIONS, digest, expected, share
from tree import ROOT, SHARED

import bn_ext

PAGE = (ROOT / "docs" / "howto" / "several_machines.md").read_text()
BLOCKS = dict(re.findall(r"^```python\n# (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
HEAD = f"""\
import sys
sys.path.insert(0, {str(SHARED)!r})
from machines import *
{BLOCKS["all"]}"""
#: Before the results are gathered: this process's part, and after: the digests of the whole.
RANKS = """
parts = comm.gather((dst, diff_src))
if parts:
    joined = [np.concatenate(each) for each in zip(*parts)]
    print(digest(statistics), digest_of_arrays(*joined, diff_gamma, diff_beta))
"""
AFFINE = "gamma, beta = affine()\n"
#: Open MPI refuses to run as root, or with more ranks than cores, unless it is told to.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def printed(command):
    options = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    done = subprocess.run([*map(str, command)], env={**os.environ, **OPEN_MPI}, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def run(tmp_path, text, command=(sys.executable,)):
    program = tmp_path / "program.py"
    program.write_text(HEAD + text)
    return printed([*command, program])


def mpi(ranks):
    return ["mpiexec", "-n", ranks, sys.executable, "-m", "mpi4py"]


needs_mpi = pytest.mark.skipif(
    not (shutil.which("mpiexec") and importlib.util.find_spec("mpi4py")), reason="needs MPI"
)


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_mpi(tmp_path, ranks):
    mine = f"from mpi4py.MPI import COMM_WORLD\nsrc, diff_dst = share(COMM_WORLD.rank, {ranks})\n"
    text = mine + BLOCKS["mpi"] + AFFINE + BLOCKS["each"] + RANKS
    assert run(tmp_path, text, mpi(ranks)) == [*expected()]


def test_processes(tmp_path):
    text = "def part(number): return share(number, 4)\n"
    shows = (
        'if __name__ == "__main__":\n results = []\n for src, diff_dst in map(part, range(4)):\n'
        f"{indent(AFFINE + BLOCKS['each'], '  ')}  results.append((dst, diff_src))\n"
        " joined = [np.concatenate(each) for each in zip(*results)]\n"
        " print(digest(statistics), digest_of_arrays(*joined, diff_gamma, diff_beta))\n"
    )
    assert run(tmp_path, text + BLOCKS["processes"] + shows) == [*expected()]


@pytest.mark.cluster
def test_dask(tmp_path):
    pytest.importorskip("distributed")
    text = (
        "from distributed import Client\n"
        'if __name__ == "__main__":\n'
        " client = Client(n_workers=2, threads_per_worker=1, dashboard_address=None)\n"
        " import dask\n"
        " delayed_parts = [dask.delayed(share)(k, 4)[0] for k in range(4)]\n"
    )
    shows = " print(digest(statistics))\n client.close()\n"
    assert run(tmp_path, text + indent(BLOCKS["dask"], " ") + shows) == [expected()[0]]


@pytest.mark.suites
def test_torch(tmp_path):
    pytest.importorskip("torch")
    text = (
        "from torch import multiprocessing as mp\n"
        "def rank(number, address):\n"
        " from torch import distributed\n"
        " distributed.init_process_group('gloo', init_method=address, rank=number, world_size=2)\n"
        " src, _ = share(number, 2)\n"
    )
    shows = (
        " if number == 0: print(digest(statistics))\n"
        "if __name__ == '__main__':\n"
        f" mp.spawn(rank, ('file://{tmp_path}/meeting',), nprocs=2)\n"
    )
    assert run(tmp_path, text + indent(BLOCKS["torch"], " ") + shows) == [expected()[0]]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([sys.executable], []),
        ([sys.executable], ["--processes", "3"]),
        pytest.param(mpi(2), [], marks=needs_mpi),
    ],
    ids=["one", "pool", "ranks"],
)
def test_the_example_prints_the_digest_that_the_docs_have(command, words):
    results = printed([*command, ROOT / "examples" / "several_machines.py", *words])
    page = (ROOT / "docs" / "examples.md").read_text()
    digests = re.findall(r"^\d \w+: ([0-9a-f]{16})$", page, re.MULTILINE)
    digests += [word for word in results if re.fullmatch("[0-9a-f]{16}", word)]
    assert len(digests) == 3
    assert len({*digests}) == 1


@pytest.mark.parametrize("row", ["plain", "exact, normally distributed data", "exact, at most"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_part_sends_what_the_page_says(row, dtype):
    cells = re.search(rf"^\| {row} \|(.*)\|(.*)\|$", PAGE, re.MULTILINE).groups()
    exact, channels = row != "plain", 2000
    for samples in (4, 1000):
        data = np.random.default_rng(0).standard_normal((2, samples, channels)).astype(dtype)
        parts = [bn_ext.Statistics(data[0], exact=exact)]
        parts += [bn_ext.GradientSums(*data, parts[0].mean, exact=exact)]
        for cell, part in zip(cells, parts, strict=True):
            sent = len(pickle.dumps(part))
            if row == "exact, at most":
                sent = part.array.nbytes + (part.mean.nbytes if part is parts[1] else 0)
            ordinary, _, of_float64 = cell.partition(" (float64: ")
            message = of_float64 if of_float64 and dtype == "float64" else ordinary
            least, *_, most = [int(number) for number in re.findall(r"\d+", message)] * 2
            assert least <= round(sent / channels) <= most, part


def test_more_ranks_than_samples_are_parts_too():
    parts = [bn_ext.Statistics(share(rank, BATCH + 2)[0], **OPTIONS) for rank in range(BATCH + 2)]
    assert digest(sum(parts)) == expected()[0]
