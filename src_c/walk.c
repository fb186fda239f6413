/* walk.c: the thread's sums, the buffer that gathers elements for kernels, and spans that
 * repeat. */
#include "walk.h"

#include <string.h>

#include "gates.h"

int64_t bn_segment_at(const bn_plan *plan, const int64_t start[BN_OPERANDS], int64_t x, int64_t n,
                      int64_t offset[BN_OPERANDS]) {
    const bn_problem *p = plan->problem;
    const int64_t length = p->inner[p->n_inner - 1].size, at = x % length;
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = start[o] + at * plan->element_bytes;
    add_offset(p->inner, p->n_inner - 1, x / length, offset);
    return at_most(length - at, n);
}

void bn_clear_sums(const bn_walk *walk, int64_t columns) {
    const bn_sums *sums = &walk->scratch->sums;
    const size_t all = (size_t)(columns + BN_PAD);
    for (int plane = 0; plane < walk->plan->planes; plane++)
        memset(sums->plane + plane * sums->stride, 0, all * sizeof(double));
}

bn_block bn_gathered_block(const bn_walk *walk, int64_t rows, int64_t n, int64_t repeats) {
    bn_block b = {.rows = (int)rows, .repeats = repeats, .cols = n};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = walk->scratch->gathered[o];
        b.pitch[o] = n * walk->plan->element_bytes;
        b.step[o] = rows * b.pitch[o];
    }
    return b;
}

void bn_gather(const bn_walk *walk, char *const from[BN_OPERANDS], int64_t at, int64_t bytes) {
    const unsigned summed = walk->plan->needs[SUM]->reads;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (ELEMENTS(summed) >> o & 1)
            memcpy(walk->scratch->gathered[o] + at, from[o], (size_t)bytes);
    if (summed & OPERAND(GATE)) {
        const uintptr_t size = (uintptr_t)walk->plan->element_bytes;
        bn_copy_bits((uintptr_t)from[BN_GATE] / size,
                     (uintptr_t)address(walk->scratch->gathered[BN_GATE], at) / size,
                     bytes / walk->plan->element_bytes);
    }
}

/* In all operands that are written, do the strands of n repeats start at the same place modulo
 * `bytes`, a cache line or a page? */
static bool strands_meet(const bn_walk *walk, const int64_t apart[BN_OPERANDS], int64_t n,
                         int64_t bytes) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (walk->plan->needs[WRITE]->writes >> o & 1 && n / BN_STRANDS * apart[o] % bytes)
            return false;
    return true;
}

void bn_write_strands(const bn_walk *walk, bn_span *span, const bn_coefs *coefs) {
    span->strands = true;
    walk->write(span, coefs);
    span->strands = false;
    for (int o = 0; o < BN_OPERANDS; o++)
        span->data[o] = address(span->data[o], BN_STRANDS * span->pitch[o]);
}

void bn_write_repeats(const bn_walk *walk, bn_span *span, const bn_coefs *coefs,
                      const int64_t apart[BN_OPERANDS], int64_t n, bool strands) {
    const int64_t strand = n / BN_STRANDS;
    for (int o = 0; o < BN_OPERANDS; o++) {
        span->step[o] = apart[o];
        span->pitch[o] = strand * apart[o];
    }
    if (strands && strand > 0 && (!span->nontemporal || strands_meet(walk, apart, n, LINE_BYTES))) {
        span->repeats = strand;
        bn_write_strands(walk, span, coefs);
        n %= BN_STRANDS;
    }
    span->repeats = n;
    if (n > 0)
        walk->write(span, coefs);
}

void bn_write_runs(const bn_walk *walk, int64_t own, int64_t channels, int64_t position,
                   int64_t positions, int64_t x, int64_t n) {
    const bn_plan *plan = walk->plan;
    const int64_t together = plan->run_is_segment && plan->evenly ? positions : 1;
    const int64_t abreast = plan->run_is_segment ? channels : 1;
    const int64_t *apart = plan->problem->outer[0].stride;
    /* Strands that start at the same place of their pages map to one set of the first-level cache.
     * Such strands pay only if the data comes from memory (measured). */
    const bool strands =
        together > 1 && (plan->nontemporal || !strands_meet(walk, apart, positions, PAGE_BYTES));
    for (int64_t c = 0; c < channels; c += abreast) {
        const bn_coefs coefs = coefs_from(plan, &walk->coefs[WRITE], own + c);
        for (int64_t i = 0; i < positions; i += together) {
            int64_t start[BN_OPERANDS], offset[BN_OPERANDS];
            run_offset(plan, walk->from + own + c, position + i, start);
            for (int64_t done = 0, length; done < n; done += length) {
                length = bn_segment_at(plan, start, x + done, n - done, offset);
                bn_span span = span_at(plan, offset, length, 0);
                span.channels = abreast;
                span.fetches = walk->channels_ahead > 0;
                for (int o = 0; o < BN_OPERANDS; o++) {
                    span.apart[o] = plan->problem->channel.stride[o];
                    span.ahead[o] = walk->channels_ahead * plan->problem->channel.stride[o];
                }
                if (together > 1)
                    bn_write_repeats(walk, &span, &coefs, apart, positions, strands);
                else
                    walk->write(&span, &coefs);
            }
        }
    }
}
