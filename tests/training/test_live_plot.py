"""A live plot shows what metrics.jsonl contains, seldom, and never ends a run."""

from unittest.mock import Mock

import pytest
from support.devices import device_spec
from support.drawn_runs import BATCH_SIZE, IMAGE_COUNT, load_few_digits
from support.interrupted_runs import RunStopped, StoppingReporter
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.runs.run_schema import Epoch, Step
from gluonlab.study.compare_device_counts import compare
from gluonlab.training import live_plot
from gluonlab.training.callbacks import RunEnd
from gluonlab.training.live_plot import LivePlot
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

STEPS = -(-IMAGE_COUNT // BATCH_SIZE)  # of an epoch


def config(folder, **more):
    return TrainConfig(threads=1, model="mlp", global_batch_size=BATCH_SIZE, epochs=2, out=str(folder), **more)


@pytest.fixture
def shown(monkeypatch):
    """The figures, as they would be shown in a notebook."""
    figures = []
    monkeypatch.setattr(live_plot, "in_notebook", lambda: True)
    monkeypatch.setattr(live_plot, "as_png", lambda figure: figures.append(figure) or b"")
    monkeypatch.setattr(live_plot.CellDisplay, "show", lambda self, png: None)
    return figures


def plotted_curves(figure):
    """Return the points of the steps' losses, of the epochs' losses, and of the accuracies."""
    loss, accuracy = figure.axes
    return [[*map(list, zip(*line.get_data()))] for line in (*loss.lines[:2], accuracy.lines[0])]


def expected_curves(folder):
    lines = read_metrics(folder)
    steps = [[line["step"] / STEPS, line["loss"]] for line in lines if line["kind"] == "step"]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    means = [[line["epoch"] - 0.5, line["loss"]] for line in epochs]
    return [steps, means, [[line["epoch"], 100 * line["val_accuracy"]] for line in epochs]]


def caption(figure):
    return figure.texts[0].get_text()


def test_a_resumed_run_ends_with_all_of_its_curves(tmp_path, shown):
    interrupted = config(tmp_path / "run", devices=device_spec(2), checkpoint_every="3 steps")
    with pytest.raises(RunStopped):
        train(interrupted, reporter=StoppingReporter(STEPS + 4), dataset=load_few_digits(), callbacks=[LivePlot])
    assert "failed: RunStopped" in caption(shown[-1])
    train(resume=tmp_path / "run", reporter=Reporter(), dataset=load_few_digits(), callbacks=[LivePlot])
    assert plotted_curves(shown[-1]) == expected_curves(tmp_path / "run")
    assert caption(shown[-1]).startswith("2 of 2 epochs in 0:")


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_each_run_of_a_comparison_has_its_own_two_pictures(tmp_path, shown):
    compare(config(tmp_path / "both"), [1, 2], Reporter(), load_few_digits(), [LivePlot(every=1e9)])
    assert len(shown) == 4  # at the start of each run, and at its end
    for figure, name in ((shown[1], "1-device"), (shown[3], "2-devices")):
        assert plotted_curves(figure) == expected_curves(tmp_path / "both" / name)


class View:
    """A run of 10 epochs of 100 steps of 50 images, each of 0.1 s."""

    epochs, steps_per_epoch, step, path, history = 10, 100, 0, None, []

    def trained(self, plot, steps):
        plot.on_run_start(self)
        plot.on_epoch_start(self, 1)
        for n in range(1, steps + 1):
            plot.on_step(self, Step(n, 2.0, 0.1, 1, 50, n / 10))


def test_images_per_second_and_the_remaining_time_are_those_of_the_steps(shown):
    view, plot = View(), LivePlot(every=0)
    view.trained(plot, 40)
    plot._next_draw_time = 0  # however long the last picture took
    plot.on_step(view, Step(41, 0.25, 0.1, 1, 50, 4.1))
    assert caption(shown[-1]) == "epoch 1 of 10   loss 0.250   500 images/s   1:36 to go"
    view.history = [Epoch(1, 100, 5000, 20.0, 1.0, 0.75, seconds=3700.0)]
    plot.on_run_end(view, RunEnd("stopped", "it is enough", 100, 1))
    numbers = "1 of 10 epochs in 1:01:40   250 images/s   val accuracy 0.7500"
    assert caption(shown[-1]) == f"{numbers}\nstopped: it is enough"


def test_pictures_take_a_small_share_of_the_time(shown, monkeypatch):
    """Each step takes 0.1 s, and each picture 1 s."""
    now, view, plot = [0.0], View(), LivePlot(every=0)

    def draw(figure):
        now[0] += 1
        shown.append(figure)
        return b""

    monkeypatch.setattr(live_plot.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(live_plot, "as_png", draw)
    plot.on_run_start(view)
    for n in range(1, 1001):
        now[0] += 0.1
        plot.on_step(view, Step(n, 2.0, 0.1, 1, 50, now[0]))
    assert 2 <= len(shown) <= 1 + 100 * live_plot.MAX_DRAWING_SHARE + 1


def test_a_picture_that_cannot_be_drawn_does_not_end_the_run(tmp_path, shown, monkeypatch, capsys):
    monkeypatch.setattr(live_plot.CellDisplay, "show", Mock(side_effect=RuntimeError("no canvas")))
    two = config(tmp_path / "run", devices=device_spec(2))
    result = train(two, reporter=Reporter(), dataset=load_few_digits(), callbacks=[LivePlot])
    assert len(result.history) == 2 and len(shown) == 1
    assert capsys.readouterr().out == "live plot  stopped, but the run continues: RuntimeError: no canvas\n"


def test_outside_a_notebook_it_names_the_file_of_the_curves(capsys):
    view = View()
    view.path = "runs/one"
    view.trained(LivePlot(every=0), 5)
    message = "needs a notebook; see runs/one/curves.png for the curves after the run"
    assert capsys.readouterr().out == f"live plot  {message}\n"


@pytest.mark.parametrize("every", ["x", None, -1, float("nan"), float("inf"), True])
def test_an_invalid_interval_is_refused(every):
    with pytest.raises(ConfigError, match=r"LivePlot\(every=.*\): must be a number of seconds, at least 0"):
        LivePlot(every=every)
