"""The floating-point mode for results computed in Python, the same as in C. Included by core.pyx.
"""

cdef object errstate = np.errstate


cdef class DefaultMode:
    """A context with default arithmetic: it rounds to nearest, keeps subnormals, and raises neither
    errors nor warnings, whatever the caller's floating-point mode and np.seterr are.

    What np.seterr sets is a context variable from NumPy 2 on. To set it back takes memory, which may be
    short; to leave a context does not."""

    cdef uint64_t mode
    cdef object quiet, context

    cdef int enter(self) except -1:
        cdef bint entered = False
        self.quiet, self.context = errstate(all="ignore"), PyContext_CopyCurrent()
        PyContext_Enter(self.context)
        try:
            self.quiet.__enter__()
            entered = True
        finally:
            if not entered:
                PyContext_Exit(self.context)
        self.mode = fp_mode_enter()
        return 0

    cdef int leave(self) except -1:
        fp_mode_leave(self.mode)
        try:
            self.quiet.__exit__(None, None, None)
        finally:
            PyContext_Exit(self.context)
        return 0

    def __enter__(self):
        self.enter()

    def __exit__(self, kind, error, traceback):
        self.leave()
