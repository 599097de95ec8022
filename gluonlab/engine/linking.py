"""What the dynamic linker says about a library that it cannot load, in words with a cause and a
cure.

For the engine, which sees such a message when MXNet cannot be imported, and for the doctor, which
asks the linker.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from gluonlab.engine.cuda import (
    LIBRARIES,
    WHEEL_OF,
    other_versions,
    search_path,
    wheel_of,
    wheel_path,
)
from gluonlab.engine.installing import pip_install

_LIBRARY = r"lib[\w+.-]+?\.so[.\d]*"
_MISSING = re.compile(
    rf"(?P<name>{_LIBRARY})(: cannot open shared object file(: "
    r"No such file or directory|$)| => not found)"
)
_CLOSED = re.compile(r"(?P<path>[^\s:]+): cannot open shared object file: (?P<why>[\w ]+)")
_UNMAPPED = re.compile(
    r"(?P<path>[^\s:]+): failed to map segment from shared object(: (?P<why>[\w ]+))?"
)
_EXECUTABLE_STACK = re.compile(r"(?P<path>[^\s:]+): cannot enable executable stack")
_STATIC_TLS = re.compile(r"(?P<path>[^\s:]+): cannot allocate memory in static TLS block")
_SYMBOL = re.compile(
    r"(?P<path>[^\s:]+): undefined symbol: (?P<what>[^\s,]+)(, version (?P<provider>[^\s)]+))?"
)
_VERSION = re.compile(r"(?P<path>[^\s:]+): version [`'](?P<what>[^']+)' not found")
_UNVERSIONED = re.compile(r"(?P<path>[^\s:]+): no version information available")
_DAMAGED = re.compile(
    r"(?P<path>/[^:]+): (?P<what>invalid ELF header|file too short|wrong ELF class[^\]]*|cannot "
    r"read[^\]]*)"
)


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
    barred = _barred(text)
    if barred:
        return barred
    damaged = _DAMAGED.search(text)
    if damaged:
        path = Path(damaged["path"])
        cause = f"{path} is no library for this machine ({damaged['what'].strip()})"
        return Complaint(path.name, cause, _replace(path, environ))
    version = _VERSION.search(text)
    if version:
        path = Path(version["path"])
        return Complaint(
            path.name, f"{path} is too old: it lacks {version['what']}", _replace(path, environ)
        )
    unversioned = _UNVERSIONED.search(text)
    if unversioned:
        path = Path(unversioned["path"])
        cause = f"{path} is not the library that its name says: its symbols have no versions"
        return Complaint(path.name, cause, _replace(path, environ))
    symbol = _SYMBOL.search(text)
    if symbol:
        return _lacks_symbol(Path(symbol["path"]), symbol["what"], symbol["provider"], environ)
    named = re.search(f"({_LIBRARY})", text)
    return Complaint(named[1], text, "install again what it belongs to") if named else None


def _barred(text: str) -> Optional[Complaint]:
    """A library that is there and whole, and that this process may not or cannot load."""
    closed = _CLOSED.search(text)
    if closed:
        denied = "denied" in closed["why"]
        cure = (
            f"make it readable for this user: ls -lL {closed['path']}"
            if denied
            else "cure that, and try again"
        )
        return Complaint(
            Path(closed["path"]).name,
            f"{closed['path']} cannot be opened: {closed['why'].strip()}",
            cure,
        )
    unmapped = _UNMAPPED.search(text)
    if unmapped:
        path = Path(unmapped["path"])
        cause = (
            f"{path} cannot be mapped into memory: "
            f"{(unmapped['why'] or 'no reason is given').strip()}"
        )
        return Complaint(
            path.name,
            cause,
            "if its disk is mounted noexec, install into a folder of another; else free memory",
        )
    stack = _EXECUTABLE_STACK.search(text)
    if stack:
        path = Path(stack["path"])
        cause = (
            f"{path} asks for an executable stack, which this system refuses since glibc 2.41 "
            "or by its SELinux"
        )
        return Complaint(path.name, cause, f"patchelf --clear-execstack {path}")
    late = _STATIC_TLS.search(text)
    if late:
        path = Path(late["path"])
        return Complaint(
            path.name,
            f"{path} was loaded too late",
            f"import gluonlab and mxnet first, or export LD_PRELOAD={path}",
        )
    return None


def cure_of_missing(name: str) -> str:
    """Where the library of this soname comes from."""
    if name.startswith("libcuda.so"):
        return (
            "it comes with the NVIDIA driver (450.80.02 or newer): install the driver, "
            f"or use the CPU build, pip uninstall -y mxnet-cu112; {pip_install('cpu')}"
        )
    if name in WHEEL_OF:
        return f"it comes with the wheel {WHEEL_OF[name]}: {_again(name) or pip_install('cu112')}"
    if name.startswith("libgomp"):
        return (
            "install the system's OpenMP library: apt-get install libgomp1 (Debian, Ubuntu) "
            "or dnf install libgomp"
        )
    return "find the package of your system that holds it, and install that"


def _again(name: str) -> str:
    """For a wheel that pip believes to be installed, but whose file is gone: pip would do nothing.

    Empty for others.
    """
    [library] = [library for library in LIBRARIES if library.soname == name]
    try:
        importlib.metadata.distribution(library.wheel)
    except importlib.metadata.PackageNotFoundError:
        return ""
    return (
        f"pip install --force-reinstall --no-deps {_pinned(library.wheel)}"
        if wheel_path(library) is None
        else ""
    )


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
        cause = f"{hidden[0]} is there, but the linker does not look into its folder"
        return Complaint(
            name, cause, f"{pip_install('cu112')}, or export LD_LIBRARY_PATH={hidden[0].parent}"
        )
    others = other_versions(name, environ)
    if not others:
        return Complaint(name, "", cure_of_missing(name))
    cause = f"{others[0]} is another version; {name} is the one that MXNet 1.9.1 was linked with"
    wheel = wheel_of(others[0])
    if wheel:  # the wheels for CUDA 12, and cuDNN 9's, use the same folders
        return Complaint(name, cause, f"pip install --force-reinstall --no-deps {_pinned(wheel)}")
    return Complaint(name, cause, cure_of_missing(name))


def _pinned(wheel: str) -> str:
    return f"'{wheel}<9'" if "cudnn" in wheel else wheel


def _lacks_symbol(
    user: Path, symbol: str, provider: Optional[str], environ: Mapping[str, str]
) -> Complaint:
    """``user`` wants a symbol that the library ``provider`` should have: that is another version of
    it.
    """
    provider = _MAKERS.get((provider or "").partition("_")[0], provider)
    if provider is None or not re.fullmatch(_LIBRARY, provider):
        return Complaint(
            user.name,
            f"{user} does not fit the other libraries: none has {symbol}",
            _replace(user, environ),
        )
    candidates = [folder / provider for folder in [*search_path(environ), user.parent]]
    found = next((path for path in candidates if path.is_file()), None)
    cause = f"{found or provider} is of another version than {user} needs: it lacks {symbol}"
    return Complaint(
        provider, cause, _replace(found, environ) if found else cure_of_missing(provider)
    )


def _replace(path: Path, environ: Mapping[str, str]) -> str:
    """How to get rid of this file."""
    where = origin(path, environ)
    if where == "LD_LIBRARY_PATH":
        return f"take {path.parent} out of LD_LIBRARY_PATH, or put libraries there that fit"
    if where == "wheel":
        wheel = wheel_of(path)
        return (
            f"pip install --force-reinstall --no-deps {_pinned(wheel)}, "
            "and pip uninstall what else put it there"
        )
    if where == "mxnet":
        return (
            "install MXNet again: pip install --force-reinstall --no-deps mxnet==1.9.1, "
            "or mxnet-cu112==1.9.1"
        )
    return "update the package of your system that holds it"
