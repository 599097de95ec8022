// Devices, and what they can do.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "errors.h"
#include "gpus.h"

using namespace gpus;

extern "C" {

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
  // CUDA writes four digits of the domain, NVML eight.
  snprintf(text, size, "%s", gpu(device).bus.c_str() + 4);
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
      fault("cudaDeviceGetAttribute is asked for attribute " + std::to_string(attribute) +
            ", which has no answer here");
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
  *value = attribute == cudaDevP2PAttrPerformanceRank         ? (links ? 0 : 1)
           : attribute == cudaDevP2PAttrNativeAtomicSupported ? links > 0
                                                              : may_be_peers(device, other);
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
  if (!exists(other)) return result(cudaErrorInvalidDevice);
  return result(enable_peer_access(current_device(), other));
}

cudaError_t cudaDeviceDisablePeerAccess(int other) {
  if (!exists(other)) return result(cudaErrorInvalidDevice);
  return result(disable_peer_access(current_device(), other));
}
}
