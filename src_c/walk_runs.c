/* walk_runs.c: the long runs of one channel (LONG_RUNS, LONG_RUNS_ABREAST), folded to the
 * columns of a stretch.
 *
 * A block has eight stretches: of one run, one behind the other, or at the same x of up to
 * eight positions abreast. Runs with gaps, and positions that are not a fixed pitch apart,
 * are gathered a piece at a time before they are summed.
 */
#include "walk.h"

/* What a chunk is: the same elements of the runs at neighbouring positions. */
typedef struct {
    int64_t channel, position, positions, x, length;
} run_chunk;

static run_chunk run_chunk_of(const bn_plan *plan, int64_t channel, int64_t chunk) {
    const int64_t position = chunk / plan->chunks_per_run * plan->positions_per_chunk;
    const int64_t x = chunk % plan->chunks_per_run * plan->elements_per_chunk;
    return (run_chunk){channel, position,
                       at_most(plan->positions_per_chunk, plan->positions - position), x,
                       at_most(plan->elements_per_chunk, plan->run - x)};
}

/* ---- sums --------------------------------------------------------------- */

/* So many blocks, flushed every FLUSH_BLOCKS; b ends up behind them. */
static void sum_blocks(const bn_walk *walk, bn_block *b, int64_t blocks) {
    bn_scratch *s = walk->scratch;
    const bool floats = walk->plan->floats;
    for (int64_t most = blocks; blocks > 0; blocks -= b->repeats) {
        if (floats)
            most = FLUSH_BLOCKS - s->unflushed;
        b->repeats = at_most(most, blocks);
        walk->sum(b, &walk->coefs, &s->sums);
        step_block(b, b->repeats);
        s->unflushed += b->repeats;
        if (floats && s->unflushed == FLUSH_BLOCKS) {
            walk->kernels->flush(&s->sums, walk->plan->columns_per_channel);
            s->unflushed = 0;
        }
    }
}

/* n neighbouring elements: blocks of eight stretches, then one of what is left of eight, then
 * what is left of a stretch. */
static void sum_segment(const bn_walk *walk, const bn_block *segment, int64_t n) {
    const int64_t stretch = walk->plan->columns_per_channel, size = walk->plan->size;
    const int64_t block = BN_ROWS * stretch;
    const int64_t rest = n % block / stretch, tail = n % stretch;
    bn_block b = *segment;
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.step[o] = block * size;
        b.pitch[o] = stretch * size;
    }
    b.rows = BN_ROWS;
    b.cols = stretch;
    sum_blocks(walk, &b, n / block);
    b.rows = (int)rest;
    sum_blocks(walk, &b, rest != 0);
    for (int o = 0; o < BN_OPERANDS; o++)
        b.data[o] = segment->data[o];
    advance_block(&b, (n - tail) * size);
    b.rows = 1;
    b.cols = tail;
    sum_blocks(walk, &b, tail != 0);
}

/* b holds the starts of its rows: n elements of each, a stretch at a time. */
static void sum_abreast(const bn_walk *walk, bn_block *b, int64_t n) {
    const int64_t stretch = walk->plan->columns_per_channel;
    for (int o = 0; o < BN_OPERANDS; o++)
        b->step[o] = stretch * walk->plan->size;
    b->cols = stretch;
    sum_blocks(walk, b, n / stretch);
    b->cols = n % stretch;
    sum_blocks(walk, b, b->cols != 0);
}

/* ---- results ------------------------------------------------------------ */

/* b holds the starts of its rows: n elements of each. */
static void write_abreast(const bn_walk *walk, bn_block *b, int64_t n) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->step[o] = 0;
    b->cols = n;
    b->repeats = 1;
    b->nontemporal = walk->plan->nontemporal;
    b->uniform = true;
    write_block(walk, b, &walk->coefs);
}

/* n neighbouring elements. */
static void write_segment(const bn_walk *walk, const bn_block *segment, int64_t n) {
    bn_block b = *segment;
    b.rows = 1;
    write_abreast(walk, &b, n);
}

/* ---- runs with gaps ----------------------------------------------------- */

/* The segment at element x of a run: its place, and how many of n elements it has. */
static int64_t segment_at(const bn_plan *plan, const int64_t run[BN_OPERANDS], int64_t x, int64_t n,
                          bn_block *b) {
    const bn_problem *p = plan->problem;
    const int64_t length = p->inner[p->n_inner - 1].size, at = x % length;
    int64_t offset[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = run[o] + at * plan->size;
    add_offset(p->inner, p->n_inner - 1, x / length, offset);
    place_block(b, plan, offset);
    return at_most(length - at, n);
}

/* n elements, from x on, of a run, brought together as row k of the buffer. */
static void gather_run(const bn_walk *walk, const int64_t run[BN_OPERANDS], int64_t x, int64_t n,
                       int64_t k) {
    const int64_t size = walk->plan->size;
    bn_block b;
    for (int64_t done = 0, length; done < n; done += length) {
        length = segment_at(walk->plan, run, x + done, n - done, &b);
        bn_gather(walk, b.data, (k * n + done) * size, length * size);
    }
}

/* A piece of a run with gaps: summed from the buffer, written segment by segment. */
static void walk_gapped(const bn_walk *walk, const int64_t run[BN_OPERANDS], int64_t x, int64_t n) {
    if (walk->sum) {
        gather_run(walk, run, x, n, 0);
        const bn_block b = bn_gathered_block(walk, 1, n);
        sum_segment(walk, &b, n);
    }
    bn_block b = {.rows = 0};
    for (int64_t done = 0, length; walk->write && done < n; done += length) {
        length = segment_at(walk->plan, run, x + done, n - done, &b);
        write_segment(walk, &b, length);
    }
}

/* ---- one run after the other --------------------------------------------- */

/* Elements x ... x + n - 1 of one run: all at once where they are neighbours and only one
 * thing is to be done, else in pieces. */
static void walk_run(const bn_walk *walk, int64_t channel, int64_t position, int64_t x, int64_t n) {
    const bn_plan *plan = walk->plan;
    int64_t run[BN_OPERANDS];
    run_offset(plan, channel, position, run);
    int64_t piece = n;
    if (!plan->contiguous)
        piece = PIECE_ELEMENTS;
    else if (walk->sum && walk->write)
        piece = PIECE_BYTES / bn_bytes_read(plan);
    for (int64_t done = 0, length; done < n; done += length) {
        length = at_most(piece, n - done);
        if (!plan->contiguous) {
            walk_gapped(walk, run, x + done, length);
            continue;
        }
        bn_block b = {.rows = 0};
        place_block(&b, plan, run);
        advance_block(&b, (x + done) * plan->size);
        if (walk->sum)
            sum_segment(walk, &b, length);
        if (walk->write)
            write_segment(walk, &b, length);
    }
}

static void one_by_one(const bn_walk *walk, const run_chunk *chunk) {
    for (int64_t i = 0; i < chunk->positions; i++)
        walk_run(walk, chunk->channel, chunk->position + i, chunk->x, chunk->length);
}

void bn_walk_long_runs(const bn_walk *walk, int64_t channel, int64_t n, int64_t chunk) {
    const run_chunk c = run_chunk_of(walk->plan, channel, chunk);
    (void)n;
    one_by_one(walk, &c);
}

/* ---- runs abreast --------------------------------------------------------- */

static bn_strands cut(const run_chunk *chunk, int64_t most) {
    return cut_strands(chunk->positions, ceil_div(chunk->positions, most));
}

/* Make b's rows start at position g of each of n strands, at element x of the runs. Field by
 * field: a whole block, just written in parts, is slow to copy. */
static void set_rows(bn_block *b, const bn_plan *plan, const run_chunk *chunk, const bn_strands *s,
                     int64_t g, int64_t n, int64_t x) {
    int64_t offset[BN_OPERANDS];
    run_offset(plan, chunk->channel, chunk->position + g, offset);
    b->rows = (int)n;
    for (int o = 0; o < BN_OPERANDS; o++) {
        b->data[o] = address(plan->problem->data[o], offset[o] + x * plan->size);
        b->pitch[o] = s->rows * plan->problem->outer[0].stride[o];
    }
}

/* The same rows brought together: length elements of each. */
static bn_block gather_rows(const bn_walk *walk, const run_chunk *chunk, const bn_strands *s,
                            int64_t g, int64_t n, int64_t x, int64_t length) {
    for (int64_t k = 0; k < n; k++) {
        int64_t run[BN_OPERANDS];
        run_offset(walk->plan, chunk->channel, chunk->position + k * s->rows + g, run);
        gather_run(walk, run, x, length, k);
    }
    return bn_gathered_block(walk, n, length);
}

/* After each piece, where both are done in one pass, it is written: four rows at once where
 * the lines of what is written begin at the same columns. */
static void sum_runs(const bn_walk *walk, const run_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const bool even = plan->contiguous && plan->evenly;
    const bool together =
        even && !(plan->nontemporal && !lines_agree(plan, plan->problem->outer[0].stride, 1));
    const bn_strands s = cut(chunk, MOST_STRANDS);
    const int64_t piece = !even         ? PIECE
                          : walk->write ? PIECE_BYTES / (MOST_STRANDS * bn_bytes_read(plan))
                                        : chunk->length;
    bn_walk write = *walk;
    write.sum = NULL;
    for (int64_t g = 0; g < s.rows; g++) {
        const int64_t here = strands_with(&s, g);
        for (int64_t done = 0, n; done < chunk->length; done += n) {
            const int64_t x = chunk->x + done;
            n = at_most(piece, chunk->length - done);
            bn_block b;
            if (even)
                set_rows(&b, plan, chunk, &s, g, here, x);
            else
                b = gather_rows(walk, chunk, &s, g, here, x, n);
            sum_abreast(walk, &b, n);
            if (walk->write && together) {
                set_rows(&b, plan, chunk, &s, g, here, x);
                write_abreast(walk, &b, n);
            } else {
                for (int64_t k = 0; walk->write && k < here; k++)
                    walk_run(&write, chunk->channel, chunk->position + k * s.rows + g, x, n);
            }
        }
    }
}

static void write_runs(const bn_walk *walk, const run_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const bool even = plan->contiguous && plan->evenly;
    const bn_strands s = cut(chunk, MOST_WRITE_STRANDS);
    if (!even ||
        (plan->nontemporal && !lines_agree(plan, plan->problem->outer[0].stride, s.rows))) {
        one_by_one(walk, chunk);
        return;
    }
    for (int64_t g = 0; g < s.rows; g++) {
        bn_block b;
        set_rows(&b, plan, chunk, &s, g, strands_with(&s, g), chunk->x);
        write_abreast(walk, &b, chunk->length);
    }
}

void bn_walk_long_runs_abreast(const bn_walk *walk, int64_t channel, int64_t n, int64_t chunk) {
    const run_chunk c = run_chunk_of(walk->plan, channel, chunk);
    (void)n;
    if (walk->sum)
        sum_runs(walk, &c);
    else
        write_runs(walk, &c);
}
