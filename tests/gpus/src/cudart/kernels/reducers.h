// Reductions by name: red::sum, red::maximum, mshadow_op::nansum, ...
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>

namespace gpus {

// What a reduction has so far. Sums of floating-point numbers are kept in double:
// MXNet's own carry what rounding lost.
template <class C> struct State {
  std::conditional_t<std::is_floating_point_v<C>, double, C> value;
};

template <class C> class Reducer {
 public:
  using Sum = decltype(State<C>::value);
  virtual ~Reducer() = default;
  virtual State<C> start() const = 0;
  virtual void add(State<C>& state, const C* values, int n) const = 0;
  // states[i] with values[i]: many reductions side by side.
  virtual void add_each(State<C>* states, const C* values, int n) const = 0;
  virtual C finish(const State<C>& state) const { return static_cast<C>(state.value); }
};

// STEP: Sum operator()(Sum so_far, Sum value).
template <class C, class Step> class Simple : public Reducer<C> {
 public:
  using Sum = typename Reducer<C>::Sum;
  Simple(Sum first, bool takes_root = false) : first_(first), takes_root_(takes_root) {}
  State<C> start() const override { return {first_}; }
  void add(State<C>& state, const C* values, int n) const override {
    Sum lanes[LANES];
    std::fill(lanes, lanes + LANES, first_);
    int i = 0;
    for (; i + LANES <= n; i += LANES)
      for (int lane = 0; lane < LANES; lane++) lanes[lane] = Step()(lanes[lane], static_cast<Sum>(values[i + lane]));
    for (; i < n; i++) lanes[0] = Step()(lanes[0], static_cast<Sum>(values[i]));
    for (Sum lane : lanes) state.value = Step::together(state.value, lane);
  }
  void add_each(State<C>* states, const C* values, int n) const override {
    for (int i = 0; i < n; i++) states[i].value = Step()(states[i].value, static_cast<Sum>(values[i]));
  }
  C finish(const State<C>& state) const override {
    return static_cast<C>(takes_root_ ? static_cast<Sum>(std::sqrt(static_cast<double>(state.value))) : state.value);
  }

 private:
  static constexpr int LANES = 8;
  const Sum first_;
  const bool takes_root_;
};

struct Sums {
  template <class S> static S together(S a, S b) { return a + b; }
};

struct Products {
  template <class S> static S together(S a, S b) { return a * b; }
};

struct Adds : Sums {
  template <class S> S operator()(S sum, S value) const { return sum + value; }
};

struct AddsSquares : Sums {
  template <class S> S operator()(S sum, S value) const { return sum + value * value; }
};

struct AddsNumbers : Sums {  // no NaN
  template <class S> S operator()(S sum, S value) const { return value == value ? sum + value : sum; }
};

struct Multiplies : Products {
  template <class S> S operator()(S product, S value) const { return product * value; }
};

struct MultipliesNumbers : Products {
  template <class S> S operator()(S product, S value) const { return value == value ? product * value : product; }
};

struct TakesLarger {  // a NaN, once met, stays
  template <class S> S operator()(S so_far, S value) const {
    return so_far != so_far || so_far >= value ? so_far : value;
  }
  template <class S> static S together(S a, S b) { return TakesLarger()(a, b); }
};

struct TakesSmaller {
  template <class S> S operator()(S so_far, S value) const {
    return so_far != so_far || so_far <= value ? so_far : value;
  }
  template <class S> static S together(S a, S b) { return TakesSmaller()(a, b); }
};

// nullptr: none of this name.
template <class C> std::unique_ptr<Reducer<C>> reducer(const std::string& name) {
  using Sum = typename Reducer<C>::Sum;
  using Limits = std::numeric_limits<Sum>;
  Sum least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  Sum most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (name == "sum") return std::make_unique<Simple<C, Adds>>(0);
  if (name == "nansum") return std::make_unique<Simple<C, AddsNumbers>>(0);
  if (name == "nrm2") return std::make_unique<Simple<C, AddsSquares>>(0, true);
  if (name == "product") return std::make_unique<Simple<C, Multiplies>>(1);
  if (name == "nanprod") return std::make_unique<Simple<C, MultipliesNumbers>>(1);
  if (name == "maximum") return std::make_unique<Simple<C, TakesLarger>>(least);
  if (name == "minimum") return std::make_unique<Simple<C, TakesSmaller>>(most);
  return nullptr;
}

}  // namespace gpus
