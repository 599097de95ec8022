"""Animated SVG picture of a ring allreduce on four ranks, for the README.

.venv/bin/python tools/ring_animation.py FILE

The picture shows the schedule that `gluonlab.collectives` runs. Each rank has four chunks. A chunk
has a bar for each rank, which is filled when the chunk contains that rank's gradients.
"""

import sys
from pathlib import Path
from xml.etree.ElementTree import SubElement

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this gluonlab

from gluonlab.collectives.algorithms import make_schedule  # noqa: E402
from gluonlab.collectives.schedule import ADD  # noqa: E402
from gluonlab.collectives.verify_schedule import simulate_contributions  # noqa: E402
from gluonlab.drawing.svg_parts import add_group, add_text, finish_document, new_document  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "ring.svg"
RANKS = 4

# All lengths are in px. Text is large enough for a screen of half the picture's width.
WIDTH, HEIGHT, MARGIN = 720, 452, 24
BAR, BAR_HEIGHT, BAR_GAP, PADDING = 9, 30, 4, 7  # of a cell, which is a chunk of a rank
CELL = 2 * PADDING + RANKS * (BAR + BAR_GAP) - BAR_GAP
CELL_HEIGHT = BAR_HEIGHT + 2 * PADDING
CELL_GAP = 8
BOX = RANKS * (CELL + CELL_GAP) - CELL_GAP + 32
BOX_HEIGHT = CELL_HEIGHT + 54
LEFT, RIGHT, TOP, BOTTOM = MARGIN, WIDTH - MARGIN - BOX, 96, 278
CORNERS = ((LEFT, TOP), (RIGHT, TOP), (RIGHT, BOTTOM), (LEFT, BOTTOM))  # of the boxes, by rank

# All times are in s.
START, STEP, END = 1.5, 1.7, 3.8  # before the first step, for each step, and after the last
MOVE_FROM, MOVE_UNTIL = 0.25, 0.85  # of a step

# The picture is complete without animations: it then shows the result. Colors are those of the labs.
STYLE = """
text { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 22px;
  fill: #1f2328 }
.name { font-size: 26px; font-weight: 600 } .quiet { fill: #59636e } .middle { text-anchor: middle }
.paper { fill: #ffffff } .box { fill: #f6f8fa; stroke: #d0d7de; stroke-width: 1.5 }
.way { fill: none; stroke: #8c959f; stroke-width: 3 } .tip { fill: #8c959f }
.cell { fill: #ffffff; stroke: #8c959f; stroke-width: 1.5 }
.whole { fill: #dafbe1; stroke: #1a7f37; stroke-width: 3.5 } .empty { fill: #d0d7de }
.r0 { fill: #0969da } .r1 { fill: #bc4c00 } .r2 { fill: #8250df } .r3 { fill: #9a6700 }
.move, .said { opacity: 0 } .last { opacity: 1 } .move .cell { stroke: #1f2328; stroke-width: 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #9da7b1 } .paper { fill: #0d1117 }
  .box { fill: #161b22; stroke: #3d444d } .way { stroke: #7d8590 } .tip { fill: #7d8590 }
  .cell { fill: #0d1117; stroke: #7d8590 } .whole { fill: #0f2e1a; stroke: #6bc46d }
  .empty { fill: #3d444d } .r0 { fill: #6cb6ff } .r1 { fill: #f0a26a } .r2 { fill: #c9a6ff }
  .r3 { fill: #e0b34d } .move .cell { stroke: #e6edf3 }
}
"""


def make_picture():
    """Return the picture as SVG text."""
    schedule = make_schedule("ring", RANKS)
    states = list(simulate_contributions(schedule))
    duration = START + STEP * len(schedule.steps) + END
    root = new_document(
        "A ring allreduce on four ranks, step by step",
        [
            "In three steps, each rank adds one of its four chunks to the next rank's chunk.",
            "In three more steps, the finished chunks are copied around the ring.",
            "In the end, every rank has the sum of all gradients.",
        ],
        STYLE + animation_rules(schedule, duration),
    )
    add_text(root, MARGIN, 40, f"Ring allreduce on {RANKS} ranks", "name")
    draw_captions(root, schedule)
    draw_ring(root)
    for rank, (x, y) in enumerate(CORNERS):
        draw_rank(add_group(root, x, y), rank, [state[rank] for state in states])
    for number, step in enumerate(schedule.steps):
        for transfer in step:
            draw_transfer(root, transfer, number, states[number][transfer.src][transfer.chunk])
    add_text(root, MARGIN, HEIGHT - 20, "Each bar in a chunk is one rank's part of the sum.", "quiet")
    return finish_document(root, WIDTH, HEIGHT)


def animation_rules(schedule, duration):
    """Return the CSS rules that animate the picture, unless the reader prefers less motion."""

    def percent(seconds):
        return f"{100 * seconds / duration:.2f}%"

    arrived = "transform: translate(var(--x), var(--y))"
    rules = [f".move, .said, .late {{ animation: {duration:g}s linear infinite }}"]
    ends = [0, *(START + STEP * number for number in range(len(schedule.steps) + 1)), duration]
    for number in range(len(schedule.steps) + 2):  # captions
        first, end = ends[number], ends[number + 1]
        hidden = f"{{ opacity: 0 }} {percent(first)}, {percent(end)} {{ opacity: 1 }}"
        before = f"0%, {percent(first - 0.01)} {hidden}" if first else f"0%, {percent(end)} {{ opacity: 1 }}"
        after = f"{percent(end + 0.01)}, 100% {{ opacity: 0 }}" if end < duration else ""
        rules.append(f"@keyframes said{number} {{ {before} {after} }}")
        rules.append(f".said{number} {{ animation-name: said{number} }}")
    for number in range(len(schedule.steps)):
        start = START + STEP * number
        leave, arrive = start + STEP * MOVE_FROM, start + STEP * MOVE_UNTIL
        rules.append(
            f"@keyframes move{number} {{ 0%, {percent(start)} {{ opacity: 0 }} "
            f"{percent(start + 0.1)}, {percent(leave)} {{ opacity: 1; transform: none; "
            "animation-timing-function: ease-in-out } "
            f"{percent(arrive)}, {percent(start + STEP - 0.1)} {{ opacity: 1; {arrived} }} "
            f"{percent(start + STEP)}, 100% {{ opacity: 0; {arrived} }} }}"
        )
        rules.append(f".move{number} {{ animation-name: move{number} }}")
        rules.append(
            f"@keyframes late{number} {{ 0%, {percent(arrive)} {{ opacity: 0 }} "
            f"{percent(arrive + 0.15)}, 100% {{ opacity: 1 }} }}"
        )
        rules.append(f".late{number} {{ animation-name: late{number} }}")
    return f"@media (prefers-reduced-motion: no-preference) {{ {' '.join(rules)} }}"


def draw_captions(parent, schedule):
    """Draw the line that names the step; one at a time is visible."""
    steps = len(schedule.steps)
    captions = ["Every rank has its own gradients, in four chunks."]
    for number, step in enumerate(schedule.steps, 1):
        words = "reduce-scatter, add to the next rank" if step[0].op == ADD else "all-gather, copy to the next rank"
        captions.append(f"Step {number} of {steps}: {words}")
    captions.append(f"Done in {steps} steps: every rank has the sum.")
    for number, words in enumerate(captions):
        last = " last" if number == len(captions) - 1 else ""
        add_text(parent, MARGIN, 74, words, f"said said{number}{last}")


def draw_ring(parent):
    """Draw an arrow from each rank to the next."""
    middle, lower = TOP + BOX_HEIGHT / 2, BOTTOM + BOX_HEIGHT / 2
    left, right = LEFT + BOX / 2, RIGHT + BOX / 2
    arrows = [
        ((LEFT + BOX, middle), (RIGHT, middle)),
        ((right, TOP + BOX_HEIGHT), (right, BOTTOM)),
        ((RIGHT, lower), (LEFT + BOX, lower)),
        ((left, BOTTOM), (left, TOP + BOX_HEIGHT)),
    ]
    for (x0, y0), (x1, y1) in arrows:
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        x0, y0, x1, y1 = x0 + 10 * dx, y0 + 10 * dy, x1 - 10 * dx, y1 - 10 * dy
        SubElement(parent, "path", {"class": "way", "d": f"M{x0:g} {y0:g}L{x1 - 12 * dx:g} {y1 - 12 * dy:g}"})
        wings = (
            f"L{x1 - 16 * dx - 9 * dy:g} {y1 - 16 * dy - 9 * dx:g}L{x1 - 16 * dx + 9 * dy:g} {y1 - 16 * dy + 9 * dx:g}"
        )
        SubElement(parent, "path", {"class": "tip", "d": f"M{x1:g} {y1:g}{wings}z"})


def draw_rank(parent, rank, chunks_by_state):
    """Draw a rank's box and chunks; a part that a step adds appears with that step."""
    size = {"width": f"{BOX:g}", "height": f"{BOX_HEIGHT:g}", "rx": "10"}
    SubElement(parent, "rect", {"class": "box", **size})
    add_text(parent, 16, 30, f"rank {rank}")
    for chunk in range(RANKS):
        cell = add_group(parent, cell_left(chunk), 42)
        states = [chunks[chunk] for chunks in chunks_by_state]
        draw_cell_frame(cell)
        whole = next(number for number, contributions in enumerate(states) if all(contributions))
        draw_cell_frame(cell, f"whole late late{whole - 1}")
        draw_bars(cell, states)


def cell_left(chunk):
    return 16 + chunk * (CELL + CELL_GAP)


def draw_cell_frame(parent, kind="cell"):
    size = {"width": f"{CELL:g}", "height": f"{CELL_HEIGHT:g}", "rx": "5"}
    SubElement(parent, "rect", {"class": kind, **size})


def draw_bars(parent, states):
    """Draw the bars of a chunk that has these contributions at the start and after each step."""
    for rank in range(RANKS):
        x = PADDING + rank * (BAR + BAR_GAP)
        base = PADDING + BAR_HEIGHT
        SubElement(
            parent, "rect", {"class": "empty", "x": f"{x}", "y": f"{base - 5}", "width": f"{BAR}", "height": "5"}
        )
        first = next((number for number, contributions in enumerate(states) if contributions[rank]), None)
        if first is not None:
            kind = f"r{rank}" if first == 0 else f"r{rank} late late{first - 1}"
            size = {"width": f"{BAR}", "height": f"{BAR_HEIGHT}"}
            SubElement(parent, "rect", {"class": kind, "x": f"{x}", "y": f"{PADDING}", **size})


def draw_transfer(parent, transfer, number, contributions):
    """Draw the chunk that moves from a rank to the next in a step."""
    (x, y), (to_x, to_y) = CORNERS[transfer.src], CORNERS[transfer.dst]
    place = add_group(parent, x + cell_left(transfer.chunk), y + 42)
    moving = SubElement(place, "g", {"class": f"move move{number}", "style": f"--x:{to_x - x}px;--y:{to_y - y}px"})
    draw_cell_frame(moving)
    draw_bars(moving, [contributions])


if __name__ == "__main__":
    Path(sys.argv[1] if sys.argv[1:] else PICTURE).write_text(make_picture(), encoding="utf-8")
