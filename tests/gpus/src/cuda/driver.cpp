// libcuda.so.1: the driver, as far as MXNet and gluonlab ask it. It runs the kernels that NVRTC has compiled.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "fused_libraries.h"
#include "gpus.h"
#include "streams.h"

using namespace gpus;

// A module's kernels belong to the device that was current when it was loaded.
struct CUmod_st {
  int device;
  const FusedKernel* kernels;
  std::vector<std::unique_ptr<CUfunc_st>> functions;
};

struct CUfunc_st {
  int device;
  const FusedKernel* kernel;
};

namespace {

bool exists(int device) { return device >= 0 && device < (int)visible().size(); }

// PTX 7.4 came with CUDA 11.4, 8.2 with 12.2, and 6.5 with 10.2 (NVIDIA, PTX ISA, release history).
int newest_ptx() {
  int cuda = newest_cuda() / 10;  // 1104
  return cuda < 1100 ? 65 : (cuda / 100 - 4) * 10 + cuda % 100;
}

// The two numbers after a directive of PTX, ".version 7.8", as 78; 0: it is not there.
int number_after(const char* ptx, const char* directive) {
  const char* found = strstr(ptx, directive);
  int major = 0, minor = 0;
  if (found == nullptr || sscanf(found + strlen(directive), "%d.%d", &major, &minor) != 2) return 0;
  return major * 10 + minor;
}

int target_of(const char* ptx) {
  const char* found = strstr(ptx, ".target sm_");
  return found ? atoi(found + strlen(".target sm_")) : 0;
}

const FusedKernel* kernels_of(const char* ptx) {
  const char* mark = strstr(ptx, FUSED_MARK);
  if (mark == nullptr) {
    fault("PTX that the simulated NVRTC has not made, which nothing here can run");
    return nullptr;
  }
  mark += strlen(FUSED_MARK);
  return fused_kernels(fused_folder() + "/" + std::string(mark, strcspn(mark, "\n")) + ".so");
}

// The arguments' values, copied, and where each lies.
struct Arguments {
  std::vector<std::vector<char>> values;
  std::vector<void*> places;
};

std::shared_ptr<Arguments> copied(const FusedKernel& kernel, void** arguments) {
  auto copy = std::make_shared<Arguments>();
  for (int place = 0; place < kernel.count; place++) {
    auto* first = static_cast<char*>(arguments[place]);
    copy->values.emplace_back(first, first + kernel.argument(place, arguments).bytes);
  }
  for (std::vector<char>& value : copy->values) copy->places.push_back(value.data());
  return copy;
}

void check_pointers(const FusedKernel& kernel, void** arguments, int device) {
  for (int place = 0; place < kernel.count; place++) {
    FusedArgument argument = kernel.argument(place, arguments);
    if (!argument.pointer) continue;
    const void* address = *static_cast<void**>(arguments[place]);
    check_access(address, argument.reach, device, kernel.lowered);
    if (reinterpret_cast<size_t>(address) % argument.alignment)
      fault("misaligned address: " + std::string(kernel.lowered) + " reads " + std::to_string(argument.alignment) +
            " bytes at once");
  }
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return visible().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = newest_cuda();
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** words) {
  switch (error) {
    case CUDA_SUCCESS: *words = "no error"; break;
    case CUDA_ERROR_INVALID_VALUE: *words = "invalid argument"; break;
    case CUDA_ERROR_NO_DEVICE: *words = "no CUDA-capable device is detected"; break;
    case CUDA_ERROR_INVALID_DEVICE: *words = "invalid device ordinal"; break;
    case CUDA_ERROR_INVALID_IMAGE: *words = "device kernel image is invalid"; break;
    case CUDA_ERROR_INVALID_PTX: *words = "a PTX JIT compilation failed"; break;
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      *words = "the provided PTX was compiled with an unsupported toolchain.";
      break;
    case CUDA_ERROR_INVALID_HANDLE: *words = "invalid resource handle"; break;
    case CUDA_ERROR_NOT_FOUND: *words = "named symbol not found"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *words = "operation not supported"; break;
    default: *words = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Devices.

CUresult cuDeviceGetCount(int* count) {
  *count = visible().size();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!exists(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, size, "%s", gpu(device).name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) {
    *value = gpu(device).major;
  } else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) {
    *value = gpu(device).minor;
  } else {
    fault("cuDeviceGetAttribute is asked for attribute " + std::to_string(attribute) + ", which has no answer here");
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = reinterpret_cast<CUcontext>(static_cast<size_t>(device) + 1);
  return CUDA_SUCCESS;
}

// Kernels that were compiled at run time.

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  auto* ptx = static_cast<const char*>(image);
  int version = number_after(ptx, ".version ");
  if (version == 0) return CUDA_ERROR_INVALID_IMAGE;  // a cubin, which nobody here makes
  if (version > newest_ptx()) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  const Gpu& device = gpu(current_device());
  if (target_of(ptx) > device.major * 10 + device.minor) return CUDA_ERROR_INVALID_PTX;
  const FusedKernel* kernels = kernels_of(ptx);
  if (kernels == nullptr) return CUDA_ERROR_INVALID_PTX;
  *module = new CUmod_st{current_device(), kernels, {}};
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
  delete module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  for (const FusedKernel* kernel = module->kernels; kernel->expression != nullptr; kernel++) {
    if (strcmp(kernel->lowered, name)) continue;
    module->functions.push_back(std::make_unique<CUfunc_st>(CUfunc_st{module->device, kernel}));
    *function = module->functions.back().get();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned, CUstream stream, void** arguments, void**) {
  const FusedKernel& kernel = *function->kernel;
  count(fused_launches);
  count_name(kernel.expression);
  int device = device_of(stream);
  if (device != function->device) {
    fault(std::string(kernel.expression) + " was loaded on gpu " + std::to_string(function->device) +
          ", and is launched on a stream of gpu " + std::to_string(device));
    return CUDA_ERROR_INVALID_HANDLE;
  }
  check_pointers(kernel, arguments, device);
  if (!machine().computes) return CUDA_SUCCESS;
  auto run = kernel.run;
  auto values = copied(kernel, arguments);
  queue(stream, kernel.expression, [=] {
    const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    run(grid, block, values->places.data());
  });
  return CUDA_SUCCESS;
}
}
