// Updates whose steps go by what gradients were before: Adam, AdamW, RMSProp, FTRL, FTML.
#include <cmath>

#include "updates.h"

namespace gpus {
namespace {

template <class T>
struct Updates {
  using C = Computed<T>;

  static Work adam(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *mean = read.array<T>(), *variance = read.array<T>();
    auto *weight = read.array<T>(), *gradient = read.array<T>();
    C clip = read.number<C>(), scale = read.number<C>(), beta1 = read.number<C>(), beta2 = read.number<C>();
    C rate = read.number<C>(), decay = read.number<C>(), epsilon = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(gradient[i] * scale + weight[i] * decay, clip);
      mean[i] = beta1 * mean[i] + (1 - beta1) * slope;
      variance[i] = beta2 * variance[i] + (1 - beta2) * slope * slope;
      assign(out[i], request,
             weight[i] - rate * mean[i] / (std::sqrt(static_cast<C>(variance[i])) + epsilon));
    });
  }

  static Work adamw(const Launch& launch) {
    Arguments read(launch);
    auto* out = read.array<T>();
    auto *mean = read.array<float>(), *variance = read.array<float>();
    read.array<T>();
    auto* gradient = read.array<T>();
    auto* weight = read.array<float>();
    float clip = read.value<float>(), beta1 = read.value<float>(), beta2 = read.value<float>(),
          eta = read.value<float>();
    float rate = read.value<float>(), decay = read.value<float>(), scale = read.value<float>(),
          epsilon = read.value<float>();
    int request = request_in(launch.operation(), 0);
    return each(launch.n(), [=](long i) {
      float slope = clipped<float>(scale * gradient[i], clip);
      mean[i] = beta1 * mean[i] + (1 - beta1) * slope;
      variance[i] = beta2 * variance[i] + (1 - beta2) * (slope * slope);
      weight[i] -= eta * (rate * mean[i] / (std::sqrt(variance[i]) + epsilon) + decay * weight[i]);
      assign(out[i], request, weight[i]);
    });
  }

  static Work rmsprop(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *square = read.array<T>(), *weight = read.array<T>(),
         *gradient = read.array<T>();
    C clip = read.number<C>(), scale = read.number<C>(), gamma = read.number<C>(), rate = read.number<C>();
    C decay = read.number<C>(), clip_weights = read.number<C>(), epsilon = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(scale * gradient[i] + decay * weight[i], clip);
      square[i] = (1 - gamma) * (slope * slope) + gamma * square[i];
      C updated = weight[i] - rate * (slope / std::sqrt(static_cast<C>(square[i]) + epsilon));
      assign(out[i], request, clipped<C>(updated, clip_weights));
    });
  }

  static Work centred_rmsprop(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *square = read.array<T>(), *mean = read.array<T>(), *delta = read.array<T>();
    auto *weight = read.array<T>(), *gradient = read.array<T>();
    C clip = read.number<C>(), scale = read.number<C>(), gamma = read.number<C>(), keep = read.number<C>();
    C rate = read.number<C>(), decay = read.number<C>(), clip_weights = read.number<C>(),
      epsilon = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(scale * gradient[i] + decay * weight[i], clip);
      square[i] = (1 - gamma) * slope * slope + gamma * square[i];
      mean[i] = (1 - gamma) * slope + gamma * mean[i];
      C spread = static_cast<C>(square[i]) - static_cast<C>(mean[i]) * static_cast<C>(mean[i]);
      delta[i] = keep * delta[i] - rate * slope / std::sqrt(spread + epsilon);
      assign(out[i], request, clipped<C>(static_cast<C>(weight[i]) + static_cast<C>(delta[i]), clip_weights));
    });
  }

  static Work ftrl(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *squares = read.array<T>(), *z = read.array<T>();
    auto *weight = read.array<T>(), *gradient = read.array<T>();
    C clip = read.number<C>(), scale = read.number<C>(), beta = read.number<C>(), lambda = read.number<C>();
    C rate = read.number<C>(), decay = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(gradient[i] * scale, clip), square = slope * slope, old = squares[i];
      z[i] += slope - (std::sqrt(old + square) - std::sqrt(old)) * weight[i] / rate;
      squares[i] = old + square;
      C sum = z[i], root = std::sqrt(static_cast<C>(squares[i]));
      assign(out[i], request,
             (sign(sum) * lambda - sum) / ((beta + root) / rate + decay) * C(std::fabs(sum) > lambda));
    });
  }

  static Work ftml(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *weight = read.array<T>(), *gradient = read.array<T>();
    auto *d = read.array<T>(), *v = read.array<T>(), *z = read.array<T>();
    C rate = read.number<C>(), beta1 = read.number<C>(), beta2 = read.number<C>(), epsilon = read.number<C>();
    C t = read.number<C>(), decay = read.number<C>(), scale = read.number<C>(), clip = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(scale * gradient[i] + decay * weight[i], clip);
      v[i] = beta2 * v[i] + (1 - beta2) * (slope * slope);
      C next = (1 - std::pow(beta1, t)) / rate * (std::sqrt(v[i] / (1 - std::pow(beta2, t))) + epsilon);
      z[i] = beta1 * z[i] + (1 - beta1) * slope - (next - beta1 * d[i]) * weight[i];
      d[i] = next;
      assign(out[i], request, -z[i] / next);
    });
  }
};

UPDATE(AdamUpdateKernel, adam, 1);
UPDATE(MPAdamWKernel, adamw, 1);
UPDATE(RMSPropUpdateKernel, rmsprop, 1);
UPDATE(RMSPropAlexUpdateKernel, centred_rmsprop, 1);
UPDATE(FtrlUpdateKernel, ftrl, 1);
UPDATE(FTMLKernel, ftml, 1);

}  // namespace
}  // namespace gpus
