/* pyconfig.h: what CPython's own header for 64-bit Windows says, as far as an extension needs it. That one is
 * in no package; Linux's other headers are the same. */
#pragma once
#include <io.h>

#define MS_WIN32
#define MS_WIN64
#define MS_WINDOWS
#define MS_COREDLL
#define Py_ENABLE_SHARED 1
#define HAVE_DECLSPEC_DLL
#define NT_THREADS 1
#define WITH_THREAD 1
#define PLATFORM "win32"

#define HAVE_STDDEF_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_ERRNO_H 1
#define HAVE_WCHAR_H 1
#define HAVE_UINTPTR_T 1
#define HAVE_COPYSIGN 1
#define HAVE_ROUND 1
#define HAVE_HYPOT 1
#define HAVE_LONG_LONG 1

#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_DOUBLE 8
#define SIZEOF_FLOAT 4
#define SIZEOF_WCHAR_T 2
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_FPOS_T 8
#define SIZEOF_OFF_T 4
#define SIZEOF_PID_T 4
#define SIZEOF__BOOL 1
#define ALIGNOF_SIZE_T 8
#define ALIGNOF_MAX_ALIGN_T 16
#define ALIGNOF_LONG 4
#define DOUBLE_IS_LITTLE_ENDIAN_IEEE754 1
#define PY_SSIZE_T_FORMAT_SPECIFIER "lld"
#define PY_FORMAT_SIZE_T "ll"
