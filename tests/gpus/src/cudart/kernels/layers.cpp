// Kernels of single layers: LayerNorm, hard_sigmoid, padding of images, and the Sequence operators.
#include <cmath>

#include "arguments.h"

namespace gpus {
namespace {

// LayerNormFusedForwardKernelContig(rows, columns, epsilon, in, gamma, beta, out, means, deviations)
Work layer_norm(const Launch& launch) {
  long rows = launch.value<int>(0), columns = launch.value<int>(1);
  return typed_real(launch.parameter(3), [&](auto element) -> Work {
    using T = decltype(element);
    using C = Computed<T>;
    C epsilon = access<C>(launch.parameter(2)).get(launch.raw(2));
    Arguments read(launch, 3, rows);
    auto *in = read.any_array<T>(rows * columns), *gamma = read.any_array<T>(columns), *beta = read.any_array<T>(columns);
    auto *out = read.any_array<T>(rows * columns), *means = read.array<T>(), *deviations = read.array<T>();
    return each(rows, [=](long row) {
      const T* x = in + row * columns;
      double sum = 0, squares = 0;
      for (long i = 0; i < columns; i++) sum += static_cast<C>(x[i]);
      C mean = static_cast<C>(sum / columns);
      for (long i = 0; i < columns; i++) squares += std::pow(static_cast<double>(x[i]) - mean, 2);
      C deviation = std::sqrt(static_cast<C>(squares / columns) + epsilon);
      for (long i = 0; i < columns; i++)
        out[row * columns + i] = static_cast<T>((static_cast<C>(x[i]) - mean) * (1 / deviation) * static_cast<C>(gamma[i]) +
                                                static_cast<C>(beta[i]));
      means[row] = static_cast<T>(mean);
      deviations[row] = static_cast<T>(deviation);
    });
  });
}

// LayerNormFusedBackwardKernel_PartGammaBeta(rows, columns, in, out gradient, means, deviations, gamma's parts, beta's parts), a
// part of the rows for each row of blocks
Work layer_norm_parts(const Launch& launch) {
  long rows = launch.value<int>(0), columns = launch.value<int>(1), parts = launch.grid.y;
  return typed_real(launch.parameter(2), [&](auto element) {
    return typed_real(launch.parameter(6), [&](auto summed) -> Work {
      using T = decltype(element);
      using A = decltype(summed);
      Arguments read(launch, 2, rows * columns);
      auto *in = read.array<T>(), *slopes = read.array<T>();
      auto *means = read.any_array<T>(rows), *deviations = read.any_array<T>(rows);
      auto *gamma = read.any_array<A>(parts * columns), *beta = read.any_array<A>(parts * columns);
      return each(parts * columns, [=](long place) {
        using C = Computed<A>;
        long share = (rows + parts - 1) / parts, part = place / columns, column = place % columns;
        C of_gamma = 0, of_beta = 0;
        for (long row = part * share; row < std::min(rows, (part + 1) * share); row++) {
          C slope = static_cast<C>(slopes[row * columns + column]), x = static_cast<C>(in[row * columns + column]);
          of_gamma += (x - static_cast<C>(means[row])) / static_cast<C>(deviations[row]) * slope;
          of_beta += slope;
        }
        gamma[place] = static_cast<A>(of_gamma);
        beta[place] = static_cast<A>(of_beta);
      });
    });
  });
}

// LayerNormFusedBackwardKernel_GammaBeta<adds gamma, adds beta, ...>(rows, columns, parts, gamma's parts, beta's, gamma, beta)
Work layer_norm_parameters(const Launch& launch) {
  long columns = launch.value<int>(1), parts = launch.value<int>(2);
  int gamma_request = is_true(launch.name.kernel, 0) ? ADD : WRITE, beta_request = is_true(launch.name.kernel, 1) ? ADD : WRITE;
  return typed_real(launch.parameter(5), [&](auto element) {
    return typed_real(launch.parameter(3), [&](auto summed) -> Work {
      using T = decltype(element);
      using A = decltype(summed);
      using C = Computed<A>;
      Arguments read(launch, 3, parts * columns);
      auto *gamma_parts = read.array<A>(), *beta_parts = read.array<A>();
      auto *gamma = read.any_array<T>(columns), *beta = read.any_array<T>(columns);  // nullptr: not wanted
      return each(columns, [=](long column) {
        C of_gamma = 0, of_beta = 0;
        for (long part = 0; part < parts; part++) {
          of_gamma += static_cast<C>(gamma_parts[part * columns + column]);
          of_beta += static_cast<C>(beta_parts[part * columns + column]);
        }
        if (gamma) assign(gamma[column], gamma_request, of_gamma);
        if (beta) assign(beta[column], beta_request, of_beta);
      });
    });
  });
}

// LayerNormFusedBackwardKernel_Data<unroll, adds, ...>(rows, columns, in, out gradient, means, deviations, gamma, gradient)
Work layer_norm_gradient(const Launch& launch) {
  long rows = launch.value<int>(0), columns = launch.value<int>(1);
  int request = is_true(launch.name.kernel, 1) ? ADD : WRITE;
  return typed_real(launch.parameter(2), [&](auto element) -> Work {
    using T = decltype(element);
    using C = Computed<T>;
    Arguments read(launch, 2, rows * columns);
    auto *in = read.array<T>(), *slopes = read.array<T>();
    auto *means = read.any_array<T>(rows), *deviations = read.any_array<T>(rows), *gamma = read.any_array<T>(columns);
    auto* out = read.array<T>();
    return each(rows, [=](long row) {
      C mean = means[row], inverse = 1 / static_cast<C>(deviations[row]);
      double sum = 0, product = 0;
      for (long i = 0; i < columns; i++) {
        C slope = static_cast<C>(slopes[row * columns + i]) * static_cast<C>(gamma[i]) * inverse;
        sum += slope;
        product += slope * (static_cast<C>(in[row * columns + i]) - mean) * inverse;
      }
      C mean_slope = static_cast<C>(sum / columns), mean_product = static_cast<C>(product / columns);
      for (long i = 0; i < columns; i++) {
        C slope = static_cast<C>(slopes[row * columns + i]) * static_cast<C>(gamma[i]) * inverse;
        C scaled = (static_cast<C>(in[row * columns + i]) - mean) * inverse;
        assign(out[row * columns + i], request, slope - mean_slope - scaled * mean_product);
      }
    });
  });
}

// hard_sigmoid_forward<request>(N, out, in, alpha, beta), and hard_sigmoid_backward(N, gradient, in, out gradient, alpha, beta)
Work hard_sigmoid(const Launch& launch, bool gradient) {
  int request = request_in(launch.operation(), 0), n = launch.n(), last = launch.count() - 1;
  return typed_real(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    using C = Computed<T>;
    C alpha = launch.value<float>(last - 1), beta = launch.value<float>(last);
    auto *out = static_cast<T*>(launch.pointer(1, n)), *in = static_cast<T*>(launch.pointer(2, n));
    auto* slopes = gradient ? static_cast<T*>(launch.pointer(3, n)) : nullptr;
    return each(n, [=](long i) {
      C value = alpha * static_cast<C>(in[i]) + beta;
      if (gradient)
        assign(out[i], request, value > 0 && value < 1 ? static_cast<C>(slopes[i]) * alpha : C(0));
      else
        assign(out[i], request, std::min<C>(std::max<C>(value, 0), 1));
    });
  });
}

// mshadow::Tensor<gpu, N, T>
struct Image {
  void* data;
  Extents shape;
  long plane;  // elements of its last axes

  Image(const Launch& launch, int place, int axes) : data(launch.value<void*>(place)) {
    int dimensions = atoi(launch.parameter(place).arguments[1].word.c_str());
    Extents all(static_cast<const char*>(launch.raw(place)) + sizeof data, dimensions);
    shape.axes.assign(all.axes.end() - axes, all.axes.end());
    plane = shape.size();
    launch.check(data, all.size() * size_of(launch.parameter(place).arguments[2]));
  }
};

// Where an element beside the image comes from, along one axis; -1: nowhere.
int padded_from(int place, int size, char way) {
  if (place >= 0 && place < size) return place;
  if (way == 'c') return -1;
  if (way == 'e') return place < 0 ? 0 : size - 1;
  return place < 0 ? -place : 2 * (size - 1) - place;
}

// image_2d_pad_constant_kernel(out, in, top, left, number), image_3d_pad_..., ..._edge_..., ..._reflect_..., and
// ..._grad_kernel(gradient, out gradient, ...)
template <int AXES, bool GRADIENT>
Work pad(const Launch& launch) {
  const std::string& word = launch.name.kernel.word;
  char way = word[word.find("pad_") + 4];
  Image padded(launch, GRADIENT ? 1 : 0, AXES), inner(launch, GRADIENT ? 0 : 1, AXES);
  std::vector<int> before;
  for (int axis = 0; axis < AXES; axis++) before.push_back(launch.value<int>(2 + axis));
  long images = static_cast<long>(launch.grid.y) * launch.grid.z;
  return typed(launch.parameter(0).arguments[2], [&](auto element) -> Work {
    using T = decltype(element);
    T number = way == 'c' && !GRADIENT ? launch.value<T>(2 + AXES) : T(0);
    return each(images * padded.plane, [=](long i) {
      long place = 0, stride = 1, rest = i % padded.plane;
      for (int axis = AXES - 1; axis >= 0 && place >= 0; axis--) {
        int from = padded_from(rest % padded.shape[axis] - before[axis], inner.shape[axis], way);
        place = from < 0 ? -1 : place + from * stride;
        rest /= padded.shape[axis];
        stride *= inner.shape[axis];
      }
      T *outside = static_cast<T*>(padded.data) + i, *inside = static_cast<T*>(inner.data) + i / padded.plane * inner.plane + place;
      if (!GRADIENT) *outside = place < 0 ? number : *inside;
      if (GRADIENT && place >= 0) assign(*inside, way == 'c' ? WRITE : ADD, *outside);
    });
  });
}

// SequenceMask0GPUKernel<request>(N, array, lengths, longest, batch, rest, value), whose axis of time is the first one, and
// SequenceMask1GPUKernel, where it is the second one
Work mask(const Launch& launch, bool time_first) {
  int request = request_in(launch.operation(), 0), longest = launch.value<int>(3), batch = launch.value<int>(4);
  int rest = launch.value<int>(5);
  Indices lengths(launch, 2, batch);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* array = static_cast<T*>(launch.pointer(1, launch.n()));
    T value = launch.value<T>(6);
    return each(launch.n(), [=](long i) {
      long sequence = time_first ? i / rest % batch : i / rest / longest, time = time_first ? i / rest / batch : i / rest % longest;
      if (time >= lengths[sequence]) assign(array[i], request, value);
    });
  });
}

// SequenceLastKernel<request>(N, out, in, lengths, stride of time, stride of the batch, shape), and its gradient, which adds
Work last(const Launch& launch, bool gradient) {
  int request = gradient ? ADD : request_in(launch.operation(), 0), time = launch.value<int>(4), batch = launch.value<int>(5);
  Extents shape = extents(launch, 6);
  Indices lengths(launch, 3, shape[0]);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *first = static_cast<T*>(launch.pointer(1)), *second = static_cast<T*>(launch.pointer(2));
    return each(launch.n(), [=](long i) {
      long sequence = i / shape[1], place = (lengths[sequence] - 1) * time + sequence * batch + i % shape[1];
      if (gradient)
        assign(first[place], request, second[i]);
      else
        assign(first[i], request, second[place]);
    });
  });
}

// ReverseKernel<(mxnet::OpReqType)request>(N, out, in, longest, batch, rest, elements, lengths)
Work reverse_sequences(const Launch& launch) {
  const std::string& word = launch.operation().arguments[0].text;
  int request = atoi(word.c_str() + word.find(')') + 1);
  long longest = launch.value<int>(3), batch = launch.value<int>(4), rest = launch.value<int>(5);
  bool has_lengths = launch.value<void*>(7);
  Indices lengths(launch, 7, batch);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    size_t elements = launch.value<int>(6);
    auto *out = static_cast<T*>(launch.pointer(1, elements)), *in = static_cast<T*>(launch.pointer(2, elements));
    return each(longest * batch, [=](long i) {
      long time = i / batch, sequence = i % batch, length = has_lengths ? lengths[sequence] : longest;
      long from = time < length ? length - 1 - time : time;
      for (long k = 0; k < rest; k++) assign(out[i * rest + k], request, in[(from * batch + sequence) * rest + k]);
    });
  });
}

const Registered registered_norm("LayerNormFusedForwardKernelContig", layer_norm);
const Registered registered_norm_parts("LayerNormFusedBackwardKernel_PartGammaBeta", layer_norm_parts);
const Registered registered_norm_parameters("LayerNormFusedBackwardKernel_GammaBeta", layer_norm_parameters);
const Registered registered_norm_gradient("LayerNormFusedBackwardKernel_Data", layer_norm_gradient);
const Registered registered_sigmoid("hard_sigmoid_forward", [](const Launch& launch) { return hard_sigmoid(launch, false); });
const Registered registered_sigmoid_slope("hard_sigmoid_backward", [](const Launch& launch) { return hard_sigmoid(launch, true); });
const Registered registered_constant("image_2d_pad_constant_kernel", pad<2, false>);
const Registered registered_edge("image_2d_pad_edge_kernel", pad<2, false>);
const Registered registered_reflect("image_2d_pad_reflect_kernel", pad<2, false>);
const Registered registered_constant_slope("image_2d_pad_constant_grad_kernel", pad<2, true>);
const Registered registered_edge_slope("image_2d_pad_edge_grad_kernel", pad<2, true>);
const Registered registered_reflect_slope("image_2d_pad_reflect_grad_kernel", pad<2, true>);
const Registered registered_constant3("image_3d_pad_constant_kernel", pad<3, false>);
const Registered registered_edge3("image_3d_pad_edge_kernel", pad<3, false>);
const Registered registered_reflect3("image_3d_pad_reflect_kernel", pad<3, false>);
const Registered registered_constant3_slope("image_3d_pad_constant_grad_kernel", pad<3, true>);
const Registered registered_edge3_slope("image_3d_pad_edge_grad_kernel", pad<3, true>);
const Registered registered_reflect3_slope("image_3d_pad_reflect_grad_kernel", pad<3, true>);
const Registered registered_mask0("SequenceMask0GPUKernel", [](const Launch& launch) { return mask(launch, true); });
const Registered registered_mask1("SequenceMask1GPUKernel", [](const Launch& launch) { return mask(launch, false); });
const Registered registered_last("SequenceLastKernel", [](const Launch& launch) { return last(launch, false); });
const Registered registered_last_gradient("SequenceLastGradKernel", [](const Launch& launch) { return last(launch, true); });
const Registered registered_reverse("ReverseKernel", reverse_sequences);

}  // namespace
}  // namespace gpus
