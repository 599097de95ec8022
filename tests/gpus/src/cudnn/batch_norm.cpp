// Batch normalization per channel. Statistics and parameters are float32 for float16 data.
#include <algorithm>
#include <cmath>
#include <vector>

#include "views.h"

namespace gpus {
namespace {

// For each element of a channel: action(its place).
template <class Action> void for_channel(const Tensor& it, int channel, Action action) {
  size_t plane = it.plane();
  for (int image = 0; image < it.sizes[0]; image++) {
    size_t first = (size_t(image) * it.sizes[1] + channel) * plane;
    for (size_t at = first; at < first + plane; at++) action(at);
  }
}

template <class T> struct Statistics {
  T mean, variance, inverse;  // inverse: of the deviation, eps added to the variance
};

// Each row of a plane is summed for itself,
// so that a float32's sum of many is as exact as that of a GPU's threads.
template <class T> Statistics<T> statistics(const Tensor& it, int channel, const T* x, T eps) {
  T number = T(it.sizes[0]) * it.plane(), mean = 0, variance = 0;
  size_t plane = it.plane();
  auto sum = [&](auto term) {
    T total = 0;
    for (int image = 0; image < it.sizes[0]; image++) {
      const T* values = x + (size_t(image) * it.sizes[1] + channel) * plane;
      T part = 0;
      for (size_t at = 0; at < plane; at++) part += term(values[at]);
      total += part;
    }
    return total;
  };
  mean = sum([](T value) { return value; }) / number;
  variance = sum([mean](T value) { return (value - mean) * (value - mean); }) / number;
  return {mean, variance, 1 / std::sqrt(variance + eps)};
}

template <class T> struct Parameters {
  const T *scale, *bias;
};

template <class T> struct Running {
  T *mean, *variance;
  T factor;

  // cuDNN keeps the unbiased variance.
  void update(int channel, const Statistics<T>& now, T number) {
    if (mean == nullptr) return;
    T unbiased = now.variance * (number / std::max<T>(number - 1, 1));
    mean[channel] = (1 - factor) * mean[channel] + factor * now.mean;
    variance[channel] = (1 - factor) * variance[channel] + factor * unbiased;
  }
};

template <class T>
void normalise(const Tensor& it, int channel, T mean, T inverse, Parameters<T> with, const T* x, T* y) {
  T scale = with.scale[channel], bias = with.bias[channel];
  for_channel(it, channel, [=](size_t at) { y[at] = scale * ((x[at] - mean) * inverse) + bias; });
}

bool is_spatial(const DnnCall& call, cudnnBatchNormMode_t mode) {
  bool known = mode == CUDNN_BATCHNORM_SPATIAL || mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT;
  if (!known) call.refuse("normalization per activation, which is not there");
  return known;
}

// One number for each channel.
size_t bytes_of_channels(const Tensor& x) { return x.sizes[1] * (x.type == CUDNN_DATA_DOUBLE ? 8 : 4); }

template <class... Pointers> void reach_channels(const DnnCall& call, const Tensor& x, Pointers... pointers) {
  (call.reaches(pointers, bytes_of_channels(x)), ...);
}

bool fits(const Tensor& x, const Tensor& parameters) {
  cudnnDataType_t type = x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  return parameters.elements() == size_t(x.sizes[1]) && parameters.type == type;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived, const cudnnTensorDescriptor_t x,
                                            cudnnBatchNormMode_t) {
  const Tensor& it = described(x);
  cudnnDataType_t type = it.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  return cudnnSetTensor4dDescriptor(derived, CUDNN_TENSOR_NCHW, type, 1, it.sizes[1], 1, 1);
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha,
                                                     const void* beta, const cudnnTensorDescriptor_t xd, const void* x,
                                                     const cudnnTensorDescriptor_t yd, void* y,
                                                     const cudnnTensorDescriptor_t parameters, const void* scale,
                                                     const void* bias, double factor, void* running_mean,
                                                     void* running_variance, double eps, void* saved_mean,
                                                     void* saved_inverse) {
  DnnCall call("cudnnBatchNormalizationForwardTraining", handle);
  Tensor in = described(xd), out = described(yd);
  call.match(in, out);
  call.reaches(in, x);
  call.reaches(out, y);
  reach_channels(call, in, scale, bias, running_mean, running_variance, saved_mean, saved_inverse);
  if (!is_spatial(call, mode)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!fits(in, described(parameters)) || eps < CUDNN_BN_MIN_EPSILON) return CUDNN_STATUS_BAD_PARAM;
  if ((running_mean == nullptr) != (running_variance == nullptr)) return CUDNN_STATUS_BAD_PARAM;
  Blend blend(alpha, beta, out.type);
  return call.does_with(in.type, [=](auto element) {
    using T = decltype(element);
    using C = Computed<T>;
    Input<T> from(in, x);
    Output<T> to(out, y, blend);
    Running<C> running{static_cast<C*>(running_mean), static_cast<C*>(running_variance), C(factor)};
    for (int channel = 0; channel < in.sizes[1]; channel++) {
      Statistics<C> now = statistics(in, channel, from.values(), C(eps));
      normalise(in, channel, now.mean, now.inverse, {static_cast<const C*>(scale), static_cast<const C*>(bias)},
                from.values(), to.values());
      running.update(channel, now, C(in.sizes[0]) * in.plane());
      if (saved_mean) static_cast<C*>(saved_mean)[channel] = now.mean;
      if (saved_inverse) static_cast<C*>(saved_inverse)[channel] = now.inverse;
    }
    to.write();
  });
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                      const void* alpha, const void* beta,
                                                      const cudnnTensorDescriptor_t xd, const void* x,
                                                      const cudnnTensorDescriptor_t yd, void* y,
                                                      const cudnnTensorDescriptor_t parameters, const void* scale,
                                                      const void* bias, const void* mean, const void* variance,
                                                      double eps) {
  DnnCall call("cudnnBatchNormalizationForwardInference", handle);
  Tensor in = described(xd), out = described(yd);
  call.match(in, out);
  call.reaches(in, x);
  call.reaches(out, y);
  reach_channels(call, in, scale, bias, mean, variance);
  if (!is_spatial(call, mode)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!fits(in, described(parameters)) || eps < CUDNN_BN_MIN_EPSILON) return CUDNN_STATUS_BAD_PARAM;
  Blend blend(alpha, beta, out.type);
  return call.does_with(in.type, [=](auto element) {
    using T = decltype(element);
    using C = Computed<T>;
    Input<T> from(in, x);
    Output<T> to(out, y, blend);
    for (int channel = 0; channel < in.sizes[1]; channel++) {
      C inverse = 1 / std::sqrt(static_cast<const C*>(variance)[channel] + C(eps));
      normalise(in, channel, static_cast<const C*>(mean)[channel], inverse,
                {static_cast<const C*>(scale), static_cast<const C*>(bias)}, from.values(), to.values());
    }
    to.write();
  });
}

// Where no statistics were saved, they are computed from x, as cuDNN does: those of this batch,
// never the running ones.
cudnnStatus_t cudnnBatchNormalizationBackward(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha,
                                              const void* beta, const void* alpha_parameters,
                                              const void* beta_parameters, const cudnnTensorDescriptor_t xd,
                                              const void* x, const cudnnTensorDescriptor_t dyd, const void* dy,
                                              const cudnnTensorDescriptor_t dxd, void* dx,
                                              const cudnnTensorDescriptor_t parameters, const void* scale,
                                              void* scale_gradient, void* bias_gradient, double eps,
                                              const void* saved_mean, const void* saved_inverse) {
  DnnCall call("cudnnBatchNormalizationBackward", handle);
  Tensor in = described(xd), gradient = described(dyd), out = described(dxd);
  call.match(in, gradient);
  call.match(in, out);
  call.reaches(in, x);
  call.reaches(gradient, dy);
  call.reaches(out, dx);
  reach_channels(call, in, scale, scale_gradient, bias_gradient, saved_mean, saved_inverse);
  if (!is_spatial(call, mode)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!fits(in, described(parameters)) || eps < CUDNN_BN_MIN_EPSILON) return CUDNN_STATUS_BAD_PARAM;
  if ((saved_mean == nullptr) != (saved_inverse == nullptr)) return CUDNN_STATUS_BAD_PARAM;
  Blend blend(alpha, beta, out.type), blend_parameters(alpha_parameters, beta_parameters, out.type);
  return call.does_with(in.type, [=, per_channel = described(parameters)](auto element) {
    using T = decltype(element);
    using C = Computed<T>;
    Input<T> from(in, x), gradients(gradient, dy);
    Output<T> to(out, dx, blend);
    Output<C> to_scale(per_channel, scale_gradient, blend_parameters),
        to_bias(per_channel, bias_gradient, blend_parameters);
    const C *values = from.values(), *given = gradients.values();
    C *result = to.values(), number = C(in.sizes[0]) * in.plane();
    for (int channel = 0; channel < in.sizes[1]; channel++) {
      C mean, inverse, sum = 0, product = 0;
      if (saved_mean) {
        mean = static_cast<const C*>(saved_mean)[channel];
        inverse = static_cast<const C*>(saved_inverse)[channel];
      } else {
        Statistics<C> now = statistics(in, channel, values, C(eps));
        mean = now.mean;
        inverse = now.inverse;
      }
      for_channel(in, channel, [&](size_t at) {
        sum += given[at];
        product += given[at] * ((values[at] - mean) * inverse);
      });
      C factor = static_cast<const C*>(scale)[channel] * inverse;
      for_channel(in, channel, [=](size_t at) {
        C normal = (values[at] - mean) * inverse;
        result[at] = factor * (given[at] - sum / number - normal * product / number);
      });
      to_scale.values()[channel] = product;
      to_bias.values()[channel] = sum;
    }
    to.write();
    to_scale.write();
    to_bias.write();
  });
}
}

}  // namespace gpus
