/* fail_malloc.c: makes one allocation of a thread fail, counts the blocks held, and
 * overwrites freed memory, for test_memory.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

static _Thread_local long countdown = -1;
static _Thread_local int armed;
static atomic_long held;

/* Let the next n allocations succeed, then one fail, then all succeed; -1: none fails. */
void fail_after(long n) {
    countdown = n;
    armed = n >= 0;
}

/* Has that allocation failed? */
int has_failed(void) {
    return armed && countdown < 0;
}

/* Blocks allocated and not freed yet, by all threads; only differences mean something. */
long blocks_held(void) {
    return atomic_load(&held);
}

static int fails(void) {
    return armed && countdown >= 0 && countdown-- == 0;
}

static void *counted(void *block) {
    if (block)
        atomic_fetch_add(&held, 1);
    return block;
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

void *malloc(size_t size) {
    return fails() ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size) {
    return fails() ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *old, size_t size) {
    if (fails())
        return NULL;
    void *block = __libc_realloc(old, size);
    if (!old)
        counted(block);
    else if (size == 0)
        atomic_fetch_sub(&held, 1); /* glibc frees it */
    return block;
}

void *aligned_alloc(size_t alignment, size_t size) {
    return fails() ? NULL : counted(__libc_memalign(alignment, size));
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *found = aligned_alloc(alignment, size);
    if (!found)
        return ENOMEM;
    *block = found;
    return 0;
}

void free(void *block) {
    if (!block)
        return;
    atomic_fetch_sub(&held, 1);
    /* A result that was never written must not look like an earlier one at this address. */
    memset(block, 0xa5, malloc_usable_size(block));
    __libc_free(block);
}
