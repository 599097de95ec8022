// What is asked of many arrays at once: the squares of their norms, and whether all of them are finite.
#include <cmath>
#include <memory>

#include "arguments.h"

namespace gpus {
namespace {

// mxnet::op::MultiSumSqKernelParam
template <class T> struct SumOfSquaresParameters {
  static constexpr int MOST = 110, BLOCKS = 320;
  T* arrays[MOST];
  int sizes[MOST];
  unsigned char block_array[BLOCKS];
  int block_chunk[BLOCKS], chunks;
};

// MultiSumSqKernel(chunk size, parameters, sums of chunks, first array): a block for each chunk
template <class T> Work sums_of_chunks(const Launch& launch) {
  auto p = std::make_shared<SumOfSquaresParameters<T>>(launch.value<SumOfSquaresParameters<T>>(1));
  int chunk_size = launch.value<int>(0), first = launch.value<int>(3), blocks = launch.grid.x;
  auto* sums = launch.array<float>(2);
  for (int block = 0; block < blocks; block++) {
    int k = p->block_array[block];
    launch.check(p->arrays[k], p->sizes[k] * sizeof(T));
  }
  return [=] {
    for (int block = 0; block < blocks; block++) {
      int k = p->block_array[block], chunk = p->block_chunk[block];
      int begin = chunk * chunk_size, end = std::min(p->sizes[k], begin + chunk_size);
      double sum = 0;
      for (int i = begin; i < end; i++)
        sum += static_cast<double>(p->arrays[k][i]) * static_cast<double>(p->arrays[k][i]);
      sums[(first + k) * p->chunks + chunk] = static_cast<float>(sum);
    }
  };
}

// GlobalReductionKernel(parameters, sums of chunks, sums): a block for each array
template <class T> Work sums_of_arrays(const Launch& launch) {
  int chunks = launch.value<SumOfSquaresParameters<T>>(0).chunks, arrays = launch.grid.x;
  auto* sums = launch.array<float>(1, static_cast<size_t>(chunks) * arrays);
  auto* out = launch.array<float>(2, arrays);
  return [=] {
    for (int k = 0; k < arrays; k++) {
      float sum = 0;
      for (int chunk = 0; chunk < chunks; chunk++) sum += sums[k * chunks + chunk];
      out[k] = sum;
    }
  };
}

// MultiLARSKernel(N, out, rates, squares of weights, squares of gradients, decays, eta, epsilon,
// scale, request)
Work lars(const Launch& launch) {
  Arguments read(launch);
  auto *out = read.array<float>(), *rates = read.array<float>(), *weights = read.array<float>();
  auto *gradients = read.array<float>(), *decays = read.array<float>();
  float eta = read.value<float>(), epsilon = read.value<float>(), scale = read.value<float>();
  int request = read.value<int>();
  return each(launch.n(), [=](long i) {
    float norm = std::sqrt(weights[i]), slope = std::sqrt(gradients[i]) * scale;
    bool valid = norm > 0 && gradients[i] > 0;
    assign(out[i], request, valid ? rates[i] * eta * norm / (slope + decays[i] * norm + epsilon) : rates[i]);
  });
}

template <class T> bool all_finite(const T* array, size_t n) {
  bool finite = true;
  for (size_t i = 0; i < n; i++) finite &= std::isfinite(static_cast<float>(array[i]));
  return finite;
}

// AllFiniteGPUKernel(n, array, out): out becomes 0 where one is not, and stays what it is otherwise
Work finite(const Launch& launch) {
  int n = launch.value<int>(0);
  return typed_real(launch.parameter(1), [&](auto element) -> Work {
    auto* array = static_cast<decltype(element)*>(launch.pointer(1, n));
    auto* out = launch.array<float>(2, 1);
    return [=] {
      if (!all_finite(array, n)) *out = 0;
    };
  });
}

// mxnet::op::MultiAllFiniteKernelParam
template <class T> struct FiniteParameters {
  static constexpr int MOST = 200;
  int count;
  size_t longest, sizes[MOST];
  T* arrays[MOST];
};

// MultiAllFiniteGPUKernel(parameters, out)
Work many_finite(const Launch& launch) {
  return typed_real(launch.parameter(0).arguments[0], [&](auto element) -> Work {
    using Parameters = FiniteParameters<decltype(element)>;
    auto p = std::make_shared<Parameters>(launch.value<Parameters>(0));
    auto* out = launch.array<float>(1, 1);
    for (int k = 0; k < p->count; k++) launch.check(p->arrays[k], p->sizes[k] * sizeof element);
    return [=] {
      for (int k = 0; k < p->count; k++)
        if (!all_finite(p->arrays[k], p->sizes[k])) *out = 0;
    };
  });
}

const Registered registered{{"MultiSumSqKernel",
                             [](const Launch& launch) {
                               return typed_real(launch.parameter(1).arguments[0], [&](auto element) {
                                 return sums_of_chunks<decltype(element)>(launch);
                               });
                             }},
                            {"GlobalReductionKernel",
                             [](const Launch& launch) {
                               return typed_real(launch.parameter(0).arguments[0], [&](auto element) {
                                 return sums_of_arrays<decltype(element)>(launch);
                               });
                             }},
                            {"MultiLARSKernel", lars},
                            {"AllFiniteGPUKernel", finite},
                            {"MultiAllFiniteGPUKernel", many_finite}};

}  // namespace
}  // namespace gpus
