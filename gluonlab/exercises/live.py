"""A chart in a notebook that grows while a training runs."""

from __future__ import annotations

import io
from typing import Any, Dict, List, Optional, Tuple

COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")


class LivePlot:
    """Curves over a common x axis; each `add` redraws them in place, in the cell's output.

    ``x_limits``: where the x axis begins and ends, if that is known in advance. Outside a
    notebook nothing is shown.
    """

    def __init__(
        self, x_label: str, y_label: str, x_limits: "Optional[Tuple[float, float]]" = None
    ) -> None:
        self.x_label, self.y_label, self.x_limits = x_label, y_label, x_limits
        self.curves: Dict[str, List[Tuple[float, float]]] = {}
        self._shown: Any = None

    def add(self, x: float, values: Dict[str, float]) -> None:
        """One more point of each curve that is named: ``add(1, {"1 device": 0.8})``."""
        for name, y in values.items():
            self.curves.setdefault(name, []).append((x, y))
        self._show()

    def png(self) -> bytes:
        """The chart as it is now."""
        # the figure alone, without pyplot: no display, no global state, whatever backend the
        # notebook has
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(5.6, 3.2))
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for index, (name, points) in enumerate(self.curves.items()):
            style: Dict[str, Any] = {
                "color": COLOURS[index % len(COLOURS)],
                "marker": "os^D"[index % 4],
                "ls": ("-", "--")[index % 2],
            }
            axes.plot(*zip(*points), label=name, ms=4, **style)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        if self.x_limits is not None and self.x_limits[0] < self.x_limits[1]:
            axes.set_xlim(*self.x_limits)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        if self.curves:
            axes.legend(loc="lower right")
        figure.tight_layout()
        made = io.BytesIO()
        figure.savefig(made, format="png", dpi=110)
        return made.getvalue()

    def _show(self) -> None:
        try:
            from IPython import get_ipython
            from IPython.display import Image, display
        except ImportError:
            return
        if get_ipython() is None:
            return
        image = Image(self.png(), format="png")  # type: ignore[no-untyped-call]
        if self._shown is None:
            self._shown = display(image, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._shown.update(image)
