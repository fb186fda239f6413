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

typedef struct {
    const bn_problem *problem;
    const formula_needs *needs[PASSES]; /* of the formulas */
    bool sums;                          /* is anything summed? */
    bool writes;                        /* is anything written? */
    bool fused;       /* both in one pass, since what is written depends on no sum */
    bool nontemporal; /* what is written bypasses the cache */
    bool far;         /* what is touched exceeds the second-level cache */

    int64_t element_bytes, number_bytes; /* a number has the arithmetic type */
    int sums_count;                      /* of the formula */
    int planes;                          /* of sums: with or without what was lost */
    int coef_planes;                     /* that the operation's formulas take */
    int64_t channels, positions;
    int64_t run_length; /* elements */

    form form;
    bool evenly; /* are positions a fixed distance apart? */
    bool run_is_segment;
    bool gathers;              /* are rows gathered before they are summed? */
    int64_t positions_per_row; /* more than 1 with CHANNELS_LAST alone */
    int64_t adjacent_columns;  /* neighbours in a row that belong to one channel */
    int64_t columns;           /* of a row, in the widest tile ... */
    int64_t columns_written;   /* ... or where all tiles are written together */
    int64_t channels_per_tile, tiles;
    int64_t chunks; /* of a tile */
    bool joint;     /* are tasks that write of all tiles together? */

    int64_t rows; /* of which the last may have fewer positions; of long runs, positions */
    int64_t rows_per_chunk;
    int64_t rows_per_write; /* of a task that writes, where it is joint */

    /* CHANNELS_LAST, SHORT_RUNS */
    bool row_is_segment;
    bool dense;   /* is all of the tensor one segment, row by row? */
    int64_t ring; /* numbers in a plane of the ring that writes take; 0: they take columns */
    /* Each channel's with its own coefficients, ONE_FOR_ALL? */
    bool writes_by_runs, sums_by_runs;

    /* LONG_RUNS */
    int64_t stretch; /* elements */
    int64_t positions_per_chunk;
    int64_t elements_per_chunk; /* of a run */
    int64_t chunks_per_run;
} bn_plan;

/* First what follows from the shape and the dtype alone ... */
void bn_plan_shape(bn_plan *plan, const bn_problem *p, const formula formulas[PASSES]);
/* ... then, with sums, writes and fused set, all the rest, for so many threads at most; `paired` as
 * in the kernels. */
void bn_make_plan(bn_plan *plan, int threads, bool paired);

/* Bytes per element of what the formula reads in either pass, and of what it writes too. */
int64_t bn_bytes_read(const bn_plan *plan);
int64_t bn_bytes_touched(const bn_plan *plan);

/* Columns of a row of n channels; long runs have those of a stretch, channel by channel. */
static inline int64_t columns_of(const bn_plan *plan, int64_t n) {
    return plan->form == LONG_RUNS ? plan->stretch
                                   : n * plan->positions_per_row * plan->adjacent_columns;
}

#endif
