// Updates of many parameters at once: multi_sgd, multi_adamw, multi_lamb.
#include <cmath>
#include <memory>

#include "updates.h"

namespace gpus {
namespace {

// mxnet::op::MultiSGDKernelParam; RATES are arrays here, or on the GPU.
template <class T, class M, class Rates> struct SgdParameters {
  static constexpr int MOST = 60;
  int count;
  size_t longest, sizes[MOST];
  T *weights[MOST], *gradients[MOST];
  M *velocities[MOST], *weights32[MOST];
  T* out[MOST];
  Rates rates, decays;
  M clip, scale, momentum;
};

// MultiSGDKernel<M, has_momentum, has_mixed_precision>(N, parameters, request)
template <class T, class M, class Rates> Work sgd_of(const Launch& launch) {
  using Parameters = SgdParameters<T, M, Rates>;
  auto p = std::make_shared<Parameters>(launch.value<Parameters>(1));
  bool has_momentum = is_true(launch.operation(), 1), mixed = is_true(launch.operation(), 2);
  int request = launch.value<int>(2);
  auto check = [&](const void* array, size_t bytes) { launch.check(array, bytes); };
  for (int k = 0; k < p->count; k++) {
    check(p->weights[k], p->sizes[k] * sizeof(T));
    check(p->gradients[k], p->sizes[k] * sizeof(T));
    check(p->out[k], p->sizes[k] * sizeof(T));
    if (has_momentum) check(p->velocities[k], p->sizes[k] * sizeof(M));
    if (mixed) check(p->weights32[k], p->sizes[k] * sizeof(M));
  }
  return [=] {
    for (int k = 0; k < p->count; k++) {
      M rate = p->rates[k], decay = p->decays[k];
      for (size_t i = 0; i < p->sizes[k]; i++) {
        M weight = mixed ? p->weights32[k][i] : static_cast<M>(p->weights[k][i]);
        M velocity = has_momentum ? p->velocities[k][i] : M(0), slope = static_cast<M>(p->gradients[k][i]);
        M step = p->clip >= 0 ? rate * clipped<M>(p->scale * slope, p->clip) : rate * p->scale * slope;
        velocity = p->momentum * velocity - rate * decay * weight - step;
        if (has_momentum) p->velocities[k][i] = velocity;
        weight += velocity;
        if (mixed) p->weights32[k][i] = weight;
        assign(p->out[k][i], request, weight);
      }
    }
  };
}

// What T and M are, by the parameters' type.
template <template <class, class> class Made> Work by_types(const Launch& launch, int place) {
  const Type& parameters = launch.parameter(place);
  const std::string weights = parameters.arguments[0].word, states = parameters.arguments[1].word;
  if (weights == "float" && states == "float") return Made<float, float>::work(launch);
  if (weights == "double" && states == "double") return Made<double, double>::work(launch);
  if (weights == "half_t" && states == "float") return Made<half, float>::work(launch);
  return {};
}

template <class T, class M> struct Sgd {
  static Work work(const Launch& launch) { return sgd_of<T, M, M[60]>(launch); }
};

template <class T, class M> struct PreloadedSgd {
  static Work work(const Launch& launch) { return sgd_of<T, M, float*>(launch); }
};

// mxnet::op::MultiAdamKernelParam
template <class T, class M> struct AdamParameters {
  static constexpr int MOST = 50;
  int count;
  size_t longest, sizes[MOST];
  T *weights[MOST], *gradients[MOST];
  M *means[MOST], *variances[MOST], *weights32[MOST];
  T* out[MOST];
  M clip, beta1, beta2, etas[MOST], rates[MOST], decays[MOST], epsilon;
};

// MultiMPAdamWKernel<M, has_mixed_precision>(N, parameters, request, scale)
template <class T, class M> struct AdamW {
  static Work work(const Launch& launch) {
    using Parameters = AdamParameters<T, M>;
    auto p = std::make_shared<Parameters>(launch.value<Parameters>(1));
    bool mixed = is_true(launch.operation(), 1);
    int request = launch.value<int>(2);
    float scale = launch.value<float>(3);
    for (int k = 0; k < p->count; k++)
      for (const void* array :
           {(void*)p->weights[k], (void*)p->gradients[k], (void*)p->means[k], (void*)p->variances[k]})
        launch.check(array, p->sizes[k] * sizeof(T));
    return [=] {
      for (int k = 0; k < p->count; k++)
        for (size_t i = 0; i < p->sizes[k]; i++) {
          M weight = mixed ? p->weights32[k][i] : static_cast<M>(p->weights[k][i]);
          M slope = clipped<M>(static_cast<M>(scale) * static_cast<M>(p->gradients[k][i]), p->clip);
          M mean = p->beta1 * (p->means[k][i] - slope) + slope;
          M variance = p->beta2 * (p->variances[k][i] - slope * slope) + slope * slope;
          p->means[k][i] = mean;
          p->variances[k][i] = variance;
          weight -= p->etas[k] * (p->rates[k] * mean / (std::sqrt(variance) + p->epsilon) + p->decays[k] * weight);
          if (mixed) p->weights32[k][i] = weight;
          assign(p->out[k][i], request, weight);
        }
    };
  }
};

// mxnet::op::MultiLAMBKernelParam
template <class T, class M> struct LambParameters {
  static constexpr int MOST = 45;
  size_t count, longest, total, sizes[MOST], places[MOST];
  T *weights[MOST], *gradients[MOST];
  M *means[MOST], *variances[MOST], *weights32[MOST];
  T* out[MOST];
  int steps[MOST];
  M rates[MOST], decays[MOST];
  int chunk, chunks;
};

// KernelStep1<mixed, M, T>(parameters, beta1, beta2, 1 - beta1, 1 - beta2, epsilon, clip, corrects bias,
// scale, directions, ...)
template <class T, class M> struct LambDirections {
  static Work work(const Launch& launch) {
    using Parameters = LambParameters<T, M>;
    auto p = std::make_shared<Parameters>(launch.value<Parameters>(0));
    bool mixed = is_true(launch.name.kernel, 0);
    Arguments read(launch, 1, p->total);
    float beta1 = read.value<float>(), beta2 = read.value<float>();
    M rest1 = read.value<M>(), rest2 = read.value<M>();
    float epsilon = read.value<float>(), clip = read.value<float>();
    bool corrects = read.value<bool>();
    float scale = read.value<float>();
    auto* directions = read.array<float>();
    return [=] {
      for (size_t k = 0; k < p->count; k++) {
        M correction1 = corrects ? 1 - std::pow(beta1, static_cast<float>(p->steps[k])) : 1;
        M correction2 = corrects ? 1 - std::pow(beta2, static_cast<float>(p->steps[k])) : 1;
        for (size_t i = 0; i < p->sizes[k]; i++) {
          M weight = mixed ? p->weights32[k][i] : static_cast<M>(p->weights[k][i]);
          M slope = static_cast<M>(p->gradients[k][i]) * static_cast<M>(scale);
          slope = clipped<M>(slope, clip);
          M mean = p->means[k][i] = beta1 * p->means[k][i] + rest1 * slope;
          M variance = p->variances[k][i] = beta2 * p->variances[k][i] + rest2 * slope * slope;
          M direction = mean / correction1 / (std::sqrt(variance / correction2) + static_cast<M>(epsilon));
          directions[p->places[k] + i] =
              std::fma(static_cast<float>(p->decays[k]), static_cast<float>(weight), static_cast<float>(direction));
        }
      }
    };
  }
};

// KernelStep2<mixed, M, T>(parameters, squares of weights, squares of directions, directions, lower, upper,
// ..., ..., request)
template <class T, class M> struct LambSteps {
  static Work work(const Launch& launch) {
    using Parameters = LambParameters<T, M>;
    auto p = std::make_shared<Parameters>(launch.value<Parameters>(0));
    bool mixed = is_true(launch.name.kernel, 0);
    Arguments read(launch, 1, p->count);
    auto *weight_squares = read.array<float>(), *direction_squares = read.array<float>();
    auto* directions = read.any_array<float>(p->total);
    float lower = read.value<float>(), upper = read.value<float>();
    int request = launch.value<int>(8);
    return [=] {
      for (size_t k = 0; k < p->count; k++) {
        M norm = std::sqrt(weight_squares[k]), other = std::sqrt(direction_squares[k]);
        if (lower >= 0) norm = std::max<M>(norm, lower);
        if (upper >= 0) norm = std::min<M>(norm, upper);
        M rate = norm == 0 || other == 0 ? p->rates[k] : p->rates[k] * norm / other;
        for (size_t i = 0; i < p->sizes[k]; i++) {
          M weight = mixed ? p->weights32[k][i] : static_cast<M>(p->weights[k][i]);
          weight -= rate * directions[p->places[k] + i];
          if (mixed) p->weights32[k][i] = weight;
          assign(p->out[k][i], request, weight);
        }
      }
    };
  }
};

const Registered registered{
    {"MultiSGDKernel", [](const Launch& launch) { return by_types<Sgd>(launch, 1); }},
    {"PreloadedMultiSGDKernel", [](const Launch& launch) { return by_types<PreloadedSgd>(launch, 1); }},
    {"MultiMPAdamWKernel", [](const Launch& launch) { return by_types<AdamW>(launch, 1); }},
    {"KernelStep1", [](const Launch& launch) { return by_types<LambDirections>(launch, 0); }},
    {"KernelStep2", [](const Launch& launch) { return by_types<LambSteps>(launch, 0); }}};

}  // namespace
}  // namespace gpus
