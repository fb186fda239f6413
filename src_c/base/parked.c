/* parked.c: large memory that outlives a call. */
#define _GNU_SOURCE /* MADV_FREE */
#include "base/parked.h"

#include <stdlib.h>

#include "base/sizes.h"

#ifndef _WIN32
#include <pthread.h>
#include <sys/mman.h>
#endif

#ifdef MADV_FREE

enum {
    HUGE_BYTES = 2 << 20,
    MOST_PARKED = 64,
    WASTE = 4, /* a reused mapping has at most 1 + 1/WASTE times the bytes asked for */
    /* A mapping's length is a multiple of any system's page: else what is mapped beyond its end
     * could not be unmapped. */
    LARGEST_PAGE = 64 << 10,
    /* A mapping starts in mid-page, because NumPy's arrays start near a page's start. A load waits
     * for recent stores near its offset in a page: with 48 bytes between offsets, loads take six
     * times as long (Zen 3). */
    START = PAGE_BYTES / 2,
};

typedef struct {
    char *start; /* NULL: none */
    size_t bytes;
} mapping;

/* The lock guards all that follows. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mapping parked[MOST_PARKED]; /* oldest first */
static int n_parked;
static size_t parked_bytes, limit;

static mapping remove_parked(int i) {
    const mapping m = parked[i];
    n_parked--;
    for (; i < n_parked; i++)
        parked[i] = parked[i + 1];
    parked_bytes -= m.bytes;
    return m;
}

/* Unmap the oldest mappings until at most `most` bytes are parked. */
static void shed(size_t most) {
    while (parked_bytes > most) {
        const mapping m = remove_parked(0);
        munmap(m.start, m.bytes);
    }
}

/* Take the youngest mapping that fits, which may still be in a cache. */
static mapping take_parked(size_t bytes) {
    for (int i = n_parked - 1; i >= 0; i--)
        if (bytes <= parked[i].bytes && parked[i].bytes <= bytes + bytes / WASTE)
            return remove_parked(i);
    return (mapping){0};
}

/* Map from a huge-page boundary on, so that the system can use huge pages. */
static mapping map_new(size_t bytes) {
    char *all =
        mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return (mapping){0};
    const size_t before = -(uintptr_t)all & (HUGE_BYTES - 1);
    if (before)
        munmap(all, before);
    if (before < HUGE_BYTES)
        munmap(all + before + bytes, HUGE_BYTES - before);
#ifdef MADV_HUGEPAGE
    madvise(all + before, bytes, MADV_HUGEPAGE);
#endif
    return (mapping){all + before, bytes};
}

/* A mapping's first bytes hold its length. */
void *bn_take_memory(size_t bytes) {
    if (bytes > PTRDIFF_MAX - 2 * HUGE_BYTES)
        return NULL;
    bytes = (size_t)round_up((int64_t)bytes + START, LARGEST_PAGE);
    pthread_mutex_lock(&lock);
    mapping m = take_parked(bytes);
    pthread_mutex_unlock(&lock);
    if (!m.start)
        m = map_new(bytes);
    if (!m.start)
        return NULL;
    *(size_t *)m.start = m.bytes;
    return m.start + START;
}

void bn_park_memory(void *memory) {
    char *start = (char *)memory - START;
    const mapping m = {start, *(size_t *)start};
    pthread_mutex_lock(&lock);
    if (m.bytes > limit) {
        munmap(m.start, m.bytes);
    } else {
        shed(limit - m.bytes);
        if (n_parked == MOST_PARKED)
            shed(parked_bytes - 1);
        madvise(m.start, m.bytes, MADV_FREE);
        parked[n_parked++] = m;
        parked_bytes += m.bytes;
    }
    pthread_mutex_unlock(&lock);
}

bool bn_release_parked(void) {
    pthread_mutex_lock(&lock);
    const bool any = n_parked > 0;
    shed(0);
    pthread_mutex_unlock(&lock);
    return any;
}

void bn_set_parked_limit(int64_t bytes) {
    pthread_mutex_lock(&lock);
    limit = (size_t)bytes;
    shed(limit);
    pthread_mutex_unlock(&lock);
}

static int64_t locked(const size_t *bytes) {
    pthread_mutex_lock(&lock);
    const int64_t now = (int64_t)*bytes;
    pthread_mutex_unlock(&lock);
    return now;
}
int64_t bn_parked_limit(void) {
    return locked(&limit);
}
int64_t bn_parked_bytes(void) {
    return locked(&parked_bytes);
}

/* A child inherits its parent's parked mappings, but a write to an inherited page copies it, which
 * costs more than a new page. So the child unmaps the mappings. */
static void before_fork(void) {
    pthread_mutex_lock(&lock);
}
static void in_parent(void) {
    pthread_mutex_unlock(&lock);
}
static void in_child(void) {
    shed(0);
    pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}

#else /* without MADV_FREE nothing is parked */

void *bn_take_memory(size_t bytes) {
    return malloc(bytes);
}
void bn_park_memory(void *memory) {
    free(memory);
}
bool bn_release_parked(void) {
    return false;
}
void bn_set_parked_limit(int64_t bytes) {
    (void)bytes;
}
int64_t bn_parked_limit(void) {
    return 0;
}
int64_t bn_parked_bytes(void) {
    return 0;
}

#endif
