"""The lifecycle scripts at the very paths of a notebook, in a mount namespace: one machine after
the other, with a driver that fails, is late and hangs.
"""

import os
import shutil

import pytest
from made_up_notebook import Namespace
from support.waiting import wait_until

HOME = "/home/ec2-user/SageMaker"


@pytest.fixture
def notebook(tmp_path):
    if not Namespace.is_possible():
        lacks = "no mount namespaces here: the other tests run the same below a folder"
        if os.environ.get("GLUONLAB_HOSTS") == "required":
            pytest.fail(lacks)
        pytest.skip(lacks)
    made = Namespace(tmp_path)
    yield made
    wait_until(lambda: not made.is_locked())


def test_the_paths_of_a_notebook(notebook):
    notebook.create(GLUONLAB_IDLE_MINUTES="30")
    assert f"terminal: {HOME}/.gluonlab/env/bin/python -m gluonlab.run" in notebook.wait_for_marker("READY")
    [installed] = [call for call in notebook.recorded_calls("python") if "make_venv" in call]
    source, env = f"{HOME}/gluonlab-source", f"{HOME}/.gluonlab/env-cpu"
    assert installed == f"python {source}/tools/make_venv.py {env} cpu labs"
    unit = (notebook.root / "etc/systemd/system/gluonlab-idle-stop.service").read_text()
    assert "ExecStart=/bin/bash /opt/gluonlab/idle-stop.sh\n" in unit
    started = (notebook.root / "opt/gluonlab/idle-stop.sh").read_text(encoding="utf-8")
    assert ". /opt/gluonlab/environment\n" in started
    assert f". {HOME}/.gluonlab/environment\n" in started
    assert started.endswith("exec python3 /opt/gluonlab/idle-stop.py --minutes 30\n")


def test_from_machine_to_machine_and_through_every_fault_of_a_driver(notebook):
    """Each start but the first finds an empty home but for ~/SageMaker, as after a stop."""
    state = notebook.shown / ".gluonlab"
    late = notebook.root / "late"
    quick = {"GLUONLAB_ENVIRONMENT": "GLUONLAB_DRIVER_SECONDS=1"}

    def start(expected, *cards, nvidia_smi=None, **given):
        shutil.rmtree(str(notebook.root / "home/ec2-user/.local"), ignore_errors=True)
        notebook.set_gpus(*cards, nvidia_smi=nvidia_smi)
        notebook.start(**given)
        return notebook.wait_for_marker(expected)

    notebook.start("on-create")
    assert "--gpus 4\n" in start("READY", *["T4"] * 4)
    (state / "env-cu112/mine").touch()
    for fault in ("exit 9", 'trap "" TERM; sleep 600'):
        output = start("FAILED", *["T4"] * 4, nvidia_smi=fault, **quick)
        assert "the driver does not answer: nvidia-smi lists no GPU for 1 s" in output
        assert "the bus 0000:00:10.0 0000:00:11.0 0000:00:12.0 0000:00:13.0 (" in output
    late.touch()
    start("BUILDING", "T4", nvidia_smi=f'[ ! -e {late} ] || exit 9\necho "GPU 0: T4"')
    late.unlink()
    assert "--gpus 1\n" in notebook.wait_for_marker("READY")
    assert "--gpus 2\n" in start("READY")
    (state / "env-cpu/mine").touch()
    assert "--gpus 8\n" in start("READY", *["A10G"] * 8)
    assert sorted(path.name for path in state.glob("env-*/mine")) == ["mine", "mine"]
    assert len(notebook.recorded_calls("conda")) == 2
    kernels = notebook.root / "home/ec2-user/.local/share/jupyter/kernels"
    assert sorted(path.name for path in kernels.iterdir()) == ["gluonlab", "python3"]
