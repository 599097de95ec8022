"""Start-up file of Python that makes Linux look like macOS on Intel, for tests/host/test_macos.py.

Python imports this file first if its folder is in PYTHONPATH. The file removes what macOS lacks:
/proc, /sys and /dev/shm, functions of the C library and of Python's modules, and OpenMP, which
MXNet's wheel for macOS does not use. It also imitates system calls that behave differently on
macOS (killpg, poll and getrusage), the names of network interfaces, and the limit on open files.
MXNet itself is still the build for Linux.
"""

import builtins
import ctypes
import errno
import fcntl
import io
import os
import platform
import resource
import select
import selectors
import signal
import socket
import stat
import sys
import sysconfig
import time
import types

LINUX_FOLDERS = ("/proc", "/sys", "/dev/shm", "/opt/ml")
# of Linux or glibc only, by manual page
LINUX_FUNCTIONS = {
    "prctl", "mallopt", "malloc_trim", "quick_exit", "__cxa_at_quick_exit", "__fpurge", "__register_atfork",
    "sched_getaffinity", "gnu_get_libc_version", "epoll_create1", "eventfd", "memfd_create", "gettid", "clearenv",
}  # fmt: skip
LINUX_LIBRARIES = {"libgomp.so.1", "libstdc++.so.6", "libcuda.so.1", "libnvidia-ml.so.1", "libc.so.6"}
# as in Python's own documentation of macOS
LINUX_NAMES = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setscheduler", "memfd_create", "waitid",
        "pipe2", "fdatasync", "posix_fadvise", "posix_fallocate", "copy_file_range", "splice", "eventfd", "pidfd_open",
        "getxattr", "setxattr", "listxattr", "removexattr", "getresuid", "setresuid", "unshare", "O_TMPFILE", "O_PATH",
        "O_DIRECT", "O_NOATIME", "getrandom", "RTLD_DEEPBIND",
    ),
    signal: (
        "sigtimedwait", "sigwaitinfo", "SIGPWR", "SIGPOLL", "SIGSTKFLT", "SIGCLD", "SIGRTMIN", "SIGRTMAX",
        "pidfd_send_signal",
    ),
    select: ("epoll",),
    selectors: ("EpollSelector",),
    resource: (
        "prlimit", "RUSAGE_THREAD", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_OFILE", "RLIMIT_RTPRIO", "RLIMIT_RTTIME",
        "RLIMIT_SIGPENDING",
    ),
    socket: ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_BINDTODEVICE", "SO_PEERCRED"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"),
    fcntl: ("F_GETPIPE_SZ", "F_SETPIPE_SZ", "F_ADD_SEALS", "F_GET_SEALS", "F_OFD_SETLK", "F_NOTIFY", "F_SETLEASE"),
}  # fmt: skip
OPEN_FILES = 256  # the default of ulimit -n on macOS
SIOCGIFADDR, MAC_SIOCGIFADDR = 0x8915, 0xC0206921  # the request for the address of an interface
LOOPBACK, MAC_LOOPBACK = "lo", "lo0"
REPLACED = (os.killpg, os.uname, fcntl.ioctl, select.poll, socket.if_nameindex, resource.getrusage, os.listdir, open)
linux_killpg, linux_uname, linux_ioctl, linux_poll, linux_nameindex, linux_rusage, linux_listdir, linux_open = REPLACED


class _WithoutLinuxFolders:
    """A function that fails if its first argument, a path, is in a folder that only Linux has.

    It is an instance of a class, because pathlib before Python 3.11 would make a method of a plain
    function.
    """

    def __init__(self, function):
        self.function = function

    def __call__(self, path=".", *arguments, **options):
        if not isinstance(path, int) and hasattr(os, "fsdecode"):
            text = os.path.normpath(os.fsdecode(path))
            if any(text == name or text.startswith(name + "/") for name in LINUX_FOLDERS):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return self.function(path, *arguments, **options)


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


class _MacPoll:
    """Reports POLLNVAL for devices other than terminals, such as /dev/null."""

    def __init__(self):
        self._poll = linux_poll()

    def __getattr__(self, name):
        return getattr(self._poll, name)

    def poll(self, *timeout):
        return [(fd, select.POLLNVAL if _is_device(fd) else event) for fd, event in self._poll.poll(*timeout)]


def _is_device(fd):
    try:
        return stat.S_ISCHR(os.fstat(fd).st_mode) and not os.isatty(fd)
    except OSError:  # closed
        return False


def _killpg(group, number):
    """Raise PermissionError if all processes of the group are zombies."""
    states = []
    for pid in filter(str.isdigit, linux_listdir("/proc")):
        try:
            with linux_open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                state, _, its_group = file.read().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended
            continue
        if int(its_group) == group:
            states.append(state)
    if states and set(states) == {"Z"}:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    linux_killpg(group, number)


def _ioctl(file, request, argument=0, *arguments):
    """Accept macOS's request for the address of a network interface, and reject Linux's request."""
    if request == SIOCGIFADDR:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
    if request == MAC_SIOCGIFADDR:
        name = argument[:16].rstrip(b"\0").decode()
        linux_name = LOOPBACK if name == MAC_LOOPBACK else name
        return linux_ioctl(file, SIOCGIFADDR, linux_name.encode().ljust(16, b"\0") + argument[16:])
    return linux_ioctl(file, request, argument, *arguments)


def _if_nameindex():
    return [(index, MAC_LOOPBACK if name == LOOPBACK else name) for index, name in linux_nameindex()]


def _getrusage(who):
    """Return the peak of this process's memory, the third number, in bytes.

    Linux reports this number in kibibytes, and includes the parent's peak before the start.
    """
    numbers = list(linux_rusage(who))
    if who == resource.RUSAGE_SELF:
        with linux_open("/proc/self/status", encoding="utf-8") as file:
            [kilobytes] = [line.split()[1] for line in file if line.startswith("VmHWM:")]
        numbers[2] = int(kilobytes) * 1024
    return resource.struct_rusage(numbers)


def _uname():
    return os.uname_result(("Darwin", linux_uname()[1], "23.6.0", "Darwin Kernel Version 23.6.0", "x86_64"))


for _module, _names in LINUX_NAMES.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
for _module, _name in [
    (builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "lstat"), (os, "listdir"), (os, "scandir"),
    (os, "access"), (os, "readlink"), (os, "statvfs"), (os, "chdir"), (os, "mkdir"),
]:  # fmt: skip
    setattr(_module, _name, _WithoutLinuxFolders(getattr(_module, _name)))
sysconfig.get_config_vars()  # of this Python, which was built for Linux
ctypes.CDLL = _MacLibrary
os.killpg, os.uname, fcntl.ioctl, select.poll = _killpg, _uname, _ioctl, _MacPoll
socket.if_nameindex, resource.getrusage = _if_nameindex, _getrusage
selectors.DefaultSelector = selectors.PollSelector  # macOS has KqueueSelector
_hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES if _hard < 0 else min(OPEN_FILES, _hard), _hard))
sys.platform = "darwin"
platform.system = lambda: "Darwin"
platform.libc_ver = lambda *arguments: ("", "")
platform.mac_ver = lambda *arguments: ("14.6", ("", "", ""), "x86_64")
# Modules that urllib and ipykernel import on macOS.
_proxies, _naps = types.ModuleType("_scproxy"), types.ModuleType("appnope")
_proxies._get_proxies = _proxies._get_proxy_settings = dict
_naps.nope = lambda: None
sys.modules.update(_scproxy=_proxies, appnope=_naps)
