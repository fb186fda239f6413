/* windows.c: the answers of Windows. */
#include "base/system.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
/* It stands on windows.h. */
#include <psapi.h>
#include <stdlib.h>

#include "base/sizes.h"

#ifdef _MSC_VER
#pragma comment(lib, "advapi32") /* others link it without being asked */
#endif

/* ---- memory --------------------------------------------------------------- */

void *bn_map_pages(size_t bytes) {
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void bn_unmap_pages(void *pages, size_t bytes) {
    (void)bytes;
    VirtualFree(pages, 0, MEM_RELEASE);
}

void bn_offer_pages(void *pages, size_t bytes) {
    VirtualAlloc(pages, bytes, MEM_RESET, PAGE_READWRITE);
}

/* They need a privilege that users lack. */
void bn_prefer_huge_pages(void *pages, size_t bytes) {
    (void)pages, (void)bytes;
}

static SRWLOCK srw_lock = SRWLOCK_INIT;

void bn_lock(void) {
    AcquireSRWLockExclusive(&srw_lock);
}

void bn_unlock(void) {
    ReleaseSRWLockExclusive(&srw_lock);
}

/* ---- threads and time ------------------------------------------------------ */

static SRWLOCK door = SRWLOCK_INIT;

static DWORD WINAPI wait_at_door(void *nothing) {
    (void)nothing;
    AcquireSRWLockExclusive(&door);
    ReleaseSRWLockExclusive(&door);
    return 0;
}

int bn_try_threads(int threads) {
    HANDLE *started = malloc((size_t)threads * sizeof *started);
    int n = 0;
    AcquireSRWLockExclusive(&door);
    while (started && n < threads &&
           (started[n] = CreateThread(NULL, 0, wait_at_door, NULL, 0, NULL)))
        n++;
    ReleaseSRWLockExclusive(&door);
    for (int i = 0; i < n; i++) {
        WaitForSingleObject(started[i], INFINITE);
        CloseHandle(started[i]);
    }
    free(started);
    return n;
}

void bn_yield(void) {
    SwitchToThread();
}

double bn_seconds(void) {
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    return (double)now.QuadPart / (double)frequency.QuadPart;
}

void bn_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    (void)before, (void)in_parent, (void)in_child;
}

/* ---- the machine ------------------------------------------------------------ */

/* A container is a job. */
int64_t bn_memory_bytes(void) {
    MEMORYSTATUSEX memory = {.dwLength = sizeof memory};
    if (!GlobalMemoryStatusEx(&memory))
        return 0;
    int64_t bytes = (int64_t)memory.ullTotalPhys;
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION job;
    const JOBOBJECTINFOCLASS kind = JobObjectExtendedLimitInformation;
    if (QueryInformationJobObject(NULL, kind, &job, sizeof job, NULL)) {
        if (job.BasicLimitInformation.LimitFlags & JOB_OBJECT_LIMIT_PROCESS_MEMORY)
            bytes = at_most(bytes, (int64_t)job.ProcessMemoryLimit);
        if (job.BasicLimitInformation.LimitFlags & JOB_OBJECT_LIMIT_JOB_MEMORY)
            bytes = at_most(bytes, (int64_t)job.JobMemoryLimit);
    }
    return bytes;
}

/* Those of the first CPU. If there is no third level, the second is the last. */
void bn_told_caches(int64_t *l2, int64_t *last_level) {
    int64_t size[4] = {0};
    DWORD room = 0;
    GetLogicalProcessorInformationEx(RelationCache, NULL, &room);
    char *all = malloc(room);
    if (all && GetLogicalProcessorInformationEx(RelationCache, (void *)all, &room)) {
        const SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX *one;
        for (DWORD at = 0; at < room; at += one->Size) {
            one = (const void *)(all + at);
            const CACHE_RELATIONSHIP *cache = &one->Cache;
            if (cache->Level <= 3 && cache->GroupMask.Group == 0 && cache->GroupMask.Mask & 1)
                size[cache->Level] = cache->CacheSize;
        }
    }
    free(all);
    *l2 = size[2], *last_level = size[3] ? size[3] : size[2];
}

bool bn_told_processor(char *name, size_t room) {
    const char *key = "HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0";
    const char *value = "ProcessorNameString";
    DWORD bytes = (DWORD)room;
    return RegGetValueA(HKEY_LOCAL_MACHINE, key, value, RRF_RT_REG_SZ, NULL, name, &bytes) == 0;
}

bool bn_told_library(int number, char *path, size_t room) {
    enum { MOST = 1024 };
    HMODULE modules[MOST];
    wchar_t wide[MOST];
    DWORD bytes;
    if (!K32EnumProcessModules(GetCurrentProcess(), modules, sizeof modules, &bytes) ||
        number >= at_most(bytes / sizeof *modules, MOST))
        return false;
    GetModuleFileNameW(modules[number], wide, MOST);
    return WideCharToMultiByte(CP_UTF8, 0, wide, -1, path, (int)room, NULL, NULL) > 0;
}
#endif
