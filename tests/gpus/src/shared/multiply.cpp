// Both factors are copied into panels, whose products are summed in registers over the whole depth.
#include "multiply.h"

#include <algorithm>
#include <memory>

namespace gpus {
namespace {

constexpr size_t BLOCK_BYTES = 1 << 18;  // of panels of the second factor, which stay in the cache
constexpr int PANEL_ROWS = 4;
constexpr int VECTORS = 2;  // wide is a panel of the second factor

template <class T> struct Vector {
#ifdef __AVX512F__
  static constexpr int BYTES = 64;
#else
  static constexpr int BYTES = 32;
#endif
  typedef T Type __attribute__((vector_size(BYTES), aligned(sizeof(T))));
  static constexpr int LENGTH = BYTES / sizeof(T);
};

template <class T> constexpr int PANEL_COLUMNS = VECTORS * Vector<T>::LENGTH;

template <class T> Computed<T> factor(T value, bool tf32) {
  if constexpr (std::is_same_v<T, float>)
    if (tf32) return to_tf32(value);
  return static_cast<Computed<T>>(value);
}

// Panels of WIDTH rows of a matrix (rows, depth): element by element of the depth, that of each of its rows;
// 0 beyond the last row.
template <int WIDTH, class T> void pack(Matrix<T> from, int rows, int depth, Arithmetic how, Computed<T>* to) {
  int first = depth ? how.first % depth : 0;
  for (int row = 0; row < rows; row += WIDTH, to += size_t(WIDTH) * depth) {
    int width = std::min(WIDTH, rows - row);
    const T* begin = from.first + row * from.row;
    for (int step = 0, at = first; step < depth; step++, at = at + 1 == depth ? 0 : at + 1) {
      const T* source = begin + at * from.column;
      Computed<T>* target = to + size_t(step) * WIDTH;
      if (width == WIDTH && from.row == 1) {
        for (int lane = 0; lane < WIDTH; lane++) target[lane] = factor(source[lane], how.tf32);
      } else {
        for (int lane = 0; lane < width; lane++) target[lane] = factor(source[lane * from.row], how.tf32);
        for (int lane = width; lane < WIDTH; lane++) target[lane] = 0;
      }
    }
  }
}

// The product of two panels.
template <class T> void multiply_panels(const T* a, const T* b, int depth, T* out) {
  using V = typename Vector<T>::Type;
  V sums[PANEL_ROWS][VECTORS] = {};
  for (int step = 0; step < depth; step++, a += PANEL_ROWS, b += PANEL_COLUMNS<T>) {
    const V* wide = reinterpret_cast<const V*>(b);
#pragma GCC unroll 4
    for (int row = 0; row < PANEL_ROWS; row++)
#pragma GCC unroll 2
      for (int vector = 0; vector < VECTORS; vector++) sums[row][vector] += a[row] * wide[vector];
  }
  memcpy(out, sums, sizeof sums);
}

int rounded_up(int number, int multiple) { return (number + multiple - 1) / multiple * multiple; }

}  // namespace

template <class T>
void multiply(int rows, int columns, int depth, Matrix<T> a, Matrix<T> b, Computed<T>* out, Arithmetic how) {
  using C = Computed<T>;
  constexpr int wide = PANEL_COLUMNS<C>;
  int block = std::max<size_t>(1, BLOCK_BYTES / (sizeof(C) * wide * std::max(depth, 1))) * wide;
  std::unique_ptr<C[]> left(new C[size_t(rounded_up(rows, PANEL_ROWS)) * depth]);
  std::unique_ptr<C[]> right(new C[size_t(std::min(block, rounded_up(columns, wide))) * depth]);
  pack<PANEL_ROWS>(a, rows, depth, how, left.get());
  for (int from = 0; from < columns; from += block) {
    int here = std::min(block, columns - from);
    pack<wide>(Matrix<T>{b.first + from * b.column, b.column, b.row}, here, depth, how, right.get());
    for (int row = 0; row < rows; row += PANEL_ROWS)
      for (int column = 0; column < here; column += wide) {
        C tile[PANEL_ROWS * wide];
        multiply_panels(left.get() + size_t(row) * depth, right.get() + size_t(column) * depth, depth, tile);
        size_t bytes = std::min(wide, here - column) * sizeof(C);
        for (int r = 0; r < std::min(PANEL_ROWS, rows - row); r++)
          memcpy(out + size_t(row + r) * columns + from + column, tile + r * wide, bytes);
      }
  }
}

template void multiply(int, int, int, Matrix<half>, Matrix<half>, float*, Arithmetic);
template void multiply(int, int, int, Matrix<float>, Matrix<float>, float*, Arithmetic);
template void multiply(int, int, int, Matrix<double>, Matrix<double>, double*, Arithmetic);

}  // namespace gpus
