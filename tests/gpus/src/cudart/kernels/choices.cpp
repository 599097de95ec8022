// Drawing among numbered things: mx.np.random.choice, and mx.nd.random.multinomial.
#include <cmath>
#include <utility>

#include "arguments.h"

namespace gpus {
namespace {

// random_indices(N, random numbers, out, k): below k
Work indices(const Launch& launch) {
  auto* random = launch.array<uint32_t>(1, launch.n());
  auto* out = launch.array<int64_t>(2, launch.n());
  int64_t k = launch.value<int64_t>(3);
  return each(launch.n(), [=](long i) { out[i] = random[i] % k; });
}

// generate_samples(N, k, random numbers): of number i one of i + k + 1 places
Work places(const Launch& launch) {
  int64_t k = launch.value<int64_t>(1);
  auto* random = launch.array<uint32_t>(2, launch.n());
  return each(launch.n(), [=](long i) { random[i] %= static_cast<uint64_t>(i + k + 1); });
}

// generate_reservoir(1, indices, places, n, k): the first k indices are those that are drawn, without any
// twice
Work reservoir(const Launch& launch) {
  int64_t n = launch.value<int64_t>(3), k = launch.value<int64_t>(4);
  auto* all = launch.array<int64_t>(1, n + k);
  auto* chosen = launch.array<uint32_t>(2, n);
  return each(n, [=](long i) {
    if (chosen[i] < k) std::swap(all[chosen[i]], all[i + k]);
  });
}

// generate_keys(N, uniform numbers, weights): the largest keys are drawn, by Gumbel's numbers
Work keys(const Launch& launch) {
  Access<float> access = gpus::access<float>(launch.parameter(2));
  auto* uniform = launch.array<float>(1, launch.n());
  const void* weights = launch.pointer(2, launch.n());
  if (!access) return {};
  return each(launch.n(), [=](long i) {
    uniform[i] = -std::log(-std::log(uniform[i])) + std::log(access.get(access.at(weights, i)));
  });
}

// categorical_sampling(N, weights, how many, uniform numbers, out)
Work categories(const Launch& launch) {
  int64_t count = launch.value<int64_t>(2);
  Access<float> access = gpus::access<float>(launch.parameter(1));
  const void* weights = launch.pointer(1, count);
  auto* uniform = launch.array<float>(3, launch.n());
  auto* out = launch.array<int64_t>(4, launch.n());
  if (!access) return {};
  return each(launch.n(), [=](long i) {
    float sum = 0;
    out[i] = 0;
    for (int64_t k = 0; k < count; k++) out[i] += (sum += access.get(access.at(weights, k))) < uniform[i];
  });
}

// SampleMultinomialKernel(N, K, M, probabilities, uniform numbers, running sums, out, log probabilities): M
// draws of each of N rows of K
Work multinomial(const Launch& launch) {
  long rows = launch.n(), k = launch.value<int>(1), m = launch.value<int>(2);
  Access<double> in = access<double>(launch.parameter(3)), out = access<double>(launch.parameter(6));
  const void* probabilities = launch.pointer(3, rows * k);
  auto *uniform = launch.array<float>(4, rows * m), *sums = launch.array<float>(5, rows * k);
  void *draws = launch.pointer(6, rows * m), *logarithms = launch.pointer(7, rows * m);
  if (!in || !out) return {};
  return each(rows, [=](long row) {
    double sum = 0;
    for (long i = row * k; i < (row + 1) * k; i++) sums[i] = static_cast<float>(sum += in.get(in.at(probabilities, i)));
    for (long i = row * m; i < (row + 1) * m; i++) {
      float* first = sums + row * k;
      long chosen = std::min<long>(std::lower_bound(first, first + k, uniform[i]) - first, k - 1);
      double draw = chosen, logarithm = std::log(in.get(in.at(probabilities, row * k + chosen)));
      out.store(out.at(draws, i), 1, &draw, WRITE);
      if (logarithms) in.store(in.at(logarithms, i), 1, &logarithm, WRITE);
    }
  });
}

// SampleMultinomialBackwardGPUKernel(N, K, M, slopes, probabilities, draws, gradient): of the logarithms of
// what was drawn, M times of each of N rows of K
Work multinomial_slopes(const Launch& launch) {
  long rows = launch.n(), k = launch.value<int>(1), m = launch.value<int>(2);
  Indices draws(launch, 5, rows * m);
  if (!draws) return {};
  return typed_real(launch.parameter(6), [&](auto element) -> Work {
    using T = decltype(element);
    auto *slopes = launch.array<T>(3, rows * m), *probabilities = launch.array<T>(4, rows * k),
         *gradient = launch.array<T>(6, rows * k);
    return each(rows * m, [=](long i) {
      long place = i / m * k + draws[i];
      assign(gradient[place], ADD,
             static_cast<Computed<T>>(slopes[i]) / static_cast<Computed<T>>(probabilities[place]));
    });
  });
}

const Registered registered{{"random_indices", indices},
                            {"generate_samples", places},
                            {"generate_reservoir", reservoir},
                            {"generate_keys", keys},
                            {"categorical_sampling", categories},
                            {"SampleMultinomialKernel", multinomial},
                            {"SampleMultinomialBackwardGPUKernel", multinomial_slopes}};

}  // namespace
}  // namespace gpus
