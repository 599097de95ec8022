// LAMB in two kernels: the direction, then a step in it as long as two norms say.
#include <cmath>

#include "updates.h"

namespace gpus {
namespace {

template <class T> struct Updates {
  using C = Computed<T>;

  static Work lamb_direction(const Launch& launch) { return direction<T>(launch, false); }
  static Work mixed_lamb_direction(const Launch& launch) { return direction<float>(launch, true); }

  template <class S>  // the type of the states
  static Work direction(const Launch& launch, bool mixed) {
    Arguments read(launch);
    S *out, *mean, *variance;
    T *weight, *gradient;
    float* weight32 = nullptr;
    C clip, scale, beta1, beta1_t, beta2, beta2_t, decay, epsilon;
    int time, request;  // the first is in the powers of beta already
    bool corrects;
    read(out, mean, variance, weight, gradient);
    if (mixed)
      read(weight32, clip, scale, beta1_t, beta1, beta2_t, beta2);
    else
      read(clip, scale, beta1, beta1_t, beta2, beta2_t);
    read(decay, epsilon, time, corrects, request);
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(gradient[i] * scale, clip), old = mixed ? C(weight32[i]) : C(weight[i]);
      mean[i] = beta1 * mean[i] + (1 - beta1) * slope;
      variance[i] = beta2 * variance[i] + (1 - beta2) * slope * slope;
      C first = mean[i], second = variance[i];
      if (corrects) {
        first = static_cast<C>(first / (1. - beta1_t));
        second = second / (1 - beta2_t);
      }
      assign(out[i], request, first / (std::sqrt(second) + epsilon) + decay * old);
    });
  }

  static Work lamb_step(const Launch& launch) { return step<T>(launch, false); }
  static Work mixed_lamb_step(const Launch& launch) { return step<float>(launch, true); }

  template <class S> static Work step(const Launch& launch, bool mixed) {
    Arguments read(launch);
    auto *out = read.array<T>(), *weight = read.array<T>();
    auto *direction = read.array<S>(), *norm1 = read.any_array<S>(1), *norm2 = read.any_array<S>(1);
    auto* weight32 = mixed ? read.array<float>() : nullptr;
    C rate, lower, upper;
    int request;
    read(rate, lower, upper, request);
    return [=, n = launch.n()] {
      C norm = *norm1;
      if (lower >= 0) norm = std::max(norm, lower);
      if (upper >= 0) norm = std::min(norm, upper);
      C adjusted = norm == 0 || *norm2 == 0 ? rate : rate * norm / *norm2;
      for (int i = 0; i < n; i++)
        assign(out[i], request, (mixed ? C(weight32[i]) : C(weight[i])) - adjusted * direction[i]);
    };
  }
};

UPDATE(LambUpdatePhaseOneKernel, lamb_direction, 1);
UPDATE(MPLambUpdatePhaseOneKernel, mixed_lamb_direction, 4);
UPDATE(LambUpdatePhaseTwoKernel, lamb_step, 1);
UPDATE(MPLambUpdatePhaseTwoKernel, mixed_lamb_step, 1);

}  // namespace
}  // namespace gpus
