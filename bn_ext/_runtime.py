"""The instruction set that this process uses, and the threads that it may use."""

import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import bn_ext._groups as _groups
from bn_ext._version import __version__

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    import bn_ext._core as _core

# How long an idle thread looks for work before it sleeps: how often with libgomp, milliseconds with
# LLVM's runtime. With their own choices (300 000 on a quiet machine; 200), two pools of threads
# disturb each other (docs/design.md has figures). With far fewer than 5000, threads would sleep
# between the calls of a loop.
_SPIN = {"GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "1"}


def _openmp_libraries(maps: str = "/proc/self/maps") -> list[str]:
    """Paths of the OpenMP runtimes in this process."""
    text = "\n".join([_groups.read(maps), *_core.told_libraries()])
    name = r"(?:lib(?:gomp|i?omp)|vcomp)[^/\\]*\.(?:so|dylib|dll)[^/\\ ]*$"
    paths = re.findall(rf"(?:/|[A-Z]:\\)(?:.*[/\\])?{name}", text, re.MULTILINE)
    return list(dict.fromkeys(paths))


def _import_core() -> Any:
    """Import `_core`, or raise an error that says how to compile it."""
    # Import NumPy only after this: where bn_ext is not installed, NumPy may be missing too.
    try:
        return import_module("bn_ext._core")
    except ModuleNotFoundError as error:
        if error.name != "bn_ext._core":
            raise
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if not os.path.isdir(f"{root}/src_c"):
        raise ImportError(f"bn_ext in {root} has no compiled part for {python}: reinstall it")
    raise ImportError(
        f"bn_ext in {root} is source code that has not been compiled for {python}: run 'python -m "
        "pip install -e .' there, or start Python in another folder to import an installed bn_ext"
    )


def _load_core() -> Any:
    """Import `_core`, and with it OpenMP, which reads its environment variables at that moment."""
    unset = [] if "OMP_WAIT_POLICY" in os.environ else [*_SPIN.keys() - os.environ.keys()]
    # Past os.environ, which other threads may copy, change and restore meanwhile.
    for name in unset:
        os.putenv(name, _SPIN[name])
    try:
        core = _import_core()
        core.default_threads()  # LLVM's runtime reads its variables at the first call
        return core
    finally:
        for name in unset:
            if name not in os.environ:
                os.unsetenv(name)


def missing(module: str, error: ImportError, install: str) -> ModuleNotFoundError:
    """The error for a package that the module of this name needs."""
    name = module.partition(".")[2]
    text = f"{module}: expected {name}, got {error!r:.200}; python -m pip install {install}"
    return ModuleNotFoundError(text, name=name)


def available_isas() -> tuple[str, ...]:
    """Names of the instruction-set levels that this CPU can run, lowest first.

    On x86-64 there are ``"baseline"``, ``"v3"`` (AVX2) and ``"v4"`` (AVX-512), three of the
    x86-64 psABI's microarchitecture levels; elsewhere only ``"baseline"``. All give the same bits.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> import bn_ext
    >>> bn_ext.available_isas()[0]
    'baseline'
    """
    return _core.available_isas()


def spelled(isa: str) -> str:
    """A level with its instruction set: ``v4 (AVX-512)``."""
    import platform

    least = {"x86_64": "SSE2", "amd64": "SSE2", "aarch64": "NEON", "arm64": "NEON"}
    baseline = least.get(platform.machine().lower())
    name = {"baseline": baseline, "v3": "AVX2", "v4": "AVX-512"}.get(isa)
    return f"{isa} ({name})" if name else isa


def get_isa() -> str:
    """Name of the instruction-set level in use.

    It is the highest of `available_isas`, unless the environment variable ``BN_EXT_ISA`` named
    another one when `bn_ext` was imported.

    Returns
    -------
    str

    Examples
    --------
    >>> import bn_ext
    >>> bn_ext.get_isa() in bn_ext.available_isas()
    True
    """
    return _core.get_isa()


def keep_memory(nbytes: SupportsIndex | None = None) -> int:
    """Set how much memory of freed results bn_ext keeps for new results.

    New memory is slow: the system clears each page before a process sees it. So when the last view
    of a result of 16 MiB or more is gone, bn_ext keeps its memory block, and the next result of
    about that size reuses the block. The system takes the pages of kept blocks when it needs memory
    (``MADV_FREE``; on Windows, ``MEM_RESET``); until then, they count as used by this process. At
    most 64 blocks are kept, and none if memory is too short for a call or its results.

    Parameters
    ----------
    nbytes : int, optional
        The limit, in bytes. Kept memory beyond it is released at once. With 0, nothing is kept, and
        NumPy allocates the arrays. None means the default, which is set when bn_ext is imported:
        an eighth of the memory that the process may use. A control group may limit that memory, or
        ``ulimit -v`` and ``-d``; on Windows, a job.

    Returns
    -------
    int
        The previous limit. `show_config` shows how much is kept now.

    Raises
    ------
    TypeError
        If nbytes is not an integer.
    ValueError
        If nbytes is negative, or larger than ``sys.maxsize``.

    Examples
    --------
    >>> import bn_ext
    >>> before = bn_ext.keep_memory(0)
    >>> bn_ext.keep_memory(before)
    0
    """
    if nbytes is None:
        limit = _memory() // 8
    else:
        limit = _core.as_index(nbytes, "nbytes", "an integer or None", 0, sys.maxsize)
    before = _core.keep_limit()
    _core.set_keep_limit(limit)
    return before


def _forced_isa() -> str | None:
    """The level that the environment forces, if any."""
    # An empty variable counts as not set.
    name = os.environ.get("BN_EXT_ISA") or None
    if name is not None:
        if name not in available_isas():
            raise ImportError(
                f"BN_EXT_ISA: expected one of {', '.join(available_isas())} (the levels that this "
                f"CPU can run), got {name!r}"
            )
        _core.use_isa(name)
    return name


def _told_caches() -> dict[int, int]:
    """Bytes of a core's second-level cache, and of the whole last-level cache."""
    l2, last_level = _core.told_caches()
    # Those of common servers, if the system does not tell.
    sizes = {2: l2 or 1 << 20, 3: last_level or 16 << 20}
    # Not from sysconf: on a virtual machine, it gave ten times the L3 size.
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        text = " ".join(_groups.read(f"{folder}/{name}").strip() for name in ("level", "size"))
        if match := re.fullmatch("([23]) ([1-9][0-9]*)([KM]?)", text):
            sizes[int(match[1])] = int(match[2]) << {"": 0, "K": 10, "M": 20}[match[3]]
    return sizes


def _cache_sizes(sizes: dict[int, int]) -> tuple[int, int]:
    """Bytes of a core's second-level cache, and of our share of the last-level cache."""
    # A virtual machine of two CPUs may report 480 MiB, which it shares with a hundred others. Few
    # processors have more than 16 MiB for each core.
    share = (16 << 20) * (os.cpu_count() or 1)
    return sizes[2], max(sizes[2], min(sizes[3], share))


def _last_level_is_far(sizes: dict[int, int]) -> bool:
    """Is the last-level cache that of all cores of a socket, behind their network?

    A complex of AMD's cores, to whom theirs is near, shares at most 96 MiB.
    """
    return sizes[3] > 96 << 20


def _memory(*places: str) -> int:
    """Bytes of memory that this process may use at most."""
    limits = [_core.memory_bytes()]
    if sys.platform != "win32":
        kinds = resource.RLIMIT_AS, resource.RLIMIT_DATA
        ulimits = [resource.getrlimit(kind)[0] for kind in kinds]
        limits += [limit for limit in ulimits if limit != resource.RLIM_INFINITY]
    limits += [limit for (limit,) in _groups.limits("memory.max", *places)]
    return max(0, min(limits))


def _processor() -> str:
    import platform

    model = re.search("^model name.*: (.*)", _groups.read("/proc/cpuinfo"), re.MULTILINE)
    if model:
        return model[1]
    return _core.told_processor() or platform.processor() or platform.machine()


def _threads_set_by(threads: int) -> str:
    """What sets the default number of threads to `threads`, in a few words."""
    if not _core.has_openmp():
        return "the build, which is without OpenMP"
    if _core.fork_limits():
        return "the fork of this process (a copied OpenMP pool would hang)"
    if threads == _core.cpus():
        return "the number of CPUs that this process may use"
    if threads == _QUOTA:
        return "the container's CPU quota"
    for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        if os.environ.get(name, "").partition(",")[0].strip() == str(threads):
            return name
    return "OpenMP's current limit (omp_set_num_threads, threadpoolctl)"


def show_config(mode: Literal["stdout", "dicts"] = "stdout") -> dict[str, Any] | None:
    """Show the version, instruction set, threads, caches and OpenMP libraries in use.

    Without OpenMP (``openmp`` is false), each call takes one thread, and has the same bits.

    Parameters
    ----------
    mode : {"stdout", "dicts"}, optional
        Whether to print them or return them as a dictionary.

    Returns
    -------
    dict or None
        With ``mode="dicts"``, what would be printed; otherwise None.

    Raises
    ------
    ValueError
        If mode is neither ``"stdout"`` nor ``"dicts"``.

    Examples
    --------
    >>> import bn_ext
    >>> bn_ext.show_config(mode="dicts")["version"] == bn_ext.__version__
    True
    """
    if not isinstance(mode, str) or mode not in ("stdout", "dicts"):  # type: ignore[redundant-expr]
        raise ValueError(f"mode: expected 'stdout' or 'dicts', got {_core.shown(mode)}")
    import platform

    import numpy as np

    threads = _core.default_threads()
    config = {
        "version": __version__,
        "isa": get_isa(),
        "available_isas": available_isas(),
        "isa_forced": _FORCED_ISA is not None,
        "openmp": _core.has_openmp(),
        "openmp_libraries": tuple(_openmp_libraries()),
        "default_threads": threads,
        "threads_set_by": _threads_set_by(threads),
        "cpu_quota": _QUOTA,
        "cache_sizes": _core.cache_sizes(),
        "keep_memory": _core.keep_limit(),
        "kept_memory": _core.kept_bytes(),
        "machine": platform.machine(),
        "processor": _processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if mode == "dicts":
        return config
    levels = tuple(map(spelled, available_isas()))
    lines = {**config, "isa": spelled(get_isa()), "available_isas": levels}
    width = max(map(len, lines))
    for key, value in lines.items():
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        print(f"{key:<{width}}  {text}")
    return None


if not TYPE_CHECKING:
    _core = _load_core()
_FORCED_ISA = _forced_isa()
keep_memory()
_QUOTA = _groups.cpu_quota()
_core.set_threads_limit(_QUOTA or 0)
_CACHES = _told_caches()
_core.set_cache_sizes(*_cache_sizes(_CACHES))
_core.set_last_level_far(_last_level_is_far(_CACHES))
