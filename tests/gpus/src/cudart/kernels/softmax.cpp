// softmax, log_softmax and their gradients, and mshadow's softmax of rows.
#include <cmath>

#include "arguments.h"
#include "plans.h"

namespace gpus {
namespace {

// Lines of `length` elements, `stride` apart, along one axis of an array.
struct Lines {
  int count, length;
  long stride;
  std::vector<long> first;  // places; empty: line k begins at k * length

  long at(int line) const { return first.empty() ? static_cast<long>(line) * length : first[line]; }
};

// Of softmax_compute_kernel and softmax_grad_kernel: the arguments M, axis,
// the shape without the axis, and strides.
Lines lines_along_axis(const Launch& launch, int place) {
  Lines lines;
  lines.length = launch.value<int>(place);
  int axis = launch.value<int>(place + 1);
  Extents shape = extents(launch, place + 2), strides = extents(launch, place + 3);
  lines.stride = strides[axis];
  lines.count = shape.size();
  std::vector<int> walked[1] = {strides.axes};
  Walk<1> walk(shape, walked);
  for (int line = 0; line < lines.count; line++, walk.advance(1)) lines.first.push_back(walk.at[0]);
  return lines;
}

// How many elements of a line count, from an array of lengths that may be missing.
struct Lengths {
  Access<int64_t> access;
  const void* array;
  int all;

  Lengths(const Launch& launch, int place, const Lines& lines)
      : access(gpus::access<int64_t>(launch.parameter(place))), array(launch.pointer(place)), all(lines.length) {}
  int of(int line) const { return array ? static_cast<int>(access.get(access.at(array, line))) : all; }
};

template <class T, class O>
void softmax_line(const T* in, O* out, const Lines& lines, int line, int length, bool negates, bool logarithm,
                  double temperature) {
  using C = Computed<T>;
  long first = lines.at(line);
  auto value = [&](int i) {
    C x = in[first + i * lines.stride];
    return negates ? -x : x;
  };
  C largest = -INFINITY;
  for (int i = 0; i < length; i++) largest = std::max(largest, value(i));
  double sum = 0;
  for (int i = 0; i < length; i++) sum += std::exp((value(i) - largest) / static_cast<C>(temperature));
  for (int i = 0; i < lines.length; i++) {
    C scaled = i < length ? (value(i) - largest) / static_cast<C>(temperature) : C(0);
    C result = logarithm ? scaled - static_cast<C>(std::log(sum)) : static_cast<C>(std::exp(scaled) / sum);
    out[first + i * lines.stride] = static_cast<O>(i < length ? result : C(0));
  }
}

// The gradient of a line from the output and its gradient.
template <class T, class O>
void gradient_line(const O* out, const O* out_gradient, T* gradient, const Lines& lines, int line, int length,
                   bool negates, bool logarithm, double temperature, int request) {
  using C = std::conditional_t<std::is_same_v<O, double>, double, float>;
  long first = lines.at(line);
  double sum = 0;
  for (int i = 0; i < length; i++) {
    long place = first + i * lines.stride;
    sum += static_cast<C>(out_gradient[place]) * (logarithm ? C(1) : static_cast<C>(out[place]));
  }
  for (int i = 0; i < lines.length; i++) {
    long place = first + i * lines.stride;
    C slope = out_gradient[place], value = out[place], total = static_cast<C>(sum);
    C result = logarithm ? slope - std::exp(value) * total : value * (slope - total);
    if (negates) result = -result;
    assign(gradient[place], request, i < length ? result / static_cast<C>(temperature) : C(0));
  }
}

// softmax_stride1_compute_kernel<OP, negate, ...>(in, out, lengths, M, temperature, rows per block, rows) and
// softmax_compute_kernel<bits, OP, negate, ...>(in, out, lengths, M, axis, shape, strides, temperature)
template <bool by_rows> Work forward(const Launch& launch) {
  const Type& kernel = launch.name.kernel;
  int operation = by_rows ? 0 : 1;
  bool logarithm = kernel.arguments[operation].word == "log_softmax_fwd", negates = is_true(kernel, operation + 1);
  if (!logarithm && kernel.arguments[operation].word != "softmax_fwd") return {};
  Lines lines = by_rows ? Lines{launch.value<int>(6), launch.value<int>(3), 1, {}} : lines_along_axis(launch, 3);
  double temperature = launch.value<double>(by_rows ? 4 : 7);
  Lengths lengths(launch, 2, lines);
  return typed_real(launch.parameter(0), [&](auto in_element) {
    return typed_real(launch.parameter(1), [&](auto out_element) -> Work {
      using T = decltype(in_element);
      using O = decltype(out_element);
      size_t elements = static_cast<size_t>(lines.count) * lines.length;
      auto* in = launch.array<T>(0, elements);
      auto* out = launch.array<O>(1, elements);
      return [=] {
        for (int line = 0; line < lines.count; line++)
          softmax_line(in, out, lines, line, lengths.of(line), negates, logarithm, temperature);
      };
    });
  });
}

// softmax_stride1_grad_kernel<OP1, OP2, request, negate, ...>(out, ograd, igrad, lengths, M, temperature,
// ..., rows) and softmax_grad_kernel<bits, OP1, OP2, request, negate, ...>(out, ograd, igrad, lengths, M,
// axis, shape, strides, temperature)
template <bool by_rows> Work backward(const Launch& launch) {
  const Type& kernel = launch.name.kernel;
  int operation = by_rows ? 1 : 2;
  bool logarithm = kernel.arguments[operation].word == "log_softmax_bwd", negates = is_true(kernel, operation + 2);
  if (!logarithm && kernel.arguments[operation].word != "softmax_bwd") return {};
  int request = request_in(kernel, operation + 1);
  Lines lines = by_rows ? Lines{launch.value<int>(7), launch.value<int>(4), 1, {}} : lines_along_axis(launch, 4);
  double temperature = launch.value<double>(by_rows ? 5 : 8);
  Lengths lengths(launch, 3, lines);
  return typed_real(launch.parameter(2), [&](auto in_element) {
    return typed_real(launch.parameter(0), [&](auto out_element) -> Work {
      using T = decltype(in_element);
      using O = decltype(out_element);
      size_t elements = static_cast<size_t>(lines.count) * lines.length;
      auto *out = launch.array<O>(0, elements), *out_gradient = launch.array<O>(1, elements);
      auto* gradient = launch.array<T>(2, elements);
      return [=] {
        for (int line = 0; line < lines.count; line++)
          gradient_line(out, out_gradient, gradient, lines, line, lengths.of(line), negates, logarithm, temperature,
                        request);
      };
    });
  });
}

// mshadow::cuda::SoftmaxKernel<bits, T, ...>(target, source, columns): a block for each row
Work rows(const Launch& launch) {
  Target target = read_target(launch, 0);
  SharedPlan<float> source = read_plan<float>(launch, 1);
  if (!target || target.type.word == "double" || !source) return {};
  int count = launch.grid.x, length = launch.value<int>(2);
  Access<float> access = gpus::access<float>(target.type);
  return [=] {
    std::vector<float> in(length), out(length);
    for (int row = 0; row < count; row++) {
      for (int column = 0; column < length; column += BLOCK)
        source->block(row, column, std::min(BLOCK, length - column), in.data() + column);
      softmax_line(in.data(), out.data(), Lines{1, length, 1, {}}, 0, length, false, false, 1);
      access.store(target.at(row, 0, access.size), length, out.data(), WRITE);
    }
  };
}

// mshadow::cuda::SoftmaxGradKernel(target, softmax, labels, columns), with a label that is ignored as the
// last argument; and SmoothSoftmaxGradKernel, whose last argument is the smoothing.
Work rows_gradient(const Launch& launch) {
  Target target = read_target(launch, 0);
  SharedPlan<float> softmax = read_plan<float>(launch, 1), labels = read_plan<float>(launch, 2);
  if (!target || target.type.word == "double" || !softmax || !labels) return {};
  bool smooths = launch.name.kernel.word[1] == 'm';
  int count = launch.grid.x, length = launch.value<int>(3), last = launch.count() - 1;
  bool ignores = launch.count() == (smooths ? 6 : 5);
  float smoothing = smooths ? launch.value<float>(last) : 0;
  int ignored = ignores ? static_cast<int>(access<float>(launch.parameter(4)).get(launch.raw(4))) : 0;
  Access<float> access = gpus::access<float>(target.type);
  return [=] {
    std::vector<float> out(length);
    for (int row = 0; row < count; row++) {
      int label = static_cast<int>(labels->at(0, row));
      for (int column = 0; column < length; column += BLOCK)
        softmax->block(row, column, std::min(BLOCK, length - column), out.data() + column);
      for (int column = 0; column < length; column++) {
        out[column] -= column == label ? 1 - smoothing : smoothing / (length - 1);
        if (ignores && label == ignored) out[column] = 0;
      }
      access.store(target.at(row, 0, access.size), length, out.data(), WRITE);
    }
  };
}

const Registered registered{{"softmax_stride1_compute_kernel", forward<true>},
                            {"softmax_compute_kernel", forward<false>},
                            {"softmax_stride1_grad_kernel", backward<true>},
                            {"softmax_grad_kernel", backward<false>},
                            {"SoftmaxKernel", rows},
                            {"SoftmaxGradKernel", rows_gradient},
                            {"SmoothSoftmaxGradKernel", rows_gradient}};

}  // namespace
}  // namespace gpus
