"""Stand-in libraries in place of Arm Performance Libraries, loaded by the dynamic linker of this machine."""

import ctypes
import re
import struct
from pathlib import Path

import mxnet as mx
import pytest
from support.elf_files import code_that_returns, write_library

from gluonlab.engine import arm_libraries, cpu_threads
from gluonlab.engine.arm_libraries import FUNCTIONS, find_openblas_functions, load_stand_in_library
from gluonlab.engine.mxnet_and_cuda_libraries import needs_arm_libraries
from gluonlab.errors import EngineError

SETUP = Path(__file__).resolve().parents[2] / "setup.py"
# A C program's libraries share one namespace, so each test uses sonames of its own.
LIBC = ctypes.CDLL(None)


def write_openblas(path, prefix="", functions=FUNCTIONS, first=0):
    """Write a library whose functions return ``first``, ``first + 1``, ..."""
    codes = {f"{prefix}{name}": code_that_returns(first + i) for i, name in enumerate(functions)}
    return write_library(path, functions=codes)


def call(address):
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


@pytest.fixture(autouse=True)
def no_system_libraries(monkeypatch):
    """The machine that runs the tests may have OpenBLAS."""
    monkeypatch.setattr(arm_libraries, "SYSTEM_LIBRARIES", ())


def test_a_library_that_needs_a_missing_soname_uses_the_functions_of_this_process(tmp_path):
    user = write_library(tmp_path / "libuser1.so", needed=["libnowhere1.so"], undefined=["cblas_here"])
    with pytest.raises(OSError, match=r"libnowhere1\.so: cannot open"):
        ctypes.CDLL(str(user))
    address = ctypes.cast(LIBC.getpid, ctypes.c_void_p).value
    load_stand_in_library("libnowhere1.so", {"another": 1, "cblas_here": address, "last": 2})
    assert ctypes.CDLL(str(user)).cblas_here() == LIBC.getpid()


def test_a_function_that_the_stand_in_library_lacks_is_still_missing(tmp_path):
    user = write_library(tmp_path / "libuser2.so", needed=["libnowhere2.so"], undefined=["absent_function"])
    load_stand_in_library("libnowhere2.so", {})
    with pytest.raises(OSError, match="undefined symbol: absent_function"):
        ctypes.CDLL(str(user))


def test_all_arm_libraries_are_replaced_by_the_wheel(tmp_path, monkeypatch):
    names = tuple(f"libnowhere3{letter}.so" for letter in "abc")
    monkeypatch.setattr(arm_libraries, "ARM_LIBRARIES", names)
    user = write_library(tmp_path / "libuser3.so", needed=names, undefined=FUNCTIONS)
    write_openblas(tmp_path / "site" / arm_libraries.WHEEL_LIBRARY, "scipy_")
    arm_libraries.load_arm_libraries(["", str(tmp_path / "empty"), str(tmp_path / "site")])
    library = ctypes.CDLL(str(user))
    assert [library[name]() for name in FUNCTIONS] == list(range(len(FUNCTIONS)))


def test_openblas_computes_with_the_threads_of_a_device(monkeypatch):
    numbers = []
    set_number = ctypes.CFUNCTYPE(None, ctypes.c_int)(numbers.append)
    address = ctypes.cast(set_number, ctypes.c_void_p).value
    monkeypatch.setattr(arm_libraries, "ARM_LIBRARIES", ("libnowhere8.so",))
    monkeypatch.setattr(cpu_threads, "needs_arm_libraries", lambda: True)
    load_stand_in_library("libnowhere8.so", {"openblas_set_num_threads": address})
    for devices, threads in ((1, 2), (2, 1), (1, 1)):
        cpu_threads.set_threads([mx.cpu(number) for number in range(devices)], threads)
    assert numbers == [2, 1, 1]


def test_installed_arm_libraries_are_used(tmp_path, monkeypatch):
    installed = [str(write_library(tmp_path / f"libinstalled{i}.so")) for i in range(3)]
    monkeypatch.setattr(arm_libraries, "ARM_LIBRARIES", installed)
    arm_libraries.load_arm_libraries([])  # would raise, because there is no OpenBLAS


def test_the_first_wheel_on_the_path_comes_before_the_system(tmp_path, monkeypatch):
    system = [
        str(write_openblas(tmp_path / "libsystem4.so", functions=FUNCTIONS[:20])),
        str(write_openblas(tmp_path / "liblapacke4.so", functions=FUNCTIONS[20:], first=20)),
    ]
    monkeypatch.setattr(arm_libraries, "SYSTEM_LIBRARIES", system)
    assert [call(find_openblas_functions([])[name]) for name in FUNCTIONS] == list(range(len(FUNCTIONS)))
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        write_openblas(folder / arm_libraries.WHEEL_LIBRARY, "scipy_", first=1000 * (number + 1))
    assert call(find_openblas_functions(list(map(str, folders)))[FUNCTIONS[0]]) == 1000


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_damaged_or_incomplete_wheel_does_not_hide_the_system(tmp_path, monkeypatch, content):
    monkeypatch.setattr(arm_libraries, "SYSTEM_LIBRARIES", [str(write_openblas(tmp_path / "libsystem5.so"))])
    wheel = write_openblas(tmp_path / arm_libraries.WHEEL_LIBRARY, "scipy_", FUNCTIONS[1:], first=500)
    if content is not None:
        wheel.write_bytes(content)
    assert call(find_openblas_functions([str(tmp_path)])[FUNCTIONS[3]]) == 3


def test_without_openblas_one_line_names_both_ways_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(arm_libraries, "ARM_LIBRARIES", ("libnowhere6.so",))
    monkeypatch.setattr(
        arm_libraries, "SYSTEM_LIBRARIES", [str(write_openblas(tmp_path / "lib6.so", functions=FUNCTIONS[:-1]))]
    )
    with pytest.raises(EngineError) as caught:
        arm_libraries.load_arm_libraries([str(tmp_path)])
    message = str(caught.value)
    assert "\n" not in message and FUNCTIONS[-1] in message
    assert "pip install scipy-openblas32==" in message and "apt-get install libopenblas0 liblapacke" in message


def test_a_linker_that_adds_the_load_address_is_refused(monkeypatch):
    """Like glibc before 2.28."""
    address_of = arm_libraries._address_of
    monkeypatch.setattr(arm_libraries, "_address_of", lambda *arguments: address_of(*arguments) + 0x7F0000000000)
    with pytest.raises(EngineError, match=r"needs glibc 2\.28 or newer"):
        load_stand_in_library("libnowhere7.so", {"cblas_sgemm": 4096})


def test_the_message_and_setup_py_name_the_same_wheel():
    [requirement] = re.findall(r'^OPENBLAS = "(.+);', SETUP.read_text(encoding="utf-8"), re.M)
    assert requirement == arm_libraries.OPENBLAS_WHEEL


@pytest.mark.parametrize(
    ("machine", "system", "needed"),
    [("aarch64", "linux", True), ("x86_64", "linux", False), ("arm64", "darwin", False)],
)
def test_only_arm_linux_needs_arm_libraries(machine, system, needed):
    assert needs_arm_libraries(system, machine) is needed


def test_the_library_for_arm_differs_only_in_the_machine():
    ours, arms = (arm_libraries.make_stand_in_library("liba.so", {"f": 1}, name) for name in ("x86_64", "aarch64"))
    machine_at = 18  # e_machine, in every ELF header
    assert struct.unpack_from("<H", arms, machine_at) == (183,)
    assert ours[:machine_at] + ours[machine_at + 2 :] == arms[:machine_at] + arms[machine_at + 2 :]
