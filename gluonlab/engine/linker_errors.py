"""Finds the causes of the dynamic linker's errors about shared libraries, and their fixes.

The error messages come from a failed import of MXNet, or from the checks of ``gluonlab doctor``.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from gluonlab.engine.mxnet_and_cuda_libraries import (
    LIBRARIES,
    REINSTALL_MXNET,
    WHEEL_BY_SONAME,
    find_other_versions,
    ld_library_path_folders,
    owning_wheel,
    path_in_wheel,
    pip_install_command,
)
from gluonlab.host.out_of_memory import memory_limit

# System libraries that MXNet needs, and their packages in Debian and in Red Hat.
SYSTEM_PACKAGES = {"libgomp": ("libgomp1", "libgomp"), "libquadmath": ("libquadmath0", "libquadmath")}
_LIBRARY_PATTERN = r"lib[\w+.-]+?\.so[.\d]*"
_PATH_PATTERN = r"(?P<path>[^\s:]+): "
_MISSING_LIBRARY = re.compile(
    rf"(?P<name>{_LIBRARY_PATTERN})(: cannot open shared object file(: "
    r"No such file or directory|$)| => not found)"
)
_UNDEFINED_SYMBOL = re.compile(rf"{_PATH_PATTERN}undefined symbol: (?P<what>[^\s,]+)(, version (?P<provider>[^\s)]+))?")
# Errors about an existing library: the pattern of the linker's message, the cause, and the fix. If
# the fix is empty, the file has to be replaced.
_FILE_ERRORS = (
    (_PATH_PATTERN + r"cannot open shared object file: (?P<why>[\w ]*denied[\w ]*)",
     "{path} cannot be opened: {why}", "make it readable for this user: ls -lL {path}"),
    (_PATH_PATTERN + r"cannot open shared object file: (?P<why>[\w ]+)",
     "{path} cannot be opened: {why}", "fix that, and try again"),
    (_PATH_PATTERN + r"failed to map segment from shared object(: (?P<why>[\w ]+))?",
     "{path} cannot be mapped into memory: {why}",
     "if its disk is mounted noexec, install into a folder on another disk; otherwise free "
     "memory, or raise the memory limit"),
    (_PATH_PATTERN + "cannot enable executable stack",
     "{path} needs an executable stack, which glibc 2.41 and newer, or SELinux, do not allow",
     "patchelf --clear-execstack {path}"),
    (_PATH_PATTERN + "cannot allocate memory in static TLS block",
     "{path} was loaded too late", "import gluonlab and mxnet first, or export LD_PRELOAD={path}"),
    (r"(?P<path>/[^:]+): "
     r"(?P<why>invalid ELF header|file too short|wrong ELF class[^\]]*|cannot read[^\]]*)",
     "{path} is not a library for this machine ({why})", ""),
    (_PATH_PATTERN + r"version [`'](?P<why>[^']+)' not found",
     "{path} is too old: it does not contain {why}", ""),
    (_PATH_PATTERN + "no version information available",
     "{path} is a different library than its name suggests: its symbols have no versions", ""),
)  # fmt: skip


# The library of a symbol's version, for versions that do not begin with the library's name. For
# example, the version GLIBCXX_3.4 belongs to libstdc++.so.6.
_LIBRARY_BY_VERSION_PREFIX = {
    "GLIBCXX": "libstdc++.so.6", "CXXABI": "libstdc++.so.6", "GOMP": "libgomp.so.1",
    "OMP": "libgomp.so.1", "GCC": "libgcc_s.so.1",
}  # fmt: skip
SYSTEM_CUDA_ROOT = Path("/usr/local")  # NVIDIA's packages install cuda-11.2 and others here


class LinkerDiagnosis(NamedTuple):
    """The faulty library's name, the cause of the error, and the fix (``cure``), all as text."""

    library: str
    cause: str
    cure: str


def diagnose_linker_error(message: str, environ: Mapping[str, str] = os.environ) -> Optional[LinkerDiagnosis]:
    """Return the diagnosis for an error message of ld.so; None if the message names no library.

    ``environ``: the environment variables, of which only LD_LIBRARY_PATH is read
    """
    text = " ".join(message.split())
    missing = _MISSING_LIBRARY.search(text)
    if missing:
        return _diagnose_missing_library(missing["name"], environ)
    for pattern, cause, cure in _FILE_ERRORS:
        match = re.search(pattern, text)
        if match:
            path = Path(match["path"])
            fields = {"why": memory_limit() or "no reason is given", "path": path}
            fields.update((name, text.strip()) for name, text in match.groupdict().items() if text)
            cure = cure.format(**fields) if cure else _replacement_fix(path, environ)
            return LinkerDiagnosis(path.name, cause.format(**fields), cure)
    symbol = _UNDEFINED_SYMBOL.search(text)
    if symbol:
        return _diagnose_missing_symbol(Path(symbol["path"]), symbol["what"], symbol["provider"], environ)
    library = re.search(_LIBRARY_PATTERN, text)
    if library is None:
        return None
    return LinkerDiagnosis(library[0], text, "reinstall the package that contains it")


def missing_library_fix(name: str) -> str:
    """Return text with the command that installs the library with the soname ``name``."""
    if name.startswith("libcuda.so"):
        cure = "install the NVIDIA driver (450.80.02 or newer), which contains it, "
        cpu = pip_install_command("cpu")
        return f"{cure}or use the CPU build: pip uninstall -y mxnet-cu112; {cpu}"
    if name in WHEEL_BY_SONAME:
        cure = _reinstall_lost_wheel(name) or pip_install_command("cu112")
        return f"install the wheel {WHEEL_BY_SONAME[name]}, which contains it: {cure}"
    for library, (deb, rpm) in SYSTEM_PACKAGES.items():
        if name.startswith(library):
            return f"apt-get install {deb} (Debian, Ubuntu) or dnf install {rpm}"
    return "install the package of your system that contains it"


def _reinstall_lost_wheel(name: str) -> str:
    """Return the command that reinstalls a library's wheel if its file is missing, else ""."""
    [library] = [library for library in LIBRARIES if library.soname == name]
    try:
        importlib.metadata.distribution(library.wheel)
    except importlib.metadata.PackageNotFoundError:
        return ""
    return "" if path_in_wheel(library) else _reinstall_command(library.wheel)


def library_origin(path: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the origin of a library: ``LD_LIBRARY_PATH``, ``wheel``, ``mxnet`` or ``system``."""
    folder = path.parent
    if owning_wheel(path):
        return "wheel"
    if any(folder == other or _is_same_folder(folder, other) for other in ld_library_path_folders(environ)):
        return "LD_LIBRARY_PATH"
    return "mxnet" if folder.name == "mxnet" else "system"


def _is_same_folder(folder: Path, other: Path) -> bool:
    """Check if two paths lead to the same folder.

    Return False if one of the paths does not exist.
    """
    try:
        return folder.samefile(other)
    except OSError:
        return False


def _diagnose_missing_library(name: str, environ: Mapping[str, str]) -> LinkerDiagnosis:
    """Return the diagnosis for a library that the linker has not found.

    The library may be in a folder that the linker does not search, or only another version of the
    library may be installed.
    """
    hidden = sorted(SYSTEM_CUDA_ROOT.glob(f"cuda*/lib64/{name}")) if name in WHEEL_BY_SONAME else []
    if hidden:
        cause = f"{hidden[0]} exists, but the linker does not search its folder"
        cure = f"{pip_install_command('cu112')}, or export LD_LIBRARY_PATH={hidden[0].parent}"
        return LinkerDiagnosis(name, cause, cure)
    others = find_other_versions(name, environ)
    if not others:
        return LinkerDiagnosis(name, "", missing_library_fix(name))
    cause = f"{others[0]} is another version, but MXNet 1.9.1 needs {name}"
    # The wheels for CUDA 12 and cuDNN 9 install into the same folders as the wheels for CUDA 11.
    wheel = owning_wheel(others[0])
    return LinkerDiagnosis(name, cause, _reinstall_command(wheel) if wheel else missing_library_fix(name))


def _reinstall_command(wheel: str) -> str:
    pinned = f"'{wheel}<9'" if "cudnn" in wheel else wheel
    return f"pip install --force-reinstall --no-deps {pinned}"


def _diagnose_missing_symbol(
    user: Path, symbol: str, provider: Optional[str], environ: Mapping[str, str]
) -> LinkerDiagnosis:
    """Return the diagnosis for a library that needs a symbol missing from all libraries.

    Args:
        user: the library that needs the symbol
        symbol: the missing symbol
        provider: the library that should contain the symbol, or the symbol's version such as
            ``GLIBCXX_3.4``; None if the message names neither
        environ: the environment variables, of which only LD_LIBRARY_PATH is read
    """
    provider = _LIBRARY_BY_VERSION_PREFIX.get((provider or "").partition("_")[0], provider)
    if provider is None or not re.fullmatch(_LIBRARY_PATTERN, provider):
        cause = f"{user} does not fit the other libraries: none of them contains {symbol}"
        return LinkerDiagnosis(user.name, cause, _replacement_fix(user, environ))
    candidates = [folder / provider for folder in [*ld_library_path_folders(environ), user.parent]]
    path = next((path for path in candidates if path.is_file()), None)
    cause = f"{path or provider} is not the version that {user} needs: it does not contain {symbol}"
    cure = _replacement_fix(path, environ) if path else missing_library_fix(provider)
    return LinkerDiagnosis(provider, cause, cure)


def _replacement_fix(path: Path, environ: Mapping[str, str]) -> str:
    """Return advice on how to replace the library ``path``, depending on the library's origin."""
    origin = library_origin(path, environ)
    if origin == "LD_LIBRARY_PATH":
        return f"remove {path.parent} from LD_LIBRARY_PATH, or put matching libraries there"
    if origin == "wheel":
        command = _reinstall_command(owning_wheel(path))
        return f"{command}, and pip uninstall any other package that installed it"
    if origin == "mxnet":
        return REINSTALL_MXNET
    return "update the package of your system that contains it"
