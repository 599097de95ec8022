// Arrays that are filled: sums of several, ranges, casts,
// and simple functions of one with numbers of its own.
#include "arguments.h"

namespace gpus {
namespace {

template <class C> Work sum_in(const Launch& launch) {
  int n = launch.elements(), request = launch.value<int>(2), arrays = launch.count() - 3;
  Access<C> access = gpus::access<C>(launch.parameter(1));
  if (!access) return {};
  bool rounds = is_half(launch.parameter(1));
  void* out = launch.pointer(1, n);
  std::vector<const void*> in;
  for (int k = 0; k < arrays; k++) in.push_back(launch.pointer(3 + k, n));
  return [=] {
    C sum[BLOCK], values[BLOCK];
    for (int first = 0; first < n; first += BLOCK) {
      int block = std::min(BLOCK, n - first);
      access.load(access.at(in.back(), first), 1, block, sum);  // a + (b + (c + d)): from the last on
      for (int k = arrays - 2; k >= 0; k--) {
        access.load(access.at(in[k], first), 1, block, values);
        for (int i = 0; i < block; i++) sum[i] = values[i] + sum[i];
        if (rounds) round_to_half(sum, block);
      }
      access.store(access.at(out, first), block, sum, request);
    }
  };
}

// Sum(N, out, request, in...), of add_n
Work sum(const Launch& launch) {
  return in_computed_type(launch, {1}, [&](auto number) { return sum_in<decltype(number)>(launch); });
}

// range_fwd(N, repeat, start, step, request, out)
Work range(const Launch& launch) {
  int repeat = launch.value<int>(1), request = launch.value<int>(4);
  return typed(launch.parameter(5), [&](auto element) -> Work {
    using T = decltype(element);
    using C = Computed<T>;
    C start = launch.value<T>(2), step = launch.value<T>(3);
    auto* out = launch.array<T>(5, launch.n());
    return each(launch.n(), [=](long i) { assign(out[i], request, start + static_cast<C>(i / repeat) * step); });
  });
}

// clip(N, out, in, least, most), and clip_grad(N, out, gradient, in, least, most)
template <bool gradient> Work clip(const Launch& launch) {
  int n = launch.n(), bounds = gradient ? 4 : 3;
  float least = launch.value<float>(bounds), most = launch.value<float>(bounds + 1);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, n), *in = launch.array<T>(gradient ? 3 : 2, n);
    auto* slopes = gradient ? launch.array<T>(2, n) : nullptr;
    return each(n, [=](long i) {
      T value = in[i];
      if (gradient)
        out[i] = value > most || value < least ? T(0) : slopes[i];
      else
        out[i] = value > most ? static_cast<T>(most) : value < least ? static_cast<T>(least) : value;
    });
  });
}

// identity_with_cast(N, out, in)
Work cast(const Launch& launch) {
  return typed(launch.parameter(1), [&](auto out_element) {
    return typed(launch.parameter(2), [&](auto in_element) -> Work {
      auto* out = static_cast<decltype(out_element)*>(launch.pointer(1, launch.n()));
      auto* in = static_cast<decltype(in_element)*>(launch.pointer(2, launch.n()));
      return each(launch.n(), [=](long i) { out[i] = stored<decltype(out_element)>(in[i]); });
    });
  });
}

// set_to_int<value>(N, out)
Work fill(const Launch& launch) {
  int value = request_in(launch.operation(), 0);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(1, launch.n());
    return [=, n = launch.n()] { std::fill(out, out + n, static_cast<T>(value)); };
  });
}

// hard_sigmoid_forward<request>(N, out, in, alpha, beta), and hard_sigmoid_backward(N, gradient, in,
// out gradient, alpha, beta)
template <bool gradient> Work hard_sigmoid(const Launch& launch) {
  int request = request_in(launch.operation(), 0), n = launch.n(), last = launch.count() - 1;
  return typed_real(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    using C = Computed<T>;
    C alpha = launch.value<float>(last - 1), beta = launch.value<float>(last);
    auto *out = launch.array<T>(1, n), *in = launch.array<T>(2, n);
    auto* slopes = gradient ? launch.array<T>(3, n) : nullptr;
    return each(n, [=](long i) {
      C value = alpha * static_cast<C>(in[i]) + beta;
      if (gradient)
        assign(out[i], request, value > 0 && value < 1 ? static_cast<C>(slopes[i]) * alpha : C(0));
      else
        assign(out[i], request, std::min<C>(std::max<C>(value, 0), 1));
    });
  });
}

const Registered registered{{"Sum", sum},
                            {"range_fwd", range},
                            {"clip", clip<false>},
                            {"clip_grad", clip<true>},
                            {"identity_with_cast", cast},
                            {"set_to_int", fill},
                            {"hard_sigmoid_forward", hard_sigmoid<false>},
                            {"hard_sigmoid_backward", hard_sigmoid<true>}};

}  // namespace
}  // namespace gpus
