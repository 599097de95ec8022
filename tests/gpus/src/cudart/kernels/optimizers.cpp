// The updates of MXNet's optimizers (optimizer_op-inl.h, contrib/adamw-inl.h): one parameter at a time.
#include <cmath>

#include "arguments.h"

namespace gpus {
namespace {

// C is what is computed in: float for float16.
template <class C>
C clipped(C value, C bound) {  // a negative bound is none
  return bound >= 0 ? value > bound ? bound : value < -bound ? -bound : value : value;
}

template <class C>
C sign(C value) {
  return static_cast<C>((value > 0) - (value < 0));
}

// The update of one kernel, for weights of type T.
template <class T>
struct Updates {
  using C = Computed<T>;

  static Work sgd(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *weight = read.array<T>(), *gradient = read.array<T>();
    C clip = read.number<C>(), rate = read.number<C>(), decay = read.number<C>(), scale = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C step = clip >= 0 ? rate * clipped<C>(scale * gradient[i], clip) : rate * scale * gradient[i];
      assign(out[i], request, (1 - rate * decay) * weight[i] - step);
    });
  }

  static Work mixed_sgd(const Launch& launch) {
    Arguments read(launch);
    auto* out = read.array<T>();
    read.array<T>();  // the weight, which the one in float32 replaces
    auto* gradient = read.array<T>();
    auto* weight = read.array<float>();
    float clip = read.value<float>(), rate = read.value<float>(), decay = read.value<float>(), scale = read.value<float>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      float step = clip >= 0 ? rate * clipped<float>(scale * gradient[i], clip) : rate * scale * gradient[i];
      weight[i] = (1 - rate * decay) * weight[i] - step;
      assign(out[i], request, weight[i]);
    });
  }

  static Work momentum(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *velocity = read.array<T>(), *weight = read.array<T>(), *gradient = read.array<T>();
    C clip = read.number<C>(), keep = read.number<C>(), rate = read.number<C>(), decay = read.number<C>();
    C scale = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C step = clip >= 0 ? rate * clipped<C>(scale * gradient[i], clip) : rate * scale * gradient[i];
      velocity[i] = keep * velocity[i] - rate * decay * weight[i] - step;
      assign(out[i], request, static_cast<C>(weight[i]) + static_cast<C>(velocity[i]));
    });
  }

  static Work mixed_momentum(const Launch& launch) {
    Arguments read(launch);
    auto* out = read.array<T>();
    auto* velocity = read.array<float>();
    read.array<T>();
    auto* gradient = read.array<T>();
    auto* weight = read.array<float>();
    float clip = read.value<float>(), keep = read.value<float>(), rate = read.value<float>(), decay = read.value<float>();
    float scale = read.value<float>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      float step = clip >= 0 ? rate * clipped<float>(scale * gradient[i], clip) : rate * scale * gradient[i];
      velocity[i] = keep * velocity[i] - rate * decay * weight[i] - step;
      weight[i] += velocity[i];
      assign(out[i], request, weight[i]);
    });
  }

  static Work nesterov(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *velocity = read.array<T>(), *weight = read.array<T>(), *gradient = read.array<T>();
    C clip = read.number<C>(), keep = read.number<C>(), rate = read.number<C>(), decay = read.number<C>();
    C scale = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C old = weight[i], kept = keep * velocity[i], slope = clipped<C>(scale * gradient[i], clip);
      assign(out[i], request, old - kept + (keep + 1) * (kept - rate * (slope + decay * old)));
      velocity[i] = kept - rate * (slope + decay * weight[i]);  // of the new weight, where `out` is the weight
    });
  }

  static Work mixed_nesterov(const Launch& launch) {
    Arguments read(launch);
    auto* out = read.array<T>();
    auto* velocity = read.array<float>();
    read.array<T>();
    auto* gradient = read.array<T>();
    auto* weight = read.array<float>();
    float clip = read.value<float>(), keep = read.value<float>(), rate = read.value<float>(), decay = read.value<float>();
    float scale = read.value<float>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      float kept = keep * velocity[i], slope = clipped<float>(scale * gradient[i], clip);
      weight[i] = weight[i] - kept + (keep + 1) * (kept - rate * (slope + decay * weight[i]));
      velocity[i] = kept - rate * (slope + decay * weight[i]);  // of the new weight
      assign(out[i], request, weight[i]);
    });
  }

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
      assign(out[i], request, weight[i] - rate * mean[i] / (std::sqrt(static_cast<C>(variance[i])) + epsilon));
    });
  }

  static Work adamw(const Launch& launch) {
    Arguments read(launch);
    auto* out = read.array<T>();
    auto *mean = read.array<float>(), *variance = read.array<float>();
    read.array<T>();
    auto* gradient = read.array<T>();
    auto* weight = read.array<float>();
    float clip = read.value<float>(), beta1 = read.value<float>(), beta2 = read.value<float>(), eta = read.value<float>();
    float rate = read.value<float>(), decay = read.value<float>(), scale = read.value<float>(), epsilon = read.value<float>();
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
    auto *out = read.array<T>(), *square = read.array<T>(), *weight = read.array<T>(), *gradient = read.array<T>();
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
    C rate = read.number<C>(), decay = read.number<C>(), clip_weights = read.number<C>(), epsilon = read.number<C>();
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
      assign(out[i], request, (sign(sum) * lambda - sum) / ((beta + root) / rate + decay) * C(std::fabs(sum) > lambda));
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

  static Work sign_sgd(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *weight = read.array<T>(), *gradient = read.array<T>();
    read.number<C>();  // a bound, which does nothing
    C rate = read.number<C>(), decay = read.number<C>();
    read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      assign(out[i], request, (1 - rate * decay) * weight[i] - rate * sign<C>(gradient[i]));
    });
  }

  static Work signum(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *velocity = read.array<T>(), *weight = read.array<T>(), *gradient = read.array<T>();
    C clip = read.number<C>(), keep = read.number<C>(), rate = read.number<C>(), decay = read.number<C>();
    C scale = read.number<C>(), decoupled_decay = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(scale * gradient[i], clip);
      velocity[i] = keep * velocity[i] - (1 - keep) * decay * weight[i] - (1 - keep) * slope;
      assign(out[i], request, (1 - rate * decoupled_decay) * weight[i] + rate * sign<C>(velocity[i]));
    });
  }

  // LAMB's two halves: the direction, then a step in it as long as two norms say.
  static Work lamb_direction(const Launch& launch) { return direction<T>(launch, false); }
  static Work mixed_lamb_direction(const Launch& launch) { return direction<float>(launch, true); }

  template <class S>  // the type of the states
  static Work direction(const Launch& launch, bool mixed) {
    Arguments read(launch);
    auto *out = read.array<S>(), *mean = read.array<S>(), *variance = read.array<S>();
    auto *weight = read.array<T>(), *gradient = read.array<T>();
    auto* weight32 = mixed ? read.array<float>() : nullptr;
    C clip = read.number<C>(), scale = read.number<C>(), betas[4];
    for (C& beta : betas) beta = read.number<C>();
    C beta1 = betas[mixed ? 1 : 0], beta1_t = betas[mixed ? 0 : 1];  // MXNet's two kernels have them in two orders
    C beta2 = betas[mixed ? 3 : 2], beta2_t = betas[mixed ? 2 : 3];
    C decay = read.number<C>(), epsilon = read.number<C>();
    read.value<int>();
    bool corrects = read.value<bool>();
    int request = read.value<int>();
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

  template <class S>
  static Work step(const Launch& launch, bool mixed) {
    Arguments read(launch);
    auto *out = read.array<T>(), *weight = read.array<T>();
    auto *direction = read.array<S>(), *norm1 = read.any_array<S>(1), *norm2 = read.any_array<S>(1);
    auto* weight32 = mixed ? read.array<float>() : nullptr;
    C rate = read.number<C>(), lower = read.number<C>(), upper = read.number<C>();
    int request = read.value<int>();
    return [=, n = launch.n()] {
      C norm = *norm1;
      if (lower >= 0) norm = std::max(norm, lower);
      if (upper >= 0) norm = std::min(norm, upper);
      C adjusted = norm == 0 || *norm2 == 0 ? rate : rate * norm / *norm2;
      for (int i = 0; i < n; i++) assign(out[i], request, (mixed ? C(weight32[i]) : C(weight[i])) - adjusted * direction[i]);
    };
  }
};

// The kernel's UPDATE, for the type of the weights, which is that of argument `place`.
#define UPDATE(kernel, update, place)                                                              \
  const Registered registered_##kernel(#kernel, [](const Launch& launch) {                         \
    Work work;                                                                                     \
    const std::string& word = launch.parameter(place).word;                                        \
    if (word == "float") work = Updates<float>::update(launch);                                    \
    if (word == "double") work = Updates<double>::update(launch);                                  \
    if (word == "half_t") work = Updates<half>::update(launch);                                    \
    return work;                                                                                   \
  })

UPDATE(SGDKernel, sgd, 1);
UPDATE(SGDMomKernel, momentum, 1);
UPDATE(MP_SGDKernel, mixed_sgd, 1);
UPDATE(MP_SGDMomKernel, mixed_momentum, 1);
UPDATE(NAGMomKernel, nesterov, 1);
UPDATE(MP_NAGMomKernel, mixed_nesterov, 1);
UPDATE(AdamUpdateKernel, adam, 1);
UPDATE(MPAdamWKernel, adamw, 1);
UPDATE(RMSPropUpdateKernel, rmsprop, 1);
UPDATE(RMSPropAlexUpdateKernel, centred_rmsprop, 1);
UPDATE(FtrlUpdateKernel, ftrl, 1);
UPDATE(FTMLKernel, ftml, 1);
UPDATE(SignSGDKernel, sign_sgd, 1);
UPDATE(SignumKernel, signum, 1);
UPDATE(LambUpdatePhaseOneKernel, lamb_direction, 1);
UPDATE(MPLambUpdatePhaseOneKernel, mixed_lamb_direction, 4);
UPDATE(LambUpdatePhaseTwoKernel, lamb_step, 1);
UPDATE(MPLambUpdatePhaseTwoKernel, mixed_lamb_step, 1);

}  // namespace
}  // namespace gpus
