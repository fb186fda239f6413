/* write.c: a chunk's results, as boxes for the kernels that write. They need no order.
 */
#include "walk/write.h"

/* In all operands that are written, do strands of n steps start at the same place modulo `bytes`, a
 * cache line or a page? */
static bool strands_meet(const bn_task *t, const bn_box *box, int64_t n, int64_t bytes) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (bn_writes(t->formula) >> o & 1 && n * box->step[o] % bytes)
            return false;
    return true;
}

static void write_box(const bn_task *t, const bn_box *box) {
    t->plan->kernels->write[t->formula.base][t->formula.gate](box, &t->coefs);
}

/* Write a box of one row as strands, so many steps apart; move it past them. */
static void write_strands(const bn_task *t, bn_box *box, int64_t steps) {
    for (int o = 0; o < BN_OPERANDS; o++)
        box->pitch[o] = steps * box->step[o];
    box->rows = BN_STRANDS;
    write_box(t, box);
    box->rows = 1;
    bn_pass_repeats(box, BN_STRANDS * steps);
}

/* Write a box of one row, n times. With `strands`, write repeats side by side as strands if that is
 * possible; then write the rest one by one. */
static void write_repeats(const bn_task *t, bn_box *box, int64_t n, bool strands) {
    const int64_t length = n / BN_STRANDS;
    if (strands && length > 0 && (!box->nontemporal || strands_meet(t, box, length, LINE_BYTES))) {
        box->repeats = length;
        write_strands(t, box, length);
        n %= BN_STRANDS;
    }
    box->repeats = n;
    if (n > 0)
        write_box(t, box);
}

/* Write rows without a gap between them, as one row of `elements` elements. If their operands are
 * not in cache, they may be written instead as four strands that begin at the same place of their
 * cache lines, followed by what is left. */
static void write_dense(const bn_task *t, bn_box *box, int64_t elements) {
    enum { SMALL_RING = 6 << 10 }; /* bytes of all planes: an eighth of a cache of 48 kB */
    const bn_plan *plan = t->plan;
    const int64_t columns = plan->columns[WRITE], row = columns * plan->element_bytes;
    const int64_t lines = LINE_BYTES / greatest_common_divisor(row, LINE_BYTES);
    int64_t strand = elements / columns / BN_STRANDS / lines * lines;
    if (strand > lines && strand * row % PAGE_BYTES == 0)
        strand -= lines;
    /* Strands that start at the same place of their pages map to one set of the first-level cache.
     * Such strands pay only if coefficients take more than SMALL_RING bytes, because strands read
     * coefficients once for four rows. */
    const bool meet = strand * row % PAGE_BYTES == 0;
    const bool small = plan->coef_planes * plan->ring * plan->number_bytes <= SMALL_RING;
    if (plan->far && !plan->fused && strand > 0 && !(meet && small)) {
        box->cols = strand * columns;
        write_strands(t, box, strand * plan->order.row_positions);
        elements -= BN_STRANDS * strand * columns;
    }
    box->cols = elements;
    if (elements > 0)
        write_box(t, box);
}

void bn_write(const bn_task *t) {
    const bn_plan *plan = t->plan;
    const bool by_runs = plan->by_runs[WRITE];
    const int64_t n = t->chunk.positions, columns = t->chunk.channels * plan->problem->run;
    bn_box box = bn_first_row(t, by_runs ? t->chunk.n : columns);
    box.nontemporal = plan->nontemporal;
    for (int o = 0; o < BN_OPERANDS; o++)
        box.step[o] = plan->problem->pitch[o];
    if (!by_runs && plan->dense) {
        write_dense(t, &box, n * columns);
        return;
    }
    if (by_runs) {
        box.channels = t->chunk.channels;
        box.ahead = t->ahead;
    }
    /* For runs, strands that start at the same place of their pages (see write_dense) pay only if
     * the data comes from memory (measured). */
    const bool strands =
        !by_runs || plan->nontemporal || !strands_meet(t, &box, n / BN_STRANDS, PAGE_BYTES);
    write_repeats(t, &box, n, strands);
}
