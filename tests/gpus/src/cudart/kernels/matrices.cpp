// Rows and columns: biases of fully connected layers, and transposition.
#include "arguments.h"

namespace gpus {
namespace {

// add_bias_kernel<T, L>(matrix, bias, rows, columns): a block for each row
Work add_bias(const Launch& launch) {
  long rows = launch.grid.x, columns = launch.value<size_t>(3);
  return typed(launch.parameter(0), [&](auto element) -> Work {
    using T = decltype(element);
    auto *matrix = launch.array<T>(0, rows * columns), *bias = launch.array<T>(1, columns);
    return [=] {
      for (long row = 0; row < rows; row++)
        for (long column = 0; column < columns; column++) assign(matrix[row * columns + column], ADD, bias[column]);
    };
  });
}

// AddBiasGradKernelPhase1<L, T, A>(sums, gradient, columns, rows): each block row adds its share of the rows
Work bias_gradient(const Launch& launch) {
  long columns = launch.value<size_t>(2), rows = launch.value<size_t>(3), parts = launch.grid.y;
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    using A = Computed<T>;
    auto* sums = launch.array<A>(0);
    auto* gradient = launch.array<T>(1, rows * columns);
    return [=] {
      long share = (rows + parts - 1) / parts;
      for (long part = 0; part < parts; part++) {
        A* sum = sums + part * columns;
        std::fill(sum, sum + columns, A(0));
        for (long row = part * share; row < std::min(rows, (part + 1) * share); row++)
          for (long column = 0; column < columns; column++)
            sum[column] += static_cast<A>(gradient[row * columns + column]);
      }
    };
  });
}

// AddBiasGradKernelPhase2<T, A>(sums, out, columns, parts, request)
Work bias_gradient_sum(const Launch& launch) {
  long columns = launch.value<int>(2), parts = launch.value<int>(3);
  int request = launch.value<int>(4);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    using A = Computed<T>;
    auto* sums = launch.array<A>(0, columns * parts);
    auto* out = launch.array<T>(1, columns);
    return each(columns, [=](long column) {
      A sum = 0;
      for (long part = 0; part < parts; part++) sum += sums[part * columns + column];
      assign(out[column], request, sum);
    });
  });
}

// transpose_pseudo2D<T, L, adds>(out, in, m, n, ...): an array (k, m, n) becomes (k, n, m). What is copied at
// a time is an L of several T, yet the transposition is one of T; k is the grid's.
Work transpose(const Launch& launch) {
  bool adds = is_true(launch.name.kernel, 2);
  long rows = launch.value<int>(2), columns = launch.value<int>(3), matrices = launch.value<int>(5) * launch.grid.z;
  return typed(launch.parameter(0), [&](auto element) -> Work {
    using T = decltype(element);
    size_t size = rows * columns * matrices;
    auto *out = launch.array<T>(0, size), *in = launch.array<T>(1, size);
    return [=] {
      constexpr long TILE = 16;  // what a cache holds of rows that are far from each other
      for (long k = 0; k < matrices; k++)
        for (long row0 = 0; row0 < rows; row0 += TILE)
          for (long column = 0; column < columns; column++)
            for (long row = row0; row < std::min(rows, row0 + TILE); row++)
              assign(out[(k * columns + column) * rows + row], adds ? ADD : WRITE,
                     in[(k * rows + row) * columns + column]);
    };
  });
}

const Registered registered{{"add_bias_kernel", add_bias},
                            {"AddBiasGradKernelPhase1", bias_gradient},
                            {"AddBiasGradKernelPhase2", bias_gradient_sum},
                            {"transpose_pseudo2D", transpose}};

}  // namespace
}  // namespace gpus
