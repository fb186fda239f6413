"""Jobs: a copy of the tree without what was built; what a release is built with is pinned."""

import re
import subprocess
import sys
import tomllib

import pytest
from tree import ROOT

CI = ROOT / ".ci"
WORKFLOWS = sorted((ROOT / ".github").glob("workflows/*.yml"))

pytestmark = pytest.mark.skipif(not CI.is_dir(), reason="needs the whole source tree")
hosted = pytest.mark.skipif(not WORKFLOWS, reason="needs a clone: no workflows here")


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def workflow(name):
    (path,) = [path for path in WORKFLOWS if path.name == name]
    return path.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="jobs run on Linux")
def test_a_copy_has_all_sources_and_nothing_built(tmp_path):
    """Objects made one way are never taken for those made another."""
    built = {".so", ".pyc", ".pyi"}
    subprocess.run([CI / "lib/copy", tmp_path], check=True)
    for folder in (".ci", "bn_ext", "docs", "src_c", "tests"):
        files = {
            path.relative_to(ROOT)
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix not in built and path.name != "_core.c"
        }
        copied = {p.relative_to(tmp_path) for p in (tmp_path / folder).rglob("*") if p.is_file()}
        assert files - copied == set()
    assert not (tmp_path / "build").exists()
    assert [path for path in tmp_path.rglob("*") if path.suffix in (".so", ".o")] == []


@hosted
def test_every_python_is_tested():
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project()["project"]["classifiers"]))
    (pull_request, every) = re.findall(r"'(\[[^']*\])'", workflow("ci.yml"))
    assert re.findall(r"3\.\d+", every) == versions
    assert len(re.findall(r"3\.\d+", pull_request)) == 1


@hosted
@pytest.mark.parametrize("name", ["build", "wheel", "cibuildwheel"])
def test_what_a_release_is_built_with_is_pinned(name):
    lines = (ROOT / f".github/requirements/{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.match(r"([\w.-]+)==\S+", line) for line in lines if not line.startswith((" ", "#"))]
    assert all(pins)
    assert sum("--hash=sha256:" in line for line in lines) >= len(pins)
    asked = project()["build-system"]["requires"] if name != "cibuildwheel" else []
    asked += project()["dependency-groups"]["wheel"] if name == "wheel" else []
    assert {re.match(r"[\w-]+", each)[0] for each in asked} <= {pin[1] for pin in pins}
    (installs,) = {
        *re.findall(rf"pip install (.*)-r \S*requirements/{name}.txt", workflow("wheels.yml"))
    }
    assert installs == "--require-hashes "


@hosted
def test_nothing_is_published_before_all_else():
    """Every job of a release, the other workflow's included, precedes publishing."""
    text = workflow("wheels.yml").partition("\njobs:\n")[2]
    blocks = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)*)", text, re.MULTILINE))
    (needs,) = re.findall(r"needs: \[(.*)\]", blocks["draft"])
    assert set(needs.split(", ")) == {"checks", "contents", "sdist"}
    assert "needs: wheels\n" in blocks["contents"]
    assert "needs: draft\n" in blocks["publish"]
    assert "needs: publish\n" in blocks["release"]
    assert "uses: $/.github/workflows/ci.yml" in blocks["checks"]
    assert "workflow_call:" in workflow("ci.yml")
