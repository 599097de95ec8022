// Elements where something is not 0: boolean masks of rows, and mx.npx.nonzero. `ends` are running sums of
// the mask: row i is taken where it grows, and goes to where it was before.
#include "arguments.h"

namespace gpus {
namespace {

struct Taken {
  const int* ends;
  long before(long row) const { return row == 0 ? 0 : ends[row - 1]; }
  explicit Taken(const int* ends) : ends(ends) {}
  bool has(long row) const { return ends[row] != before(row); }
};

// BooleanMaskForwardKernel(N, out, in, ends, columns)
Work take(const Launch& launch) {
  long columns = whole_number(launch, 4);
  Taken taken(launch.array<int>(3, columns ? launch.n() / columns : 0));
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *out = launch.array<T>(1), *in = launch.array<T>(2, launch.n());
    return each(launch.n(), [=](long i) {
      long row = i / columns;
      if (taken.has(row)) out[taken.before(row) * columns + i % columns] = in[i];
    });
  });
}

// BooleanMaskBackwardKernel(N, gradient, request, out gradient, ends, columns)
Work take_slopes(const Launch& launch) {
  int request = launch.value<int>(2);
  long columns = whole_number(launch, 5);
  Taken taken(launch.array<int>(4, columns ? launch.n() / columns : 0));
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *gradient = launch.array<T>(1, launch.n()), *slopes = launch.array<T>(3);
    return each(launch.n(), [=](long i) {
      long row = i / columns;
      assign(gradient[i], request, taken.has(row) ? slopes[taken.before(row) * columns + i % columns] : T(0));
    });
  });
}

// PrefixSumInit(N, ones, in): 1 where an element is not 0
Work ones(const Launch& launch) {
  auto* out = launch.array<int>(1, launch.n());
  Access<double> access = gpus::access<double>(launch.parameter(2));
  const void* in = launch.pointer(2, launch.n());
  if (!access) return {};
  return each(launch.n(), [=](long i) { out[i] = access.get(access.at(in, i)) != 0; });
}

// NonzeroForwardKernel(N, out, ends, shape): a row of coordinates of each
Work coordinates(const Launch& launch) {
  Taken taken(launch.array<int>(2, launch.n()));
  auto* out = launch.array<int64_t>(1);
  Extents shape = extents(launch, 3);
  return each(launch.n(), [=](long i) {
    if (!taken.has(i)) return;
    int64_t* row = out + taken.before(i) * shape.count();
    for (int axis = shape.count() - 1, rest = i; axis >= 0; rest /= shape[axis--]) row[axis] = rest % shape[axis];
  });
}

const Registered registered{{"BooleanMaskForwardKernel", take},
                            {"BooleanMaskBackwardKernel", take_slopes},
                            {"PrefixSumInit", ones},
                            {"NonzeroForwardKernel", coordinates}};

}  // namespace
}  // namespace gpus
