#include <cmath>
#include <cstdint>
#include <map>

#include "operations.h"

namespace gpus {
namespace {

// With the sign of the divisor, as in Python; 0 for a divisor of 0.
template <class C> C modulo(C a, C b) {
  if (b == 0) return 0;
  if constexpr (std::is_integral_v<C>) {
    C rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  } else {
    double rest = std::fmod(static_cast<double>(a), static_cast<double>(b));
    return static_cast<C>(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
  }
}

template <class C> C quotient(C a, C b) {
  if constexpr (std::is_integral_v<C>) return b == 0 ? 0 : a / b;
  return a / b;
}

// The least common multiple.
template <class C> C least_multiple(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    int64_t first = std::abs(a), second = std::abs(b), rest = second;
    for (int64_t other = first; other;) {
      int64_t next = rest % other;
      rest = other;
      other = next;
    }
    return rest ? first / rest * second : 0;
  }
  return 0;
}

template <class X> X smooth_l1(X x, X sigma) {
  X square = sigma * sigma, bound = 1 / square;
  return x > bound ? x - X(0.5) * bound : x < -bound ? -x - X(0.5) * bound : X(0.5) * x * x * square;
}

template <class X> X smooth_l1_slope(X x, X sigma) {
  X square = sigma * sigma, bound = 1 / square;
  return x > bound ? 1 : x < -bound ? -1 : square * x;
}

template <class X> X gelu_slope(X x) {
  X scaled = x / X(M_SQRT2), slope = X(2 / std::sqrt(M_PI)) * std::exp(-(scaled * scaled));
  return X(0.5) * (1 + std::erf(scaled) + x * slope / X(M_SQRT2));
}

#define FUNCTION(name, value)                                       \
  functions[#name] = [](const C* in, const C* in2, C* out, int n) { \
    for (int i = 0; i < n; i++) {                                   \
      [[maybe_unused]] const C a = in[i], b = in2[i];               \
      [[maybe_unused]] const X x = X(a), y = X(b);                  \
      out[i] = static_cast<C>(value);                               \
    }                                                               \
  }

template <class C, class X> std::map<std::string, Binary<C>> sums_and_products() {
  std::map<std::string, Binary<C>> functions;
  FUNCTION(plus, a + b);
  FUNCTION(minus, a - b);
  FUNCTION(rminus, b - a);
  FUNCTION(mul, a * b);
  FUNCTION(div, quotient(a, b));
  FUNCTION(rdiv, quotient(b, a));
  FUNCTION(div_grad, 1 / y);
  FUNCTION(div_rgrad, -x / (y * y));
  FUNCTION(rdiv_grad, -y / (x * x));
  FUNCTION(true_divide, x / y);
  FUNCTION(rtrue_divide, y / x);
  FUNCTION(mod, modulo(a, b));
  FUNCTION(rmod, modulo(b, a));
  FUNCTION(mod_grad, std::is_floating_point_v<C>);
  FUNCTION(mod_rgrad, std::is_floating_point_v<C> ? -std::floor(x / y) : 0);
  FUNCTION(rmod_grad, std::is_floating_point_v<C> ? -std::floor(y / x) : 0);
  FUNCTION(power, std::pow(x, y));
  FUNCTION(rpower, std::pow(y, x));
  FUNCTION(power_grad, std::pow(x, y - 1) * y);
  FUNCTION(power_rgrad, std::pow(x, y) * std::log(x));
  FUNCTION(rpower_grad, x * std::log(y));
  FUNCTION(hypot, std::hypot(x, y));
  FUNCTION(hypot_grad_left, x / std::hypot(x, y));
  FUNCTION(hypot_grad_right, y / std::hypot(x, y));
  FUNCTION(ldexp, x * std::pow(X(2), y));
  FUNCTION(ldexp_grad, std::pow(X(2), y));
  FUNCTION(ldexp_rgrad, x * std::pow(X(2), y) * std::log(X(2)));
  FUNCTION(rldexp, y * std::pow(X(2), x));
  FUNCTION(rldexp_grad, y * std::pow(X(2), x) * std::log(X(2)));
  FUNCTION(arctan2, std::atan2(x, y));
  FUNCTION(rarctan2, std::atan2(y, x));
  FUNCTION(arctan2_grad, y / (x * x + y * y));
  FUNCTION(arctan2_rgrad, -x / (x * x + y * y));
  FUNCTION(rarctan2_grad, x / (x * x + y * y));
  for (const char* name : {"plus", "minus", "rminus", "mul", "mod", "rmod", "power", "rpower"})
    functions[std::string("mixed_") + name] = functions[name];  // operands of two types
  functions["Plus"] = functions["plus"];                        // those of mxnet::ndarray
  functions["Minus"] = functions["minus"];
  functions["Mul"] = functions["mul"];
  functions["Div"] = functions["div"];
  return functions;
}

template <class C, class X> std::map<std::string, Binary<C>> comparisons() {
  std::map<std::string, Binary<C>> functions;
  FUNCTION(eq, a == b);
  FUNCTION(ne, a != b);
  FUNCTION(gt, a > b);
  FUNCTION(ge, a >= b);
  FUNCTION(lt, a < b);
  FUNCTION(le, a <= b);
  FUNCTION(np_equal, a == b);
  FUNCTION(np_not_equal, a != b);
  FUNCTION(np_greater, a > b);
  FUNCTION(np_greater_equal, a >= b);
  FUNCTION(np_less, a < b);
  FUNCTION(np_less_equal, a <= b);
  FUNCTION(maximum, a != a || a > b ? a : b);
  FUNCTION(minimum, a != a || a < b ? a : b);
  FUNCTION(threshold, a < b);
  FUNCTION(threshold_eq, a <= b);
  FUNCTION(minus_sign, a - b > 0 ? 1 : -1);
  FUNCTION(logical_and, a != 0 && b != 0);
  FUNCTION(logical_or, a != 0 || b != 0);
  FUNCTION(logical_xor, (a != 0) != (b != 0));
  FUNCTION(bitwise_and, static_cast<int64_t>(a) & static_cast<int64_t>(b));
  FUNCTION(bitwise_or, static_cast<int64_t>(a) | static_cast<int64_t>(b));
  FUNCTION(bitwise_xor, static_cast<int64_t>(a) ^ static_cast<int64_t>(b));
  return functions;
}

template <class C, class X> std::map<std::string, Binary<C>> others() {
  std::map<std::string, Binary<C>> functions;
  FUNCTION(left, a);
  FUNCTION(right, b);
  FUNCTION(posone, 1);
  FUNCTION(negone, -1);
  FUNCTION(copysign, (a < 0) == (b < 0) ? a : -a);
  FUNCTION(copysign_grad, (a < 0) == (b < 0) ? 1 : -1);
  FUNCTION(copysign_rgrad, 0);
  FUNCTION(rcopysign, (a < 0) == (b < 0) ? b : -b);
  FUNCTION(rcopysign_grad, 0);
  FUNCTION(xelu, a > 0 ? x : x * y);
  FUNCTION(xelu_grad, a > 0 ? C(1) : b);
  FUNCTION(prelu_grad, a > 0 ? C(0) : a);
  FUNCTION(elu, a > 0 ? x : y * std::expm1(x));
  FUNCTION(elu_grad, a > 0 ? C(1) : C(b + a));
  FUNCTION(gelu_grad, gelu_slope(x));
  FUNCTION(smooth_l1_loss, smooth_l1(x, y));
  FUNCTION(smooth_l1_gradient, smooth_l1_slope(x, y));
  FUNCTION(nansum_grad, a == a);
  FUNCTION(nanprod_grad, a == a ? y / x : 0);
  FUNCTION(lcm, least_multiple(a, b));
  return functions;
}

template <class C> const std::map<std::string, Binary<C>>& all() {
  using X = std::conditional_t<std::is_same_v<C, double>, double, float>;
  static auto& functions = *new auto([] {
    auto all = sums_and_products<C, X>();
    all.merge(comparisons<C, X>());
    all.merge(others<C, X>());
    return all;
  }());
  return functions;
}

}  // namespace

template <class C> Binary<C> binary(const std::string& name) {
  auto found = all<C>().find(name);
  return found == all<C>().end() ? nullptr : found->second;
}

template Binary<float> binary<float>(const std::string&);
template Binary<double> binary<double>(const std::string&);
template Binary<int64_t> binary<int64_t>(const std::string&);

}  // namespace gpus
