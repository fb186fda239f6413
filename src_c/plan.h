/* plan.h: how a problem is divided. See plan.c, which has the glossary. */
#ifndef BN_PLAN_H
#define BN_PLAN_H

#include "bn.h"
#include "kernels/kernels.h"

typedef enum { CHANNELS_LAST, SHORT_RUNS, LONG_RUNS, LONG_RUNS_ABREAST } form;

enum {
    MOST_STRANDS = BN_ROWS,
    /* Eight are slower where something is written: 1.46 times the memory floor instead of 1.33
     * for 4096 x 4096 (`python -m benchmarks --report rows` with either). */
    MOST_WRITE_STRANDS = 4,
    /* Elements of each of eight rows that are gathered at a time: two operands of float32 fill
     * 32 kB, a first-level cache. */
    PIECE = 512,
    PIECE_ELEMENTS = BN_ROWS * PIECE,
    /* That are read when a piece is summed and then written: with what is written they fit
     * 256 kB, a small second-level cache. */
    PIECE_BYTES = 128 << 10,
    /* Blocks that 16-bit types add up in floats: the sum of 17 trees of eight 11-bit fractions
     * needs 19 of a float's 24 bits. A short strand has as many rows. */
    FLUSH_BLOCKS = 17,
};

typedef struct {
    const bn_problem *problem;
    const formula_needs *formula;
    bool sums;        /* is anything summed? */
    bool writes;      /* is anything written? */
    bool fused;       /* both in one pass, since what is written depends on no sum */
    bool nontemporal; /* what is written bypasses the cache */

    int64_t size;   /* bytes of an element */
    int64_t number; /* bytes of an arithmetic number */
    int planes;     /* of sums: with or without what was lost */
    bool floats;    /* are blocks added up in floats first? */
    int64_t channels, positions, run;

    form form;
    bool contiguous;             /* is a row, or a run, one segment? */
    bool evenly;                 /* are positions a fixed pitch apart? */
    int64_t columns_per_channel; /* of a position, in a row */
    int64_t chunks;              /* of a tile */
    int64_t tile, tiles;         /* channels of a tile, tiles */
    int64_t columns;             /* of a row of the widest tile */

    /* CHANNELS_LAST, SHORT_RUNS */
    int64_t positions_per_row; /* 1 with SHORT_RUNS and long runs */
    int64_t rows;              /* the last one maybe shorter */
    int64_t rows_per_chunk;

    /* LONG_RUNS, LONG_RUNS_ABREAST */
    int64_t positions_per_chunk;
    int64_t elements_per_chunk; /* of a run */
    int64_t chunks_per_run;
} bn_plan;

/* Shapes alone. */
void bn_measure(bn_plan *plan, const bn_problem *p, formula f);
/* All the rest, for so many threads at most; sums, writes and fused are given. */
void bn_make_plan(bn_plan *plan, int threads);

/* Bytes per element of what the formula reads in either pass, and of what it writes too. */
int64_t bn_bytes_read(const bn_plan *plan);
int64_t bn_bytes_touched(const bn_plan *plan);

/* Channels that a task has in hand at a time. */
static inline int64_t channels_at_once(const bn_plan *plan) {
    return plan->form < LONG_RUNS ? plan->tile : 1;
}

/* Columns of a row that has n channels. */
static inline int64_t columns_of(const bn_plan *plan, int64_t n) {
    return n * plan->positions_per_row * plan->columns_per_channel;
}

#endif
