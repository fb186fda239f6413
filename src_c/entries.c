/* entries.c: what bn.h declares: which operation a problem asks for, and which part of it. */
#include "channel.h"
#include "engine.h"
#include "exact.h"
#include "operations/coefs.h"

/* ---- backward --------------------------------------------------------------- */

static int gate_of(const bn_problem *p) {
    if (!p->relu)
        return NO_GATE;
    if (!p->data[BN_GATE])
        return FROM_SRC;
    return p->data[BN_DIFF_SRC_1] ? GIVEN_ADD : GIVEN;
}

static const bn_operation *backward_of(const bn_problem *p, bool training) {
    return &bn_operations_current()->backward[training][gate_of(p)];
}

bn_status bn_backward(const bn_problem *p) {
    return bn_execute(&(bn_call){p, backward_of(p, p->training), .writes = true});
}

bn_status bn_backward_reduce(const bn_problem *p, double *sums) {
    return bn_execute(&(bn_call){p, backward_of(p, true), .sums_out = sums});
}

bn_status bn_backward_apply(const bn_problem *p, const double *sums, double count) {
    return bn_execute(&(bn_call){p, backward_of(p, p->training), .writes = true, .sums_in = sums,
                                 .count = count});
}

bn_status bn_backward_reduce_exactly(const bn_problem *p, int64_t *state) {
    return bn_reduce_exactly(p, backward_of(p, true), BN_OF_GRADIENTS, state);
}

int64_t bn_backward_sums(const bn_problem *p, const int64_t *state, double *sums) {
    const int64_t n = p->channel.size;
    const bn_channels c = {.problem = p, .channels = n};
    const int64_t wrong = bn_round_state(state, bn_digits(p->dtype), n, sums);
    for (int64_t i = 0; wrong < 0 && bn_has_low(&c) && i < n; i++) {
        double mean;
        vector_read(&p->vector[BN_MEAN], i, 1, &mean);
        const double low = bn_low_of(mean);
        sums[n + i] -= low != 0 ? low * sums[i] : 0;
    }
    return wrong;
}

void bn_backward_outline(const bn_problem *p, int threads, bn_plan *plan, bn_schedule *schedule) {
    bn_outline(&(bn_call){p, backward_of(p, p->training), .writes = true}, threads, plan, schedule);
}

bn_status bn_double_backward(const bn_problem *p) {
    const bn_operation *operation = &bn_operations_current()->double_backward[p->training];
    return bn_execute(&(bn_call){p, operation, .writes = true});
}

/* ---- forward ---------------------------------------------------------------- */

static const bn_operation *normalize_of(const bn_operation operations[2][2], const bn_problem *p) {
    return &operations[p->data[BN_SRC_1] != NULL][p->relu];
}

bn_status bn_training(const bn_problem *p) {
    const bn_operation *operation = normalize_of(bn_operations_current()->training, p);
    return bn_execute(&(bn_call){p, operation, .writes = true});
}

bn_status bn_training_reduce(const bn_problem *p, double *stats) {
    const bn_operation *operation = &bn_operations_current()->training[false][false];
    return bn_execute(&(bn_call){p, operation, .sums_out = stats});
}

bn_status bn_training_apply(const bn_problem *p, const double *stats, double count) {
    const bn_operation *operation = normalize_of(bn_operations_current()->training, p);
    return bn_execute(&(bn_call){p, operation, .writes = true, .sums_in = stats, .count = count});
}

bn_status bn_training_reduce_exactly(const bn_problem *p, int64_t *state) {
    return bn_reduce_exactly(p, bn_operations_current()->moments, BN_OF_MOMENTS, state);
}

bn_status bn_inference(const bn_problem *p) {
    const bn_operation *operation = normalize_of(bn_operations_current()->inference, p);
    return bn_execute(&(bn_call){p, operation, .writes = true});
}
