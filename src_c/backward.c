/* backward.c: the operation. A problem becomes tasks, and a task becomes blocks
 * for the kernels; per-channel sums become coefficients and parameter gradients.
 *
 * The order of every sum is fixed here, by the shape alone. There are four forms:
 *
 *   PIXELS         inner = 1 (NXC). A row is one pixel's channels. With few channels,
 *                  `merged` rows are read as one, so that a register is full; each
 *                  column of the wide row keeps its own sums.
 *   ROWS           short rows per channel (NCX). One row of the kernel is a run of
 *                  channels, each with all its `inner` columns, of one n.
 *   LONG_ROWS      long rows per channel. A row is folded to `lanes` columns: element x
 *                  belongs to column x mod lanes. Eight stretches of that many elements,
 *                  one behind the other, are the rows of a block.
 *   PARALLEL_ROWS  the same where there are three n or more: the rows of a block are
 *                  the stretches of up to eight n at one x.
 *
 * A channel sums its columns at the end of each chunk, and chunks are added in order
 * once the tile is done. A chunk is eight streams of 17 kernel rows (PIXELS with short
 * rows: of up to 129), about CHUNK_ELEMENTS of one channel (LONG_ROWS), or up to
 * CHUNK_ROWS n times x_chunk (PARALLEL_ROWS). Tiles, threads and caches only decide who
 * works when.
 *
 * Which eight rows of a chunk are summed together follows from how memory is read
 * fastest: stretches of 128 bytes side by side, or else rows far apart. So n rows are
 * cut into eight streams of q = ceil(n/8) consecutive rows, and block g holds row g of
 * each stream. (Eight consecutive rows of 512 ... 2048 bytes: half the speed, measured.)
 *
 * Where axes cannot be merged (views with gaps), the same columns are visited in
 * several runs; where a stretch crosses a gap, or rows are not a fixed pitch apart, a
 * block is gathered in a buffer that stays in cache before it is summed.
 */
#include <stdlib.h>

#include "bn.h"
#include "fp_mode.h"
#include "kernels/kernels.h"
#include "scalar.h"
#include "schedule.h"

typedef enum { PIXELS, ROWS, LONG_ROWS, PARALLEL_ROWS } form;

enum {
    MERGE_BELOW = 128,    /* channels: from here on a pixel fills registers by itself */
    MERGED_COLUMNS = 256, /* at least, after merging */
    MERGED_UNIT = 32,     /* merged columns are a multiple of this: no tails */
    LONG_ROW = 256,       /* elements from which a row is long, or 16 for each n ... */
    LONGEST_ROW = 1024,   /* ... but not more than this (both measured) */
    PARALLEL_LEAST = 3,   /* n from which long rows are read side by side (measured) */
    LINE_BYTES = 64,
    LEAST_STREAM = 17,        /* rows of each of eight streams of a chunk: odd, since streams */
    MOST_STREAM = 129,        /* an even number of rows apart meet in one cache set */
    STREAM_BYTES = 128 << 10, /* where rows are short and many */
    CHUNK_ROWS = BN_ROWS * LEAST_STREAM, /* PARALLEL_ROWS: n at most */
    CHUNK_ELEMENTS = 32768,              /* a multiple of every block */
    SHORTEST_CHUNK = 4096,               /* PARALLEL_ROWS: bounds of x_chunk */
    LONGEST_CHUNK = 16384,
    TASKS = 64,
    PIECE = 512,                      /* elements of each of eight rows */
    PIECE_ELEMENTS = BN_ROWS * PIECE, /* what is gathered, or reduced and then scaled, at a time */
    PIECE_BYTES = 128 << 10,          /* of src and diff_dst, the same */
    APPLY_STREAMS = 4,                /* eight are slower where diff_src is written (measured) */
    FOLD_BLOCKS = 17,                 /* that 16-bit types sum in floats */
};

typedef struct {
    const bn_problem *p;
    const bn_dtype_kernels *kernels;
    bn_sum_kernel *reduce;
    bn_write_kernel *write; /* NULL: no such kernel */
    bool fused;             /* reduce and write in the first pass: frozen statistics */
    bool streaming;         /* diff_src bypasses the cache */
    int64_t size;           /* bytes of an element */
    int64_t number;         /* bytes of an arithmetic number */
    int64_t channels, outer, inner;
    double count; /* elements per channel, over all parts */

    form form;
    bool regular;           /* no gap in a row (PIXELS: nor between merged rows) */
    int64_t merged;         /* PIXELS: rows read as one */
    int64_t rows;           /* PIXELS, ROWS: kernel rows, the last one maybe shorter */
    int64_t lanes;          /* LONG_ROWS, PARALLEL_ROWS: elements of a stretch */
    int64_t chunks;         /* tasks per tile */
    int64_t x_chunk;        /* LONG_ROWS, PARALLEL_ROWS: elements of a row per chunk */
    int64_t rows_per_chunk; /* kernel rows (PIXELS, ROWS), or n */
    int64_t chunks_per_row; /* and chunks that share these n */
    int64_t tile, tiles;    /* channels per tile, tiles */
    int64_t columns;        /* of the widest tile */

    char *coefs; /* (COEFS, channels), in the arithmetic type */
    bn_sums sums;
    double *partial;      /* (chunks, planes, channels) */
    double *gamma, *rstd; /* per channel */
    double *rstd_low;     /* what rstd lacks, for double data */
    double *value;        /* per channel, for what is converted */
} work;

/* A thread's own memory. The two passes run turn by turn on different tiles, so
 * each keeps its coefficients. */
typedef struct {
    int64_t from[2]; /* the channel whose coefficients come first; -1: none laid out */
    bn_coefs coefs[2];
    char *column[2]; /* (COEFS, columns) each */
    bn_sums sums;
    int64_t pending;   /* LONG_ROWS, PARALLEL_ROWS: blocks summed since the last fold */
    char *gathered[2]; /* a piece of src and of diff_dst */
} scratch;

/* ---- where things are -------------------------------------------------- */

/* Add the offset of the index-th position along axes (the last one fastest). */
static void add_offset(const bn_axis *axes, int n, int64_t index, int64_t offset[BN_OPERANDS]) {
    for (int a = n - 1; a >= 0 && index; a--) {
        int64_t at = index;
        if (a > 0) {
            at = index % axes[a].size;
            index /= axes[a].size;
        }
        for (int o = 0; o < BN_OPERANDS; o++)
            offset[o] += at * axes[a].stride[o];
    }
}

static void place(bn_block *b, const work *w, const int64_t offset[BN_OPERANDS]) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->data[o] = (char *)((uintptr_t)w->p->data[o] + (uintptr_t)offset[o]);
}

static void shift(bn_block *b, const int64_t offset[BN_OPERANDS]) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->data[o] = (char *)((uintptr_t)b->data[o] + (uintptr_t)offset[o]);
}

/* All operands by the same number of bytes. */
static void advance(bn_block *b, int64_t bytes) {
    shift(b, (const int64_t[BN_OPERANDS]){bytes, bytes, bytes});
}

/* Offset of the index-th position of the outer axes. */
static void row_offset(const work *w, int64_t index, int64_t offset[BN_OPERANDS]) {
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = 0;
    add_offset(w->p->outer, w->p->n_outer, index, offset);
}

/* The same of one channel's row there. */
static void channel_row_offset(const work *w, int64_t channel, int64_t index,
                               int64_t offset[BN_OPERANDS]) {
    row_offset(w, index, offset);
    add_offset(&w->p->channel, 1, channel, offset);
}

static int64_t count_of(const bn_axis *axes, int n) {
    int64_t count = 1;
    for (int a = 0; a < n; a++)
        count *= axes[a].size;
    return count;
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

/* Does the axis step over exactly `elements` elements in every operand? */
static bool steps(const work *w, const bn_axis *axis, int64_t elements) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (axis->stride[o] != elements * w->size)
            return false;
    return true;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
    return b ? greatest_common_divisor(b, a % b) : a;
}

/* ---- the plan ---------------------------------------------------------- */

/* PIXELS: rows of each of a chunk's eight streams. */
static int64_t stream_rows(const work *w) {
    const int64_t long_enough = STREAM_BYTES / (w->merged * w->channels * w->size);
    const int64_t rows = at_most(at_most(long_enough, w->rows / (TASKS * BN_ROWS)), MOST_STREAM);
    return at_least(rows, LEAST_STREAM) | 1;
}

static void measure(work *w) {
    const bn_problem *p = w->p;
    w->size = bn_dtype_table[p->dtype].size;
    w->number = bn_dtype_table[p->dtype].number;
    w->channels = p->channel.size;
    w->outer = count_of(p->outer, p->n_outer);
    w->inner = count_of(p->inner, p->n_inner);
}

static void plan(work *w, int threads) {
    const bn_problem *p = w->p;
    w->merged = w->chunks_per_row = w->rows_per_chunk = 1;
    w->lanes = BN_STRETCH_BYTES / w->size;

    bn_extent e = {.channels = w->channels, .divisible = true};
    e.bytes = w->outer * w->inner * 2 * w->size;
    w->streaming = w->write && bn_streaming(w->channels * e.bytes / 2 * 3);
    if (w->inner == 1) {
        w->form = PIXELS;
        if (w->channels < MERGE_BELOW) {
            const int64_t unit = MERGED_UNIT / greatest_common_divisor(w->channels, MERGED_UNIT);
            w->merged = at_most(unit * ceil_div(MERGED_COLUMNS, unit * w->channels), w->outer);
        }
        w->rows = ceil_div(w->outer, w->merged);
        w->regular = w->merged == 1 || w->outer == 1 ||
                     (p->n_outer == 1 && steps(w, &p->outer[0], w->channels));
        w->rows_per_chunk = BN_ROWS * stream_rows(w);
        w->chunks = ceil_div(w->rows, w->rows_per_chunk);
        e.columns = 1;
        e.interleaved = true;
        e.divisible = w->merged == 1;
    } else if (w->inner < at_least(LONG_ROW, 16 * at_most(w->outer, LONGEST_ROW / 16))) {
        w->form = ROWS;
        w->rows = w->outer;
        w->regular = p->n_inner == 1 && (w->channels == 1 || steps(w, &p->channel, w->inner));
        w->rows_per_chunk = CHUNK_ROWS;
        w->chunks = ceil_div(w->rows, w->rows_per_chunk);
        e.columns = w->inner;
    } else if (w->outer < PARALLEL_LEAST) {
        w->form = LONG_ROWS;
        w->regular = p->n_inner == 1;
        w->x_chunk = CHUNK_ELEMENTS;
        w->chunks_per_row = ceil_div(w->inner, w->x_chunk);
        if (w->chunks_per_row == 1)
            w->rows_per_chunk = ceil_div(CHUNK_ELEMENTS, w->inner);
        w->chunks = ceil_div(w->outer, w->rows_per_chunk) * w->chunks_per_row;
    } else {
        w->form = PARALLEL_ROWS;
        w->regular = p->n_inner == 1;
        w->rows_per_chunk = at_most(w->outer, CHUNK_ROWS);
        /* As long as can be, but with tasks enough for many threads. */
        const int64_t parts = ceil_div(TASKS, w->channels);
        w->x_chunk = at_least(at_most(w->inner / parts, LONGEST_CHUNK), SHORTEST_CHUNK);
        w->x_chunk = ceil_div(w->x_chunk, PIECE) * PIECE;
        w->chunks_per_row = ceil_div(w->inner, w->x_chunk);
        w->chunks = ceil_div(w->outer, w->rows_per_chunk) * w->chunks_per_row;
    }

    e.chunks = w->chunks;
    w->tile = bn_tile_channels(&e, threads);
    w->tiles = ceil_div(w->channels, w->tile);
    w->columns = w->form == PIXELS ? w->tile * w->merged
                 : w->form == ROWS ? w->tile * w->inner
                                   : w->lanes;
}

/* ---- memory ------------------------------------------------------------ */

/* The next `bytes` of a block, on a cache line; with a NULL block, only counted. */
static void *take(char *block, size_t *used, int64_t count, int64_t bytes) {
    const size_t at = *used;
    size_t all;
    if (__builtin_mul_overflow((size_t)count, (size_t)bytes, &all) ||
        __builtin_add_overflow(all, 63, &all) || __builtin_add_overflow(at, all / 64 * 64, used) ||
        *used > PTRDIFF_MAX)
        *used = PTRDIFF_MAX; /* malloc refuses that much */
    return block ? block + at : NULL;
}

/* Planes that the arithmetic type uses: floats lose nothing in doubles. */
static int planes(const work *w) {
    return bn_dtype_table[w->p->dtype].summing == LOSES ? BN_PLANES : MOST_SUMS;
}

/* Are blocks summed in floats before they go into doubles? */
static bool folds(const work *w) {
    return bn_dtype_table[w->p->dtype].summing == IN_FLOATS;
}

static size_t lay_out_work(work *w, char *block) {
    size_t used = 0;
    const int64_t c = w->channels;
    w->coefs = take(block, &used, COEFS * c, w->number);
    w->sums = (bn_sums){take(block, &used, BN_PLANES * c, sizeof(double)), c, NULL};
    w->gamma = take(block, &used, c, sizeof(double));
    w->rstd = take(block, &used, c, sizeof(double));
    w->rstd_low = take(block, &used, c, sizeof(double));
    w->value = take(block, &used, c, sizeof(double));
    w->partial = take(block, &used, w->reduce ? w->chunks * planes(w) * c : 0, sizeof(double));
    return used;
}

static size_t lay_out_scratch(const work *w, scratch *s, char *block) {
    size_t used = 0;
    take(block, &used, 1, sizeof *s);
    for (int pass = 0; pass < 2; pass++) {
        s->from[pass] = -1;
        s->column[pass] = take(block, &used, COEFS * w->columns, w->number);
    }
    s->sums.stride = (w->columns + BN_PAD + 7) / 8 * 8;
    const int64_t columns = w->reduce ? s->sums.stride : 0;
    s->sums.plane = take(block, &used, planes(w) * columns, sizeof(double));
    s->sums.float_sums = take(block, &used, folds(w) ? 2 * columns : 0, sizeof(float));
    for (int o = 0; o < 2; o++)
        s->gathered[o] =
            take(block, &used, w->p->n_outer > 1 || !w->regular ? PIECE_ELEMENTS : 0, w->size);
    return used;
}

static void start(void *work_, void *scratch_) {
    lay_out_scratch(work_, scratch_, scratch_);
}

/* ---- once per channel -------------------------------------------------- */

static void set_coefs(const work *w, int which, int64_t from, int64_t n, const double *values) {
    if (w->p->dtype == BN_F64)
        memcpy((double *)w->coefs + which * w->channels + from, values, (size_t)n * sizeof *values);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)w->coefs)[which * w->channels + from + i] = (float)values[i];
}

/* What needs no sums. Double data deserves coefficients that are rounded once, so those
 * go through pairs; for the rest, doubles are far finer than the float they end as. */
static void prepare_channels(const work *w) {
    const bn_problem *p = w->p;
    const int64_t n = w->channels;
    double *value = w->value;
    vector_read(&p->vector[BN_MEAN], 0, n, value);
    set_coefs(w, COEF_MEAN, 0, n, value);
    if (!p->vector[BN_VARIANCE].data)
        return;
    vector_read(&p->vector[BN_VARIANCE], 0, n, w->rstd);
    vector_read(&p->vector[BN_GAMMA], 0, n, w->gamma);
    if (p->dtype == BN_F64)
        for (int64_t c = 0; c < n; c++) {
            const pair rstd = pair_rsqrt(pair_sum(w->rstd[c], p->epsilon));
            w->rstd[c] = rstd.high;
            w->rstd_low[c] = rstd.low;
            value[c] = pair_round(pair_times(pair_of(w->gamma[c], 0), rstd));
        }
    else
        for (int64_t c = 0; c < n; c++) {
            w->rstd[c] = 1 / sqrt(w->rstd[c] + p->epsilon);
            value[c] = w->gamma[c] * w->rstd[c];
        }
    set_coefs(w, COEF_SCALE, 0, n, value);
}

/* Inf or NaN make what was lost meaningless. */
static double rounded(double sum, double lost) {
    return isnan(sum + lost) ? sum : sum + lost;
}

/* From the sums of n channels, rounded to doubles: coefficients and parameter gradients. */
static void finish_channels(const work *w, int64_t from, int64_t n) {
    const bn_problem *p = w->p;
    const double *sum_dy = w->sums.plane + from, *sum_dy_xc = sum_dy + w->channels;
    const double *rstd = w->rstd + from, *rstd_low = w->rstd_low + from;
    double *value = w->value + from, *slope = w->gamma + from;
    for (int64_t c = 0; c < n; c++)
        value[c] = sum_dy[c] / w->count;
    set_coefs(w, COEF_SHIFT, from, n, value);
    /* gamma has done its duty: its place takes the slopes. */
    if (p->dtype == BN_F64)
        for (int64_t c = 0; c < n; c++) {
            const pair r = {rstd[c], rstd_low[c]};
            const pair diff_gamma = pair_times(pair_of(sum_dy_xc[c], 0), r);
            value[c] = pair_round(diff_gamma);
            slope[c] = pair_round(pair_over(pair_times(diff_gamma, r), w->count));
        }
    else
        for (int64_t c = 0; c < n; c++) {
            value[c] = rstd[c] * sum_dy_xc[c];
            slope[c] = rstd[c] * value[c] / w->count;
        }
    set_coefs(w, COEF_SLOPE, from, n, slope);
    if (p->vector[BN_DIFF_BETA].data)
        vector_write(&p->vector[BN_DIFF_BETA], from, n, sum_dy);
    if (p->vector[BN_DIFF_GAMMA].data)
        vector_write(&p->vector[BN_DIFF_GAMMA], from, n, value);
}

/* ---- sums -------------------------------------------------------------- */

static void clear_sums(const work *w, scratch *s, int64_t columns) {
    const size_t all = (size_t)(columns + BN_PAD);
    for (int plane = 0; plane < planes(w); plane++)
        memset(s->sums.plane + plane * s->sums.stride, 0, all * sizeof(double));
    for (int plane = 0; plane < 2 && folds(w); plane++)
        memset(s->sums.float_sums + plane * s->sums.stride, 0, all * sizeof(float));
    s->pending = 0;
}

static bn_sums from_column(const bn_sums *sums, int64_t column) {
    float *running = sums->float_sums ? sums->float_sums + column : NULL;
    return (bn_sums){sums->plane + column, sums->stride, running};
}

static bn_sums partial_of(const work *w, int64_t chunk) {
    return (bn_sums){w->partial + chunk * planes(w) * w->channels, w->channels, NULL};
}

/* A channel's columns are `merged` apart by n: the upper half of the merged rows is
 * added to the lower one, until one is left. */
static void keep_merged(const work *w, scratch *s, int64_t from, int64_t n, int64_t chunk) {
    for (int64_t m = w->merged; m > 1; m -= m / 2) {
        const bn_sums upper = from_column(&s->sums, (m - m / 2) * n);
        w->kernels->add(&s->sums, &upper, m / 2 * n);
    }
    const bn_sums to = partial_of(w, chunk);
    for (int plane = 0; plane < planes(w); plane++)
        memcpy(to.plane + plane * to.stride + from, s->sums.plane + plane * s->sums.stride,
               (size_t)n * sizeof(double));
}

static void finish_tile(void *work_, int64_t tile) {
    const work *w = work_;
    const int64_t from = tile * w->tile, n = at_most(w->tile, w->channels - from);
    const bn_sums sums = from_column(&w->sums, from);
    for (int plane = 0; plane < planes(w); plane++)
        memset(sums.plane + plane * sums.stride, 0, (size_t)n * sizeof(double));
    for (int64_t chunk = 0; chunk < w->chunks; chunk++) {
        const bn_sums all = partial_of(w, chunk), part = from_column(&all, from);
        w->kernels->add(&sums, &part, n);
    }
    for (int which = 0; planes(w) == BN_PLANES && which < MOST_SUMS; which++) {
        double *sum = sums.plane + which * sums.stride;
        const double *lost = sums.plane + (which + MOST_SUMS) * sums.stride;
        for (int64_t c = 0; c < n; c++)
            sum[c] = rounded(sum[c], lost[c]);
    }
    if (w->p->vector[BN_VARIANCE].data)
        finish_channels(w, from, n);
}

/* ---- tasks ------------------------------------------------------------- */

/* Coefficients by columns, for the n channels from `from` on. */
static const bn_coefs *coefs_of(const work *w, scratch *s, int pass, int64_t from, int64_t n) {
    if (s->from[pass] == from)
        return &s->coefs[pass];
    s->from[pass] = from;
    const int64_t each = w->form == PIXELS ? 1 : w->form == ROWS ? w->inner : w->lanes;
    const char *channel = w->coefs + from * w->number;
    const int written = w->p->training ? (1 << COEFS) - 1 : 1 << COEF_SCALE;
    const int needed = (pass == 0) << COEF_MEAN | (pass == 1 || w->fused ? written : 0);
    if (w->merged == 1 && each == 1) {
        s->coefs[pass] = (bn_coefs){channel, w->channels};
        return &s->coefs[pass];
    }
    for (int i = 0; i < COEFS; i++)
        if (needed >> i & 1)
            w->kernels->expand(channel + i * w->channels * w->number, w->merged, n, each,
                               s->column[pass] + i * w->columns * w->number);
    s->coefs[pass] = (bn_coefs){s->column[pass], w->columns};
    return &s->coefs[pass];
}

/* What a task does to each of its blocks. */
typedef struct {
    const work *w;
    scratch *s;
    bn_sum_kernel *reduce;
    bn_write_kernel *write;
    bn_coefs coefs;
    bn_sums sums;
} job;

/* A block of up to eight rows, APPLY_STREAMS of them at a time. */
static void write_block(const job *j, const bn_block *whole, const bn_coefs *coefs) {
    if (whole->rows <= APPLY_STREAMS) {
        j->write(whole, coefs);
        return;
    }
    for (int done = 0; done < whole->rows; done += APPLY_STREAMS) {
        bn_block b = *whole;
        b.rows = (int)at_most(APPLY_STREAMS, whole->rows - done);
        for (int o = 0; o < BN_OPERANDS; o++)
            b.data[o] = (char *)((uintptr_t)b.data[o] + (uintptr_t)(done * b.pitch[o]));
        j->write(&b, coefs);
    }
}

/* Reduce, write, or first the one and then the other while the block is in cache. */
static void do_block(const job *j, const bn_block *b, int64_t column) {
    const bn_coefs coefs = {(const char *)j->coefs.column + column * j->w->number, j->coefs.stride};
    const bn_sums sums = from_column(&j->sums, column);
    if (j->reduce)
        j->reduce(b, &coefs, &sums);
    if (j->write)
        write_block(j, b, &coefs);
}

/* The same, `repeats` so few at a time that what was reduced is still in cache. */
static void do_blocks(const job *j, bn_block b, int64_t column) {
    const int64_t all = b.repeats, bytes = b.rows * b.cols * j->w->size * 2;
    const int64_t few = j->reduce && j->write ? at_least(PIECE_BYTES / bytes, 1) : all;
    for (int64_t done = 0; done < all; done += few) {
        b.repeats = at_most(few, all - done);
        do_block(j, &b, column);
        int64_t past[BN_OPERANDS];
        for (int o = 0; o < BN_OPERANDS; o++)
            past[o] = few * b.step[o];
        shift(&b, past);
    }
}

/* The buffer as a block of rows of n elements. */
static bn_block gathered_block(const job *j, int64_t rows, int64_t n) {
    bn_block b = {.rows = (int)rows, .repeats = 1, .cols = n};
    b.data[BN_SRC] = j->s->gathered[0];
    b.data[BN_DIFF_DST] = b.data[BN_DIFF_SRC] = j->s->gathered[1];
    for (int o = 0; o < BN_OPERANDS; o++)
        b.pitch[o] = n * j->w->size;
    return b;
}

/* Rows that are not a fixed pitch apart: each written by itself; the rows of a block
 * brought together in a buffer, a piece of columns at a time, before they are summed. */
static void do_uneven(const job *j, const bn_block *run_block, const int64_t *index, int n,
                      int64_t column) {
    const work *w = j->w;
    job reduce = *j, write = *j;
    reduce.write = NULL;
    write.reduce = NULL;
    for (int64_t done = 0; j->reduce && done < run_block->cols; done += PIECE) {
        const bn_block b = gathered_block(j, n, at_most(PIECE, run_block->cols - done));
        for (int k = 0; k < n; k++) {
            int64_t offset[BN_OPERANDS];
            row_offset(w, index[k], offset);
            for (int o = 0; o < 2; o++)
                memcpy(j->s->gathered[o] + k * b.pitch[o],
                       run_block->data[o] + offset[o] + done * w->size, (size_t)b.pitch[o]);
        }
        do_block(&reduce, &b, column + done);
    }
    for (int k = 0; j->write && k < n; k++) {
        bn_block b = *run_block;
        b.rows = 1;
        b.repeats = 1;
        b.nontemporal = w->streaming;
        int64_t offset[BN_OPERANDS];
        row_offset(w, index[k], offset);
        shift(&b, offset);
        do_block(&write, &b, column);
    }
}

/* n kernel rows from `row` on, where row i is outer position i * merged + run, in
 * streams. run_block has data and cols; column is its first. */
static void do_rows(const job *j, const bn_block *run_block, int64_t row, int64_t n, int64_t run,
                    int64_t column) {
    const work *w = j->w;
    const bool even = w->p->n_outer <= 1;
    int64_t step[BN_OPERANDS] = {0};
    for (int o = 0; o < BN_OPERANDS && w->p->n_outer == 1; o++)
        step[o] = w->p->outer[0].stride[o] * w->merged;
    int64_t q = ceil_div(n, j->reduce ? BN_ROWS : APPLY_STREAMS);
    if (!j->reduce && w->streaming && q * step[BN_DIFF_SRC] % LINE_BYTES)
        q = n; /* streams would meet register boundaries at different columns */
    const int64_t streams = ceil_div(n, q), last = n - (streams - 1) * q;
    const bn_sums sums = from_column(&j->sums, column);
    /* Blocks 0 ... last-1 hold a row of every stream; the last stream has no more. */
    for (int64_t g = 0, pending = 0; g < q;) {
        bn_block b = *run_block;
        b.rows = (int)(g < last ? streams : streams - 1);
        b.repeats = even ? (g < last ? last : q) - g : 1;
        if (j->reduce && folds(w))
            b.repeats = at_most(b.repeats, FOLD_BLOCKS - pending);
        b.nontemporal = w->streaming;
        if (even) {
            int64_t offset[BN_OPERANDS];
            row_offset(w, (row + g) * w->merged + run, offset);
            shift(&b, offset);
            for (int o = 0; o < BN_OPERANDS; o++) {
                b.step[o] = step[o];
                b.pitch[o] = q * step[o];
            }
            do_blocks(j, b, column);
        } else {
            int64_t index[BN_ROWS];
            for (int k = 0; k < b.rows; k++)
                index[k] = (row + k * q + g) * w->merged + run;
            do_uneven(j, run_block, index, b.rows, column);
        }
        g += b.repeats;
        pending += b.repeats;
        if (j->reduce && folds(w) && (pending == FOLD_BLOCKS || g == q)) {
            w->kernels->flush(&sums, run_block->cols);
            pending = 0;
        }
    }
}

static void pixels(const job *j, int64_t from, int64_t n, int64_t chunk) {
    const work *w = j->w;
    const int64_t row = chunk * w->rows_per_chunk;
    const int64_t end = at_most(row + w->rows_per_chunk, w->rows);
    const int64_t full = at_most(end, w->outer / w->merged), runs = w->regular ? 1 : w->merged;
    int64_t offset[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = from * w->p->channel.stride[o];
    bn_block b = {.cols = w->regular ? n * w->merged : n};
    place(&b, w, offset);
    for (int64_t run = 0; full > row && run < runs; run++)
        do_rows(j, &b, row, full - row, run, run * n);
    if (full < end) { /* the rest of the last wide row */
        const int64_t rest = w->outer - full * w->merged;
        b.cols = w->regular ? n * rest : n;
        for (int64_t run = 0; run < (w->regular ? 1 : rest); run++)
            do_rows(j, &b, full, 1, run, run * n);
    }
}

static void rows(const job *j, int64_t from, int64_t n, int64_t chunk) {
    const work *w = j->w;
    const bn_problem *p = w->p;
    const int64_t length = w->regular ? n * w->inner : p->inner[p->n_inner - 1].size;
    const int64_t runs = w->regular ? 1 : w->inner / length;
    const int64_t row = chunk * w->rows_per_chunk;
    const int64_t count = at_most(w->rows_per_chunk, w->rows - row);
    bn_block b = {.cols = length};
    for (int64_t c = 0; c < (w->regular ? 1 : n); c++)
        for (int64_t run = 0; run < runs; run++) {
            int64_t offset[BN_OPERANDS];
            for (int o = 0; o < BN_OPERANDS; o++)
                offset[o] = (from + c) * p->channel.stride[o];
            add_offset(p->inner, p->n_inner - 1, run, offset);
            place(&b, w, offset);
            do_rows(j, &b, row, count, 0, c * w->inner + run * length);
        }
}

/* Blocks of `lanes` columns, folded every FOLD_BLOCKS; b ends up behind them. */
static void reduce_lanes(const job *j, bn_block *b, int64_t blocks) {
    for (int64_t most = blocks, done; blocks > 0; blocks -= done) {
        if (folds(j->w))
            most = FOLD_BLOCKS - j->s->pending;
        b->repeats = done = at_most(most, blocks);
        j->reduce(b, &j->coefs, &j->sums);
        advance(b, done * b->step[BN_SRC]);
        j->s->pending += done;
        if (folds(j->w) && j->s->pending == FOLD_BLOCKS) {
            j->w->kernels->flush(&j->sums, j->w->lanes);
            j->s->pending = 0;
        }
    }
}

/* n neighbouring elements, in stretches of `lanes`: blocks of eight stretches, then one
 * of what is left of eight, then what is left of a stretch. */
static void reduce_run(const job *j, const bn_block *run, int64_t n) {
    const int64_t lanes = j->w->lanes, size = j->w->size, block = BN_ROWS * lanes;
    const int64_t blocks = n / block, rows = n % block / lanes, tail = n % lanes;
    bn_block b = *run;
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.step[o] = block * size;
        b.pitch[o] = lanes * size;
    }
    b.rows = BN_ROWS;
    b.cols = lanes;
    reduce_lanes(j, &b, blocks);
    b.rows = (int)rows;
    reduce_lanes(j, &b, rows != 0);
    for (int o = 0; o < BN_OPERANDS; o++)
        b.data[o] = run->data[o];
    advance(&b, (n - tail) * size);
    b.rows = 1;
    b.cols = tail;
    reduce_lanes(j, &b, tail != 0);
}

/* b holds the starts of its rows, all of one channel: n elements of each. */
static void write_columns(const job *j, bn_block *b, int64_t n) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->step[o] = 0;
    b->cols = n;
    b->repeats = 1;
    b->nontemporal = j->w->streaming;
    b->uniform = true;
    write_block(j, b, &j->coefs);
}

/* n neighbouring elements. */
static void write_run(const job *j, const bn_block *run, int64_t n) {
    bn_block b = *run;
    b.rows = 1;
    write_columns(j, &b, n);
}

/* The run of neighbours at element x of a row with gaps: its place, and how many of n
 * elements it has. */
static int64_t run_at(const work *w, const int64_t row[BN_OPERANDS], int64_t x, int64_t n,
                      bn_block *b) {
    const bn_problem *p = w->p;
    const int64_t length = p->inner[p->n_inner - 1].size, at = x % length;
    int64_t offset[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = row[o] + at * w->size;
    add_offset(p->inner, p->n_inner - 1, x / length, offset);
    place(b, w, offset);
    return at_most(length - at, n);
}

/* n elements, from x on, of a row, brought together as row k of the buffer. */
static void gather(const job *j, const int64_t row[BN_OPERANDS], int64_t x, int64_t n, int64_t k) {
    const int64_t size = j->w->size;
    bn_block b;
    for (int64_t done = 0, take; done < n; done += take) {
        take = run_at(j->w, row, x + done, n - done, &b);
        for (int o = 0; o < 2; o++)
            memcpy(j->s->gathered[o] + (k * n + done) * size, b.data[o], (size_t)(take * size));
    }
}

/* n elements, from x on, of a row with gaps: summed from a buffer where they are
 * neighbours, written run by run. */
static void do_scattered(const job *j, const int64_t row[BN_OPERANDS], int64_t x, int64_t n) {
    if (j->reduce) {
        gather(j, row, x, n, 0);
        const bn_block b = gathered_block(j, 1, n);
        reduce_run(j, &b, n);
    }
    bn_block b = {.rows = 0};
    for (int64_t done = 0, take; j->write && done < n; done += take) {
        take = run_at(j->w, row, x + done, n - done, &b);
        write_run(j, &b, take);
    }
}

/* Elements x ... x + n - 1 of one row of a channel: all at once where they are
 * neighbours and only one thing is to be done, else in pieces. */
static void do_row(const job *j, int64_t channel, int64_t index, int64_t x, int64_t n) {
    const work *w = j->w;
    const bool pieces = j->reduce && j->write;
    int64_t row[BN_OPERANDS];
    channel_row_offset(w, channel, index, row);
    for (int64_t done = 0, length; done < n; done += length) {
        length = !w->regular ? at_most(PIECE_ELEMENTS, n - done)
                 : pieces    ? at_most(PIECE_BYTES / (2 * w->size), n - done)
                             : n - done;
        if (!w->regular) {
            do_scattered(j, row, x + done, length);
            continue;
        }
        bn_block b = {.rows = 0};
        place(&b, w, row);
        advance(&b, (x + done) * w->size);
        if (j->reduce)
            reduce_run(j, &b, length);
        if (j->write)
            write_run(j, &b, length);
    }
}

/* What a chunk of LONG_ROWS or PARALLEL_ROWS is. */
typedef struct {
    int64_t channel, row, rows, x, length;
} patch;

static patch patch_of(const work *w, int64_t channel, int64_t chunk) {
    const int64_t row = chunk / w->chunks_per_row * w->rows_per_chunk;
    const int64_t x = chunk % w->chunks_per_row * w->x_chunk;
    return (patch){channel, row, at_most(w->rows_per_chunk, w->outer - row), x,
                   at_most(w->x_chunk, w->inner - x)};
}

static void long_rows(const job *j, const patch *a) {
    for (int64_t n = 0; n < a->rows; n++)
        do_row(j, a->channel, a->row + n, a->x, a->length);
}

/* b holds the starts of its rows: n elements of each, `lanes` columns at a time. */
static void reduce_columns(const job *j, bn_block *b, int64_t n) {
    const work *w = j->w;
    for (int o = 0; o < BN_OPERANDS; o++)
        b->step[o] = w->lanes * w->size;
    b->cols = w->lanes;
    reduce_lanes(j, b, n / w->lanes);
    b->cols = n % w->lanes;
    reduce_lanes(j, b, b->cols != 0);
}

/* Make b's rows start at row g of each of `streams`, at element x, q rows apart. Field by
 * field: a whole block, just written in parts, is slow to copy. */
static void set_head(bn_block *b, const work *w, const patch *a, int64_t g, int64_t q,
                     int64_t streams, int64_t x) {
    int64_t offset[BN_OPERANDS];
    channel_row_offset(w, a->channel, a->row + g, offset);
    b->rows = (int)streams;
    for (int o = 0; o < BN_OPERANDS; o++) {
        b->data[o] = (char *)((uintptr_t)w->p->data[o] + (uintptr_t)(offset[o] + x * w->size));
        b->pitch[o] = q * w->p->outer[0].stride[o];
    }
}

/* The same brought together from rows with gaps or at uneven distances. */
static bn_block gathered_of(const job *j, const patch *a, int64_t g, int64_t q, int64_t streams,
                            int64_t x, int64_t n) {
    for (int64_t k = 0; k < streams; k++) {
        int64_t row[BN_OPERANDS];
        channel_row_offset(j->w, a->channel, a->row + k * q + g, row);
        gather(j, row, x, n, k);
    }
    return gathered_block(j, streams, n);
}

/* Writing (frozen statistics: after each piece), four rows at once where their lines of
 * diff_src begin at the same columns. */
static void reduce_parallel(const job *j, const patch *a) {
    const work *w = j->w;
    const bool even = w->regular && w->p->n_outer == 1;
    const bool together =
        even && !(w->streaming && w->p->outer[0].stride[BN_DIFF_SRC] % LINE_BYTES);
    const int64_t q = ceil_div(a->rows, BN_ROWS), streams = ceil_div(a->rows, q);
    const int64_t last = a->rows - (streams - 1) * q;
    job write = *j;
    write.reduce = NULL;
    for (int64_t g = 0; g < q; g++) {
        const int64_t here = g < last ? streams : streams - 1;
        for (int64_t done = 0, n; done < a->length; done += n) {
            n = !even      ? at_most(PIECE, a->length - done)
                : j->write ? at_most(PIECE_BYTES / (2 * BN_ROWS * w->size), a->length - done)
                           : a->length;
            bn_block b;
            if (even)
                set_head(&b, w, a, g, q, here, a->x + done);
            else
                b = gathered_of(j, a, g, q, here, a->x + done, n);
            reduce_columns(j, &b, n);
            if (j->write && together) {
                set_head(&b, w, a, g, q, here, a->x + done);
                write_columns(j, &b, n);
            } else {
                for (int64_t k = 0; j->write && k < here; k++)
                    do_row(&write, a->channel, a->row + k * q + g, a->x + done, n);
            }
        }
    }
}

static void write_parallel(const job *j, const patch *a) {
    const work *w = j->w;
    const bool even = w->regular && w->p->n_outer == 1;
    const int64_t q = ceil_div(a->rows, APPLY_STREAMS), streams = ceil_div(a->rows, q);
    if (!even || (w->streaming && q * w->p->outer[0].stride[BN_DIFF_SRC] % LINE_BYTES)) {
        long_rows(j, a);
        return;
    }
    const int64_t last = a->rows - (streams - 1) * q;
    for (int64_t g = 0; g < q; g++) {
        bn_block b;
        set_head(&b, w, a, g, q, g < last ? streams : streams - 1, a->x);
        write_columns(j, &b, a->length);
    }
}

/* One chunk of the n channels from `from` on; n is 1 for LONG_ROWS and PARALLEL_ROWS. */
static void do_chunk(const work *w, scratch *s, int pass, int64_t from, int64_t n, int64_t chunk) {
    const job j = {
        .w = w,
        .s = s,
        .reduce = pass == 0 ? w->reduce : NULL,
        .write = pass == 1 || w->fused ? w->write : NULL,
        .coefs = *coefs_of(w, s, pass, from, n),
        .sums = s->sums,
    };
    const int64_t columns = w->form == PIXELS ? n * w->merged
                            : w->form == ROWS ? n * w->inner
                                              : w->lanes;
    if (j.reduce)
        clear_sums(w, s, columns);
    if (w->form == PIXELS)
        pixels(&j, from, n, chunk);
    else if (w->form == ROWS)
        rows(&j, from, n, chunk);
    else {
        const patch a = patch_of(w, from, chunk);
        if (w->form == LONG_ROWS)
            long_rows(&j, &a);
        else if (j.reduce)
            reduce_parallel(&j, &a);
        else
            write_parallel(&j, &a);
    }
    if (!j.reduce)
        return;
    if (folds(w) && s->pending)
        w->kernels->flush(&s->sums, columns);
    if (w->form == PIXELS) {
        keep_merged(w, s, from, n, chunk);
        return;
    }
    const int64_t each = w->form == ROWS ? w->inner : w->lanes;
    const bn_sums all = partial_of(w, chunk);
    for (int64_t c = 0; c < n; c++) {
        const bn_sums own = from_column(&s->sums, c * each), to = from_column(&all, from + c);
        w->kernels->sum_columns(&own, each, &to);
    }
}

static void task(const work *w, scratch *s, int pass, int64_t tile, int64_t chunk) {
    const int64_t from = tile * w->tile, n = at_most(w->tile, w->channels - from);
    if (w->form < LONG_ROWS)
        do_chunk(w, s, pass, from, n, chunk);
    else
        for (int64_t c = from; c < from + n; c++)
            do_chunk(w, s, pass, c, 1, chunk);
}

static void first_task(void *work_, void *scratch_, int64_t tile, int64_t chunk) {
    task(work_, scratch_, 0, tile, chunk);
}

static void second_task(void *work_, void *scratch_, int64_t tile, int64_t chunk) {
    task(work_, scratch_, 1, tile, chunk);
}

/* ---- the three entries ------------------------------------------------- */

/* A problem, or a part of one, without elements: the parameter gradients are those of the
 * whole, zeros where that has no elements either. */
static bn_status run_empty(work *w, const double *given, double *wanted) {
    const bn_problem *p = w->p;
    const size_t sums = (size_t)(2 * w->channels) * sizeof *given;
    if (wanted) {
        memset(wanted, 0, sums);
        return BN_OK;
    }
    if (!p->vector[BN_DIFF_GAMMA].data && !p->vector[BN_DIFF_BETA].data)
        return BN_OK;
    char *memory = malloc(lay_out_work(w, NULL));
    if (!memory)
        return BN_NO_MEMORY;
    lay_out_work(w, memory);
    if (w->count > 0) {
        prepare_channels(w);
        memcpy(w->sums.plane, given, sums);
        finish_channels(w, 0, w->channels);
    } else {
        memset(w->value, 0, (size_t)w->channels * sizeof *w->value);
        if (p->vector[BN_DIFF_GAMMA].data)
            vector_write(&p->vector[BN_DIFF_GAMMA], 0, w->channels, w->value);
        if (p->vector[BN_DIFF_BETA].data)
            vector_write(&p->vector[BN_DIFF_BETA], 0, w->channels, w->value);
    }
    free(memory);
    return BN_OK;
}

/* The call with so many threads at most. */
static bn_status run_on(work *w, int threads, const double *given, double *wanted) {
    plan(w, threads);
    char *memory = malloc(lay_out_work(w, NULL) + 64);
    if (!memory)
        return BN_NO_MEMORY;
    lay_out_work(w, (char *)(((uintptr_t)memory + 63) / 64 * 64));
    scratch measured;
    const bn_schedule s = {
        .tiles = w->tiles,
        .tasks = w->chunks,
        .tile_bytes = w->tile * w->outer * w->inner * w->size * 2,
        .first = w->reduce ? first_task : NULL,
        .second = w->write && !w->fused ? second_task : NULL,
        .finish = finish_tile,
        .start = start,
        .work = w,
        .scratch = lay_out_scratch(w, &measured, NULL),
    };
    bn_status status = BN_NO_MEMORY;
    char *team = bn_schedule_memory(&s, threads);
    if (team) {
        prepare_channels(w);
        if (given) {
            memcpy(w->sums.plane, given, (size_t)(2 * w->channels) * sizeof *given);
            finish_channels(w, 0, w->channels);
        }
        bn_schedule_run(&s, threads, team);
        if (wanted)
            memcpy(wanted, w->sums.plane, (size_t)(2 * w->channels) * sizeof *wanted);
        status = BN_OK;
    }
    free(team);
    free(memory);
    return status;
}

/* Sums given: no first pass. Sums wanted: no second one. */
static bn_status run(const bn_problem *p, const double *given, double *wanted, double count) {
    work w = {.p = p, .kernels = &bn_kernels_current()->dtype[p->dtype]};
    const formula f = p->training ? BACKWARD : FROZEN;
    const bool param_grads = p->vector[BN_DIFF_GAMMA].data || p->vector[BN_DIFF_BETA].data;
    w.fused = !p->training && param_grads && !given && !wanted;
    w.reduce = wanted || w.fused || (p->training && !given) ? w.kernels->sum[f] : NULL;
    w.write = wanted ? NULL : w.kernels->write[f];
    measure(&w);
    w.count = count > 0 ? count : (double)w.outer * (double)w.inner;
    const int64_t elements = w.outer * w.channels * w.inner;
    if (elements == 0) {
        w.reduce = NULL;
        return run_empty(&w, given, wanted);
    }
    const int threads = bn_enter(p->num_threads, elements);
    const bn_status status = run_on(&w, threads, given, wanted);
    bn_leave(threads);
    return status;
}

static bn_status run_in_default_mode(const bn_problem *p, const double *given, double *wanted,
                                     double count) {
    const uint64_t mode = fp_mode_enter();
    const bn_status status = run(p, given, wanted, count);
    fp_mode_leave(mode);
    return status;
}

bn_status bn_backward(const bn_problem *p) {
    return run_in_default_mode(p, NULL, NULL, 0);
}

bn_status bn_backward_reduce(const bn_problem *p, double *sums) {
    return run_in_default_mode(p, NULL, sums, 0);
}

bn_status bn_backward_apply(const bn_problem *p, const double *sums, double count) {
    return run_in_default_mode(p, sums, NULL, count);
}
