"""python -m gluonlab.study batch-size, on a few batch sizes."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from gluonlab.study.__main__ import main
from gluonlab.study.batch_size import measure, names
from gluonlab.study.sweep.engine import Sweep

WORDS = ["batch-size", "--quick", "--sizes", "32,128", "--seeds", "2", "--target", "0.7"]


def ended(capsys, *words):
    """Exit status, standard output, and standard error."""
    with pytest.raises(SystemExit) as ending:
        main([*words])
    said = capsys.readouterr()
    return ending.value.code, said.out, said.err


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
        patch.setattr(measure, "PATIENCE", 1)
        patch.setattr(measure, "HOPELESS", 1)
        patch.setitem(names.TUNING_SEEDS, True, 1)
        digits = names.PANELS["digits"]._replace(rate=0.125, equal_steps=16, equal_epochs=1)
        patch.setitem(names.PANELS, "digits", digits)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "whole"
    with pytest.raises(SystemExit) as ending:
        main([*WORDS, "--out", str(folder)])
    assert ending.value.code == 0
    return folder


@pytest.mark.long
def test_an_interrupted_study_goes_on_and_measures_the_same_bits(
    whole, tmp_path, capsys, monkeypatch
):
    folder, one = tmp_path / "study", Sweep._measured

    def at_most_four(sweep, settings, number):
        if len(sweep.store.all()) == 4:
            raise KeyboardInterrupt
        return one(sweep, settings, number)

    with monkeypatch.context() as patch:
        patch.setattr(Sweep, "_measured", at_most_four)
        status, out, err = ended(capsys, *WORDS, "--out", str(folder))
    assert (status, out) == (130, "")
    command = f"python -m gluonlab.study batch-size --resume {folder}"
    assert err.strip() == f"interrupted: {folder} keeps 4 measurements; to go on: {command}"
    status, out, _ = ended(capsys, "batch-size", "--resume", str(folder))
    assert status == 0 and f"written to {folder}" in out
    assert numbers(folder) == numbers(whole)


def test_the_folder_holds_figures_page_result_and_measurements(whole):
    names = {path.name for path in whole.iterdir()}
    figures = {"steps", "epochs", "seconds", "equal-steps", "equal-epochs"}
    assert names == {
        "study.json", "measurements.jsonl", "result.json", "study.html",
        *(f"digits-{name}.svg" for name in figures),
    }  # fmt: skip
    for name in figures:
        ElementTree.parse(whole / f"digits-{name}.svg")
    panel = json.loads((whole / "result.json").read_text())["panels"]["digits"]
    assert [row["size"] for row in panel["rows"]] == [32, 128]
    for row in panel["rows"]:
        low, high = row["steps"]["ends"]
        assert low <= row["steps"]["value"] <= high
        assert row["epochs"]["value"] == row["steps"]["value"] / -(-1437 // row["size"])


def test_a_finished_study_is_written_again_in_another_language(whole, capsys):
    before = numbers(whole)
    status, out, _ = ended(
        capsys, "batch-size", "--resume", str(whole), "--language", "ja", "--json"
    )
    assert status == 0 and json.loads(out)["study"] == "batch-size"
    page = (whole / "study.html").read_text(encoding="utf-8")
    assert '<html lang="ja">' in page and "バッチサイズ" in page
    assert 'src="http' not in page and "<script" not in page
    assert numbers(whole) == before


@pytest.mark.long
def test_a_target_that_is_never_reached_is_one_line_and_keeps_what_was_measured(tmp_path, capsys):
    words = [*WORDS[:-2], "--target", "0.999", "--sizes", "512,1024", "--seeds", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "limit", lambda panel, size: 10)
        status, out, err = ended(capsys, *words, "--out", str(tmp_path / "a"))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(
        "error: digits: no batch size reached 0.999 of the test images; the best was"
    )
    assert f"{tmp_path / 'a'} keeps" in err
    assert (tmp_path / "a" / "study.html").is_file() and numbers(tmp_path / "a")


@pytest.mark.long
def test_what_another_panel_found_is_said_before_the_mistake(tmp_path, capsys, monkeypatch):
    """Of a second panel, in truth the same data, for which the target is too high."""
    hard = names.PANELS["digits"]._replace(title="a hard one")
    monkeypatch.setitem(names.PANELS, "mnist", hard)
    options = names.Options(
        {name: {"sizes": [32, 128], "target": target}
         for name, target in (("digits", 0.7), ("mnist", 0.9999))}, 1, 1, None,
    )  # fmt: skip
    monkeypatch.setattr(measure, "limit", lambda panel, size: 10 if panel is hard else 400)
    monkeypatch.setattr("gluonlab.study.batch_size.__main__.asked", lambda *_, **__: options)
    words = ["batch-size", "--out", str(tmp_path / "a")]
    for language, digits in (("en", "digits"), ("ja", "数字")):
        status, out, err = ended(capsys, *words, "--language", language)
        assert (status, err.count("\n")) == (1, 1)
        assert err.startswith("error: mnist: no batch size reached 0.9999")
        assert digits in out and "MNIST" not in out and max(map(len, out.splitlines())) <= 80
    status, out, err = ended(capsys, *words, "--json")
    assert status == 1 and list(json.loads(out)["panels"]) == ["digits"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--panels", "digit"], "did you mean 'digits'?"),
        (["--sizes", "16"], "--sizes 16: give two batch sizes or more"),
        (["--sizes", "16,x"], "--sizes x: give a whole number"),
        (["--sizes", "16,2000"], "--sizes 2000: digits has 1,437 training images"),
        (["--target", "0"], "--target 0: give a number"),
        (["--target", "2"], "--target 2: give a number"),
        (["--language", "de"], "unknown language 'de'"),
        (["--resume", "x", "--seeds", "2"], "leave --seeds out"),
        (["--resume", "x"], "x/study.json cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = ended(capsys, "batch-size", "--quick", *words)
    if "--resume" in words:
        status, out, err = ended(capsys, "batch-size", *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and said in err
    assert list(tmp_path.iterdir()) == []
