"""A call whose error is looked at. Included by core.pyx, which has no `except` elsewhere: at the
end of Cython's (3.3.1), a traceback is released that is NULL if memory was too short to make it.
"""

cdef extern from *:
    """
    /* What a call returns; or, if it raises one of `kinds`, that exception, and then *error is true. */
    static PyObject *bn_attempt(int *error, PyObject *kinds, PyObject *call, PyObject *arguments) {
        PyObject *type, *raised, *traceback, *result = PyObject_Call(call, arguments, NULL);
        *error = result == NULL && PyErr_ExceptionMatches(kinds);
        if (!*error)
            return result;
        PyErr_Fetch(&type, &raised, &traceback);
        PyErr_NormalizeException(&type, &raised, &traceback);
        if (traceback)
            PyException_SetTraceback(raised, traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
        return raised;
    }
    """
    object attempt "bn_attempt"(bint *error, object kinds, object call, tuple arguments)
