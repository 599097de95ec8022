// cuDNN's descriptors: what was set, as values that calls copy into what they queue.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <string>

#include "numbers.h"

namespace gpus {

constexpr int MOST_AXES = 5;

// An array (N, C, D, H, W): tensors and filters are brought to five axes,
// those that are not there of length 1.
struct Tensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int sizes[MOST_AXES] = {1, 1, 1, 1, 1};
  ptrdiff_t strides[MOST_AXES] = {};

  size_t elements() const;
  size_t bytes() const;     // from its first to behind its last element
  bool contiguous() const;  // elements follow each other, the last axis first
  size_t plane() const { return size_t(sizes[2]) * sizes[3] * sizes[4]; }  // D H W
};

bool same_sizes(const Tensor& a, const Tensor& b);
size_t size_of(cudnnDataType_t type);

// What moves over the axes D, H, W: the window of a pooling, or that of a convolution,
// whose sizes are the filter's.
struct Window {
  int sizes[3] = {1, 1, 1}, padding[3] = {}, strides[3] = {1, 1, 1}, dilations[3] = {1, 1, 1};
};

struct Convolution {
  Window window;
  int groups = 1;
  bool flips = false;  // CUDNN_CONVOLUTION: the filter is mirrored
  cudnnDataType_t computed = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

struct Pooling {
  cudnnPoolingMode_t mode = CUDNN_POOLING_MAX;
  Window window;
};

struct Activation {
  cudnnActivationMode_t mode = CUDNN_ACTIVATION_RELU;
  double limit = 0;
};

struct Dropout {
  float share = 0;  // that is dropped
  char* states = nullptr;
  size_t bytes = 0;
};

inline Tensor& described(cudnnTensorDescriptor_t it) { return *reinterpret_cast<Tensor*>(it); }
inline Tensor& described(cudnnFilterDescriptor_t it) { return *reinterpret_cast<Tensor*>(it); }
inline Convolution& described(cudnnConvolutionDescriptor_t it) { return *reinterpret_cast<Convolution*>(it); }
inline Pooling& described(cudnnPoolingDescriptor_t it) { return *reinterpret_cast<Pooling*>(it); }
inline Activation& described(cudnnActivationDescriptor_t it) { return *reinterpret_cast<Activation*>(it); }
inline Dropout& described(cudnnDropoutDescriptor_t it) { return *reinterpret_cast<Dropout*>(it); }

// cudnnCreate...Descriptor and cudnnDestroy...Descriptor, of what is set as values of a Kind.
#define DESCRIPTOR(Name, Kind)                                                   \
  cudnnStatus_t cudnnCreate##Name##Descriptor(cudnn##Name##Descriptor_t* made) { \
    *made = reinterpret_cast<cudnn##Name##Descriptor_t>(new Kind());             \
    return CUDNN_STATUS_SUCCESS;                                                 \
  }                                                                              \
  cudnnStatus_t cudnnDestroy##Name##Descriptor(cudnn##Name##Descriptor_t made) { \
    delete reinterpret_cast<Kind*>(made);                                        \
    return CUDNN_STATUS_SUCCESS;                                                 \
  }

// visit(CUDNN_DATA_HALF, [&](auto element) { ... }): with an element of it;
// false for types that are not there.
template <class Visitor> bool visit(cudnnDataType_t type, Visitor&& visitor) {
  if (type == CUDNN_DATA_HALF)
    visitor(half());
  else if (type == CUDNN_DATA_FLOAT)
    visitor(float());
  else if (type == CUDNN_DATA_DOUBLE)
    visitor(double());
  else
    return false;
  return true;
}

}  // namespace gpus
