"""A live plot shows what metrics.jsonl says, seldom, and never ends a run.

tests/labs/test_live_plot.py shows one in a notebook; here its pictures are looked at before they
get there.
"""

import pytest
from support.devices import device_spec
from support.drawn_runs import BATCH_SIZE, IMAGE_COUNT, load_few_digits
from support.interrupted_runs import RunStopped, StoppingReporter
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.runs.run_schema import Epoch, Step
from gluonlab.study.compare_devices import compare
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


def curves(figure):
    """The places and values of the steps' losses, of the epochs' and of the accuracies."""
    loss, accuracy = figure.axes
    lines = [*loss.lines[:2], accuracy.lines[0]]
    return [[*map(list, zip(*line.get_data()))] for line in lines]


def of_folder(folder):
    lines = read_metrics(folder)
    steps = [[x["step"] / STEPS, x["loss"]] for x in lines if x["kind"] == "step"]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    means = [[line["epoch"] - 0.5, line["loss"]] for line in epochs]
    return [steps, means, [[line["epoch"], 100 * line["accuracy"]] for line in epochs]]


def words(figure):
    return figure.texts[0].get_text()


def test_a_run_that_goes_on_ends_with_all_of_its_curves(tmp_path, shown):
    asked = config(tmp_path / "run", devices=device_spec(2), checkpoint_every="3 steps")
    with pytest.raises(RunStopped):
        train(asked, reporter=StoppingReporter(STEPS + 4), dataset=load_few_digits(), callbacks=[LivePlot])
    assert "failed: Stopped" in words(shown[-1])
    train(resume=tmp_path / "run", reporter=Reporter(), dataset=load_few_digits(), callbacks=[LivePlot])
    assert curves(shown[-1]) == of_folder(tmp_path / "run")
    assert words(shown[-1]).startswith("2 of 2 epochs in 0:")


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_each_run_of_a_comparison_has_its_own_and_few_pictures(tmp_path, shown):
    compare(config(tmp_path / "both"), [1, 2], Reporter(), load_few_digits(), [LivePlot(every=1e9)])
    assert len(shown) == 4  # at the beginning of each, and at the end
    assert curves(shown[1]) == of_folder(tmp_path / "both" / "1-device")
    assert curves(shown[3]) == of_folder(tmp_path / "both" / "2-devices")


class View:
    """A run of 10 epochs of 100 steps of 50 images, each of 0.1 s."""

    epochs, steps_per_epoch, step, path, history = 10, 100, 0, None, []

    def trained(self, plot, steps):
        plot.on_run_start(self)
        plot.on_epoch_start(self, 1)
        for n in range(1, steps + 1):
            plot.on_step(self, Step(n, 2.0, 0.1, 1, 50, n / 10))


def test_images_per_second_and_the_time_to_go_are_those_of_the_steps(shown):
    view, plot = View(), LivePlot(every=0)
    view.trained(plot, 40)
    plot._next_draw_time = 0  # whatever the last picture has cost
    plot.on_step(view, Step(41, 0.25, 0.1, 1, 50, 4.1))
    assert words(shown[-1]) == "epoch 1 of 10   loss 0.250   500 images/s   1:36 to go"
    view.history = [Epoch(1, 100, 5000, 20.0, 1.0, 0.75, seconds=3700.0)]
    plot.on_run_end(view, RunEnd("stopped", "it is enough", 100, 1))
    done = "1 of 10 epochs in 1:01:40   250 images/s   test accuracy 0.7500"
    assert words(shown[-1]) == f"{done}\nstopped: it is enough"


def test_pictures_take_a_small_share_of_the_time(shown, monkeypatch):
    """A clock that only a picture moves, by 1 s, and each step by 0.1 s."""
    now = [0.0]
    monkeypatch.setattr(live_plot.time, "monotonic", lambda: now[0])

    def drawn(figure):
        now[0] += 1
        shown.append(figure)
        return b""

    monkeypatch.setattr(live_plot, "as_png", drawn)
    view, plot = View(), LivePlot(every=0)
    plot.on_run_start(view)
    for n in range(1, 1001):
        now[0] += 0.1
        plot.on_step(view, Step(n, 2.0, 0.1, 1, 50, now[0]))
    assert 2 <= len(shown) <= 1 + 100 * live_plot.MAX_DRAWING_SHARE + 1


def test_a_picture_that_cannot_be_drawn_does_not_end_the_run(tmp_path, shown, monkeypatch, capsys):
    def broken(self, png):
        raise RuntimeError("no canvas")

    monkeypatch.setattr(live_plot.CellDisplay, "show", broken)
    result = train(
        config(tmp_path / "run", devices=device_spec(2)), reporter=Reporter(),
        dataset=load_few_digits(),
        callbacks=[LivePlot],
    )  # fmt: skip
    assert len(result.history) == 2 and len(shown) == 1
    said = "live plot  ends here, the run goes on: RuntimeError: no canvas\n"
    assert capsys.readouterr().out == said


def test_outside_a_notebook_it_says_where_the_curves_are(capsys):
    view = View()
    view.path = "runs/one"
    view.trained(LivePlot(every=0), 5)
    said = "only a notebook shows it; runs/one/curves.png will have the curves"
    assert capsys.readouterr().out == f"live plot  {said}\n"


@pytest.mark.parametrize("every", ["x", None, -1, float("nan"), float("inf"), True])
def test_an_invalid_interval_is_refused(every):
    with pytest.raises(ConfigError, match=r"LivePlot\(every=.*\): give seconds, a number from 0 up"):
        LivePlot(every=every)
