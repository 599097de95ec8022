// Before a kernel's source: the words of CUDA C++ that MXNet's fused operators,
// and simple kernels of mx.rtc, use.
#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>
#undef INT_MAX  // fused operators define it

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct dim3 {
  unsigned x, y, z;
};
static thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;

struct double2 {
  double x, y;
};
struct double4 {
  double x, y, z, w;
};

template <class T> inline T __ldg(const T* address) { return *address; }

// In place of PTX's cvt.rn.f16.f32 and cvt.f32.f16.

inline unsigned short gpus_to_half(float value) {
  _Float16 half = value;
  unsigned short bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}

inline float gpus_to_float(unsigned short bits) {
  _Float16 half;
  memcpy(&half, &bits, sizeof half);
  return half;
}

// What CUDA has and the C library lacks.

inline float rsqrtf(float x) { return 1 / sqrtf(x); }

inline float rcbrtf(float x) { return 1 / cbrtf(x); }

inline float erfinvf(float x) {
  if (!(fabsf(x) < 1)) return x == 1 ? INFINITY : x == -1 ? -INFINITY : NAN;
  // Winitzki's approximation, and Newton's steps from there.
  double a = 0.147, log_product = log((1.0 - x) * (1.0 + x)), b = 2 / (M_PI * a) + log_product / 2;
  double root = copysign(sqrt(sqrt(b * b - log_product / a) - b), x);
  for (int step = 0; step < 4; step++) root -= (erf(root) - x) / (M_2_SQRTPI * exp(-root * root));
  return root;
}
