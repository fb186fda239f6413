/* backward.c: the operation. A problem becomes tasks, and a task becomes blocks
 * for the kernels; per-channel sums become coefficients and parameter gradients.
 *
 * The order of every sum is fixed here, by the shape alone. There are three forms:
 *
 *   PIXELS      inner = 1 (NXC). A row is one pixel's channels. With few channels,
 *               `merged` rows are read as one, so that a register is full; each
 *               column of the wide row keeps its own sums.
 *   ROWS        short rows per channel (NCX). One row of the kernel is a run of
 *               channels, each with all its `inner` columns, of one n.
 *   LONG_ROWS   long rows per channel. A row is folded to LANES columns: element
 *               x belongs to column x mod LANES, and up to eight stretches of
 *               LANES elements are the rows of a block.
 *
 * A column sums its rows in blocks of eight from the start of each chunk, a
 * channel sums its columns at the end of each chunk, and chunks are added in
 * order once the tile is done. Chunks are CHUNK_ROWS kernel rows (PIXELS, ROWS)
 * or about CHUNK_ELEMENTS of one channel (LONG_ROWS). Tiles, threads and caches
 * only decide who works when.
 *
 * Where axes cannot be merged (views with gaps), the same columns are visited in
 * several runs; where a LONG_ROWS block crosses a gap, its elements are gathered
 * in a buffer of one block before they are summed.
 */
#include <stdlib.h>

#include "bn.h"
#include "fp_mode.h"
#include "scalar.h"
#include "schedule.h"

typedef enum { PIXELS, ROWS, LONG_ROWS } form;

enum {
    MERGE_BELOW = 128,    /* channels: from here on a pixel fills registers by itself */
    MERGED_COLUMNS = 256, /* at least, after merging */
    MERGED_UNIT = 32,     /* merged columns are a multiple of this: no tails */
    LONG_ROW = 1024,      /* elements from which a row is long */
    LANES = 256,
    BLOCK = BN_ROWS * LANES,
    CHUNK_ROWS = 128,
    CHUNK_ELEMENTS = 16 * BLOCK,
};

typedef struct {
    const bn_problem *p;
    const bn_dtype_kernels *kernels;
    bn_kernel *first, *second; /* NULL: no such pass */
    int64_t size;              /* bytes of an element */
    int64_t number;            /* bytes of an arithmetic number */
    int64_t channels, outer, inner;
    double count; /* elements per channel, over all parts */

    form form;
    bool regular;           /* each block is one run of columns (LONG_ROWS: of elements) */
    int64_t merged;         /* PIXELS: rows read as one */
    int64_t rows;           /* PIXELS, ROWS: kernel rows, the last one maybe shorter */
    int64_t chunks;         /* tasks per tile */
    int64_t rows_per_chunk; /* LONG_ROWS with rows shorter than a chunk */
    int64_t chunks_per_row; /* LONG_ROWS with longer ones, else 1 */
    int64_t tile, tiles;    /* channels per tile, tiles */
    int64_t columns;        /* of the widest tile */

    char *coef[BN_COEFS]; /* per channel, in the arithmetic type */
    double *partial;      /* (chunks, BN_PLANES, channels) */
    double *sums;         /* (2, channels), rounded to doubles */
    pair *rstd;           /* per channel */
} work;

/* A thread's own memory. The two passes run turn by turn on different tiles, so
 * each keeps its coefficients. */
typedef struct {
    int64_t from[2]; /* the channel whose coefficients come first; -1: none laid out */
    bn_coefs coefs[2];
    char *column[2][BN_COEFS];
    bn_sums sums;
    char *gathered[2]; /* one block of src and of diff_dst */
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

/* Rows row, row + step, ... of the outer axes. */
static void place_rows(bn_block *b, const work *w, int64_t row, int64_t step) {
    for (int k = 0; k < b->rows; k++) {
        int64_t offset[BN_OPERANDS] = {0};
        add_offset(w->p->outer, w->p->n_outer, row + k * step, offset);
        for (int o = 0; o < BN_OPERANDS; o++)
            b->row[o][k] = offset[o];
    }
}

static int64_t count_of(const bn_axis *axes, int n) {
    int64_t count = 1;
    for (int a = 0; a < n; a++)
        count *= axes[a].size;
    return count;
}

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
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

static void plan(work *w, int threads) {
    const bn_problem *p = w->p;
    w->size = dtype_size(p->dtype);
    w->number = p->dtype == BN_F64 ? 8 : 4;
    w->channels = p->channel.size;
    w->outer = count_of(p->outer, p->n_outer);
    w->inner = count_of(p->inner, p->n_inner);
    w->merged = w->chunks_per_row = w->rows_per_chunk = 1;

    bn_extent e = {.channels = w->channels, .columns = 1, .divisible = true};
    e.bytes = w->outer * w->inner * 2 * w->size;
    if (w->inner == 1) {
        w->form = PIXELS;
        if (w->channels < MERGE_BELOW) {
            const int64_t unit = MERGED_UNIT / greatest_common_divisor(w->channels, MERGED_UNIT);
            w->merged = at_most(unit * ceil_div(MERGED_COLUMNS, unit * w->channels), w->outer);
        }
        w->rows = ceil_div(w->outer, w->merged);
        w->regular = w->merged == 1 || w->outer == 1 ||
                     (p->n_outer == 1 && steps(w, &p->outer[0], w->channels));
        w->chunks = ceil_div(w->rows, CHUNK_ROWS);
        e.interleaved = true;
        e.divisible = w->merged == 1;
    } else if (w->inner < LONG_ROW) {
        w->form = ROWS;
        w->rows = w->outer;
        w->regular = p->n_inner == 1 && (w->channels == 1 || steps(w, &p->channel, w->inner));
        w->chunks = ceil_div(w->rows, CHUNK_ROWS);
        e.columns = w->inner;
    } else {
        w->form = LONG_ROWS;
        w->regular = p->n_inner == 1;
        if (w->inner >= CHUNK_ELEMENTS) {
            w->chunks_per_row = ceil_div(w->inner, CHUNK_ELEMENTS);
            w->chunks = w->outer * w->chunks_per_row;
        } else {
            w->rows_per_chunk = ceil_div(CHUNK_ELEMENTS, w->inner);
            w->chunks = ceil_div(w->outer, w->rows_per_chunk);
        }
    }

    e.chunks = w->chunks;
    w->tile = bn_tile_channels(&e, threads);
    w->tiles = ceil_div(w->channels, w->tile);
    w->columns = w->form == PIXELS ? w->tile * w->merged
                 : w->form == ROWS ? w->tile * w->inner
                                   : LANES;
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

static size_t lay_out_work(work *w, char *block) {
    size_t used = 0;
    for (int i = 0; i < BN_COEFS; i++)
        w->coef[i] = take(block, &used, w->channels, w->number);
    w->sums = take(block, &used, 2 * w->channels, sizeof(double));
    w->rstd = take(block, &used, w->channels, sizeof(pair));
    w->partial =
        take(block, &used, w->first ? w->chunks * BN_PLANES * w->channels : 0, sizeof(double));
    return used;
}

/* Planes that the arithmetic type uses: floats lose nothing in doubles. */
static int planes(const work *w) {
    return w->p->dtype == BN_F64 ? BN_PLANES : BN_LOST_DY;
}

static size_t lay_out_scratch(const work *w, scratch *s, char *block) {
    size_t used = 0;
    take(block, &used, 1, sizeof *s);
    for (int pass = 0; pass < 2; pass++) {
        s->from[pass] = -1;
        for (int i = 0; i < BN_COEFS; i++)
            s->column[pass][i] = take(block, &used, w->columns, w->number);
    }
    s->sums.stride = (w->columns + BN_PAD + 7) / 8 * 8;
    s->sums.plane = take(block, &used, w->first ? planes(w) * s->sums.stride : 0, sizeof(double));
    for (int o = 0; o < 2; o++)
        s->gathered[o] =
            take(block, &used, w->form == LONG_ROWS && !w->regular ? BLOCK : 0, w->size);
    return used;
}

static void start(void *work_, void *scratch_) {
    lay_out_scratch(work_, scratch_, scratch_);
}

/* ---- once per channel -------------------------------------------------- */

static double parameter(const bn_vector *v, int64_t c) {
    return v->data ? vector_get(v, c) : 1;
}

static void set_coef(const work *w, int which, int64_t c, double value) {
    if (w->p->dtype == BN_F64)
        ((double *)w->coef[which])[c] = value;
    else
        ((float *)w->coef[which])[c] = (float)value;
}

/* What needs no sums. Double data deserves coefficients that are rounded once, so those
 * go through pairs; for the rest, doubles are far finer than the float they end as. */
static void prepare_channels(const work *w) {
    const bn_problem *p = w->p;
    for (int64_t c = 0; c < w->channels; c++) {
        set_coef(w, BN_MEAN, c, parameter(&p->mean, c));
        if (!p->variance.data)
            continue;
        const double variance = parameter(&p->variance, c), gamma = parameter(&p->gamma, c);
        const pair rstd = p->dtype == BN_F64 ? pair_rsqrt(pair_sum(variance, p->epsilon))
                                             : pair_of(1 / sqrt(variance + p->epsilon), 0);
        w->rstd[c] = rstd;
        set_coef(w, BN_SCALE, c,
                 p->dtype == BN_F64 ? pair_round(pair_times(pair_of(gamma, 0), rstd))
                                    : gamma * rstd.high);
    }
}

static void finish_channel(const work *w, int64_t c, double sum_dy, double sum_dy_xc) {
    const bn_problem *p = w->p;
    const pair rstd = w->rstd[c];
    double diff_gamma, slope;
    if (p->dtype == BN_F64) {
        const pair product = pair_times(pair_of(sum_dy_xc, 0), rstd);
        diff_gamma = pair_round(product);
        slope = pair_round(pair_over(pair_times(product, rstd), w->count));
    } else {
        diff_gamma = rstd.high * sum_dy_xc;
        slope = rstd.high * diff_gamma / w->count;
    }
    set_coef(w, BN_SHIFT, c, sum_dy / w->count);
    set_coef(w, BN_SLOPE, c, slope);
    if (p->diff_beta.data)
        vector_set(&p->diff_beta, c, sum_dy);
    if (p->diff_gamma.data)
        vector_set(&p->diff_gamma, c, diff_gamma);
}

/* ---- sums -------------------------------------------------------------- */

static void clear_sums(const work *w, scratch *s, int64_t columns) {
    for (int plane = 0; plane < planes(w); plane++)
        memset(s->sums.plane + plane * s->sums.stride, 0,
               (size_t)(columns + BN_PAD) * sizeof(double));
}

static void keep_total(const work *w, int64_t chunk, int64_t c, const double total[BN_PLANES]) {
    double *to = w->partial + chunk * BN_PLANES * w->channels + c;
    for (int plane = 0; plane < BN_PLANES; plane++)
        to[plane * w->channels] = total[plane];
}

static void add_to_total(double total[BN_PLANES], int which, double term, double lost) {
    const pair sum = pair_sum(total[which], term);
    total[which] = sum.high;
    total[which + BN_LOST_DY] += sum.low + lost;
}

/* A channel's columns are `merged` apart by `channels`. */
static void total_merged(const work *w, scratch *s, int64_t c, double total[BN_PLANES]) {
    for (int64_t m = 0; m < w->merged; m++)
        for (int which = BN_SUM_DY; which <= BN_SUM_DY_XC; which++) {
            const double *at = s->sums.plane + which * s->sums.stride + m * w->channels + c;
            const double lost = planes(w) == BN_PLANES ? at[BN_LOST_DY * s->sums.stride] : 0;
            add_to_total(total, which, *at, lost);
        }
}

/* Inf or NaN make what was lost meaningless. */
static double rounded(double sum, double lost) {
    return isnan(sum + lost) ? sum : sum + lost;
}

static void finish_tile(void *work_, int64_t tile) {
    const work *w = work_;
    const int64_t end = at_most((tile + 1) * w->tile, w->channels);
    for (int64_t c = tile * w->tile; c < end; c++) {
        double total[BN_PLANES] = {0};
        for (int64_t chunk = 0; chunk < w->chunks; chunk++) {
            const double *from = w->partial + chunk * BN_PLANES * w->channels + c;
            for (int which = BN_SUM_DY; which <= BN_SUM_DY_XC; which++)
                add_to_total(total, which, from[which * w->channels],
                             from[(which + BN_LOST_DY) * w->channels]);
        }
        const double sum_dy = rounded(total[BN_SUM_DY], total[BN_LOST_DY]);
        const double sum_dy_xc = rounded(total[BN_SUM_DY_XC], total[BN_LOST_DY_XC]);
        w->sums[c] = sum_dy;
        w->sums[w->channels + c] = sum_dy_xc;
        if (w->p->variance.data)
            finish_channel(w, c, sum_dy, sum_dy_xc);
    }
}

/* ---- tasks ------------------------------------------------------------- */

/* Coefficients by columns, for the n channels from `from` on. */
static const bn_coefs *coefs_of(const work *w, scratch *s, int pass, int64_t from, int64_t n) {
    if (s->from[pass] == from)
        return &s->coefs[pass];
    s->from[pass] = from;
    const int64_t each = w->form == PIXELS ? 1 : w->form == ROWS ? w->inner : LANES;
    for (int i = 0; i < BN_COEFS; i++) {
        const char *channel = w->coef[i] + from * w->number;
        char *column = s->column[pass][i];
        if (w->merged == 1 && each == 1) {
            s->coefs[pass].column[i] = channel;
            continue;
        }
        w->kernels->expand(channel, w->merged, n, each, column);
        s->coefs[pass].column[i] = column;
    }
    return &s->coefs[pass];
}

static void call(const work *w, bn_kernel *kernel, const bn_block *b, const bn_coefs *coefs,
                 const bn_sums *sums, int64_t column) {
    bn_coefs c;
    for (int i = 0; i < BN_COEFS; i++)
        c.column[i] = (const char *)coefs->column[i] + column * w->number;
    const bn_sums at = {sums->plane + column, sums->stride};
    kernel(b, &c, &at);
}

static void pixels(const work *w, bn_kernel *kernel, const bn_coefs *coefs, const bn_sums *sums,
                   int64_t tile, int64_t chunk) {
    const int64_t from = tile * w->tile, n = at_most(w->tile, w->channels - from);
    const int64_t runs = w->regular ? 1 : w->merged;
    const int64_t full = w->outer / w->merged, end = at_most((chunk + 1) * CHUNK_ROWS, w->rows);
    for (int64_t row = chunk * CHUNK_ROWS; row < end; row += BN_ROWS) {
        bn_block b;
        int64_t offset[BN_OPERANDS];
        for (int o = 0; o < BN_OPERANDS; o++)
            offset[o] = from * w->p->channel.stride[o];
        place(&b, w, offset);
        b.rows = (int)at_most(at_most(row + BN_ROWS, end), full) - (int)at_most(row, full);
        for (int64_t run = 0; b.rows && run < runs; run++) {
            b.cols = w->regular ? n * w->merged : n;
            place_rows(&b, w, row * w->merged + run, w->merged);
            call(w, kernel, &b, coefs, sums, run * n);
        }
        if (full < w->rows && row + BN_ROWS > full) {
            const int64_t rest = w->outer - full * w->merged;
            for (int64_t run = 0; run < (w->regular ? 1 : rest); run++) {
                b.rows = 1;
                b.cols = w->regular ? n * rest : n;
                place_rows(&b, w, full * w->merged + run, 1);
                call(w, kernel, &b, coefs, sums, run * n);
            }
        }
    }
}

static void rows(const work *w, bn_kernel *kernel, const bn_coefs *coefs, const bn_sums *sums,
                 int64_t tile, int64_t chunk) {
    const bn_problem *p = w->p;
    const int64_t from = tile * w->tile, n = at_most(w->tile, w->channels - from);
    const int64_t length = w->regular ? n * w->inner : p->inner[p->n_inner - 1].size;
    const int64_t runs = w->regular ? 1 : w->inner / length;
    const int64_t end = at_most((chunk + 1) * CHUNK_ROWS, w->rows);
    for (int64_t row = chunk * CHUNK_ROWS; row < end; row += BN_ROWS) {
        bn_block b = {.rows = (int)at_most(BN_ROWS, end - row), .cols = length};
        place_rows(&b, w, row, 1);
        for (int64_t c = 0; c < (w->regular ? 1 : n); c++)
            for (int64_t run = 0; run < runs; run++) {
                int64_t offset[BN_OPERANDS];
                for (int o = 0; o < BN_OPERANDS; o++)
                    offset[o] = (from + c) * p->channel.stride[o];
                add_offset(p->inner, p->n_inner - 1, run, offset);
                place(&b, w, offset);
                call(w, kernel, &b, coefs, sums, c * w->inner + run * length);
            }
    }
}

/* Stretches of LANES elements as rows, and what is left as one shorter row. */
static void stretches(bn_block *b, const work *w, bn_kernel *kernel, const bn_coefs *coefs,
                      const bn_sums *sums, int64_t n) {
    b->rows = (int)(n / LANES);
    b->cols = LANES;
    for (int o = 0; o < BN_OPERANDS; o++)
        for (int k = 0; k < b->rows; k++)
            b->row[o][k] = k * LANES * w->size;
    if (b->rows)
        kernel(b, coefs, sums);
    if (n % LANES) {
        for (int o = 0; o < BN_OPERANDS; o++)
            b->row[o][0] = n / LANES * LANES * w->size;
        b->rows = 1;
        b->cols = n % LANES;
        kernel(b, coefs, sums);
    }
}

/* n elements, from x on, of a row with gaps: each run by itself, or gathered. */
static void scattered(const work *w, scratch *s, bn_kernel *kernel, const bn_coefs *coefs,
                      const bn_sums *sums, const int64_t row[BN_OPERANDS], int64_t x, int64_t n) {
    const bn_problem *p = w->p;
    const bool gather = kernel == w->kernels->reduce;
    const int64_t length = p->inner[p->n_inner - 1].size;
    bn_block b;
    for (int64_t done = 0; done < n;) {
        const int64_t run = (x + done) / length, at = (x + done) % length;
        const int64_t take = at_most(length - at, n - done);
        int64_t offset[BN_OPERANDS];
        for (int o = 0; o < BN_OPERANDS; o++)
            offset[o] = row[o] + at * w->size;
        add_offset(p->inner, p->n_inner - 1, run, offset);
        place(&b, w, offset);
        if (gather)
            for (int o = 0; o < 2; o++)
                memcpy(s->gathered[o] + done * w->size, b.data[o], (size_t)(take * w->size));
        else
            stretches(&b, w, kernel, coefs, sums, take);
        done += take;
    }
    if (gather) {
        b.data[BN_SRC] = s->gathered[0];
        b.data[BN_DIFF_DST] = b.data[BN_DIFF_SRC] = s->gathered[1];
        stretches(&b, w, kernel, coefs, sums, n);
    }
}

static void long_rows(const work *w, scratch *s, bn_kernel *kernel, const bn_coefs *coefs,
                      const bn_sums *sums, int64_t channel, int64_t chunk) {
    const bn_problem *p = w->p;
    const int64_t first = chunk / w->chunks_per_row * w->rows_per_chunk;
    const int64_t x0 = chunk % w->chunks_per_row * CHUNK_ELEMENTS;
    const int64_t x1 = w->chunks_per_row > 1 ? at_most(x0 + CHUNK_ELEMENTS, w->inner) : w->inner;
    for (int64_t n = first; n < at_most(first + w->rows_per_chunk, w->outer); n++) {
        int64_t row[BN_OPERANDS];
        for (int o = 0; o < BN_OPERANDS; o++)
            row[o] = channel * p->channel.stride[o];
        add_offset(p->outer, p->n_outer, n, row);
        for (int64_t x = x0; x < x1; x += BLOCK) {
            const int64_t length = at_most(BLOCK, x1 - x);
            if (w->regular) {
                bn_block b;
                int64_t offset[BN_OPERANDS];
                for (int o = 0; o < BN_OPERANDS; o++)
                    offset[o] = row[o] + x * w->size;
                place(&b, w, offset);
                stretches(&b, w, kernel, coefs, sums, length);
            } else if (kernel == w->kernels->reduce_scale) {
                scattered(w, s, w->kernels->reduce, coefs, sums, row, x, length);
                scattered(w, s, w->kernels->scale, coefs, sums, row, x, length);
            } else {
                scattered(w, s, kernel, coefs, sums, row, x, length);
            }
        }
    }
}

static void pass(const work *w, scratch *s, int which, int64_t tile, int64_t chunk) {
    bn_kernel *kernel = which == 0 ? w->first : w->second;
    const int64_t from = tile * w->tile, n = at_most(w->tile, w->channels - from);
    const bool sum = which == 0;
    if (w->form == LONG_ROWS) {
        for (int64_t c = from; c < from + n; c++) {
            double total[BN_PLANES];
            const bn_coefs *coefs = coefs_of(w, s, which, c, 1);
            if (sum)
                clear_sums(w, s, LANES);
            long_rows(w, s, kernel, coefs, &s->sums, c, chunk);
            if (sum) {
                w->kernels->total(&s->sums, 0, LANES, total);
                keep_total(w, chunk, c, total);
            }
        }
        return;
    }
    const bn_coefs *coefs = coefs_of(w, s, which, from, n);
    if (sum)
        clear_sums(w, s, w->form == ROWS ? n * w->inner : n * w->merged);
    (w->form == ROWS ? rows : pixels)(w, kernel, coefs, &s->sums, tile, chunk);
    for (int64_t c = 0; sum && c < n; c++) {
        double total[BN_PLANES] = {0};
        if (w->form == ROWS)
            w->kernels->total(&s->sums, c * w->inner, w->inner, total);
        else
            total_merged(w, s, c, total);
        keep_total(w, chunk, from + c, total);
    }
}

static void first_task(void *work_, void *scratch_, int64_t tile, int64_t chunk) {
    pass(work_, scratch_, 0, tile, chunk);
}

static void second_task(void *work_, void *scratch_, int64_t tile, int64_t chunk) {
    pass(work_, scratch_, 1, tile, chunk);
}

/* ---- the three entries ------------------------------------------------- */

/* Sums given: no first pass. Sums wanted: no second one. */
static bn_status run(const bn_problem *p, const double *given, double *wanted, double count) {
    work w = {.p = p, .kernels = &bn_kernels_current()->dtype[p->dtype]};
    const bool param_grads = p->diff_gamma.data || p->diff_beta.data;
    if (wanted)
        w.first = w.kernels->reduce;
    else if (p->training) {
        w.first = given ? NULL : w.kernels->reduce;
        w.second = w.kernels->apply;
    } else if (param_grads && !given)
        w.first = w.kernels->reduce_scale;
    else
        w.second = w.kernels->scale;

    const int64_t elements =
        count_of(p->outer, p->n_outer) * p->channel.size * count_of(p->inner, p->n_inner);
    const int threads = bn_threads_wanted(p->num_threads, elements);
    plan(&w, threads);
    w.count = count > 0 ? count : (double)w.outer * (double)w.inner;

    char *memory = malloc(lay_out_work(&w, NULL) + 64);
    if (!memory)
        return BN_NO_MEMORY;
    lay_out_work(&w, (char *)(((uintptr_t)memory + 63) / 64 * 64));
    scratch measure;
    const bn_schedule s = {
        .tiles = w.tiles,
        .tasks = w.chunks,
        .first = w.first ? first_task : NULL,
        .second = w.second ? second_task : NULL,
        .finish = finish_tile,
        .start = start,
        .work = &w,
        .scratch = lay_out_scratch(&w, &measure, NULL),
    };
    bn_status status = BN_NO_MEMORY;
    char *team = bn_schedule_memory(&s, threads);
    if (team) {
        prepare_channels(&w);
        if (given)
            for (int64_t c = 0; c < w.channels; c++)
                finish_channel(&w, c, given[c], given[w.channels + c]);
        bn_schedule_run(&s, threads, team);
        if (wanted)
            memcpy(wanted, w.sums, (size_t)(2 * w.channels) * sizeof *wanted);
        status = BN_OK;
    }
    free(team);
    free(memory);
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
