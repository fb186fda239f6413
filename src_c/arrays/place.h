/* place.h: where an element is, in every operand. */
#ifndef BN_PLACE_H
#define BN_PLACE_H

#include "bn.h"
#include "kernels/kernels.h"

static inline int64_t bn_elements(const bn_problem *p) {
    return p->positions * p->channels * p->run;
}

/* Do positions follow each other without a gap, in all operands? */
static inline bool is_dense(const bn_problem *p) {
    const int64_t bytes = p->channels * p->run * bn_dtype_table[p->dtype].element_bytes;
    bool dense = true;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (o != BN_GATE && p->data[o])
            dense = dense && p->pitch[o] == bytes;
    return dense;
}

/* Addresses are computed as integers, because operands that a pass does not touch may be NULL. */
static inline char *address(const char *from, int64_t bytes) {
    return (char *)((uintptr_t)from + (uintptr_t)bytes);
}

/* The place of element x of a channel's run at a position. The gate's bits have no gaps. */
static inline bn_place place_of(const bn_problem *p, int64_t position, int64_t channel, int64_t x) {
    const int64_t bytes = x * bn_dtype_table[p->dtype].element_bytes;
    bn_place place;
    for (int o = 0; o < BN_OPERANDS; o++)
        place.data[o] = address(p->data[o], position * p->pitch[o] + channel * p->apart[o] + bytes);
    place.data[BN_GATE] = p->data[BN_GATE];
    place.bit = (position * p->channels + channel) * p->run + x;
    return place;
}

/* The place of column x of a row of a box, in channel c. */
static inline bn_place place_in(const bn_box *box, int64_t c, int64_t row, int64_t x,
                                int64_t element_bytes) {
    bn_place place;
    for (int o = 0; o < BN_OPERANDS; o++)
        place.data[o] =
            address(box->at.data[o], c * box->apart[o] + row * box->pitch[o] + x * element_bytes);
    place.data[BN_GATE] = box->at.data[BN_GATE];
    place.bit = box->at.bit + c * box->apart[BN_GATE] + row * box->pitch[BN_GATE] + x;
    return place;
}

/* A box of one row, from this place on. */
static inline bn_box box_at(const bn_problem *p, bn_place place, int64_t cols) {
    bn_box box = {.at = place, .repeats = 1, .channels = 1, .rows = 1, .cols = cols};
    for (int o = 0; o < BN_OPERANDS; o++)
        box.apart[o] = p->apart[o];
    return box;
}

#endif
