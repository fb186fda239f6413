/* room.c: gets the memory of a call. It is at most one allocation: with two large ones, the C
 * library might return the pages to the system at every call.
 *
 *     coefficients, sums and values by channel | sums of chunks | strided operands |
 *     of each thread: coefficients by columns, copies of chunks, sums by columns, or limbs |
 *     progress of tasks */
#include "call/room.h"

#include "base/memory.h"

static void lay_out_scratch(const bn_room *room, bn_scratch *s, bn_memory *memory) {
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    const int n = bn_sum_count(call->formula[SUM]);
    for (int pass = 0; pass < PASSES; pass++) {
        const int64_t ring =
            pass == WRITE && plan->writing.ring ? plan->writing.ring + LINE_BYTES : 0;
        s->from[pass] = -1;
        s->expanded[pass] =
            lay_out(memory, call->coef_planes * at_least(plan->tiles.columns[pass], ring),
                    call->number_bytes);
    }
    for (int o = 0; call->strided >> o; o++) {
        const int64_t slots = call->strided >> o & 1 ? plan->copies.slots : 0;
        s->copy[o] = lay_out(memory, slots * plan->copies.elements, call->element_bytes);
        s->copied[o] = lay_out(memory, slots, sizeof(bn_chunk));
        for (int64_t i = 0; s->copied[o] && i < slots; i++)
            s->copied[o][i].n = 0;
    }
    s->sums.stride = round_up(plan->tiles.columns[SUM] + BN_PAD, LINE_BYTES / sizeof(double));
    const int64_t columns = call->runs[SUM] && plan->tiles.columns[SUM] ? s->sums.stride : 0;
    s->sums.plane = lay_out(memory, call->sum_planes * columns, sizeof(double));
    s->sums.group = lay_out(memory, n * columns, call->number_bytes);
    s->sums.n = n;
    if (call->exact) {
        bn_lay_out_exact(&s->exact, call->problem, call->kernels, call->formula[SUM],
                         plan->tiles.by_runs[SUM], exact_positions(call), plan->tiles.channels,
                         memory);
        s->exact.state = room->state;
        s->exact.alone = plan->schedule.threads == 1;
    }
}

static void lay_out_all(bn_room *room, bn_memory *memory) {
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    bn_channel_memory *c = &room->channels;
    const int64_t n = call->problem->channels, planes = call->sum_planes;
    c->coefs = lay_out(memory, call->coef_planes * n, call->number_bytes);
    c->sums.plane = lay_out(memory, planes * n, sizeof(double));
    for (int i = 0; i < call->operation->n_kept; i++)
        c->kept[i] = lay_out(memory, n, sizeof(double));
    room->partial = c->sums.plane;
    if (call->runs[SUM] && call->order.chunks > 1)
        room->partial = lay_out(memory, call->order.chunks * planes * n, sizeof(double));
    if (call->exact)
        room->state = lay_out(memory, 1, sizeof *room->state);
    room->strided = lay_out(memory, call->strided ? BN_OPERANDS : 0, sizeof *room->strided);
    room->scratch = lay_out(memory, plan->schedule.threads, sizeof *room->scratch);
    for (int i = 0; i < plan->schedule.threads; i++) {
        bn_scratch counted;
        lay_out_scratch(room, room->scratch ? &room->scratch[i] : &counted, memory);
    }
    room->progress = lay_out(memory, 1, bn_schedule_bytes(&plan->schedule));
}

bool bn_take_room(bn_room *room, const bn_plan *plan, bn_small_room *small) {
    const bn_problem *p = plan->call->problem;
    bn_memory memory = {small->bytes, sizeof small->bytes, 0};
    *room = (bn_room){
        .plan = plan,
        .channels = {.problem = p,
                     .count = plan->call->count,
                     .summed = plan->call->runs[SUM],
                     .sums = {.stride = p->channels, .n = bn_sum_count(plan->call->formula[SUM])}},
    };
    lay_out_all(room, &memory);
    if (memory.used > memory.bytes) {
        memory = (bn_memory){line_aligned(memory.used, &room->to_free), memory.used, 0};
        if (!memory.start)
            return false;
        lay_out_all(room, &memory);
    }
    for (int o = 0; o < BN_OPERANDS; o++)
        if (p->strided[o]) {
            bn_set_strided(&room->strided[o], p->strided[o], p->axes, o >= BN_DST);
            room->strided[o].fetch = plan->copies.fetch;
        }
    if (plan->call->exact)
        *room->state = bn_state_sums(p->dtype, plan->call->operation->formulas[SUM],
                                     plan->call->parts->state, p->channels);
    return true;
}
