// Elements that move and stay what they are: slices, reversal, splitting; and those that are filled in, or sums of several.
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
    auto *out = static_cast<T*>(launch.pointer(1, n)), *in = static_cast<T*>(launch.pointer(2)) + slice.first;
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
Work assign_slice(const Launch& launch, bool one_value) {
  int request = one_value ? launch.value<int>(3) : request_in(launch.operation(), 1), next = one_value ? 4 : 3;
  Extents shape = extents(launch, next + 1);
  Slice slice(extents(launch, next), static_cast<const int*>(launch.raw(next + 2)), static_cast<const int*>(launch.raw(next + 3)));
  long n = shape.size();
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = static_cast<T*>(launch.pointer(1)) + slice.first;
    auto* values = one_value ? nullptr : static_cast<T*>(launch.pointer(2, n));
    T value = one_value ? launch.value<T>(2) : T(0);
    return [=] {
      Walk<1> walk(shape, slice.strides);
      for (long i = 0, run; i < n; i += run) {
        run = std::min<long>(walk.run(), n - i);
        for (long k = 0; k < run; k++) assign(out[walk.at[0] + k * walk.stride(0)], request, values ? values[i + k] : value);
        walk.advance(run);
      }
    };
  });
}

// reverse(N, axes, in, out, extents, extents behind them): the arrays of extents are the GPU's
Work reverse(const Launch& launch) {
  int axes = launch.value<int>(1), n = launch.n();
  auto *extents = static_cast<int*>(launch.pointer(4, axes)), *trailing = static_cast<int*>(launch.pointer(5, axes));
  return typed(launch.parameter(2), [&](auto element) -> Work {
    using T = decltype(element);
    auto *in = static_cast<T*>(launch.pointer(2, n)), *out = static_cast<T*>(launch.pointer(3, n));
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

// SplitKernel(N, whole, parts, begins, how many, size of the axis, elements behind it), and ConcatenateKernel(N, parts, whole, ...)
Work split(const Launch& launch, bool joins) {
  size_t sections = launch.value<size_t>(4), size = launch.value<size_t>(5), trailing = launch.value<size_t>(6);
  int whole_place = joins ? 2 : 1, parts_place = joins ? 1 : 2, n = launch.n();
  auto* begins = static_cast<size_t*>(launch.pointer(3));
  return typed(launch.parameter(whole_place), [&](auto element) -> Work {
    using T = decltype(element);
    auto* whole = static_cast<T*>(launch.pointer(whole_place, n));
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

template <class C>
Work sum_in(const Launch& launch) {
  int n = launch.elements(), request = launch.value<int>(2), arrays = launch.count() - 3;
  Access<C> access = gpus::access<C>(launch.parameter(1));
  if (!access) return {};
  bool rounds = is_half(launch.parameter(1));
  void* out = launch.pointer(1, n);
  std::vector<const void*> in;
  for (int k = 0; k < arrays; k++) in.push_back(launch.pointer(3 + k, n));
  return [=] {
    C sum[BLOCK], values[BLOCK];
    for (int first = 0; first < n; first += BLOCK) {
      int block = std::min(BLOCK, n - first);
      access.load(access.at(in.back(), first), 1, block, sum);  // a + (b + (c + d)): from the last on
      for (int k = arrays - 2; k >= 0; k--) {
        access.load(access.at(in[k], first), 1, block, values);
        for (int i = 0; i < block; i++) sum[i] = values[i] + sum[i];
        if (rounds) round_to_half(sum, block);
      }
      access.store(access.at(out, first), block, sum, request);
    }
  };
}

// Sum(N, out, request, in...), of add_n
Work sum(const Launch& launch) {
  Work work;
  visit_computed({&launch.parameter(1)}, [&](auto number) { work = sum_in<decltype(number)>(launch); });
  return work;
}

// range_fwd(N, repeat, start, step, request, out)
Work range(const Launch& launch) {
  int repeat = launch.value<int>(1), request = launch.value<int>(4);
  return typed(launch.parameter(5), [&](auto element) -> Work {
    using T = decltype(element);
    using C = Computed<T>;
    C start = launch.value<T>(2), step = launch.value<T>(3);
    auto* out = static_cast<T*>(launch.pointer(5, launch.n()));
    return each(launch.n(), [=](long i) { assign(out[i], request, start + static_cast<C>(i / repeat) * step); });
  });
}

// clip(N, out, in, least, most), and clip_grad(N, out, gradient, in, least, most)
Work clip(const Launch& launch, bool gradient) {
  int n = launch.n(), bounds = gradient ? 4 : 3;
  float least = launch.value<float>(bounds), most = launch.value<float>(bounds + 1);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = static_cast<T*>(launch.pointer(1, n)), *in = static_cast<T*>(launch.pointer(gradient ? 3 : 2, n));
    auto* slopes = gradient ? static_cast<T*>(launch.pointer(2, n)) : nullptr;
    return each(n, [=](long i) {
      T value = in[i];
      if (gradient)
        out[i] = value > most || value < least ? T(0) : slopes[i];
      else
        out[i] = value > most ? static_cast<T>(most) : value < least ? static_cast<T>(least) : value;
    });
  });
}

// identity_with_cast(N, out, in)
Work cast(const Launch& launch) {
  return typed(launch.parameter(1), [&](auto out_element) {
    return typed(launch.parameter(2), [&](auto in_element) -> Work {
      auto* out = static_cast<decltype(out_element)*>(launch.pointer(1, launch.n()));
      auto* in = static_cast<decltype(in_element)*>(launch.pointer(2, launch.n()));
      return each(launch.n(), [=](long i) { out[i] = stored<decltype(out_element)>(in[i]); });
    });
  });
}

// set_to_int<value>(N, out)
Work fill(const Launch& launch) {
  int value = request_in(launch.operation(), 0);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = static_cast<T*>(launch.pointer(1, launch.n()));
    return [=, n = launch.n()] { std::fill(out, out + n, static_cast<T>(value)); };
  });
}

const Registered registered_slice("slice_forward", slice);
const Registered registered_assign("slice_assign", [](const Launch& launch) { return assign_slice(launch, false); });
const Registered registered_scalar("slice_assign_scalar", [](const Launch& launch) { return assign_slice(launch, true); });
const Registered registered_reverse("reverse", reverse);
const Registered registered_split("SplitKernel", [](const Launch& launch) { return split(launch, false); });
const Registered registered_concatenate("ConcatenateKernel", [](const Launch& launch) { return split(launch, true); });
const Registered registered_sum("Sum", sum);
const Registered registered_range("range_fwd", range);
const Registered registered_clip("clip", [](const Launch& launch) { return clip(launch, false); });
const Registered registered_clip_gradient("clip_grad", [](const Launch& launch) { return clip(launch, true); });
const Registered registered_cast("identity_with_cast", cast);
const Registered registered_fill("set_to_int", fill);

}  // namespace
}  // namespace gpus
