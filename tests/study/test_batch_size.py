"""gluonlab study batch-size, on a few batch sizes."""

import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
from support.studies import begin_study

from gluonlab.study import batch_size
from gluonlab.study.__main__ import main
from gluonlab.study.sweep import MeasurementStore, Sweep

WORDS = ["batch-size", "--quick", "--batch-sizes", "32,128", "--seeds", "2", "--target", "0.7"]


def numbers(folder):
    """What does not depend on the machine's speed: settings, round, steps, and images right."""
    lines = [json.loads(line) for line in (folder / "measurements.jsonl").open()]
    return [
        (line["settings"], line["round"], line["values"]["reached"],
         [[look[0], *look[2:]] for look in line["values"]["looks"]])
        for line in lines
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def short():
    """Fewer rates and seeds to tune by, and shorter trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_size, "PATIENCE", 1)
        patch.setattr(batch_size, "PATIENCE_WITHOUT_TARGET", 1)
        patch.setitem(batch_size.TUNING_SEEDS, True, 1)
        digits = batch_size.PANELS["digits"]._replace(first_rate=0.125, equal_steps=16, equal_epochs=1)
        patch.setitem(batch_size.PANELS, "digits", digits)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "finished"
    with pytest.raises(SystemExit) as ending:
        main([*WORDS, "--out", str(folder)])
    assert ending.value.code == 0
    return folder


def search_rates(power, simulate_trial, monkeypatch):
    """Study two sizes whose best rates are 2**power and twice that; return results and tried powers.

    ``simulate_trial(own, away)``: the steps to the target and the share of images right, with the
    rate 2**own, which is ``away`` powers from the best.
    """
    monkeypatch.setattr(batch_size, "PATIENCE_WITHOUT_TARGET", 3)
    monkeypatch.setattr(batch_size, "PATIENCE", 2)
    tried = {32: set(), 128: set()}

    def measure(settings, number):
        own = math.log2(settings["rate"])
        tried[settings["size"]].add(own)
        steps, right = simulate_trial(own, abs(own - power - (settings["size"] == 128)))
        reached = steps if steps <= settings["limit"] else None
        return {"reached": reached, "looks": [[10, 1.0, right, 0.9]]}

    options = batch_size.BatchSizeOptions({"digits": {"sizes": [32, 128], "target": 0.7}}, 2, 1, None)
    with Sweep(MeasurementStore(), measure, show_progress=False) as sweep:
        return batch_size.measure_panel("digits", options, sweep), tried


@pytest.mark.parametrize("reaches", [True, False])
@pytest.mark.parametrize("unlucky", [0, 1])
@pytest.mark.parametrize("power", [-9, -5, -3, -2, 1, 5])
def test_the_best_rate_of_every_size_is_found_wherever_the_search_begins(power, unlucky, reaches, monkeypatch):
    """Steps grow with the distance to the best rate, or none reaches the target and fewer are right."""
    first = math.log2(batch_size.PANELS["digits"].first_rate)

    def simulate_trial(own, away):
        if abs(own - first) in range(1, 1 + unlucky) and away:
            return math.inf, 0.0
        return (20 * 1.5**away if reaches else math.inf), 0.5 / (1 + away)

    found, tried = search_rates(power, simulate_trial, monkeypatch)
    assert [each.rate for each in found] == [2.0**power, 2.0 ** (power + 1)]
    assert [each.steps_to_target for each in found] == [[20 if reaches else math.inf] * 2] * 2
    # four times the size: the search begins with twice the rate, which is the best
    around = batch_size.PATIENCE if reaches else batch_size.PATIENCE_WITHOUT_TARGET
    assert tried[128] == {power + 1.0 + more for more in range(-around, around + 1)}


@pytest.mark.parametrize("power", [-9, 3])
def test_a_search_goes_on_until_three_rates_in_a_row_bring_nothing_at_all(power, monkeypatch):
    """The first rate is six powers from the best, and within three there is something to see."""
    first = math.log2(batch_size.PANELS["digits"].first_rate)
    assert abs(first - power) == 6
    simulate_trial = lambda _, away: (20 + away if away <= 3 else math.inf, 0.1)  # noqa: E731
    found, _ = search_rates(power, simulate_trial, monkeypatch)
    assert [each.rate for each in found] == [2.0**power, 2.0 ** (power + 1)]
    simulate_trial = lambda _, away: (20 + away if away <= 1 else math.inf, 0.1)  # noqa: E731
    found, _ = search_rates(power, simulate_trial, monkeypatch)
    assert found[0].rate == 2.0**first


@pytest.mark.long
def test_an_interrupted_study_goes_on_and_measures_the_same_bits(finished, study, tmp_path, monkeypatch):
    folder, one = tmp_path / "study", Sweep._measure_point

    def at_most_four(sweep, settings, number):
        if len(sweep.store.list_measurements()) == 4:
            raise KeyboardInterrupt
        return one(sweep, settings, number)

    with monkeypatch.context() as patch:
        patch.setattr(Sweep, "_measure_point", at_most_four)
        status, out, err = study(*WORDS, "--out", str(folder))
    assert (status, out) == (130, "")
    command = f"gluonlab study batch-size --resume {folder}"
    assert err.strip() == f"interrupted: {folder} contains 4 measurements; to resume: {command}"
    status, out, _ = study("batch-size", "--resume", str(folder))
    assert status == 0 and f"written to {folder}" in out
    assert numbers(folder) == numbers(finished)


def test_the_folder_holds_figures_page_result_and_measurements(finished):
    names = {path.name for path in finished.iterdir()}
    figures = {"steps", "epochs", "seconds", "equal-steps", "equal-epochs"}
    assert names == {
        "study.json", "measurements.jsonl", "result.json", "study.html",
        *(f"digits-{name}.svg" for name in figures),
    }  # fmt: skip
    for name in figures:
        ElementTree.parse(finished / f"digits-{name}.svg")
    panel = json.loads((finished / "result.json").read_text())["panels"]["digits"]
    assert [row["size"] for row in panel["rows"]] == [32, 128]
    for row in panel["rows"]:
        low, high = row["steps"]["ends"]
        assert low <= row["steps"]["value"] <= high
        assert row["epochs"]["value"] == row["steps"]["value"] / -(-1437 // row["size"])


def test_a_finished_study_is_written_again_in_another_language(finished, study):
    before = numbers(finished)
    status, out, _ = study("batch-size", "--resume", str(finished), "--language", "ja", "--json")
    assert status == 0 and json.loads(out)["study"] == "batch-size"
    page = (finished / "study.html").read_text(encoding="utf-8")
    assert '<html lang="ja">' in page and "バッチサイズ" in page
    assert 'src="http' not in page and "<script" not in page
    assert numbers(finished) == before


@pytest.mark.long
def test_a_target_that_is_never_reached_is_one_line_and_keeps_what_was_measured(study, tmp_path):
    words = [*WORDS[:-2], "--target", "0.999", "--batch-sizes", "512,1024", "--seeds", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_size, "step_limit", lambda panel, size: 10)
        status, out, err = study(*words, "--out", str(tmp_path / "a"))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: digits: no batch size reached validation accuracy 0.999; the best was")
    assert f"{tmp_path / 'a'} contains" in err
    assert (tmp_path / "a" / "study.html").is_file() and numbers(tmp_path / "a")


@pytest.mark.long
def test_what_another_panel_found_is_said_before_the_mistake(study, tmp_path, monkeypatch):
    """Of a second panel, in truth the same data, for which the target is too high."""
    hard = batch_size.PANELS["digits"]._replace()
    monkeypatch.setitem(batch_size.PANELS, "mnist", hard)
    options = batch_size.BatchSizeOptions(
        {name: {"sizes": [32, 128], "target": target}
         for name, target in (("digits", 0.7), ("mnist", 0.9999))}, 1, 1, None,
    )  # fmt: skip
    monkeypatch.setattr(batch_size, "step_limit", lambda panel, size: 10 if panel is hard else 400)
    begin_study("batch-size", options, tmp_path / "a")
    words = ["batch-size", "--resume", str(tmp_path / "a")]
    for language, digits in (("en", "digits"), ("ja", "数字")):
        status, out, err = study(*words, "--language", language)
        assert (status, err.count("\n")) == (1, 1)
        assert err.startswith("error: mnist: no batch size reached 0.9999")
        assert digits in out and "MNIST" not in out and max(map(len, out.splitlines())) <= 80
    status, out, err = study(*words, "--json")
    assert status == 1 and list(json.loads(out)["panels"]) == ["digits"]
