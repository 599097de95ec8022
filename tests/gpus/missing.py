"""python missing.py LIBRARY WANTED OBJECT...: functions that libmxnet.so wants of a library and no
object has, in C++.

Each is a fault when it is called, and returns what is no success for any library.
"""

import subprocess
import sys

NOT_SUPPORTED = {"libcudart.so.11.0": 801, "libcuda.so.1": 801, "libcudnn.so.8": 9, "libcublas.so.11": 15}


# The prefix of functions whose symbols have no version.
UNVERSIONED = {"libcuda.so.1": "cu", "libnccl.so.2": "nccl"}


def required_symbols(library, path):
    """Lines of nm: ``U cudaMalloc@libcudart.so.11.0``, ``U cuModuleLoadData``."""
    with open(path, encoding="utf-8") as lines:
        symbols = [line.split()[-1] for line in lines]
    prefix = UNVERSIONED.get(library)
    if prefix is not None:
        return {name for name in symbols if name.startswith(prefix) and "@" not in name and name[len(prefix)].isupper()}
    return {name.partition("@")[0] for name in symbols if name.endswith("@" + library)}


def defined_symbols(objects):
    if not objects:
        return set()
    lines = subprocess.run(
        ["nm", "--defined-only", *objects], stdout=subprocess.PIPE, check=True, encoding="utf-8"
    ).stdout
    return {line.split()[-1] for line in lines.splitlines() if line.strip() and not line.endswith(":")}


def main(library, path, *objects):
    print('extern "C" void gpus_missing(const char* name);')
    for name in sorted(required_symbols(library, path) - defined_symbols(objects)):
        status = NOT_SUPPORTED.get(library, 1)
        print(f'extern "C" long {name}() {{ gpus_missing("{name}"); return {status}; }}')


if __name__ == "__main__":
    main(*sys.argv[1:])
