// op_with_req<OPERATION, REQUEST>: out[i] = OPERATION(in[i], ...), for arrays of one length and numbers.
#include "arrays.h"
#include "operations.h"

namespace gpus {
namespace {

constexpr int OPERANDS = 3;

// Where an operand's elements are: an array, or one number for all.
template <class C> struct Operand {
  Access<C> access{};
  const void* array = nullptr;
  C number{};

  Operand() = default;
  Operand(const Launch& launch, int place) {
    access = gpus::access<C>(launch.parameter(place));
    if (!access) return;
    if (launch.parameter(place).pointer)
      array = launch.pointer(place, launch.elements());
    else
      number = access.get(launch.raw(place));
  }

  void load(long first, int n, C* to) const {
    if (array)
      access.load(access.at(array, first), 1, n, to);
    else
      std::fill(to, to + n, number);
  }
};

template <class C> using Operands = C (&)[OPERANDS][BLOCK];

template <class C> void clip(Operands<C> in, int n, C* out) {
  for (int i = 0; i < n; i++) out[i] = in[0][i] > in[2][i] ? in[2][i] : in[0][i] < in[1][i] ? in[1][i] : in[0][i];
}

// OPERATION, as one of the forms that its name may have.
template <class C> struct Operation {
  Unary<C> one = nullptr;
  Binary<C> two = nullptr;
  bool clips = false, is_constant = false, times_gradient = false, rounds = false;
  C constant{};

  // `operands`: how many it has.
  Operation(const Type& type, int operands, bool rounds) : rounds(rounds) {
    times_gradient = type.word == "backward_grad_tuned" || type.word == "backward_grad";
    const Type& function = times_gradient ? type.arguments[0] : type;
    int own = operands - times_gradient;
    if (own == 0 && function.word == "set_to_int") {
      is_constant = true;
      constant = static_cast<C>(atoi(function.arguments[0].word.c_str()));
    }
    if (own == 1) one = unary<C>(function.word);
    if (own == 2) two = binary<C>(function.word);
    clips = own == 3 && function.word == "clip";
  }

  explicit operator bool() const { return one || two || clips || is_constant; }

  void operator()(Operands<C> in, int n, C* out) const {
    int first = times_gradient;
    if (one) one(in[first], out, n);
    if (two) two(in[first], in[first + 1], out, n);
    if (clips) clip<C>(in, n, out);
    if (is_constant) std::fill(out, out + n, constant);
    if (!times_gradient) return;
    if (rounds) round_to_half(out, n);
    for (int i = 0; i < n; i++) out[i] = in[0][i] * out[i];
  }
};

template <class C> Work computed_in(const Launch& launch) {
  int operands = launch.count() - 2, n = launch.elements();
  if (operands > OPERANDS) return {};
  int request = atoi(launch.operation().arguments[1].word.c_str());
  Operation<C> operation(launch.operation().arguments[0], operands, is_half(launch.parameter(1)));
  Access<C> out_access = access<C>(launch.parameter(1));
  if (!operation || !out_access) return {};
  void* out = launch.pointer(1, n);
  Operand<C> in[OPERANDS];
  for (int place = 0; place < operands; place++) {
    in[place] = Operand<C>(launch, place + 2);
    if (!in[place].access) return {};
  }
  return [=] {
    C values[OPERANDS][BLOCK], results[BLOCK];
    for (int first = 0; first < n; first += BLOCK) {
      int count = std::min(BLOCK, n - first);
      for (int place = 0; place < operands; place++) in[place].load(first, count, values[place]);
      operation(values, count, results);
      out_access.store(out_access.at(out, first), count, results, request);
    }
  };
}

// A cast keeps what the wider of two types can say; the others compute in their operands' type.
Work with_request(const Launch& launch) {
  std::vector<const Type*> types;
  for (int place = 1; place < launch.count(); place++) types.push_back(&launch.parameter(place));
  Work work;
  visit_computed(types, [&](auto number) { work = computed_in<decltype(number)>(launch); });
  return work;
}

const Registered registered{{"op_with_req", with_request}};

}  // namespace
}  // namespace gpus
