"""The dynamic linker's messages about libraries that it cannot load, with causes and cures.

For the engine, which sees such a message when MXNet cannot be imported, and for the doctor, which
asks the linker.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from gluonlab.engine.mxnet_installation import (
    AGAIN,
    LIBRARIES,
    WHEEL_OF,
    other_versions,
    pip_install,
    search_path,
    wheel_of,
    wheel_path,
)
from gluonlab.host.out_of_memory import memory_limit

# what MXNet needs of the system, and the packages of Debian and Red Hat that hold it
SYSTEMS = {"libgomp": ("libgomp1", "libgomp"), "libquadmath": ("libquadmath0", "libquadmath")}
_LIBRARY = r"lib[\w+.-]+?\.so[.\d]*"
_PATH = r"(?P<path>[^\s:]+): "
_MISSING = re.compile(
    rf"(?P<name>{_LIBRARY})(: cannot open shared object file(: "
    r"No such file or directory|$)| => not found)"
)
_SYMBOL = re.compile(
    rf"{_PATH}undefined symbol: (?P<what>[^\s,]+)(, version (?P<provider>[^\s)]+))?"
)
# What the linker says of a library that is there, the cause, and the cure; without one the file has
# to be replaced.
_COMPLAINTS = (
    (_PATH + r"cannot open shared object file: (?P<why>[\w ]*denied[\w ]*)",
     "{path} cannot be opened: {why}", "make it readable for this user: ls -lL {path}"),
    (_PATH + r"cannot open shared object file: (?P<why>[\w ]+)",
     "{path} cannot be opened: {why}", "fix that, and try again"),
    (_PATH + r"failed to map segment from shared object(: (?P<why>[\w ]+))?",
     "{path} cannot be mapped into memory: {why}",
     "if its disk is mounted noexec, install into a folder of another; "
     "else free memory, or raise its limit"),
    (_PATH + "cannot enable executable stack",
     "{path} needs an executable stack, which glibc 2.41 and newer, or SELinux, refuses",
     "patchelf --clear-execstack {path}"),
    (_PATH + "cannot allocate memory in static TLS block",
     "{path} was loaded too late", "import gluonlab and mxnet first, or export LD_PRELOAD={path}"),
    (r"(?P<path>/[^:]+): "
     r"(?P<why>invalid ELF header|file too short|wrong ELF class[^\]]*|cannot read[^\]]*)",
     "{path} is not a library for this machine ({why})", ""),
    (_PATH + r"version [`'](?P<why>[^']+)' not found", "{path} is too old: it lacks {why}", ""),
    (_PATH + "no version information available",
     "{path} is not the library that its name says: its symbols have no versions", ""),
)  # fmt: skip


# Whose symbols have versions of another name than the library's own.
_MAKERS = {
    "GLIBCXX": "libstdc++.so.6", "CXXABI": "libstdc++.so.6", "GOMP": "libgomp.so.1",
    "OMP": "libgomp.so.1", "GCC": "libgcc_s.so.1",
}  # fmt: skip
SYSTEM_CUDA = Path("/usr/local")  # where NVIDIA's own packages put cuda-11.2 and the like


class Complaint(NamedTuple):
    """The library that is at fault, why, and what to do."""

    library: str
    cause: str
    cure: str


def understand(message: str, environ: Mapping[str, str] = os.environ) -> Optional[Complaint]:
    """What a message of ld.so means; None when it is not about a library."""
    text = " ".join(message.split())
    missing = _MISSING.search(text)
    if missing:
        return _missing(missing["name"], environ)
    for pattern, cause, cure in _COMPLAINTS:
        match = re.search(pattern, text)
        if match:
            path = Path(match["path"])
            words = {"why": memory_limit() or "no reason is given", "path": path}
            words.update((name, said.strip()) for name, said in match.groupdict().items() if said)
            cure = cure.format(**words) if cure else _replace(path, environ)
            return Complaint(path.name, cause.format(**words), cure)
    symbol = _SYMBOL.search(text)
    if symbol:
        return _lacks_symbol(Path(symbol["path"]), symbol["what"], symbol["provider"], environ)
    named = re.search(f"({_LIBRARY})", text)
    return Complaint(named[1], text, "reinstall the package that holds it") if named else None


def cure_of_missing(name: str) -> str:
    """Where the library of this soname comes from."""
    if name.startswith("libcuda.so"):
        cure = "it comes with the NVIDIA driver (450.80.02 or newer): install the driver, "
        return f"{cure}or use the CPU build, pip uninstall -y mxnet-cu112; {pip_install('cpu')}"
    if name in WHEEL_OF:
        return f"it comes with the wheel {WHEEL_OF[name]}: {_again(name) or pip_install('cu112')}"
    for library, (deb, rpm) in SYSTEMS.items():
        if name.startswith(library):
            return f"apt-get install {deb} (Debian, Ubuntu) or dnf install {rpm}"
    return "install the package of your system that holds it"


def _again(name: str) -> str:
    """The cure for a wheel that pip believes to be installed, but whose file is gone; or empty."""
    [library] = [library for library in LIBRARIES if library.soname == name]
    try:
        importlib.metadata.distribution(library.wheel)
    except importlib.metadata.PackageNotFoundError:
        return ""
    return "" if wheel_path(library) else _reinstall(library.wheel)


def origin(path: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Where the linker found a library: ``LD_LIBRARY_PATH``, ``wheel``, ``mxnet`` or ``system``."""
    folder = path.parent
    if wheel_of(path):
        return "wheel"
    if any(folder == other or _same(folder, other) for other in search_path(environ)):
        return "LD_LIBRARY_PATH"
    return "mxnet" if folder.name == "mxnet" else "system"


def _same(folder: Path, other: Path) -> bool:
    try:
        return folder.samefile(other)
    except OSError:
        return False


def _missing(name: str, environ: Mapping[str, str]) -> Complaint:
    hidden = sorted(SYSTEM_CUDA.glob(f"cuda*/lib64/{name}")) if name in WHEEL_OF else []
    if hidden:
        cause = f"{hidden[0]} exists, but the linker does not search its folder"
        cure = f"{pip_install('cu112')}, or export LD_LIBRARY_PATH={hidden[0].parent}"
        return Complaint(name, cause, cure)
    others = other_versions(name, environ)
    if not others:
        return Complaint(name, "", cure_of_missing(name))
    cause = f"{others[0]} is another version; {name} is the one that MXNet 1.9.1 was linked with"
    wheel = wheel_of(others[0])  # the wheels for CUDA 12, and cuDNN 9's, use the same folders
    return Complaint(name, cause, _reinstall(wheel) if wheel else cure_of_missing(name))


def _reinstall(wheel: str) -> str:
    pinned = f"'{wheel}<9'" if "cudnn" in wheel else wheel
    return f"pip install --force-reinstall --no-deps {pinned}"


def _lacks_symbol(
    user: Path, symbol: str, provider: Optional[str], environ: Mapping[str, str]
) -> Complaint:
    """``user`` needs a symbol that another version of the library ``provider`` has."""
    provider = _MAKERS.get((provider or "").partition("_")[0], provider)
    if provider is None or not re.fullmatch(_LIBRARY, provider):
        cause = f"{user} does not fit the other libraries: none of them has {symbol}"
        return Complaint(user.name, cause, _replace(user, environ))
    candidates = [folder / provider for folder in [*search_path(environ), user.parent]]
    path = next((path for path in candidates if path.is_file()), None)
    cause = f"{path or provider} is not the version that {user} needs: it lacks {symbol}"
    cure = _replace(path, environ) if path else cure_of_missing(provider)
    return Complaint(provider, cause, cure)


def _replace(path: Path, environ: Mapping[str, str]) -> str:
    """How to get rid of this file."""
    where = origin(path, environ)
    if where == "LD_LIBRARY_PATH":
        return f"take {path.parent} out of LD_LIBRARY_PATH, or put matching libraries there"
    if where == "wheel":
        return (
            f"{_reinstall(wheel_of(path))}, and pip uninstall any other package that put it there"
        )
    if where == "mxnet":
        return AGAIN
    return "update the package of your system that holds it"
