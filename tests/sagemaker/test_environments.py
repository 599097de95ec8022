"""Which environment a notebook gets: its PCI bus decides, whatever nvidia-smi says, and no
environment that somebody may have worked in is ever removed.
"""

import pytest

QUICK = "GLUONLAB_DRIVER_SECONDS=2"


@pytest.fixture
def with_gpus(notebook):
    """A notebook with four GPUs that is ready, and a file of its user in the environment."""
    notebook.set_gpus("T4", "T4", "T4", "T4")
    notebook.create_and_wait()
    (notebook.shown / ".gluonlab/env-cu112/mine").touch()
    return notebook


def installed_kinds(notebook):
    """The kinds that were installed, in order."""
    return [call.split()[-2] for call in notebook.recorded_calls("python") if "make_venv.py" in call]


def test_each_kind_of_machine_has_its_environment_and_all_stay(with_gpus):
    """mxnet and mxnet-cu112 share a folder: in one environment pip would leave a mixture, which
    loads no more once the GPUs are gone.
    """
    env = with_gpus.shown / ".gluonlab/env"
    for cards, kind, shown in (((), "cpu", 2), (("A10G",), "cu112", 1), ((), "cpu", 2)):
        with_gpus.set_gpus(*cards)
        with_gpus.start()
        assert f"{env}/bin/python -m gluonlab.run --gpus {shown}\n" in with_gpus.wait_for_marker("READY")
        assert env.resolve().name == f"env-{kind}"
        assert (env.parent / "env-cu112/mine").exists()
    assert installed_kinds(with_gpus) == ["cu112", "cpu"]  # each once


@pytest.mark.parametrize(
    "nvidia_smi",
    [
        'echo "NVIDIA-SMI has failed: no communication with the driver"; exit 9',
        "echo No devices were found",
        'trap "" TERM; sleep 600',
    ],
    ids=["fails", "finds none", "hangs"],
)
def test_a_driver_that_does_not_answer_is_named_and_nothing_is_touched(with_gpus, nvidia_smi):
    before = [call for call in with_gpus.recorded_calls() if "conda" in call or "make_venv" in call]
    kernels = with_gpus.root / "home/ec2-user/.local/share/jupyter/kernels"
    (kernels / "gluonlab").rmdir()
    with_gpus.set_gpus("T4", "T4", nvidia_smi=nvidia_smi)
    with_gpus.start(GLUONLAB_ENVIRONMENT=QUICK)
    output = with_gpus.wait_for_marker("FAILED")
    assert "the driver does not answer: nvidia-smi lists no GPU for 2 s" in output
    assert "the bus 0000:00:10.0 0000:00:11.0 (" in output
    assert ("no communication" in output) is ("no communication" in nvidia_smi)
    after = [call for call in with_gpus.recorded_calls() if "conda" in call or "make_venv" in call]
    assert after == before
    assert (with_gpus.shown / ".gluonlab/env-cu112/mine").exists()
    assert (kernels / "gluonlab").is_dir()  # CPU devices may do for the moment

    with_gpus.set_gpus("T4")
    again = with_gpus.shown / ".gluonlab/environment"
    again.write_text("GLUONLAB_DRIVER_SECONDS=300\n", encoding="utf-8")
    with_gpus.build_or_fail()
    assert "--gpus 1\n" in with_gpus.wait_for_marker("READY")
    assert (with_gpus.shown / ".gluonlab/env-cu112/mine").exists()


def test_a_driver_that_is_late_is_waited_for(with_gpus):
    late = with_gpus.root / "late"
    late.touch()
    with_gpus.set_gpus("T4", "T4", nvidia_smi=f'[ ! -e {late} ] || exit 9\necho "GPU 0: T4"')
    with_gpus.start()
    assert "waiting for the driver of the GPUs" in with_gpus.wait_for_marker("BUILDING")
    late.unlink()
    assert "--gpus 1\n" in with_gpus.wait_for_marker("READY")
    assert installed_kinds(with_gpus) == ["cu112"]


def test_without_gpus_nvidia_smi_is_not_asked(notebook):
    notebook.set_gpus(nvidia_smi="sleep 600")
    notebook.create()
    assert "--gpus 2\n" in notebook.wait_for_marker("READY")
    assert installed_kinds(notebook) == ["cpu"]
    assert notebook.recorded_calls("nvidia-smi") == []


def test_an_environment_that_does_not_run_is_put_aside_and_made_anew(notebook):
    notebook.create_and_wait()
    state = notebook.shown / ".gluonlab"
    (state / "env-cpu/bin/python").write_text("cut off", encoding="utf-8")
    (state / "env-cpu/mine").touch()
    notebook.start_and_wait()
    assert len(notebook.recorded_calls("conda")) == 2
    [aside] = state.glob("env-cpu.broken-*")
    assert (aside / "mine").exists()


def test_what_a_first_try_left_is_not_put_aside(notebook):
    (notebook.root / "install-fails").touch()
    notebook.create()
    notebook.wait_for_marker("FAILED")
    state = notebook.shown / ".gluonlab"
    (state / "env-cpu/bin/python").write_text("cut off", encoding="utf-8")
    (notebook.root / "install-fails").unlink()
    notebook.build_or_fail()
    assert sorted(path.name for path in state.glob("env*")) == ["env", "env-cpu"]


def test_an_installation_that_failed_over_a_whole_environment_is_tried_again_in_it(notebook):
    notebook.create_and_wait()
    state = notebook.shown / ".gluonlab"
    (state / "env-cpu/mine").touch()
    (notebook.shown / "gluonlab-source/setup.py").write_text("# another", encoding="utf-8")
    (notebook.root / "install-fails").touch()
    assert notebook.build()[0] == 1
    (notebook.root / "install-fails").unlink()
    notebook.build_or_fail()
    assert (state / "env-cpu/mine").exists()
    assert len(notebook.recorded_calls("conda")) == 1
    assert installed_kinds(notebook) == ["cpu", "cpu", "cpu"]


def test_the_one_environment_of_an_earlier_version_becomes_that_of_its_kind(with_gpus):
    state = with_gpus.shown / ".gluonlab"
    (state / "env").unlink()
    (state / "env-cu112").rename(state / "env")
    (state / "env/.installed").unlink()
    (state / "env/.flavour").write_text("cu112\n", encoding="utf-8")
    with_gpus.set_gpus()
    with_gpus.start_and_wait()
    assert (state / "env-cu112/mine").exists()
    assert (state / "env").resolve().name == "env-cpu"


def test_gpus_on_a_volume_too_small_for_their_build_are_a_failure_with_its_reason(notebook):
    notebook.create_and_wait()
    notebook.set_gpus("T4")
    notebook.add_shim("df", 'echo "Avail"; echo 9000')
    notebook.start()
    assert "8 GiB are free" in notebook.wait_for_marker("FAILED")
