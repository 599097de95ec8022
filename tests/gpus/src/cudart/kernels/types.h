// Elements of arrays by the names of their types.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "numbers.h"
#include "table.h"

namespace gpus {

size_t size_of(const Type& type);  // bytes of an element; 0 for a type that is none

// visit(type, [&](auto element) { using T = decltype(element); ... }): with an element of the type that a
// name says. False for a name that is none.
template <class Visitor> bool visit(const Type& type, Visitor&& visitor) {
  const std::string& word = type.word;
  if (word == "float")
    visitor(float());
  else if (word == "double")
    visitor(double());
  else if (word == "half_t" || word == "half2_t" || word == "__half")
    visitor(half());
  else if (word == "int")
    visitor(int32_t());
  else if (word == "long")
    visitor(int64_t());
  else if (word == "unsigned char")
    visitor(uint8_t());
  else if (word == "signed char")
    visitor(int8_t());
  else if (word == "bool")
    visitor(bool());
  else
    return false;
  return true;
}

enum Request { NOTHING = 0, WRITE = 1, WRITE_IN_PLACE = 2, ADD = 3 };  // MXNet's OpReqType

template <class T, class V> void assign(T& out, int request, V value) {
  if (request == NOTHING) return;
  out = request == ADD ? static_cast<T>(static_cast<Computed<T>>(out) + static_cast<Computed<T>>(value))
                       : static_cast<T>(value);
}

}  // namespace gpus
