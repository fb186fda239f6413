/* plan.h: how a problem is divided. See plan.c, which has the glossary. */
#ifndef BN_PLAN_H
#define BN_PLAN_H

#include "bn.h"
#include "kernels/kernels.h"

typedef enum { CHANNELS_LAST, SHORT_RUNS, LONG_RUNS } form;

enum {
    /* Elements that are gathered at a time from each of four rows: whole groups. With two float32
     * operands, all that is gathered fills 32 kB, a first-level cache. */
    PIECE = 1024,
    PIECE_ELEMENTS = BN_ROWS * PIECE,
    /* Bytes that are read when a piece is summed and then written. With the results, they fit
     * 256 kB, a small second-level cache. */
    PIECE_BYTES = 128 << 10,
};

/* What a row is made of, with CHANNELS_LAST or SHORT_RUNS. */
typedef struct {
    int64_t positions; /* whose runs it holds; more than 1 only with CHANNELS_LAST */
    bool is_segment;   /* is a whole row one segment? */
    bool dense;        /* do the rows that a task writes make up one segment? */
    int64_t ring;      /* numbers per coefficient in the ring for writes; 0: no ring */
} bn_plan_of_row;

/* What a run is cut into, with LONG_RUNS. */
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
    int planes;                         /* of sums, and of their compensations if there are any */
    int coef_planes;                    /* of coefficients that the operation's formulas take */
    bool sums;                          /* is anything summed? */
    bool writes;                        /* is anything written? */
    bool fused;       /* both in one pass, since what is written depends on no sum */
    bool nontemporal; /* do stores bypass the cache? */
    bool far;         /* do the tensors exceed the second-level cache? */

    form form;
    bn_plan_of_row row;
    bn_plan_of_run run;
    bool gathers;         /* are rows gathered before they are summed? */
    bool by_runs[PASSES]; /* is each run done by itself, with coefficients ONE_FOR_ALL? */
    /* Of a row of the widest tile. WRITE: of all channels if joint. SUM: 0 if kept in registers. */
    int64_t columns[PASSES];
    int64_t rows; /* the last may be shorter; with long runs, a row is a position */
    int64_t rows_per_chunk;
    int64_t chunks; /* of a tile */

    int64_t channels_per_tile, tiles;
    bool joint;             /* does each write task span all tiles? */
    int64_t rows_per_write; /* of a joint task */
} bn_plan;

/* First set what follows from the shape and the dtype alone. */
void bn_plan_shape(bn_plan *plan, const bn_problem *p, const formula formulas[PASSES]);
/* Then, with `sums`, `writes` and `fused` set, make the rest of the plan for at most `threads`
 * threads; `paired` is as in bn_dtype_kernels. */
void bn_make_plan(bn_plan *plan, int threads, bool paired);

/* In each of these operands, are the runs of all channels contiguous at each position and, if
 * `among_positions`, from one position to the next? */
bool bn_is_dense(const bn_plan *plan, bool among_positions, unsigned operands);

/* Bytes read per element, of all operands that either pass reads. */
int64_t bn_bytes_read(const bn_plan *plan);

/* Columns of a row of n channels. With long runs, each channel in turn has the columns of a
 * stretch. */
static inline int64_t columns_of(const bn_plan *plan, int64_t n) {
    return plan->form == LONG_RUNS ? plan->run.stretch : n * plan->row.positions * plan->run_length;
}

#endif
