"""Jobs: found by folder, listed where people look, fetched from signed or pinned sources alone."""

import os
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

#: Jobs that no hosted workflow runs, and why.
NOT_HOSTED = {
    "clang": "is two other jobs, one after the other",
    "release": "changes the repository",
    "run": "is other jobs",
    "stranger": "mounts, as root",
}


def jobs():
    return {path.name for path in CI.iterdir() if path.is_file() and os.access(path, os.X_OK)}


def commands():
    """(script, line) of everything that scripts do, without comments."""
    for path in sorted(CI.rglob("*")):
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                if not line.lstrip().startswith("#"):
                    yield path.relative_to(ROOT).as_posix(), line


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def workflow(name):
    (path,) = [path for path in WORKFLOWS if path.name == name]
    return path.read_text(encoding="utf-8")


def test_every_package_is_verified():
    """Packages of Debian come with signatures that its keys made."""
    unsafe = re.compile(
        r"trusted=yes|allow-(unauthenticated|insecure)|no-check-gpg|AllowInsecure\w+ \"true"
    )
    assert [found for found in commands() if unsafe.search(found[1])] == []


def test_nothing_is_installed_on_the_system():
    """A job reports what it lacks or fetches it into a folder; it installs only in its own root."""
    installs = re.compile(r"\b(apt(-get)?|dpkg) .*\b(install|-i)\b")
    assert [
        found
        for found in commands()
        if installs.search(found[1])
        and "--download-only" not in found[1]
        and "in_root" not in found[1]
    ] == []


def test_no_job_names_a_file_of_the_sources():
    """Files are added, removed and moved; jobs find them by folder."""
    stems = {path.stem for path in (ROOT / "src_c").rglob("*") if path.is_file()}
    named = re.compile(rf"(?<![\w-])({'|'.join(stems)})\.(c|h|i|inc|o|s)(?![\w-])")
    assert [found for found in commands() if named.search(re.sub(r"tests/\S+", "", found[1]))] == []


def test_no_job_copies_by_a_list():
    """A part of the tree that such a list forgot is a job that fails, or that sees less."""
    top = "|".join(re.escape(path.name) for path in ROOT.iterdir())
    part = re.compile(rf"(?<![\w./-])({top})(?![\w.-])")
    copies = [(found, part.findall(found[1])) for found in commands() if " -r" in found[1]]
    assert [
        found
        for found, parts in copies
        if re.search(r"\bcp\b", found[1]) and len(parts) > 1 and {"src_c", "bn_ext"} & {*parts}
    ] == []


@pytest.mark.skipif(sys.platform != "linux", reason="jobs run on Linux")
def test_a_copy_has_all_sources_and_nothing_built(tmp_path):
    """Objects made one way are never taken for those made another."""
    subprocess.run([CI / "lib/copy", tmp_path], check=True)
    for folder in (".ci", "bn_ext", "docs", "src_c", "tests"):
        files = {
            path.relative_to(ROOT)
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix not in (".so", ".pyc") and path.name != "_core.c"
        }
        copied = {p.relative_to(tmp_path) for p in (tmp_path / folder).rglob("*") if p.is_file()}
        assert files - copied == set()
    assert not (tmp_path / "build").exists()
    assert [path for path in tmp_path.rglob("*") if path.suffix in (".so", ".o")] == []


def test_every_job_is_in_the_table_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert jobs() - set(re.findall(r"`\.ci/(\w+)", text)) == set()


@hosted
def test_every_job_is_run_by_a_workflow():
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    run = {*re.findall(r"\.ci/(\w+)\b(?!/)", text), *re.findall(r"- job: (\w+)", text)}
    assert jobs() - run == NOT_HOSTED.keys()
    assert run - jobs() == set()


@hosted
def test_every_python_is_tested():
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project()["project"]["classifiers"]))
    (pull_request, every) = re.findall(r"'(\[[^']*\])'", workflow("ci.yml"))
    assert re.findall(r"3\.\d+", every) == versions
    assert len(re.findall(r"3\.\d+", pull_request)) == 1


@hosted
def test_actions_are_pinned_and_the_same_everywhere():
    uses = {
        found
        for path in WORKFLOWS
        for found in re.findall(r"uses: (?!\$/)(\S+)@(\S+) ?(.*)", path.read_text(encoding="utf-8"))
    }
    assert uses
    for _, commit, comment in uses:
        assert re.fullmatch("[0-9a-f]{40}", commit)
        assert re.fullmatch(r"# v\d+\.\d+\.\d+", comment)
    assert len({action for action, *_ in uses}) == len(uses)


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
    (needs,) = re.findall(r"needs: \[(.*)\]", blocks["publish"])
    after = {"publish", "attach"}
    assert set(needs.split(", ")) == blocks.keys() - after
    assert "needs: publish\n" in blocks["attach"]
    assert "uses: $/.github/workflows/ci.yml" in blocks["checks"]
    assert "workflow_call:" in workflow("ci.yml")
