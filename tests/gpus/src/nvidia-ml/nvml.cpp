// libnvidia-ml.so.1: what gluonlab.gpu.nvml asks through nvidia-ml-py, of the same machine that CUDA shows.
// NVML counts all GPUs along their buses, whatever CUDA_VISIBLE_DEVICES says. Its header is in no wheel:
// names and layouts are those of pynvml.py.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "gpus.h"

using namespace gpus;

namespace {

enum Status {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  FUNCTION_NOT_FOUND = 13,
};

// nvmlDevice_t: the number of a GPU, and one, as nullptr is none.
using Handle = size_t;

struct PciInfo {  // nvmlPciInfo_t
  char legacy_bus[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct MemoryInfo {  // nvmlMemory_t
  unsigned long long total, free, used;
};

struct ProcessInfo {  // nvmlProcessInfo_v2_t, _v3_t
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

constexpr unsigned LINKS = 12, NONE = 0xFFFFFFFF;  // as many links as a GPU of this time has at most
constexpr int TO_A_GPU = 0, TOPOLOGY_NOT_SUPPORTED = 3;
constexpr int FIRST_WITH_VERSION_3 = 510;  // of the list of processes

int initialized = 0;

bool exists(Handle handle) { return handle >= 1 && handle <= machine().gpus.size(); }
const Gpu& gpu_of(Handle handle) { return machine().gpus[handle - 1]; }

Status text_into(char* buffer, unsigned size, const std::string& text) {
  if (text.size() >= size) return INSUFFICIENT_SIZE;
  memcpy(buffer, text.c_str(), text.size() + 1);
  return SUCCESS;
}

// The GPUs at the other ends of its links.
std::vector<int> neighbors(Handle handle) {
  std::vector<int> found;
  const std::vector<int>& links = machine().nvlinks[handle - 1];
  for (size_t other = 0; other < links.size(); other++) found.insert(found.end(), links[other], other);
  return found;
}

PciInfo pci_info(const Gpu& gpu) {
  PciInfo info = {};
  sscanf(gpu.bus.c_str(), "%x:%x:%x", &info.domain, &info.bus, &info.device);
  snprintf(info.legacy_bus, sizeof info.legacy_bus, "%s", gpu.bus.c_str() + 4);
  snprintf(info.bus_id, sizeof info.bus_id, "%s", gpu.bus.c_str());
  return info;
}

// What this process uses: of others nothing is known here.
size_t used(Handle handle) {
  for (size_t device = 0; device < visible().size(); device++)
    if (visible()[device] == static_cast<int>(handle) - 1) return bytes_in_use(device);
  return 0;
}

Status processes(Handle handle, unsigned* count, ProcessInfo* list) {
  if (!exists(handle)) return INVALID_ARGUMENT;
  unsigned there = used(handle) > 0, room = *count;
  *count = there;
  if (there > room) return INSUFFICIENT_SIZE;
  if (there) list[0] = {static_cast<unsigned>(getpid()), used(handle), NONE, NONE};
  return SUCCESS;
}

}  // namespace

extern "C" {

Status nvmlInitWithFlags(unsigned) {
  initialized++;
  return SUCCESS;
}

Status nvmlInit_v2() { return nvmlInitWithFlags(0); }

Status nvmlShutdown() {
  if (initialized == 0) return UNINITIALIZED;
  initialized--;
  return SUCCESS;
}

const char* nvmlErrorString(Status) { return "an error of the simulated GPUs"; }

Status nvmlSystemGetDriverVersion(char* version, unsigned size) {
  if (initialized == 0) return UNINITIALIZED;
  return text_into(version, size, machine().driver);
}

Status nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = newest_cuda();
  return SUCCESS;
}

Status nvmlSystemGetProcessName(unsigned pid, char* name, unsigned size) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::string program;
  if (!std::getline(file, program, '\0')) return NOT_FOUND;
  return text_into(name, size, program);
}

Status nvmlDeviceGetCount_v2(unsigned* count) {
  if (initialized == 0) return UNINITIALIZED;
  *count = machine().gpus.size();
  return SUCCESS;
}

Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  if (initialized == 0) return UNINITIALIZED;
  *handle = index + 1;
  return exists(*handle) ? SUCCESS : INVALID_ARGUMENT;
}

Status nvmlDeviceGetName(Handle handle, char* name, unsigned size) {
  return exists(handle) ? text_into(name, size, gpu_of(handle).name) : INVALID_ARGUMENT;
}

Status nvmlDeviceGetUUID(Handle handle, char* uuid, unsigned size) {
  return exists(handle) ? text_into(uuid, size, gpu_of(handle).uuid) : INVALID_ARGUMENT;
}

Status nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
  if (!exists(handle)) return INVALID_ARGUMENT;
  *info = pci_info(gpu_of(handle));
  return SUCCESS;
}

Status nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  if (!exists(handle)) return INVALID_ARGUMENT;
  *major = gpu_of(handle).major;
  *minor = gpu_of(handle).minor;
  return SUCCESS;
}

Status nvmlDeviceGetMemoryInfo(Handle handle, MemoryInfo* info) {
  if (!exists(handle)) return INVALID_ARGUMENT;
  size_t total = gpu_of(handle).memory;
  *info = {total, total - used(handle), used(handle)};
  return SUCCESS;
}

Status nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count, ProcessInfo* list) {
  return processes(handle, count, list);
}

Status nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfo* list) {
  if (atoi(machine().driver.c_str()) < FIRST_WITH_VERSION_3) return FUNCTION_NOT_FOUND;
  return processes(handle, count, list);
}

// Links and peers.

Status nvmlDeviceGetNvLinkState(Handle handle, unsigned link, unsigned* active) {
  if (!exists(handle)) return INVALID_ARGUMENT;
  if (neighbors(handle).empty()) return NOT_SUPPORTED;
  if (link >= LINKS) return INVALID_ARGUMENT;
  *active = link < neighbors(handle).size();
  return SUCCESS;
}

Status nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, unsigned link, PciInfo* info) {
  if (!exists(handle) || link >= neighbors(handle).size()) return INVALID_ARGUMENT;
  *info = pci_info(machine().gpus[neighbors(handle)[link]]);
  return SUCCESS;
}

Status nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, unsigned link, int* type) {
  if (!exists(handle) || link >= neighbors(handle).size()) return INVALID_ARGUMENT;
  *type = TO_A_GPU;
  return SUCCESS;
}

Status nvmlDeviceGetP2PStatus(Handle one, Handle other, int, int* status) {
  if (!exists(one) || !exists(other)) return INVALID_ARGUMENT;
  *status = machine().peers[one - 1][other - 1] ? SUCCESS : TOPOLOGY_NOT_SUPPORTED;
  return SUCCESS;
}

// No GPU here is divided.

Status nvmlDeviceGetMigMode(Handle handle, unsigned* present, unsigned* later) {
  if (!exists(handle)) return INVALID_ARGUMENT;
  if (gpu_of(handle).major < 8) return NOT_SUPPORTED;
  *present = *later = 0;
  return SUCCESS;
}
}
