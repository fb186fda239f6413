"""Dask on two worker processes, even if one is killed.

    pytest -m cluster

.ci/dask installs what these tests need. on_cluster.py starts the processes.
"""

import doctest
import importlib.util
import json
import os

import pytest
from processes import python
from tree import ROOT, TESTS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not importlib.util.find_spec("distributed"), reason="no distributed"),
]


def on_cluster(job):
    """Return what the job finds; check that none of its processes is left running."""
    done = python(TESTS / "on_cluster.py", job, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout)
    print(printed)
    for pid in printed["pids"]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    return printed["found"]


@pytest.mark.parametrize("job", ["digests", "added"])
def test_one_digest(job):
    first, *others = on_cluster(job)
    assert {*others} == {first}


def test_a_killed_worker():
    found = on_cluster("killed")
    assert found["found"] == found["expected"]
    for step in ("sums", "diff_src"):
        assert found[step]["by the victim"] > 0
        assert found[step]["read"] > 40  # there are 40 blocks: some are read twice


def test_fewer_than_four_chunks_on_a_worker():
    """There are 22 chunks for each of two workers."""
    pytest.importorskip("zarr")
    found = on_cluster("memory")
    assert len(found) == 4
    assert all(chunks < 4 for chunks in found.values())


def test_the_page():
    """All examples of docs/howto/dask.md run in order, as a reader would type them."""
    for needed in ("xarray", "zarr"):
        pytest.importorskip(needed)
    page = ROOT / "docs" / "howto" / "dask.md"
    text = page.read_text().replace("```\n", "\n")
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    assert runner.run(test).failed == 0
