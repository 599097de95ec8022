// Elementwise operations on arrays of different shapes, and broadcasting of one.
#include "arrays.h"
#include "operations.h"

namespace gpus {
namespace {

// binary_broadcast_kernel<ndim, OPERATION>(N, request, lstride, rstride, oshape, lhs, rhs, out), where lhs
// may be a number; a stride is 0 along an axis of one element.
template <class C> Work binary_in(const Launch& launch) {
  const Type& kernel = launch.operation();
  std::vector<int> strides[2] = {extents(launch, 2).axes, extents(launch, 3).axes};
  Extents shape = extents(launch, 4);
  int n = launch.n(), request = launch.value<int>(1);
  Binary<C> function = binary<C>(kernel.arguments[1].word);
  Access<C> left = access<C>(launch.parameter(5)), right = access<C>(launch.parameter(6)),
            out = access<C>(launch.parameter(7));
  if (!function || !left || !right || !out) return {};
  bool is_array = launch.parameter(5).pointer;
  C number = is_array ? C() : left.get(launch.raw(5));
  const void *a = is_array ? launch.pointer(5) : nullptr, *b = launch.pointer(6);
  void* results = launch.pointer(7, n);
  return [=] {
    C first[BLOCK], second[BLOCK], values[BLOCK];
    Walk<2> walk(shape, strides);
    std::fill(first, first + BLOCK, number);
    for (int done = 0; done < n;) {
      int block = std::min(BLOCK, n - done);
      for (int filled = 0, run; filled < block; filled += run) {
        run = std::min(walk.run(), block - filled);
        if (is_array) left.load(left.at(a, walk.at[0]), walk.stride(0), run, first + filled);
        right.load(right.at(b, walk.at[1]), walk.stride(1), run, second + filled);
        walk.advance(run);
      }
      function(first, second, values, block);
      out.store(out.at(results, done), block, values, request);
      done += block;
    }
  };
}

Work binary_broadcast(const Launch& launch) {
  return in_computed_type(launch, {5, 6, 7}, [&](auto number) { return binary_in<decltype(number)>(launch); });
}

// What broadcast_kernel_gpu is told: mxnet::op::ShapeAndStride.
struct ShapeAndStride {
  static constexpr int AXES = 5;
  int in_stride[AXES], out_stride[AXES], in_shape[AXES], out_shape[AXES], axes[AXES];
  int broadcast_axes;
  bool exactly_one;
};

template <class C> Work broadcast_in(const Launch& launch) {
  ShapeAndStride shapes = launch.value<ShapeAndStride>(3);
  int n = launch.n(), request = launch.value<int>(4), axes = launch.value<int>(5);
  Extents shape(shapes.out_shape, axes);
  std::vector<int> strides[1] = {std::vector<int>(axes)};
  for (int axis = 0; axis < axes; axis++) strides[0][axis] = shapes.in_shape[axis] == 1 ? 0 : shapes.in_stride[axis];
  Access<C> in_access = access<C>(launch.parameter(1)), out_access = access<C>(launch.parameter(2));
  Unary<C> function = unary<C>(launch.operation().arguments[0].word);
  if (!in_access || !out_access || !function) return {};
  const void* in = launch.pointer(1);
  void* out = launch.pointer(2, n);
  return [=] {
    C values[BLOCK], results[BLOCK];
    Walk<1> walk(shape, strides);
    for (int done = 0; done < n;) {
      int block = std::min(BLOCK, n - done);
      for (int filled = 0, run; filled < block; filled += run) {
        run = std::min(walk.run(), block - filled);
        in_access.load(in_access.at(in, walk.at[0]), walk.stride(0), run, values + filled);
        walk.advance(run);
      }
      function(values, results, block);
      out_access.store(out_access.at(out, done), block, results, request);
      done += block;
    }
  };
}

// broadcast_kernel_gpu<OPERATION>(N, in, out, shapes, request, ndim)
Work broadcast(const Launch& launch) {
  return in_computed_type(launch, {1, 2}, [&](auto number) { return broadcast_in<decltype(number)>(launch); });
}

template <class C> Work copy_in(const Launch& launch) {
  int n = launch.n(), request = launch.value<int>(3);
  Access<C> in_access = access<C>(launch.parameter(1)), out_access = access<C>(launch.parameter(2));
  if (!in_access || !out_access) return {};
  const void* in = launch.pointer(1, n);
  void* out = launch.pointer(2, n);
  return [=] {
    C values[BLOCK];
    for (int first = 0; first < n; first += BLOCK) {
      int block = std::min(BLOCK, n - first);
      in_access.load(in_access.at(in, first), 1, block, values);
      out_access.store(out_access.at(out, first), block, values, request);
    }
  };
}

// direct_copy<identity>(N, in, out, request), where nothing is to be broadcast.
Work direct_copy(const Launch& launch) {
  if (launch.operation().arguments[0].word != "identity") return {};
  return in_computed_type(launch, {1, 2}, [&](auto number) { return copy_in<decltype(number)>(launch); });
}

const Registered registered{
    {"binary_broadcast_kernel", binary_broadcast}, {"broadcast_kernel_gpu", broadcast}, {"direct_copy", direct_copy}};

}  // namespace
}  // namespace gpus
