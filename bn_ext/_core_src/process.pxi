"""The instruction set of the process, and what the system tells of the machine, for _runtime,
_cli/verify.py and the tests.
c.pxi exports others, which are written in C. Included by core.pyx."""


def available_isas():
    names = []
    for level in range(bn_level_count()):
        names.append(bn_level_of(level).name.decode())
    return tuple(names)


def get_isa():
    return bn_level_current().name.decode()


def use_isa(name):
    bn_level_use(available_isas().index(name))


def cache_sizes():
    """(bytes of a core's second-level cache, bytes of the last-level cache)."""
    return bn_l2_bytes(), bn_last_level_bytes()


# What Linux tells in files is not told here.

def told_caches():
    """As cache_sizes, but 0 where the system does not tell."""
    cdef int64_t l2, last_level
    bn_told_caches(&l2, &last_level)
    return l2, last_level


def told_processor():
    cdef char name[256]
    return name.decode("utf-8", "backslashreplace") if bn_told_processor(name, sizeof(name)) else ""


def told_libraries():
    """Paths of the libraries of this process."""
    cdef char path[4096]
    paths = []
    while bn_told_library(len(paths), path, sizeof(path)):
        paths.append(path.decode("utf-8", "backslashreplace"))
    return paths
