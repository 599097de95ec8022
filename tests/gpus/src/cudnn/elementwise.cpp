// Activations, biases and their gradients.
#include <algorithm>
#include <cmath>

#include "views.h"

namespace gpus {
namespace {

bool is_known(const DnnCall& call, const Activation& it) {
  bool known =
      it.mode == CUDNN_ACTIVATION_RELU || it.mode == CUDNN_ACTIVATION_SIGMOID || it.mode == CUDNN_ACTIVATION_TANH;
  if (!known) call.refuse("an activation that is not there: " + std::to_string(it.mode));
  return known;
}

template <class T, class Function> void map(size_t number, T* out, Function function) {
  for (size_t at = 0; at < number; at++) out[at] = function(at);
}

// CUDNN_NOT_PROPAGATE_NAN: a NaN becomes 0.
template <class T> void activate(cudnnActivationMode_t mode, size_t number, const T* x, T* y) {
  if (mode == CUDNN_ACTIVATION_RELU)
    map(number, y, [=](size_t at) { return x[at] > 0 ? x[at] : T(0); });
  else if (mode == CUDNN_ACTIVATION_SIGMOID)
    map(number, y, [=](size_t at) { return 1 / (1 + std::exp(-x[at])); });
  else
    map(number, y, [=](size_t at) { return std::tanh(x[at]); });
}

template <class T> void activation_gradient(cudnnActivationMode_t mode, size_t number, const T* y, const T* dy, T* dx) {
  if (mode == CUDNN_ACTIVATION_RELU)
    map(number, dx, [=](size_t at) { return y[at] > 0 ? dy[at] : T(0); });
  else if (mode == CUDNN_ACTIVATION_SIGMOID)
    map(number, dx, [=](size_t at) { return dy[at] * y[at] * (1 - y[at]); });
  else
    map(number, dx, [=](size_t at) { return dy[at] * (1 - y[at] * y[at]); });
}

// Whether `a` has the axes of `c`, or is of length 1 there.
bool broadcasts(const Tensor& a, const Tensor& c) {
  for (int axis = 0; axis < MOST_AXES; axis++)
    if (a.sizes[axis] != 1 && a.sizes[axis] != c.sizes[axis]) return false;
  return a.type == c.type;
}

// The same memory seen with the sizes of `c`, and steps of 0 along the axes of length 1.
Tensor broadcast(const Tensor& a, const Tensor& c) {
  Tensor seen = c;
  for (int axis = 0; axis < MOST_AXES; axis++) seen.strides[axis] = a.sizes[axis] == 1 ? 0 : a.strides[axis];
  return seen;
}

// Sums over all axes but C.
template <class T> void sum_channels(const Tensor& tensor, const T* values, T* sums) {
  size_t plane = tensor.plane();
  for (int channel = 0; channel < tensor.sizes[1]; channel++) sums[channel] = 0;
  for (int image = 0; image < tensor.sizes[0]; image++)
    for (int channel = 0; channel < tensor.sizes[1]; channel++, values += plane) {
      T sum = 0;
      for (size_t at = 0; at < plane; at++) sum += values[at];
      sums[channel] += sum;
    }
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation, const void* alpha,
                                     const cudnnTensorDescriptor_t xd, const void* x, const void* beta,
                                     const cudnnTensorDescriptor_t yd, void* y) {
  DnnCall call("cudnnActivationForward", handle);
  Tensor in = described(xd), out = described(yd);
  call.match(in, out);
  call.reaches(in, x);
  call.reaches(out, y);
  if (!is_known(call, described(activation))) return CUDNN_STATUS_NOT_SUPPORTED;
  Blend blend(alpha, beta, out.type);
  return call.does_with(in.type, [=, mode = described(activation).mode](auto element) {
    using T = decltype(element);
    Output<T> to(out, y, blend);
    activate(mode, in.elements(), Input<T>(in, x).values(), to.values());
    to.write();
  });
}

cudnnStatus_t cudnnActivationBackward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation, const void* alpha,
                                      const cudnnTensorDescriptor_t yd, const void* y,
                                      const cudnnTensorDescriptor_t dyd, const void* dy,
                                      const cudnnTensorDescriptor_t xd, const void* x, const void* beta,
                                      const cudnnTensorDescriptor_t dxd, void* dx) {
  DnnCall call("cudnnActivationBackward", handle);
  Tensor out = described(yd), gradient = described(dyd), to = described(dxd);
  call.match(out, gradient);
  call.match(out, described(xd));
  call.match(out, to);
  call.reaches(out, y);
  call.reaches(gradient, dy);
  call.reaches(described(xd), x);
  call.reaches(to, dx);
  if (!is_known(call, described(activation))) return CUDNN_STATUS_NOT_SUPPORTED;
  Blend blend(alpha, beta, out.type);
  return call.does_with(out.type, [=, mode = described(activation).mode](auto element) {
    using T = decltype(element);
    Input<T> values(out, y), gradients(gradient, dy);
    Output<T> result(to, dx, blend);
    activation_gradient(mode, out.elements(), values.values(), gradients.values(), result.values());
    result.write();
  });
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t ad, const void* a,
                             const void* beta, const cudnnTensorDescriptor_t cd, void* c) {
  DnnCall call("cudnnAddTensor", handle);
  Tensor added = described(ad), to = described(cd);
  call.reaches(added, a);
  call.reaches(to, c);
  if (!broadcasts(added, to)) return CUDNN_STATUS_BAD_PARAM;
  Blend blend(alpha, beta, to.type);
  return call.does_with(to.type, [=](auto element) {
    using T = decltype(element);
    Output<T> sum(to, c, blend);
    Input<T> values(broadcast(added, to), a);
    std::copy_n(values.values(), to.elements(), sum.values());
    sum.write();
  });
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t yd,
                                           const void* dy, const void* beta, const cudnnTensorDescriptor_t bd,
                                           void* db) {
  DnnCall call("cudnnConvolutionBackwardBias", handle);
  Tensor gradient = described(yd), bias = described(bd);
  call.reaches(gradient, dy);
  call.reaches(bias, db);
  if (bias.elements() != size_t(gradient.sizes[1]) || bias.type != gradient.type) return CUDNN_STATUS_BAD_PARAM;
  Blend blend(alpha, beta, bias.type);
  return call.does_with(bias.type, [=](auto element) {
    using T = decltype(element);
    Output<T> to(bias, db, blend);
    sum_channels(gradient, Input<T>(gradient, dy).values(), to.values());
    to.write();
  });
}
}

}  // namespace gpus
