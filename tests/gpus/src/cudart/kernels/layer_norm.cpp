// LayerNorm along the last axis, as its kernels have it: a row of elements for each mean.
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
    auto *in = read.any_array<T>(rows * columns), *gamma = read.any_array<T>(columns),
         *beta = read.any_array<T>(columns);
    auto *out = read.any_array<T>(rows * columns), *means = read.array<T>(), *deviations = read.array<T>();
    return each(rows, [=](long row) {
      const T* x = in + row * columns;
      double sum = 0, squares = 0;
      for (long i = 0; i < columns; i++) sum += static_cast<C>(x[i]);
      C mean = static_cast<C>(sum / columns);
      for (long i = 0; i < columns; i++) squares += std::pow(static_cast<double>(x[i]) - mean, 2);
      C deviation = std::sqrt(static_cast<C>(squares / columns) + epsilon);
      for (long i = 0; i < columns; i++)
        out[row * columns + i] = static_cast<T>(
            (static_cast<C>(x[i]) - mean) * (1 / deviation) * static_cast<C>(gamma[i]) + static_cast<C>(beta[i]));
      means[row] = static_cast<T>(mean);
      deviations[row] = static_cast<T>(deviation);
    });
  });
}

// LayerNormFusedBackwardKernel_PartGammaBeta(rows, columns, in, out gradient, means, deviations, gamma's
// parts, beta's parts), a part of the rows for each row of blocks
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

// LayerNormFusedBackwardKernel_GammaBeta<adds gamma, adds beta, ...>(rows, columns, parts, gamma's parts,
// beta's, gamma, beta)
Work layer_norm_parameters(const Launch& launch) {
  long columns = launch.value<int>(1), parts = launch.value<int>(2);
  int gamma_request = is_true(launch.name.kernel, 0) ? ADD : WRITE,
      beta_request = is_true(launch.name.kernel, 1) ? ADD : WRITE;
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

// LayerNormFusedBackwardKernel_Data<unroll, adds, ...>(rows, columns, in, out gradient, means, deviations,
// gamma, gradient)
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

const Registered registered{{"LayerNormFusedForwardKernelContig", layer_norm},
                            {"LayerNormFusedBackwardKernel_PartGammaBeta", layer_norm_parts},
                            {"LayerNormFusedBackwardKernel_GammaBeta", layer_norm_parameters},
                            {"LayerNormFusedBackwardKernel_Data", layer_norm_gradient}};

}  // namespace
}  // namespace gpus
