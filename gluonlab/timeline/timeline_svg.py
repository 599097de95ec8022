"""SVG picture of a timeline, with a row of phases for each device and for the host."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from gluonlab.drawing.matplotlib_figures import as_svg as figure_as_svg
from gluonlab.drawing.matplotlib_figures import escape_dollars, import_matplotlib, new_figure
from gluonlab.drawing.translations import load_words, select_language
from gluonlab.timeline.timeline import HOST, INPUT, PHASES, WAITING, Interval, Timeline, phase_intervals

# All lengths are in px. LABELS: width of the device names. APART: space between rows. LINE: height
# of a line of text.
WIDTH, MARGIN, LABELS = 960, 28, 74
TOP, ROW, APART, LINE = 118, 30, 8, 19
STEPS = 4  # steps that are drawn; more would be too narrow to see
MIN_BAR_WIDTH = 0.25  # narrower gaps between bars are closed, since they only make the file larger

# The colors also differ in lightness, so that no one has to distinguish red from green.
INK, QUIET, PAPER, EMPTY, TICK = "#1c2430", "#566072", "#ffffff", "#eef1f5", "#9aa4b2"
COLORS = {
    "forward": "#2c66c9", "backward": "#8fb8f6", "sum": "#c2410c", "copy": "#f0a878",
    "update": "#6b3fa0", "other": "#8b95a5", "stages": "#5b8fe0", INPUT: "#2f7d5b", WAITING: EMPTY,
}  # fmt: skip
DARK = {
    INK: "#e6eaf1", QUIET: "#a3adbd", PAPER: "#0d1117", EMPTY: "#1b222d", TICK: "#566072",
    "#2c66c9": "#4f8ef0", "#8fb8f6": "#b6d3ff", "#c2410c": "#ff8a4c", "#f0a878": "#ffd0b0",
    "#6b3fa0": "#cba6f7", "#8b95a5": "#7d8796", "#5b8fe0": "#8ab4f8", "#2f7d5b": "#7fd0ab",
}  # fmt: skip


class TimelineTexts(NamedTuple):
    """All texts in one language.

    ``columns``: line length of sentences, in characters. ``letter``: width of a character, in px.
    """

    steps: Sequence[str]  # singular and plural
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
    """Return an SVG picture of at most STEPS steps, with sentences about all recorded steps.

    The SVG is self-contained and has a variant for dark pages. Raises ConfigError for an unknown
    ``language``.
    """
    import_matplotlib()
    from matplotlib.patches import Rectangle

    words = select_language(WORDS, language)
    begin, count, first = timeline.begin, len(timeline.starts), timeline.first_step
    end = begin + (timeline.end - begin) * min(1, STEPS / count)
    sentences = describe_timeline(timeline, language)
    lines = [line for each in sentences for line in textwrap.wrap(each, words.columns)]
    rows = [*timeline.rows, HOST]
    plot_height = len(rows) * (ROW + APART)
    height = TOP + plot_height + 60 + LINE * len(lines)
    figure = new_figure(WIDTH / 72, height / 72)

    def put(x: float, y: float, text: str, color: str = INK, size: int = 13, **look: Any) -> None:
        position = x / WIDTH, 1 - y / height
        figure.text(*position, escape_dollars(text), size=size, color=color, **look)

    put(MARGIN, 44, title, size=22, weight=600)
    which = words.steps[count > 1].format(first=first, last=first + count - 1, each=timeline.step_s * 1e3)
    part = words.drawn.format(drawn=(end - begin) / 1e3) if count > STEPS else ""
    put(MARGIN, 68, f"{which}{part}{words.host_only}", QUIET)
    x: float = MARGIN
    for name in (*PHASES, INPUT, WAITING):
        corner = x / WIDTH, 1 - 98 / height
        figure.add_artist(Rectangle(corner, 14 / WIDTH, 14 / height, color=COLORS[name], lw=0))
        put(x + 20, 96, words.names[name])
        x += 52 + words.letter * len(words.names[name])
    width = WIDTH - 2 * MARGIN - LABELS
    axes: Any = figure.add_axes(
        ((MARGIN + LABELS) / WIDTH, 1 - (TOP + plot_height) / height, width / WIDTH, plot_height / height)
    )
    axes.set(xlim=(0, (end - begin) / 1e3), ylim=(plot_height, 0))
    for number, row in enumerate(rows):
        top = number * (ROW + APART)
        axes.axhspan(top, top + ROW, color=EMPTY, lw=0)
        put(MARGIN + LABELS - 10, TOP + top + ROW / 2 + 4.5, words.host if row == HOST else row, ha="right")
        _draw_bars(axes, timeline, row, (begin, end), top, (end - begin) / width)
    starts = [(start - begin) / 1e3 for start in timeline.starts if start < end]
    axes.vlines(starts, plot_height - ROW - APART, plot_height, color=QUIET, lw=1, linestyles=(0, (3, 3)), gid="steps")
    _set_millisecond_ticks(axes)
    for number, line in enumerate(lines):
        put(MARGIN, TOP + plot_height + 56 + LINE * number, line, QUIET)
    return figure_as_svg(figure, title, " ".join(sentences), DARK)


def describe_timeline(timeline: Timeline, language: str = "en") -> List[str]:
    """Return sentences about each device's time, and about the overlap of sums with backward."""
    words = select_language(WORDS, language)
    lines = []
    for row in timeline.rows:
        shares = timeline.phase_shares(row)
        shares_text = words.comma.join(
            f"{words.names[name]} {share:.0%}" for name, share in shares.items() if share >= 0.005
        )
        lines.append(f"{row}{words.colon}{shares_text}")
    overlap = timeline.overlap()
    if overlap is not None:
        lines.append(words.beside.format(overlap=overlap))
    return lines


def _draw_bars(axes: Any, timeline: Timeline, row: str, drawn: Interval, top: float, micros_per_px: float) -> None:
    """Draw the bars of a row: for each phase, one SVG path with the id ``row:phase``.

    ``drawn``: the interval that the picture shows. ``top``: the row's upper edge in px.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    bars: Dict[str, List[List[Tuple[float, float]]]] = {}
    for phase, (since, until) in _join_neighboring_bars(phase_intervals(timeline, row), MIN_BAR_WIDTH * micros_per_px):
        since, until = max(since, drawn[0]), min(until, drawn[1])
        if since < until:
            left, right = ((each - drawn[0]) / 1e3 for each in (since, until))
            corners = [(left, top), (right, top), (right, top + ROW), (left, top + ROW)]
            bars.setdefault(phase, []).append(corners)
    for phase, outlines in bars.items():
        outline = Outline.make_compound_path(*(Outline([*each, each[0]], closed=True) for each in outlines))
        axes.add_patch(PathPatch(outline, color=COLORS[phase], lw=0, gid=f"{row}:{phase}"))


def _join_neighboring_bars(bars: Sequence[Tuple[str, Interval]], gap: float) -> List[Tuple[str, Interval]]:
    """Join neighboring bars of one phase if the gap between them is less than ``gap``."""
    joined: List[Tuple[str, Interval]] = []
    for phase, (begin, end) in bars:
        if joined and joined[-1][0] == phase and begin - joined[-1][1][1] < gap:
            joined[-1] = (phase, (joined[-1][1][0], max(end, joined[-1][1][1])))
        else:
            joined.append((phase, (begin, end)))
    return joined


def _set_millisecond_ticks(axes: Any) -> None:
    """Set the ticks to round milliseconds."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value else f"{value:g} ms"))
    axes.yaxis.set_major_locator(NullLocator())
    axes.tick_params(labelsize=13, labelcolor=QUIET, color=TICK, length=6, pad=4)
    axes.spines[:].set_visible(False)
    axes.patch.set_visible(False)
