// cuBLAS's handle.
#pragma once

#include <cublas_v2.h>

#include "library.h"

namespace gpus {

struct BlasHandle : Handle {
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};

inline BlasHandle& blas(cublasHandle_t handle) { return *reinterpret_cast<BlasHandle*>(handle); }

}  // namespace gpus
