// Expressions of mshadow that only move elements, and the layout of all of them.
#pragma once

#include "arrays.h"

namespace gpus {

// An expression whose element (row, column) is one of its source, elsewhere. `numbers` are the plan's own.
using Remap = void (*)(const int* numbers, int& row, int& column);

constexpr int NOWHERE = -1;  // a row: the element is 0

// What a plan has in memory: plans of its arguments, and numbers behind them.
struct Form {
  std::vector<int> sources;  // which template arguments they are
  int numbers;
  Remap remap;  // nullptr: it does not only move elements
};

Form form_of(const Type& type);

size_t alignment(const Type& type);  // of a plan in memory

const Type& element_type(const Type& type);

}  // namespace gpus
