/* walk_runs.c: the long runs of one channel (LONG_RUNS, LONG_RUNS_ABREAST), folded to the
 * columns of a stretch.
 *
 * A block's rows are eight stretches of one run, one behind the other, or one stretch each of
 * up to eight positions, all from the same x on. Runs with gaps are gathered a piece at a time
 * before they are summed; so are runs abreast whose positions are not a fixed distance apart.
 */
#include "walk.h"

/* What a chunk is: elements x ... x + length - 1 of a channel's runs at so many positions, from
 * `position` on. */
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

/* So many blocks, flushed after every FLUSH_BLOCKS; b is left behind the last. */
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
            walk->kernels->flush(&s->sums, walk->plan->stretch);
            s->unflushed = 0;
        }
    }
}

/* A segment of n elements: blocks of eight stretches, then one of the whole stretches that are
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

/* ---- writing ------------------------------------------------------------- */

/* n elements of each row from where b's data point. */
static void write_abreast(const bn_walk *walk, bn_block *b, int64_t n) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->step[o] = 0;
    b->cols = n;
    b->repeats = 1;
    b->nontemporal = walk->plan->nontemporal;
    b->uniform = true;
    write_block(walk, b, &walk->coefs);
}

/* A segment of n elements. */
static void write_segment(const bn_walk *walk, const bn_block *segment, int64_t n) {
    bn_block b = *segment;
    b.rows = 1;
    write_abreast(walk, &b, n);
}

/* ---- runs with gaps ----------------------------------------------------- */

/* The segment at element x of a run that starts at these offsets: place b there, and return how
 * many of the next n elements it has. */
static int64_t segment_at(const bn_plan *plan, const int64_t start[BN_OPERANDS], int64_t x,
                          int64_t n, bn_block *b) {
    const bn_problem *p = plan->problem;
    const int64_t length = p->inner[p->n_inner - 1].size, at = x % length;
    int64_t offset[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = start[o] + at * plan->element_bytes;
    add_offset(p->inner, p->n_inner - 1, x / length, offset);
    place_block(b, plan, offset);
    return at_most(length - at, n);
}

/* n elements of a run, from x on, as row k of the buffer. */
static void gather_run(const bn_walk *walk, const int64_t start[BN_OPERANDS], int64_t x, int64_t n,
                       int64_t k) {
    const int64_t size = walk->plan->element_bytes;
    bn_block b;
    for (int64_t done = 0, length; done < n; done += length) {
        length = segment_at(walk->plan, start, x + done, n - done, &b);
        bn_gather(walk, b.data, (k * n + done) * size, length * size);
    }
}

/* A piece of a run with gaps: summed from the buffer, written segment by segment. */
static void walk_gapped(const bn_walk *walk, const int64_t start[BN_OPERANDS], int64_t x,
                        int64_t n) {
    if (walk->sum) {
        gather_run(walk, start, x, n, 0);
        const bn_block b = bn_gathered_block(walk, 1, n);
        sum_segment(walk, &b, n);
    }
    bn_block b = {.rows = 0};
    for (int64_t done = 0, length; walk->write && done < n; done += length) {
        length = segment_at(walk->plan, start, x + done, n - done, &b);
        write_segment(walk, &b, length);
    }
}

/* ---- one run after the other --------------------------------------------- */

/* Elements x ... x + n - 1 of one run: all at once where they are one segment and are summed or
 * written, in pieces where they have gaps or are summed and then written. */
static void walk_run(const bn_walk *walk, int64_t channel, int64_t position, int64_t x, int64_t n) {
    const bn_plan *plan = walk->plan;
    int64_t start[BN_OPERANDS];
    run_offset(plan, channel, position, start);
    int64_t piece = n;
    if (!plan->run_is_segment)
        piece = PIECE_ELEMENTS;
    else if (walk->sum && walk->write)
        piece = PIECE_BYTES / bn_bytes_read(plan);
    for (int64_t done = 0, length; done < n; done += length) {
        length = at_most(piece, n - done);
        if (!plan->run_is_segment) {
            walk_gapped(walk, start, x + done, length);
            continue;
        }
        bn_block b = {.rows = 0};
        place_block(&b, plan, start);
        advance_block(&b, (x + done) * plan->element_bytes);
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

/* Let b's rows start at position g of each of n strands, at element x of the runs. Set field by
 * field, since copying a block just after writing its fields is slow. */
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

/* The same rows in the buffer: `length` elements of each. */
static bn_block gather_rows(const bn_walk *walk, const run_chunk *chunk, const bn_strands *s,
                            int64_t g, int64_t n, int64_t x, int64_t length) {
    for (int64_t k = 0; k < n; k++) {
        int64_t start[BN_OPERANDS];
        run_offset(walk->plan, chunk->channel, chunk->position + k * s->length + g, start);
        gather_run(walk, start, x, length, k);
    }
    return bn_gathered_block(walk, n, length);
}

/* Where one pass sums and writes, each piece is written once it is summed: four rows at once if
 * the cache lines of what is written begin at the same columns in all of them. */
static void sum_runs(const bn_walk *walk, const run_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const bool even = plan->run_is_segment && plan->evenly;
    const bool together =
        even && !(plan->nontemporal && !lines_agree(plan, plan->problem->outer[0].stride, 1));
    const bn_strands s = cut(chunk, MOST_STRANDS);
    const int64_t piece = !even         ? PIECE
                          : walk->write ? PIECE_BYTES / (MOST_STRANDS * bn_bytes_read(plan))
                                        : chunk->length;
    bn_walk write = *walk;
    write.sum = NULL;
    for (int64_t g = 0; g < s.length; g++) {
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
                    walk_run(&write, chunk->channel, chunk->position + k * s.length + g, x, n);
            }
        }
    }
}

static void write_runs(const bn_walk *walk, const run_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const bool even = plan->run_is_segment && plan->evenly;
    const bn_strands s = cut(chunk, MOST_WRITE_STRANDS);
    if (!even ||
        (plan->nontemporal && !lines_agree(plan, plan->problem->outer[0].stride, s.length))) {
        one_by_one(walk, chunk);
        return;
    }
    for (int64_t g = 0; g < s.length; g++) {
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
