"""The doctor's line about the platform: Linux, macOS, and Windows Subsystem for Linux (WSL)."""

from pathlib import Path

import pytest

from gluonlab.doctor import check_host, check_platform
from gluonlab.doctor.check_platform import Wsl
from gluonlab.doctor.findings import OK, WARNING

UBUNTU = {"WSL_DISTRO_NAME": "Ubuntu"}
WSL_1, WSL_2 = "4.4.0-22621-Microsoft\n", "5.15.153.1-microsoft-standard-WSL2\n"
DEBIAN = "6.1.0-28-amd64\n"
INTEROP = "sys/fs/binfmt_misc/WSLInterop"
MOUNTS = r"""none /usr/lib/wsl/drivers 9p ro,nosuid,nodev,noatime 0 0
/dev/sdc / ext4 rw,relatime,discard 0 0
none /mnt/wsl tmpfs rw,relatime 0 0
C:\134 /mnt/c 9p rw,noatime,dirsync,aname=drvfs;path=C:\134;uid=1000 0 0
/dev/sdd /mnt/c/linux ext4 rw,relatime 0 0
D:\134 /mnt/my\040disk drvfs rw,noatime 0 0
"""


def write_proc(folder, release, **files):
    """Write a folder like /proc with the kernel's release; return it. ``files``: name -> content."""
    for name, content in {"sys/kernel/osrelease": release, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("release", "files", "environ", "expected"),
    [
        (DEBIAN, {}, {}, None),
        (WSL_2, {}, UBUNTU, Wsl(2, "Ubuntu")),
        ("4.19.104-microsoft-standard\n", {}, UBUNTU, Wsl(2, "Ubuntu")),
        (WSL_1, {}, UBUNTU, Wsl(1, "Ubuntu")),
        (WSL_2, {}, {}, Wsl(2, "")),  # a container
        ("6.6.1-my-own-kernel\n", {INTEROP: "enabled"}, UBUNTU, Wsl(2, "Ubuntu")),
        ("6.6.1-my-own-kernel\n", {f"{INTEROP}-late": "enabled"}, UBUNTU, Wsl(2, "Ubuntu")),
        (DEBIAN, {}, UBUNTU, None),  # the variable alone may be copied from another machine
    ],
)
def test_wsl_is_recognized_by_its_kernel(tmp_path, release, files, environ, expected):
    assert check_platform.find_wsl(write_proc(tmp_path, release, **files), environ) == expected


def test_a_system_without_proc_is_not_wsl(tmp_path):
    assert check_platform.find_wsl(tmp_path / "missing", UBUNTU) is None


@pytest.mark.parametrize(
    ("system", "machine", "release", "status", "words"),
    [
        ("linux", "x86_64", DEBIAN, OK, "Linux on x86_64"),
        ("linux", "aarch64", DEBIAN, OK, "Linux on aarch64; gluonlab was tested there only in emulation"),
        ("linux", "x86_64", WSL_2, OK, "Linux on x86_64, in WSL 2 (Ubuntu); gluonlab was not tested there"),
        ("linux", "x86_64", WSL_1, WARNING, "Linux on x86_64, in WSL 1 (Ubuntu)"),
        ("darwin", "x86_64", DEBIAN, WARNING, "macOS on x86_64"),
    ],
)
def test_the_platform_is_named_with_what_was_not_tested(tmp_path, system, machine, release, status, words):
    proc = write_proc(tmp_path, release)
    [finding] = check_platform.check_platform({}, system, machine, proc, UBUNTU)
    assert (finding.status, finding.what) == (status, words)
    assert status == OK or ("not tested" in finding.cause and finding.cure)


@pytest.mark.parametrize(
    ("folder", "is_windows"),
    [
        ("/mnt/c", True), ("/mnt/c/Users/me/gluonlab", True), ("/mnt/my disk/runs", True),
        ("/mnt/cc", False), ("/mnt/c/linux/gluonlab", False), ("/mnt/wsl/x", False), ("/home/me", False), ("/", False),
    ],
)  # fmt: skip
def test_a_windows_drive_is_known_by_its_mount(tmp_path, folder, is_windows):
    proc = write_proc(tmp_path, WSL_2, **{"self/mounts": MOUNTS})
    assert check_platform.is_on_windows_drive(Path(folder), proc) is is_windows


def test_folders_on_a_windows_drive_are_listed_in_one_warning_only_in_wsl(tmp_path):
    folders = {
        "gluonlab": Path("/mnt/c/gluonlab"), "data sets": Path("/home/me/.cache/gluonlab"),
        "run directories": Path("/mnt/c/runs"),
    }  # fmt: skip
    proc = write_proc(tmp_path / "wsl", WSL_2, **{"self/mounts": MOUNTS})
    _, slow = check_platform.check_platform(folders, "linux", "x86_64", proc, UBUNTU)
    assert slow.status == WARNING
    assert slow.what == "on a Windows drive: gluonlab (/mnt/c/gluonlab), run directories (/mnt/c/runs)"
    assert "Linux home folder" in slow.cure
    proc = write_proc(tmp_path / "linux", DEBIAN, **{"self/mounts": MOUNTS})
    assert len(check_platform.check_platform(folders, "linux", "x86_64", proc, {})) == 1


def test_the_folders_are_those_of_gluonlab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = check_platform.used_folders()
    assert folders["run directories"] == tmp_path
    assert (folders["gluonlab"] / "gluonlab" / "doctor").is_dir()
    tmp_path.rmdir()
    assert "run directories" not in check_platform.used_folders()


@pytest.mark.parametrize(("release", "is_named"), [(WSL_2, True), (DEBIAN, False)])
def test_little_memory_names_the_limit_of_wsl(tmp_path, release, is_named):
    proc = write_proc(tmp_path, release, meminfo="MemTotal: 2000000 kB\nMemAvailable: 900000 kB\n")
    finding = check_host.check_memory(proc, tmp_path / "no-cgroup", UBUNTU)
    assert finding.status == WARNING and (".wslconfig" in finding.cure) is is_named
