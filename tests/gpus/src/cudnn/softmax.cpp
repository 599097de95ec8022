// Softmax over an image's elements, or over the channels at each of its places.
#include <algorithm>
#include <cmath>

#include "views.h"

namespace gpus {
namespace {

// Groups of elements that share a sum: `length` of them, `step` apart.
struct Groups {
  size_t outer, inner, length;

  // action(the first element of each)
  template <class Action> void each(Action action) const {
    for (size_t out = 0; out < outer; out++)
      for (size_t in = 0; in < inner; in++) action(out * length * inner + in);
  }
};

Groups groups(cudnnSoftmaxMode_t mode, const Tensor& it) {
  if (mode == CUDNN_SOFTMAX_MODE_INSTANCE) return {size_t(it.sizes[0]), 1, it.elements() / it.sizes[0]};
  return {size_t(it.sizes[0]), it.plane(), size_t(it.sizes[1])};
}

template <class T> void softmax(const Groups& it, bool logarithm, const T* x, T* y) {
  it.each([&](size_t first) {
    T largest = x[first], sum = 0;
    for (size_t at = 1; at < it.length; at++) largest = std::max(largest, x[first + at * it.inner]);
    for (size_t at = 0; at < it.length; at++) sum += std::exp(x[first + at * it.inner] - largest);
    for (size_t at = 0; at < it.length; at++) {
      T value = x[first + at * it.inner] - largest;
      y[first + at * it.inner] = logarithm ? value - std::log(sum) : std::exp(value) / sum;
    }
  });
}

template <class T> void softmax_gradient(const Groups& it, bool logarithm, const T* y, const T* dy, T* dx) {
  it.each([&](size_t first) {
    T sum = 0;
    for (size_t at = 0; at < it.length; at++) {
      size_t place = first + at * it.inner;
      sum += logarithm ? dy[place] : dy[place] * y[place];
    }
    for (size_t at = 0; at < it.length; at++) {
      size_t place = first + at * it.inner;
      dx[place] = logarithm ? dy[place] - std::exp(y[place]) * sum : y[place] * (dy[place] - sum);
    }
  });
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                  const void* alpha, const cudnnTensorDescriptor_t xd, const void* x, const void* beta,
                                  const cudnnTensorDescriptor_t yd, void* y) {
  DnnCall call("cudnnSoftmaxForward", handle);
  Tensor in = described(xd), out = described(yd);
  call.match(in, out);
  call.reaches(in, x);
  call.reaches(out, y);
  Blend blend(alpha, beta, out.type);
  return call.does_with(in.type, [=](auto element) {
    using T = decltype(element);
    Output<T> to(out, y, blend);
    softmax(groups(mode, in), algorithm == CUDNN_SOFTMAX_LOG, Input<T>(in, x).values(), to.values());
    to.write();
  });
}

cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                   const void* alpha, const cudnnTensorDescriptor_t yd, const void* y,
                                   const cudnnTensorDescriptor_t dyd, const void* dy, const void* beta,
                                   const cudnnTensorDescriptor_t dxd, void* dx) {
  DnnCall call("cudnnSoftmaxBackward", handle);
  Tensor out = described(yd), gradient = described(dyd), to = described(dxd);
  call.match(out, gradient);
  call.match(out, to);
  call.reaches(out, y);
  call.reaches(gradient, dy);
  call.reaches(to, dx);
  Blend blend(alpha, beta, to.type);
  return call.does_with(out.type, [=](auto element) {
    using T = decltype(element);
    Input<T> values(out, y), gradients(gradient, dy);
    Output<T> result(to, dx, blend);
    softmax_gradient(groups(mode, out), algorithm == CUDNN_SOFTMAX_LOG, values.values(), gradients.values(),
                     result.values());
    result.write();
  });
}
}

}  // namespace gpus
