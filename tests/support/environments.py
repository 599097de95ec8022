"""Temporary virtual environments, whose packages are links to the installed ones or fakes."""

import json
import subprocess
import sysconfig
import venv
from pathlib import Path

from gluonlab.engine import mxnet_and_cuda_libraries
from support.elf_files import write_library
from support.processes import clean_environment

INSTALLED = Path(sysconfig.get_path("purelib"))
NEVER_LINKED = ("gluonlab", "__editable__", "nvidia", "pynvml", "horovod")
# The libraries that libmxnet.so of mxnet-cu112 needs, but that of the CPU build does not.
CUDA_NEEDED = [
    "libcudnn.so.8", "libcuda.so.1", "libnccl.so.2", "libcudart.so.11.0", "libcufft.so.10", "libcublas.so.11",
    "libcusolver.so.11", "libcurand.so.10", "libnvrtc.so.11.2", "libnvToolsExt.so.1",
]  # fmt: skip
MXNET_STUB = """
import ctypes, pathlib, numpy
ctypes.CDLL(str(pathlib.Path(__file__).parent / "libmxnet.so"))
raise RuntimeError("the library of this test holds nothing")
"""


class VirtualEnvironment:
    """A virtual environment with links to the installed packages.

    ``without``: prefixes of the names of packages that are not linked.
    """

    def __init__(self, folder, without=()):
        self.folder = folder / "venv"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self.folder)
        [self.site] = self.folder.glob("lib/python*/site-packages")
        for entry in INSTALLED.iterdir():
            # MXNet imports distutils, which Python 3.12 dropped: setuptools provides it
            if (entry.suffix != ".pth" or entry.stem == "distutils-precedence") and not entry.name.lower().startswith(
                (*NEVER_LINKED, *without)
            ):
                (self.site / entry.name).symlink_to(entry)

    def add_distribution(self, name, version="1.9.1"):
        """Add the metadata of an installed distribution."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def add_package(self, name, code):
        (self.site / name).mkdir()
        (self.site / name / "__init__.py").write_text(code)

    def add_sitecustomize(self, code):
        """Add code that runs when Python starts."""
        (self.site / "sitecustomize.py").write_text(code)

    def add_cu112(self, without=()):
        """Add a fake mxnet-cu112, which needs the libraries of the real one, and its wheels."""
        self.add_package("mxnet", MXNET_STUB)
        self.add_distribution("mxnet-cu112")
        write_library(self.site / "mxnet" / "libmxnet.so", needed=[*CUDA_NEEDED, "libgomp.so.1", "libc.so.6"])
        for library in mxnet_and_cuda_libraries.LIBRARIES:
            if library.soname not in without:
                write_library(self.library_folder(library.folder) / library.soname)

    def library_folder(self, folder):
        return self.site / "nvidia" / folder / "lib"

    def run_python(self, *arguments, **variables):
        """Run the Python of this environment; return the finished process."""
        return subprocess.run(
            [str(self.folder / "bin" / "python"), *arguments], cwd=self.folder.parent,
            env=clean_environment(**variables), stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", timeout=600,
        )  # fmt: skip

    def run_doctor(self, *options, **variables):
        """Run python -m gluonlab.doctor --json; return the process and its report."""
        process = self.run_python("-m", "gluonlab.doctor", "--json", *options, **variables)
        return process, DoctorReport(process.stdout)


class DoctorReport:
    """The findings in the JSON output of the doctor."""

    def __init__(self, output):
        self.object = json.loads(output)
        self.findings = self.object["findings"]

    def findings_for(self, check, status=None):
        return [
            finding for finding in self.findings if finding["check"] == check and status in (None, finding["status"])
        ]

    def faults(self):
        return [finding for finding in self.findings if finding["status"] == "fault"]
