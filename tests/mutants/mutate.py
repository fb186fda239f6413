"""Break the package in one place at a time; the suite must fail each time.

    python -P tests/mutants/mutate.py                    all of mutants.txt
    python -P tests/mutants/mutate.py pool.c "in place"  rows whose file or words contain a PART
    python -P tests/mutants/mutate.py --list             is each row's place found? runs nothing

Run in an environment that has what the tests need, in a git clone. Each mutant is built in a copy
of the tree. First come the checks of the row's heading (`verify` or test files), then the fast
tests, then the whole suite but test_example.py, until something fails; hanging counts as failing.
The exit status is 1 if one survived or does not compile, or if the text of a row does not occur
exactly once, or a heading names tests that do not exist.

Most of the time goes into compiling kernels. BN_EXT_BUILD_ISAS=baseline builds one level. That is
enough for all mutants except those of vec_avx2.h and vec_avx512.h.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).parent / "mutants.txt"

FAST = ["-m", "quick"]
REST = ["--slow", "--ignore=tests/test_example.py"]
#: Seconds after which tests count as hanging.
HANGS = 1800
#: The same for `bn-ext verify` and for tests/oracle, which takes thirty.
VERIFY_HANGS = 180
#: pytest's exit status if it collects no test, as from a file that needs a missing package.
NO_TESTS = 5
#: A token of source text. Space between tokens does not matter.
TOKENS = re.compile(r"\w+|\S")


@dataclass(frozen=True)
class Mutant:
    """A row: the text that occurs once, the part of it that changes, and what that becomes."""

    file: str
    finders: tuple[str, ...]
    words: str
    before: str
    old: str
    new: str
    after: str

    def __str__(self):
        return f"{self.file}: {self.words}"

    def applied(self, text):
        """The text of the file, broken; None if the place is not found, or found twice."""
        parts = (pattern_of(part) for part in (self.before, self.old, self.after))
        pattern = r"\s*".join(f"({part})" for part in parts)
        found = [*re.finditer(pattern, text)]
        if len(found) != 1:
            return None
        start, end = found[0].span(2)
        return text[:start] + self.new + text[end:]


def pattern_of(source):
    """A regular expression that matches the same tokens, whatever the space between them."""
    tokens = TOKENS.findall(source)
    return r"\s*".join(rf"\b{t}\b" if re.match(r"\w", t) else re.escape(t) for t in tokens)


def table():
    """The rows of mutants.txt."""
    file, finders, found = "", (), []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\[(\S+)\]((?: \w+)*)", line):
            file, finders = heading[1], tuple(heading[2].split())
        elif line and not line.startswith("#"):
            words, change = line.split(" | ", 1)
            if "«" not in change:
                change = f"«{change}»"
            before, both, after = re.fullmatch("(.*)«(.*)»(.*)", change).groups()
            old, new = re.fullmatch("(.*?) => ?(.*)", both).groups()
            found.append(Mutant(file, finders, words, before, old, new, after))
    return found


def tree():
    """The files of the repository, as paths from its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [path for path in map(Path, listed.stdout.split("\0")[:-1]) if (ROOT / path).is_file()]


def run(command, folder, hangs=HANGS):
    """Run a command; return why it failed, or ''."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=hangs,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "hangs"
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode in (0, NO_TESTS):
        return ""
    return failed[1] if failed else f"exit status {done.returncode}"


def build(folder):
    """Compile; return the end of the errors if that fails, else a false value."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode and "DOES NOT COMPILE\n" + done.stderr[-2000:]


def kill(folder, finders):
    """Return what finds the mutant in this folder, or ''."""
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    files = [f"tests/{name}.py" for name in finders if name != "verify"]
    for check in (["-m", "bn_ext", "verify"], ["tests/oracle"]) if "verify" in finders else ():
        why = run([sys.executable, *check], folder, VERIFY_HANGS)
        if why:
            return f"{' '.join(check)}: {why}"
    for part in [["--slow", *files], FAST, REST][not files :]:
        why = run(pytest + part, folder)
        if why:
            return why
    return ""


def main(arguments=None):
    """Try the mutants; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="part of a row's file or words")
    parser.add_argument("--list", action="store_true", help="only look for each row's place")
    options = parser.parse_args(arguments)
    paths = tree()
    chosen = [m for m in table() if not options.parts or any(p in str(m) for p in options.parts)]
    broken = {}
    for mutant in chosen:
        here = [path for path in paths if path.as_posix().endswith(f"/{mutant.file}")]
        text = mutant.applied((ROOT / here[0]).read_text("utf-8")) if len(here) == 1 else None
        tests = [f"tests/{name}.py" for name in mutant.finders if name != "verify"]
        if text is None or not {*tests} <= {*map(str, paths)}:
            print(f"{mutant}: NOT FOUND", flush=True)
        else:
            broken[mutant] = here[0], text
    left = 0 if options.list else tried(broken, paths)
    print(f"{len(broken)} of {len(chosen)} places found; {left} survived or did not compile")
    return int(left > 0 or len(broken) < len(chosen))


def tried(broken, paths):
    """Try each mutant; return how many survive or do not compile."""
    left = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        wrong = build(folder) or run([sys.executable, "-m", "pytest", "-x", "-q", *FAST], folder)
        if wrong:
            raise SystemExit(f"before any mutation: {wrong}")
        for mutant, (path, text) in broken.items():
            (folder / path).write_text(text, "utf-8")
            wrong = build(folder)
            found = "" if wrong else kill(folder, mutant.finders)
            shutil.copyfile(ROOT / path, folder / path)
            print(f"{mutant}: {found or wrong or 'SURVIVED'}", flush=True)
            left += not found
    return left


if __name__ == "__main__":
    sys.exit(main())
