// The functions of MXNet's elementwise operators (mshadow_op, mshadow::op), by name.
#pragma once

#include <string>

namespace gpus {

// Each computes n elements. C: float, double or int64_t; in integers,
// what is no integer is computed in float and cut off.
template <class C> using Unary = void (*)(const C* a, C* out, int n);
template <class C> using Binary = void (*)(const C* a, const C* b, C* out, int n);

// nullptr: there is none of this name.
template <class C> Unary<C> unary(const std::string& name);
template <class C> Binary<C> binary(const std::string& name);

}  // namespace gpus
