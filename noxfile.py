#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2024.10"]
# ///
"""One door to every job: `nox -l` lists them, `nox -s tests lint` runs some.

Most are the scripts in .ci/, which these sessions only call.
"""

import os
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2024.10"

PROJECT = nox.project.load_toml("pyproject.toml")
#: Each script in .ci/ is a job, and sets up what it needs itself.
JOBS = sorted(
    path.name for path in Path(".ci").iterdir() if path.is_file() and os.access(path, os.X_OK)
)


@nox.session(python=nox.project.python_versions(PROJECT))
def suite(session: nox.Session) -> None:
    """The suite; options go to pytest."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session(name="pre-commit")
def pre_commit(session: nox.Session) -> None:
    """What runs at each commit, on all files."""
    session.install("pre-commit")
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure", *session.posargs)


@nox.session(default=False)
def peers(session: nox.Session) -> None:
    """The answers of torch, JAX and TensorFlow, where they can be installed."""
    session.install(".[test]", "torch", "jax", "tensorflow-cpu", "pyarrow")
    session.run("pytest", "-m", "peers", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """`python -m benchmarks`; options go to it."""
    session.install(".[bench]")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session(default=False)
def mutations(session: nox.Session) -> None:
    """The C broken, one place at a time."""
    session.install(".[test]", *PROJECT["build-system"]["requires"])
    session.run("python", "-P", "tests/mutate.py", *session.posargs)


def job(name: str) -> None:
    @nox.session(name=name, python=False, default=False)
    def run(session: nox.Session) -> None:
        session.run(f".ci/{name}", *session.posargs, external=True)

    run.__doc__ = f".ci/{name}"


for each in JOBS:
    job(each)

if __name__ == "__main__":
    nox.main()
