// Kernels: what nvcc puts into a program about them, and their launches.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "errors.h"
#include "kernels/table.h"

using namespace gpus;

namespace {

// Never destroyed: threads of streams and of MXNet go on while the process ends.
std::mutex& lock = *new std::mutex;
using Names = std::map<const void*, std::string>;  // by the host's function, which stands for the kernel
Names& mangled = *new Names;
Names& names = *new Names;

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

// Whether this launch is one that a forgetful GPU leaves out.
bool is_forgotten(int device) {
  constexpr int EVERY = 5;
  static std::atomic<int> launched;
  for (int gpu : machine().defects.forgetful)
    if (visible()[device] == gpu) return ++launched % EVERY == 0;
  return false;
}

// Whether libmxnet.so holds machine code for it: see gluonlab/doctor/check_gpus.py.
bool has_code(const Gpu& gpu) {
  return (gpu.major >= 5 && gpu.major <= 7) || (gpu.major == 8 && gpu.minor != 0 ? gpu.minor >= 6 : gpu.major == 8);
}

// Otherwise it is an error, after which MXNet's thread takes every launch for a failed one: it never forgets
// an error. Some of its kernels are launched for arrays without elements, with a grid without blocks.
bool may_be_launched(dim3 grid, dim3 block) {
  constexpr unsigned MOST_THREADS = 1024;  // of a block
  constexpr unsigned MOST_ROWS = 65535;    // of blocks along the second and third axis
  unsigned threads = block.x * block.y * block.z;
  return threads > 0 && threads <= MOST_THREADS && grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y <= MOST_ROWS &&
         grid.z <= MOST_ROWS;
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
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
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

cudaError_t cudaLaunchKernel(const void* host_function, dim3 grid, dim3 block, void** arguments, size_t,
                             cudaStream_t stream) {
  gpus::count(launches);
  const std::string& name = name_of(host_function);
  count_name(name);
  if (!has_code(gpu(current_device()))) return result(cudaErrorNoKernelImageForDevice);
  if (!may_be_launched(grid, block)) {
    fault("invalid configuration argument: a grid without blocks, or too many of them or of threads, for " + name);
    return cudaSuccess;
  }
  Work work = kernel_work(name, arguments, grid, block, current_device());
  if (!work)
    fault("unknown kernel: " + name);
  else if (machine().computes && !is_forgotten(current_device()))
    queue(stream, name, std::move(work));
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
}
