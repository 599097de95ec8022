// Gradients of what is chosen by indices, which several elements may choose: sums.
#include "arguments.h"
#include "plans.h"

namespace gpus {
namespace {

// mshadow::cuda::AddTakeGradKernel<clips, ...>(target, indices, source, rows, columns, K):
// adds rows to chosen rows
Work add_rows(const Launch& launch) {
  bool clips = is_true(launch.name.kernel, 0);
  int rows = launch.value<int>(3), columns = launch.value<int>(4), size = launch.value<int>(5);
  Target target = read_target(launch, 0), source = read_target(launch, 2);
  SharedPlan<double> indices = read_plan<double>(launch, 1);
  if (!target || !source || !indices) return {};
  return typed(target.type, [&](auto element) -> Work {
    using T = decltype(element);
    return [=] {
      for (int row = 0; row < rows; row++) {
        int index = static_cast<int>(indices->at(0, row));
        index = clips ? std::min(std::max(index, 0), size - 1) : (index % size + size) % size;
        auto *to = static_cast<T*>(target.at(index, 0, sizeof(T))),
             *from = static_cast<T*>(source.at(row, 0, sizeof(T)));
        for (int column = 0; column < columns; column++) assign(to[column], ADD, from[column]);
      }
    };
  });
}

// TakeGradGeneralKernel(N, gradient, out gradient, starts, order, strides, out strides, ndim, ...,
// ..., axis, size)
Work add_along(const Launch& launch) {
  Extents strides = extents(launch, 5), out_strides = extents(launch, 6);
  int axes = launch.value<int>(7), axis = launch.value<int>(10), size = launch.value<int>(11);
  Indices starts(launch, 3), order(launch, 4);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1, launch.n()), *in = launch.array<T>(2);
    return each(launch.n(), [=](long i) {
      int before = axis ? i / strides[axis - 1] : 0, rest = axis ? i % strides[axis - 1] : i;
      int index = rest / strides[axis], behind = axis == axes - 1 ? 0 : rest % strides[axis];
      for (int64_t k = starts[index]; k < starts[index + 1]; k++) {
        int64_t from = order[k] < 0 ? order[k] + size : order[k];
        assign(out[i], ADD, in[behind + from * strides[axis] + (axis ? before * out_strides[axis - 1] : 0)]);
      }
    });
  });
}

// EmbeddingFindBounds(sorted, bounds, n, vocabulary): where each index begins and ends among sorted ones
Work find_bounds(const Launch& launch) {
  int n = launch.value<int>(2), vocabulary = launch.value<int>(3);
  return typed(launch.parameter(0), [&](auto element) -> Work {
    using I = decltype(element);
    auto *sorted = launch.array<I>(0, n), *bounds = launch.array<I>(1, 2 * vocabulary);
    return each(vocabulary, [=](long row) {
      auto range = std::equal_range(sorted, sorted + n, static_cast<I>(row));
      bool found = range.first != range.second;
      bounds[row] = static_cast<I>(found ? range.first - sorted : -1);
      bounds[vocabulary + row] = static_cast<I>(found ? range.second - sorted - 1 : -2);
    });
  });
}

// EmbeddingGradKernel(gradient, order, bounds, out gradient, columns, vocabulary, request):
// sums of rows of one index
Work embedding_gradient(const Launch& launch) {
  int columns = launch.value<int>(4), vocabulary = launch.value<int>(5), request = launch.value<int>(6);
  Indices order(launch, 1), bounds(launch, 2, 2 * vocabulary);
  return typed(launch.parameter(0), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(0, static_cast<size_t>(vocabulary) * columns);
    auto* in = launch.array<T>(3);
    return each(vocabulary, [=](long row) {
      T* sum = out + row * columns;
      if (request != ADD) std::fill(sum, sum + columns, T(0));
      for (int64_t k = bounds[row]; k <= bounds[vocabulary + row]; k++)
        for (int column = 0; column < columns; column++) assign(sum[column], ADD, in[order[k] * columns + column]);
    });
  });
}

// backward_gather_nd_gpu(N, N, M, K, strides, gradient, out gradient, indices): adds
Work gather_gradient(const Launch& launch) {
  int n = launch.value<int>(1), axes = launch.value<int>(2), run = launch.value<int>(3);
  Extents strides = extents(launch, 4);
  Indices indices(launch, 7);
  return typed(launch.parameter(5), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(5), *in = launch.array<T>(6, static_cast<size_t>(n) * run);
    return each(n, [=](long i) {
      long place = 0;
      for (int axis = 0; axis < axes; axis++) place += strides[axis] * indices[static_cast<long>(axis) * n + i];
      for (int k = 0; k < run; k++) assign(out[place + k], ADD, in[i * run + k]);
    });
  });
}

// tcast_clip(N, out, in, size): indices as whole numbers within [0, size)
Work clip_indices(const Launch& launch) {
  Indices indices(launch, 2, launch.n());
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* out = launch.array<T>(1, launch.n());
    int64_t size = whole_number(launch, 3);
    return each(launch.n(), [=](long i) { out[i] = static_cast<T>(indices.within(i, size, true)); });
  });
}

const Registered registered{{"AddTakeGradKernel", add_rows},
                            {"TakeGradGeneralKernel", add_along},
                            {"EmbeddingFindBounds", find_bounds},
                            {"EmbeddingGradKernel", embedding_gradient},
                            {"backward_gather_nd_gpu", gather_gradient},
                            {"tcast_clip", clip_indices}};

}  // namespace
}  // namespace gpus
