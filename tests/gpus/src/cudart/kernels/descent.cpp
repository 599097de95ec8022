// Updates along the gradient, or its sign: SGD, with momentum, with that of Nesterov.
#include <cmath>

#include "updates.h"

namespace gpus {
namespace {

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
    float clip = read.value<float>(), rate = read.value<float>(), decay = read.value<float>(),
          scale = read.value<float>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      float step = clip >= 0 ? rate * clipped<float>(scale * gradient[i], clip) : rate * scale * gradient[i];
      weight[i] = (1 - rate * decay) * weight[i] - step;
      assign(out[i], request, weight[i]);
    });
  }

  static Work momentum(const Launch& launch) {
    Arguments read(launch);
    auto *out = read.array<T>(), *velocity = read.array<T>(), *weight = read.array<T>(),
         *gradient = read.array<T>();
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
    float clip = read.value<float>(), keep = read.value<float>(), rate = read.value<float>(),
          decay = read.value<float>();
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
    auto *out = read.array<T>(), *velocity = read.array<T>(), *weight = read.array<T>(),
         *gradient = read.array<T>();
    C clip = read.number<C>(), keep = read.number<C>(), rate = read.number<C>(), decay = read.number<C>();
    C scale = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C old = weight[i], kept = keep * velocity[i], slope = clipped<C>(scale * gradient[i], clip);
      assign(out[i], request, old - kept + (keep + 1) * (kept - rate * (slope + decay * old)));
      // Where `out` is the weight, this decays the new one.
      velocity[i] = kept - rate * (slope + decay * weight[i]);
    });
  }

  static Work mixed_nesterov(const Launch& launch) {
    Arguments read(launch);
    auto* out = read.array<T>();
    auto* velocity = read.array<float>();
    read.array<T>();
    auto* gradient = read.array<T>();
    auto* weight = read.array<float>();
    float clip = read.value<float>(), keep = read.value<float>(), rate = read.value<float>(),
          decay = read.value<float>();
    float scale = read.value<float>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      float kept = keep * velocity[i], slope = clipped<float>(scale * gradient[i], clip);
      weight[i] = weight[i] - kept + (keep + 1) * (kept - rate * (slope + decay * weight[i]));
      velocity[i] = kept - rate * (slope + decay * weight[i]);  // of the new weight
      assign(out[i], request, weight[i]);
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
    auto *out = read.array<T>(), *velocity = read.array<T>(), *weight = read.array<T>(),
         *gradient = read.array<T>();
    C clip = read.number<C>(), keep = read.number<C>(), rate = read.number<C>(), decay = read.number<C>();
    C scale = read.number<C>(), decoupled_decay = read.number<C>();
    int request = read.value<int>();
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(scale * gradient[i], clip);
      velocity[i] = keep * velocity[i] - (1 - keep) * decay * weight[i] - (1 - keep) * slope;
      assign(out[i], request, (1 - rate * decoupled_decay) * weight[i] + rate * sign<C>(velocity[i]));
    });
  }
};

UPDATE(SGDKernel, sgd, 1);
UPDATE(SGDMomKernel, momentum, 1);
UPDATE(MP_SGDKernel, mixed_sgd, 1);
UPDATE(MP_SGDMomKernel, mixed_momentum, 1);
UPDATE(NAGMomKernel, nesterov, 1);
UPDATE(MP_NAGMomKernel, mixed_nesterov, 1);
UPDATE(SignSGDKernel, sign_sgd, 1);
UPDATE(SignumKernel, signum, 1);

}  // namespace
}  // namespace gpus
