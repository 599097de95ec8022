"""The lifecycle scripts in a sandbox: what a notebook shows after a first start, a second, a
failure and a stop in between.
"""

import ast
import contextlib
import importlib.machinery
import os
import shutil
import signal
from pathlib import Path

import pytest
from made_up_notebook import SAGEMAKER
from support.waiting import wait_until


def test_the_first_start_builds_the_environment_and_shows_that_it_is_ready(notebook):
    notebook.create()
    output = notebook.wait_for_marker("READY")
    env = notebook.shown / ".gluonlab" / "env"
    assert f"{env}/bin/python -m gluonlab.run" in output
    tool = f"{notebook.shown}/gluonlab-source/tools/make_venv.py"
    assert f"python {tool} {env}-cpu cpu labs" in notebook.recorded_calls()
    assert env.resolve() == Path(f"{env}-cpu").resolve()
    kernels = notebook.root / "home/ec2-user/.local/share/jupyter/kernels"
    assert sorted(path.name for path in kernels.iterdir()) == ["gluonlab", "python3"]
    assert (notebook.shown / "gluonlab-labs" / "01.ipynb").is_file()
    assert "reload this page" in output
    log = (notebook.shown / "gluonlab-setup.log").read_text(encoding="utf-8")
    assert log.index("BUILDING") < log.index("READY")


def test_the_foreground_does_not_wait_for_the_build_and_the_build_survives_it(notebook):
    """The scripts end while conda is held up; all that is left then is the build, in a session of
    its own.
    """
    (notebook.root / "wait").touch()
    notebook.create()
    assert "10 to 20 minutes the first time" in notebook.wait_for_marker("BUILDING")
    wait_until(lambda: notebook.recorded_calls("conda"))
    with contextlib.suppress(ProcessLookupError):  # which is as it should be: nothing is left there
        os.killpg(notebook.group, signal.SIGKILL)
    (notebook.root / "wait").unlink()
    notebook.wait_for_marker("READY")


def test_a_second_start_installs_nothing_and_registers_the_kernel_again(notebook):
    notebook.create_and_wait()

    def made():
        return [call for call in notebook.recorded_calls() if call.startswith("conda") or "make_venv" in call]

    before = made()
    units = {path: path.read_bytes() for path in (notebook.root / "etc").rglob("*.service")}
    shutil.rmtree(notebook.root / "home/ec2-user/.local")  # a stop empties all but ~/SageMaker
    for _ in range(2):
        notebook.start_and_wait()
    assert made() == before
    assert (notebook.root / "home/ec2-user/.local/share/jupyter/kernels/gluonlab").is_dir()
    assert {path: path.read_bytes() for path in units} == units


def test_two_starts_at_once_build_once(notebook):
    (notebook.root / "wait").touch()
    notebook.create()
    wait_until(lambda: notebook.recorded_calls("conda"))
    notebook.start()
    (notebook.root / "wait").unlink()
    notebook.wait_for_marker("READY")
    assert len(notebook.recorded_calls("conda")) == 1


def test_the_checkout_may_come_from_the_bucket(notebook):
    notebook.make_checkout(notebook.root / "bucket")
    notebook.create_and_wait(GLUONLAB_REPOSITORY="", GLUONLAB_BUCKET="my-bucket")
    assert notebook.recorded_calls("aws") == ["aws s3 cp --only-show-errors s3://my-bucket/gluonlab/source.tar.gz -"]


def break_conda(notebook):
    (notebook.root / "conda-fails").touch()


def break_the_installation(notebook):
    (notebook.root / "install-fails").touch()


def fill_the_disk(notebook):
    notebook.add_shim("df", 'echo "Avail"; echo 1000')


def make_another_repository(notebook):
    (notebook.checkout / "setup.py").unlink()
    os.system(f"git -C {notebook.checkout} -c user.name=n -c user.email=n@example.com commit -qam gone")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (break_conda, "creating a Python environment with conda failed with status 3"),
        (break_the_installation, "installing gluonlab[cpu,labs] from {shown}/gluonlab-source failed with status 1"),
        (fill_the_disk, "0 GiB are free in {shown}, but 4 are needed: free some space"),
        (make_another_repository, "setup.py is missing: check the repository of gluonlab"),
    ],
)
def test_a_failure_is_shown_with_its_reason_and_the_next_start_mends_it(notebook, fault, reason):
    fault(notebook)
    notebook.create()
    output = notebook.wait_for_marker("FAILED")
    assert reason.format(shown=notebook.shown) in output
    assert f"Try again in a terminal: bash {notebook.shown}/.gluonlab/build-env.sh" in output
    root, shims = notebook.root, notebook.shims
    for path in (root / "conda-fails", root / "install-fails", shims / "df"):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    notebook.make_checkout(notebook.shown / "gluonlab-source")
    notebook.start_and_wait()


def test_a_repository_that_cannot_be_reached_is_named_and_what_git_says_is_in_the_log(notebook):
    notebook.create(GLUONLAB_REPOSITORY=str(notebook.root / "nowhere"))
    assert "fetching the checkout of gluonlab failed with status 128" in notebook.wait_for_marker("FAILED")
    assert "does not exist" in (notebook.shown / "gluonlab-setup.log").read_text(encoding="utf-8")


def test_with_nothing_to_fetch_from_the_cure_is_named(notebook):
    notebook.create(GLUONLAB_REPOSITORY="")
    output = "neither a repository nor a bucket is set: clone or upload it there"
    assert output in notebook.wait_for_marker("FAILED")


def test_a_person_who_deletes_the_state_gets_it_anew_from_the_checkout(notebook):
    notebook.create_and_wait()
    shutil.rmtree(notebook.shown / ".gluonlab")
    (notebook.shown / "gluonlab-source" / "sagemaker").mkdir()
    shutil.copy(SAGEMAKER / "build-env.sh", notebook.shown / "gluonlab-source" / "sagemaker")
    notebook.start_and_wait()
    assert len(notebook.recorded_calls("conda")) == 2


def test_without_any_build_script_the_notebook_starts_and_says_so(notebook):
    notebook.start()
    wait_until(lambda: notebook.markers == ["gluonlab-FAILED.txt"])
    assert "build-env.sh is gone" in (notebook.shown / "gluonlab-FAILED.txt").read_text()


def test_while_the_checkout_is_fetched_a_build_goes_on(notebook):
    """A network that does not answer makes git wait for minutes."""
    (notebook.root / "wait").touch()
    waits = 'while [ -e "{root}/wait" ]; do sleep 0.1; done; '
    notebook.add_shim("git", f'{waits}PATH={os.defpath} exec git "$@"')
    notebook.create()
    notebook.wait_for_marker("BUILDING")
    (notebook.root / "wait").unlink()
    notebook.wait_for_marker("READY")


def test_nothing_beside_the_notebooks_hides_the_package(notebook):
    """Python looks into the folder of a notebook first, and a checkout named gluonlab would be a
    package without any content.
    """
    notebook.create_and_wait()
    assert importlib.machinery.PathFinder.find_spec("gluonlab", [str(notebook.shown)]) is None


def test_data_sets_outlive_a_stop_where_gluonlab_looks_for_them(notebook):
    usual = notebook.root / "home/ec2-user/.cache/gluonlab"
    notebook.create_and_wait()
    (usual / "cifar10").mkdir()
    for _ in range(2):
        shutil.rmtree(notebook.root / "home/ec2-user/.cache")  # a stop empties all but ~/SageMaker
        notebook.start_and_wait()
        assert (usual / "cifar10").is_dir()
    assert [path.name for path in (notebook.shown / "gluonlab-data").iterdir()] == ["cifar10"]


def test_what_a_build_that_was_cut_off_left_does_not_pile_up(notebook):
    left = notebook.shown / ".gluonlab" / "tmp" / "gluonlab-wheels-x"
    left.mkdir(parents=True)
    break_the_installation(notebook)
    notebook.create()
    notebook.wait_for_marker("FAILED")
    assert not left.exists()


def test_a_changed_setup_is_installed_into_the_same_environment(notebook):
    notebook.create_and_wait()
    (notebook.shown / "gluonlab-source" / "setup.py").write_text("# another one", encoding="utf-8")
    notebook.start()
    wait_until(lambda: len([call for call in notebook.recorded_calls("python") if "make_venv" in call]) == 2)
    notebook.wait_for_marker("READY")
    assert len(notebook.recorded_calls("conda")) == 1


@pytest.mark.parametrize(
    ("given", "minutes", "does"),
    [("90", "90", "restart"), ("0", "0", "stop"), ("1h;x", "60", "restart"), ("", "60", "restart")],
)
def test_the_idle_stop_is_begun_with_the_minutes_that_were_given(notebook, given, minutes, does):
    notebook.create(GLUONLAB_IDLE_MINUTES=given)
    unit = (notebook.root / "etc/systemd/system/gluonlab-idle-stop.service").read_text(encoding="utf-8")
    started = (notebook.root / "opt/gluonlab/idle-stop.sh").read_text(encoding="utf-8")
    assert started.endswith(f"idle-stop.py --minutes {minutes}\n")
    assert "User=ec2-user\n" in unit
    # for all to read, who may not read the journal
    assert "StandardOutput=append:/var/log/gluonlab-idle-stop.log\n" in unit
    assert notebook.recorded_calls("systemctl") == [
        "systemctl daemon-reload",
        f"systemctl {does} gluonlab-idle-stop.service",
    ]
    notebook.wait_for_marker("READY")


def test_the_idle_stop_in_the_script_is_the_same_program(notebook):
    """Closely set, for a script has to be short: nothing but docstrings and layout differs."""
    notebook.create_and_wait()

    def program(path):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
                del node.body[0]
        return ast.dump(ast.Module(tree.body[1:], [])), ast.get_docstring(tree).split("\n")[0]

    installed = program(notebook.root / "opt/gluonlab/idle-stop.py")
    assert installed == program(SAGEMAKER / "idle-stop.py")
