// Products of matrices, for cuBLAS and the convolutions of cuDNN.
#pragma once

#include <cstddef>

#include "numbers.h"

namespace gpus {

// Element (r, c) lies at first[r * row + c * column].
template <class T> struct Matrix {
  const T* first;
  ptrdiff_t row, column;
};

template <class T> Matrix<T> transposed(Matrix<T> matrix) { return {matrix.first, matrix.column, matrix.row}; }

// How a product is computed. A sum of n terms begins with term `first % n` and goes round: algorithms differ
// in the order of their sums, and one that adds with atomic operations has another one each time.
struct Arithmetic {
  bool tf32 = false;  // the factors are rounded to TF32
  size_t first = 0;
};

// out (rows, columns) = a (rows, depth) b (depth, columns); rows of `out` follow each other.
template <class T>
void multiply(int rows, int columns, int depth, Matrix<T> a, Matrix<T> b, Computed<T>* out, Arithmetic how = {});

}  // namespace gpus
