// Numbers that arrays consist of, and the numbers that arithmetic on them is done in.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace gpus {

using half = _Float16;  // mshadow::half::half_t

// float16 is computed in float32 and rounded once, as mshadow's half_t and NVIDIA's libraries do it.
template <class T> using Computed = std::conditional_t<std::is_same_v<T, half>, float, T>;

// TF32: a float32 whose fraction has 10 bits, halves rounded away from zero, as cvt.rna.tf32 rounds.
inline float to_tf32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7F800000) == 0x7F800000) return value;  // infinite, or none
  bits = (bits + 0x1000) & ~uint32_t(0x1FFF);
  memcpy(&value, &bits, sizeof bits);
  return value;
}

}  // namespace gpus
