// Elements chosen by indices: pick, take, one_hot, where, gather_nd.
#include "arguments.h"

namespace gpus {
namespace {

// pick<ndim, clips>(N, out, in, indices, M, stride, shape, small_shape), and pick_grad, which adds into the
// gradient: element
// (..., index, ...) along one axis.
template <bool gradient> Work pick(const Launch& launch) {
  bool clips = is_true(launch.operation(), 1);
  int n = launch.n(), size = launch.value<int>(4), stride = launch.value<int>(5);
  Extents big = extents(launch, 6), small = extents(launch, 7);
  std::vector<int> strides[1] = {std::vector<int>(big.count())};
  for (int axis = big.count() - 1, step = 1; axis >= 0; step *= big[axis--])
    strides[0][axis] = small[axis] == 1 ? 0 : step;
  Indices indices(launch, 3, n);
  if (!indices) return {};
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1), *in = launch.array<T>(2);
    return [=] {
      Walk<1> walk(small, strides);
      for (int i = 0; i < n; i++, walk.advance(1)) {
        long place = walk.at[0] + indices.within(i, size, clips) * stride;
        if (gradient)
          assign(out[place], ADD, in[i]);
        else
          out[i] = in[place];
      }
    };
  });
}

// one_hot<request>(N, out, indices, depth, value); the rest of `out` is filled before
Work one_hot(const Launch& launch) {
  int n = launch.n(), depth = launch.value<int>(3), request = request_in(launch.operation(), 0);
  Indices indices(launch, 2, n);
  if (!indices) return {};
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(1, static_cast<size_t>(n) * depth);
    T value = launch.value<T>(4);
    return each(n, [=](long i) {
      int64_t index = indices[i];
      if (index >= 0 && index < depth) assign(out[i * depth + index], request, value);
    });
  });
}

// TakeZeroAxisGPU<clips>(N, out, in, indices, columns, rows): rows of a matrix
Work take_rows(const Launch& launch) {
  bool clips = is_true(launch.operation(), 0);
  int64_t columns = whole_number(launch, 4);
  int64_t rows = whole_number(launch, 5), taken = columns ? launch.n() / columns : 0;
  Indices indices(launch, 3, taken);
  if (!indices) return {};
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, launch.n()), *in = launch.array<T>(2, rows * columns);
    return each(taken, [=](long row) {
      const T* from = in + indices.within(row, rows, clips) * columns;
      std::copy(from, from + columns, out + row * columns);
    });
  });
}

// TakeNonzeroAxis<clips>(N, out, in, indices, out stride before, in stride before, stride, in ndim, ...,
// ..., size, axis)
Work take_along(const Launch& launch) {
  bool clips = is_true(launch.operation(), 0);
  auto number = [&](int place) { return whole_number(launch, place); };
  int64_t out_before = number(4), in_before = number(5), stride = number(6), axes = number(7), size = number(10);
  bool last = number(11) == axes - 1;
  Indices indices(launch, 3);
  if (!indices) return {};
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, launch.n()), *in = launch.array<T>(2);
    return each(launch.n(), [=](long i) {
      long before = i / out_before, rest = i % out_before, behind = last ? 0 : rest % stride;
      out[i] = in[before * in_before + indices.within(rest / stride, size, clips) * stride + behind];
    });
  });
}

// batch_take<request>(N, out, in, indices, columns): one element of each row
Work batch_take(const Launch& launch) {
  int columns = launch.value<int>(4), request = request_in(launch.operation(), 0);
  Indices indices(launch, 3, launch.n());
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, launch.n()), *in = launch.array<T>(2);
    return each(launch.n(),
                [=](long i) { assign(out[i], request, in[i * columns + indices.within(i, columns, true)]); });
  });
}

// where<request>(N, out, condition, x, y), and where_batch,
// whose last argument says for how many elements one condition is
Work where(const Launch& launch) {
  int request = request_in(launch.operation(), 0), n = launch.n(),
      each_for = launch.count() == 6 ? launch.value<int>(5) : 1;
  Access<double> condition = access<double>(launch.parameter(2));
  const void* conditions = launch.pointer(2, (n + each_for - 1) / each_for);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, n), *x = launch.array<T>(3, n);
    auto* y = launch.array<T>(4, n);
    return each(n, [=](long i) {
      assign(out[i], request, condition.get(condition.at(conditions, i / each_for)) != 0 ? x[i] : y[i]);
    });
  });
}

// where_backward<request, negates>(N, gradient, out gradient, condition), and where_batch_backward
Work where_gradient(const Launch& launch) {
  bool negates = is_true(launch.operation(), 1);
  int request = request_in(launch.operation(), 0), n = launch.n(),
      each_for = launch.count() == 5 ? launch.value<int>(4) : 1;
  Access<double> condition = access<double>(launch.parameter(3));
  const void* conditions = launch.pointer(3, (n + each_for - 1) / each_for);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, n), *in = launch.array<T>(2, n);
    return each(n, [=](long i) {
      bool is_zero = condition.get(condition.at(conditions, i / each_for)) == 0;
      assign(out[i], request, is_zero != negates ? in[i] : T(0));
    });
  });
}

// The place of element i of gather_nd and scatter_nd, whose indices are (axes, n).
struct Places {
  Indices indices;
  Extents strides, shape;
  int n, axes;

  long operator[](long i) const {
    long place = 0;
    for (int axis = 0; axis < axes; axis++)
      place +=
          static_cast<long>(strides[axis]) * ((indices[static_cast<long>(axis) * n + i] + shape[axis]) % shape[axis]);
    return place;
  }
};

// gather_nd(N, request, N, M, K, strides, shape, out, in, indices): runs of K elements
Work gather(const Launch& launch) {
  int request = launch.value<int>(1), run = launch.value<int>(4);
  Places places{Indices(launch, 9), extents(launch, 5), extents(launch, 6), launch.value<int>(2), launch.value<int>(3)};
  return typed(launch.parameter(7), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(7, static_cast<size_t>(launch.n()) * run);
    auto* in = launch.array<T>(8);
    return each(launch.n(), [=](long i) {
      for (int k = 0; k < run; k++) assign(out[i * run + k], request, in[places[i] + k]);
    });
  });
}

// is_valid_check_gather_nd(axes, wrong ones, indices, N, shape): an index out of range,
// the last one of its axis
Work check_gather(const Launch& launch) {
  long n = launch.value<int>(3);
  Extents shape = extents(launch, 4);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *wrong = launch.array<T>(1, launch.n()), *indices = launch.array<T>(2, launch.n() * n);
    return each(launch.n(), [=](long axis) {
      for (long i = 0; i < n; i++) {
        T index = indices[axis * n + i];
        if (index < static_cast<T>(-shape[axis]) || index > static_cast<T>(shape[axis] - 1)) wrong[axis] = index;
      }
    });
  });
}

// is_valid_check(N, found, indices, min, max): found becomes 0 or 1 where an index is out of range
Work check_range(const Launch& launch) {
  if (launch.count() != 5) return {};
  return typed(launch.parameter(2), [&](auto element) -> Work {
    using T = decltype(element);
    auto* found = launch.array<char>(1, 1);
    auto* values = launch.array<T>(2, launch.n());
    T least = launch.value<T>(3), most = launch.value<T>(4);
    return each(launch.n(), [=](long i) {
      if (values[i] < least || values[i] > most) *found = 1;
    });
  });
}

const Registered registered{{"pick", pick<false>},
                            {"pick_grad", pick<true>},
                            {"one_hot", one_hot},
                            {"TakeZeroAxisGPU", take_rows},
                            {"TakeNonzeroAxis", take_along},
                            {"batch_take", batch_take},
                            {"where", where},
                            {"where_batch", where},
                            {"where_backward", where_gradient},
                            {"where_batch_backward", where_gradient},
                            {"gather_nd", gather},
                            {"is_valid_check_gather_nd", check_gather},
                            {"is_valid_check", check_range}};

}  // namespace
}  // namespace gpus
