"""Break the package in one place at a time; the suite must fail each time.

    python -P tests/mutants/mutate.py                    all of mutants.txt
    python -P tests/mutants/mutate.py pool.c "in place"  rows whose file or words contain a PART
    python -P tests/mutants/mutate.py --list             is each row's place found? runs nothing

Run in an environment that has what the tests need, in a git clone. Each mutant is built in a copy
of the tree. First come the checks of the row's heading (`verify` or test files), then the fast
tests, then the whole suite but test_example.py, until something fails; hanging counts as failing.
The exit status is 1 if one survived or does not compile, if the text of a row does not occur
exactly once where the row says, or if a heading names tests that do not exist. A fast test runs
--list.

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

PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
FAST = ["-m", "quick"]
REST = ["--slow", "--ignore=tests/test_example.py"]
#: Seconds after which tests count as hanging.
HANGS = 1800
#: pytest's exit status if it collects no test, as from a file that needs a missing package.
NO_TESTS = 5
#: A token of source text. Space between tokens does not matter.
TOKENS = re.compile(r"\w+|\S")


@dataclass(frozen=True)
class Mutant:
    """A row: where, what it means, text that occurs there once, what changes of it, into what."""

    file: str
    finders: tuple[str, ...]
    name: str
    words: str
    before: str
    old: str
    new: str
    after: str

    def __str__(self):
        return f"{self.file}: {self.name}: {self.words}"

    def applied(self, text):
        """The text of the file, broken; LookupError if the place is not found, or found twice."""
        parts = (pattern_of(part) for part in (self.before, self.old, self.after))
        pattern = re.compile(r"\s*".join(f"({part})" for part in parts))
        defined = [*(in_python if ".p" in self.file else in_c)(text, self.name)]
        if not defined:
            raise LookupError(f"no definition of {self.name}")
        spans = {match.span(2) for place in defined for match in pattern.finditer(text, *place)}
        if len(spans) != 1:
            raise LookupError(f"{len(spans)} places in {self.name}, not one")
        ((start, end),) = spans
        return text[:start] + self.new + text[end:]


def in_python(text, name):
    """Where Python or Cython defines a name: what follows its line and is indented more."""
    kinds = r"(?:async def|def|class|cp?def)\b[^=\n]*?"
    head = rf"^( *)(?:{kinds}\b{name}\b\s*[(:]|(?:cdef )?\w* ?\b{name}\b.*=)"
    for line in re.finditer(head, text, re.MULTILINE):
        after = re.compile(rf"^ {{0,{len(line[1])}}}[^\s)\]}}]", re.MULTILINE)
        end = after.search(text, line.end())
        yield line.start(), end.start() if end else len(text)


def in_c(text, name):
    """Where C defines a name: what ends with a brace in the first column, after a head that has the
    name, or with its value; a macro; a declaration.
    """
    ends = r"^\}.*\n|^#define (?:.*\\\n)*.*\n|^\S.*;.*\n"
    start = 0
    for end in re.finditer(ends, text, re.MULTILINE):
        head = text[start : end.end()]
        if not end[0].startswith("#"):
            head = head.partition("{")[0] + " ".join(re.findall(r"\w+(?= =)", head))
        if re.search(rf"\b{name}\b", head):
            yield start, end.end()
        start = end.end()


def pattern_of(source):
    """A regular expression that matches the same tokens, whatever the space between them."""
    tokens = TOKENS.findall(source)
    return r"\s*".join(rf"\b{t}\b" if re.match(r"\w", t) else re.escape(t) for t in tokens)


def table():
    file, finders, rows = "", (), []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\[(\S+)\]((?: \w+)*)", line):
            file, finders = heading[1], tuple(heading[2].split())
        elif line and not line.startswith("#"):
            name, words, change = re.fullmatch(r"(\w+): (.*?) \| (.*)", line).groups()
            if "«" not in change:
                change = f"«{change}»"
            before, both, after = re.fullmatch("(.*)«(.*)»(.*)", change).groups()
            old, new = re.fullmatch("(.*?) => ?(.*)", both).groups()
            rows.append(Mutant(file, finders, name, words, before, old, new, after))
    return rows


def tree():
    """The files of the repository, as paths from its root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, listed.split("\0")[:-1]) if (ROOT / path).is_file()]


def run(folder, *arguments):
    """Run Python in a folder; return why it failed, or ''."""
    variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"cwd": folder, "env": variables, "capture_output": True, "text": True}
    try:
        done = subprocess.run([sys.executable, *arguments], timeout=HANGS, **options)
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode in (0, NO_TESTS):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, re.MULTILINE)
    errors = done.stderr[-2000:] if done.returncode > 0 else ""  # a crash prints only its stack
    return failed[1] if failed else f"exit status {done.returncode} {errors}"


def build(folder):
    """Compile; return why that failed, or ''."""
    reason = run(folder, "setup.py", "--quiet", "build_ext", "--inplace")
    return reason and f"DOES NOT COMPILE: {reason}"


def checks(finders):
    """Arguments of Python for what may find a mutant, the likeliest first."""
    files = [f"tests/{name}.py" for name in finders if name != "verify"]
    kernels = [["-m", "bn_ext", "verify"], ["tests/oracle"]] if "verify" in finders else []
    parts = [["--slow", *files], FAST, REST][not files :]
    return [*kernels, *([*PYTEST, *part] for part in parts)]


def main(arguments=None):
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
        files = [path for path in paths if path.as_posix().endswith(f"/{mutant.file}")]
        tests = {Path(f"tests/{name}.py") for name in mutant.finders if name != "verify"}
        try:
            if len(files) != 1 or not tests <= {*paths}:
                raise LookupError("no such file, or no such tests")
            broken[mutant] = files[0], mutant.applied((ROOT / files[0]).read_text("utf-8"))
        except LookupError as error:
            print(f"{mutant}: NOT FOUND: {error}", flush=True)
    left = 0 if options.list else try_mutant(broken, paths)
    print(f"{len(broken)} of {len(chosen)} places found; {left} survived or did not compile")
    return int(left > 0 or len(broken) < len(chosen))


def try_mutant(broken, paths):
    """Try each mutant; return how many survive or do not compile."""
    left = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        wrong = build(folder) or run(folder, *PYTEST, *FAST)
        if wrong:
            raise SystemExit(f"before any mutation: {wrong}")
        for mutant, (path, text) in broken.items():
            (folder / path).write_text(text, "utf-8")
            wrong, finder = build(folder), ""
            for arguments in () if wrong else checks(mutant.finders):
                finder = finder or run(folder, *arguments)
            shutil.copyfile(ROOT / path, folder / path)
            print(f"{mutant}: {finder or wrong or 'SURVIVED'}", flush=True)
            left += not finder
    return left


if __name__ == "__main__":
    sys.exit(main())
