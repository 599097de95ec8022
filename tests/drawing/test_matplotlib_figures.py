"""The chart that grows in a notebook."""

import io

import numpy as np
from PIL import Image

from gluonlab.drawing.matplotlib_figures import LiveChart, in_notebook


def test_a_live_chart_holds_all_points_and_grows():
    chart = LiveChart("epoch", "accuracy", (1, 3))
    chart.add(1, {"one": 0.5})
    first = chart.png()
    chart.add(2, {"one": 0.7, "two": 0.6})
    assert chart.curves == {"one": [(1, 0.5), (2, 0.7)], "two": [(2, 0.6)]}
    assert first.startswith(b"\x89PNG") and chart.png() != first
    assert not in_notebook()


def test_markers_at_the_edges_are_whole_and_the_ground_is_white():
    """A disc at each end of the x axis, and one in the middle, have as many pixels."""
    chart = LiveChart("x", "y", (0, 2))
    for x in (0, 1, 2):
        chart.add(x, {"one": 1.0})
    pixels = np.array(Image.open(io.BytesIO(chart.png())).convert("RGBA")).astype(int)
    assert tuple(pixels[0, 0]) == (255, 255, 255, 255)
    pixels = pixels[: len(pixels) * 6 // 10]  # without the legend
    blue = np.abs(pixels[..., :3] - (9, 105, 218)).max(axis=2) < 40
    columns = blue.sum(axis=0)
    discs = np.flatnonzero(columns > 4)  # the line is thinner
    parts = np.split(discs, np.flatnonzero(np.diff(discs) > 1) + 1)
    assert len(parts) == 3 and max(map(len, parts)) - min(map(len, parts)) <= 1
