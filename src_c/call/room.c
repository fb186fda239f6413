/* room.c: gets the memory of a call. It is one allocation: with two large ones, the C library might
 * return the pages to the system at every call.
 *
 *     coefficients, sums and values by channel | sums of chunks | strided operands |
 *     of each thread: coefficients by columns, copies of chunks, sums by columns, or limbs |
 *     progress of tasks */
#include "call/room.h"

#include "base/memory.h"

static void lay_out_scratch(const bn_room *room, bn_scratch *s, char *memory, size_t *used) {
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    const int n = bn_sum_count(call->formula[SUM]);
    for (int pass = 0; pass < PASSES; pass++) {
        const int64_t ring =
            pass == WRITE && plan->writing.ring ? plan->writing.ring + LINE_BYTES : 0;
        s->from[pass] = -1;
        s->expanded[pass] =
            lay_out(memory, used, call->coef_planes * at_least(plan->tiles.columns[pass], ring),
                    call->number_bytes);
    }
    for (int o = 0; call->strided >> o; o++) {
        const int64_t slots = call->strided >> o & 1 ? plan->copies.slots : 0;
        s->copy[o] = lay_out(memory, used, slots * plan->copies.elements, call->element_bytes);
        s->copied[o] = lay_out(memory, used, slots, sizeof(bn_chunk));
        for (int64_t i = 0; memory && i < slots; i++)
            s->copied[o][i].n = 0;
    }
    s->sums.stride = round_up(plan->tiles.columns[SUM] + BN_PAD, LINE_BYTES / sizeof(double));
    const int64_t columns = call->runs[SUM] && plan->tiles.columns[SUM] ? s->sums.stride : 0;
    s->sums.plane = lay_out(memory, used, call->sum_planes * columns, sizeof(double));
    s->sums.group = lay_out(memory, used, n * columns, call->number_bytes);
    s->sums.n = n;
    if (call->exact) {
        bn_lay_out_exact(&s->exact, call->problem, call->kernels, call->formula[SUM],
                         plan->tiles.by_runs[SUM], exact_positions(call), plan->tiles.channels,
                         memory, used);
        s->exact.state = room->state;
        s->exact.alone = plan->schedule.threads == 1;
    }
}

/* If `memory` is NULL, the bytes are only counted. */
static void lay_out_all(bn_room *room, char *memory, size_t *used) {
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    bn_channel_memory *c = &room->channels;
    const int64_t n = call->problem->channels, planes = call->sum_planes;
    c->coefs = lay_out(memory, used, call->coef_planes * n, call->number_bytes);
    c->sums.plane = lay_out(memory, used, planes * n, sizeof(double));
    for (int i = 0; i < call->operation->n_kept; i++)
        c->kept[i] = lay_out(memory, used, n, sizeof(double));
    room->partial = c->sums.plane;
    if (call->runs[SUM] && call->order.chunks > 1)
        room->partial = lay_out(memory, used, call->order.chunks * planes * n, sizeof(double));
    if (call->exact)
        room->state = lay_out(memory, used, 1, sizeof *room->state);
    room->strided = lay_out(memory, used, call->strided ? BN_OPERANDS : 0, sizeof *room->strided);
    room->scratch = lay_out(memory, used, plan->schedule.threads, sizeof *room->scratch);
    for (int i = 0; i < plan->schedule.threads; i++) {
        bn_scratch counted;
        lay_out_scratch(room, memory ? &room->scratch[i] : &counted, memory, used);
    }
    room->progress = lay_out(memory, used, 1, bn_schedule_bytes(&plan->schedule));
}

bool bn_take_room(bn_room *room, const bn_plan *plan) {
    const bn_problem *p = plan->call->problem;
    char *memory = NULL;
    *room = (bn_room){
        .plan = plan,
        .channels = {.problem = p,
                     .count = plan->call->count,
                     .summed = plan->call->runs[SUM],
                     .sums = {.stride = p->channels, .n = bn_sum_count(plan->call->formula[SUM])}},
    };
    for (int round = 0; round < 2; round++) {
        size_t bytes = 0;
        lay_out_all(room, memory, &bytes);
        if (round == 0 && !(memory = line_aligned(bytes, &room->to_free)))
            return false;
    }
    for (int o = 0; o < BN_OPERANDS; o++)
        if (p->strided[o])
            bn_set_strided(&room->strided[o], p->strided[o], p->axes, o >= BN_DST);
    if (plan->call->exact)
        *room->state = bn_state_sums(p->dtype, plan->call->operation->formulas[SUM],
                                     plan->call->parts->state, p->channels);
    return true;
}
