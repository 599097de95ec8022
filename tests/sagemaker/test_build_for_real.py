"""The build with nothing made up but conda, whose place the standard library's venv takes: it
installs, and what it shows works.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from made_up_notebook import SAGEMAKER
from support.waiting import wait_until

CONDA = """\
while [ "$1" != --prefix ]; do shift; done
exec {python} -m venv "$2"
"""


def run_in_kernel(kernel, code, folder, home):
    """Return the output of a cell with this code in a kernel that was registered below ``home``."""
    specs = KernelSpecManager(kernel_dirs=[str(home / ".local/share/jupyter/kernels")], ensure_native_kernel=False)
    manager = KernelManager(kernel_name=kernel, kernel_spec_manager=specs)
    manager.start_kernel(cwd=str(folder), env={**os.environ, "HOME": str(home)})
    client = manager.blocking_client()
    client.start_channels()
    try:
        output = []
        client.wait_for_ready(timeout=300)
        client.execute_interactive(
            code, timeout=300, output_hook=lambda message: output.append(message["content"].get("text", ""))
        )
        return "".join(output)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.long
def test_the_build_of_a_cpu_notebook(notebook):
    home = notebook.root / "home/ec2-user"
    notebook.add_shim("conda", CONDA.replace("{python}", sys.executable))
    (notebook.root / "python").unlink()
    registry = Path("~/.config/pip/pip.conf").expanduser()  # of whoever runs the test
    if registry.is_file():
        (home / ".config/pip").mkdir(parents=True)
        shutil.copy(str(registry), str(home / ".config/pip"))
    notebook.create(GLUONLAB_REPOSITORY=str(SAGEMAKER.parent))
    wait_until(lambda: notebook.markers not in ([], ["gluonlab-BUILDING.txt"]), 1500)
    assert notebook.markers == ["gluonlab-READY.txt"], (notebook.shown / "gluonlab-setup.log").read_text(
        encoding="utf-8"
    )[-3000:]

    command = notebook.wait_for_marker("READY").strip().rpartition("terminal: ")[2].split()
    small = ["--dataset", "digits", "--model", "mlp", "--epochs", "1"]
    environment = {"HOME": str(home), "PATH": os.defpath}
    process = subprocess.run(
        command + small, cwd=notebook.shown, env=environment, capture_output=True, encoding="utf-8", timeout=300
    )
    assert process.returncode == 0, process.stderr
    assert "val accuracy" in process.stdout + process.stderr

    code = "import gluonlab, mxnet; print(mxnet.__version__, gluonlab.__file__)"
    for kernel in ("gluonlab", "python3"):
        assert (
            run_in_kernel(kernel, code, notebook.shown, home)
            == f"1.9.1 {notebook.shown}/gluonlab-source/gluonlab/__init__.py\n"
        )
    assert (notebook.shown / "gluonlab-labs/01-devices.ipynb").is_file()

    installed = (notebook.shown / ".gluonlab/env/pyvenv.cfg").stat().st_mtime_ns
    shutil.rmtree(home / ".local")
    notebook.start_and_wait(GLUONLAB_REPOSITORY=str(SAGEMAKER.parent))
    assert (notebook.shown / ".gluonlab/env/pyvenv.cfg").stat().st_mtime_ns == installed
    assert (home / ".local/share/jupyter/kernels/gluonlab/kernel.json").is_file()
