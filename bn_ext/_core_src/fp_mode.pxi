"""The floating-point mode for results computed in Python, the same as in C. Included by core.pyx.
"""

cdef object errstate = np.errstate


cdef class DefaultMode:
    """A context with default arithmetic: it rounds to nearest, keeps subnormals, and raises neither
    errors nor warnings, whatever the caller's floating-point mode and np.seterr are."""

    cdef uint64_t mode
    cdef object quiet

    def __enter__(self):
        self.quiet = errstate(all="ignore")
        self.quiet.__enter__()
        self.mode = fp_mode_enter()

    def __exit__(self, *error):
        fp_mode_leave(self.mode)
        self.quiet.__exit__(*error)
