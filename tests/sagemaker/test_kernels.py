"""The labs as a Jupyter server of the notebook opens them: it is a program of the machine's own,
without gluonlab, and takes the kernel that a lab names.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv

import pytest
from made_up_notebook import SAGEMAKER

EXECUTE = """
import sys, nbclient, nbformat
lab = nbformat.read(sys.argv[1], as_version=4)
del lab.cells[int(sys.argv[3]) :]
nbclient.NotebookClient(lab, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
"""
WHERE = """
from jupyter_client.kernelspec import KernelSpecManager
specs = KernelSpecManager()
for name in sorted(specs.find_kernel_specs()):
    print(name, specs.get_kernel_spec(name).argv[0])
"""


class Machine:
    """A notebook with a Jupyter server of its own, in an environment without gluonlab, whose
    kernel is `python3`.
    """

    def __init__(self, notebook):
        self.notebook, self.home = notebook, notebook.root / "home/ec2-user"
        own = self.home / "anaconda3/envs/JupyterSystemEnv"
        venv.create(str(own), symlinks=True, with_pip=False)
        self.python = own / "bin/python"
        # what this test has but gluonlab, which is there by a line of another such file
        [packages] = own.glob("lib/python*/site-packages")
        packages.joinpath("of_the_test.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        kernel = own / "share/jupyter/kernels/python3"
        kernel.mkdir(parents=True)
        argv = [str(self.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        about = {"argv": argv, "display_name": "Python 3", "language": "python"}
        kernel.joinpath("kernel.json").write_text(json.dumps(about), encoding="utf-8")
        # Of the environment that the build makes, the parts that count here are real.
        real = f'case "$*" in *"kernel install"*|*" labs "*) exec {sys.executable} "$@"; esac'
        notebook.add_shim("python", real, notebook.root / "python")

    def run(self, *arguments, prefers="1"):
        """The server's Python, in the environment of a server: what it printed, and its status."""
        environment = {
            "HOME": str(self.home), "PATH": os.defpath, "JUPYTER_PREFER_ENV_PATH": prefers,
            "JUPYTER_PLATFORM_DIRS": "0",
        }  # fmt: skip
        process = subprocess.run(
            [str(self.python), "-c", *map(str, arguments)], cwd="/", env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=300,
        )  # fmt: skip
        return process.returncode, process.stdout


@pytest.fixture
def machine(notebook):
    return Machine(notebook)


@pytest.mark.parametrize("prefers", ["0", "1"], ids=["its user's", "its own"])
def test_both_kernels_are_the_environment_wherever_a_server_looks_first(machine, prefers):
    """A server in an environment of conda looks into that before the user's folder."""
    assert machine.run(WHERE, prefers=prefers) == (0, f"python3 {machine.python}\n")
    machine.notebook.create_and_wait()
    expected = f"gluonlab {sys.executable}\npython3 {sys.executable}\n"
    assert machine.run(WHERE, prefers=prefers) == (0, expected)


@pytest.mark.parametrize("cells", [3, pytest.param(1000, marks=pytest.mark.long)])
def test_a_lab_runs_as_it_is(machine, cells):
    """All cells run, from the import of gluonlab and MXNet to the last; it has no answers yet."""
    machine.notebook.create_and_wait()
    labs = machine.notebook.shown / "gluonlab-labs"
    lab = labs / "01-devices.ipynb"
    unmodified = lab.read_bytes()
    status, output = machine.run(EXECUTE, lab, labs, cells)
    assert status == 0, output[-3000:]
    assert lab.read_bytes() == unmodified


def test_in_the_kernel_of_the_machine_its_first_cell_fails(machine):
    """This failure shows that the test above can fail."""
    status, output = machine.run(EXECUTE, SAGEMAKER.parent / "labs/en/01-devices.ipynb", "/tmp", 3)
    assert status == 1
    assert "No module named 'gluonlab'" in output


def test_a_kernel_has_the_proxy_and_the_index_of_the_notebook(machine):
    given = "HTTPS_PROXY=http://proxy.example:3128 PIP_INDEX_URL=https://pypi.example/simple"
    machine.notebook.create_and_wait(GLUONLAB_ENVIRONMENT=given)
    for name in ("gluonlab", "python3"):
        kernel = machine.home / f".local/share/jupyter/kernels/{name}/kernel.json"
        environment = json.loads(kernel.read_text(encoding="utf-8"))["env"]
        assert environment["HTTPS_PROXY"] == "http://proxy.example:3128"
        assert environment["PIP_INDEX_URL"] == "https://pypi.example/simple"
        assert "169.254.169.254" in environment["NO_PROXY"]
