#include <cmath>
#include <cstdint>
#include <map>

#include "operations.h"
#include "special_functions.h"

namespace gpus {
namespace {

constexpr float PI = M_PI, SELU_ALPHA = 1.6732632423543772848f, SELU_LAMBDA = 1.0507009873554804934f;

template <class X> X rounded_to_nearest(X x) {  // of two equally near, the lower
  X below = std::floor(x), above = std::ceil(x);
  return x - below <= above - x ? below : above;
}

template <class X> X slope_of_erf(X x) { return X(2 / std::sqrt(M_PI)) * std::exp(-(x * x)); }

// Names of the function, and its value for `a`. `x` is `a` as a floating-point number.
#define FUNCTION(name, value)                         \
  functions[#name] = [](const C* in, C* out, int n) { \
    for (int i = 0; i < n; i++) {                     \
      [[maybe_unused]] const C a = in[i];             \
      [[maybe_unused]] const X x = X(a);              \
      out[i] = static_cast<C>(value);                 \
    }                                                 \
  }

template <class C, class X> std::map<std::string, Unary<C>> powers_and_logarithms() {
  std::map<std::string, Unary<C>> functions;
  FUNCTION(square, a * a);
  FUNCTION(square_grad, 2 * a);
  FUNCTION(square_root, std::sqrt(x));
  FUNCTION(square_root_grad, X(0.5) / x);
  FUNCTION(reciprocal_square_root, 1 / std::sqrt(x));
  FUNCTION(reciprocal_square_root_grad, X(-0.5) / (std::sqrt(x) * x));
  FUNCTION(cube_root, std::cbrt(x));
  FUNCTION(cube_root_grad, 1 / (3 * (x * x)));
  FUNCTION(reciprocal_cube_root, 1 / std::cbrt(x));
  FUNCTION(reciprocal_cube_root_grad, -1 / (3 * std::cbrt(x) * x));
  FUNCTION(reciprocal, 1 / x);
  FUNCTION(reciprocal_grad, -1 / (x * x));
  FUNCTION(exp, std::exp(x));
  FUNCTION(expm1, std::expm1(x));
  FUNCTION(log, std::log(x));
  FUNCTION(log_grad, 1 / x);
  FUNCTION(log10, std::log10(x));
  FUNCTION(log10_grad, X(0.43429448190325182765) / x);
  FUNCTION(log2, std::log2(x));
  FUNCTION(log2_grad, X(1.44269504088896340737) / x);
  FUNCTION(log1p, std::log1p(x));
  FUNCTION(log1p_grad, 1 / (1 + x));
  FUNCTION(gamma, std::tgamma(x));
  FUNCTION(gamma_grad, std::tgamma(x) * X(digamma(x)));
  FUNCTION(gammaln, std::lgamma(x));
  FUNCTION(gammaln_grad, digamma(x));
  FUNCTION(erf, std::erf(x));
  FUNCTION(erf_grad, slope_of_erf(x));
  FUNCTION(erfinv, inverse_erf(x));
  FUNCTION(erfinv_grad, X(0.5) * std::sqrt(PI) * std::exp(x * x));
  return functions;
}

template <class C, class X> std::map<std::string, Unary<C>> trigonometry() {
  std::map<std::string, Unary<C>> functions;
  FUNCTION(sin, std::sin(x));
  FUNCTION(sin_grad, std::cos(x));
  FUNCTION(cos, std::cos(x));
  FUNCTION(cos_grad, -std::sin(x));
  FUNCTION(tan, std::tan(x));
  FUNCTION(tan_grad, x * x + 1);
  FUNCTION(arcsin, std::asin(x));
  FUNCTION(arcsin_grad, 1 / std::sqrt(1 - x * x));
  FUNCTION(arccos, std::acos(x));
  FUNCTION(arccos_grad, -1 / std::sqrt(1 - x * x));
  FUNCTION(arctan, std::atan(x));
  FUNCTION(arctan_grad, 1 / (x * x + 1));
  FUNCTION(sinh, std::sinh(x));
  FUNCTION(sinh_grad, std::cosh(x));
  FUNCTION(cosh, std::cosh(x));
  FUNCTION(cosh_grad, std::sinh(x));
  FUNCTION(tanh, std::tanh(x));
  FUNCTION(tanh_grad, 1 - x * x);
  FUNCTION(arcsinh, std::asinh(x));
  FUNCTION(arcsinh_grad, 1 / std::hypot(x, X(1)));
  FUNCTION(arccosh, std::acosh(x));
  FUNCTION(arccosh_grad, 1 / std::sqrt(x * x - 1));
  FUNCTION(arctanh, std::atanh(x));
  FUNCTION(arctanh_grad, 1 / (1 - x * x));
  FUNCTION(degrees, 180 / PI * x);
  FUNCTION(degrees_grad, 180 / PI);
  FUNCTION(radians, PI / 180 * x);
  FUNCTION(radians_grad, PI / 180);
  return functions;
}

template <class C, class X> std::map<std::string, Unary<C>> activations() {
  std::map<std::string, Unary<C>> functions;
  FUNCTION(relu, a != a || a > 0 ? a : C(0));
  FUNCTION(relu_grad, a != a ? a : C(a > 0));
  FUNCTION(sigmoid, 1 / (1 + std::exp(-x)));
  FUNCTION(sigmoid_grad, x * (1 - x));
  FUNCTION(softsign, x / (1 + std::fabs(x)));
  FUNCTION(softsign_grad, 1 / ((1 + std::fabs(x)) * (1 + std::fabs(x))));
  FUNCTION(softrelu, x > 20 ? x : std::log1p(std::exp(x)));
  FUNCTION(softrelu_grad, -std::expm1(-x));
  FUNCTION(selu, SELU_LAMBDA * (x > 0 ? x : SELU_ALPHA * std::expm1(x)));
  FUNCTION(selu_grad, SELU_LAMBDA * (x > 0 ? 1 : SELU_ALPHA + x));
  FUNCTION(gelu, X(0.5) * x * (1 + std::erf(x / X(M_SQRT2))));
  return functions;
}

template <class C, class X> std::map<std::string, Unary<C>> signs_and_rounding() {
  std::map<std::string, Unary<C>> functions;
  FUNCTION(identity, a);
  FUNCTION(identity_grad, 1);
  FUNCTION(negation, -a);
  FUNCTION(abs, a < 0 ? -a : a);
  FUNCTION(sign, a < 0 ? C(-1) : C(a > 0));
  FUNCTION(sign_grad, 0);
  FUNCTION(round, std::round(x));
  FUNCTION(rint, rounded_to_nearest(x));
  FUNCTION(ceil, std::ceil(x));
  FUNCTION(floor, std::floor(x));
  FUNCTION(trunc, std::trunc(x));
  FUNCTION(fix, std::trunc(x));
  FUNCTION(nt, a == 0);
  FUNCTION(np_logical_not, a == 0);
  FUNCTION(NonZero, a != 0);
  FUNCTION(bitwise_not, ~static_cast<int64_t>(a));
  FUNCTION(isnan, a != a);
  FUNCTION(isinf, std::isinf(x));
  FUNCTION(isfinite, std::isfinite(x));
  FUNCTION(isposinf, std::isinf(x) && x > 0);
  FUNCTION(isneginf, std::isinf(x) && x < 0);
  return functions;
}

template <class C> const std::map<std::string, Unary<C>>& all() {
  using X = std::conditional_t<std::is_same_v<C, double>, double, float>;
  static auto& functions = *new auto([] {
    auto all = powers_and_logarithms<C, X>();
    all.merge(trigonometry<C, X>());
    all.merge(activations<C, X>());
    all.merge(signs_and_rounding<C, X>());
    return all;
  }());
  return functions;
}

}  // namespace

template <class C> Unary<C> unary(const std::string& name) {
  auto found = all<C>().find(name);
  return found == all<C>().end() ? nullptr : found->second;
}

template Unary<float> unary<float>(const std::string&);
template Unary<double> unary<double>(const std::string&);
template Unary<int64_t> unary<int64_t>(const std::string&);

}  // namespace gpus
