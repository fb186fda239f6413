"""Compiles the C part: the only place that lists its sources, levels and flags.

setup.py uses this module to build the extension. As a command, it serves jobs that link the C code
to something else. It needs only Python and a compiler:

    python3 build_c.py [--source DIR] [--machine NAME] OUT CC [FLAG ...]

The command compiles all C files of DIR (default: src_c) into objects in the folder OUT, with the
compiler CC (quote several words), for a machine by the name that platform.machine() gives it. Each
FLAG comes after the usual ones, so it can override them. The command prints the objects' paths, one
per line. With --database FILE, it writes its commands, for editors.

setup.py and the command read these environment variables:

    BN_EXT_BUILD_ISAS   levels to build, such as "baseline,v3"; default: all of the machine
    BN_EXT_OPENMP       0: do without OpenMP, on one thread; 1: fail if the compiler lacks it
    BN_EXT_WERROR       1: more warnings than usual, each an error
    MAX_JOBS            compilers at once; default: one for each CPU that the process may use
"""

import argparse
import errno
import hashlib
import json
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ModuleNotFoundError:
    import msvcrt  # Windows' locks

SOURCE = Path(__file__).resolve().parent / "src_c"

# The levels of x86-64, lowest first: name -> compiler flags. Only CPUs without AVX2, most of them
# from before 2013, use the baseline, so its size matters more than its speed.
X86_LEVELS = {
    "baseline": ["-march=x86-64", "-mtune=generic", "-O2"],
    "v3": ["-march=x86-64-v3", "-mtune=generic"],
    "v4": ["-march=x86-64-v4", "-mtune=generic", "-mprefer-vector-width=512"],
}


def target():
    """System and machine to build for; in a cross build, _PYTHON_HOST_PLATFORM names them."""
    name = sysconfig.get_platform()  # linux-x86_64, win-amd64, macosx-11.0-arm64
    # python.org's Python for macOS has two machines; our objects are of one, and so is the wheel.
    if name.endswith("-universal2"):
        name = name.replace("universal2", platform.machine())
        os.environ["_PYTHON_HOST_PLATFORM"] = name
    machine = name.rpartition("-")[2]
    return name.partition("-")[0], {"amd64": "x86_64"}.get(machine, machine)


SYSTEM, MACHINE = target()

# These come after the user's CFLAGS, because the promise of equal bits depends on them.
FLAGS = ["-std=gnu11", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fvisibility=hidden", "-Wno-psabi"]
# Otherwise gcc may link start-up code that flushes subnormal numbers to zero.
LINK = ["-std=gnu11", "-O3", "-fno-fast-math", "-fno-unsafe-math-optimizations"]
# The user's flags that cannot change bits, nor the floating-point mode of the process. All others
# are left out, because later flags cannot undo them all: not those of gcc's -specs, of clang's
# -Xclang, or of pragmas in a file to -include. And each compiler stops at flags of another.
_PATH = r"(@(rpath|\w+_path)|[^-@,])[^,]*"  # for the linker: neither a flag nor a file of flags
_LINKER = (
    # with a path or a word
    rf"(z|rpath(-link)?|soname|install_name)[=,]{_PATH}",
    # alone or with =value
    r"([sSx]|O\d|(no-)?(as-needed|allow-shlib-undefined|undefined|fatal-warnings)|gc-sections"
    r"|sort-\w+|(en|dis)able-new-dtags|Bsymbolic[\w-]*|build-id|hash-style|exclude-libs|strip-\w+"
    r"|export-dynamic|warn-\w+|no-keep-memory|dead_strip\w*|headerpad\w*)(=[^,]*)?",
)
_FEATURES = (  # of -f, or -fno-
    # hardening and sanitizers
    r"stack-.*|cf-protection.*|hardened|trivial-auto-var-init=.*|zero-call-used-regs=.*|sanitize.*",
    # debugging and profiling
    r"omit-frame-pointer|debug-.*|var-tracking.*|(test-)?coverage.*|(auto-)?profile.*",
    # code that computes the same
    r"optimize-sibling-calls|exceptions|(asynchronous-)?unwind-tables|tree-vectorize|common"
    r"|wrapv|strict-(overflow|aliasing)|delete-null-pointer-checks",
    # objects and symbols
    r"pic|PIC|pie|PIE|plt|semantic-interposition|visibility.*|(function|data)-sections"
    r"|lto.*|fat-lto-objects|use-linker-plugin|use-ld=.*",
    # the same output everywhere; messages
    r"\w+-prefix-map=.*|random-seed=.*|ident|diagnostics-.*|(color|caret)-diagnostics"
    r"|message-length=.*",
)
_HARMLESS = (
    r"-g[\w=+-]*",
    r"-O[0-3gsz]?",
    r"-W(?![alp],).*|-Wp(,-[DU][^,]*)+",  # warnings; -Wp hands on macros alone
    r"-[BDILU].+|-l[^:]+|-std=.*",
    r"-(bundle|dynamiclib|pedantic|pipe|pthread|rdynamic|s|shared|(shared|static)-lib\w+|v|w)",
    r"--(target|sysroot|gcc-toolchain)=.*|-?-coverage|-m(mac|i)os\w*-version-min=.*",
    r"-m(64|32|(no-)?omit-leaf-frame-pointer|(arch|tune|cpu|cmodel|branch-protection)=.*)",
    rf"-f(no-)?({'|'.join(_FEATURES)})",
    rf"-Wl(,--?({'|'.join(_LINKER)}))+",
)
LET_IN = re.compile("|".join(_HARMLESS))
# The same, with a value as the next word. Compilers read more flags from a word that begins with @.
LET_IN_WITH_VALUE = re.compile(
    r"-([BDILUl]|arch|idirafter|iquote|isysroot|isystem|target|undefined|-sysroot)\n[^-@:].*"
    rf"|-Wl,--?(z|rpath(-link)?|soname|install_name)\n-Wl,{_PATH}"
)
#: Flags that were left out, and reported.
REPORTED = set()
# Python's own flags make signed integers wrap, which hides from compilers how addresses relate.
# With -fno-wrapv, sums over 40 elements per channel take 0.7 of the time at v3.
NO_WRAP = ["-fno-wrapv"]
# First flag: the C code around the kernels fills small structures field by field and reads them
# back. If fields were read as vectors, loads would wait for the stores, which would take a fifth of
# the time of reducing a short row. Second flag: the code that runs once per channel (operations) is
# full of selects, which gcc vectorizes only if exception flags do not matter. They do not matter,
# because each call restores the flags of its caller.
SERIAL = ["-fno-tree-slp-vectorize", "-fno-trapping-math"]

# With a stack protector, batch_norm_backward with sums= takes a sixth longer at v4. Kernels hardly
# need one: each copy to their buffers on the stack has a constant size. Where it pays, the source
# unrolls their loops: -O3 would make them 4 % larger and not faster (measured).
KERNEL = ["-fno-stack-protector", "-O2", "-ftree-vectorize"]
#: Folders of sources that are compiled once per level, and their own flags.
PER_LEVEL = {"kernels": KERNEL, "operations": SERIAL}


def levels(machine=MACHINE):
    """{name: flags} of the levels to build."""
    known = X86_LEVELS if machine == "x86_64" else {"baseline": []}
    wanted = os.environ.get("BN_EXT_BUILD_ISAS")
    if wanted is None:
        return known
    names = [name.strip() for name in wanted.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown or "baseline" not in names:
        raise SystemExit(
            f"BN_EXT_BUILD_ISAS: expected baseline, which every CPU can run, and others of "
            f"{', '.join(known)}, got {wanted!r}"
        )
    return {name: flags for name, flags in known.items() if name in names}


def warnings():
    """The flags that BN_EXT_WERROR asks for."""
    strict = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]
    return strict if os.environ.get("BN_EXT_WERROR") == "1" else []


class System(NamedTuple):
    """Flags that differ by operating system. Only setup.py uses them."""

    #: For the compiler and for the linker: they make our mistakes harder to exploit. Not for
    #: sanitizers, which see more without them.
    hardening: list[str]
    linker_hardening: list[str]
    #: For the linker: leave out symbols.
    strip: list[str]


_CANARIES = ["-fstack-protector-strong"]
_FORTIFIED = [*_CANARIES, "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
_LINUX = System(_FORTIFIED, ["-Wl,-z,relro,-z,now"], ["-Wl,-s"])
SYSTEMS = {
    "macosx": System(_FORTIFIED, [], ["-Wl,-x"]),
    # Its linkers make addresses random, and data no code, without being asked.
    "win": System(_CANARIES, [], ["-s"]),
}


def system():
    """The system to build for; what is not in the table links as Linux does."""
    compiler, linker, strip = SYSTEMS.get(SYSTEM, _LINUX)
    if (SYSTEM, MACHINE) == ("linux", "x86_64"):
        # The linker marks a feature only if all objects are marked for it, and Debian's crti.o
        # is not. Shadow stacks can be forced, because they need nothing from crti.o; branch
        # targets cannot.
        return System([*compiler, "-fcf-protection"], [*linker, "-Wl,-z,shstk"], strip)
    if (SYSTEM, MACHINE) == ("linux", "aarch64"):
        return System([*compiler, "-mbranch-protection=standard"], linker, strip)
    return System(compiler, linker, strip)


class OpenMP(NamedTuple):
    """Flags for the compiler, in place of a unit's -fopenmp, and for the linker."""

    compiler: list[str]
    linker: list[str]


def openmp_candidates():
    """How a compiler may have OpenMP, likeliest first."""
    yield OpenMP(["-fopenmp"], ["-fopenmp"])
    if SYSTEM != "macosx":
        return
    # Apple's clang can compile it, but lacks omp.h and libomp. CPPFLAGS and LDFLAGS may say where
    # they are; else they are Homebrew's, on either machine, or conda's.
    compiler = ["-Xpreprocessor", "-fopenmp"]
    yield OpenMP(compiler, ["-lomp"])
    for prefix in ("/opt/homebrew/opt/libomp", "/usr/local/opt/libomp", sys.base_prefix):
        library = f"{prefix}/lib"
        linker = [f"-L{library}", f"-Wl,-rpath,{library}", "-lomp"]
        yield OpenMP([*compiler, f"-I{prefix}/include"], linker)


@cache
def find_openmp(compiler, flags=(), linker=()):
    """OpenMP, as this compiler takes it, and this linker, if one is named. Without it, say so.

    All are commands, as tuples, because it is said once.
    """
    wanted = os.environ.get("BN_EXT_OPENMP")
    if wanted not in (None, "0", "1"):
        raise SystemExit(f"BN_EXT_OPENMP: expected 0 or 1, got {wanted!r}")
    if wanted == "0":
        return OpenMP([], [])
    errors = ""
    with tempfile.TemporaryDirectory() as folder:
        source, made, library = (str(Path(folder, name)) for name in ("a.c", "a.o", "a.out"))
        Path(source).write_text("#include <omp.h>\nint f(void) { return omp_get_num_procs(); }\n")
        for openmp in openmp_candidates():
            commands = [[*compiler, *openmp.compiler, *flags, "-c", source, "-o", made]]
            if linker:
                commands.append([*linker, made, *openmp.linker, "-o", library])
            for command in commands:
                done = subprocess.run(command, capture_output=True, text=True, errors="replace")
                if done.returncode:
                    errors = errors or done.stderr  # of the likeliest way
                    break
            else:
                return openmp
    if wanted:
        command = shlex.join(compiler)
        raise SystemExit(f"BN_EXT_OPENMP=1, but {command} has no OpenMP:\n{errors.strip()}")
    say(
        "the compiler has no OpenMP, so bn_ext will compute on one thread, with the same bits. "
        "docs/installation.md says how to get OpenMP"
    )
    return OpenMP([], [])


class Unit(NamedTuple):
    """One object: its name, its source, and its own flags."""

    name: str
    path: Path
    flags: list[str]


def units(source=SOURCE, machine=MACHINE):
    """All objects of the C part: kernels and operations once per level, the others once."""
    built = levels(machine)
    common = [*FLAGS, *NO_WRAP, *warnings(), f"-I{source}"]
    table = "-DBN_LEVELS(X)=" + " ".join(f"X({level})" for level in built)
    for path in sorted(Path(source).rglob("*.c")):
        folders = path.relative_to(source).with_suffix("").parts
        name = "-".join(folders)
        if folder_flags := PER_LEVEL.get(folders[0]):
            for level, flags in built.items():
                own = [*common, *folder_flags, *flags, f"-DBN_LEVEL={level}"]
                yield Unit(f"{name}-{level}", path, own)
        else:
            yield Unit(name, path, [*common, *SERIAL, "-fopenmp", table])


def levels_alone(built):
    """The units that are compiled once per level, and the one that chooses among them."""
    return [
        unit for unit in built if unit.name == "call-dispatch" or "-DBN_LEVEL=" in unit.flags[-1]
    ]


def cython_unit(name, path, include_dirs):
    """The unit of Cython's C file for an extension, with the folders of Python's headers."""
    # Cython declares a thread state that shadows another one.
    shadow = ["-Wno-shadow"] if warnings() else []
    flags = [*FLAGS, "-O2", *SERIAL, *warnings(), *shadow]
    # A virtual environment's include folder has nothing for us. As a flag, it would differ between
    # environments, so that each would compile the file again.
    own = None if sys.prefix == sys.base_prefix else os.path.join(sys.exec_prefix, "include")
    flags += [f"-I{folder}" for folder in (SOURCE.name, *include_dirs) if folder != own]
    return Unit(name, Path(path), flags)


def usable(compiler):
    """A compiler's command, if there is such a program, without the flags that are left out."""
    if not shutil.which(compiler[0]):
        raise SystemExit(
            f"no C compiler: {compiler[0]!r} not found; install gcc or clang, or set CC"
        )
    return harmless(compiler)


def harmless(command):
    """A command without the flags that are left out. Says once which these are."""
    words = deque(command)
    kept, left_out = [], []
    # First comes the program, such as "ccache gcc" or "python -m ziglang cc".
    while words and (words[0][:1] not in ("-", "@") or words[0] == "-m"):
        word = words.popleft()
        (left_out if os.path.isfile(word) and not shutil.which(word) else kept).append(word)
    while words:
        word = words.popleft()
        if LET_IN.fullmatch(word):
            kept.append(word)
        elif words and LET_IN_WITH_VALUE.fullmatch(f"{word}\n{words[0]}"):
            value = words.popleft()
            kept += [word, value] if word != "-arch" or value == MACHINE else []
        else:
            left_out.append(word)
    new = [word for word in dict.fromkeys(left_out) if word not in REPORTED]
    if new:
        REPORTED.update(new)
        say(f"flags left out, as they may change bits: {shlex.join(new)}")
    return kept


@contextmanager
def alone(folder):
    """Wait until no other build is at work in a folder. A process that ends gives up its lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        with suppress(OSError):  # Lustre and some NFS have no locks
            lock(file)
        yield


def lock(file):
    """Wait for the lock of a file, which is held until the file is closed."""
    if os.name == "posix":
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    while True:
        try:
            return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        except OSError as error:
            if error.errno != errno.EDEADLOCK:  # ten seconds have passed
                raise


def say(text):
    """Tell how far the build is; `pip install -v` shows it."""
    print(text, file=sys.stderr, flush=True)


def cpus(*places):
    """How many CPUs this process may use: those of its affinity, or its control groups' quota."""
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    # Not as a part of bn_ext, which may not be compiled yet.
    groups = runpy.run_path(str(SOURCE.parent / "bn_ext" / "_groups.py"))
    return min(len(affinity(0)), groups["cpu_quota"](*places) or sys.maxsize)


def jobs():
    """How many compilers run at once."""
    number = os.environ.get("MAX_JOBS", "")
    if number and not (number.isdecimal() and int(number)):
        raise SystemExit(f"MAX_JOBS: expected a whole number, 1 or more, got {number!r}")
    return int(number or cpus())


def parts_of_kernels(built):
    """For editors, as units: the .inc files, each of which includes what it needs."""
    kernel = next(unit for unit in built if unit.name.startswith("kernels-f32-"))
    for path in sorted(kernel.path.parent.rglob("*.inc")):
        # What a part defines is used in others.
        yield Unit(path.stem, path, [*kernel.flags, "-Wno-unused", "-xc-header"])


def compile_units(built, out, compiler, flags, openmp, database=None):
    """Compile units to objects; keep an object if its command and its sources have not changed.

    `openmp` is what find_openmp has found. `database` is a compile_commands.json to write, from
    which editors learn the commands.
    """
    out.mkdir(parents=True, exist_ok=True)

    def command_of(unit):
        command = [*compiler]
        for flag in unit.flags:
            command += openmp.compiler if flag == "-fopenmp" else [flag]
        command += [*flags, "-MMD", "-MF", str(out / f"{unit.name}.d")]
        return [*command, "-c", str(unit.path), "-o", str(out / f"{unit.name}.o")]

    def files_of(unit):
        return [out / f"{unit.name}.{kind}" for kind in ("o", "d", "command")]

    def state(unit):
        """The command, and a digest of each text that it read; nothing if one is missing."""
        _, sources, _ = files_of(unit)
        try:
            # In make's syntax: the object, a colon, and its sources; paths may have backslashes.
            words = re.split(r"(?<!\\)\s+", sources.read_text().replace("\\\n", " ").strip())
            needed = [word.replace("\\ ", " ") for word in words[1:]]
            # Digests, not times, because Cython writes the same text again and again.
            digests = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in needed]
        except OSError:  # nothing compiled yet, or a name that make spells in another way
            return ""
        return "\n".join([shlex.join(command_of(unit)), *digests])

    def is_new(unit):
        compiled, _, stamp = files_of(unit)
        old = stamp.read_text() if compiled.is_file() and stamp.is_file() else ""
        return not old or old != state(unit)

    def make(unit):
        *_, stamp = files_of(unit)
        stamp.unlink(missing_ok=True)
        subprocess.run(command_of(unit), check=True)
        stamp.write_text(state(unit))
        say(f"{next(done)} of {len(new)} compiled: {unit.name}")

    if database:
        entries = [
            {"directory": os.getcwd(), "file": str(unit.path), "arguments": command_of(unit)}
            for unit in (*built, *parts_of_kernels(built))
        ]
        database.write_text(json.dumps(entries, indent=1) + "\n")
    done, new, most = count(1), [unit for unit in built if is_new(unit)], jobs()
    if new:
        say(f"compiling {len(new)} files, {most} at once; all take one to five minutes on two CPUs")
    try:
        with ThreadPoolExecutor(most) as pool:
            list(pool.map(make, new))
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"build_c.py: failed: {shlex.join(error.cmd)}") from None
    return [files_of(unit)[0] for unit in built]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--source", type=Path, default=SOURCE, help="default: src_c")
    parser.add_argument("--machine", default=MACHINE, help="to compile for; default: %(default)s")
    parser.add_argument("--database", type=Path, help="a file of its commands, for editors")
    parser.add_argument("out", type=Path, help="the folder for the objects")
    parser.add_argument("cc", help="the compiler: one word, or several in quotes")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="override the usual ones")
    args = parser.parse_args()
    built = list(units(args.source, args.machine))
    with alone(args.out):
        compiler = usable(shlex.split(args.cc))
        openmp = find_openmp(tuple(compiler), tuple(args.flags))
        objects = compile_units(built, args.out, compiler, args.flags, openmp, args.database)
    print(*objects, sep="\n")


if __name__ == "__main__":
    main()
