// libcusolver.so.11: handles, which every GPU context of MXNet makes. No decomposition is there.
#include <cusolverDn.h>

#include "library.h"

using namespace gpus;

extern "C" {

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  *handle = reinterpret_cast<cusolverDnHandle_t>(new Handle);
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
}
