/* write.c: a chunk's results, as boxes for the kernels that write. They need no order. */
#include "call/task.h"

static void write_box(const bn_task *t, const bn_box *box) {
    t->plan->call->kernels->write[t->formula.base][t->formula.gate](box, &t->coefs);
}

/* Write as many of a box's n rows as possible four abreast; move the box past them. Return how many
 * are left. */
static int64_t write_abreast(const bn_task *t, bn_box *box, int64_t n) {
    bn_box four = *box;
    four.rows = BN_ABREAST;
    four.repeats = n / BN_ABREAST;
    for (int o = 0; o < BN_OPERANDS; o++) {
        four.next_row[o] = box->next_repeat[o];
        four.next_repeat[o] = BN_ABREAST * box->next_repeat[o];
    }
    write_box(t, &four);
    bn_move(&box->at, box->next_repeat, BN_ABREAST * four.repeats);
    return n - BN_ABREAST * four.repeats;
}

/* If nothing was summed, what is read is not in cache: it is fetched so far ahead (measured). */
enum { BYTES_AHEAD = 8 << 10 };

/* Write ranges of adjacent positions; those that are equally far apart are one box. */
static void write_ranges(const bn_task *t, bn_box *box) {
    const bn_plan *plan = t->plan;
    const bn_call *call = plan->call;
    const int64_t each = plan->copies.range_positions, end = t->chunk.position + t->chunk.positions;
    for (int o = 0; o < BN_OPERANDS; o++)
        box->next_repeat[o] = bn_to_position(call->problem, o, each);
    for (int64_t i = t->chunk.position, n; i < end; i += n * box->repeats) {
        const int64_t left = plan->copies.ranges - i / each % plan->copies.ranges;
        n = at_most(each - i % each, end - i);
        box->at = bn_place_of(call->problem, i);
        box->cols = n * call->problem->channels;
        box->repeats = n < each ? 1 : at_most((end - i) / each, left);
        write_box(t, box);
    }
}

void bn_write(const bn_task *t) {
    const bn_plan *plan = t->plan;
    const bn_call *call = plan->call;
    const bool by_runs = plan->tiles.by_runs[WRITE];
    const int64_t n = t->chunk.positions, columns = t->chunk.channels * call->problem->run;
    bn_box box;
    bn_set_first_row(&box, t, by_runs ? t->chunk.n : columns);
    box.nontemporal = plan->writing.nontemporal;
    memcpy(box.next_repeat, t->next_position, sizeof box.next_repeat);
    if (by_runs)
        box.channels = t->chunk.channels;
    for (int o = 0; o < BN_OPERANDS; o++)
        box.prefetch_bytes[o] =
            !call->runs[SUM] ? BYTES_AHEAD : t->prefetch_channels * t->next_channel[o];
    if (!by_runs && plan->writing.dense)
        box.cols = n * columns;
    else
        box.repeats = plan->writing.abreast ? write_abreast(t, &box, n) : n;
    if (plan->copies.ranges)
        write_ranges(t, &box);
    else if (box.repeats > 0)
        write_box(t, &box);
}
