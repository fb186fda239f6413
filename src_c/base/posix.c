/* posix.c: the answers of Linux, macOS and their like. */
#include "base/system.h"

#ifndef _WIN32
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <sys/sysctl.h>
#endif

/* ---- memory --------------------------------------------------------------- */

void *bn_map_pages(size_t bytes) {
    const int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
    void *pages = mmap(NULL, bytes, access, kind, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void bn_unmap_pages(void *pages, size_t bytes) {
    munmap(pages, bytes);
}

void bn_offer_pages(void *pages, size_t bytes) {
    madvise(pages, bytes, MADV_FREE);
}

void bn_prefer_huge_pages(void *pages, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(pages, bytes, MADV_HUGEPAGE);
#else
    (void)pages, (void)bytes;
#endif
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void bn_lock(void) {
    pthread_mutex_lock(&mutex);
}

void bn_unlock(void) {
    pthread_mutex_unlock(&mutex);
}

/* ---- threads and time ------------------------------------------------------ */

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_door(void *nothing) {
    pthread_mutex_lock(&door);
    pthread_mutex_unlock(&door);
    return nothing;
}

int bn_try_threads(int threads) {
    pthread_t *started = malloc((size_t)threads * sizeof *started);
    int n = 0;
    pthread_mutex_lock(&door);
    while (started && n < threads && !pthread_create(&started[n], NULL, wait_at_door, NULL))
        n++;
    pthread_mutex_unlock(&door);
    for (int i = 0; i < n; i++)
        pthread_join(started[i], NULL);
    free(started);
    return n;
}

void bn_yield(void) {
    sched_yield();
}

double bn_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void bn_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    pthread_atfork(before, in_parent, in_child);
}

/* ---- the machine ------------------------------------------------------------ */

int64_t bn_memory_bytes(void) {
    const int64_t pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? pages * bytes : 0;
}

#ifdef __APPLE__
static int64_t told(const char *name) {
    int64_t number = 0; /* of which macOS may write the lower half alone */
    size_t room = sizeof number;
    return sysctlbyname(name, &number, &room, NULL, 0) ? 0 : number;
}

/* On Apple's chips, fast cores share a second level, and macOS tells of no other. */
void bn_told_caches(int64_t *l2, int64_t *last_level) {
    *l2 = told("hw.l2cachesize"), *last_level = told("hw.l3cachesize");
    if (*last_level)
        return;
    const int64_t shared = told("hw.perflevel0.l2cachesize"), by = told("hw.perflevel0.cpusperl2");
    *last_level = shared ? shared : *l2;
    *l2 = shared && by ? shared / by : *l2;
}

bool bn_told_processor(char *name, size_t room) {
    return sysctlbyname("machdep.cpu.brand_string", name, &room, NULL, 0) == 0;
}

bool bn_told_library(int number, char *path, size_t room) {
    const char *name = _dyld_get_image_name((uint32_t)number);
    return name && strlcpy(path, name, room) < room;
}
#else
void bn_told_caches(int64_t *l2, int64_t *last_level) {
    *l2 = *last_level = 0;
}

bool bn_told_processor(char *name, size_t room) {
    (void)name, (void)room;
    return false;
}

bool bn_told_library(int number, char *path, size_t room) {
    (void)number, (void)path, (void)room;
    return false;
}
#endif
#endif
