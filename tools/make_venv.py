"""Program that makes a virtual environment with gluonlab, MXNet and their dependencies.

python3 make_venv.py DIR EXTRA...

Plain pip does the same on Python 3.8 to 3.12 (pip install '.[cpu]'). This script also does what a
package's metadata cannot say:

- Python 3.13 has no numpy that mxnet 1.9.1's metadata allows (numpy<2), but works with one that it
  does not allow;
- gluoncv asks for opencv-python, which needs the system's libGL; opencv-python-headless does not.

It runs under any Python that may be called python3, so that an unsupported Python gets an error
message in one line.
"""

from __future__ import print_function

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

OLDEST, NEWEST = (3, 8), (3, 14)
# installed as they are: their metadata no longer fits the world
RETIRED = ["mxnet", "mxnet-cu112", "gluoncv"]
REPLACEMENTS = {"opencv-python": "opencv-python-headless"}
# compiled against MXNet's library, and so installed last
COMPILED = {
    "horovod": {
        "HOROVOD_WITH_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
    }
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def fail(text):
    sys.stdout.flush()
    sys.exit("error: " + text)


def check_python():
    version = platform.python_version()
    if sys.version_info[:2] < OLDEST:
        fail(
            ("Python %s cannot run gluonlab: choose Python 3.8 to 3.14, for example with make run PYTHON=python3.11")
            % version
        )
    if sys.version_info[:2] > NEWEST:
        print("Python %s is newer than 3.14, the newest version that was tested with gluonlab" % version)
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail(
            (
                "this Python %s has no venv module: run apt-get install python%d.%d-venv (Debian, Ubuntu), or "
                "choose another Python, for example with make run PYTHON=python3.11"
            )
            % ((version,) + sys.version_info[:2])
        )


def check_platform(extras):
    """Stop on a platform for which MXNet 1.9.1 has no wheel, and say what to use instead."""
    system, machine = platform.system(), platform.machine()
    here = "%s on %s" % ("macOS" if system == "Darwin" else system, machine)
    if system == "Windows" or system.startswith(("CYGWIN", "MSYS", "MINGW")):
        fail(here + " cannot run gluonlab: install WSL 2 with wsl --install, and run the same command in WSL")
    if system == "Darwin" and machine == "arm64":
        fail(here + " cannot run gluonlab: MXNet 1.9.1 has no wheel for it; use a Linux container (docs/install.md)")
    if system == "Linux" and platform.libc_ver()[0] != "glibc":
        fail(here + " cannot run gluonlab without glibc: use Debian or Ubuntu, for example in a container")
    if (system, machine) not in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "x86_64")):
        fail(here + " cannot run gluonlab: MXNet 1.9.1 has wheels for x86-64 and ARM Linux, and for Intel Macs only")
    cuda = [extra for extra in extras if extra in ("cu112", "cuda11")]
    if cuda and (system, machine) != ("Linux", "x86_64"):
        fail("%s has no CUDA build of MXNet: use cpu in place of %s" % (here, cuda[0]))
    if system == "Darwin":
        print("gluonlab was not tested on macOS; a Linux container is recommended (docs/install.md)")


def run_command(*command):
    """Run a command; print its output only if it fails."""
    # pip and setuptools warn of the conflicts that this script resolves on purpose
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        wait(child)
        if child.returncode:
            output.seek(0)
            getattr(sys.stderr, "buffer", sys.stderr).write(output.read())
            sys.stderr.flush()
            fail("%s exited with status %d: see the lines above" % (" ".join(command[:5]), child.returncode))


def wait(child):
    """Wait for a process; show a spinner on a terminal."""
    turns = 0
    try:
        while child.poll() is None:
            if sys.stdout.isatty():
                sys.stdout.write("\r%s" % "|/-\\"[turns % 4])
                sys.stdout.flush()
            turns += 1
            time.sleep(0.1)
    finally:
        if sys.stdout.isatty():
            sys.stdout.write("\r \r")
            sys.stdout.flush()
        if child.poll() is None:  # Ctrl-C
            child.terminate()
            child.wait()


def folder_bytes(folder):
    """Return the size of all files below a folder."""
    total = 0
    for above, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(above, name)).st_size for name in names)
    return total


def is_complete_environment(python):
    """Return whether the environment of ``python`` exists and has pip."""
    # An interrupted installation has no pip; if the base Python was removed, nothing starts.
    try:
        with open(os.devnull, "wb") as nowhere:
            return subprocess.call([python, "-c", "import pip"], stderr=nowhere) == 0
    except OSError:
        return False


def pip_install(python, *arguments):
    # pip would warn of conflicts between the steps of the installation
    quiet = ("--disable-pip-version-check", "--no-warn-conflicts")
    run_command(python, "-m", "pip", "install", *(quiet + arguments))


# Runs in the new environment: prints what a distribution with these extras needs there, one
# requirement a line.
REQUIREMENTS = """
import email, importlib.metadata, sys, zipfile
from pip._vendor.packaging.requirements import Requirement

def metadata(name):
    if not name.endswith(".whl"):
        return importlib.metadata.metadata(name)
    with zipfile.ZipFile(name) as wheel:
        entry = next(entry for entry in wheel.namelist() if entry.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(entry))

for text in metadata(sys.argv[1]).get_all("Requires-Dist") or []:
    need = Requirement(text)
    extras = [""] + sys.argv[2:]
    if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
        need.marker = None
        print(need)
"""


def list_requirements(python, name, extras=()):
    output = subprocess.check_output([python, "-c", REQUIREMENTS, name] + list(extras))
    return output.decode("utf-8").split("\n")[:-1]


def project_name(requirement):
    name = requirement
    for mark in "<>=!~ [;(":
        name = name.split(mark)[0]
    return name.strip().lower().replace("_", "-")


def install_gluonlab(python, extras, wheels):
    pip_install(python, "--upgrade", "pip")
    # compat: a plain path in sys.path. Setuptools' own finder comes too late where a folder named
    # gluonlab lies in the current one
    pip_install(python, "--no-deps", "--editable", ROOT, "--config-settings", "editable_mode=compat")
    requirements = list_requirements(python, "gluonlab", extras)
    retired = [need for need in requirements if project_name(need) in RETIRED]
    download = ["pip", "download", "--disable-pip-version-check", "--no-deps", "--dest", wheels]
    run_command(python, "-m", *(download + retired))
    downloaded = [os.path.join(wheels, name) for name in sorted(os.listdir(wheels))]
    inherited = [need for wheel in downloaded for need in list_requirements(python, wheel)]
    fixed = set(project_name(need) for need in requirements)  # numpy above all: ours is the one that works
    compiled = [need for need in requirements if project_name(need) in COMPILED]
    needs = [need for need in requirements if need not in retired + compiled]
    needs += [REPLACEMENTS.get(project_name(need), need) for need in inherited if project_name(need) not in fixed]
    pip_install(python, *needs)
    pip_install(python, "--no-deps", *downloaded)
    for need in compiled:
        os.environ.update(build_settings(project_name(need)))
        os.environ["HOROVOD_CMAKE"] = os.path.abspath(os.path.join(os.path.dirname(python), "cmake"))
        # a wheel in pip's cache may be of another MXNet, or of none
        pip_install(python, "--no-deps", "--no-build-isolation", "--no-cache-dir", need)


def build_settings(name):
    """Return the environment variables of a build; HOROVOD_WITH_MPI=1 builds Horovod over MPI."""
    settings = dict(COMPILED[name])
    if name == "horovod" and os.environ.get("HOROVOD_WITH_MPI") == "1":
        del settings["HOROVOD_WITH_GLOO"], settings["HOROVOD_WITHOUT_MPI"]
        settings["HOROVOD_WITHOUT_GLOO"] = "1"
    return settings


def main():
    check_python()
    check_platform(sys.argv[2:])
    if len(sys.argv) < 2:
        fail(
            "the folder is missing: use python3 make_venv.py DIR EXTRA..., such as python3 tools/make_venv.py .venv "
            "cpu test"
        )
    began = time.time()
    folder, extras = sys.argv[1], sys.argv[2:]
    python = os.path.join(folder, "bin", "python")
    if not is_complete_environment(python):
        print("creating %s with Python %s" % (folder, platform.python_version()))
        sys.stdout.flush()
        # the Python that it was made with
        gone = os.path.islink(python) and not os.path.exists(python)
        run_command(sys.executable, "-m", "venv", folder, *["--clear"] * gone)
    print("installing gluonlab[%s] into %s (the first time takes some minutes)" % (",".join(extras), folder))
    sys.stdout.flush()
    wheels = tempfile.mkdtemp(prefix="gluonlab-wheels-")
    try:
        install_gluonlab(python, extras, wheels)
    except KeyboardInterrupt:
        fail("interrupted: run the same command again to continue")
    finally:
        shutil.rmtree(wheels)
    # A library of the system that MXNet needs and a slim image may lack, or the driver: gluonlab
    # says what to install.
    code = (
        "import gluonlab, sys\ntry:\n import mxnet\nexcept gluonlab.errors.EngineError as e: sys.exit('error: %s' % e)"
    )
    status = subprocess.call([python, "-c", code])
    if not status:
        size = folder_bytes(folder) / 1e6
        print("%s is ready: %.0f s, %.0f MB" % (folder, time.time() - began, size))
    sys.exit(status)


if __name__ == "__main__":
    main()
