// Elements that move and stay what they are: slices, reversal, splitting.
#include "arguments.h"

namespace gpus {
namespace {

// The part of an array that a slice is: where its first element lies, and its strides.
struct Slice {
  long first = 0;
  std::vector<int> strides[1];

  // `shape`: of the array; begin and step: mxnet::common::StaticArray<int, ndim>.
  Slice(const Extents& shape, const int* begin, const int* step) {
    strides[0].resize(shape.count());
    long size = 1;
    for (int axis = shape.count() - 1; axis >= 0; size *= shape[axis--]) {
      first += begin[axis] * size;
      strides[0][axis] = step[axis] * size;
    }
  }
};

// slice_forward<ndim, request, gpu>(N, out, in, in shape, out shape, begin, step)
Work slice(const Launch& launch) {
  int request = request_in(launch.operation(), 1), n = launch.n();
  Extents shape = extents(launch, 4);
  Slice slice(extents(launch, 3), static_cast<const int*>(launch.raw(5)), static_cast<const int*>(launch.raw(6)));
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, n), *in = launch.array<T>(2) + slice.first;
    return [=] {
      Walk<1> walk(shape, slice.strides);
      for (long i = 0, run; i < n; i += run) {
        run = std::min<long>(walk.run(), n - i);
        for (long k = 0; k < run; k++) assign(out[i + k], request, in[walk.at[0] + k * walk.stride(0)]);
        walk.advance(run);
      }
    };
  });
}

// slice_assign<ndim, request, gpu>(N, out, values, out shape, shape of values, begin, step), N values; and
// slice_assign_scalar<ndim>(N, out, value, request, out shape, shape of the slice, begin, step), N its rows
template <bool one_value> Work assign_slice(const Launch& launch) {
  int request = one_value ? launch.value<int>(3) : request_in(launch.operation(), 1), next = one_value ? 4 : 3;
  Extents shape = extents(launch, next + 1);
  Slice slice(extents(launch, next), static_cast<const int*>(launch.raw(next + 2)),
              static_cast<const int*>(launch.raw(next + 3)));
  long n = shape.size();
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(1) + slice.first;
    auto* values = one_value ? nullptr : launch.array<T>(2, n);
    T value = one_value ? launch.value<T>(2) : T(0);
    return [=] {
      Walk<1> walk(shape, slice.strides);
      for (long i = 0, run; i < n; i += run) {
        run = std::min<long>(walk.run(), n - i);
        for (long k = 0; k < run; k++)
          assign(out[walk.at[0] + k * walk.stride(0)], request, values ? values[i + k] : value);
        walk.advance(run);
      }
    };
  });
}

// reverse(N, axes, in, out, extents, extents behind them): the arrays of extents are the GPU's
Work reverse(const Launch& launch) {
  int axes = launch.value<int>(1), n = launch.n();
  auto *extents = launch.array<int>(4, axes), *trailing = launch.array<int>(5, axes);
  return typed(launch.parameter(2), [&](auto element) -> Work {
    using T = decltype(element);
    auto *in = launch.array<T>(2, n), *out = launch.array<T>(3, n);
    return each(n, [=](long i) {
      long place = i;
      for (int axis = 0; axis < axes; axis++) {
        long behind = place % trailing[axis], rest = place / trailing[axis], x = rest % extents[axis];
        place = ((rest / extents[axis]) * extents[axis] + extents[axis] - 1 - x) * trailing[axis] + behind;
      }
      out[place] = in[i];
    });
  });
}

// SplitKernel(N, whole, parts, begins, how many, size of the axis, elements behind it), and
// ConcatenateKernel(N, parts, whole, ...)
template <bool joins> Work split(const Launch& launch) {
  size_t sections = launch.value<size_t>(4), size = launch.value<size_t>(5), trailing = launch.value<size_t>(6);
  int whole_place = joins ? 2 : 1, parts_place = joins ? 1 : 2, n = launch.n();
  auto* begins = launch.array<size_t>(3);
  return typed(launch.parameter(whole_place), [&](auto element) -> Work {
    using T = decltype(element);
    auto* whole = launch.array<T>(whole_place, n);
    auto** parts = *static_cast<T***>(const_cast<void*>(launch.raw(parts_place)));
    launch.check(parts, sections * sizeof(T*));
    return each(n, [=](long i) {
      size_t index = i / trailing % size, part = 0;
      for (size_t section = 0; section < sections && begins[section] <= index; section++) part = section;
      size_t part_size = begins[part + 1] - begins[part];
      size_t place = (i / (trailing * size) * part_size + index - begins[part]) * trailing + i % trailing;
      if (joins)
        whole[i] = parts[part][place];
      else
        parts[part][place] = whole[i];
    });
  });
}

const Registered registered{
    {"slice_forward", slice}, {"slice_assign", assign_slice<false>}, {"slice_assign_scalar", assign_slice<true>},
    {"reverse", reverse},     {"SplitKernel", split<false>},         {"ConcatenateKernel", split<true>}};

}  // namespace
}  // namespace gpus
