// The distributions of mx.np.random. cuRAND's uniform or normal numbers are there before; a kernel makes of
// each number, which gradients call the noise, a draw of its distribution.
#include <cmath>

#include "arguments.h"

namespace gpus {
namespace {

// A parameter of a distribution: a number, or an array that is broadcast.
struct Parameter {
  double number = 0;
  const void* array = nullptr;
  Access<double> access{};
  std::vector<int> strides;

  Parameter(double number, int axes) : number(number), strides(axes) {}
  Parameter(const Launch& launch, int place, std::vector<int> strides)
      : array(launch.pointer(place)),
        access(gpus::access<double>(launch.parameter(place))),
        strides(std::move(strides)) {}
  double at(long place) const { return array ? access.get(access.at(array, place)) : number; }
};

struct Parameters {
  Parameter first, second;
  Extents shape;
  int noise;  // which argument; the draws are behind it
};

// ..._two_scalar_kernel(N, a, b, noise, out), ..._one_scalar_kernel(N, which is the number, stride, shape,
// array, number, noise, out), or ..._kernel(N, stride, stride, shape, a, b, noise, out)
Parameters two_parameters(const Launch& launch) {
  if (launch.parameter(1).word == "float") return {{launch.value<float>(1), 0}, {launch.value<float>(2), 0}, {}, 3};
  if (launch.parameter(1).word != "int")
    return {{launch, 4, extents(launch, 1).axes}, {launch, 5, extents(launch, 2).axes}, extents(launch, 3), 6};
  Extents shape = extents(launch, 3);
  Parameter array(launch, 4, extents(launch, 2).axes), number(launch.value<float>(5), shape.count());
  return launch.value<int>(1) == 0 ? Parameters{number, array, shape, 6} : Parameters{array, number, shape, 6};
}

// scalar_..._kernel(N, a, noise, out), or ..._kernel(N, stride, shape, a, noise, out)
Parameters one_parameter(const Launch& launch) {
  if (launch.parameter(1).word == "float") return {{launch.value<float>(1), 0}, {0, 0}, {}, 2};
  Extents shape = extents(launch, 2);
  return {{launch, 3, extents(launch, 1).axes}, {0, shape.count()}, shape, 4};
}

// visitor(i, a, b) for each draw
template <class Visitor> void visit_draws(const Parameters& parameters, long n, Visitor visitor) {
  const auto& [first, second, shape, noise] = parameters;
  Walk<2> walk(shape, {first.strides, second.strides});
  for (long i = 0; i < n; i++) {
    visitor(i, first.at(walk.at[0]), second.at(walk.at[1]));
    if (shape.count()) walk.advance(1);
  }
}

// draw(noise, a, b) may change the noise: what it leaves there is what the gradient needs.
using Draw = double (*)(float& noise, double a, double b);

template <Parameters (*PARAMETERS)(const Launch&), Draw DRAW> Work drawn(const Launch& launch) {
  long n = launch.n();
  Parameters parameters = PARAMETERS(launch);
  return typed(launch.parameter(parameters.noise + 1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* noise = launch.array<float>(parameters.noise, n);
    auto* out = launch.array<T>(parameters.noise + 1, n);
    return [=] {
      visit_draws(parameters, n, [=](long i, double a, double b) { out[i] = stored<T>(DRAW(noise[i], a, b)); });
    };
  });
}

double uniform(float& noise, double low, double high) { return low + noise * (high - low); }
double scaled(float& noise, double mean, double scale) { return mean + noise * scale; }

double logistic(float& noise, double mean, double scale) {
  noise = std::log(noise) - std::log(1 - noise);
  return scaled(noise, mean, scale);
}

double gumbel(float& noise, double mean, double scale) {
  noise = -std::log(-std::log(noise));
  return scaled(noise, mean, scale);
}

double exponential(float& noise, double scale, double) {
  noise = -std::log(noise);
  return scale * noise;
}

double rayleigh(float& noise, double scale, double) {
  noise = std::sqrt(-2 * std::log(noise));
  return scale * noise;
}

double weibull(float& noise, double a, double) {
  noise = -std::log(noise);
  double draw = std::pow(noise, 1 / a);
  noise = static_cast<float>(-std::log(noise) * draw / (a * a));
  return draw;
}

double pareto(float& noise, double a, double) {
  noise = -std::log(noise);
  double draw = std::exp(noise / a) - 1;
  noise = static_cast<float>(-noise * (draw + 1) / (a * a));
  return draw;
}

double power(float& noise, double a, double) { return std::pow(1 - noise, 1 / a); }
double bernoulli(float& noise, double probability, double) { return probability > noise; }

// check_legal_..._kernel(N, parameter, flag): -1 where one is not legal
template <bool (*LEGAL)(double)> Work check(const Launch& launch) {
  Access<double> access = gpus::access<double>(launch.parameter(1));
  if (!access) return {};
  const void* parameters = launch.pointer(1, launch.n());
  auto* flag = launch.array<float>(2, 1);
  return each(launch.n(), [=](long i) {
    if (!LEGAL(access.get(access.at(parameters, i)))) *flag = -1;
  });
}

bool is_scale(double value) { return value >= 0; }
bool is_positive(double value) { return value > 0; }
bool is_probability(double value) { return value >= 0 && value <= 1; }

// prob_to_logit(N, uniform numbers), for bernoulli(logit=...)
Work logits(const Launch& launch) {
  auto* numbers = launch.array<float>(1, launch.n());
  return each(launch.n(), [=](long i) { numbers[i] = std::log(numbers[i]) - std::log(1 - numbers[i]); });
}

// Marsaglia and Tsang's method, one try: -1 where it fails. The second uniform number is for shapes below 1.
double try_gamma(double shape, double scale, const double* uniforms, double normal) {
  double d = shape < 1 ? shape + 2.0 / 3 : shape - 1.0 / 3, v = std::pow(1 + normal / std::sqrt(9 * d), 3);
  double square = normal * normal;
  bool takes = v > 0 && (uniforms[0] <= 1 - 0.0331 * square * square ||
                         std::log(uniforms[0]) < 0.5 * square + d * (1 - v + std::log(v)));
  if (!takes) return -1;
  return d * v * scale * (shape < 1 ? std::pow(uniforms[1], 1 / shape) : 1);
}

// gamma_..._kernel<...>(..., a, b, uniform numbers, normal ones, out, flag[, again]), which MXNet launches
// until CheckSuccessKernel finds that no draw has failed. Of numbers alone the first launch has no flag.
Work gamma(const Launch& launch) {
  long n = launch.n();
  Parameters parameters = two_parameters(launch);
  int place = parameters.noise;
  bool has_word = launch.count() > place + 4;
  bool again = has_word ? launch.value<bool>(place + 4) : launch.value<void*>(place + 3) != nullptr;
  if (launch.parameter(place).word != "double") return {};
  auto *uniforms = launch.array<double>(place, 2 * n), *normals = launch.array<double>(place + 1, 2 * n),
       *flag = launch.array<double>(place + 3, 1);
  return typed_real(launch.parameter(place + 2), [&](auto element) -> Work {
    auto* out = static_cast<decltype(element)*>(launch.pointer(place + 2, n));
    return [=] {
      if (flag && !has_word) *flag = 1;
      visit_draws(parameters, n, [=](long i, double shape, double scale) {
        if (flag && (shape <= 0 || scale <= 0)) *flag = -1;
        if (again && out[i] >= 0) return;
        out[i] = stored<decltype(element)>(try_gamma(shape, scale, uniforms + 2 * i, normals[2 * i]));
      });
    };
  });
}

// CheckSuccessKernel(N, draws, flag)
Work check_success(const Launch& launch) {
  return typed_real(launch.parameter(1), [&](auto element) -> Work {
    auto* draws = static_cast<decltype(element)*>(launch.pointer(1, launch.n()));
    auto* flag = launch.array<double>(2, 1);
    return each(launch.n(), [=](long i) {
      if (draws[i] < 0) *flag = -1;
    });
  });
}

#define REGISTERED_TWO(name, draw)                                                           \
  const Registered name##_numbers{{#name "_two_scalar_kernel", drawn<two_parameters, draw>}, \
                                  {#name "_one_scalar_kernel", drawn<two_parameters, draw>}, \
                                  {#name "_kernel", drawn<two_parameters, draw>}};
#define REGISTERED_ONE(name)                                                              \
  const Registered name##_number{{"scalar_" #name "_kernel", drawn<one_parameter, name>}, \
                                 {#name "_kernel", drawn<one_parameter, name>}};

REGISTERED_TWO(uniform, uniform)
REGISTERED_TWO(normal, scaled)
REGISTERED_TWO(logistic, logistic)
REGISTERED_TWO(gumbel, gumbel)
REGISTERED_ONE(exponential)
REGISTERED_ONE(rayleigh)
REGISTERED_ONE(weibull)
REGISTERED_ONE(pareto)
REGISTERED_ONE(power)
REGISTERED_ONE(bernoulli)
const Registered registered{{"check_legal_scale_kernel", check<is_scale>},
                            {"check_legal_a_kernel", check<is_positive>},
                            {"check_legal_prob_kernel", check<is_probability>},
                            {"prob_to_logit", logits},
                            {"gamma_two_scalar_kernel", gamma},
                            {"gamma_one_scalar_kernel", gamma},
                            {"gamma_kernel", gamma},
                            {"CheckSuccessKernel", check_success}};

}  // namespace
}  // namespace gpus
