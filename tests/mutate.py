"""Break the C, the Cython and the layer in many ways, one at a time; the suite must fail for each.

    python -P tests/mutate.py                all of them; the table goes to docs/mutations.md
    python -P tests/mutate.py --only 3 17    some of them; nothing is written

Run in an environment that has what the tests need, in a git clone. Each mutant is built in
a copy of the tree; the fast tests run first, the rest only if those pass. A mutant that
hangs is found too.

Longer than other files here: most of it is a table.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FAST = ["-m", "quick and not full"]
REST = ["--ignore=tests/test_example.py"]
# Seconds after which verify, which takes fifty, and the tests hang.
VERIFY_HANGS, TESTS_HANG = 120, 1800

#: (file, what it is now, what it becomes, description); the text occurs once. A fifth entry
#: names the only job that can see it.
MUTANTS = [
    ("loops.inc", "if (n >= 2)", "if (n > 2)", "two rows summed as one"),
    ("loops.inc", "if (n >= 3)", "if (n > 3)", "three rows summed as two"),
    ("loops.inc", "e.k = 3;", "e.k = 2;", "a row off by one"),
    (
        "loops.inc",
        "t = NAMED(plus)(f, t, right);",
        "t = NAMED(plus)(f, right, right);",
        "half of the tree counted twice",
    ),
    (
        "loops.inc",
        "            right = NAMED(plus)(f, right, NAMED(terms_of)(f, e));\n",
        "        {\n            t = NAMED(plus)(f, t, right);\n"
        "            right = NAMED(terms_of)(f, e);\n        }\n",
        "rows summed one after the other, not as a tree",
    ),
    (
        "rings.inc",
        "r.index += r.index < 0 ? r.period : 0;",
        "r.index += r.index <= 0 ? r.period : 0;",
        "coefficients go round late",
    ),
    (
        "formulas.inc",
        "SCALE * (dy - (SHIFT + xc * SLOPE))",
        "SCALE * (dy - SHIFT - xc * SLOPE)",
        "the formula associated otherwise",
    ),
    (
        "formulas.inc",
        "SCALE * (dy - (SHIFT + xc * SLOPE))",
        "dy - (SHIFT + xc * SLOPE)",
        "gamma dropped",
    ),
    ("formulas.inc", "dy * xc, g, g * xc", "dy * xc, g, dy * xc", "a sum of the double backward"),
    ("formulas.inc", "SLOPE * dy + CROSS * g", "SLOPE * dy - CROSS * g", "a factor's sign"),
    ("double_backward.c", "3 * both - rest", "2 * both - rest", "a term twice, not three times"),
    (
        "double_backward.c",
        "dy, low[i]);\n        const double g_xc",
        "0, low[i]);\n        const double g_xc",
        "the mean's low part not in a sum",
    ),
    ("sums.inc", "for (; s < count; s++)", "for (; s < 0; s++)", "an odd sum left out"),
    (
        "spans.inc",
        "strand.data[o] += strand.pitch[o];",
        "strand.data[o] += 0;",
        "one strand of two results written four times",
    ),
    ("formulas.inc", "SCALE * dy, .of", "dy, .of", "gamma dropped, frozen"),
    (
        "formulas.inc",
        "STORED(TO_ZERO) + (VEC){0}), dy);",
        "(VEC){0}), dy);",
        "what passes is decided before it is rounded to 16 bits",
    ),
    (
        "passed.inc",
        "x > STORED(NEGATIVE_INF)",
        "x >= STORED(NEGATIVE_INF)",
        "-Inf passes a ReLU",
    ),
    (
        "gates.c",
        "bits >> source % 8 & mask",
        "bits & mask",
        "bits of a segment that begins within a byte",
    ),
    (
        "walk.c",
        "if (summed & OPERAND(GATE)) {",
        "if (false) {",
        "a gate is not gathered with what it is the gate of",
    ),
    (
        "entries.c",
        "return FROM_SRC;",
        "return NO_GATE;",
        "a gate that would have to be computed again is left open",
    ),
    (
        "spans.inc",
        "(-at % VEC_BYTES) / STORED(BYTES);",
        "(-at % VEC_BYTES) / STORED(BYTES) / 2;",
        "nontemporal stores from a wrong boundary",
    ),
    (
        "spans.inc",
        "(!s->strands || s->pitch[o] % VEC_BYTES == 0)",
        "true",
        "nontemporal stores to strands of unequal alignment",
    ),
    (
        "loops.inc",
        "    if (left)\n        edge(j,",
        "    if (left > 1)\n        edge(j,",
        "a last column alone is forgotten",
    ),
    (
        "loops.inc",
        "return repeat % BN_GROUP == 0;",
        "return repeat == 0;",
        "a group begins with the sums of the one before, which are counted twice",
    ),
    (
        "sums.inc",
        "b = sum[k + width]",
        "b = sum[2 * width - 1 - k]",
        "subsums added in another order",
    ),
    (
        "sums.inc",
        "two_sum(&total, &l, more);",
        "total += more;",
        "what rounding takes is lost between chunks",
    ),
    (
        "sums.inc",
        "NAMED(put)(to, apart, start + at, from + c,",
        "NAMED(put)(to, apart, start + at, from,",
        "all channels get one's coefficients",
    ),
    ("spans.inc", "if (__builtin_expect(nan, false))", "if (false)", "NaNs keep their sign"),
    (
        "runs.inc",
        "by_repeats ? b->step[o] : STRETCH",
        "by_repeats ? b->step[BN_SRC] : STRETCH",
        "stretches of diff_dst stepped through as if it lay like src",
    ),
    (
        "loops.inc",
        "left, left, u.group - (NUM *)j->sums->group);",
        "left, left, 0);",
        "groups of the last columns wait where those of the first do",
    ),
    (
        "loops.inc",
        "(head ? NAMED(UNIT) : 0);",
        "0;",
        "groups of the columns before a boundary wait where the next ones do",
    ),
    ("vec_avx512.h", "_mm512_set1_epi32(0x7ffe)", "_mm512_set1_epi32(0x7ffc)", "bf16 rounding, v4"),
    (
        "vec_portable.h",
        "bits + 0x7fffu + (bits >> 16 & 1u)",
        "bits + 0x8000u",
        "bf16 ties rounded up",
    ),
    (
        "vec_portable.h",
        "0xfffu + (magnitude >> 13 & 1u)",
        "0x1000u",
        "f16 ties rounded up, baseline",
    ),
    ("vec_portable.h", "0x1p112f", "0x1p111f", "f16 widened by half, baseline"),
    (
        "vec_portable.h",
        "(u32v)((f32v)magnitude + 0.5f) - 0x3f000000u",
        "(u32v)((f32v)magnitude + 0.5f) & 0",
        "f16 subnormals flushed, baseline",
    ),
    (
        "vec_avx512.h",
        "_mm512_add_epi32(even, _mm512_set1_epi32(h))",
        "even",
        "odd columns get even ones' coefficients, v4",
    ),
    (
        "vec_avx2.h",
        "_mm256_permute2f128_ps(a, b, 0x31)",
        "_mm256_permute2f128_ps(a, b, 0x13)",
        "bf16 columns joined in another order, v3",
    ),
    (
        "vec_avx512.h",
        "_mm512_add_epi32(low, _mm512_set1_epi32(8))",
        "_mm512_add_epi32(low, _mm512_set1_epi32(7))",
        "bf16 columns joined one off, v4",
    ),
    ("vec.h", "(0x7ff8ull << 48))));", "(0xfff8ull << 48))));", "f64 NaN of the other sign"),
    (
        "vec.h",
        "(*sum - (total - added)) + (term - added)",
        "(*sum - (total - added)) - (term - added)",
        "TwoSum's error with a wrong sign",
    ),
    (
        "vec_avx512.h",
        "_mm512_extractf32x8_ps((__m512)v, 1)",
        "_mm512_extractf32x8_ps((__m512)v, 0)",
        "upper half of a register taken for the lower, v4",
    ),
    (
        "loops.inc",
        "s * u->sums_stride + h * NAMED(LANES));",
        "s * u->sums_stride);",
        "groups of a pack's two registers wait in one place",
    ),
    (
        "engine.c",
        "(double)plan->positions * (double)plan->run_length;",
        "(double)plan->positions * (double)plan->run_length - 1;",
        "M is one less",
    ),
    (
        "engine.c",
        "return isnan(sum + lost) ? sum : sum + lost;",
        "return sum;",
        "f64's lost parts never added",
    ),
    ("kernels.h", "BN_GROUP = 8,", "BN_GROUP = 4,", "blocks of a group"),
    ("plan.c", "SHORTEST_STRAND = 33,", "SHORTEST_STRAND = 35,", "rows per strand"),
    (
        "engine.c",
        "const bn_sums all = partial_of(e, chunk), terms",
        "const bn_sums all = partial_of(e, plan->chunks - 1 - chunk), terms",
        "chunks added in another order",
    ),
    (
        "walk_rows.c",
        "sums_from(sums, (m - m / 2) * n)",
        "sums_from(sums, m / 2 * n)",
        "rows of an odd number of positions",
    ),
    (
        "engine.c",
        "if (s->from[pass] != from)",
        "if (s->from[pass] < 0)",
        "another tile's coefficients kept",
    ),
    (
        "backward.c",
        "slope[i] = rstd[i] * diff_gamma[i] / c->count;",
        "slope[i] = rstd[i] * diff_gamma[i] / (c->count + 1);",
        "slope with a wrong M",
    ),
    (
        "walk_rows.c",
        "plan->positions - whole * plan->positions_per_row);",
        "plan->positions - whole * plan->positions_per_row - 1);",
        "last position forgotten",
    ),
    (
        "walk_rows.c",
        "first + i % rows * strand + done + i / rows;",
        "first + done + i / rows;",
        "uneven rows: one strand for all",
    ),
    (
        "walk_rows.c",
        "b.pitch[o] = strand * b.step[o];",
        "b.pitch[o] = strand * b.step[0];",
        "strands of diff_dst placed as if it lay like src",
    ),
    (
        "runs.inc",
        "                NAMED(add_packs)(f, &group[0], &trees);",
        "                ;",
        "tail of a run not summed",
    ),
    (
        "walk_rows.c",
        "        if (plan->evenly)\n"
        "            sum_even(walk, s, strand, first + done, rows, here);\n"
        "        else\n"
        "            sum_uneven(walk, s, strand, first + done, rows, here);\n"
        "        for (int k = 0; walk->writes && k < rows; k++)\n"
        "            write_rows(walk, s, first + k * strand + done, here);\n",
        "        for (int k = 0; walk->writes && k < rows; k++)\n"
        "            write_rows(walk, s, first + k * strand + done, here);\n"
        "        if (plan->evenly)\n"
        "            sum_even(walk, s, strand, first + done, rows, here);\n"
        "        else\n"
        "            sum_uneven(walk, s, strand, first + done, rows, here);\n",
        "frozen statistics: written before summed (in place: sums of what was overwritten)",
    ),
    (
        "walk_runs.c",
        "at_most(plan->elements_per_chunk, plan->run_length - x)};",
        "plan->elements_per_chunk};",
        "chunks overlap behind a run's end",
    ),
    (
        "walk_rows.c",
        "(rows * s->cols * bn_bytes_read(plan)), BN_GROUP)",
        "(rows * s->cols * bn_bytes_read(plan)), 1)",
        "frozen statistics: pieces that end within a group",
    ),
    (
        "schedule.c",
        "memory_order_acq_rel) == 1)",
        "memory_order_acq_rel) == 2)",
        "tile finished before its last task",
    ),
    (
        "schedule.c",
        "items * (whose + 1) / shares",
        "(items - 1) * (whose + 1) / shares",
        "last task never run",
    ),
    ("machine.c", "atomic_store(&forked, true);", "", "a fork goes unnoticed"),
    (
        "schedule.c",
        "first_task(team, scratch, tile + team->ahead, task);",
        "first_task(team, scratch, tile, task);",
        "list out of step",
    ),
    (
        "machine.c",
        "if (quota > 0 && quota < threads)",
        "if (quota < 0)",
        "a container's limit ignored",
    ),
    (
        "schedule.c",
        "s->task(s->work, scratch, SECOND_PASS, tile, task);\n}",
        "if (tile)\n        s->task(s->work, scratch, SECOND_PASS, tile, task);\n}",
        "first tile never written",
    ),
    (
        "schedule.c",
        "const uint64_t mode = fp_mode_enter();",
        "const uint64_t mode = 0x1f80;",
        "threads compute in the mode they were given",
    ),
    (
        "channel.h",
        "(bits - (fabs(rounded) > fabs(value))) | (rounded != value)",
        "bits - (fabs(rounded) > fabs(value))",
        "16-bit parameter gradients rounded twice",
    ),
    (
        "channel.h",
        "((a.high - back.high) - back.low + a.low) / b",
        "0",
        "f64 quotients rounded twice",
    ),
    ("channel.h", "r * ((1 - one.high) - one.low) / 2", "0", "f64 rstd without its correction"),
    ("schedule.c", "turn < shares;", "turn < 1;", "threads do not take others' shares"),
    ("schedule.c", "    fp_mode_leave(mode);\n", "", "threads of the pool keep our mode"),
    (
        "engine.c",
        "    fp_mode_leave(mode);\n",
        "    (void)mode;\n",
        "the caller's floating-point mode not restored",
    ),
    (
        "pool.c",
        "num_threads < MOST_THREADS ? num_threads : MOST_THREADS",
        "num_threads",
        "as many threads as asked for",
    ),
    (
        "schedule.c",
        "_Thread_local int last_threads;",
        "int last_threads;",
        "the last call's threads, whichever thread made the call",
    ),
    (
        "engine.c",
        "copy_out(e, call->sums_out);\n    free(given);",
        "copy_out(e, call->sums_out);",
        "a call's working memory leaked",
    ),
    (
        "schedule.c",
        "memory_order_acq_rel",
        "memory_order_release",
        "a tile is finished without what other threads summed",
        "tsan",
    ),
    (
        "_call.pxi",
        "if is_brief(c):",
        "if True:",
        "the GIL kept in the whole call",
    ),
    (
        "_call.pxi",
        "with nogil:\n            bn_copy_elements(",
        "if True:\n            bn_copy_elements(",
        "the GIL kept in dense copies",
    ),
    (
        "_call.pxi",
        "if is_brief(c):",
        "if is_brief(c) or has(c, COPIES + BN_DIFF_SRC):",
        "the GIL kept in the copy back",
    ),
    (
        "_call.pxi",
        "    for role in range(ROLES):\n        let_go(c, role)",
        "    for role in range(COPIES):\n        let_go(c, role)",
        "copies of operands are never released",
    ),
    (
        "_call.pxi",
        "        PyBuffer_Release(&c.buffer[role])\n",
        "        pass\n",
        "buffers are never released",
    ),
    (
        "axes.c",
        "if (way < 0)",
        "if (false)",
        "shared memory behind negative strides accepted",
    ),
    (
        "_outputs.pxi",
        "if bn_overlaps_itself(&c.view[role]):",
        "if role == DIFF_SRC and bn_overlaps_itself(&c.view[role]):",
        "a gradient vector that overlaps itself accepted",
    ),
    (
        "_outputs.pxi",
        "except RuntimeError:  # TooHardError\n        return True",
        "except RuntimeError:  # TooHardError\n        return False",
        "shared memory that is too hard to find accepted",
    ),
    ("_arguments.pxi", "frozenset((1, 3, 11, 13))", "frozenset((1,))", "pinned memory refused"),
    (
        "_call.pxi",
        'raise MemoryError("bn_ext: not enough memory for partial sums")',
        "pass",
        "MemoryError swallowed",
    ),
    (
        "_outputs.pxi",
        "for other in range(COPIES):",
        "for other in range(SUMS):",
        "sums may share memory",
    ),
    (
        "axes.c",
        "bytes_apart(view->strides[moving[k - 1]]) < far",
        "bytes_apart(view->strides[moving[k - 1]]) <= far",
        "equal strides sorted backwards",
    ),
    (
        "_outputs.pxi",
        "shape, dtype = shape_of(&c.view[SRC]), DTYPE_OF_CODE[c.dtype]",
        "shape, dtype = shape_of(&c.view[SRC]), array_of(c, SRC).dtype",
        "src's dtype read again after its buffer was taken (pin_new refuses what came of it)",
    ),
    (
        "_arguments.pxi",
        "    return np.asarray(a)\n\n\n# In variables",
        "    return a\n\n\n# In variables",
        "a subclass believed",
    ),
    (
        "_arguments.pxi",
        "seen = np.asanyarray(a)",
        "seen = np.asarray(a)",
        "a mask behind __array__ dropped",
    ),
    (
        "_arguments.pxi",
        "                return np.asarray(items)",
        "                return np.asarray(a)",
        "lists read while they change",
    ),
    (
        "pool.c",
        "if (more < wanted)",
        "if (more < 0)",
        "threads that cannot be started asked of the runtime",
    ),
    (
        "pool.c",
        "omp_get_level() ? 1 : pool_size",
        "pool_size",
        "a pool believed to be there within a region of somebody else's",
    ),
    (
        "pool.c",
        "if (threads > 1 && !omp_get_level())",
        "if (threads > 1)",
        "the team of a call within a region remembered as a pool",
    ),
    (
        "pool.c",
        "at_most(threads - have, startable_from_stack())",
        "(threads - have)",
        "more threads than the caller's stack has room to start",
    ),
    (
        "pool.c",
        "pthread_atfork(leave_pool, NULL, NULL)",
        "pthread_atfork(NULL, NULL, NULL)",
        "a pool kept over a fork",
    ),
    (
        "pool.c",
        "2 * threads / calls",
        "2 * threads",
        "calls at once do not share the processors",
    ),
    (
        "pool.c",
        "        pool_size = threads;",
        "        ;",
        "what a pool has is asked for again",
    ),
    (
        "engine.c",
        "if (call->sums_in && call->count > 0) {",
        "if (false) {",
        "a part without elements has zeros for gradients",
    ),
    (
        "rings.inc",
        "r.advance = period - r.advance;",
        "r.advance = period - r.advance - 1;",
        "coefficients of a span carried through backwards are others",
    ),
    (
        "spans.inc",
        "    if (way->backwards)\n        x += (steps - 1) * along * NAMED(UNIT);\n",
        "",
        "backwards from where a span begins",
    ),
    (
        "rings.inc",
        "r.from[STORED(PACK) - 1] = first + (odd ? 1 : half);",
        "r.from[STORED(PACK) - 1] = first + (odd ? 0 : half);",
        "pairs that start at an odd column take the column before",
    ),
    (
        "walk.c",
        "        n %= BN_STRANDS;\n",
        "        n = 0;\n",
        "rows that are left over by strands not written",
    ),
    (
        "walk_rows.c",
        "span->cols = (n - BN_STRANDS * strand) * columns;",
        "span->cols = 0;",
        "rows that are left over by dense strands not written",
    ),
    (
        "pool.c",
        "2 * threads / calls",
        "threads / calls",
        "two callers do not have all processors",
    ),
    ("spans.inc", "    if (nontemporal)\n        nontemporal_fence();", "", "no fence"),
    (
        "runs.inc",
        "if (whole < BN_GROUP && rest > 0) {",
        "if (rest > 0) {",
        "a stretch that is cut short joins the first group",
    ),
    (
        "runs.inc",
        "(VEC)((u32v)c.of[h].of[i] & (u32v)lanes->of[h]);",
        "c.of[h].of[i];",
        "columns past a run's end add 0 * (0 - mean)",
    ),
    (
        "runs.inc",
        "part[i].block.data[o] += runs->apart[o];",
        "part[i].block.data[o] += runs->apart[BN_SRC];",
        "channels of diff_dst as far apart as those of src",
    ),
    (
        "rings.inc",
        "(const NUM *)w->coefs->column + w->channel;",
        "(const NUM *)w->coefs->column;",
        "runs of all channels written with the first one's coefficients",
    ),
    (
        "walk_runs.c",
        "s.n - 1, s.length - s.last, c->length};",
        "s.n, s.length - s.last, c->length};",
        "one row too many where the last strand is shorter",
    ),
    (
        "walk_rows.c",
        "row, n, s->column % run,",
        "row, n, 0,",
        "segments of a run written where it begins",
    ),
    # ---- forward, twice backward, and what they share --------------------------------
    (
        "forward.c",
        " || c->value[SPREAD][i] > 0)",
        ")",
        "squares that vanish are taken for none where sums are 0",
    ),
    ("forward.c", "if (sum * off > 4 * rest) {", "if (false) {", "a pivot far off is kept"),
    ("forward.c", "((step + large) - large)", "step", "a pivot of all digits"),
    (
        "forward.c",
        "stepped(c, *pivot, off, deviation)",
        "stepped(c, *pivot, off, 0)",
        "the next pivot of all digits",
    ),
    (
        "forward.c",
        "(1 - factor) * running[i] + factor * batch[i]",
        "running[i] + factor * (batch[i] - running[i])",
        "running statistics by another formula: infinite ones become NaN",
    ),
    (
        "forward.c",
        "        *pivot *= by.up;\n",
        "",
        "a pivot not scaled with the elements",
    ),
    (
        "forward.c",
        "        *pivot = 0; /* in case that it, or the distance from it, is too large */\n",
        "",
        "where squares overflow, a pivot in another scale",
    ),
    ("forward.c", "MOST_ROUNDS = 3", "MOST_ROUNDS = 1", "summed again only once"),
    (
        "forward.c",
        "rest / power[i] / power[i]",
        "rest / power[i]",
        "a variance that stays scaled",
    ),
    (
        "forward.c",
        "(pivot[i] + off) / power[i]",
        "pivot[i] + off / power[i]",
        "a mean whose pivot stays scaled",
    ),
    (
        "forward.c",
        "positions * (2 * i + 1) / (2 * places)",
        "positions * i / places",
        "samples from where parts begin",
    ),
    (
        "forward.c",
        "factor == 1 ? batch[i] : ",
        "",
        "a factor of 1 reads what was there before",
    ),
    (
        "forward.c",
        "squares[i] / (c->count - p->correction)",
        "squares[i] / c->count",
        "the running variance biased",
    ),
    ("forward.c", ".of_nothing = NAN,", ".of_nothing = 0,", "statistics of nothing are zeros"),
    (
        "coefs.h",
        "pair_round(pair_times(pair_of(scale[i], 0), r))",
        "scale[i] * r.high",
        "f64 scale rounded twice",
    ),
    (
        "coefs.h",
        "beta[i] -= isfinite(low) ? low : 0;",
        "beta[i] -= 0;",
        "the mean's low part not in the shift",
    ),
    (
        "coefs.h",
        "beta[i] -= isfinite(low) ? low : 0;",
        "beta[i] -= low;",
        "a mean without a low part makes the shift NaN",
    ),
    (
        "coefs.h",
        "return isfinite(low) ? low : 0;",
        "return low;",
        "a mean that is no float has a low part",
    ),
    (
        "coefs.h",
        "memset(to, 0, (size_t)n * sizeof *to);",
        "(void)to;",
        "an absent vector is what was there",
    ),
    (
        "backward.c",
        "sum_dy_xc[i] -= low[i] != 0 ? low[i] * sum_dy[i] : 0;",
        "sum_dy_xc[i] -= 0;",
        "the mean's low part not in diff_gamma",
    ),
    (
        "backward.c",
        "shift[i] -= low[i] != 0 ? low[i] * slope[i] : 0;",
        "shift[i] -= 0;",
        "the mean's low part not in diff_src",
    ),
    (
        "double_backward.c",
        "plane[SUM_DY_G][i] / m - g * dy",
        "plane[SUM_DY_G][i] / m",
        "a product of means left out",
    ),
    (
        "double_backward.c",
        "about_low(bend, low[i]) - (slope * dy + cross * g)",
        "-(slope * dy + cross * g)",
        "the mean's low part not in an offset",
    ),
    (
        "double_backward.c",
        "shift[i] += about_low(slope[i], low[i]);",
        "shift[i] += 0;",
        "the mean's low part not in a frozen shift",
    ),
    (
        "double_backward.c",
        "return low == 0 ? 0 : -coef * low;",
        "return -coef * low;",
        "an infinite factor of no low part",
    ),
    (
        "gates.c",
        "        there &= ~(mask << place % 8);\n",
        "",
        "bits of a segment set, never cleared",
    ),
    (
        "gates.c",
        "if (e->n && e->stride[last] == stride * size) {",
        "if (e->n) {",
        "axes merged that do not go on behind each other",
    ),
    (
        "gates.c",
        "from = piece * some;",
        "from = piece * (some - (m->given ? 8 : 0));",
        "the last of a workspace's bits are not taken",
    ),
    (
        "gates.c",
        "enum { MAY_BE_READ = 8 };",
        "enum { MAY_BE_READ = 0 };",
        "bits read behind a gate's memory",
        "sanitize",
    ),
    (
        "gates.c",
        "make_block(m, first, at_most(BLOCK, end - first));",
        "make_block(m, first, BLOCK);",
        "the last block of bits as long as the others",
    ),
    (
        "formulas.inc",
        "SCALE * (X - MEAN) + SHIFT;",
        "SCALE * X + (SHIFT - SCALE * MEAN);",
        "normalized by a line through 0",
    ),
    (
        "formulas.inc",
        "if (f == NORMALIZE_ADD || f == NORMALIZE_ADD_RELU)",
        "if (f == NORMALIZE_ADD)",
        "nothing added before a ReLU",
    ),
    (
        "formulas.inc",
        "const VEC xc = X * SCALE - MEAN;",
        "const VEC xc = (X - MEAN) * SCALE;",
        "centred, then scaled",
    ),
    (
        "state.c",
        "leading = leading << taken | (uint64_t)digit[k] >> left;\n        more |=",
        "leading = leading << taken | (uint64_t)digit[k] >> left;\n        more &=",
        "what a digit has behind the leading bits is lost",
    ),
    (
        "state.c",
        "more |= digit[k] != 0;",
        "more |= digit[k] < 0;",
        "lower digits are not looked at",
    ),
    ("state.c", "(more || (kept & 1))", "(kept & 1)", "a tie, whatever lies beside it"),
    (
        "digits.inc",
        "carried = d >> BN_DIGIT_BITS;",
        "carried = d / ((int64_t)1 << BN_DIGIT_BITS);",
        "a negative digit carries towards zero",
    ),
    (
        "digits.inc",
        "((d + beyond) >> n) - (beyond >> n)",
        "d >> n",
        "registers carry without a sign",
    ),
    (
        "digits.inc",
        "add_digits(a, k + 2, s, column, shift_down(rest, BN_DIGIT_BITS));",
        "(void)digits;",
        "a count's upper bits are lost",
    ),
    (
        "digits.inc",
        "if (k + 2 < digits) {",
        "if (k + 2 <= digits) {",
        "a count goes beyond the highest digit",
    ),
    (
        "anchored.inc",
        "left |= beyond >> 52;",
        "(void)beyond;",
        "terms beyond an anchor are counted",
    ),
    (
        "anchored.inc",
        "left |= (u64v)t << 1;",
        "left |= (u64v)t & 0;",
        "what the last anchor leaves is lost",
    ),
    (
        "quiet.inc",
        "all &= (double)largest[s][i] < bn_power_of_2(a->top[s]);",
        "all &= a && largest[s][i] >= 0;",
        "terms beyond an anchor are counted quietly",
    ),
    (
        "quiet.inc",
        "*left = quiet_add(*left, t, one);",
        "*left = quiet_add(*left, t * 0, one);",
        "what anchors leave is lost",
    ),
    (
        "quiet.inc",
        "            join_doubles(half, in_order);\n",
        "            memcpy(in_order, half, sizeof half);\n",
        "counts of even and odd columns change places",
    ),
    (
        "exact.inc",
        "if (ONCE(flag_numbers)(a, s, column, number, terms, rows))",
        "if (0)",
        "NaN among terms that fit no numbers",
    ),
    ("state.c", "parts[c] = parts[c] != 0;", "parts[c] = parts[c];", "parts are counted for ever"),
    (
        "_exact.pxi",
        "if <uint64_t>parts[i] > BN_MOST_PARTS:",
        "if parts[i] > BN_MOST_PARTS:",
        "fewer than no parts",
    ),
    (
        "_exact.pxi",
        "if count[i] >> BN_LOG2_TERMS or count[i] != count[0]:",
        "if count[i] != count[0]:",
        "more elements than digits have room for",
    ),
    ("state.c", "if (beyond[j] >> 63)", "if (false)", "digits that nothing adds up to are summed"),
    (
        "state.c",
        "? terms >> 22 : terms << 8;",
        "? terms >> 21 : terms << 9;",
        "the highest digit may be twice what terms allow",
    ),
    (
        "state.c",
        "lowest[j] = -highest[j] - parts;",
        "lowest[j] = -highest[j];",
        "sums below 0 refused",
    ),
    (
        "state.c",
        "left > 0 ? scaled(left, q.exponent) : 0;",
        "scaled(left, q.exponent);",
        "exact variances below 0",
    ),
    (
        "state.c",
        "in_doubles ? *given : (double)(float)*given;",
        "*given;",
        "sums are taken to be about the mean as given",
    ),
    ("state.c", "fabs(*mean - *given) <= lost", "false", "a mean right to more places is lost"),
    (
        "state.c",
        "pair_sum(quotient.high, quotient.low);",
        "pair_of(quotient.high, 0);",
        "a sum over the count is rounded twice",
    ),
    (
        "state.c",
        "(q.value.low - scaled(common.low, apart))",
        "0",
        "squares about the mean lose their low parts",
    ),
    (
        "state.c",
        "const double canonical = isnan(mean) ? (double)NAN : mean + 0.0;",
        "const double canonical = mean + 0.0;",
        "stamps of NaNs differ",
    ),
    (
        "state.c",
        "const bool in_floats = kind == BN_OF_MOMENTS && bn_digits",
        "const bool in_floats = bn_digits",
        "gradients' stamp forgets the mean's low part",
    ),
    (
        "state.c",
        "counts[c + i] = count;",
        "counts[c + i] = count & 0xffffffff;",
        "counts of 32 bits",
    ),
    (
        "state.c",
        "mixed(bits ^ what) | 1",
        "mixed(what) | 1",
        "the stamp knows no mean",
    ),
    ("state.c", "(uint64_t)kind << 8", "(uint64_t)kind << 64 - 64 & 0", "the stamp knows no kind"),
    (
        "exact.inc",
        "*nothing += e->of[i] - e->of[i];",
        "*nothing += 0 * (double)i;",
        "infinite sums are believed",
    ),
    (
        "exact.inc",
        "bool exact = !fp_inexact();",
        "bool exact = true;",
        "rounding is not looked for",
    ),
    (
        "exact.inc",
        "(nan[word] ? BN_NAN_FLAG",
        "(nan[word] ? BN_INF_FLAG",
        "a NaN is counted as Inf",
    ),
    (
        "exact.inc",
        "BN_DIGIT_BITS * k + 52 > 1022",
        "BN_DIGIT_BITS * k + 52 > 9999",
        "no anchor for the largest doubles",
    ),
    (
        "exact_walk.c",
        "return e->kernels->paired && !e->by_runs ?",
        "return false ?",
        "even and odd columns change places",
    ),
    (
        "exact_walk.c",
        "__atomic_fetch_or(&e->touched, a->touched, __ATOMIC_RELAXED);",
        "",
        "a part's digits are not carried",
    ),
    (
        "exact.inc",
        "return a->flag_tells && !fp_inexact();",
        "return true;",
        "a run's columns meet, rounded or not",
    ),
    (
        "exact.inc",
        "*digit_at(to, k, s, column) += *digit_at(a, k, s, 0);",
        "*digit_at(to, k, s, column) += 0;",
        "a run's digits are lost",
    ),
    (
        "quiet.inc",
        "return !ONCE(SPLIT) && s == 0;",
        "return !ONCE(SPLIT) && s < 2;",
        "NaN and Inf are taken for numbers",
    ),
    (
        "digits.inc",
        "high >> (2 * BN_DIGIT_BITS - 64)",
        "high & 0",
        "a double's third digit is lost",
    ),
    (
        "digits.inc",
        "(bits & (one - 1)) | (one & normal)",
        "(bits & (one - 1)) | one",
        "subnormal doubles have a leading bit",
    ),
    (
        "digits.inc",
        "digit[k * a->pitch] += of_lane[k][i];",
        "digit[k * a->pitch] = of_lane[k][i];",
        "the digits of lanes replace their channel's",
    ),
    (
        "digits.inc",
        "apart ? DOUBLES : 0, t, rows);",
        "apart ? 0 : 0, t, rows);",
        "planes of doubles go to the first columns' digits",
    ),
    (
        "exact.inc",
        "*at = (VEC)((u32v)term & (u32v)(term - term == 0));",
        "(void)at;",
        "what has become a flag is summed",
    ),
    (
        "exact_rows.c",
        "if (from + rows == whole) {",
        "if (from + rows == whole && m == 1) {",
        "positions that make no row are left out",
    ),
    (
        "exact.c",
        "        bn_carry(state, e.digits, e.touched, p->channel.size);\n",
        "",
        "a part's digits are not canonical",
    ),
    ("exact_walk.c", " && !(a->touched >> e->digits)", "", "flags of a part's tasks are added"),
    (
        "entries.c",
        "sums[n + i] -= low != 0 ? low * sums[i] : 0;",
        "sums[n + i] -= 0 * low;",
        "exact sums forget the mean's low part",
    ),
    (
        "copies.c",
        "*from += k * piece * axis.from;",
        "*from += k * axis.from;",
        "pieces of a copy overlap",
    ),
    (
        "copies.c",
        "index /= c->across;",
        "index /= c->along;",
        "pieces of a copy are of other places",
    ),
    (
        "runs.inc",
        "part[i].data[o] += runs->apart[o];",
        "part[i].data[o] += runs->apart[BN_SRC];",
        "the same of short runs",
    ),
    (
        "runs.inc",
        "fresh = j->fresh && x < STRETCH && repeat == 0;",
        "fresh = j->fresh && x == 0 && repeat == 0;",
        "a strip's sums begin with what the channel before left",
    ),
    (
        "runs.inc",
        "        fresh = false;\n",
        "",
        "of a run's groups only the last is kept",
    ),
    (
        "runs.inc",
        "runs->part[0].cols >= STRETCH;",
        "runs->part[0].cols > 0;",
        "columns that a run does not reach keep what the channel before left",
    ),
    (
        "runs.inc",
        "done += BN_GROUP) {",
        "done += b->repeats) {",
        "short runs' positions behind the first group are left out",
    ),
    (
        "runs.inc",
        "to->sum[(r + 1) % NAMED(REGISTERS)] += w->v[1];",
        "to->sum[r] += w->v[1];",
        "the upper half of a register's columns joins the subsums of the lower",
    ),
    ("runs.inc", "x + i * NAMED(LANES), &w[s][i]", "x, &w[s][i]", "likewise of a pack"),
    (
        "vec_avx512.h",
        "const __m128d sum = _mm256_castpd256_pd128(half) + _mm256_extractf128_pd(half, 1);",
        "const __m128d sum = _mm_hadd_pd(_mm256_castpd256_pd128(half), "
        "_mm256_extractf128_pd(half, 1));",
        "subsums are added as neighbours",
    ),
    (
        "walk_rows.c",
        "row + last, (int)strands.n - 1, length - last);\n    for",
        "row + last, (int)strands.n, length - last);\n    for",
        "one row too many where the last strand of short runs is shorter",
    ),
    (
        "engine.c",
        "pass == WRITE ? plan->writes_by_runs : plan->sums_by_runs",
        "plan->writes_by_runs",
        "sums by columns get coefficients by channel",
    ),
    (
        "engine.c",
        "OF_CHANNEL * at_most(plan->channels, most) : 0",
        "0 : 0",
        "threads are counted by elements alone",
    ),
    (
        "dispatch.c",
        "bn_training_##level, bn_inference_##level,",
        "bn_training_##level, bn_training_##level,",
        "inference sums and normalizes by the batch",
    ),
    (
        "plan.c",
        "plan->far && !plan->nontemporal && widest < plan->channels",
        "plan->far && widest < plan->channels",
        "results of runs that bypass the cache are cut by positions",
    ),
    (
        "walk_runs.c",
        "at_most(plan->rows_per_write, plan->positions - position), 0,",
        "plan->rows_per_write, 0,",
        "results of long runs behind the last position",
    ),
    (
        "walk_rows.c",
        "return plan->joint && !walk->sums ? plan->rows_per_write",
        "return plan->joint ? plan->rows_per_write",
        "sums are cut as results are",
    ),
    (
        "_forward.pxi",
        "    if before == 0:",
        "    if False:",
        "the first part is merged with nothing",
    ),
    (
        "_forward.pxi",
        "off * (off * (before * weight))",
        "off * off * (before * weight)",
        "squares of parts overflow where those of the whole do not",
    ),
    ("_inputs.pxi", "if mark[i] != 1:", "if mark[i] < 1:", "statistics that were added pass"),
    (
        "engine.c",
        "if (call->sums_in && call->count > 0) {",
        "if (call->sums_in && call->count > 1) {",
        "an empty part of a whole of one element",
    ),
    (
        "_outputs.pxi",
        "check_alone(c, RUNNING_VARIANCE)",
        "pass",
        "running_variance may share memory with inputs",
    ),
    (
        "_tensorflow_forward.py",
        "int(count > 1)",
        "int(count > 2)",
        "two elements without Bessel's correction",
    ),
    (
        "_pytorch_forward.py",
        "np.maximum(variance_of(inverses) - value, 0)",
        "variance_of(inverses) - value",
        "gathered variances below 0",
    ),
    ("_pytorch_forward.py", "total >= 2**53", "False", "more elements than are counted"),
    ("_fp_mode.pxi", 'errstate(all="ignore")', "errstate()", "NumPy raises where Python computes"),
    (
        "_fp_mode.pxi",
        "        self.found = fp_mode_enter()\n",
        "        self.found = fp_mode_enter()\n        fp_mode_leave(self.found)\n",
        "Python computes in the caller's floating-point mode",
    ),
    (
        "_layer.py",
        "if known is None or known[0] != size:",
        "if known is None or known[0] < size:",
        "a workspace that is too large is kept",
    ),
    (
        "_layer.py",
        'self._own("dst", data, *(a for a in (data, added) if a is not None))',
        'self._own("dst", data, data)',
        "dst lies over src_1",
    ),
    (
        "_layer.py",
        'self._own("diff_src_1", saved.src, saved.src, diff)',
        'self._own("diff_src_1", saved.src, saved.src)',
        "diff_src_1 lies over diff_dst",
    ),
    (
        "_layer.py",
        "undo, self._saved = [self._saved], None",
        "undo = [self._saved]",
        "an interrupted step leaves what the one before saved",
    ),
    (
        "_process.pxi",
        "    state.update(after)\n    undo.clear()\n",
        "    undo.clear()\n",
        "batches are not counted",
    ),
    (
        "_layer_arguments.py",
        "with _core._DefaultMode():",
        "if True:",
        "loading a state warns of what does not fit",
    ),
]

#: Where the constants stand that decide how sums are split ...
CONSTANTS = ("plan.c", "plan.h")
#: ... and those there that decide only who works when, or in what pieces.
NO_ORDER = {"PIECE_ELEMENTS", "PIECE_BYTES"}


def tree():
    """The files of the repository, as paths from its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [path for path in map(Path, listed.stdout.split("\0")[:-1]) if (ROOT / path).is_file()]


def located(files, name):
    """The one source of this name, in whatever folder."""
    found = [path for path in files if path.name == name]
    if len(found) != 1:
        raise SystemExit(f"{name}: expected one such file, found {[str(path) for path in found]}")
    return found[0]


def constants(name, text):
    """Every constant of a file that decides an order of sums, doubled and halved."""
    for line, constant, value in re.findall(r"^(    ([A-Z_]+) = ([^,]+),)", text, re.MULTILINE):
        if constant not in NO_ORDER:
            for words, factor in (("doubled", "* 2"), ("halved", "/ 2")):
                yield name, line, f"    {constant} = ({value}) {factor},", f"{constant} {words}"


def run(command, folder, hangs):
    """Why it failed, or ''."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=hangs,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        why = ""
        if done.returncode:
            lines = done.stdout.splitlines()
            failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
            why = failed[0].split(" - ")[0] if failed else f"exit {done.returncode}"
    except subprocess.TimeoutExpired:
        why = "hangs"
    return why


def build(folder):
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    return "" if done.returncode == 0 else "does not build:\n" + done.stderr[-2000:]


def kill(folder, parts=(FAST, REST)):
    """What finds the mutant built in a folder, or ''."""
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    why = run([sys.executable, "-m", "bn_ext", "verify"], folder, VERIFY_HANGS)
    if why:
        return "python -m bn_ext verify" + (" (hangs)" if why == "hangs" else "")
    for part in parts:
        why = run(pytest + part, folder, TESTS_HANG)
        if why:
            return why
    return ""


def main(arguments=None):
    """Try them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", type=int, help="numbers, from 1")
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "mutations.md")
    options = parser.parse_args(arguments)
    files = tree()
    names = {*CONSTANTS, *(name for name, *_ in MUTANTS)}
    path_of = {name: located(files, name) for name in names}
    right = {name: (ROOT / path).read_text() for name, path in path_of.items()}
    mutants = [*MUTANTS]
    for name in CONSTANTS:
        mutants += constants(name, right[name])
    lost = [
        f"{name}: {words}: {old!r} does not occur once"
        for name, old, _, words, *_ in mutants
        if right[name].count(old) != 1
    ]
    if lost:
        raise SystemExit("\n".join(lost))
    numbers = options.only or range(1, len(mutants) + 1)
    lines, survived, elsewhere = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for path in files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        broken = build(folder) or kill(folder, [FAST])
        if broken:
            raise SystemExit(f"before any mutation: {broken}")
        for number in numbers:
            name, old, new, words, *job = mutants[number - 1]
            if job:
                found = f"`.ci/{job[0]}` (not run here)"
                elsewhere += 1
            else:
                path = folder / path_of[name]
                path.write_text(right[name].replace(old, new))
                found = build(folder) or kill(folder)
                path.write_text(right[name])
            if not found:
                survived.append(number)
            print(f"{number:3} {name}: {words}: {found or 'SURVIVED'}", flush=True)
            by = found.splitlines()[0] if found else "**nothing**"
            lines.append(f"| {number} | {name} | {words} | {by} |")
    tried = len(lines) - elsewhere
    print(f"{tried - len(survived)} of {tried} found")
    if not options.only:
        head = (
            "# Mutations\n\nEach breaks the C or the Cython in one place; what finds it first. By "
            "`tests/mutate.py`.\n\n| | file | what is broken | found by |\n|---|---|---|---|\n"
        )
        options.write.write_text(head + "\n".join(lines) + "\n")
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main())
