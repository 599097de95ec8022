"""The language of a lab, and what setup() says in it."""

import warnings

import pytest

from gluonlab.errors import ExerciseError
from gluonlab.exercises import language
from gluonlab.exercises.languages import LANGUAGE_VARIABLE, choose_text


@pytest.fixture(params=["en", "ja"])
def spoken(request, monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, request.param)
    return request.param


def test_a_language_that_the_labs_do_not_have_is_one_line():
    with pytest.raises(ExerciseError, match="unknown language 'de': choose en, ja"):
        language("de")


def test_a_choice_lasts(spoken):
    assert language() == spoken
    other = {"en": "ja", "ja": "en"}[spoken]
    assert language(other) == other
    assert language() == other
    assert choose_text(en="en", ja="ja") == other


@pytest.fixture
def silent(monkeypatch, tmp_path):
    """Remove all hints about the language; the current folder is below tmp_path."""
    for name in (LANGUAGE_VARIABLE, "JPY_SESSION_NAME", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "somewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_english_is_the_language_if_nothing_says_otherwise(silent):
    assert language() == "en"


def test_the_locale_says_it(silent, monkeypatch):
    monkeypatch.setenv("LANG", "ja_JP.UTF-8")
    assert language() == "ja"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert language() == "en"


def test_the_folder_goes_before_the_locale(silent, monkeypatch):
    (silent / "ja").mkdir()
    monkeypatch.chdir(silent / "ja")
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    assert language() == "ja"


def test_the_notebook_goes_before_the_folder_and_its_metadata_before_its_own(silent, monkeypatch):
    (silent / "ja").mkdir()
    notebook = silent / "ja" / "02.ipynb"
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    assert language() == "ja"  # it cannot be read, and its folder says it
    notebook.write_text('{"metadata": {"gluonlab": {"language": "en"}}}')
    assert language() == "en"
    notebook.write_text("no notebook")
    assert language() == "ja"


def test_a_folder_that_is_gone_says_nothing(silent):
    silent.rmdir()
    assert language() == "en"


def test_setup_says_which_devices_and_data_and_why(spoken, capsys, monkeypatch, tmp_path):
    from gluonlab.exercises import setup

    monkeypatch.setenv("GLUONLAB_DATA", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = setup(2)
    said = capsys.readouterr().out
    assert len(here.devices) == len(set(here.devices)) == 2
    assert {"en": "devices: ", "ja": "デバイス: "}[spoken] in said
    assert here.data in said
    assert here.language == spoken
    assert str(here.devices[1]) in said
    if not here.on_gpus:
        assert here.data == "digits"
        assert {"en": "no GPU here", "ja": "GPU なし"}[spoken] in said


def test_setup_wants_devices_and_data_sets_that_can_be():
    from gluonlab.errors import DataError, DeviceError
    from gluonlab.exercises import setup

    with pytest.raises(DataError, match="unknown data set 'mnits'"):
        setup(2, dataset="mnits")
    with pytest.raises(DeviceError, match="give a number from 1 up"):
        setup(0)
