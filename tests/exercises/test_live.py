"""The chart that grows in a notebook."""

from gluonlab.exercises.live import LivePlot


def test_a_live_plot_holds_all_points_and_grows():
    plot = LivePlot("epoch", "accuracy", (1, 3))
    plot.add(1, {"one": 0.5})
    first = plot.png()
    plot.add(2, {"one": 0.7, "two": 0.6})
    assert plot.curves == {"one": [(1, 0.5), (2, 0.7)], "two": [(2, 0.6)]}
    assert first.startswith(b"\x89PNG") and plot.png() != first
