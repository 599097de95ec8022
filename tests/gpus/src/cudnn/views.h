// Tensors of a call: checked when it is made, and read and written when its turn comes,
// in the numbers it computes in.
#pragma once

#include <memory>

#include "descriptors.h"
#include "library.h"

namespace gpus {

// alpha and beta: doubles for tensors of doubles, and floats for all others;
// 1 and 0 where they are not given.
struct Blend {
  double alpha = 1, beta = 0;

  Blend() = default;
  Blend(const void* alpha, const void* beta, cudnnDataType_t type)
      : alpha(read(alpha, type, 1)), beta(read(beta, type, 0)) {}

 private:
  static double read(const void* address, cudnnDataType_t type, double otherwise) {
    if (address == nullptr) return otherwise;
    return type == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(address) : *static_cast<const float*>(address);
  }
};

// visit each element: action(its place in the order N, C, D, H, W; its place in memory).
template <class Action> void for_each_element(const Tensor& tensor, Action action) {
  const int* size = tensor.sizes;
  const ptrdiff_t* stride = tensor.strides;
  size_t place = 0;
  for (int n = 0; n < size[0]; n++)
    for (int c = 0; c < size[1]; c++)
      for (int d = 0; d < size[2]; d++)
        for (int h = 0; h < size[3]; h++) {
          ptrdiff_t row = n * stride[0] + c * stride[1] + d * stride[2] + h * stride[3];
          for (int w = 0; w < size[4]; w++) action(place++, row + w * stride[4]);
        }
}

// The elements in the order N, C, D, H, W. A copy, where memory holds others, or in another order.
template <class T> class Input {
 public:
  Input(const Tensor& tensor, const void* address) {
    const T* memory = static_cast<const T*>(address);
    if constexpr (std::is_same_v<T, Computed<T>>)
      if (tensor.contiguous()) {
        values_ = memory;
        return;
      }
    copy_.reset(new Computed<T>[tensor.elements()]);
    values_ = copy_.get();
    for_each_element(tensor, [&](size_t place, ptrdiff_t at) { copy_[place] = static_cast<Computed<T>>(memory[at]); });
  }

  const Computed<T>* values() const { return values_; }

 private:
  const Computed<T>* values_;
  std::unique_ptr<Computed<T>[]> copy_;
};

// A place for results in the order N, C, D, H, W; write() brings them into memory: alpha times them,
// and beta times what is there.
template <class T> class Output {
 public:
  Output(const Tensor& tensor, void* address, Blend blend)
      : tensor_(tensor), memory_(static_cast<T*>(address)), blend_(blend) {
    if constexpr (std::is_same_v<T, Computed<T>>)
      if (blend.alpha == 1 && blend.beta == 0 && tensor.contiguous()) {
        values_ = memory_;
        return;
      }
    held_.reset(new Computed<T>[tensor.elements()]);
    values_ = held_.get();
  }

  Computed<T>* values() { return values_; }

  void write() {
    if (values_ == reinterpret_cast<Computed<T>*>(memory_)) return;
    Computed<T> alpha = blend_.alpha, beta = blend_.beta;
    for_each_element(tensor_, [&](size_t place, ptrdiff_t at) {
      Computed<T> value = alpha * values_[place];
      memory_[at] = static_cast<T>(beta == 0 ? value : value + beta * static_cast<Computed<T>>(memory_[at]));
    });
  }

 private:
  const Tensor& tensor_;
  T* memory_;
  Blend blend_;
  Computed<T>* values_;
  std::unique_ptr<Computed<T>[]> held_;
};

// A call of cuDNN.
class DnnCall : public Call {
 public:
  DnnCall(const char* name, cudnnHandle_t handle) : Call(name, *reinterpret_cast<Handle*>(handle)) {}

  // A fault, unless the call may reach all of the tensor there.
  void reaches(const Tensor& tensor, const void* address) const {
    if (address == nullptr) refuse("no address for a tensor");
    Call::reaches(address, tensor.bytes());
  }
  using Call::reaches;

  // A fault where two tensors that must have the same sizes have not.
  void match(const Tensor& a, const Tensor& b) const {
    if (!same_sizes(a, b) || a.type != b.type) refuse("tensors that do not match");
  }

  // Queue work(element), with an element of the type.
  template <class Typed> cudnnStatus_t does_with(cudnnDataType_t type, Typed work) const {
    visit(type, [&](auto element) { does([work, element] { work(element); }); });
    return CUDNN_STATUS_SUCCESS;
  }
};

}  // namespace gpus
