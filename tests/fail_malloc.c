/* fail_malloc.c: makes the n-th allocation of this thread fail, for test_memory.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static _Thread_local long countdown = -1;
static _Thread_local int armed;

/* The n-th allocation from now on fails, those after it succeed; -1: none does. */
void fail_after(long n) {
    countdown = n;
    armed = n >= 0;
}

/* Did it come to that? */
int has_failed(void) {
    return armed && countdown < 0;
}

static int fails(void) {
    return armed && countdown >= 0 && countdown-- == 0;
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

void *malloc(size_t size) {
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    return fails() ? NULL : __libc_realloc(old, size);
}
