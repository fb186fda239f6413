"""The instruction set and the caches of the process, for _runtime, _cli/verify.py and the tests.
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
