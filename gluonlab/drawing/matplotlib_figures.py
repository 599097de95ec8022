"""matplotlib figures that need no display, and charts in a notebook that are redrawn in place.

The saved notebook contains the last version of each chart. Charts in notebooks are PNG images on a
white background, so they are readable in light and dark themes.
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

BACKEND = "MPLBACKEND"  # environment variable for matplotlib's backend
COLORS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
DPI = 110
_SPARE: "Dict[Callable[[], Figure], List[Figure]]" = {}  # emptied figures, by their maker


def in_notebook() -> bool:
    """Return True in a notebook, and False in a terminal, where IPython cannot show pictures."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def import_matplotlib() -> Any:
    """Import matplotlib, even if the variable MPLBACKEND names an unknown backend.

    A notebook's kernel sets MPLBACKEND for all its child processes. If a child process uses a
    different Python environment, importing matplotlib can fail. A known backend is kept, for the
    user's own figures.
    """
    if "matplotlib" not in sys.modules:
        backend = os.environ.pop(BACKEND, None)
        try:
            import matplotlib
        finally:
            if backend is not None:
                os.environ[BACKEND] = backend
        if backend:
            with suppress(ValueError):
                matplotlib.rcParams["backend"] = backend
    return importlib.import_module("matplotlib")


def new_figure(width: float, height: float, layout: Optional[Any] = None) -> "Figure":
    """Create an empty figure. ``width`` and ``height`` are in inches.

    ``layout`` has the same meaning as in matplotlib.

    The figure does not use pyplot, so it needs neither a display nor global state.
    """
    import_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def reused_figure(make: "Callable[[], Figure]") -> "Iterator[Figure]":
    """Yield a figure that ``make`` creates, or an unused figure that it created earlier.

    Reusing figures saves time: creating axes and ticks takes matplotlib as long as drawing curves.
    On exit, lines and bars are removed, and autoscaling is restored. Titles and labels stay until
    they are set again.
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
    """Return the figure as PNG."""
    output = io.BytesIO()
    figure.savefig(output, format="png", dpi=DPI)
    return output.getvalue()


def as_svg(figure: "Figure", title: str = "", description: str = "", dark: Optional[Mapping[str, str]] = None) -> str:
    """Return the figure as self-contained SVG, with 1 px per point, and text as text elements.

    Args:
        figure: The figure.
        title: Title for screen readers.
        description: Description for screen readers.
        dark: For each color, its replacement on a dark page. If None, the background is
            transparent.
    """
    matplotlib = import_matplotlib()
    output = io.StringIO()
    # A fixed salt makes the SVG reproducible.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "gluonlab"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The browser has the glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(output, format="svg", transparent=dark is None, metadata=no_metadata)
    # Drop the XML header, so that the SVG can be embedded in HTML.
    head, _, body = output.getvalue().partition("<svg")[2].partition(">")
    head = re.sub('(width|height)="([0-9.]+)pt"', r'\1="\2"', head)
    if title:
        head += ' role="img"'
        body = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{body}"
    if dark:
        rules = "".join(
            f'[style*="{what}:{space}{light}"] {{ {what}: {other} !important }} '
            for light, other in dark.items()
            for what in ("fill", "stroke")
            for space in (" ", "")  # depends on the version of matplotlib
        )
        body = f"<style>@media (prefers-color-scheme: dark) {{ {rules}}}</style>{body}"
    return f"<svg{head}>{body}"


def escape_dollars(text: str) -> str:
    """Escape dollar signs, since matplotlib parses text between two of them as mathematics."""
    return text.replace("$", r"\$")


class CellDisplay:
    """A place for one picture in the output of a notebook cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, png: bytes) -> None:
        """Show the picture in place of the previous picture."""
        from IPython.display import Image, display

        image = Image(png, format="png")  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(image, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(image)


class LiveChart:
    """Curves over a common x axis, for a custom training loop. Each `add` redraws the chart.

    Outside a notebook nothing is shown.

    Args:
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        x_limits: Start and end of the x axis, if known in advance.
    """

    def __init__(self, x_label: str, y_label: str, x_limits: "Optional[Tuple[float, float]]" = None) -> None:
        self.x_label, self.y_label, self.x_limits = x_label, y_label, x_limits
        self.curves: Dict[str, List[Tuple[float, float]]] = {}
        self._shown = CellDisplay()

    def add(self, x: float, values: Dict[str, float]) -> None:
        """Add a point to each named curve: ``add(1, {"1 device": 0.8})``."""
        for name, y in values.items():
            self.curves.setdefault(name, []).append((x, y))
        if in_notebook():
            self._shown.show(self.png())

    def png(self) -> bytes:
        """Return the current chart as PNG."""
        figure = new_figure(5.6, 3.2)
        axes: Any = figure.subplots()
        for index, (name, points) in enumerate(self.curves.items()):
            style: Dict[str, Any] = {
                "color": COLORS[index % len(COLORS)],
                "marker": "os^D"[index % 4],
                "ls": ("-", "--")[index % 2],
            }
            # Without clipping, markers at the edges of the axes are whole.
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
