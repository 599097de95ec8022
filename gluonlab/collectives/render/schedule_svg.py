"""A schedule as one SVG picture.

It has a panel for the start and for each step, a row for each chunk, a column for each rank, and an
arrow for each transfer.
"""

from __future__ import annotations

import math
import textwrap
from typing import List, Sequence, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.collectives.render.schedule_scene import (
    buses,
    description,
    drawable,
    goal,
    in_words,
    lanes,
    size,
)
from gluonlab.collectives.schedule import Schedule, Step
from gluonlab.collectives.verify_schedule import Contributions, states
from gluonlab.drawing.svg_parts import add_group, add_text, document_text, new_document

# All lengths are px. As many panels stand side by side as fit into WIDTH, at least one.
WIDTH, NARROWEST, MARGIN, BETWEEN = 1440, 720, 32, 44
TITLE, LABELS, BESIDE = 44, 62, 13  # of a panel: above its cells, left of them, and between them
# of a row: lanes of buses, the last bit of an arrow, the cell, air
LANE, ARROW, CELL, GAP = 8, 13, 20, 7
PADDING, CORNER = 4, 5
HEIGHTS = {"empty": 2, "held": 7, "new": 12, "often": 12}  # of a segment

# On white, what carries meaning has a contrast of at least 4.5 and differs in shape as well as in
# colour.
STYLE = """
text { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 13px;
  fill: #1c2430 }
.name { font-size: 24px; font-weight: 600 } .panel { font-size: 15px; font-weight: 600 }
.quiet { fill: #566072 }
.middle { text-anchor: middle } .end { text-anchor: end } .paper { fill: #ffffff }
.cell { fill: #f3f5f9; stroke: #c5ccd8; stroke-width: 1 }
.written { stroke: #1c2430; stroke-width: 1.6 }
.whole { fill: #dff3e7; stroke: #1b7f4d; stroke-width: 2.2 }
.empty { fill: #d5dbe5 } .held { fill: #2c66c9 } .new { fill: #c2410c }
.often { fill: #ffffff; stroke: #b00020; stroke-width: 2 }
.line { fill: none; stroke: #1c2430; stroke-width: 1.6 }
.head { fill: #1c2430; stroke: #1c2430; stroke-width: 1.4 }
.line.copy { stroke: #6b3fa0; stroke-dasharray: 5 3 } .head.copy { fill: #ffffff; stroke: #6b3fa0 }
.halo { fill: none; stroke: #ffffff; stroke-width: 5 }
"""

State = Sequence[Sequence[Contributions]]


class _ScheduleLayout:
    """Where things are in a panel of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        ranks = schedule.world_size
        # and the air between two
        self.segment = (9, 2) if ranks <= 4 else (5, 1) if ranks <= 8 else (3, 1)
        self.cell = max(28, 2 * PADDING + ranks * sum(self.segment) - self.segment[1])
        self.lanes = lanes(schedule)
        self.row = self.lanes * LANE + ARROW + CELL + GAP
        self.pitch = self.cell + BESIDE
        self.width = max(LABELS + ranks * self.pitch - BESIDE, 160)
        self.height = TITLE + schedule.chunks * self.row

    def left(self, rank: int) -> int:
        return LABELS + rank * self.pitch

    def middle(self, rank: int) -> float:
        return self.left(rank) + self.cell / 2

    def top(self, chunk: int) -> int:
        """Of the chunk's cells."""
        return TITLE + (chunk + 1) * self.row - CELL - GAP

    def lane(self, chunk: int, lane: int) -> int:
        return self.top(chunk) - ARROW - lane * LANE


def as_svg(schedule: Schedule) -> str:
    """The schedule as an SVG document, complete in itself.

    A chunk of a rank is a cell with a segment for each rank, filled when it holds that rank's
    contribution: low when it held it before, high when it came with the step. A solid arrow adds, a
    dashed one with an open head copies. Raises ScheduleError for more ranks or chunks than can be
    told apart.
    """
    drawable(schedule)
    frame, after = _ScheduleLayout(schedule), list(states(schedule))
    across = max(1, min(len(after), (WIDTH - 2 * MARGIN + BETWEEN) // (frame.width + BETWEEN)))
    width = max(2 * MARGIN + across * (frame.width + BETWEEN) - BETWEEN, NARROWEST)
    described = [description(schedule), _HOW_TO_READ]
    root = new_document(f"{schedule.name}: {size(schedule)}", described, STYLE)
    y = _heading(root, schedule, width)
    for number, now in enumerate(after):
        x = MARGIN + number % across * (frame.width + BETWEEN)
        panel = add_group(root, x, y + number // across * (frame.height + BETWEEN))
        title, step = (f"step {number}", schedule.steps[number - 1]) if number else ("start", ())
        _panel(panel, frame, schedule, step, title, (after[max(number - 1, 0)], now))
    height = y + math.ceil(len(after) / across) * (frame.height + BETWEEN) - BETWEEN + MARGIN
    return document_text(root, width, height)


_HOW_TO_READ = (
    "A panel for the start and one for each step; a row a chunk, a column a rank. "
    "A cell has a segment for each rank, filled when that rank's contribution is in the chunk. "
    "Solid arrows add, dashed arrows copy over."
)


def _heading(root: Element, schedule: Schedule, width: int) -> int:
    """Name, size, description and legend; returns where the panels begin."""
    add_text(root, MARGIN, 46, schedule.name, "name")
    y = 70
    for line in [size(schedule), *textwrap.wrap(description(schedule), (width - 2 * MARGIN) // 7)]:
        add_text(root, MARGIN, y, line, "quiet")
        y += 19
    _legend(add_group(root, MARGIN, y))
    return y + CELL + BETWEEN


def _legend(parent: Element) -> None:
    x = 0
    kinds = (("held before", 1, ""), ("came with the step", 0, "written"), ("whole", 1, "whole"))
    for label, before, kind in kinds:
        _box(parent, kind, x, 0, 24)
        _segments(parent, x, 0, (16, 0), [before], [1])
        add_text(parent, x + 32, 15, label)
        x += 54 + 7 * len(label)
    for label, add in (("+ added", True), ("= copied over", False)):
        way = f"M{x} 14V7Q{x} 2 {x + 5} 2H{x + 27}Q{x + 32} 2 {x + 32} 7V12"
        _lines(parent, [way], [(x + 32, 18)], add)
        add_text(parent, x + 44, 15, label)
        x += 66 + 7 * len(label)


def _panel(
    parent: Element,
    frame: _ScheduleLayout,
    schedule: Schedule,
    step: Step,
    title: str,
    states: Tuple[State, State],
) -> None:
    """``states``: before and after the step; ``title``: of the panel."""
    add_text(parent, 0, 14, title, "panel")
    ops = sorted({transfer.op for transfer in step})
    add_text(parent, frame.width, 14, " and ".join(ops), "quiet end")
    add_text(parent, LABELS - 10, 40, "rank", "quiet end")
    for rank in range(schedule.world_size):
        add_text(parent, frame.middle(rank), 40, str(rank), "middle")
    written = {(transfer.dst, transfer.chunk) for transfer in step}
    for chunk in range(schedule.chunks):
        add_text(parent, LABELS - 10, frame.top(chunk) + 15, f"chunk {chunk}", "quiet end")
        for rank in range(schedule.world_size):
            before, now = (state[rank][chunk] for state in states)
            kind = "written" if (rank, chunk) in written else ""
            kind = "whole" if now == goal(schedule, chunk) else kind
            cell, x, y = SubElement(parent, "g"), frame.left(rank), frame.top(chunk)
            SubElement(cell, "title").text = f"rank {rank}, chunk {chunk}: {in_words(now)}"
            _box(cell, kind, x, y, frame.cell)
            _segments(cell, x, y, frame.segment, before, now)
    # the long ones first: the short ones cross above them
    for bus in sorted(buses(step), key=lambda bus: -bus.lane):
        ways = [(other, bus.hub) if bus.add else (bus.hub, other) for other in bus.others]
        tips = [(frame.middle(dst), frame.top(bus.chunk) - 2.0) for _, dst in ways]
        lines = [_way(frame, src, dst, bus.chunk, bus.lane) for src, dst in ways]
        _lines(parent, lines, tips, bus.add)


def _box(parent: Element, kind: str, x: int, y: int, width: int) -> None:
    place = {"x": str(x), "y": str(y), "width": str(width), "height": str(CELL), "rx": "3"}
    SubElement(parent, "rect", {"class": f"cell {kind}".strip(), **place})


def _segments(
    cell: Element, x: int, y: int, size: Tuple[int, int], before: Sequence[int], now: Sequence[int]
) -> None:
    """``size``: the width of a segment, and of the air between two."""
    paths = dict.fromkeys(HEIGHTS, "")
    for rank, (was, count) in enumerate(zip(before, now)):
        kind = "empty" if not count else "often" if count > 1 else "held" if was else "new"
        paths[kind] += (
            f"M{x + PADDING + rank * sum(size)} "
            f"{y + CELL - PADDING}h{size[0]}v-{HEIGHTS[kind]}h-{size[0]}z"
        )
    for kind, path in paths.items():
        if path:
            SubElement(cell, "path", {"class": kind, "d": path})


def _way(frame: _ScheduleLayout, src: int, dst: int, chunk: int, lane: int) -> str:
    """Up from one cell, along the lane, down to the other; the corners are round."""
    begin, end = frame.middle(src), frame.middle(dst)
    top, y = frame.top(chunk), frame.lane(chunk, lane)
    turn = math.copysign(CORNER, end - begin)
    return (
        f"M{begin:g} {top - 1}V{y + CORNER}Q{begin:g} {y} {begin + turn:g} {y}"
        f"H{end - turn:g}Q{end:g} {y} {end:g} {y + CORNER}V{top - 8}"
    )


def _lines(
    parent: Element, ways: List[str], tips: Sequence[Tuple[float, float]], add: bool
) -> None:
    """Arrows that belong together, on a white halo that sets them off from lines they cross."""
    kind = "" if add else " copy"
    SubElement(parent, "path", {"class": "halo", "d": "".join(ways)})
    SubElement(parent, "path", {"class": f"line{kind}", "d": "".join(ways)})
    heads = "".join(f"M{x - 4:g} {y - 6:g}h8l-4 6z" for x, y in tips)
    SubElement(parent, "path", {"class": f"head{kind}", "d": heads})
