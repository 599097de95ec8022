// mxnet::op::broadcast: reductions along any axes.
#include "arrays.h"
#include "operations.h"
#include "reducers.h"

namespace gpus {
namespace {

constexpr int TOGETHER = 256;  // results that are reduced side by side, where their elements lie side by side

// The input, elements of which are reduced: `first` of each result,
// and then what is added by each of `count` steps.
struct Input {
  const void* data = nullptr;
  std::vector<int> result_strides;  // along the axes of the result's shape; 0 where that has one element
  Extents shape;                    // of what is reduced
  std::vector<int> strides;
};

// Strides of an array of this shape, 0 along axes of one element.
std::vector<int> strides_of(const Extents& shape) {
  std::vector<int> strides(shape.count());
  int step = 1;
  for (int axis = shape.count() - 1; axis >= 0; axis--) {
    strides[axis] = shape[axis] > 1 ? step : 0;
    step *= shape[axis];
  }
  return strides;
}

// Elements that go into results[first...], for steps begin...end of the reduction, by way of OPERATION.
template <class C> struct Reading {
  Access<C> access;
  Input inputs[3];
  int operands = 1;  // 1, or 3: OP1(big, OP2(lhs, rhs))
  Unary<C> one = nullptr;
  Binary<C> outer = nullptr, inner = nullptr;
  bool rounds = false;

  // By the kernel's template arguments: OP1 and OP2, or OP.
  bool finds_functions(const std::vector<Type>& arguments) {
    if (operands == 3) {
      outer = binary<C>(arguments[3].word);
      inner = binary<C>(arguments[4].word);
      return outer && inner;
    }
    if (arguments[5].word != "identity") one = unary<C>(arguments[5].word);
    return one || arguments[5].word == "identity";
  }

  // n elements at these places.
  void load(const long (&at)[3], const int (&stride)[3], int n, C* out) const {
    C values[3][BLOCK];
    for (int k = 0; k < operands; k++)
      access.load(access.at(inputs[k].data, at[k]), stride[k], n, operands == 1 && !one ? out : values[k]);
    if (one) one(values[0], out, n);
    if (operands == 3) {
      inner(values[1], values[2], out, n);
      if (rounds) round_to_half(out, n);
      outer(values[0], out, out, n);
    }
    if (rounds && (one || operands == 3)) round_to_half(out, n);
  }
};

template <class C> struct Reduction {
  Reading<C> reading;
  std::shared_ptr<Reducer<C>> reducer;
  Access<C> out_access;
  void* out;
  Extents small;
  long results, steps;
  bool adds;

  void store(long result, const C* values, int n) const {
    out_access.store(out_access.at(out, result), n, values, adds ? ADD : WRITE);
  }

  void operator()(long begin, long end, long offset) const {
    std::vector<int> strides[3];
    for (int k = 0; k < 3; k++) {
      strides[k] = reading.inputs[k].result_strides;
      strides[k].resize(small.count());
    }
    Walk<3> walk(small, strides);
    bool neighbors = walk.stride(0) == 1;
    for (long result = 0; result < results;) {
      int run = neighbors ? std::min(walk.run(), TOGETHER) : 1;
      int along[3] = {walk.stride(0), walk.stride(1), walk.stride(2)};
      if (run > 1)
        reduce_run(walk.at, along, run, begin, end, result + offset);
      else
        reduce_one(walk.at, begin, end, result + offset);
      walk.advance(run);
      result += run;
    }
  }

  // The axes of an input that are reduced lie before those of one element, each input's own: where one has as
  // many axes left as the first, these are the same.
  Walk<3> steps_from(long begin) const {
    Extents shape;
    std::vector<int> strides[3];
    for (int k = 0; k < 3; k++) {
      const Input& input = reading.inputs[k];
      for (int axis = 0; axis < input.shape.count(); axis++) {
        if (input.shape[axis] == 1) continue;
        if (k == 0) shape.axes.push_back(input.shape[axis]);
        strides[k].push_back(input.strides[axis]);
      }
      strides[k].resize(shape.count());
    }
    return Walk<3>(shape, strides, begin);
  }

  // One result, of a block of elements at a time.
  void reduce_one(const long (&first)[3], long begin, long end, long result) const {
    State<C> state = reducer->start();
    Walk<3> walk = steps_from(begin);
    C values[BLOCK];
    int filled = 0;
    for (long step = begin; step < end;) {
      int run = std::min<long>({walk.run(), BLOCK - filled, end - step});
      long at[3];
      int along[3];
      for (int k = 0; k < 3; k++) at[k] = first[k] + walk.at[k], along[k] = walk.stride(k);
      reading.load(at, along, run, values + filled);
      filled += run;
      if (filled == BLOCK) reducer->add(state, values, filled), filled = 0;
      walk.advance(run);
      step += run;
    }
    if (filled) reducer->add(state, values, filled);
    C value = reducer->finish(state);
    store(result, &value, 1);
  }

  // Neighboring results, whose elements are neighbors.
  void reduce_run(const long (&first)[3], const int (&along)[3], int run, long begin, long end, long result) const {
    State<C> states[TOGETHER];
    C values[BLOCK];
    std::fill(states, states + run, reducer->start());
    Walk<3> walk = steps_from(begin);
    for (long step = begin; step < end; step++) {
      long at[3];
      for (int k = 0; k < 3; k++) at[k] = first[k] + walk.at[k];
      reading.load(at, along, run, values);
      reducer->add_each(states, values, run);
      walk.advance(1);
    }
    for (int i = 0; i < run; i++) values[i] = reducer->finish(states[i]);
    store(result, values, run);
  }
};

// What both kernels below have, from parameter `place` on: the inputs, the output, and the shapes that
// belong to it. The place of the parameter behind these.
template <class C> int read_operands(const Launch& launch, int place, int operands, Reduction<C>& reduction) {
  Reading<C>& reading = reduction.reading;
  reading.operands = operands;
  reading.rounds = is_half(launch.parameter(place));
  reading.access = access<C>(launch.parameter(place));
  reduction.results = launch.value<int>(0);
  reduction.adds = launch.value<bool>(place - 1);
  for (int k = 0; k < operands; k++) reading.inputs[k].data = launch.pointer(place++);
  reduction.out_access = access<C>(launch.parameter(place));
  reduction.out = launch.pointer(place++);
  for (int k = 0; k < operands; k++) reading.inputs[k].result_strides = strides_of(extents(launch, place++));
  reduction.small = extents(launch, place++);
  return place;
}

// Whether everything that the kernel's name asks for is known.
template <class C> bool find_functions(const Launch& launch, Reduction<C>& reduction) {
  const std::vector<Type>& template_arguments = launch.name.kernel.arguments;
  reduction.reducer = reducer<C>(template_arguments[0].word);
  return reduction.reading.finds_functions(template_arguments) && reduction.reducer && reduction.reading.access &&
         reduction.out_access;
}

// reduce_kernel<Reducer, ndim, AType, DType, OType, OP, unroll>(N, M, addto, big, small, big_shape0,
// small_shape, big_shape, big_stride, Mnext, transposed), and with two operations (N, M, addto, big, lhs,
// rhs, small, big_shape0, lhs_shape0, rhs_shape0, small_shape, big_shape, lhs_shape, rhs_shape, big_stride,
// lhs_stride, rhs_stride, Mnext, transposed).
template <class C> Work reduce_in(const Launch& launch) {
  int operands = launch.count() > 12 ? 3 : 1;
  Reduction<C> reduction;
  Reading<C>& reading = reduction.reading;
  int place = read_operands(launch, 3, operands, reduction);
  for (int k = 0; k < operands; k++) reading.inputs[k].shape = extents(launch, place++);
  for (int k = 0; k < operands; k++) reading.inputs[k].strides = extents(launch, place++).axes;
  int parts = launch.value<int>(place);
  reduction.steps = launch.value<int>(1);
  if (!find_functions(launch, reduction)) return {};
  return [=] {
    for (long part = 0; part < parts; part++)
      reduction(reduction.steps * part / parts, reduction.steps * (part + 1) / parts, part * reduction.results);
  };
}

Work reduce(const Launch& launch) {
  bool three = launch.count() > 12;
  return in_computed_type(launch, {3, three ? 6 : 4}, [&](auto number) { return reduce_in<decltype(number)>(launch); });
}

// reduce_kernel_M1(N, addto, big, small, big_shape, small_shape), and with lhs,
// rhs and their shapes behind those of big.
template <class C> Work single_in(const Launch& launch) {
  int operands = launch.count() > 6 ? 3 : 1;
  Reduction<C> reduction;
  read_operands(launch, 2, operands, reduction);
  for (int k = 0; k < operands; k++) {
    reduction.reading.inputs[k].shape.axes = {1};
    reduction.reading.inputs[k].strides = {0};
  }
  reduction.steps = 1;
  if (!find_functions(launch, reduction)) return {};
  return [=] { reduction(0, 1, 0); };
}

Work single(const Launch& launch) {
  bool three = launch.count() > 6;
  return in_computed_type(launch, {2, three ? 5 : 3}, [&](auto number) { return single_in<decltype(number)>(launch); });
}

template <class C> Work lines_in(const Launch& launch) {
  long results = launch.value<int>(0), lines = launch.value<int>(1), stride = launch.value<int>(3);
  bool adds = launch.value<bool>(2);
  Access<C> access = gpus::access<C>(launch.parameter(4));
  std::shared_ptr<Reducer<C>> reducer = gpus::reducer<C>(launch.name.kernel.arguments[0].word);
  if (!access || !reducer) return {};
  const void* in = launch.pointer(4, (lines - 1) * stride + results);
  void* out = launch.pointer(5, results);
  return [=] {
    State<C> states[BLOCK];
    C values[BLOCK];
    for (long first = 0; first < results; first += BLOCK) {
      int n = std::min<long>(BLOCK, results - first);
      std::fill(states, states + n, reducer->start());
      for (long line = 0; line < lines; line++) {
        access.load(access.at(in, line * stride + first), 1, n, values);
        reducer->add_each(states, values, n);
      }
      for (int i = 0; i < n; i++) values[i] = reducer->finish(states[i]);
      access.store(access.at(out, first), n, values, adds ? ADD : WRITE);
    }
  };
}

// reduce_lines_kernel(N, M, addto, stride, in, out): the second half of a reduction in parts.
Work lines(const Launch& launch) {
  return in_computed_type(launch, {4}, [&](auto number) { return lines_in<decltype(number)>(launch); });
}

const Registered registered{{"reduce_kernel", reduce}, {"reduce_kernel_M1", single}, {"reduce_lines_kernel", lines}};

}  // namespace
}  // namespace gpus
