"""Program that checks gluonlab on Linux on ARM, in an emulated Debian system.

python tools/check_arm.py               run all checks
python tools/check_arm.py COMMAND...    run a command in the emulated system

The first run downloads Debian packages and wheels (about 200 MB), and unpacks them into
build/arm. Package scripts are not run. qemu-user-static emulates the processor, which takes about
30 times as long as the same program on this machine. This is not a test on real ARM hardware.

The program needs root, Debian, qemu-user-static and util-linux. It mounts file systems in a mount
namespace of its own, so that the mounts disappear with the emulated processes, even after Ctrl-C.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parents[1]
CACHE = CHECKOUT / "build" / "arm"
ROOT = CACHE / "root"
# make run and make test in a clone need the packages up to git.
DEBIAN_PACKAGES = [
    "base-files", "bash", "coreutils", "dash", "findutils", "grep", "sed", "procps", "util-linux", "ca-certificates",
    "python3", "python3-venv", "libgomp1", "libstdc++6", "make", "git",
]  # fmt: skip
SITE = "/opt/packages"  # wheels, in the emulated system
SOURCES = "/gluonlab"  # this checkout, in the emulated system
DEBIAN_VERSION = Path("/etc/debian_version")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
HANDLER = "qemu-aarch64"
QEMU = "/usr/bin/qemu-aarch64-static"
# The header of an ELF program or library for AArch64, in the kernel's notation
ELF_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
ELF_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# The arguments are the root folder, this checkout, and the command in the root folder.
RUN_IN_ROOT = f"""
set -e
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp"
mount --bind "$2" "$1{SOURCES}"
root=$1
shift 2
exec chroot "$root" "$@"
"""
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PYTHONPATH": f"{SOURCES}:{SITE}",
    "PYTHONPYCACHEPREFIX": "/var/cache/python",
    # As in a Raspberry Pi 5. qemu's default processor has SVE vectors of 512 bits, for which OpenBLAS
    # 0.3.29 has code for A64FX only. With that processor, cblas_ssyrk returns wrong results.
    "QEMU_CPU": "cortex-a76",
}
# About 10 seconds of tests on x86-64
TESTS = [
    "tests/engine/test_arm_libraries.py",
    "tests/engine/test_linear_algebra.py",
    "tests/engine/test_parameter_server_role.py",
    "tests/collectives/test_schedule_executor.py",
    "tests/collectives/test_executor_engine.py",
    "tests/kvstores/test_sharded_optimizer.py",
    "tests/bucketed_trainer/test_trainer.py",
]
TOLERANCE = 1e-5


def fail(text):
    sys.exit(f"error: {text}")


def check_system():
    """Exit with one line if this machine cannot run the emulation."""
    if platform.machine() == "aarch64":
        fail("this machine has an ARM processor, so nothing has to be emulated: use make test")
    if not DEBIAN_VERSION.exists() or shutil.which("apt-get") is None:
        fail("make check-arm needs Debian, whose packages it downloads for ARM")
    if os.geteuid() != 0:
        fail("make check-arm needs root for chroot and mount: run it as root, such as in a container with --privileged")
    if not Path(QEMU).exists():
        fail(f"there is no {QEMU}: apt-get install qemu-user-static")


@contextlib.contextmanager
def emulate_programs():
    """Make the kernel start AArch64 programs with qemu in the with block, if it does not already."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True)
    entry = BINFMT / HANDLER
    if entry.exists():
        yield
        return
    # F: the kernel opens qemu now, because the path does not exist in the root folder.
    (BINFMT / "register").write_text(f":{HANDLER}:M::{ELF_MAGIC}:{ELF_MASK}:{QEMU}:OCF")
    try:
        yield
    finally:
        entry.write_text("-1")


def debian_sources():
    """Return the file with this machine's Debian sources."""
    files = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    return next((file for file in files if file.exists()), files[0])


def wheel_requirements():
    """Return the requirements of gluonlab on ARM, with the packages of its tests."""
    environment = {"platform_machine": "aarch64", "python_version": "3.11", "extra": "cpu"}
    requirements = []
    for text in importlib.metadata.requires("gluonlab"):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            requirements.append(str(requirement))
    return [*requirements, "pytest>=7", "hypothesis>=6"]


def assemble_root():
    """Unpack Debian packages and wheels into ROOT, unless they are already there."""
    requirements = wheel_requirements()
    content = [*DEBIAN_PACKAGES, *requirements, debian_sources().read_text(encoding="utf-8")]
    stamp, wanted = CACHE / "stamp", hashlib.sha256("\n".join(content).encode()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(f"assembling {ROOT} (the first time takes a few minutes)", flush=True)
    stamp.unlink(missing_ok=True)
    if ROOT.exists():
        shutil.rmtree(ROOT)
    unpack_debian_packages()
    [python] = {path.name for path in (ROOT / "usr" / "bin").glob("python3.*") if path.name[8:].isdigit()}
    run_quietly(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", f"{ROOT}{SITE}", "--only-binary=:all:"]
        + [f"--platform={name}_aarch64" for name in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
        + [f"--python-version={python[6:]}", *requirements]
    )
    stamp.write_text(wanted, encoding="utf-8")


def unpack_debian_packages():
    """Download Debian packages for ARM with a private state of apt, and unpack them into ROOT."""
    apt = CACHE / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",  # apt's own user cannot write to this checkout
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "Dir::Etc::sourcelist": debian_sources(),
        "Dir::Etc::sourceparts": "-",
    }
    options = [f"-o={name}={value}" for name, value in settings.items()]
    run_quietly(["apt-get", *options, "update"])
    run_quietly(
        ["apt-get", *options, "install", "--yes", "--download-only", "--no-install-recommends", *DEBIAN_PACKAGES]
    )
    for package in sorted((apt / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(ROOT)], check=True)
    # What the packages' scripts would create
    for folder in ("proc", "sys", "dev", "tmp", "root", "var/cache/python", SOURCES[1:]):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
    if not (ROOT / "bin" / "sh").is_symlink():
        (ROOT / "bin" / "sh").symlink_to("dash")
    (ROOT / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    for file in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        (ROOT / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"/{file}", ROOT / file)


def run_quietly(command):
    """Run a command; print its output only if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.stderr.write(result.stdout + result.stderr)
        fail(f"{command[0]} exited with status {result.returncode}: see the lines above")


def run_emulated(command, **options):
    """Run a command in the emulated system, in the folder of this checkout."""
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", RUN_IN_ROOT, "sh"]
    change_folder = ["/bin/bash", "-c", f'cd {SOURCES} && exec "$@"', "bash"]
    command = [*enter, str(ROOT), str(CHECKOUT), *change_folder, *command]
    return subprocess.run(command, env=ENVIRONMENT, check=False, **options)


def check_losses():
    """Compare the losses of five training steps with the losses on this machine."""
    program = "tests/support/five_steps.py"
    expected = json.loads(subprocess.check_output([sys.executable, program], cwd=CHECKOUT))
    result = run_emulated(["python3", program], stdout=subprocess.PIPE)
    if result.returncode:
        return f"{program} exited with status {result.returncode}"
    losses = json.loads(result.stdout)
    pairs = [pair for steps in zip(losses, expected) for pair in zip(*steps)]
    largest = max(abs(ours - theirs) for ours, theirs in pairs)
    print(f"{len(pairs)} losses on two devices differ by at most {largest:.1e} from this machine's", flush=True)
    return "" if largest <= TOLERANCE else f"they may differ by at most {TOLERANCE}"


def check_doctor():
    """Check that the doctor reports no fault. Exit status 1 is a fault."""
    result = run_emulated(["python3", "-m", "gluonlab", "doctor"])
    return "" if result.returncode == 0 else f"the doctor exited with status {result.returncode}"


def check_tests():
    """Run the fast tests of the code that reduces gradients and updates the weights."""
    result = run_emulated(["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS])
    return "" if result.returncode == 0 else f"pytest exited with status {result.returncode}"


def main():
    check_system()
    assemble_root()
    with emulate_programs():
        if len(sys.argv) > 1:
            sys.exit(run_emulated(sys.argv[1:]).returncode)
        for check in (check_losses, check_doctor, check_tests):
            began = time.monotonic()
            problem = check()
            if problem:
                fail(problem)
            print(f"{check.__name__}: passed in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted")
