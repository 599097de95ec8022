"""The language of a lab, and the text that setup() prints in it."""

import warnings

import pytest

from gluonlab.errors import DataError, DeviceError, ExerciseError
from gluonlab.exercises import language, setup
from gluonlab.exercises.languages import LANGUAGE_VARIABLE, choose_text


def test_an_unknown_language_is_one_line():
    with pytest.raises(ExerciseError, match="unknown language 'de': choose en, ja"):
        language("de")


@pytest.mark.parametrize(("first", "second"), [("en", "ja"), ("ja", "en")])
def test_a_choice_lasts(first, second, monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, first)
    assert (language(), language(second), language()) == (first, second, second)
    assert choose_text(en="en", ja="ja") == second


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The current folder, in an environment without any hint about the language."""
    for name in (LANGUAGE_VARIABLE, "JPY_SESSION_NAME", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "somewhere"
    (path / "ja").mkdir(parents=True)
    monkeypatch.chdir(path)
    return path


def test_the_locale_decides_and_the_default_is_english(folder, monkeypatch):
    assert language() == "en"
    monkeypatch.setenv("LANG", "ja_JP.UTF-8")
    assert language() == "ja"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert language() == "en"


def test_the_folder_takes_precedence_over_the_locale(folder, monkeypatch):
    monkeypatch.chdir("ja")
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    assert language() == "ja"


def test_the_notebook_takes_precedence_over_the_folder_and_its_metadata_over_its_own_folder(folder, monkeypatch):
    notebook = folder / "ja" / "02.ipynb"
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    assert language() == "ja"  # of its folder: it cannot be read
    notebook.write_text('{"metadata": {"gluonlab": {"language": "en"}}}')
    assert language() == "en"
    notebook.write_text("no notebook")
    assert language() == "ja"


def test_in_a_removed_folder_the_language_is_english(folder):
    (folder / "ja").rmdir()
    folder.rmdir()
    assert language() == "en"


@pytest.mark.parametrize(
    ("name", "heading", "no_gpu"), [("en", "devices: ", "no GPU here"), ("ja", "デバイス: ", "GPU なし")]
)
def test_setup_prints_devices_and_data_and_the_reason(name, heading, no_gpu, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(LANGUAGE_VARIABLE, name)
    monkeypatch.setenv("GLUONLAB_DATA", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = setup(2)
    message = capsys.readouterr().out
    assert len(here.devices) == len(set(here.devices)) == 2 and here.language == name
    assert heading in message and here.data in message and str(here.devices[1]) in message
    if not here.on_gpus:
        assert here.data == "digits" and no_gpu in message


def test_setup_refuses_unknown_data_sets_and_no_devices():
    with pytest.raises(DataError, match="unknown data set 'mnits'"):
        setup(2, dataset="mnits")
    with pytest.raises(DeviceError, match=r"^0 is not a valid number of GPUs: use a whole number of at least 1"):
        setup(0)
