"""A clone: its import, compiled or not, and the versions of its linters."""

import base64
import email
import errno
import hashlib
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from fp_modes import X86
from processes import python
from tree import ROOT, load

import bn_ext
from bn_ext import _core

PACKAGE = Path(bn_ext.__file__).parent


def test_hooks_have_the_versions_of_the_linters():
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)
    listed = project["project"]["optional-dependencies"]["lint"]
    listed += project["dependency-groups"]["workflows"]
    pins = dict(re.findall(r"([\w-]+)==([\d.]+)", " ".join(listed)))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    revisions = re.findall(r"/([\w-]+)\n +rev: v([\d.]+)", hooks)
    names = {name.removeprefix("mirrors-").removesuffix("-pre-commit"): v for name, v in revisions}
    assert len(pins) == 5
    assert pins == {name: names[name] for name in pins}


class Item:
    def __init__(self, name, **params):
        self.nodeid, self.callspec = f"{name}[{params}]", SimpleNamespace(params=params)


def test_in_the_fast_tests_each_two_values_meet():
    """Of three parameters or more; other tests are all there."""
    names, kinds, sizes = ["a", "b", "c"], [int, float, str], [2**70, 2**80, 2**90, 2**100]
    cube = [Item("f", n=n, k=k, s=s) for n, k, s in itertools.product(names, kinds, sizes)]
    plane = [Item("g", n=n, k=k) for n, k in itertools.product(names, kinds)]
    beyond = load(ROOT / "tests" / "conftest.py").beyond_pairs([*cube, *plane])
    kept = [item.callspec.params for item in cube if item not in beyond]
    assert not beyond & {*plane}
    assert len(kept) <= 15
    for first, second in itertools.combinations("nks", 2):
        met = {(params[first], params[second]) for params in kept}
        everything = [item.callspec.params for item in cube]
        assert len(met) == len({(params[first], params[second]) for params in everything})


def test_each_test_of_teams_says_how_many_threads_it_had():
    asks = re.compile(r'num_threads"?\]?[=:](?! *[01]\b)')
    tells = re.compile(r"team_of|threads_used|last_call|assert_right")
    silent = []
    for path in (ROOT / "tests").glob("test_*.py"):
        tests = re.split(r"^(?=\S)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        named = [text for text in tests if text.startswith("def test_")]
        silent += [text for text in named if asks.search(text) and not tells.search(text)]
    assert silent == []


#: A file of a wheel -> the licenses in its metadata, the texts that it has.
HELD = {
    "bn_ext/_core.so": ("BSD-3-Clause", ["LICENSE"]),
    "bn_ext.libs/libgomp-98df74fd.so.1.0.0": (
        "BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
        ["LICENSE", "LICENSE-libgomp.txt"],
    ),
    "bn_ext/.dylibs/libomp.dylib": (
        "BSD-3-Clause AND Apache-2.0 WITH LLVM-exception",
        ["LICENSE", "LICENSE-libomp.txt"],
    ),
    "bn_ext/libomp.dll": (
        "BSD-3-Clause AND Apache-2.0 WITH LLVM-exception",
        ["LICENSE", "LICENSE-libomp.txt"],
    ),
}


@pytest.mark.parametrize("file", HELD)
def test_a_wheel_has_the_license_of_what_it_holds(tmp_path, file):
    """And of nothing else."""
    wheel, folder = tmp_path / "bn_ext-1.0-cp311-cp311-any.whl", "bn_ext-1.0.dist-info"
    metadata = "Name: bn_ext\nLicense-Expression: BSD-3-Clause\nLicense-File: LICENSE\n\nText\n"
    written = {file: "", f"{folder}/METADATA": metadata, f"{folder}/licenses/LICENSE": "BSD"}
    record = "".join(f"{name},sha256=0,0\n" for name in written) + f"{folder}/RECORD,,\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**written, f"{folder}/RECORD": record}.items():
            archive.writestr(name, text)
    done = python(ROOT / ".ci" / "licenses.py", tmp_path)
    assert done.returncode == 0, done.stderr
    expression, names = HELD[file]
    with zipfile.ZipFile(wheel) as archive:
        made = {name: archive.read(name) for name in archive.namelist()}
    told = email.message_from_bytes(made[f"{folder}/METADATA"])
    assert told["License-Expression"] == expression
    assert told.get_all("License-File") == names
    assert told.get_payload() == "Text\n"
    assert {name for name in made if "licenses" in name} == {
        f"{folder}/licenses/{name}" for name in names
    }
    for name in names[1:]:
        assert made[f"{folder}/licenses/{name}"] == (ROOT / name).read_bytes()
    for line in made[f"{folder}/RECORD"].decode().splitlines():
        name, digest, size = line.split(",")
        if digest not in ("", "sha256=0"):
            right = base64.urlsafe_b64encode(hashlib.sha256(made[name]).digest())
            assert (digest, size) == (f"sha256={right.decode().rstrip('=')}", str(len(made[name])))


@pytest.fixture
def clone(tmp_path):
    """The package beside an empty src_c, by which it is known as a clone."""
    shutil.copytree(PACKAGE, tmp_path / "bn_ext", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src_c").mkdir()
    return tmp_path


def test_a_built_clone_imports_silently(clone):
    assert imported(clone) == (0, f"{clone / 'bn_ext'}\n", "")


def imported(folder, *options, path=None):
    code = "import bn_ext; print(bn_ext.__path__[0])"
    done = python(*options, "-c", code, cwd=folder, PYTHONPATH=path, PYTHONSAFEPATH=None)
    return done.returncode, done.stdout, done.stderr


VERSION = f"Python {sys.version_info.major}.{sys.version_info.minor}"
UNBUILT = (
    f"ImportError: bn_ext in {{}} is source code that has not been compiled for {VERSION}: run "
    "'python -m pip install -e .' there, or start Python in another folder to import an installed "
    "bn_ext"
)
#: How a package has no core, and what it says.
WITHOUT_CORE = {
    "unbuilt": UNBUILT,
    "unbuilt, without NumPy": UNBUILT,
    "installed": f"ImportError: bn_ext in {{}} has no compiled part for {VERSION}: reinstall it",
    "within, another import fails": "ModuleNotFoundError: No module named 'no_such_module'",
}


@pytest.mark.parametrize("kind", WITHOUT_CORE)
def test_a_package_without_its_core_says_what_to_do(clone, kind):
    (clone / "bn_ext" / Path(_core.__file__).name).unlink()
    if kind == "installed":
        for sources in "src_c", "bn_ext/_core_src":
            shutil.rmtree(clone / sources)
    elif kind == "within, another import fails":
        (clone / "bn_ext" / "_core.py").write_text("import no_such_module")
    status, _, printed = imported(clone, *["-S"] * (kind == "unbuilt, without NumPy"))
    assert (status, printed.splitlines()[-1]) == (1, WITHOUT_CORE[kind].format(clone))
    assert printed.count("ModuleNotFoundError") == (kind == "within, another import fails")


#: The folders of src_c, lowest floor first.
FLOORS = [["base"], ["kernels", "threads"], ["operations", "exact"], ["call"], ["arrays"]]


def test_folders_of_c_include_only_from_floors_below():
    floor = {folder: height for height, names in enumerate(FLOORS) for folder in names}
    sources = [path for path in (ROOT / "src_c").rglob("*") if path.is_file()]
    assert {path.relative_to(ROOT / "src_c").parts[0] for path in sources} == floor.keys()
    for path in sources:
        for folder in re.findall(r'^#include "([^/"]+)', path.read_text(), re.MULTILINE):
            own = path.relative_to(ROOT / "src_c").parts[0]
            assert folder == own or floor[folder] < floor[own], f"{path} includes from {folder}"


def test_parts_of_the_core_call_only_what_stands_above_them():
    folder = ROOT / "bn_ext" / "_core_src"
    parts = re.findall(r'^include "(.*)"', (folder / "core.pyx").read_text(), re.MULTILINE)
    texts = [re.sub(r'"""(?s:.*?)"""|#.*', "", (folder / part).read_text()) for part in parts]
    below: set[str] = set()
    for part, text in reversed([*zip(parts, texts, strict=True)]):
        called = {*re.findall(r"\w+(?=\()", text)}
        assert not called & below, f"{part} calls {called & below}"
        below |= {*re.findall(r"^c?p?def [^=(\n]*?(\w+)\(", text, re.MULTILINE)}


def test_every_mutant_has_its_place(monkeypatch, capsys):
    """A change of a name or of a line says at once which rows of tests/mutants go with it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    mutate = load(ROOT / "tests" / "mutants" / "mutate.py")
    assert mutate.main(["--list"]) == 0, capsys.readouterr().out
    assert len(mutate.table()) <= 200


PYTHON = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"
C = """int f(void)
{
    return 1;
}

int g(void) {
    if (x) return 1;
    return 1;
}
#define F \\
    return 1
#define G return 1
"""


@pytest.mark.parametrize(
    ("file", "name", "broken"),
    [
        ("a.py", "g", "g():\n    return 2\n"),
        ("a.py", "h", "no definition of h"),
        ("a.c", "f", "f(void)\n{\n    return 2"),
        ("a.c", "g", "2 places in g, not one"),
        ("a.c", "G", "#define G return 2"),
        ("a.c", "x", "no definition of x"),
    ],
)
def test_a_mutant_is_within_its_function(file, name, broken):
    mutate = load(ROOT / "tests" / "mutants" / "mutate.py")
    row = mutate.Mutant(file, (), name, "", "return", "1", "2", "")
    try:
        outcome = row.applied(PYTHON if file == "a.py" else C)
    except LookupError as error:
        outcome = str(error)
    assert broken in outcome


#: What gcc knows of the flags that would change bits or the floating-point mode.
CFLAGS = shlex.split("""
-Ofast -ffast-math --fast-math -funsafe-math-optimizations -fassociative-math -freciprocal-math
-ffinite-math-only -fno-signed-zeros -fsingle-precision-constant -fexcess-precision=fast
-ffp-contract=fast -fno-trapping-math -frounding-math -fsignaling-nans
""")
CFLAGS += ["-fopenmp"]  # ours says it
CFLAGS += ["-mfpmath=387", "-mfpmath=both", "-mpc32", "-mno-sse2"] * X86
CLANG = shlex.split("""
-ffp-model=fast -fapprox-func -ffp-eval-method=extended -fno-honor-nans -fno-honor-infinities
-fdenormal-fp-math=preserve-sign -mdaz-ftz
""")
#: Words that hide more flags, or files that set the mode; flags that no compiler has.
HIDDEN = shlex.split("""
@flags -I @flags -undefined -mpc32 -Xclang -ffast-math -mllvm -fp-contract -specs=flags -wrapper
fast,-m -include pragmas.h -ffoo -Wl,@flags -Wl,-z,now,@flags -Wl,crtfastmath.o
-Wl,--as-needed,crtfastmath.o -Wl,-plugin,flags.so -l:crtfastmath.o crtfastmath.o -Wp,-ffast-math
-O4 -Wl,-soname -Wl,-plugin -Wl,-rpath-link -Wl,@flags -Wl,-z -Wl,now,x.o
""")
#: What may follow the name of a path, and other flags that have nothing to do with bits.
OTHERS = shlex.split("""
-ffile-prefix-map=/math=/fp-precision -g -fno-plt -flto -fcf-protection -march=native
-fstack-protector-strong --sysroot=/fast-math -Wfloat-equal -isystem /fast-math -idirafter
/fast-math -DFAST -U FAST -pthread -fsanitize=address,undefined -fno-sanitize-recover=undefined
--coverage -fPIC -fno-omit-frame-pointer -fprofile-update=atomic -Wl,-rpath,@loader_path -O0
-Wl,-z,relro,-z,now -Wl,-O1 -Wp,-D_FORTIFY_SOURCE=3 -B /fast-math -lm -Wl,-rpath -Wl,/fast-math
""")

#: A compiler and linker whose objects are the commands that made them.
COMPILER = f"""#!{sys.executable} -SE
import shlex, sys
words = sys.argv[1:]
after = lambda flag: words[words.index(flag) + 1]
text = "".join(open(word).read() for word in words if word.endswith(".o") and word != after("-o"))
if "-MF" in words:
    open(after("-MF"), "w").write("o: " + after("-c"))
open(after("-o"), "w").write(text + shlex.join(words) + chr(10))
"""


@pytest.fixture
def sources(tmp_path):
    """A copy of what a build reads, in which it may write."""
    pytest.importorskip("Cython", minversion="3.1")
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "sources"
    for folder in "bn_ext", "src_c", "tests/oracle":
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("*.so"))
    for name in "setup.py", "build_c.py", "pyproject.toml", "README.md":
        shutil.copy(ROOT / name, tree)
    for path in ROOT.glob("LICENSE*"):
        shutil.copy(path, tree)
    compiler = tmp_path / "cc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    return tree


def build(sources, *target, **environment):
    variables = {"CC": str(sources.parent / "cc"), **environment}
    done = python(
        "setup.py", "build_ext", *(target or ("--build-lib", "made")), cwd=sources, **variables
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", ["CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED"])
def test_flags_that_change_bits_reach_neither_compiler_nor_linker(sources, name):
    compiler = sources.parent / "cc"
    mode = sources.parent / "crtfastmath.o"
    mode.touch()
    before = {"CC": [compiler, mode], "LDSHARED": [compiler, "-shared", mode]}.get(name, [])
    bad = [*map(str, before[-1:]), *CFLAGS, *CLANG, *HIDDEN]
    printed = build(sources, **{name: " ".join([*map(str, before[:-1]), *bad, *OTHERS])})
    left_out = re.findall(r"^flags left out, .*: (.*)", printed, re.MULTILINE)
    assert [line.split() for line in left_out] == [list(dict.fromkeys(bad))]  # once
    *compiled, linked = next((sources / "made").rglob("*.so")).read_text().splitlines()
    assert all(" -c " in line for line in compiled)
    assert "-fno-unsafe-math-optimizations" in linked
    for line in [linked] if name in ("LDFLAGS", "LDSHARED") else [compiled[0], linked]:
        from_user, _, from_build = (part.split() for part in line.partition(" -std=gnu11 "))
        assert not {*bad} - {"-I", "-undefined"} & {*from_user}
        if name != "CPPFLAGS" or line != linked:
            assert {*OTHERS} <= {*from_user}
        assert {"-O3", "-fno-fast-math"} <= {*from_build}


#: A compiler and linker that has no OpenMP but where a folder has it, as Apple's clang.
WITHOUT_OPENMP = """#!{sys.executable} -SE
import os, subprocess, sys
words, folder = sys.argv[1:], {folder!r}
if "-fopenmp" in words and words[words.index("-fopenmp") - 1] != "-Xpreprocessor":
    sys.exit("unsupported option '-fopenmp'")
if "-fopenmp" in words and f"-I{{folder}}/include" not in words:
    sys.exit("'omp.h' file not found")
if "-lomp" in words and f"-L{{folder}}/lib" not in words:
    sys.exit("library 'omp' not found")
sys.exit(subprocess.call([{compiler!r}, *words]))
"""


@pytest.fixture
def apples(sources):
    """Sources of which the compiler has OpenMP in no place but the folder libomp."""
    script = WITHOUT_OPENMP.format(
        sys=sys, folder=str(sources.parent / "libomp"), compiler=str(sources.parent / "cc")
    )
    compiler = sources.parent / "apples_clang"
    compiler.write_text(script)
    compiler.chmod(0o755)
    return sources, {"CC": str(compiler), "LDSHARED": f"{compiler} -shared"}


@pytest.mark.parametrize(("asked", "told"), [(None, 1), ("0", 0)])
def test_a_compiler_without_openmp(apples, asked, told):
    """The build says so once, unless that is what was asked for; tests have kernels of their own,
    which are linked later.
    """
    sources, compilers = apples
    printed = build(sources, "--inplace", **compilers, BN_EXT_OPENMP=asked)
    assert printed.count("the compiler has no OpenMP, so bn_ext will compute on one thread") == told
    made = next((sources / "bn_ext").rglob("*.so")).read_text()
    assert "threads/openmp.c" in made
    assert "openmp" not in made.replace("openmp.", "")


def test_openmp_that_must_be_there(apples):
    sources, compilers = apples
    for wanted, text in (
        ("1", r"BN_EXT_OPENMP=1, but \S*apples_clang .* has no OpenMP:\n.*option '-fopenmp'\n"),
        ("yes", "BN_EXT_OPENMP: expected 0 or 1, got 'yes'\n"),
    ):
        command = "setup.py", "build_ext", "--build-lib", "made"
        done = python(*command, cwd=sources, **compilers, BN_EXT_OPENMP=wanted)
        assert done.returncode == 1
        assert re.fullmatch(text, done.stderr)


def test_a_libomp_beside_apples_clang_is_used(apples, monkeypatch):
    """Such as that of the conda environment whose Python builds."""
    sources, compilers = apples
    folder = sources.parent / "libomp"
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "macosx-11.0-arm64")
    monkeypatch.setattr(sys, "base_prefix", str(folder))
    build_c = load(ROOT / "build_c.py")
    compiler, linker = ((word,) for word in compilers.values())
    openmp = build_c.find_openmp(compiler, linker=tuple(shlex.split(*linker)))
    assert openmp.compiler == ["-Xpreprocessor", "-fopenmp", f"-I{folder}/include"]
    assert openmp.linker == [f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib", "-lomp"]


@pytest.mark.skipif(not X86, reason="other machines have one level")
def test_builds_at_once_get_what_they_ask_for(sources):
    asked = ["baseline", "baseline,v3"]
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d"]
    variables = {"CC": str(sources.parent / "cc"), "PATH": "/usr/bin:/bin"}
    running = []
    for levels in asked:
        variables |= {"CFLAGS": f"-DFOR={levels}", "BN_EXT_BUILD_ISAS": levels}
        options = {"cwd": sources, "env": {**variables}, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen([*command, levels], **options))
    ends = [(process.communicate()[1], process.returncode) for process in running]
    assert [status for _, status in ends] == [0] * len(asked), ends
    for levels in asked:
        with zipfile.ZipFile(next((sources / levels).glob("*.whl"))) as wheel:
            libraries = [name for name in wheel.namelist() if name.endswith(".so")]
            text = wheel.read(libraries[0]).decode()
        assert len(libraries) == 1
        assert {*re.findall(r"-DFOR=(\S+)", text)} == {levels}
        assert {*re.findall(r"-DBN_LEVEL=(\w+)", text)} == {*levels.split(",")}


def test_editors_learn_the_command_of_every_source(sources):
    build(sources, "--inplace")
    commands = json.loads((sources / "compile_commands.json").read_text())
    c = [path for path in (sources / "src_c").rglob("*") if path.suffix in (".c", ".inc")]
    files = {str(path.relative_to(sources)) for path in c}
    assert files | {"bn_ext/_core_src/core.c"} == {command["file"] for command in commands}
    for command in commands:
        assert command["directory"] == str(sources)
        assert command["file"] in command["arguments"]
        assert "-DBN_LEVEL" in " ".join(command["arguments"]) or "kernels" not in command["file"]
    parts = [command for command in commands if command["file"].endswith(".inc")]
    for part in parts:  # alone: it includes what it needs
        source = part["file"]
        flags = [*part["arguments"][1:], "-Werror", "-Wno-unused", "-fsyntax-only"]
        flags[flags.index(source)], flags[flags.index("-xc-header")] = "-", "-xc"
        text = f'#include "{source.removeprefix("src_c/")}"'
        done = subprocess.run(
            ["gcc", *flags], cwd=sources, input=text, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_sources_of_one_name_have_objects_of_their_own(sources, build_c):
    shutil.copy(sources / "src_c/arrays/gates.c", sources / "src_c/call/gates.c")
    shutil.copy(sources / "src_c/arrays/gates.c", sources / "src_c/kernels/sums/copies.c")
    units = [*build_c.units(sources / "src_c")]
    assert len({unit.name for unit in units}) == len(units)


def test_other_flags_compile_again_and_the_same_do_not(sources):
    def built(flag):
        build(sources, CFLAGS=flag)
        objects = [*(sources / "build").rglob("*.o")]
        assert len(objects) > 30
        assert all(flag in path.read_text() for path in objects)
        return {path: path.stat().st_mtime_ns for path in objects}

    first, same, changed = (built(f"-DFOR={number}") for number in (1, 1, 2))
    assert first == same
    assert all(changed[path] > when for path, when in same.items())


def test_an_sdist_has_the_same_bytes_twice(sources):
    digests = set()
    for when in 1, 2:
        tree, place = sources.parent / f"tree{when}", sources.parent / f"made{when}"
        shutil.copytree(sources, tree)
        for path in tree.rglob("*.md"):
            os.utime(path, (when, when))
        command = "setup.py", "-q", "sdist", "--dist-dir", place
        done = python(*command, cwd=tree, SOURCE_DATE_EPOCH="1764547200")
        assert done.returncode == 0, done.stderr
        (made,) = place.iterdir()
        digests.add(hashlib.sha256(made.read_bytes()).hexdigest())
        with tarfile.open(made) as archive:
            assert {entry.mtime for entry in archive} == {1764547200}
            assert f"{made.name.removesuffix('.tar.gz')}/setup.py" in archive.getnames()
    assert len(digests) == 1


def test_a_missing_compiler_is_named(sources):
    done = python("setup.py", "build_ext", "--build-lib", "made", cwd=sources, CC="no-such-cc -m64")
    assert done.returncode == 1
    assert done.stderr == "no C compiler: 'no-such-cc' not found; install gcc or clang, or set CC\n"


@pytest.fixture
def build_c(monkeypatch):
    """The module, on a machine of 64 CPUs of which the process may use three."""
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    return load(ROOT / "build_c.py")


@pytest.mark.parametrize(
    ("asked", "quota", "wanted"),
    [(None, "max", 3), (None, "150000", 2), ("1", "max", 1), ("5", "1", 5)],
)
def test_compilers_at_once(build_c, monkeypatch, tmp_path, capsys, asked, quota, wanted):
    """One for each CPU that the process may use, of which its container may have fewer, or what
    MAX_JOBS says; each file is told.
    """
    if asked:
        monkeypatch.setenv("MAX_JOBS", asked)
    (tmp_path / "membership").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    cpus = build_c.cpus(str(tmp_path), str(tmp_path / "membership"))
    monkeypatch.setattr(build_c, "cpus", lambda: cpus)
    everyone, running, most = threading.Barrier(wanted), [], []

    def run(command, check):
        running.append(command)
        everyone.wait(60)  # none goes on before so many are at work
        time.sleep(0.01)
        most.append(len(running))
        running.remove(command)
        Path(command[-1]).touch()

    monkeypatch.setattr(build_c.subprocess, "run", run)
    units = [build_c.Unit(f"unit{k}", tmp_path / "unit.c", []) for k in range(2 * wanted)]
    build_c.compile_units(units, tmp_path, [sys.executable], [], build_c.OpenMP([], []))
    assert max(most) == wanted
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith(f"compiling {len(units)} files, {wanted} at once")
    assert {line.rpartition(" ")[2] for line in rest} == {unit.name for unit in units}


def test_a_wrong_max_jobs_is_refused(build_c, monkeypatch):
    for asked in "0", "two", "-1", "1.5":
        monkeypatch.setenv("MAX_JOBS", asked)
        with pytest.raises(SystemExit, match=f"^MAX_JOBS: expected .* 1 or more, got '{asked}'$"):
            build_c.jobs()


#: What sysconfig.get_platform() says, the machine that it runs on, the target.
TARGETS = [
    ("linux-x86_64", "x86_64", ("linux", "x86_64")),
    ("linux-aarch64", "x86_64", ("linux", "aarch64")),
    ("win-amd64", "AMD64", ("win", "x86_64")),
    ("macosx-11.0-arm64", "x86_64", ("macosx", "arm64")),
    ("macosx-10.13-universal2", "arm64", ("macosx", "arm64")),
    ("macosx-10.13-universal2", "x86_64", ("macosx", "x86_64")),
]


@pytest.mark.parametrize(("name", "machine", "target"), TARGETS)
def test_systems_and_machines_to_build_for(monkeypatch, name, machine, target):
    """Python for macOS may be for two machines at once, but compilers and wheels get one."""
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", name)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    build_c = load(ROOT / "build_c.py")
    assert target == (build_c.SYSTEM, build_c.MACHINE)
    assert (len(build_c.levels()) == 3) == (target[1] == "x86_64")
    assert os.environ["_PYTHON_HOST_PLATFORM"] == name.replace("universal2", machine)
    if target[0] == "macosx":
        command = ["clang", "-arch", "x86_64", "-arch", "arm64", "-g"]
        assert build_c.harmless(command) == ["clang", "-arch", target[1], "-g"]


def test_a_build_waits_until_another_has_ended(build_c, tmp_path):
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import build_c\n"
        "print('begins', flush=True)\n"
        "with build_c.alone(pathlib.Path(sys.argv[2])): print('has it')"
    )
    with build_c.alone(tmp_path):
        command = [sys.executable, "-P", "-c", code, ROOT, tmp_path]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == "begins\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    assert other.communicate(timeout=60)[0] == "has it\n"


@pytest.mark.parametrize("name", ["ENOSYS", "ENOLCK", "EOPNOTSUPP", "EBADF"])
def test_a_file_system_without_locks(build_c, monkeypatch, tmp_path, name):
    import fcntl

    def flock(*_):
        raise OSError(getattr(errno, name), "not here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with build_c.alone(tmp_path / "build"):
        assert (tmp_path / "build").is_dir()
