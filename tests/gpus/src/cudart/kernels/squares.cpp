// Diagonals and triangles of matrices, and numbers at equal distances: what mx.np and mx.nd make without an
// input, or of one by position alone.
#include "arguments.h"

namespace gpus {
namespace {

// eye_dns_fill<request>(N, out, first column, k, columns): ones on diagonal k; the rest is filled before
Work eye(const Launch& launch) {
  int request = request_in(launch.operation(), 0);
  long first = launch.value<long>(2), diagonal = launch.value<long>(3), columns = launch.value<long>(4);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    auto* out = static_cast<decltype(element)*>(launch.pointer(1));
    return each(launch.n(), [=](long i) {
      assign(out[(i + first - diagonal) * columns + i + first], request, decltype(element)(1));
    });
  });
}

// identity<request>(N, out, n): the matrix
Work identity(const Launch& launch) {
  int request = request_in(launch.operation(), 0), n = launch.value<int>(2);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(1, launch.n());
    return each(launch.n(), [=](long i) { assign(out[i], request, T(i / n == i % n ? 1 : 0)); });
  });
}

// linspace_fwd(N, start, stop, step, request, out)
Work linspace(const Launch& launch) {
  double start = launch.value<double>(1), step = launch.value<double>(3);
  int request = launch.value<int>(4);
  return typed(launch.parameter(5), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(5, launch.n());
    return each(launch.n(), [=](long i) { assign(out[i], request, stored<T>(start + step * i)); });
  });
}

// tril2D<request>(N, out, in, shape, k)
Work lower_triangle(const Launch& launch) {
  int request = request_in(launch.operation(), 0), columns = extents(launch, 3)[1], k = launch.value<int>(4);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, launch.n()), *in = launch.array<T>(2, launch.n());
    return each(launch.n(), [=](long i) { assign(out[i], request, i % columns > i / columns + k ? T(0) : in[i]); });
  });
}

// Where the diagonals of the last axes of an array begin, and what lies between their elements.
struct Diagonals {
  Extents out{}, in{};
  long stride, offset, length = 0;  // 0: there is one, of a matrix

  long at(long i) const {
    if (length == 0) return offset + stride * i;
    long which = i / length, place = 0;
    for (int axis = out.count() - 1, step = 1, rest = static_cast<int>(which); axis >= 0; step *= in[axis--]) {
      int coordinate = rest % out[axis];
      rest /= out[axis];
      if (coordinate < in[axis]) place += static_cast<long>(step) * coordinate;
    }
    return place + offset + stride * (i - which * length);
  }
};

// diag<ndim, request, back>(N, out, in, stride, offset), and with the shapes of what is taken and of the
// array before them, and a diagonal's length behind, as in diag_n; back: onto the diagonals
Work diagonal(const Launch& launch) {
  int request = request_in(launch.operation(), 1), numbers = launch.count() == 5 ? 3 : 5;
  bool back = is_true(launch.operation(), 2);
  Diagonals diagonals;
  diagonals.stride = launch.value<int>(numbers);
  diagonals.offset = launch.value<int>(numbers + 1);
  if (numbers == 5) {
    diagonals.out = extents(launch, 3);
    diagonals.in = extents(launch, 4);
    diagonals.length = whole_number(launch, 7);
  }
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1), *in = launch.array<T>(2);
    return each(launch.n(), [=](long i) {
      long place = diagonals.at(i);
      assign(out[back ? place : i], request, in[back ? i : place]);
    });
  });
}

// diag_gen<request, back>(N, out, in, shape, k): a matrix that has a row of numbers on diagonal k; back: the
// numbers
Work on_diagonal(const Launch& launch) {
  int request = request_in(launch.operation(), 0), columns = extents(launch, 3)[1], k = launch.value<int>(4);
  bool back = is_true(launch.operation(), 1);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1), *in = launch.array<T>(2);
    return each(launch.n(), [=](long i) {
      long row = i / columns, column = i % columns, number = k > 0 ? row : column;
      bool within = column == row + k;
      if (back && within) assign(out[number], request, in[i]);
      if (!back) assign(out[i], request, within ? in[number] : T(0));
    });
  });
}

const Registered registered{{"eye_dns_fill", eye},      {"identity", identity},    {"linspace_fwd", linspace},
                            {"tril2D", lower_triangle}, {"diag_gen", on_diagonal}, {"diag", diagonal},
                            {"diag_n", diagonal}};

}  // namespace
}  // namespace gpus
