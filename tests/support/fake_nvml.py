"""Fake NVML: the functions of pynvml that the doctor calls, for a description of GPUs.

Tests pass it to `gluonlab.gpu.nvml.query_nvml`, or write it as pynvml.py into a temporary
environment, where the process of the doctor imports it.
"""

import json
from types import SimpleNamespace

V100, A100, T4, K80, H100, RTX = (
    ("Tesla V100-SXM2-16GB", (7, 0)),
    ("NVIDIA A100-SXM4-40GB", (8, 0)),
    ("Tesla T4", (7, 5)),
    ("Tesla K80", (3, 7)),
    ("NVIDIA H100 80GB HBM3", (9, 0)),
    ("NVIDIA GeForce RTX 3090", (8, 6)),
)
# The NVLinks of p3.16xlarge.
CUBE = {
    (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 5): 2, (2, 3): 2, (4, 7): 2, (5, 6): 2, (6, 7): 2,
    (0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (5, 7): 1,
}  # fmt: skip
GIB = 2**30


class NVMLError(Exception):
    """The error that pynvml raises."""


class FakeNvml:
    """The fake of the module pynvml.

    Args:
        kinds: (name, compute capability) of each GPU.
        driver: the version of the driver.
        nvlinks: {(GPU, GPU): number of links}.
        switched: whether all links lead to switches.
        used: {GPU: bytes in use}.
        processes: {GPU: [(pid, name, bytes)]}.
        no_peers: pairs of GPUs without peer access.
        process_list_versions: the versions of the process list that the driver knows.
        error: the text of the error of nvmlInit.
        as_bytes: whether strings are bytes, as in old releases of pynvml.
        memory_bytes: the memory of each GPU.
        bus: the PCI bus id of each GPU.
        silent: {GPU: the text of the error of its handle}.
        untold: GPUs whose memory query is an error.
        parts: {GPU: UUIDs of its MIG parts}.
        hidden: GPUs that this container does not see.
        apart: {(GPU, GPU): level of their common PCIe ancestor}.
    """

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 36
    NVML_FEATURE_ENABLED = 1
    NVML_P2P_CAPS_INDEX_WRITE = 1
    NVML_P2P_STATUS_OK = 0
    NVML_NVLINK_DEVICE_TYPE_GPU = 0
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(
        self, kinds=(), driver="535.183.01", nvlinks=None, switched=False, used=None,
        processes=None, no_peers=(), process_list_versions=(2, 3), error=None, as_bytes=False,
        memory_bytes=16 * GIB, bus=None, silent=None, untold=(), parts=None, hidden=(), apart=None,
    ):  # fmt: skip
        self.apart = apart or {}
        self.silent, self.untold, self.parts = silent or {}, untold, parts or {}
        self.kinds, self.driver, self.error = kinds, driver, error
        self.used, self.processes, self.memory_bytes = used or {}, processes or {}, memory_bytes
        self.no_peers = {frozenset(pair) for pair in no_peers}
        self.versions, self.as_bytes = process_list_versions, as_bytes
        self.open = 0
        self.buses = bus or [f"00000000:00:{0x17 + i:02X}.0" for i in range(len(kinds))]
        self.links = [[] for _ in kinds]
        for (a, b), count in (nvlinks or {}).items():
            self.links[a] += [self.buses[b]] * count
            self.links[b] += [self.buses[a]] * count
        if switched:
            self.links = [["00000000:00:05.0"] * 12 for _ in kinds]
        self.shown = [gpu for gpu in range(len(kinds)) if gpu not in hidden]

    def _text(self, text):
        return text.encode() if self.as_bytes else text

    def nvmlInit(self):  # noqa: N802
        if self.error:
            raise NVMLError(self.error)
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return self._text(self.driver)

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.shown)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index in self.silent:
            raise NVMLError(self.silent[index])
        return self.shown[index]

    def nvmlDeviceGetName(self, gpu):  # noqa: N802
        return self._text(self.kinds[gpu][0])

    def nvmlDeviceGetUUID(self, gpu):  # noqa: N802
        return self._text(gpu if isinstance(gpu, str) else f"GPU-{gpu}fa5d8d9-0000-0000-0000-00000000000{gpu}")

    def nvmlDeviceGetCudaComputeCapability(self, gpu):  # noqa: N802
        return tuple(self.kinds[gpu][1])

    def nvmlDeviceGetPciInfo(self, gpu):  # noqa: N802
        return SimpleNamespace(busId=self._text(self.buses[gpu]))

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        if gpu in self.untold:
            raise NVMLError("Insufficient Permissions")
        return SimpleNamespace(total=self.memory_bytes, used=self.used.get(gpu, GIB // 2))

    def _process_list(self, gpu, version):
        if version not in self.versions:
            raise NVMLError("Function Not Found")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, _, used in self.processes.get(gpu, ())]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu):  # noqa: N802
        return self._process_list(gpu, 3)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu):  # noqa: N802
        return self._process_list(gpu, 2)

    def nvmlSystemGetProcessName(self, pid):  # noqa: N802
        names = {other: name for listed in self.processes.values() for other, name, _ in listed if name}
        if pid not in names:
            raise NVMLError("Not Found")
        return self._text(names[pid])

    def nvmlDeviceGetNvLinkState(self, gpu, link):  # noqa: N802
        if not self.links[gpu]:
            raise NVMLError("Not Supported")
        if link >= 18:
            raise NVMLError("Invalid Argument")
        return int(link < len(self.links[gpu]))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, link):  # noqa: N802
        return SimpleNamespace(busId=self._text(self.links[gpu][link]))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, link):  # noqa: N802
        at_a_gpu = self.links[gpu][link] in self.buses
        return self.NVML_NVLINK_DEVICE_TYPE_GPU if at_a_gpu else self.NVML_NVLINK_DEVICE_TYPE_SWITCH

    def nvmlDeviceGetMigMode(self, gpu):  # noqa: N802
        if tuple(self.kinds[gpu][1]) < (8, 0):
            raise NVMLError("Not Supported")
        return [int(gpu in self.parts)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, number):  # noqa: N802
        if number >= len(self.parts[gpu]):
            raise NVMLError("Not Found")
        return self.parts[gpu][number]

    def nvmlDeviceGetP2PStatus(self, one, other, index):  # noqa: N802
        assert index == self.NVML_P2P_CAPS_INDEX_WRITE
        return 4 if frozenset((one, other)) in self.no_peers else 0

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):  # noqa: N802
        pair = (min(one, other), max(one, other))
        if pair not in self.apart:
            raise NVMLError("Not Supported")
        return self.apart[pair]


def fake_driver(*kinds, **description):
    """Return the Driver of a fake machine, through JSON like the answer of the doctor's process."""
    from gluonlab.gpu import nvml  # inside: the import must not run if this module is pynvml

    fake = FakeNvml(kinds, **description)
    answer = json.loads(json.dumps(nvml.query_nvml(fake)))
    assert fake.open == 0  # NVML is closed again
    return nvml.Driver.from_answer(answer)


def only_finding(findings):
    assert len(findings) == 1, findings
    return findings[0]


def finding_statuses(findings):
    return [finding.status for finding in findings]


NAMES = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]


def write_pynvml(folder, **description):
    """Write a module pynvml of a fake machine into ``folder``; it imports from tests/."""
    lines = [
        "import json; from support import fake_nvml",
        f"nvml = fake_nvml.FakeNvml(**json.loads({json.dumps(json.dumps(description))}))",
    ]
    (folder / "pynvml.py").write_text("\n".join([*lines, *[f"{name} = nvml.{name}" for name in NAMES]]) + "\n")
