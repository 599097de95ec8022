// A launch's arguments, read one after the other, and loops over elements.
#pragma once

#include "arrays.h"

namespace gpus {

class Arguments {
 public:
  // For mxnet_generic_kernel the first argument, how many elements there are, is read already.
  Arguments(const Launch& launch, int first, size_t elements) : launch_(launch), next_(first), elements_(elements) {}
  explicit Arguments(const Launch& launch) : Arguments(launch, 1, launch.n()) {}

  // An array of as many elements, of which all may be used; or of an unknown number.
  template <class T> T* array() { return static_cast<T*>(launch_.pointer(next_++, elements_)); }
  template <class T> T* any_array(size_t elements = 0) { return static_cast<T*>(launch_.pointer(next_++, elements)); }

  template <class T> T value() { return launch_.value<T>(next_++); }
  template <class C> C number() {  // whose type the kernel's name says
    int place = next_++;
    return access<C>(launch_.parameter(place)).get(launch_.raw(place));
  }

  // The next arguments, into these variables: pointers to arrays, numbers of any type, ints and bools.
  template <class... Values> void operator()(Values&... values) { (read(values), ...); }
  Extents shape() { return extents(launch_, next_++); }

 private:
  template <class T> void read(T*& found) { found = array<T>(); }
  void read(float& found) { found = number<float>(); }
  void read(double& found) { found = number<double>(); }
  void read(int& found) { found = value<int>(); }
  void read(bool& found) { found = value<bool>(); }

  const Launch& launch_;
  int next_;
  size_t elements_;
};

// A whole number whose type is one of several: int, long, unsigned long, ...
inline int64_t whole_number(const Launch& launch, int place) {
  const std::string& word = launch.parameter(place).word;
  if (word.find("long") != std::string::npos) return launch.value<int64_t>(place);
  return word.rfind("unsigned", 0) == 0 ? launch.value<uint32_t>(place) : launch.value<int32_t>(place);
}

// map(i) for each element.
template <class Map> Work each(long n, Map map) {
  return [=]() mutable {
    for (long i = 0; i < n; i++) map(i);
  };
}

// make(T()), for the type that a name says.
template <class Make> Work typed(const Type& type, Make make) {
  Work work;
  visit(type, [&](auto element) { work = make(element); });
  return work;
}

// The same, for a floating-point type.
template <class Make> Work typed_real(const Type& type, Make make) {
  if (type.word == "float") return make(float());
  if (type.word == "double") return make(double());
  if (type.word == "half_t") return make(half());
  return {};
}

// Whole numbers in an array of any type, as indices are.
struct Indices {
  Access<int64_t> access;
  const void* array;

  Indices(const Launch& launch, int place, size_t elements = 0)
      : access(gpus::access<int64_t>(launch.parameter(place))), array(launch.pointer(place, elements)) {}
  explicit operator bool() const { return static_cast<bool>(access); }
  int64_t operator[](long place) const { return access.get(access.at(array, place)); }

  // An index out of range is the nearest one in it, or counted on from the other end.
  int64_t within(long place, int64_t size, bool clips) const {
    int64_t index = (*this)[place];
    if (clips) return std::min(std::max<int64_t>(index, 0), size - 1);
    index %= size;
    return index < 0 ? index + size : index;
  }
};

// A request among template arguments, or as an argument of the kernel: mxnet::OpReqType.
inline int request_in(const Type& kernel, int argument) { return atoi(kernel.arguments[argument].word.c_str()); }

inline bool is_true(const Type& kernel, int argument) {
  const std::string& word = kernel.arguments[argument].word;
  return word == "true" || word == "1" || word == "(bool)1";
}

}  // namespace gpus
