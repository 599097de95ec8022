// Functions that the C++ library lacks.
#pragma once

#include <cmath>

namespace gpus {

// The derivative of log(gamma): the recurrence up to where the asymptotic series is exact,
// and the reflection below 0.
inline double digamma(double x) {
  if (x <= 0 && x == std::floor(x)) return NAN;
  if (x < 0) return digamma(1 - x) - M_PI / std::tan(M_PI * x);
  double sum = 0;
  for (; x < 10; x++) sum -= 1 / x;
  double square = 1 / (x * x);
  double series =
      square * (1.0 / 12 - square * (1.0 / 120 - square * (1.0 / 252 - square * (1.0 / 240 - square / 132))));
  return sum + std::log(x) - 0.5 / x - series;
}

// x with erf(x) = y: a first guess by Winitzki's formula, then Newton's steps.
inline double inverse_erf(double y) {
  if (!(std::fabs(y) < 1)) return std::fabs(y) == 1 ? y * INFINITY : NAN;
  double logarithm = std::log1p(-y * y), half_way = 2 / (M_PI * 0.147) + logarithm / 2;
  double x = std::copysign(std::sqrt(std::sqrt(half_way * half_way - logarithm / 0.147) - half_way), y);
  for (int step = 0; step < 4; step++) x -= (std::erf(x) - y) / (M_2_SQRTPI * std::exp(-x * x));
  return x;
}

}  // namespace gpus
