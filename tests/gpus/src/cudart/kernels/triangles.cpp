// Halves of square matrices, for linalg's symmetric results.
#include "arguments.h"

namespace gpus {
namespace {

// CopyTriangularToOppositeSide(n, elements of a matrix, of a row, matrices, whether to the lower half)
Work copy_triangle(const Launch& launch) {
  int size = launch.value<int>(1), stride = launch.value<int>(2);
  bool to_lower = launch.value<bool>(4);
  return typed(launch.parameter(3), [&](auto element) -> Work {
    auto* data = static_cast<decltype(element)*>(launch.pointer(3, launch.n()));
    return each(launch.n(), [=](long at) {
      int row = at % size / stride, column = at % stride;
      if (row <= column) return;
      auto& opposite = data[at + (column - row) * (stride - 1)];
      (to_lower ? data[at] : opposite) = to_lower ? opposite : data[at];
    });
  });
}

const Registered registered{{"CopyTriangularToOppositeSide", copy_triangle}};

}  // namespace
}  // namespace gpus
