"""Start-up file of Python that makes Linux look like macOS on Intel, for tests/host/test_macos.py.

Python imports this file first if its folder is in PYTHONPATH. The file removes what macOS lacks:
/proc, /sys and /dev/shm, functions of the C library and of Python's modules, and OpenMP, which
MXNet's wheel for macOS does not use. MXNet itself remains the one for Linux.
"""

import builtins
import ctypes
import errno
import fcntl
import io
import os
import platform
import signal
import sys
import sysconfig
import types

LINUX_FOLDERS = ("/proc", "/sys", "/dev/shm", "/opt/ml")
# of Linux or glibc only, by manual page
LINUX_FUNCTIONS = {
    "prctl", "mallopt", "malloc_trim", "quick_exit", "__cxa_at_quick_exit", "__fpurge", "__register_atfork",
    "sched_getaffinity", "gnu_get_libc_version",
}  # fmt: skip
LINUX_LIBRARIES = {"libgomp.so.1", "libstdc++.so.6", "libcuda.so.1", "libnvidia-ml.so.1"}
# as in Python's own documentation of macOS
LINUX_NAMES = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "memfd_create", "waitid", "pipe2", "posix_fadvise", "posix_fallocate",
        "copy_file_range", "splice", "eventfd", "pidfd_open", "getxattr", "setxattr", "O_TMPFILE", "O_PATH", "O_DIRECT",
        "getrandom",
    ),
    signal: ("sigtimedwait", "sigwaitinfo", "SIGPWR", "SIGRTMIN", "SIGRTMAX", "pidfd_send_signal"),
}  # fmt: skip


def _check_path(path):
    """Raise FileNotFoundError for a path in a folder that only Linux has."""
    if isinstance(path, int) or not hasattr(os, "fsdecode"):
        return
    text = os.path.normpath(os.fsdecode(path))
    if text.startswith(LINUX_FOLDERS) and any(text == name or text.startswith(name + "/") for name in LINUX_FOLDERS):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)


def _hide_folders(module, name):
    """Make a function, whose first argument is a path, fail for folders of Linux."""
    function = getattr(module, name)

    def check_and_call(path=".", *arguments, **options):
        _check_path(path)
        return function(path, *arguments, **options)

    setattr(module, name, check_and_call)


class _MacLibrary(ctypes.CDLL):
    """A shared library without the functions of LINUX_FUNCTIONS, and without LINUX_LIBRARIES."""

    def __init__(self, name, *arguments, **options):
        if name in LINUX_LIBRARIES:
            raise OSError(f"dlopen({name}, 0x0006): tried: '{name}' (no such file)")
        super().__init__(name, *arguments, **options)

    def __getattr__(self, name):
        if name in LINUX_FUNCTIONS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)

    def __getitem__(self, name):
        if name in LINUX_FUNCTIONS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getitem__(name)


def _ioctl(file, request, *arguments):
    """Reject Linux's requests for addresses of network interfaces."""
    if request == 0x8915:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
    return _linux_ioctl(file, request, *arguments)


_linux_ioctl = fcntl.ioctl

for _module, _names in LINUX_NAMES.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
for _module, _name in [
    (builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "lstat"), (os, "listdir"), (os, "scandir"),
    (os, "access"), (os, "readlink"), (os, "statvfs"),
]:  # fmt: skip
    _hide_folders(_module, _name)
sysconfig.get_config_vars()  # of this Python, which was built for Linux
ctypes.CDLL = _MacLibrary
fcntl.ioctl = _ioctl
sys.platform = "darwin"
platform.system = lambda: "Darwin"
platform.libc_ver = lambda *arguments: ("", "")
platform.mac_ver = lambda *arguments: ("14.6", ("", "", ""), "x86_64")
# Modules that urllib and ipykernel import on macOS.
_proxies, _naps = types.ModuleType("_scproxy"), types.ModuleType("appnope")
_proxies._get_proxies = _proxies._get_proxy_settings = dict
_naps.nope = lambda: None
sys.modules.update(_scproxy=_proxies, appnope=_naps)
