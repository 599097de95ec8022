// How calls of the runtime end.
#pragma once

#include <cuda_runtime_api.h>

// What a call returns, and, unless it is success, what cudaGetLastError will tell this thread.
cudaError_t result(cudaError_t error);

// Whether there is such a device.
bool exists(int device);
