// Updates along the gradient, or its sign: SGD, with momentum, with that of Nesterov.
#include <cmath>

#include "updates.h"

namespace gpus {
namespace {

// With MIXED precision the weights in float32 are those that count, and states are float32, too.
template <class T> struct Updates {
  using C = Computed<T>;
  template <bool MIXED> using State = std::conditional_t<MIXED, float, T>;

  template <bool MIXED> static C current(const T* weight, const float* weight32, long i) {
    if constexpr (MIXED) return weight32[i];
    return static_cast<C>(weight[i]);
  }

  static C step_of(C rate, C scale, C slope, C clip) {
    return clip >= 0 ? rate * clipped<C>(scale * slope, clip) : rate * scale * slope;
  }

  template <bool MIXED> static Work sgd(const Launch& launch) {
    Arguments read(launch);
    T *out, *weight, *gradient;
    float* weight32 = nullptr;
    C clip, rate, decay, scale;
    int request;
    read(out, weight, gradient);
    if (MIXED) read(weight32);
    read(clip, rate, decay, scale, request);
    return each(launch.n(), [=](long i) {
      C step = step_of(rate, scale, gradient[i], clip);
      C updated = (1 - rate * decay) * current<MIXED>(weight, weight32, i) - step;
      if (MIXED) weight32[i] = static_cast<float>(updated);
      assign(out[i], request, updated);
    });
  }

  template <bool MIXED> struct WithMomentum {
    T *out, *weight, *gradient;
    State<MIXED>* velocity;
    float* weight32 = nullptr;
    C clip, keep, rate, decay, scale;
    int request;

    explicit WithMomentum(const Launch& launch) {
      Arguments read(launch);
      read(out, velocity, weight, gradient);
      if (MIXED) read(weight32);
      read(clip, keep, rate, decay, scale, request);
    }
    C now(long i) const { return current<MIXED>(weight, weight32, i); }
    void set(long i, C updated) const {
      if (MIXED) weight32[i] = static_cast<float>(updated);
      assign(out[i], request, updated);
    }
  };

  template <bool MIXED> static Work momentum(const Launch& launch) {
    return each(launch.n(), [its = WithMomentum<MIXED>(launch)](long i) {
      C old = its.now(i), step = step_of(its.rate, its.scale, its.gradient[i], its.clip);
      its.velocity[i] = its.keep * its.velocity[i] - its.rate * its.decay * old - step;
      its.set(i, old + static_cast<C>(its.velocity[i]));
    });
  }

  template <bool MIXED> static Work nesterov(const Launch& launch) {
    return each(launch.n(), [its = WithMomentum<MIXED>(launch)](long i) {
      C old = its.now(i), kept = its.keep * its.velocity[i];
      C slope = clipped<C>(its.scale * its.gradient[i], its.clip);
      its.set(i, old - kept + (its.keep + 1) * (kept - its.rate * (slope + its.decay * old)));
      // Where `out` is the weight, this decays the new one.
      its.velocity[i] = kept - its.rate * (slope + its.decay * its.now(i));
    });
  }

  static Work sign_sgd(const Launch& launch) {
    Arguments read(launch);
    T *out, *weight, *gradient;
    C clip, rate, decay, scale;  // of which the first and the last do nothing to a sign
    int request;
    read(out, weight, gradient, clip, rate, decay, scale, request);
    return each(launch.n(),
                [=](long i) { assign(out[i], request, (1 - rate * decay) * weight[i] - rate * sign<C>(gradient[i])); });
  }

  static Work signum(const Launch& launch) {
    Arguments read(launch);
    T *out, *velocity, *weight, *gradient;
    C clip, keep, rate, decay, scale, decoupled_decay;
    int request;
    read(out, velocity, weight, gradient, clip, keep, rate, decay, scale, decoupled_decay, request);
    return each(launch.n(), [=](long i) {
      C slope = clipped<C>(scale * gradient[i], clip);
      velocity[i] = keep * velocity[i] - (1 - keep) * decay * weight[i] - (1 - keep) * slope;
      assign(out[i], request, (1 - rate * decoupled_decay) * weight[i] + rate * sign<C>(velocity[i]));
    });
  }
};

UPDATE(SGDKernel, template sgd<false>, 1);
UPDATE(SGDMomKernel, template momentum<false>, 1);
UPDATE(MP_SGDKernel, template sgd<true>, 1);
UPDATE(MP_SGDMomKernel, template momentum<true>, 1);
UPDATE(NAGMomKernel, template nesterov<false>, 1);
UPDATE(MP_NAGMomKernel, template nesterov<true>, 1);
UPDATE(SignSGDKernel, sign_sgd, 1);
UPDATE(SignumKernel, signum, 1);

}  // namespace
}  // namespace gpus
