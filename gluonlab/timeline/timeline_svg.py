"""A timeline as one SVG picture: a row for each device and one for the host, by phase."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.drawing.matplotlib_figures import as_svg as figure_as_svg
from gluonlab.drawing.matplotlib_figures import as_written, import_matplotlib, new_figure
from gluonlab.drawing.translations import in_language, load_words
from gluonlab.timeline.timeline import HOST, INPUT, PHASES, WAITING, Interval, Timeline, phases_of

# All lengths are px.
WIDTH, MARGIN, LABELS = 960, 28, 74
TOP, ROW, APART, LINE = 118, 30, 8, 19
STEPS = 4  # as long as so many takes is drawn; more would be too narrow to see
LEAST = 0.25  # of a bar that is drawn; what is shorter would only make the file large

# The colours differ in lightness, too; nobody has to tell red from green.
INK, QUIET, PAPER, EMPTY, TICK = "#1c2430", "#566072", "#ffffff", "#eef1f5", "#9aa4b2"
COLOURS = {
    "forward": "#2c66c9", "backward": "#8fb8f6", "sum": "#c2410c", "copy": "#f0a878",
    "update": "#6b3fa0", "other": "#8b95a5", "stages": "#5b8fe0", INPUT: "#2f7d5b", WAITING: EMPTY,
}  # fmt: skip
DARK = {
    INK: "#e6eaf1", QUIET: "#a3adbd", PAPER: "#0d1117", EMPTY: "#1b222d", TICK: "#566072",
    "#2c66c9": "#4f8ef0", "#8fb8f6": "#b6d3ff", "#c2410c": "#ff8a4c", "#f0a878": "#ffd0b0",
    "#6b3fa0": "#cba6f7", "#8b95a5": "#7d8796", "#5b8fe0": "#8ab4f8", "#2f7d5b": "#7fd0ab",
}  # fmt: skip


class TimelineTexts(NamedTuple):
    """All words of one language.

    ``columns``: of the sentences; ``letter``: px, so many as a letter of a name takes.
    """

    steps: Sequence[str]  # of one step, and of several
    drawn: str
    host_only: str
    host: str
    beside: str
    comma: str
    colon: str
    names: Mapping[str, str]
    columns: int
    letter: float


WORDS: Dict[str, TimelineTexts] = {
    language: TimelineTexts(**words)
    for language, words in load_words(Path(__file__).parent / "template" / "words.json").items()
}


def as_svg(timeline: Timeline, title: str, language: str = "en") -> str:
    """The first milliseconds; shares and the overlap, printed below, are of all that was recorded.

    The picture is complete in itself, and has a dark form. Raises ConfigError for a ``language``
    that it does not speak.
    """
    import_matplotlib()
    from matplotlib.patches import Rectangle

    words = in_language(WORDS, language)
    begin, count, first = timeline.begin, len(timeline.starts), timeline.first_step
    end = begin + (timeline.end - begin) * min(1, STEPS / count)
    sentences = in_words(timeline, language)
    lines = [line for each in sentences for line in textwrap.wrap(each, words.columns)]
    rows = [*timeline.rows, HOST]
    plot_height = len(rows) * (ROW + APART)
    height = TOP + plot_height + 60 + LINE * len(lines)
    figure = new_figure(WIDTH / 72, height / 72)

    def put(x: float, y: float, text: str, color: str = INK, size: int = 13, **look: Any) -> None:
        place = x / WIDTH, 1 - y / height
        figure.text(*place, as_written(text), size=size, color=color, **look)

    put(MARGIN, 44, title, size=22, weight=600)
    which = words.steps[count > 1].format(
        first=first, last=first + count - 1, each=timeline.step_s * 1e3
    )
    part = words.drawn.format(drawn=(end - begin) / 1e3) if count > STEPS else ""
    put(MARGIN, 68, f"{which}{part}{words.host_only}", QUIET)
    x: float = MARGIN
    for name in (*PHASES, INPUT, WAITING):
        corner = x / WIDTH, 1 - 98 / height
        figure.add_artist(Rectangle(corner, 14 / WIDTH, 14 / height, color=COLOURS[name], lw=0))
        put(x + 20, 96, words.names[name])
        x += 52 + words.letter * len(words.names[name])
    width = WIDTH - 2 * MARGIN - LABELS
    axes: Any = figure.add_axes((
        (MARGIN + LABELS) / WIDTH, 1 - (TOP + plot_height) / height,
        width / WIDTH, plot_height / height,
    ))  # fmt: skip
    axes.set(xlim=(0, (end - begin) / 1e3), ylim=(plot_height, 0))
    for number, row in enumerate(rows):
        top = number * (ROW + APART)
        axes.axhspan(top, top + ROW, color=EMPTY, lw=0)
        put(MARGIN + LABELS - 10, TOP + top + ROW / 2 + 4.5, words.host if row == HOST else row,
            ha="right")  # fmt: skip
        _draw_bars(axes, timeline, row, (begin, end), top, (end - begin) / width)
    starts = [(start - begin) / 1e3 for start in timeline.starts if start < end]
    axes.vlines(starts, plot_height - ROW - APART, plot_height, color=QUIET, lw=1,
                linestyles=(0, (3, 3)), gid="steps")  # fmt: skip
    _scale(axes)
    for number, line in enumerate(lines):
        put(MARGIN, TOP + plot_height + 56 + LINE * number, line, QUIET)
    return figure_as_svg(figure, title, " ".join(sentences), DARK)


def in_words(timeline: Timeline, language: str = "en") -> List[str]:
    """What each device did, and how much of the sums lies beside backward: a sentence each."""
    words = in_language(WORDS, language)
    lines = []
    for row in timeline.rows:
        shares = timeline.shares(row)
        told = words.comma.join(
            f"{words.names[name]} {share:.0%}" for name, share in shares.items() if share >= 0.005
        )
        lines.append(f"{row}{words.colon}{told}")
    overlap = timeline.overlap()
    if overlap is not None:
        lines.append(words.beside.format(overlap=overlap))
    return lines


def _draw_bars(
    axes: Any, timeline: Timeline, row: str, drawn: Interval, top: float, micros_per_px: float
) -> None:
    """One path of rectangles for each phase, whose id is ``row:phase``."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    bars: Dict[str, List[List[Tuple[float, float]]]] = {}
    for phase, (since, until) in _joined(phases_of(timeline, row), LEAST * micros_per_px):
        since, until = max(since, drawn[0]), min(until, drawn[1])
        if since < until:
            left, right = ((each - drawn[0]) / 1e3 for each in (since, until))
            corners = [(left, top), (right, top), (right, top + ROW), (left, top + ROW)]
            bars.setdefault(phase, []).append(corners)
    for phase, outlines in bars.items():
        outline = Outline.make_compound_path(*(Outline([*each, each[0]], closed=True)
                                               for each in outlines))  # fmt: skip
        axes.add_patch(PathPatch(outline, color=COLOURS[phase], lw=0, gid=f"{row}:{phase}"))


def _joined(bars: Sequence[Tuple[str, Interval]], gap: float) -> List[Tuple[str, Interval]]:
    """Neighbours of one phase with less than ``gap`` between them as one."""
    found: List[Tuple[str, Interval]] = []
    for phase, (begin, end) in bars:
        if found and found[-1][0] == phase and begin - found[-1][1][1] < gap:
            found[-1] = (phase, (found[-1][1][0], max(end, found[-1][1][1])))
        else:
            found.append((phase, (begin, end)))
    return found


def _scale(axes: Any) -> None:
    """Milliseconds, at round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if value else f"{value:g} ms")
    )
    axes.yaxis.set_major_locator(NullLocator())
    axes.tick_params(labelsize=13, labelcolor=QUIET, color=TICK, length=6, pad=4)
    axes.spines[:].set_visible(False)
    axes.patch.set_visible(False)
