"""Functions for _runtime, _layer, _verify, the benchmarks and the tests. c.pxi exports others,
which are written in C. Included by core.pyx."""


def available_isas():
    return tuple([bn_isa_name(level).decode() for level in range(bn_isa_count())])


def get_isa():
    return bn_isa_name(bn_isa_current()).decode()


def use_isa(name):
    bn_isa_use(available_isas().index(name))


def cache_sizes():
    """(bytes of a core's second-level cache, bytes of the last-level cache)."""
    return bn_l2_bytes(), bn_last_level_bytes()
