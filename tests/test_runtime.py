"""Import, configuration, and the level that is forced."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bn_ext
from bn_ext import _core, _runtime

ISAS = bn_ext.available_isas()
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        env={**{k: v for k, v in os.environ.items() if k != "BN_EXT_ISA"}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", bn_ext.__version__)


#: What users may rely on: a name that goes, or one that slips in, is a decision.
PUBLIC = {
    "bn_ext": {
        "BatchNormGradients", "__version__", "available_isas", "batch_norm_backward",
        "batch_norm_backward_apply", "batch_norm_backward_reduce", "get_isa", "show_config",
        "specs",
    },
    "bn_ext.specs": {"ngraph", "onednn_graph", "tensorflow"},
    "bn_ext.specs.ngraph": {"BatchNormTrainingBackprop", "batch_norm_training_backprop"},
    "bn_ext.specs.onednn_graph": {
        "BatchNormTrainingBackprop", "BatchNormTrainingBackward", "batch_norm_training_backprop",
        "batch_norm_training_backward",
    },
    "bn_ext.specs.tensorflow": {"FusedBatchNormGradV3", "fused_batch_norm_grad_v3"},
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    names = {}
    exec(f"from {module} import *", names)
    del names["__builtins__"]
    assert names.keys() == PUBLIC[module]
    for name, thing in names.items():
        assert isinstance(thing, str) or thing.__doc__, name


#: What /proc/cpuinfo calls the instructions that a level needs beside those of the one before.
NEEDED = {
    "baseline": "sse2",
    "v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe",
    "v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="asks Linux's /proc/cpuinfo"
)
def test_levels_are_those_of_the_cpu():
    """A level that goes missing is a loss of speed that no result shows."""
    cpu = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    binary = Path(_core.__file__).read_bytes()
    levels = []
    for name, flags in NEEDED.items():
        if not set(flags.split()) <= set(cpu[1].split()):
            break
        levels += [name] if name.encode() + b"\0" in binary else []
    assert list(ISAS) == levels


@pytest.mark.skipif(not CACHES.is_dir(), reason="asks Linux's /sys")
@pytest.mark.parametrize(("k", "level"), [(0, 2), (1, 3)])
def test_cache_sizes_are_those_of_the_system(k, level):
    path = CACHES / f"index{level}" / "size"
    if not path.is_file():
        pytest.skip(f"no {path}")
    number, unit = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip()).groups()
    assert _core._cache_sizes()[k] == int(number) * {"": 1, "K": 1 << 10, "M": 1 << 20}[unit]


def test_best_isa_by_default():
    done = python("import bn_ext; print(bn_ext.get_isa())")
    assert done.stdout.split() == [ISAS[-1]]
    assert done.stderr == ""


@pytest.mark.parametrize("isa", ISAS)
def test_forced_isa(isa):
    code = "import bn_ext; print(bn_ext.get_isa()); bn_ext.show_config()"
    done = python(code, BN_EXT_ISA=isa)
    assert done.stdout.split()[0] == isa
    assert re.search(r"isa_forced +True", done.stdout)


@pytest.mark.parametrize("isa", ["v5", " ", "avx2", "V3"])
def test_unknown_isa_is_an_import_error(isa):
    done = python("import bn_ext", BN_EXT_ISA=isa)
    assert done.returncode != 0
    assert f"ImportError: BN_EXT_ISA: expected one of {', '.join(ISAS)}" in done.stderr
    assert f"got {isa!r}" in done.stderr


def test_an_empty_isa_is_none():
    done = python("import bn_ext; print(bn_ext.get_isa()); bn_ext.show_config()", BN_EXT_ISA="")
    assert done.stdout.split()[0] == ISAS[-1]
    assert re.search(r"isa_forced +False", done.stdout)


def test_switching_in_process():
    for isa in ISAS:
        _core._use_isa(isa)
        assert bn_ext.get_isa() == isa


def test_show_config(capsys):
    config = bn_ext.show_config(mode="dicts")
    assert bn_ext.show_config() is None
    printed = capsys.readouterr().out
    for key, value in config.items():
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert re.search(rf"^{key} +{re.escape(shown)}$", printed, re.MULTILINE)
    assert config["isa"] in config["available_isas"]
    assert config["default_threads"] >= 1
    l2, last_level = config["cache_sizes"]
    assert 2**15 <= l2 <= last_level
    with pytest.raises(ValueError, match="mode: expected 'stdout' or 'dicts', got 'json'"):
        bn_ext.show_config(mode="json")


THREADS = "; config = bn_ext.show_config(mode='dicts')"
THREADS += "; print(config['default_threads'], config['threads_set_by'])"


@pytest.mark.skipif(not _core._has_openmp(), reason="built without OpenMP")
def test_what_sets_the_number_of_threads(monkeypatch):
    usual = python("import bn_ext" + THREADS).stdout.partition(" ")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if int(usual[0]) == cpus:
        assert usual[2] == "the number of CPUs that this process may use\n"
    if cpus > 1:
        assert python("import bn_ext" + THREADS, OMP_NUM_THREADS="1,4").stdout == (
            "1 OMP_NUM_THREADS\n"
        )
        code = "import threadpoolctl, bn_ext; limit = threadpoolctl.threadpool_limits(1)"
        assert python(code + THREADS).stdout.startswith("1 OpenMP's current limit")
        code = "import bn_ext; bn_ext._core._set_cpu_quota(1); bn_ext._runtime._QUOTA = 1"
        assert python(code + THREADS).stdout == "1 the container's CPU quota\n"
    if hasattr(os, "fork"):
        # Only a child of a process that has run on threads is marked.
        code = (
            "import os, sys, numpy, bn_ext\n"
            "a, v = numpy.ones((8, 8)), numpy.ones(8)\n"
            "bn_ext.batch_norm_backward(a, a, v, v, epsilon=0, num_threads=2)\n"
            "pid = os.fork()\n"
            "if pid: sys.exit(os.waitpid(pid, 0)[1])\n"
        )
        assert python(code + THREADS[2:]).stdout.startswith("1 the fork of this process")
    monkeypatch.setattr(_core, "_has_openmp", lambda: False)
    assert _runtime._threads_set_by(1) == "a build without OpenMP"


def test_processor_without_the_systems_list(monkeypatch):
    monkeypatch.setattr(_runtime, "_read", lambda path: "")
    assert _runtime._processor()


def test_import_needs_numpy_alone():
    code = (
        "import sys, numpy; before = set(sys.modules); import bn_ext, bn_ext.specs\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    new = {name for name in python(code).stdout.split() if not name.startswith("_cython_")}
    assert new <= {"bn_ext", "numpy", "cython_runtime"}


def test_import_leaves_the_environment_alone():
    code = "import os; old = dict(os.environ); import numpy, bn_ext; print(old == dict(os.environ))"
    assert python(code).stdout.split() == ["True"]


WAIT = "import bn_ext; print(bn_ext.show_config(mode='dicts')['idle_threads_set_by'])"


@pytest.mark.skipif(not _core._has_openmp(), reason="built without OpenMP")
def test_who_decides_how_idle_threads_wait():
    assert python(WAIT).stdout.strip() == "bn_ext"
    for name, value in (("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "passive")):
        assert python(WAIT, **{name: value}).stdout.strip() == name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's /proc")
def test_libgomp_that_was_loaded_before():
    """Then its idle threads wait as it found the environment, and show_config says so."""
    code = (
        "import bn_ext\n"
        "paths = bn_ext.show_config(mode='dicts')['openmp_libraries']\n"
        "print(next((p for p in paths if 'libgomp' in p), None))"
    )
    path = python(code).stdout.strip()
    if path == "None":
        pytest.skip("not linked against libgomp")
    done = python(f"import ctypes; ctypes.CDLL({path!r}); {WAIT}")
    assert done.stdout.strip() == "another package that uses libgomp, loaded earlier"


@pytest.mark.parametrize(
    ("files", "membership", "quota"),
    [
        ({}, "", None),
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "200000 100000"}, "0::/", 2),
        ({"cpu.max": "50000 100000"}, "0::/", 1),
        ({"cpu.max": "250000 100000"}, "0::/", 3),
        ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 3),
        ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "100000 100000"}, "0::/a/b", 1),
        ({"cpu.max": "400000 100000"}, "0::/not/mounted/here", 4),
        ({"a b/cpu.max": "300000 100000"}, "0::/a b", 3),
        ({"cpu,cpuacct/x/cpu.cfs_quota_us": "300000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
         "4:cpu,cpuacct:/x\n3:memory:/x", 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/", None),
    ],
)  # fmt: skip
def test_quota_of_the_container(tmp_path, files, membership, quota):
    root = tmp_path / "cgroup"
    root.mkdir()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership + "\n")
    assert _runtime._cpu_quota(str(root), str(tmp_path / "membership")) == quota


def test_no_control_groups(tmp_path):
    assert _runtime._cpu_quota(str(tmp_path / "none"), str(tmp_path / "nothing")) is None
