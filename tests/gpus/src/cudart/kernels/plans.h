// mshadow's expressions. A kernel of theirs has an argument of type Plan<EXPRESSION, T>, a struct of structs
// in which the pointers, numbers and extents of the expression lie. Its type says all of its shape,
// so it can be read and evaluated.
#pragma once

#include <memory>

#include "arrays.h"

namespace gpus {

// An expression with two axes, as mshadow sees all of them: rows, and the last axis.
template <class C> class Plan {
 public:
  virtual ~Plan() = default;
  virtual void block(int row, int column, int n, C* out) const = 0;  // n <= BLOCK elements of a row
  C at(int row, int column) const {
    C value;
    block(row, column, 1, &value);
    return value;
  }
};

template <class C> using SharedPlan = std::shared_ptr<const Plan<C>>;

// Of an argument; nullptr where the expression has a part that is not known. Its tensors are checked.
template <class C> SharedPlan<C> read_plan(const Launch& launch, int place);

// A plan that is written to: a tensor, or a slice of one.
struct Target {
  void* data = nullptr;
  int stride = 0;
  Type type;
  void (*remap)(const int* numbers, int& row, int& column) = nullptr;
  std::vector<int> numbers;

  explicit operator bool() const { return !type.word.empty(); }  // an array without elements has no data

  // An element of `size` bytes, behind which those of the same row lie.
  void* at(int row, int column, size_t size) const {
    if (remap) remap(numbers.data(), row, column);
    return static_cast<char*>(data) + (static_cast<long>(row) * stride + column) * size;
  }
};
Target read_target(const Launch& launch, int place);

// out = value, out += value and the like, as sv::saveto, sv::plusto say.
template <class C> void save(const std::string& saver, const Access<C>& access, void* out, int n, const C* values) {
  if (saver == "saveto" || saver == "plusto") return access.store(out, n, values, saver == "plusto" ? ADD : WRITE);
  C old[BLOCK];
  access.load(out, 1, n, old);
  for (int i = 0; i < n; i++)
    old[i] = saver == "minusto" ? old[i] - values[i] : saver == "multo" ? old[i] * values[i] : old[i] / values[i];
  access.store(out, n, old, WRITE);
}

}  // namespace gpus
