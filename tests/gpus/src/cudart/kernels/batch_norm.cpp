// MXNet's own batch normalization, where statistics are given (use_global_stats) or cuDNN is off.
#include <cmath>

#include "types.h"

namespace gpus {
namespace {

enum Flags {
  WRITE_DATA = 1,
  WRITE_GAMMA = 2,
  WRITE_BETA = 4,
  FIX_GAMMA = 8,
  TRAINING = 16,
  GLOBAL_STATISTICS = 32,
  ADD_DATA = 64,
  ADD_GAMMA = 128,
  ADD_BETA = 256
};

// mxnet::op::batchnorm::BNTensor3: images with a channel in the middle.
template <class T> struct Images {
  T* data;
  size_t axis, outer, channels, inner;

  size_t size() const { return outer * channels * inner; }
  size_t pixels() const { return outer * inner; }  // of a channel
  T& at(size_t channel, size_t pixel) const {
    return data[((pixel / inner) * channels + channel) * inner + pixel % inner];
  }
};

// mxnet::op::batchnorm::cuda::DeviceTensor<A, 1>: a number for each channel.
template <class A> struct PerChannel {
  A* data;
  int size;
  A& operator[](size_t channel) const { return data[channel]; }
};

struct Checks {
  const Launch& launch;

  template <class T> void operator()(const Images<T>& images) const {
    launch.check(images.data, images.size() * sizeof(T));
  }
  template <class A> void operator()(const PerChannel<A>& numbers) const {
    launch.check(numbers.data, numbers.size * sizeof(A));
  }
};

template <class T, class A> A inverse_deviation(A variance, double epsilon) {
  return static_cast<A>(1.0 / std::sqrt(variance + static_cast<T>(epsilon)));
}

// ...InferenceKernel(in, out, running mean, running variance, saved mean, saved inverse, gamma, beta,
// epsilon, flags)
template <class T, class A> Work infer(const Launch& launch) {
  auto in = launch.value<Images<T>>(0), out = launch.value<Images<T>>(1);
  PerChannel<A> arrays[6];
  Checks check{launch};
  check(in), check(out);
  for (int k = 0; k < 6; k++) check(arrays[k] = launch.value<PerChannel<A>>(2 + k));
  auto [mean, variance, saved_mean, saved_inverse, weight, bias] = arrays;
  T epsilon = launch.value<T>(8);
  uint32_t flags = launch.value<uint32_t>(9);
  return [=, mean = mean, variance = variance, saved_mean = saved_mean, saved_inverse = saved_inverse, weight = weight,
          bias = bias] {
    for (size_t c = 0; c < in.channels; c++) {
      A inverse = inverse_deviation<T>(variance[c], epsilon);
      A gamma = flags & FIX_GAMMA ? A(1) : weight[c];
      saved_mean[c] = mean[c];
      saved_inverse[c] = inverse;
      if ((flags & WRITE_GAMMA) && (flags & FIX_GAMMA)) weight[c] = A(1);
      for (size_t p = 0; p < in.pixels(); p++)
        out.at(c, p) = static_cast<T>(gamma * (static_cast<A>(in.at(c, p)) - mean[c]) * inverse + bias[c]);
    }
  };
}

// mxnet::op::batchnorm::cuda::CUDATensors
template <class A> struct Tensors {
  PerChannel<A> gamma_gradient, beta_gradient, gamma, running_mean, running_variance, mean, inverse;
};

// The gradients of gamma and beta of one channel.
template <class A> void set_gradient(const PerChannel<A>& gradient, size_t channel, bool writes, bool adds, A value) {
  if (writes)
    gradient[channel] = value;
  else if (adds)
    gradient[channel] += value;
}

// BatchNormalizationBackwardKernel(in, gradient of out, gradient of in, tensors, flags, momentum, epsilon)
template <class T, class A> Work go_back(const Launch& launch) {
  auto in = launch.value<Images<T>>(0), slope = launch.value<Images<T>>(1), result = launch.value<Images<T>>(2);
  auto t = launch.value<Tensors<A>>(3);
  uint32_t flags = launch.value<uint32_t>(4);
  A momentum = launch.value<A>(5);
  double epsilon = launch.value<double>(6);
  Checks check{launch};
  check(in), check(slope);
  if (flags & (WRITE_DATA | ADD_DATA)) check(result);
  if (flags & (WRITE_GAMMA | ADD_GAMMA)) check(t.gamma_gradient);
  if (flags & (WRITE_BETA | ADD_BETA)) check(t.beta_gradient);
  check(t.gamma), check(t.running_mean), check(t.running_variance);
  bool own = (flags & TRAINING) && !(flags & GLOBAL_STATISTICS);
  if (own) check(t.mean), check(t.inverse);
  return [=] {
    for (size_t c = 0; c < in.channels; c++) {
      A mean = own ? t.mean[c] : t.running_mean[c];
      A inverse = own ? t.inverse[c] : inverse_deviation<T>(t.running_variance[c], epsilon);
      A sum = 0, product = 0;
      for (size_t p = 0; p < in.pixels(); p++) {
        T g = slope.at(c, p), centered = static_cast<T>(static_cast<A>(in.at(c, p)) - mean);
        sum += static_cast<A>(g);
        product += static_cast<A>(g) * static_cast<A>(centered);
      }
      A norm = A(1) / in.pixels(), projection = product * norm * inverse * inverse;
      A scale = inverse * (flags & FIX_GAMMA ? A(1) : t.gamma[c]);
      if (own) {
        A variance = static_cast<A>(1.0 / (inverse * inverse) - epsilon);
        t.running_mean[c] = t.running_mean[c] * momentum + mean * (A(1) - momentum);
        t.running_variance[c] = t.running_variance[c] * momentum + variance * (A(1) - momentum);
      }
      for (size_t p = 0; p < in.pixels() && (flags & (WRITE_DATA | ADD_DATA)); p++) {
        A g = static_cast<A>(slope.at(c, p));
        if (own) g -= (static_cast<A>(in.at(c, p)) - mean) * projection + sum * norm;
        assign(result.at(c, p), flags & WRITE_DATA ? WRITE : ADD, static_cast<T>(g * scale));
      }
      A of_gamma = flags & FIX_GAMMA ? A(0) : product * inverse;
      set_gradient(t.gamma_gradient, c, flags & WRITE_GAMMA, flags & ADD_GAMMA, of_gamma);
      set_gradient(t.beta_gradient, c, flags & WRITE_BETA, flags & ADD_BETA, sum);
    }
  };
}

// By the type of images and that of sums.
template <template <class, class> class Made> Work by_types(const Launch& launch) {
  const std::string images = launch.name.kernel.arguments[0].word;
  if (images == "float") return Made<float, float>::work(launch);
  if (images == "double") return Made<double, double>::work(launch);
  if (images == "half_t") return Made<half, float>::work(launch);
  return {};
}

template <class T, class A> struct Infer {
  static Work work(const Launch& launch) { return infer<T, A>(launch); }
};

template <class T, class A> struct GoBack {
  static Work work(const Launch& launch) { return go_back<T, A>(launch); }
};

const Registered registered{{"BatchNormalizationUpdateOutputInferenceKernel", by_types<Infer>},
                            {"BatchNormalizationBackwardKernel", by_types<GoBack>}};

}  // namespace
}  // namespace gpus
