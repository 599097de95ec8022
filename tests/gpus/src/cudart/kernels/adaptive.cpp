// Updates whose steps go by what gradients were before: Adam, AdamW, RMSProp, FTRL, FTML.
#include <cmath>

#include "updates.h"

namespace gpus {
namespace {

template <class T> struct Updates {
  using C = Computed<T>;

  static Work adam(const Launch& launch) {
    Arguments read(launch);
    T *out, *mean, *variance, *weight, *gradient;
    C clip, scale, beta1, beta2, rate, decay, epsilon;
    int request;
    read(out, mean, variance, weight, gradient);
    read(clip, scale, beta1, beta2, rate, decay, epsilon, request);
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(gradient[i] * scale + weight[i] * decay, clip);
      mean[i] = beta1 * mean[i] + (1 - beta1) * slope;
      variance[i] = beta2 * variance[i] + (1 - beta2) * slope * slope;
      assign(out[i], request, weight[i] - rate * mean[i] / (std::sqrt(static_cast<C>(variance[i])) + epsilon));
    });
  }

  static Work adamw(const Launch& launch) {
    Arguments read(launch);
    T *out, *weight16, *gradient;  // the weight is that in float32
    float *mean, *variance, *weight;
    float clip, beta1, beta2, eta, rate, decay, scale, epsilon;
    int request = request_in(launch.operation(), 0);
    read(out, mean, variance, weight16, gradient, weight);
    read(clip, beta1, beta2, eta, rate, decay, scale, epsilon);
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
    T *out, *square, *weight, *gradient;
    C clip, scale, gamma, rate, decay, clip_weights, epsilon;
    int request;
    read(out, square, weight, gradient, clip, scale, gamma, rate, decay, clip_weights, epsilon, request);
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(scale * gradient[i] + decay * weight[i], clip);
      square[i] = (1 - gamma) * (slope * slope) + gamma * square[i];
      C updated = weight[i] - rate * (slope / std::sqrt(static_cast<C>(square[i]) + epsilon));
      assign(out[i], request, clipped<C>(updated, clip_weights));
    });
  }

  static Work centered_rmsprop(const Launch& launch) {
    Arguments read(launch);
    T *out, *square, *mean, *delta, *weight, *gradient;
    C clip, scale, gamma, keep, rate, decay, clip_weights, epsilon;
    int request;
    read(out, square, mean, delta, weight, gradient);
    read(clip, scale, gamma, keep, rate, decay, clip_weights, epsilon, request);
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
    T *out, *squares, *z, *weight, *gradient;
    C clip, scale, beta, lambda, rate, decay;
    int request;
    read(out, squares, z, weight, gradient, clip, scale, beta, lambda, rate, decay, request);
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(gradient[i] * scale, clip), square = slope * slope, old = squares[i];
      z[i] += slope - (std::sqrt(old + square) - std::sqrt(old)) * weight[i] / rate;
      squares[i] = old + square;
      C sum = z[i], root = std::sqrt(static_cast<C>(squares[i]));
      assign(out[i], request, (sign(sum) * lambda - sum) / ((beta + root) / rate + decay) * C(std::fabs(sum) > lambda));
    });
  }

  static Work ftml(const Launch& launch) {
    Arguments read(launch);
    T *out, *weight, *gradient, *d, *v, *z;
    C rate, beta1, beta2, epsilon, t, decay, scale, clip;
    int request;
    read(out, weight, gradient, d, v, z, rate, beta1, beta2, epsilon, t, decay, scale, clip, request);
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
UPDATE(RMSPropAlexUpdateKernel, centered_rmsprop, 1);
UPDATE(FtrlUpdateKernel, ftrl, 1);
UPDATE(FTMLKernel, ftml, 1);

}  // namespace
}  // namespace gpus
