/* walk_runs.c: the long runs of one channel (LONG_RUNS, LONG_RUNS_ABREAST), folded to the
 * columns of a stretch.
 *
 * A block has four stretches: of one run, one behind the other, or at the same x of up to
 * four positions abreast. Runs with gaps, and positions that are not a fixed pitch apart,
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
                       at_most(plan->elements_per_chunk, plan->run_length - x)};
}

/* ---- sums --------------------------------------------------------------- */

static void sum_blocks(const bn_walk *walk, bn_block *b, int64_t blocks) {
    b->repeats = blocks;
    if (blocks)
        walk->sum(b, &walk->coefs[SUM], &walk->scratch->sums);
    step_block(b, blocks);
}

/* A segment of n elements: blocks of four stretches, then one of the whole stretches that are
 * left, then one of what is left of a stretch. */
static void sum_segment(const bn_walk *walk, const bn_block *segment, int64_t n) {
    const int64_t stretch = walk->plan->stretch, size = walk->plan->element_bytes;
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

/* n elements of each row from where b's data point, a stretch at a time. */
static void sum_abreast(const bn_walk *walk, bn_block *b, int64_t n) {
    const int64_t stretch = walk->plan->stretch;
    for (int o = 0; o < BN_OPERANDS; o++)
        b->step[o] = stretch * walk->plan->element_bytes;
    b->cols = stretch;
    sum_blocks(walk, b, n / stretch);
    b->cols = n % stretch;
    sum_blocks(walk, b, b->cols != 0);
}

/* ---- runs with gaps ----------------------------------------------------- */

/* The segment at element x of a run: its offset, and how many of n elements it has. */
static int64_t segment_at(const bn_plan *plan, const int64_t start[BN_OPERANDS], int64_t x,
                          int64_t n, int64_t offset[BN_OPERANDS]) {
    const bn_problem *p = plan->problem;
    const int64_t length = p->inner[p->n_inner - 1].size, at = x % length;
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = start[o] + at * plan->element_bytes;
    add_offset(p->inner, p->n_inner - 1, x / length, offset);
    return at_most(length - at, n);
}

/* n elements, from x on, of a run, brought together as row k of the buffer. */
static void gather_run(const bn_walk *walk, const int64_t start[BN_OPERANDS], int64_t x, int64_t n,
                       int64_t k) {
    const int64_t size = walk->plan->element_bytes;
    for (int64_t done = 0, length; done < n; done += length) {
        int64_t offset[BN_OPERANDS];
        char *from[BN_OPERANDS];
        length = segment_at(walk->plan, start, x + done, n - done, offset);
        for (int o = 0; o < BN_OPERANDS; o++)
            from[o] = address(walk->plan->problem->data[o], offset[o]);
        bn_gather(walk, from, (k * n + done) * size, length * size);
    }
}

/* ---- results ------------------------------------------------------------ */

/* Elements x ... x + n - 1 of the runs of a channel at so many positions. */
static void write_runs(const bn_walk *walk, int64_t channel, int64_t position, int64_t positions,
                       int64_t x, int64_t n) {
    const bn_plan *plan = walk->plan;
    const bool together = plan->run_is_segment && plan->evenly && positions > 1;
    for (int64_t i = 0; i < positions; i += together ? positions : 1) {
        int64_t start[BN_OPERANDS], offset[BN_OPERANDS];
        run_offset(plan, channel, position + i, start);
        for (int64_t done = 0, length; done < n; done += length) {
            length = segment_at(plan, start, x + done, n - done, offset);
            bn_span span = span_at(plan, offset, length, 0);
            if (together)
                bn_write_repeats(walk, &span, plan->problem->outer[0].stride, positions, plan->far);
            else
                walk->write(&span, &walk->coefs[WRITE]);
        }
    }
}

/* ---- one run after the other --------------------------------------------- */

/* Elements x ... x + n - 1 of one run: all at once where they are neighbours and nothing is to
 * be written, else in pieces. */
static void sum_run(const bn_walk *walk, int64_t channel, int64_t position, int64_t x, int64_t n) {
    const bn_plan *plan = walk->plan;
    int64_t start[BN_OPERANDS];
    run_offset(plan, channel, position, start);
    int64_t piece = n;
    if (!plan->run_is_segment)
        piece = PIECE_ELEMENTS;
    else if (walk->write)
        piece = whole_groups(PIECE_BYTES / bn_bytes_read(plan), BN_GROUP * BN_ROWS * plan->stretch);
    for (int64_t done = 0, length; done < n; done += length) {
        length = at_most(piece, n - done);
        bn_block b = {.rows = 1};
        if (plan->run_is_segment) {
            place_block(&b, plan, start);
            advance_block(&b, (x + done) * plan->element_bytes);
        } else {
            gather_run(walk, start, x + done, length, 0);
            b = bn_gathered_block(walk, 1, length, 1);
        }
        sum_segment(walk, &b, length);
        if (walk->write)
            write_runs(walk, channel, position, 1, x + done, length);
    }
}

void bn_walk_long_runs(const bn_walk *walk, int64_t channel, int64_t n, int64_t chunk) {
    const run_chunk c = run_chunk_of(walk->plan, channel, chunk);
    (void)n;
    if (!walk->sum)
        write_runs(walk, channel, c.position, c.positions, c.x, c.length);
    for (int64_t i = 0; walk->sum && i < c.positions; i++)
        sum_run(walk, channel, c.position + i, c.x, c.length);
}

/* ---- runs abreast --------------------------------------------------------- */

static bn_strands cut(const run_chunk *chunk) {
    return cut_strands(chunk->positions, ceil_div(chunk->positions, BN_ROWS));
}

/* Make b's rows start at position g of each of n strands, at element x of the runs. Field by
 * field: a whole block, just written in parts, is slow to copy. */
static void set_rows(bn_block *b, const bn_plan *plan, const run_chunk *chunk, const bn_strands *s,
                     int64_t g, int64_t n, int64_t x) {
    int64_t offset[BN_OPERANDS];
    run_offset(plan, chunk->channel, chunk->position + g, offset);
    b->rows = (int)n;
    for (int o = 0; o < BN_OPERANDS; o++) {
        b->data[o] = address(plan->problem->data[o], offset[o] + x * plan->element_bytes);
        b->pitch[o] = s->length * plan->problem->outer[0].stride[o];
    }
}

/* The same rows brought together: length elements of each. */
static bn_block gather_rows(const bn_walk *walk, const run_chunk *chunk, const bn_strands *s,
                            int64_t g, int64_t n, int64_t x, int64_t length) {
    for (int64_t k = 0; k < n; k++) {
        int64_t start[BN_OPERANDS];
        run_offset(walk->plan, chunk->channel, chunk->position + k * s->length + g, start);
        gather_run(walk, start, x, length, k);
    }
    return bn_gathered_block(walk, n, length, 1);
}

/* After each piece, where both are done in one pass, it is written. */
void bn_walk_long_runs_abreast(const bn_walk *walk, int64_t channel, int64_t n_channels,
                               int64_t index) {
    const bn_plan *plan = walk->plan;
    const run_chunk chunk = run_chunk_of(plan, channel, index);
    const bool even = plan->run_is_segment && plan->evenly;
    const bn_strands s = cut(&chunk);
    const int64_t piece =
        !even ? PIECE
        : walk->write
            ? whole_groups(PIECE_BYTES / (BN_ROWS * bn_bytes_read(plan)), BN_GROUP * plan->stretch)
            : chunk.length;
    (void)n_channels;
    if (!walk->sum)
        write_runs(walk, channel, chunk.position, chunk.positions, chunk.x, chunk.length);
    for (int64_t g = 0; walk->sum && g < s.length; g++) {
        const int64_t here = strands_with(&s, g);
        for (int64_t done = 0, n; done < chunk.length; done += n) {
            const int64_t x = chunk.x + done;
            n = at_most(piece, chunk.length - done);
            bn_block b;
            if (even)
                set_rows(&b, plan, &chunk, &s, g, here, x);
            else
                b = gather_rows(walk, &chunk, &s, g, here, x, n);
            sum_abreast(walk, &b, n);
            for (int64_t k = 0; walk->write && k < here; k++)
                write_runs(walk, channel, chunk.position + k * s.length + g, 1, x, n);
        }
    }
}
