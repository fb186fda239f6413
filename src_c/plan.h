/* plan.h: how a problem is divided. See plan.c, which has the glossary. */
#ifndef BN_PLAN_H
#define BN_PLAN_H

#include "bn.h"
#include "kernels/kernels.h"

typedef enum { CHANNELS_LAST, SHORT_RUNS, LONG_RUNS } form;

enum {
    /* Elements of each of four rows that are gathered at a time, whole groups: of two float32
     * operands these fill 32 kB, a first-level cache. */
    PIECE = 1024,
    PIECE_ELEMENTS = BN_ROWS * PIECE,
    /* Bytes that are read when a piece is summed and then written: together with what is written
     * they fit 256 kB, a small second-level cache. */
    PIECE_BYTES = 128 << 10,
};

/* What a row is made of: CHANNELS_LAST, SHORT_RUNS. */
typedef struct {
    int64_t positions; /* of which it has the runs: more than 1 with CHANNELS_LAST alone */
    bool is_segment;   /* with all channels */
    bool dense;        /* is all of the tensor one segment, row by row? */
    int64_t ring;      /* numbers in a plane of the ring that writes take; 0: they take columns */
} bn_plan_of_row;

/* What a run is cut into: LONG_RUNS. */
typedef struct {
    int64_t stretch; /* elements */
    int64_t elements_per_chunk, chunks;
} bn_plan_of_run;

typedef struct {
    const bn_problem *problem;
    int64_t element_bytes, number_bytes; /* a number has the arithmetic type */
    int64_t channels, positions;
    int64_t run_length; /* elements */
    bool evenly;        /* are positions a fixed distance apart? */
    bool run_is_segment;

    const formula_needs *needs[PASSES]; /* of the formulas */
    int planes;                         /* of sums: with or without their compensation */
    int coef_planes;                    /* that the operation's formulas take */
    bool sums;                          /* is anything summed? */
    bool writes;                        /* is anything written? */
    bool fused;       /* both in one pass, since what is written depends on no sum */
    bool nontemporal; /* what is written bypasses the cache */
    bool far;         /* what is touched exceeds the second-level cache */

    form form;
    bn_plan_of_row row;
    bn_plan_of_run run;
    bool gathers;            /* are rows gathered before they are summed? */
    bool by_runs[PASSES];    /* each channel's with its own coefficients, ONE_FOR_ALL? */
    int64_t columns[PASSES]; /* of a row, in the widest tile, or where tasks are joint in all */
    int64_t rows;            /* the last may have fewer positions; of long runs, positions */
    int64_t rows_per_chunk;
    int64_t chunks; /* of a tile */

    int64_t channels_per_tile, tiles;
    bool joint;             /* are tasks that write of all tiles together? */
    int64_t rows_per_write; /* of such a task */
} bn_plan;

/* First what follows from the shape and the dtype alone ... */
void bn_plan_shape(bn_plan *plan, const bn_problem *p, const formula formulas[PASSES]);
/* ... then, with sums, writes and fused set, the rest, for at most `threads` threads; `paired` as
 * in the kernels. */
void bn_make_plan(bn_plan *plan, int threads, bool paired);

/* Do all channels' runs follow one another without a gap in each of these operands: at a position,
 * or among positions too? */
bool bn_is_dense(const bn_plan *plan, bool among_positions, unsigned operands);

/* Bytes per element of what the formula reads in either pass. */
int64_t bn_bytes_read(const bn_plan *plan);

/* Columns of a row of n channels; long runs have those of a stretch, channel by channel. */
static inline int64_t columns_of(const bn_plan *plan, int64_t n) {
    return plan->form == LONG_RUNS ? plan->run.stretch : n * plan->row.positions * plan->run_length;
}

#endif
