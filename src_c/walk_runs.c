/* walk_runs.c: the long runs of many channels, each folded to the columns of a stretch.
 *
 * Rows are runs at up to four positions, one from each strand of positions; after the end of a
 * shorter last strand, blocks have one row fewer. If a chunk has one position, rows are four
 * consecutive stretches of its run; what is left of the run is one row:
 *
 *     two positions or more                      one position
 *     row 0  ----------  ----------  -----       |row 0|row 1|row 2|row 3|row 0| ... |row 0...|
 *     row 1  ----------  ----------  -----
 *     row 2  ----------  ----------
 *            repeat 0    repeat 1                 repeat 0                repeat 1 ...
 *
 * A kernel sums many channels at once or, if channels_in_hand returns 0, adds a piece of one
 * channel to a stretch's sums. Runs with gaps, and positions that are not a fixed pitch apart, are
 * gathered first. If results are written too, each piece is written while it is in cache.
 */
#include "machine.h"
#include "walk.h"

/* What a chunk is: the same elements of the runs at neighboring positions. */
typedef struct {
    int64_t position, positions, x, length;
} run_chunk;

static run_chunk run_chunk_of(const bn_plan *plan, int64_t chunk) {
    const int64_t position = chunk / plan->run.chunks * plan->rows_per_chunk;
    const int64_t x = chunk % plan->run.chunks * plan->run.elements_per_chunk;
    return (run_chunk){position, at_most(plan->rows_per_chunk, plan->positions - position), x,
                       at_most(plan->run.elements_per_chunk, plan->run_length - x)};
}

/* A distance, in positions and in elements of a run. */
typedef struct {
    int64_t positions, elements;
} distance;

/* `rows` rows of `cols` elements, `repeats` times. */
typedef struct {
    distance first, row, repeat;
    int64_t rows, repeats, cols;
} part;

/* A chunk is one part or two, in the order in which they are summed. */
static int parts_of(const bn_plan *plan, const run_chunk *c, part parts[BN_PARTS]) {
    const distance first = {c->position, c->x};
    int n = 0;
    if (c->positions == 1) {
        const int64_t stretch = plan->run.stretch, block = BN_ROWS * stretch;
        const int64_t blocks = c->length / block, rest = c->length % block;
        if (blocks)
            parts[n++] = (part){first, {0, stretch}, {0, block}, BN_ROWS, blocks, stretch};
        if (rest)
            parts[n++] = (part){{c->position, c->x + blocks * block}, {0}, {0}, 1, 1, rest};
    } else {
        const bn_strands s = cut_strands(c->positions, ceil_div(c->positions, BN_ROWS));
        const distance row = {s.length, 0}, next = {1, 0};
        parts[n++] = (part){first, row, next, s.n, s.last, c->length};
        if (s.last < s.length)
            parts[n++] = (part){
                {c->position + s.last, c->x}, row, next, s.n - 1, s.length - s.last, c->length};
    }
    return n;
}

/* ---- runs without gaps, at a fixed pitch ------------------------------------ */

static int64_t bytes_of(const bn_plan *plan, distance d, int operand) {
    const bn_problem *p = plan->problem;
    const int64_t position = p->n_outer ? p->outer[0].stride[operand] : 0;
    return d.positions * position + d.elements * plan->element_bytes;
}

/* Repeats r to r + repeats - 1 of a part; of each row, n elements from element x on. */
static bn_block block_of(const bn_plan *plan, int64_t channel, const part *p, int64_t r,
                         int64_t repeats, int64_t x, int64_t n) {
    const distance within = {0, x};
    bn_block b;
    b.rows = (int)p->rows;
    b.repeats = repeats;
    b.cols = n;
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.pitch[o] = bytes_of(plan, p->row, o);
        b.step[o] = bytes_of(plan, p->repeat, o);
        b.data[o] = address(plan->problem->data[o], channel * plan->problem->channel.stride[o] +
                                                        bytes_of(plan, p->first, o) +
                                                        r * b.step[o] + bytes_of(plan, within, o));
    }
    return b;
}

/* Sum the chunk of n channels, from number `own` of the walk's channels on. */
static void sum_all(const bn_walk *walk, int64_t own, int64_t n, const run_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    part parts[BN_PARTS];
    bn_runs runs = {.channels = n, .parts = parts_of(plan, chunk, parts), .folded = true};
    for (int i = 0; i < runs.parts; i++)
        runs.part[i] =
            block_of(plan, walk->from + own, &parts[i], 0, parts[i].repeats, 0, parts[i].cols);
    for (int o = 0; o < BN_OPERANDS; o++)
        runs.apart[o] = plan->problem->channel.stride[o];
    const bn_coefs coefs = coefs_from(plan, &walk->coefs[SUM], own);
    const bn_sums kept = sums_from(&walk->kept, own);
    walk->kernels->sum_runs[walk->sum](&runs, &coefs, &kept);
}

/* ---- runs with gaps ----------------------------------------------------- */

/* Gather n elements of a run, from x on, as row k of the buffer. */
static void gather_run(const bn_walk *walk, const int64_t start[BN_OPERANDS], int64_t x, int64_t n,
                       int64_t k) {
    const int64_t size = walk->plan->element_bytes;
    for (int64_t done = 0, length; done < n; done += length) {
        int64_t offset[BN_OPERANDS];
        char *from[BN_OPERANDS];
        length = bn_segment_at(walk->plan, start, x + done, n - done, offset);
        for (int o = 0; o < BN_OPERANDS; o++)
            from[o] = address(walk->plan->problem->data[o], offset[o]);
        bn_gather(walk, from, (k * n + done) * size, length * size);
    }
}

/* Like block_of, but gathered: rows have gaps or are unevenly spaced. */
static bn_block gathered(const bn_walk *walk, int64_t channel, const part *p, int64_t r,
                         int64_t repeats, int64_t x, int64_t n) {
    for (int64_t i = 0; i < repeats * p->rows; i++) {
        const int64_t k = i % p->rows, repeat = r + i / p->rows;
        int64_t start[BN_OPERANDS];
        run_offset(walk->plan, channel,
                   p->first.positions + k * p->row.positions + repeat * p->repeat.positions, start);
        gather_run(walk, start,
                   p->first.elements + k * p->row.elements + repeat * p->repeat.elements + x, n, i);
    }
    return bn_gathered_block(walk, p->rows, n, repeats);
}

/* ---- piece by piece --------------------------------------------------------- */

/* Elements of each row in a piece: whole groups. */
static int64_t piece_of(const bn_walk *walk, const part *p) {
    const bn_plan *plan = walk->plan;
    const int64_t most = PIECE_BYTES / (p->rows * bn_bytes_read(plan));
    return plan->gathers  ? PIECE
           : walk->writes ? whole_groups(most, BN_GROUP * plan->run.stretch)
                          : p->repeats * p->cols;
}

static void write_piece(const bn_walk *walk, int64_t own, const part *p, int64_t r, int64_t repeats,
                        int64_t x, int64_t n) {
    const bool one_behind_the_other = p->row.positions == 0;
    const int64_t first = p->first.elements + r * p->repeat.elements + x;
    if (one_behind_the_other) {
        bn_write_runs(walk, own, 1, p->first.positions, 1, first, repeats * p->rows * n);
        return;
    }
    for (int64_t k = 0; k < p->rows; k++)
        bn_write_runs(walk, own, 1, p->first.positions + k * p->row.positions + r, repeats, first,
                      n);
}

/* A group has neighboring stretches of a row or, if a row is one stretch, neighboring repeats. */
static void sum_pieces(const bn_walk *walk, int64_t own, const part *p) {
    const bn_plan *plan = walk->plan;
    const int64_t channel = walk->from + own, piece = piece_of(walk, p);
    const int64_t together = at_least(piece / p->cols, 1);
    const bn_coefs coefs = coefs_from(plan, &walk->coefs[SUM], own);
    for (int64_t r = 0, repeats; r < p->repeats; r += repeats) {
        repeats = at_most(together, p->repeats - r);
        for (int64_t x = 0, n; x < p->cols; x += n) {
            n = at_most(piece, p->cols - x);
            const bn_block b = plan->gathers ? gathered(walk, channel, p, r, repeats, x, n)
                                             : block_of(plan, channel, p, r, repeats, x, n);
            walk->kernels->fold[walk->sum](&b, &coefs, &walk->scratch->sums);
            if (walk->writes)
                write_piece(walk, own, p, r, repeats, x, n);
        }
    }
}

static void sum_by_pieces(const bn_walk *walk, int64_t own, const run_chunk *chunk) {
    part parts[BN_PARTS];
    const int n = parts_of(walk->plan, chunk, parts);
    const bn_sums kept = sums_from(&walk->kept, own);
    bn_clear_sums(walk, walk->plan->run.stretch);
    for (int i = 0; i < n; i++)
        sum_pieces(walk, own, &parts[i]);
    walk->kernels->sum_columns(&walk->scratch->sums, walk->plan->run.stretch, &kept);
}

/* ---- a chunk ---------------------------------------------------------------- */

/* How many channels a kernel takes at once: all, or as many as stay in cache until their results
 * are written. 0: runs go piece by piece. */
static int64_t channels_in_hand(const bn_walk *walk, const run_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const int64_t n = walk->channels;
    if (plan->gathers)
        return 0;
    if (!walk->writes)
        return n;
    return at_most(n, bn_l2_bytes() / 2 / (chunk->positions * chunk->length * bn_bytes_read(plan)));
}

void bn_walk_long_runs(const bn_walk *walk, int64_t index) {
    const bn_plan *plan = walk->plan;
    if (plan->joint && !walk->sums) {
        const int64_t position = index * plan->rows_per_write;
        bn_write_runs(walk, 0, walk->channels, position,
                      at_most(plan->rows_per_write, plan->positions - position), 0,
                      plan->run_length);
        return;
    }
    const run_chunk chunk = run_chunk_of(plan, index);
    const int64_t in_hand = walk->sums ? channels_in_hand(walk, &chunk) : walk->channels;
    for (int64_t c = 0, here; c < walk->channels; c += here) {
        here = at_most(at_least(in_hand, 1), walk->channels - c);
        if (walk->sums && in_hand == 0) {
            sum_by_pieces(walk, c, &chunk);
            continue;
        }
        if (walk->sums)
            sum_all(walk, c, here, &chunk);
        if (walk->writes)
            bn_write_runs(walk, c, here, chunk.position, chunk.positions, chunk.x, chunk.length);
    }
}
