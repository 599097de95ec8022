// libcudart.so.11.0: what libmxnet.so asks of it, and of the compiler's hidden half of it.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/table.h"
#include "streams.h"

using namespace gpus;

namespace {

// Never destroyed: threads of streams and of MXNet go on while the process ends.
std::mutex& lock = *new std::mutex;
std::map<const void*, std::string>& mangled = *new std::map<const void*, std::string>;  // host function -> kernel
std::map<const void*, std::string>& names = *new std::map<const void*, std::string>;

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string found = text ? text : name;
  free(text);
  return found;
}

const std::string& name_of(const void* host_function) {
  std::lock_guard<std::mutex> guard(lock);
  std::string& name = names[host_function];
  if (name.empty()) name = demangled(mangled[host_function]);
  return name;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

thread_local std::vector<Configuration> configurations;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool exists(int device) { return device >= 0 && device < (int)visible().size(); }

// Count a copy by where it goes from and to.
void count_copy(int from, int to, size_t bytes) {
  if (from >= 0 && to >= 0 && from != to) {
    bool direct = peer_access(from, to) || peer_access(to, from);
    gpus::count(direct ? copies_direct : copies_staged);
    gpus::count(direct ? bytes_direct : bytes_staged, bytes);
    if (!direct && machine().promises_peers && may_be_peers(from, to))
      fault("a copy from gpu " + std::to_string(from) + " to gpu " + std::to_string(to) +
            " goes through the host, as no peer access is enabled");
  } else if (from >= 0 && to >= 0) {
    gpus::count(copies_within);
    gpus::count(bytes_within, bytes);
  } else if (to >= 0) {
    gpus::count(from == PINNED ? copies_from_pinned : copies_from_pageable);
    gpus::count(bytes_from_host, bytes);
  } else if (from >= 0) {
    gpus::count(copies_to_host);
    gpus::count(bytes_to_host, bytes);
  }
}

// Equal rows of bytes, `pitch` bytes from one to the next.
struct Rows {
  char* first;
  size_t pitch;
};

void copy_rows(Rows to, Rows from, size_t width, size_t height) {
  for (size_t row = 0; row < height; row++) memmove(to.first + row * to.pitch, from.first + row * from.pitch, width);
}

bool changes_copies(int source, int target) {
  if (source < 0 || target < 0) return false;
  for (auto [from, to] : machine().defects.copies)
    if (visible()[source] == from && visible()[target] == to) return true;
  return false;
}

// Whether this launch is one that a forgetful GPU leaves out.
bool is_forgotten(int device) {
  constexpr int EVERY = 5;
  static std::atomic<int> launched;
  for (int gpu : machine().defects.forgetful)
    if (visible()[device] == gpu) return ++launched % EVERY == 0;
  return false;
}

constexpr bool ON_ANY_DEVICE = true;

// From anywhere to anywhere, on a stream. A stream of any GPU may copy between any two.
cudaError_t copy(Rows to, Rows from, size_t width, size_t height, cudaStream_t stream) {
  if (width * height == 0) return cudaSuccess;
  int source = owner(from.first), target = owner(to.first);
  bool may_read = source < 0 || check_access(from.first, from.pitch * (height - 1) + width, source, "a copy");
  bool may_write = target < 0 || check_access(to.first, to.pitch * (height - 1) + width, target, "a copy");
  if (!may_read || !may_write) return cudaSuccess;
  count_copy(source, target, width * height);
  if (!machine().computes && (source >= 0 || target >= 0)) return cudaSuccess;
  if (source == PAGEABLE) {  // CUDA has read all of it when the call returns
    auto held = std::make_shared<std::vector<char>>(width * height);
    copy_rows({held->data(), width}, from, width, height);
    queue(stream, "a copy", [=] { copy_rows(to, {held->data(), width}, width, height); }, ON_ANY_DEVICE);
    return cudaSuccess;
  }
  bool changes = changes_copies(source, target);
  Work work = [=] {
    copy_rows(to, from, width, height);
    if (changes) *to.first ^= 1;
  };
  queue(stream, "a copy", std::move(work), ON_ANY_DEVICE);
  if (target == PAGEABLE) synchronise(stream);  // and has written all of it
  return cudaSuccess;
}

Rows rows(const void* first, size_t pitch = 0) { return {static_cast<char*>(const_cast<void*>(first)), pitch}; }

cudaError_t wait_for_default_stream(cudaError_t error) {
  synchronise(nullptr);
  return error;
}

// Whether libmxnet.so holds machine code for it: see gluonlab/doctor/gpus.py.
bool has_code(const Gpu& gpu) {
  return (gpu.major >= 5 && gpu.major <= 7) || (gpu.major == 8 && gpu.minor != 0 ? gpu.minor >= 6 : gpu.major == 8);
}

}  // namespace

extern "C" {

// What nvcc puts into a program: its kernels, each with the function of the host that stands for it.

void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(
    void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  std::lock_guard<std::mutex> guard(lock);
  mangled[host] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, static_cast<cudaStream_t>(stream)});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(
    const void* host_function, dim3 grid, dim3 block, void** arguments, size_t, cudaStream_t stream) {
  gpus::count(launches);
  const std::string& name = name_of(host_function);
  count_name(name);
  if (!has_code(gpu(current_device()))) return result(cudaErrorNoKernelImageForDevice);
  if (!machine().computes || is_forgotten(current_device())) return cudaSuccess;
  Work work = kernel_work(name, arguments, grid, block, current_device());
  if (work)
    queue(stream, name, std::move(work));
  else
    fault("unknown kernel: " + name);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  if (!has_code(gpu(current_device()))) return result(cudaErrorNoKernelImageForDevice);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = gpu(current_device()).major * 10;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

// Devices.

cudaError_t cudaGetDeviceCount(int* number) {
  *number = visible().size();
  return *number ? cudaSuccess : result(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  set_current_device(device);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = newest_cuda();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  snprintf(text, size, "%s", gpu(device).bus.c_str() + 4);  // CUDA writes four digits of the domain, NVML eight
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  switch (static_cast<int>(attribute)) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 80; break;
    case cudaDevAttrComputeCapabilityMajor: *value = gpu(device).major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = gpu(device).minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 98304; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 98304; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: *value = 65535; break;
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    default:
      fault("cudaDeviceGetAttribute is asked for attribute " + std::to_string(attribute) + ", which has no answer here");
      return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!exists(device)) return result(cudaErrorInvalidDevice);
  const Gpu& shown = gpu(device);
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "%s", shown.name.c_str());
  properties->totalGlobalMem = shown.memory;
  properties->major = shown.major;
  properties->minor = shown.minor;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerMultiprocessor = 98304;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->multiProcessorCount = 80;
  for (int axis = 0; axis < 3; axis++) {
    properties->maxThreadsDim[axis] = axis == 2 ? 64 : 1024;
    properties->maxGridSize[axis] = axis ? 65535 : 2147483647;
  }
  properties->textureAlignment = 512;
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = 6;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  if (!exists(device) || !exists(other)) return result(cudaErrorInvalidDevice);
  *can = may_be_peers(device, other);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device, int other) {
  if (!exists(device) || !exists(other)) return result(cudaErrorInvalidDevice);
  int links = machine().nvlinks[visible()[device]][visible()[other]];
  *value = attribute == cudaDevP2PAttrPerformanceRank ? (links ? 0 : 1)
           : attribute == cudaDevP2PAttrNativeAtomicSupported ? links > 0
                                                              : may_be_peers(device, other);
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
  if (!exists(other)) return result(cudaErrorInvalidDevice);
  return result(enable_peer_access(current_device(), other));
}

// Errors.

cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : error == cudaErrorNoKernelImageForDevice ? "cudaErrorNoKernelImageForDevice"
         : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "an error of the simulated GPUs";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {  // a real libcudart's words, which people search for
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
    case cudaErrorPeerAccessUnsupported: return "peer access is not supported between these two devices";
    default: return "an error of the simulated GPUs";
  }
}

// Memory.

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = gpu(current_device()).memory;
  *free = *total - bytes_in_use(current_device());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = allocate(bytes, current_device());
  return *address ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(address, *pitch * height);
}

cudaError_t cudaFree(void* address) {
  int device = owner(address);
  if (device >= 0) synchronise_device(device);  // as the real one does
  release(address);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = allocate_pinned(bytes);
  return *address ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* address) {
  release(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return wait_for_default_stream(copy(rows(to), rows(from), bytes, 1, nullptr));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(rows(to), rows(from), bytes, 1, stream);
}

cudaError_t cudaMemcpy2DAsync(
    void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind,
    cudaStream_t stream) {
  return copy(rows(to, to_pitch), rows(from, from_pitch), width, height, stream);
}

cudaError_t cudaMemcpyPeerAsync(
    void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream) {
  if (owner(to) != to_device || owner(from) != from_device)
    fault("cudaMemcpyPeerAsync is told gpu " + std::to_string(from_device) + " to gpu " + std::to_string(to_device) +
          ", and goes from " + std::to_string(owner(from)) + " to " + std::to_string(owner(to)));
  return copy(rows(to), rows(from), bytes, 1, stream);
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  gpus::count(memsets);
  if (check_access(address, bytes, current_device(), "cudaMemsetAsync") && machine().computes)
    queue(stream, "cudaMemsetAsync", [=] { memset(address, value, bytes); }, ON_ANY_DEVICE);
  return cudaSuccess;
}

// Streams and events.

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = make_stream(true);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = make_stream(flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  end_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  gpus::count(stream_synchronisations);
  synchronise(stream);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  gpus::count(device_synchronisations);
  synchronise_device(current_device());
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = make_event();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  end_event(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  record(event, stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  wait_for(stream, event);
  return cudaSuccess;
}
}
