// Random numbers of MXNet's parallel generators: 32768 of them, each with a state on the GPU.
#include <cmath>

#include "arguments.h"

namespace gpus {
namespace {

// Philox 4x32-10, of Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). As
// cuRAND has it, a generator's number is the upper half of the counter,
// and each block of four numbers is one step of the lower half.
class Philox {
 public:
  Philox(uint32_t seed, uint32_t number) : counter_{0, 0, number, 0}, key_{seed, 0} { make(); }

  uint32_t next() {
    if (used_ == 4) {
      if (++counter_[0] == 0) ++counter_[1];
      make();
    }
    return numbers_[used_++];
  }

  float uniform() { return 1 - positive(); }  // [0, 1)

  float normal() {  // by Box and Muller, who make two
    if (has_normal_) {
      has_normal_ = false;
      return normal_;
    }
    float radius = std::sqrt(-2 * std::log(positive())), angle = positive() * static_cast<float>(2 * M_PI);
    has_normal_ = true;
    normal_ = radius * std::cos(angle);
    return radius * std::sin(angle);
  }

 private:
  float positive() { return next() * 0x1p-32f + 0x1p-33f; }  // (0, 1]

  void make() {
    uint32_t key[2] = {key_[0], key_[1]};
    std::copy(counter_, counter_ + 4, numbers_);
    for (int round = 0; round < 10; round++) {
      uint64_t first = uint64_t(0xD2511F53) * numbers_[0], second = uint64_t(0xCD9E8D57) * numbers_[2];
      numbers_[0] = static_cast<uint32_t>(second >> 32) ^ numbers_[1] ^ key[0];
      numbers_[1] = static_cast<uint32_t>(second);
      numbers_[2] = static_cast<uint32_t>(first >> 32) ^ numbers_[3] ^ key[1];
      numbers_[3] = static_cast<uint32_t>(first);
      key[0] += 0x9E3779B9;
      key[1] += 0xBB67AE85;
    }
    used_ = 0;
  }

  uint32_t counter_[4], key_[2], numbers_[4];
  uint32_t used_ = 0;
  bool has_normal_ = false;
  float normal_ = 0;
};

constexpr size_t STATE = 64;  // bytes of curandStatePhilox4_32_10
static_assert(sizeof(Philox) <= STATE, "a generator lies in the state of cuRAND's");

Philox& generator(char* states, long number) { return *reinterpret_cast<Philox*>(states + number * STATE); }

// rand_generator_seed_kernel(states, how many, seed)
Work seed(const Launch& launch) {
  int count = launch.value<int>(1);
  uint32_t seed = launch.value<uint32_t>(2);
  auto* states = launch.value<char*>(0);
  launch.check(states, count * STATE);
  return each(count, [=](long number) { generator(states, number) = Philox(seed, number); });
}

// draw(generator, i) for i in [0, N), `step` of them by each generator: the arguments (threads, generators,
// N, step, ...).
template <class Draw> Work drawn(const Launch& launch, Draw draw) {
  int threads = launch.n(), n = launch.value<int>(2), step = launch.value<int>(3);
  auto* states = launch.value<char*>(1);
  launch.check(states, threads * STATE);
  return each(threads, [=](long thread) {
    Philox& random = generator(states, thread);
    for (long i = thread * step; i < std::min<long>(n, (thread + 1) * step); i++) draw(random, i);
  });
}

// DropoutKernel(..., out, mask, in, keep), and BernoulliKernel(..., mask, keep)
template <bool applies> Work dropout(const Launch& launch) {
  int n = launch.value<int>(2);
  float keep = launch.value<float>(applies ? 7 : 5);
  return typed_real(launch.parameter(4), [&](auto element) {
    using T = decltype(element);
    auto* mask = launch.array<T>(applies ? 5 : 4, n);
    auto* out = applies ? launch.array<T>(4, n) : nullptr;
    auto* in = applies ? launch.array<T>(6, n) : nullptr;
    return drawn(launch, [=](Philox& random, long i) {
      float number = random.uniform();
      mask[i] = static_cast<T>((applies ? number <= keep : number < keep) ? 1 / keep : 0);
      if (applies) out[i] = static_cast<T>(static_cast<Computed<T>>(in[i]) * static_cast<Computed<T>>(mask[i]));
    });
  });
}

// Sample...Kernel(..., parameters, samples, parameter arrays..., out): as many samples of each parameter
struct Samples {
  int each;
  Access<double> access;
  const void* parameters[2];

  Samples(const Launch& launch, int arrays) {
    int count = launch.value<int>(4), samples = launch.value<int>(5);
    each = 1 + (samples - 1) / count;
    access = gpus::access<double>(launch.parameter(6));
    for (int array = 0; array < arrays; array++) parameters[array] = launch.pointer(6 + array, count);
  }
  double parameter(int array, long i) const { return access.get(access.at(parameters[array], i / each)); }
};

// `draw(generator, first parameter, second parameter)`
template <class Draw> Work sampled(const Launch& launch, int arrays, Draw draw) {
  Samples samples(launch, arrays);
  int place = 6 + arrays;
  if (!samples.access) return {};
  return typed(launch.parameter(place), [&](auto element) {
    using T = decltype(element);
    auto* out = launch.array<T>(place, launch.value<int>(2));
    return drawn(launch, [=](Philox& random, long i) {
      double second = arrays > 1 ? samples.parameter(1, i) : 0;
      out[i] = stored<T>(draw(random, samples.parameter(0, i), second));
    });
  });
}

Work uniform(const Launch& launch) {
  return sampled(launch, 2,
                 [](Philox& random, double low, double high) { return low + (high - low) * random.uniform(); });
}

Work normal(const Launch& launch) {
  return sampled(launch, 2,
                 [](Philox& random, double mean, double deviation) { return random.normal() * deviation + mean; });
}

Work exponential(const Launch& launch) {
  return sampled(launch, 1,
                 [](Philox& random, double rate, double) { return -std::log(1.0 - random.uniform()) / rate; });
}

// By Knuth for small means; a rounded normal number for others, whose distribution is near.
double poisson(Philox& random, double mean) {
  if (mean > 30) return std::max(0.0, std::floor(mean + std::sqrt(mean) * random.normal() + 0.5));
  double product = 1;
  int count = -1;
  for (double limit = std::exp(-mean); product > limit; count++) product *= random.uniform();
  return count;
}

Work poisson_numbers(const Launch& launch) {
  return sampled(launch, 1, [](Philox& random, double mean, double) { return poisson(random, mean); });
}

// Marsaglia and Tsang: A simple method for generating gamma variables (2000).
double gamma(Philox& random, double shape, double scale) {
  if (shape < 1) return gamma(random, shape + 1, scale) * std::pow(1.0 - random.uniform(), 1 / shape);
  double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    double x = random.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1.0 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v * scale;
  }
}

Work gamma_numbers(const Launch& launch) { return sampled(launch, 2, gamma); }

// How many fail before k succeed, each with probability p: a Poisson number whose mean is a gamma number.
Work negative_binomial(const Launch& launch) {
  return sampled(launch, 2,
                 [](Philox& random, double k, double p) { return poisson(random, gamma(random, k, (1 - p) / p)); });
}

// By mean and dispersion, of which 0 leaves a Poisson number.
Work dispersed(const Launch& launch) {
  return sampled(launch, 2, [](Philox& random, double mean, double alpha) {
    return poisson(random, alpha == 0 ? mean : gamma(random, 1 / alpha, alpha * mean));
  });
}

Work integers(const Launch& launch) {
  return sampled(launch, 2, [](Philox& random, double low, double high) {
    return low + static_cast<double>(random.next() % static_cast<uint64_t>(high - low));
  });
}

// CopyForShuffle(N, in, out, order, elements of a row)
Work shuffle(const Launch& launch) {
  int n = launch.n(), row = launch.value<int>(4);
  auto* order = launch.array<int>(3, n / row);
  return typed(launch.parameter(1), [&](auto element) {
    using T = decltype(element);
    auto *in = launch.array<T>(1, n), *out = launch.array<T>(2, n);
    return each(n, [=](long i) { out[i] = in[static_cast<long>(order[i / row]) * row + i % row]; });
  });
}

const Registered registered{{"rand_generator_seed_kernel", seed},
                            {"DropoutKernel", dropout<true>},
                            {"BernoulliKernel", dropout<false>},
                            {"SampleUniformKernel", uniform},
                            {"SampleNormalKernel", normal},
                            {"SampleExponentialKernel", exponential},
                            {"SamplePoissonKernel", poisson_numbers},
                            {"SampleGammaKernel", gamma_numbers},
                            {"SampleNegativeBinomialKernel", negative_binomial},
                            {"SampleGeneralizedNegativeBinomialKernel", dispersed},
                            {"SampleRandIntKernel", integers},
                            {"CopyForShuffle", shuffle}};

}  // namespace
}  // namespace gpus
