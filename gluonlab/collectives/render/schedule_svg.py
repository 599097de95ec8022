"""Renders a schedule as one SVG picture.

The picture has a panel for the start and for each step. A panel has a row for each chunk, a column
for each rank, and an arrow for each transfer.
"""

from __future__ import annotations

import math
import textwrap
from typing import List, Sequence, Tuple
from xml.etree.ElementTree import Element, SubElement

from gluonlab.collectives.render.schedule_scene import (
    algorithm_description,
    bundle_transfers,
    check_drawable,
    complete_contributions,
    describe_contributions,
    describe_size,
    lane_count,
)
from gluonlab.collectives.schedule import Schedule, Step
from gluonlab.collectives.verify_schedule import Contributions, simulate_contributions
from gluonlab.drawing.svg_parts import add_group, add_text, finish_document, new_document

# All lengths are in px. As many panels are side by side as fit into WIDTH, at least one.
WIDTH, MIN_WIDTH, MARGIN, PANEL_GAP = 1440, 720, 32, 44
TITLE, LABELS, CELL_GAP = 44, 62, 13  # of a panel: above its cells, left of them, between them
# of a row: height of a lane, of an arrow's head, of the cell, and the gap
LANE, ARROW, CELL, GAP = 8, 13, 20, 7
PADDING, CORNER = 4, 5
HEIGHTS = {"empty": 2, "held": 7, "new": 12, "often": 12}  # of a segment

# On white, meaningful parts have a contrast of at least 4.5, and differ both in shape and color.
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
    """The positions of cells and arrows in a panel."""

    def __init__(self, schedule: Schedule) -> None:
        ranks = schedule.world_size
        # (width, gap)
        self.segment = (9, 2) if ranks <= 4 else (5, 1) if ranks <= 8 else (3, 1)
        self.cell = max(28, 2 * PADDING + ranks * sum(self.segment) - self.segment[1])
        self.lanes = lane_count(schedule)
        self.row = self.lanes * LANE + ARROW + CELL + GAP
        self.pitch = self.cell + CELL_GAP
        self.width = max(LABELS + ranks * self.pitch - CELL_GAP, 160)
        self.height = TITLE + schedule.chunks * self.row

    def cell_left(self, rank: int) -> int:
        return LABELS + rank * self.pitch

    def cell_middle(self, rank: int) -> float:
        return self.cell_left(rank) + self.cell / 2

    def cell_top(self, chunk: int) -> int:
        """Return the y coordinate of the top of the chunk's cells."""
        return TITLE + (chunk + 1) * self.row - CELL - GAP

    def lane_y(self, chunk: int, lane: int) -> int:
        return self.cell_top(chunk) - ARROW - lane * LANE


def as_svg(schedule: Schedule) -> str:
    """Return the schedule as a self-contained SVG document.

    Each chunk of a rank is drawn as a cell with a segment for each rank. The segment is filled if
    the chunk contains that rank's contribution. The segment is low if the contribution was in the
    chunk before the step, and high if the step added the contribution. A solid arrow adds, and a
    dashed arrow with an open head copies. Raises ScheduleError for too many ranks or chunks.
    """
    check_drawable(schedule)
    layout, all_states = _ScheduleLayout(schedule), list(simulate_contributions(schedule))
    panels_per_row = max(1, min(len(all_states), (WIDTH - 2 * MARGIN + PANEL_GAP) // (layout.width + PANEL_GAP)))
    width = max(2 * MARGIN + panels_per_row * (layout.width + PANEL_GAP) - PANEL_GAP, MIN_WIDTH)
    texts = [algorithm_description(schedule), _HOW_TO_READ]
    root = new_document(f"{schedule.name}: {describe_size(schedule)}", texts, STYLE)
    y = _draw_heading(root, schedule, width)
    for number, state in enumerate(all_states):
        x = MARGIN + number % panels_per_row * (layout.width + PANEL_GAP)
        panel = add_group(root, x, y + number // panels_per_row * (layout.height + PANEL_GAP))
        title, step = (f"step {number}", schedule.steps[number - 1]) if number else ("start", ())
        _draw_panel(panel, layout, schedule, step, title, (all_states[max(number - 1, 0)], state))
    height = y + math.ceil(len(all_states) / panels_per_row) * (layout.height + PANEL_GAP) - PANEL_GAP + MARGIN
    return finish_document(root, width, height)


_HOW_TO_READ = (
    "The first panel shows the start, and each further panel shows one step. Rows are "
    "chunks, and columns are ranks. A cell has a segment for each rank, filled when that "
    "rank's contribution is in the chunk. Solid arrows add, dashed arrows copy over."
)


def _draw_heading(root: Element, schedule: Schedule, width: int) -> int:
    """Draw the name, size, description and legend. Return the y coordinate below them."""
    add_text(root, MARGIN, 46, schedule.name, "name")
    y = 70
    for line in [describe_size(schedule), *textwrap.wrap(algorithm_description(schedule), (width - 2 * MARGIN) // 7)]:
        add_text(root, MARGIN, y, line, "quiet")
        y += 19
    _draw_legend(add_group(root, MARGIN, y))
    return y + CELL + PANEL_GAP


def _draw_legend(parent: Element) -> None:
    """Draw an example of each kind of cell and arrow, with its meaning."""
    x = 0
    cell_kinds = (("held before", 1, ""), ("received in this step", 0, "written"), ("whole", 1, "whole"))
    for label, was_held, kind in cell_kinds:
        _draw_cell(parent, kind, x, 0, 24)
        _draw_segments(parent, x, 0, (16, 0), [was_held], [1])
        add_text(parent, x + 32, 15, label)
        x += 54 + 7 * len(label)
    for label, add in (("+ added", True), ("= copied over", False)):
        path = f"M{x} 14V7Q{x} 2 {x + 5} 2H{x + 27}Q{x + 32} 2 {x + 32} 7V12"
        _draw_arrows(parent, [path], [(x + 32, 18)], add)
        add_text(parent, x + 44, 15, label)
        x += 66 + 7 * len(label)


def _draw_panel(
    parent: Element, layout: _ScheduleLayout, schedule: Schedule, step: Step, title: str, states: Tuple[State, State]
) -> None:
    """Draw one step: a table of chunks by rank after the step, and arrows for its transfers.

    ``states``: the contents of all chunks before and after the step.
    """
    add_text(parent, 0, 14, title, "panel")
    ops = sorted({transfer.op for transfer in step})
    add_text(parent, layout.width, 14, " and ".join(ops), "quiet end")
    add_text(parent, LABELS - 10, 40, "rank", "quiet end")
    for rank in range(schedule.world_size):
        add_text(parent, layout.cell_middle(rank), 40, str(rank), "middle")
    written = {(transfer.dst, transfer.chunk) for transfer in step}
    for chunk in range(schedule.chunks):
        add_text(parent, LABELS - 10, layout.cell_top(chunk) + 15, f"chunk {chunk}", "quiet end")
        for rank in range(schedule.world_size):
            previous, current = (state[rank][chunk] for state in states)
            kind = "written" if (rank, chunk) in written else ""
            kind = "whole" if current == complete_contributions(schedule, chunk) else kind
            cell, x, y = SubElement(parent, "g"), layout.cell_left(rank), layout.cell_top(chunk)
            SubElement(cell, "title").text = f"rank {rank}, chunk {chunk}: {describe_contributions(current)}"
            _draw_cell(cell, kind, x, y, layout.cell)
            _draw_segments(cell, x, y, layout.segment, previous, current)
    # the long ones first: the short ones cross above them
    for bundle in sorted(bundle_transfers(step), key=lambda bundle: -bundle.lane):
        ends = [(other, bundle.hub) if bundle.add else (bundle.hub, other) for other in bundle.others]
        tips = [(layout.cell_middle(dst), layout.cell_top(bundle.chunk) - 2.0) for _, dst in ends]
        lines = [_arrow_path(layout, src, dst, bundle.chunk, bundle.lane) for src, dst in ends]
        _draw_arrows(parent, lines, tips, bundle.add)


def _draw_cell(parent: Element, kind: str, x: int, y: int, width: int) -> None:
    attributes = {"x": str(x), "y": str(y), "width": str(width), "height": str(CELL), "rx": "3"}
    SubElement(parent, "rect", {"class": f"cell {kind}".strip(), **attributes})


def _draw_segments(
    cell: Element, x: int, y: int, size: Tuple[int, int], previous: Sequence[int], current: Sequence[int]
) -> None:
    """Draw a bar in a cell for each rank, in a style that shows how often the rank contributes.

    ``size``: the widths of a bar and of the gap after it. ``previous``, ``current``: how often each
    contribution is in the chunk before and after the step.
    """
    paths = dict.fromkeys(HEIGHTS, "")
    for rank, (previous_count, count) in enumerate(zip(previous, current)):
        kind = "empty" if not count else "often" if count > 1 else "held" if previous_count else "new"
        paths[kind] += f"M{x + PADDING + rank * sum(size)} {y + CELL - PADDING}h{size[0]}v-{HEIGHTS[kind]}h-{size[0]}z"
    for kind, path in paths.items():
        if path:
            SubElement(cell, "path", {"class": kind, "d": path})


def _arrow_path(layout: _ScheduleLayout, src: int, dst: int, chunk: int, lane: int) -> str:
    """Return the path of an arrow: up from a cell, along the lane, and down to the other cell."""
    start, end = layout.cell_middle(src), layout.cell_middle(dst)
    top, y = layout.cell_top(chunk), layout.lane_y(chunk, lane)
    turn = math.copysign(CORNER, end - start)
    return (
        f"M{start:g} {top - 1}V{y + CORNER}Q{start:g} {y} {start + turn:g} {y}"
        f"H{end - turn:g}Q{end:g} {y} {end:g} {y + CORNER}V{top - 8}"
    )


def _draw_arrows(parent: Element, paths: List[str], tips: Sequence[Tuple[float, float]], add: bool) -> None:
    """Draw the arrows of a bundle, on a white halo that separates them from lines they cross."""
    kind = "" if add else " copy"
    SubElement(parent, "path", {"class": "halo", "d": "".join(paths)})
    SubElement(parent, "path", {"class": f"line{kind}", "d": "".join(paths)})
    heads = "".join(f"M{x - 4:g} {y - 6:g}h8l-4 6z" for x, y in tips)
    SubElement(parent, "path", {"class": f"head{kind}", "d": heads})
