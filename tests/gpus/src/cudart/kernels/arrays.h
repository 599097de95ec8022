// Arrays of any type, read and written a block at a time.
//
// A kernel's arithmetic is done on blocks of a few numbers of one type C: float, double or int64_t. Elements
// are converted while they are loaded and stored, so an operation is written once for each C, not for each
// pair of types, and each of its loops is a plain one that the compiler vectorizes.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "types.h"

namespace gpus {

constexpr int BLOCK = 512;  // elements; three blocks of doubles lie well in a first cache

template <class C, class T> C loaded(T element) { return static_cast<C>(element); }

// As MXNet casts: into float16 by way of float32, into a small integer by way of int32.
template <class T, class C> T stored(C value) {
  if constexpr (std::is_same_v<T, half>) return static_cast<half>(static_cast<float>(value));
  if constexpr (std::is_floating_point_v<C> && std::is_integral_v<T> && sizeof(T) == 1 && !std::is_same_v<T, bool>)
    return static_cast<T>(static_cast<int32_t>(value));
  return static_cast<T>(value);
}

// How to reach the elements of an array of one type as numbers of type C.
template <class C> struct Access {
  void (*load)(const void* from, long stride, int n, C* to);
  void (*store)(void* to, int n, const C* values, int request);
  C (*get)(const void* from);
  size_t size = 0;  // bytes of an element; 0: the type is none

  explicit operator bool() const { return size; }
  const void* at(const void* array, long place) const { return static_cast<const char*>(array) + place * size; }
  void* at(void* array, long place) const { return static_cast<char*>(array) + place * size; }
};

template <class C, class T> Access<C> access_of() {
  Access<C> access;
  access.size = sizeof(T);
  access.get = [](const void* from) { return loaded<C>(*static_cast<const T*>(from)); };
  access.load = [](const void* from, long stride, int n, C* to) {
    auto* elements = static_cast<const T*>(from);
    if (stride == 1)
      for (int i = 0; i < n; i++) to[i] = loaded<C>(elements[i]);
    else if (stride == 0)
      std::fill(to, to + n, loaded<C>(*elements));
    else
      for (int i = 0; i < n; i++) to[i] = loaded<C>(elements[i * stride]);
  };
  access.store = [](void* to, int n, const C* values, int request) {
    auto* elements = static_cast<T*>(to);
    if (request == ADD)
      for (int i = 0; i < n; i++) assign(elements[i], ADD, stored<T>(values[i]));
    else if (request != NOTHING)
      for (int i = 0; i < n; i++) elements[i] = stored<T>(values[i]);
  };
  return access;
}

template <class C> Access<C> access(const Type& type) {
  Access<C> found{};
  visit(type, [&](auto element) { found = access_of<C, decltype(element)>(); });
  return found;
}

// The C in which a kernel computes whose result has one of these types, and whose operands have the others.
template <class Visitor> bool visit_computed(const std::vector<const Type*>& types, Visitor&& visitor) {
  bool is_double = false, is_float = false;
  for (const Type* type : types) {
    is_double = is_double || type->word == "double";
    is_float = is_float || type->word == "float" || type->word.rfind("half", 0) == 0;
  }
  if (is_double)
    visitor(double());
  else if (is_float)
    visitor(float());
  else
    visitor(int64_t());
  return true;
}

// make(C()), for the C in which a kernel computes whose parameters have the types at these places.
template <class Make> Work in_computed_type(const Launch& launch, std::initializer_list<int> places, Make make) {
  std::vector<const Type*> types;
  for (int place : places) types.push_back(&launch.parameter(place));
  Work work;
  visit_computed(types, [&](auto number) { work = make(number); });
  return work;
}

inline bool is_half(const Type& type) { return type.word == "half_t" || type.word == "half2_t"; }

// An operation on float16 rounds its result; a block of C holds it as float.
template <class C> void round_to_half(C* values, int n) {
  for (int i = 0; i < n; i++) values[i] = static_cast<C>(static_cast<half>(static_cast<float>(values[i])));
}

// mshadow's Shape<N>: the extents of N axes.
struct Extents {
  std::vector<int> axes;

  Extents() = default;
  Extents(const void* shape, int count)
      : axes(static_cast<const int*>(shape), static_cast<const int*>(shape) + count) {}
  int operator[](int axis) const { return axes[axis]; }
  int count() const { return static_cast<int>(axes.size()); }
  long size() const {
    long product = 1;
    for (int extent : axes) product *= extent;
    return product;
  }
};

// The argument of a kernel that is a Shape<N>.
inline Extents extents(const Launch& launch, int place) {
  return Extents(launch.raw(place), atoi(launch.parameter(place).arguments[0].word.c_str()));
}

// Counts through the elements of a shape, in order,
// with the places of each in arrays that have strides of their own.
template <int ARRAYS> class Walk {
 public:
  Walk(const Extents& shape, const std::vector<int> (&strides)[ARRAYS], long first = 0) {
    for (int axis = 0; axis < shape.count(); axis++) add_axis(shape[axis], strides, axis);
    if (shape_.empty()) add(1, {});
    for (int axis = static_cast<int>(shape_.size()) - 1; axis >= 0; axis--) {
      step(axis, first % shape_[axis]);
      first /= shape_[axis];
    }
  }

  // How many of the next elements differ in the last axis only.
  int run() const { return shape_.back() - place_.back(); }
  int stride(int array) const { return strides_.back()[array]; }

  void advance(int run) {  // at most run()
    int last = static_cast<int>(shape_.size()) - 1;
    step(last, run);
    for (int axis = last; axis > 0 && place_[axis] == shape_[axis]; axis--) {
      step(axis, -shape_[axis]);
      step(axis - 1, 1);
    }
  }

  long at[ARRAYS] = {};  // of the next element

 private:
  using Steps = std::array<int, ARRAYS>;

  // Axes of one element are left out; two along which every array goes on as along one are one.
  void add_axis(int extent, const std::vector<int> (&strides)[ARRAYS], int axis) {
    if (extent == 1) return;
    Steps steps;
    for (int array = 0; array < ARRAYS; array++) steps[array] = strides[array][axis];
    bool goes_on = !shape_.empty();
    for (int array = 0; goes_on && array < ARRAYS; array++) goes_on = strides_.back()[array] == steps[array] * extent;
    if (goes_on) {
      shape_.back() *= extent;
      strides_.back() = steps;
    } else {
      add(extent, steps);
    }
  }

  void add(int extent, Steps steps) {
    shape_.push_back(extent);
    place_.push_back(0);
    strides_.push_back(steps);
  }

  void step(int axis, int by) {
    place_[axis] += by;
    for (int array = 0; array < ARRAYS; array++) at[array] += static_cast<long>(by) * strides_[axis][array];
  }

  std::vector<int> shape_, place_;
  std::vector<Steps> strides_;
};

}  // namespace gpus
