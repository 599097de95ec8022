"""Throw-away environments: real ones of venv, in which every package is a link, but those that the
test wants otherwise.
"""

import json
import subprocess
import sysconfig
import venv
from pathlib import Path

from gluonlab.engine import mxnet_installation
from support.elf_files import write_library
from support.processes import clean_environment

INSTALLED = Path(sysconfig.get_path("purelib"))
NEVER_LINKED = ("gluonlab", "__editable__", "nvidia", "pynvml", "horovod")
# What mxnet-cu112's libmxnet.so names beside what the CPU build does.
CUDA_NEEDED = [
    "libcudnn.so.8", "libcuda.so.1", "libnccl.so.2", "libcudart.so.11.0", "libcufft.so.10",
    "libcublas.so.11", "libcusolver.so.11", "libcurand.so.10", "libnvrtc.so.11.2",
    "libnvToolsExt.so.1",
]  # fmt: skip
MXNET_STUB = """
import ctypes, pathlib, numpy
ctypes.CDLL(str(pathlib.Path(__file__).parent / "libmxnet.so"))
raise RuntimeError("the library of this test holds nothing")
"""


class VirtualEnvironment:
    """``without``: the packages, by the beginnings of their names, that are not linked into it."""

    def __init__(self, folder, without=()):
        self.folder = folder / "venv"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self.folder)
        [self.site] = self.folder.glob("lib/python*/site-packages")
        for entry in INSTALLED.iterdir():
            # the one .pth that is wanted: setuptools' distutils, which Python 3.12 dropped and
            # MXNet imports
            if (
                entry.suffix != ".pth" or entry.stem == "distutils-precedence"
            ) and not entry.name.lower().startswith((*NEVER_LINKED, *without)):
                (self.site / entry.name).symlink_to(entry)

    def add_distribution(self, name, version="1.9.1"):
        """What pip leaves of an installed distribution."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def add_package(self, name, code):
        (self.site / name).mkdir()
        (self.site / name / "__init__.py").write_text(code)

    def add_sitecustomize(self, code):
        """Done when Python starts."""
        (self.site / "sitecustomize.py").write_text(code)

    def add_cu112(self, without=()):
        """An mxnet-cu112 that needs the libraries of the real one and holds nothing, and the wheels
        that it comes with.
        """
        self.add_package("mxnet", MXNET_STUB)
        self.add_distribution("mxnet-cu112")
        write_library(
            self.site / "mxnet" / "libmxnet.so", needed=[*CUDA_NEEDED, "libgomp.so.1", "libc.so.6"]
        )
        for library in mxnet_installation.LIBRARIES:
            if library.soname not in without:
                write_library(self.wheel(library.folder) / library.soname)

    def wheel(self, folder):
        return self.site / "nvidia" / folder / "lib"

    def python(self, *arguments, **variables):
        """Run this environment's Python to its end."""
        return subprocess.run(
            [str(self.folder / "bin" / "python"), *arguments],
            cwd=self.folder.parent,
            env=clean_environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=600,
        )

    def doctor(self, *options, **variables):
        """python -m gluonlab.doctor --json: the ended process, and what it found."""
        ended = self.python("-m", "gluonlab.doctor", "--json", *options, **variables)
        return ended, DoctorReport(ended.stdout)


class DoctorReport:
    """The findings of a doctor that printed JSON."""

    def __init__(self, output):
        self.object = json.loads(output)
        self.findings = self.object["findings"]

    def of(self, check, status=None):
        return [
            found
            for found in self.findings
            if found["check"] == check and status in (None, found["status"])
        ]

    def faults(self):
        return [found for found in self.findings if found["status"] == "fault"]
