#include "errors.h"

#include "gpus.h"

namespace {

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool exists(int device) { return device >= 0 && device < static_cast<int>(gpus::visible().size()); }

extern "C" {

cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess                       ? "cudaSuccess"
         : error == cudaErrorNoKernelImageForDevice ? "cudaErrorNoKernelImageForDevice"
         : error == cudaErrorMemoryAllocation       ? "cudaErrorMemoryAllocation"
                                                    : "an error of the simulated GPUs";
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
}
