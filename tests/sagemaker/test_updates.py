"""build-env.sh --update, and the labs beside it: no update meets what somebody has written."""

import subprocess
import sys

import pytest
from made_up_notebook import SAGEMAKER
from support.waiting import LIMIT_S


@pytest.fixture
def ready(notebook):
    notebook.create_and_wait()
    return notebook


def publish_newer_version(notebook):
    """The repository has a newer version: another text of lab 01, a lab 02, another setup.py."""
    notebook.make_checkout(notebook.checkout)
    (notebook.checkout / "labs/en/01.ipynb").write_text("corrected", encoding="utf-8")
    (notebook.checkout / "labs/en/02.ipynb").write_text("new", encoding="utf-8")
    (notebook.checkout / "setup.py").write_text("# newer", encoding="utf-8")
    notebook.commit()


def test_an_update_brings_the_newest_and_leaves_answers_alone(ready):
    answers = ready.shown / "gluonlab-labs/01.ipynb"
    answers.write_text("my answer", encoding="utf-8")
    publish_newer_version(ready)
    ready.build_or_fail("--update")
    source = ready.shown / "gluonlab-source"
    assert (source / "setup.py").read_text(encoding="utf-8") == "# newer"
    assert (source / "labs/en/01.ipynb").read_text(encoding="utf-8") == "corrected"
    assert answers.read_text(encoding="utf-8") == "my answer"
    assert (answers.parent / "02.ipynb").read_text(encoding="utf-8") == "new"
    assert len([call for call in ready.recorded_calls("python") if "make_venv" in call]) == 2
    assert ready.markers == ["gluonlab-READY.txt"]
    log = (ready.shown / "gluonlab-setup.log").read_text(encoding="utf-8")
    assert log.count(f"updating {source}") == 1  # and not once for each of the two scripts


def test_an_update_is_finished_by_the_script_that_it_brought(ready):
    publish_newer_version(ready)
    (ready.checkout / "sagemaker").mkdir()
    (ready.checkout / "sagemaker/build-env.sh").write_text('echo "the new one: $#"\n', encoding="utf-8")
    ready.commit()
    status, output = ready.build("--update")
    assert (status, output.splitlines()[-1]) == (0, "the new one: 0")


def test_without_update_a_start_changes_neither_the_checkout_nor_the_labs(ready):
    publish_newer_version(ready)
    (ready.shown / "gluonlab-labs/01.ipynb").unlink()
    ready.start_and_wait(GLUONLAB_REPOSITORY=str(ready.root / "elsewhere"))
    source = ready.shown / "gluonlab-source"
    assert (source / "setup.py").read_text(encoding="utf-8") == "# setup.py"
    assert list((ready.shown / "gluonlab-labs").iterdir()) == []


@pytest.mark.parametrize("fault", ["changed", "gone", "rewritten"])
def test_an_update_that_cannot_be_leaves_all_as_it_was(ready, fault):
    source = ready.shown / "gluonlab-source"
    publish_newer_version(ready)
    if fault == "changed":
        (source / "setup.py").write_text("# mine", encoding="utf-8")
    elif fault == "gone":
        ready.checkout.rename(ready.root / "moved")
    else:
        mine = ["-c", "user.name=n", "-c", "user.email=n@example.com", "commit", "-qam", "mine"]
        (source / "setup.py").write_text("# mine", encoding="utf-8")
        subprocess.run(["git", "-C", str(source), *mine], check=True, timeout=LIMIT_S)
    before = (source / "setup.py").read_text(encoding="utf-8")
    shown = ready.wait_for_marker("READY")
    status, output = ready.build("--update")
    assert status == 1
    assert f"not updated, and all is as it was: updating {source} failed with status" in output
    assert ready.wait_for_marker("READY") == shown
    assert (source / "setup.py").read_text(encoding="utf-8") == before
    assert ("setup.py" in output) is (fault == "changed")


def test_an_update_from_the_bucket_puts_the_old_checkout_aside(notebook):
    bucket = notebook.make_checkout(notebook.root / "bucket")
    notebook.create_and_wait(GLUONLAB_REPOSITORY="", GLUONLAB_BUCKET="my-bucket")
    source = notebook.shown / "gluonlab-source"
    (source / "mine.py").touch()
    (bucket / "setup.py").write_text("# newer", encoding="utf-8")
    output = notebook.build_or_fail("--update")
    assert (source / "setup.py").read_text(encoding="utf-8") == "# newer"
    [before] = notebook.shown.glob("gluonlab-source-before-*")
    assert (before / "mine.py").exists()
    assert str(before) in output

    (bucket / "setup.py").unlink()
    status, output = notebook.build("--update")
    assert (status, "gave no setup.py" in output) == (1, True)
    assert (source / "setup.py").read_text(encoding="utf-8") == "# newer"


def test_another_argument_is_refused(ready):
    assert ready.build("--upgrade") == (2, "error: --upgrade: give --update, or nothing\n")


def test_answers_in_the_checkout_of_an_earlier_version_are_copied_with_the_labs(ready):
    """It showed a link to the checkout's labs, and people wrote into them."""
    labs, source = ready.shown / "gluonlab-labs", ready.shown / "gluonlab-source"
    (labs / "01.ipynb").unlink()
    labs.rmdir()
    labs.symlink_to(source / "labs")
    (ready.shown / ".gluonlab/labs").unlink()
    (source / "labs/en/01.ipynb").write_text("my answer", encoding="utf-8")
    ready.start_and_wait()
    assert not labs.is_symlink()
    assert (labs / "01.ipynb").read_text(encoding="utf-8") == "my answer"
    assert (source / "labs/en/01.ipynb").exists()


def test_the_real_command_copies_the_labs_and_overwrites_none(notebook):
    python = notebook.root / "python"
    real = f'PYTHONPATH={SAGEMAKER.parent} exec {sys.executable} "$@"'
    notebook.add_shim("python", f'case "$*" in *" labs "*) {real}; esac', python)
    notebook.create_and_wait(GLUONLAB_ENVIRONMENT="GLUONLAB_LANGUAGE=ja LC_ALL=C.UTF-8")
    labs = notebook.shown / "gluonlab-labs"
    expected = sorted(path.name for path in (SAGEMAKER.parent / "labs/ja").glob("*.ipynb"))
    assert sorted(path.name for path in labs.glob("*.ipynb")) == expected
    answers = labs / expected[0]
    answers.write_text("my answer", encoding="utf-8")
    (notebook.shown / ".gluonlab/labs").unlink()
    output = notebook.build_or_fail()
    assert f"your file was kept: {answers}" in output
    assert answers.read_text(encoding="utf-8") == "my answer"
