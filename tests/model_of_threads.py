"""How long threads take for what the plan gives them, if all run alike and memory is no limit.

The plan and the schedule are those of the C, which a call would have; who takes what, and who
waits for whom, is src_c/schedule.c's, here in virtual time: bytes that are read and written.
"""

import heapq
import math
from itertools import count

from bn_ext import _core

#: A channel's sums of one chunk are added to those of the others: bytes of operands that a thread
#: would touch meanwhile. They are as many themselves, and take 0.4 to 1.1 ns in cache.
BYTES_PER_SUM = 16
SUM, WRITE = 0, 1
#: Operands that a pass touches.
TOUCHED = {SUM: 2, WRITE: 3}


def part(i, size, whole):
    """How much of the whole the i-th part has."""
    return min(size, whole - i * size)


class Work:
    """What a call's tasks touch, in bytes."""

    def __init__(self, dtype, dims, layout, threads):
        self.threads, self.bytes = threads, {"bfloat16": 2, "float32": 4}[dtype]
        axis = len(dims) - 1 if layout == "NXC" else 1
        outline = _core._outline(dtype, dims, axis, threads)
        self.plan, self.schedule = outline["plan"], outline["schedule"]
        self.form, self.order, self.ahead = (outline[k] for k in ("form", "order", "ahead"))
        self.channels = dims[axis]
        self.positions = math.prod(dims[:axis])
        self.run = math.prod(dims[axis + 1 :])
        self.tiles, self.tasks = self.schedule["tiles"], self.schedule["tasks"]
        self.joint, self.parts = self.schedule["joint"], self.schedule["parts"]
        self.all = sum(TOUCHED.values()) * math.prod(dims) * self.bytes

    def channels_of(self, tile):
        return part(tile, self.plan["channels_per_tile"], self.channels)

    def elements_of_rows(self, task, rows):
        """Of each channel."""
        return part(task, rows * self.plan["positions_per_row"], self.positions) * self.run

    def elements_of_chunk(self, chunk):
        """Of each channel."""
        if self.form != "long runs":
            return self.elements_of_rows(chunk, self.plan["rows_per_chunk"])
        position, x = divmod(chunk, self.plan["chunks_per_run"])
        return part(position, self.plan["positions_per_chunk"], self.positions) * part(
            x, self.plan["elements_per_chunk"], self.run
        )

    def first(self, tile, task):
        return self.elements_of_chunk(task) * self.channels_of(tile) * TOUCHED[SUM] * self.bytes

    def second(self, tile, task):
        if self.joint:
            elements = self.elements_of_rows(task, self.plan["rows_per_write"]) * self.channels
        else:
            elements = self.elements_of_chunk(task) * self.channels_of(tile)
        return elements * TOUCHED[WRITE] * self.bytes

    def finish(self, tile):
        """One of its parts."""
        return self.channels_of(tile) * self.tasks * BYTES_PER_SUM / self.parts


class Team:
    """Each thread's work as a generator: of bytes, or of tiles that it waits for."""

    def __init__(self, work):
        self.work = work
        most = max(work.tiles * work.tasks, work.joint)
        self.threads = min(work.threads, most)
        self.left = [work.tasks] * work.tiles
        self.untaken = [work.parts] * work.tiles
        self.unfinished = [work.parts] * work.tiles
        self.taken = {}
        self.done = 0

    def finish_parts(self, tile):
        while self.untaken[tile]:
            self.untaken[tile] -= 1
            yield self.work.finish(tile)
            self.unfinished[tile] -= 1

    def first_task(self, tile, task):
        cost = self.work.first(tile, task)
        self.done += cost
        yield cost
        self.left[tile] -= 1
        if self.left[tile] == 0:
            yield from self.finish_parts(tile)

    def second_task(self, tile, task):
        for t in range(self.work.tiles) if self.work.joint else [tile]:
            while self.left[t]:
                yield None
            yield from self.finish_parts(t)
            while self.unfinished[t]:
                yield None
        cost = self.work.second(tile, task)
        self.done += cost
        yield cost

    def whole_tile(self, tile):
        for task in range(self.work.tasks):
            yield from self.first_task(tile, task)
        for task in reversed(range(self.work.tasks)):
            yield from self.second_task(tile, task)

    def passes(self):
        """The items of both, each an action of a thread."""
        w = self.work
        both = [(tile, task) for tile in range(w.tiles) for task in range(w.tasks)]
        if w.order == "solo":
            return [[(self.whole_tile, tile) for tile in range(w.tiles)], []]
        if w.order == "phases":
            if w.joint:
                both.sort(key=lambda item: item[1])
            second = [(0, task) for task in range(w.joint)] if w.joint else both
            return [[(self.first_task, *i) for i in both], [(self.second_task, *i) for i in second]]
        listed = []
        for tile in range(w.tiles + w.ahead):
            behind = tile - w.ahead
            if tile < w.tiles:
                listed += [(self.first_task, tile, task) for task in range(w.tasks)]
            if behind >= 0:
                listed += [(self.second_task, behind, task) for task in reversed(range(w.tasks))]
        return [listed, []]

    def thread(self, me):
        shares = 1 if self.work.order == "list" else self.threads
        for k, items in enumerate(self.passes_):
            for turn in range(shares):
                whose = (me + turn) % shares
                own = items[len(items) * whose // shares : len(items) * (whose + 1) // shares]
                if k:
                    own = own[::-1]
                while (i := self.taken.get((k, whose), 0)) < len(own):
                    self.taken[k, whose] = i + 1
                    do, *what = own[i]
                    yield from do(*what)

    def time(self):
        """When the last thread is done."""
        self.passes_ = self.passes()
        ticket = count()
        ready = [(0, next(ticket), self.thread(me)) for me in range(self.threads)]
        waiting, now = [], 0
        while ready:
            now, _, thread = heapq.heappop(ready)
            step = next(thread, "end")
            if step is None:
                waiting.append(thread)
                continue
            if step != "end":
                heapq.heappush(ready, (now + step, next(ticket), thread))
            # Something may have come to its end: those who wait look again.
            for other in waiting:
                heapq.heappush(ready, (now, next(ticket), other))
            waiting.clear()
        assert not waiting
        assert self.done == self.work.all
        return now


def efficiency(dtype, dims, layout, threads):
    """1: all threads are at work until the end."""
    work = Work(dtype, dims, layout, threads)
    return work.all / (threads * Team(work).time())
