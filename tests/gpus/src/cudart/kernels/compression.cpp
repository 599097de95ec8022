// Gradients in two bits each (kvstore/gradient_compression-inl.h): 16 of them in the place of one float32.
#include "arguments.h"

namespace gpus {
namespace {

constexpr int IN_ONE = 16;
constexpr unsigned POSITIVE = 3, NEGATIVE = 2;  // 11 and 10, from the upper bits of each byte on

int shift(long i) { return 8 * (i % IN_ONE / 4) + 6 - 2 * (i % 4); }  // of an element in its word

// quantize_2bit(N, elements, out, gradient, residual, -threshold, threshold)
Work quantize(const Launch& launch) {
  long words = launch.n(), elements = launch.value<int>(1);
  auto* out = launch.array<uint32_t>(2, words);
  auto *gradient = launch.array<float>(3, elements), *residual = launch.array<float>(4, elements);
  float negative = launch.value<float>(5), positive = launch.value<float>(6);
  return each(words, [=](long word) {
    uint32_t bits = 0;
    for (long i = word * IN_ONE; i < std::min(elements, (word + 1) * IN_ONE); i++) {
      residual[i] += gradient[i];
      if (residual[i] >= positive) {
        bits |= POSITIVE << shift(i);
        residual[i] -= positive;
      } else if (residual[i] <= negative) {
        bits |= NEGATIVE << shift(i);
        residual[i] -= negative;
      }
    }
    out[word] = bits;
  });
}

// dequantize_2bit(N, out, in, -threshold, threshold)
Work dequantize(const Launch& launch) {
  long n = launch.n();
  auto* out = launch.array<float>(1, n);
  auto* in = launch.array<uint32_t>(2, (n + IN_ONE - 1) / IN_ONE);
  float negative = launch.value<float>(3), positive = launch.value<float>(4);
  return each(n, [=](long i) {
    unsigned bits = in[i / IN_ONE] >> shift(i) & 3;
    out[i] = bits == POSITIVE ? positive : bits == NEGATIVE ? negative : 0;
  });
}

const Registered registered{{"quantize_2bit", quantize}, {"dequantize_2bit", dequantize}};

}  // namespace
}  // namespace gpus
