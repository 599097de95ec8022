// Factors that cuBLAS reads from the host or, in another pointer mode, from the GPU, and the types of arrays.
#pragma once

#include "handle.h"
#include "numbers.h"

namespace gpus {

// alpha or beta. What lies on the host is read when the call is made,
// what lies on the GPU when its turn comes.
template <class T> class Scalar {
 public:
  Scalar(const Call& call, const BlasHandle& handle, const void* address) : address_(static_cast<const T*>(address)) {
    on_gpu_ = handle.pointers == CUBLAS_POINTER_MODE_DEVICE;
    if (on_gpu_)
      call.reaches(address, sizeof(T));
    else
      value_ = *address_;
  }

  Computed<T> value() const { return static_cast<Computed<T>>(on_gpu_ ? *address_ : value_); }

 private:
  const T* address_;
  T value_{};
  bool on_gpu_;
};

// visit_type(CUDA_R_16F, [&](auto element) { ... }): with an element of it;
// false for types that are not there.
template <class Visitor> bool visit_type(cudaDataType type, Visitor&& visitor) {
  if (type == CUDA_R_16F)
    visitor(half());
  else if (type == CUDA_R_32F)
    visitor(float());
  else if (type == CUDA_R_64F)
    visitor(double());
  else
    return false;
  return true;
}

// Bytes from the first to behind the last element of a matrix whose columns are `leading` elements apart.
template <class T> size_t extent(size_t rows, size_t columns, size_t leading) {
  return rows && columns ? ((columns - 1) * leading + rows) * sizeof(T) : 0;
}

}  // namespace gpus
