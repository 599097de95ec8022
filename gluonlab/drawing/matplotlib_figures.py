"""Figures of matplotlib, without pyplot and windows; pictures that grow in a notebook.

A notebook's picture is one output, replaced in place, and the last one stays in the saved notebook.
It is PNG on white, which can be read whatever the notebook's theme.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKEND = "MPLBACKEND"  # by which matplotlib chooses where windows or notebooks show figures
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
DPI = 110
_SPARE: "Dict[Callable[[], Figure], List[Figure]]" = {}  # emptied, by what made them


def in_notebook() -> bool:
    """Whether a notebook would show pictures here; a terminal's IPython prints their names."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def import_matplotlib() -> Any:
    """matplotlib, whatever backend the environment names: pictures in files need none.

    A notebook's kernel names its own to all processes that it starts, and in another environment
    matplotlib refuses that name as soon as it is imported. A name that it accepts stays, for
    figures of the user's own.
    """
    if "matplotlib" not in sys.modules:
        named = os.environ.pop(BACKEND, None)
        try:
            import matplotlib
        finally:
            if named is not None:
                os.environ[BACKEND] = named
        if named:
            with suppress(ValueError):
                matplotlib.rcParams["backend"] = named
    return importlib.import_module("matplotlib")


def new_figure(width: float, height: float, layout: Optional[Any] = None) -> "Figure":
    """An empty figure of so many inches; ``layout`` as matplotlib's.

    It is a figure alone, without pyplot: no display, no global state, whatever the backend.
    """
    import_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def reused_figure(make: "Callable[[], Figure]") -> "Iterator[Figure]":
    """Yield a figure of ``make``: a new one, or one that an earlier call has given back.

    matplotlib takes as long to make axes and ticks as to draw curves. At the end lines and bars are
    removed, and each axis scales itself again; titles and labels stay until they are set again.
    """
    spare = _SPARE.setdefault(make, [])
    figure = spare.pop() if spare else make()
    yield figure
    for axes in figure.axes:
        for bars in list(axes.containers):
            bars.remove()  # type: ignore[attr-defined]
        for artist in [*axes.lines, *axes.patches]:
            artist.remove()
        axes.relim()
        axes.set(xlim=(0, 1), ylim=(0, 1))  # what new axes have
        axes.set_autoscale_on(True)
    spare.append(figure)


def as_png(figure: "Figure") -> bytes:
    """The figure as a picture."""
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=DPI)
    return made.getvalue()


def as_svg(
    figure: "Figure",
    title: str = "",
    description: str = "",
    dark: Optional[Mapping[str, str]] = None,
) -> str:
    """The figure as SVG, complete in itself, of as many px as it has points; texts stay texts.

    ``dark``: what each colour is on a dark page; without it the ground is transparent. ``title``
    and ``description``: for those who do not see it.
    """
    matplotlib = import_matplotlib()
    made = io.StringIO()
    # with a salt, the same figure is the same text
    settings = {"svg.fonttype": "none", "svg.hashsalt": "gluonlab"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # a browser has the letters that matplotlib's font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(made, format="svg", transparent=dark is None, metadata=nothing)
    # its first lines are for files
    head, _, drawn = made.getvalue().partition("<svg")[2].partition(">")
    head = re.sub('(width|height)="([0-9.]+)pt"', r'\1="\2"', head)
    if title:
        head += ' role="img"'
        drawn = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{drawn}"
    if dark:
        rules = "".join(
            f'[style*="{what}:{space}{light}"] {{ {what}: {other} !important }} '
            for light, other in dark.items()
            for what in ("fill", "stroke")
            for space in (" ", "")  # by the version of matplotlib
        )
        drawn = f"<style>@media (prefers-color-scheme: dark) {{ {rules}}}</style>{drawn}"
    return f"<svg{head}>{drawn}"


def as_written(text: str) -> str:
    """For matplotlib, which reads what stands between two dollars as mathematics."""
    return text.replace("$", r"\$")


class CellDisplay:
    """A place in the output of a cell, for one picture."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, png: bytes) -> None:
        """Put the picture there, in place of the one before."""
        from IPython.display import Image, display

        image = Image(png, format="png")  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(image, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(image)


class LiveChart:
    """Curves over a common x axis, for a loop of one's own; each `add` draws them again.

    ``x_limits``: where the x axis begins and ends, if that is known in advance. Outside a notebook
    nothing is shown.
    """

    def __init__(
        self, x_label: str, y_label: str, x_limits: "Optional[Tuple[float, float]]" = None
    ) -> None:
        self.x_label, self.y_label, self.x_limits = x_label, y_label, x_limits
        self.curves: Dict[str, List[Tuple[float, float]]] = {}
        self._shown = CellDisplay()

    def add(self, x: float, values: Dict[str, float]) -> None:
        """One more point of each curve that is named: ``add(1, {"1 device": 0.8})``."""
        for name, y in values.items():
            self.curves.setdefault(name, []).append((x, y))
        if in_notebook():
            self._shown.show(self.png())

    def png(self) -> bytes:
        """The chart as it is now."""
        figure = new_figure(5.6, 3.2)
        axes: Any = figure.subplots()
        for index, (name, points) in enumerate(self.curves.items()):
            style: Dict[str, Any] = {
                "color": COLOURS[index % len(COLOURS)],
                "marker": "os^D"[index % 4],
                "ls": ("-", "--")[index % 2],
            }
            # at the edges of the axes markers are whole
            axes.plot(*zip(*points), label=name, ms=4, clip_on=False, zorder=3, **style)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        if self.x_limits is not None and self.x_limits[0] < self.x_limits[1]:
            axes.set_xlim(*self.x_limits)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if self.curves:
            axes.legend(loc="lower right")
        figure.tight_layout()
        return as_png(figure)
