#include "plans.h"

#include <map>

#include "operations.h"
#include "reducers.h"

namespace gpus {
namespace {

// An expression whose element (row, column) is one of its source, elsewhere. `numbers` are the plan's own.
using Remap = void (*)(const int* numbers, int& row, int& column);

constexpr int NOWHERE = -1;  // a row: the element is 0

// What a plan has in memory: plans of its arguments, and numbers behind them.
struct Form {
  std::vector<int> sources;  // which template arguments they are
  int numbers;
  Remap remap;
};

int number(const Type& type, int argument) { return atoi(type.arguments[argument].word.c_str()); }

void slice_columns(const int* p, int&, int& column) { column += p[0]; }

void slice(const int* p, int& row, int&) {  // height, first channel, channels of the source, channels
  int y = row % p[0], rest = row / p[0];
  row = ((rest / p[3]) * p[2] + rest % p[3] + p[1]) * p[0] + y;
}

void reshape(const int* p, int& row, int& column) {  // last extents: here, in the source
  int place = row * p[0] + column;
  row = place / p[1];
  column = place % p[1];
}

void reshape_line(const int* p, int& row, int& column) {
  column += row * p[0];
  row = 0;
}

template <int N>
void transpose(const int* p, int& row, int& column) {  // the source's stride, strides in the source, shape
  const int *strides = p + 1, *shape = p + 1 + N;
  int place = column * strides[N - 1];
  for (int axis = N - 2; axis >= 0; axis--) {
    place += row % shape[axis] * strides[axis];
    row /= shape[axis];
  }
  row = place / p[0];
  column = place % p[0];
}

void swap_rows(const int* p, int& row, int&) {  // extents y, z, c, n: z and n change places
  int y = row % p[0], rest = row / p[0];
  int z = rest % p[1];
  rest /= p[1];
  int c = rest % p[2];
  rest /= p[2];
  row = ((((rest / p[3]) * p[1] + z) * p[2] + c) * p[3] + rest % p[3]) * p[0] + y;
}

void swap_columns(const int* p, int& row, int& column) {  // extents x, y, z: x and z change places
  int y = row % p[1], rest = row / p[1];
  int z = rest % p[2];
  row = ((rest / p[2]) * p[0] + column) * p[1] + y;
  column = z;
}

void broadcast_line(const int*, int& row, int&) { row = 0; }

void broadcast_rows(const int* p, int& row, int& column) {  // rows between elements, elements
  column = row / p[0] % p[1];
  row = 0;
}

void broadcast_number(const int*, int& row, int& column) { row = column = 0; }

void broadcast_axis(const int* p, int& row, int& column) {  // last extent, extents behind the axis, of it, source's last
  int place = row * p[0] + column;
  int source = place / p[1] / p[2] * p[1] + place % p[1];
  row = source / p[3];
  column = source % p[3];
}

template <int N>
void broadcast_axes(const int* p, int& row, int& column) {  // last extent, source's last, how many axes; extents as above
  int place = row * p[0] + column;
  for (int axis = 0; axis < std::min(N, p[2]); axis++)
    place = place / p[3 + axis] / p[3 + N + axis] * p[3 + axis] + place % p[3 + axis];
  row = place / p[1];
  column = place % p[1];
}

void pad(const int* p, int& row, int& column) {  // rows and columns before, new height, source's height and width
  int y = row % p[2] - p[0], x = column - p[1];
  bool inside = y >= 0 && x >= 0 && y < p[3] && x < p[4];
  row = inside ? row / p[2] * p[3] + y : NOWHERE;
  column = x;
}

void crop(const int* p, int& row, int& column) {  // rows and columns before, new height, source's height
  row = row / p[2] * p[3] + row % p[2] + p[0];
  column += p[1];
}

void upsample(const int* p, int& row, int& column) {  // scale, new height, source's height
  row = row / p[1] * p[2] + row % p[1] / p[0];
  column /= p[0];
}

Remap transpose_of(int axes) {
  static constexpr Remap choices[] = {nullptr, transpose<1>, transpose<2>, transpose<3>, transpose<4>, transpose<5>, transpose<6>};
  return axes < 7 ? choices[axes] : nullptr;
}

Remap broadcast_of(int axes) {
  static constexpr Remap choices[] = {nullptr, broadcast_axes<1>, broadcast_axes<2>, broadcast_axes<3>, broadcast_axes<4>, broadcast_axes<5>};
  return axes < 6 ? choices[axes] : nullptr;
}

// Those that only move elements; `remap` nullptr: it is none of them.
Form remapping(const Type& type) {
  const std::string& word = type.word;
  if (word == "SliceExp") return number(type, 4) == 1 ? Form{{0}, 1, slice_columns} : Form{{0}, 4, slice};
  if (word == "ReshapeExp") return number(type, 3) == 1 ? Form{{0}, 1, reshape_line} : Form{{0}, 2, reshape};
  if (word == "TransposeExExp") return {{0}, 1 + 2 * number(type, 2), transpose_of(number(type, 2))};
  if (word == "SwapAxisExp") return number(type, 3) == 1 ? Form{{0}, 3, swap_columns} : Form{{0}, 4, swap_rows};
  if (word == "Broadcast1DExp") return number(type, 3) == 1 ? Form{{0}, 0, broadcast_line} : Form{{0}, 2, broadcast_rows};
  if (word == "BroadcastScalarExp") return {{0}, 0, broadcast_number};
  if (word == "BroadcastWithAxisExp") return {{0}, 4, broadcast_axis};
  if (word == "BroadcastWithMultiAxesExp") return {{0}, 3 + 2 * number(type, 2), broadcast_of(number(type, 2))};
  if (word == "PaddingExp") return {{0}, 5, pad};
  if (word == "CroppingExp") return {{0}, 4, crop};
  if (word == "UpSamplingNearestExp") return {{0}, 3, upsample};
  return {{}, 0, nullptr};
}

// The plans in a plan, as its template arguments.
Form form_of(const Type& type) {
  static const auto& others = *new std::map<std::string, Form>{
      {"TypecastExp", {{2}, 0, nullptr}},       {"UnaryMapExp", {{1}, 0, nullptr}},
      {"BinaryMapExp", {{1, 2}, 0, nullptr}},   {"MakeTensorExp", {{0}, 0, nullptr}},
      {"ReduceWithAxisExp", {{1}, 4, nullptr}}, {"MatChooseRowElementExp", {{0, 1}, 0, nullptr}},
      {"MatFillRowElementExp", {{0, 1, 2}, 0, nullptr}}, {"OneHotEncodeExp", {{0}, 0, nullptr}},
  };
  auto found = others.find(type.word);
  return found == others.end() ? remapping(type) : found->second;
}

size_t alignment(const Type& type) {
  if (type.word == "Tensor") return 8;
  if (type.word == "ScalarExp") return size_of(type.arguments[0]);
  if (type.word == "RangeExp") return std::max<size_t>(size_of(type.arguments[0]), 4);
  Form form = form_of(type);
  size_t most = form.numbers ? 4 : 1;
  for (int source : form.sources) most = std::max(most, alignment(type.arguments[source]));
  return most;
}

// The type of a plan's elements, by its name.
const Type& element_type(const Type& type) {
  const std::string& word = type.word;
  if (word == "Tensor") return type.arguments[2];
  if (word == "BinaryMapExp") return type.arguments[3];
  if (word == "UnaryMapExp" || word == "SliceExp" || word == "ReduceWithAxisExp" || word == "MatChooseRowElementExp")
    return type.arguments[2];
  if (word == "MakeTensorExp" || word == "MatFillRowElementExp") return type.arguments[3];
  if (word == "ScalarExp" || word == "RangeExp" || word == "TypecastExp") return type.arguments[0];
  return type.arguments[1];
}

// Plans, as they are evaluated.

template <class C>
struct TensorPlan : Plan<C> {
  Access<C> access;
  const void* data;
  int stride;
  void block(int row, int column, int n, C* out) const override {
    access.load(access.at(data, static_cast<long>(row) * stride + column), 1, n, out);
  }
};

template <class C>
struct NumberPlan : Plan<C> {
  C value;
  void block(int, int, int n, C* out) const override { std::fill(out, out + n, value); }
};

template <class C>
struct RangePlan : Plan<C> {
  C start, step;
  int repeat;
  void block(int, int column, int n, C* out) const override {
    for (int i = 0; i < n; i++) out[i] = start + static_cast<C>((column + i) / repeat) * step;
  }
};

template <class C>
struct UnaryPlan : Plan<C> {
  Unary<C> function;
  bool rounds;
  SharedPlan<C> source;
  void block(int row, int column, int n, C* out) const override {
    C values[BLOCK];
    source->block(row, column, n, values);
    function(values, out, n);
    if (rounds) round_to_half(out, n);
  }
};

template <class C>
struct BinaryPlan : Plan<C> {
  Binary<C> function;
  bool rounds;
  SharedPlan<C> left, right;
  void block(int row, int column, int n, C* out) const override {
    C a[BLOCK], b[BLOCK];
    left->block(row, column, n, a);
    right->block(row, column, n, b);
    function(a, b, out, n);
    if (rounds) round_to_half(out, n);
  }
};

// From numbers S to C, by way of the type that the cast names.
template <class C, class S>
struct CastPlan : Plan<C> {
  Access<S> store;
  Access<C> load;
  SharedPlan<S> source;
  void block(int row, int column, int n, C* out) const override {
    S values[BLOCK];
    double elements[BLOCK];  // of any type: none is larger
    source->block(row, column, n, values);
    store.store(elements, n, values, WRITE);
    load.load(elements, 1, n, out);
  }
};

template <class C>
struct RemappedPlan : Plan<C> {
  Remap remap;
  std::vector<int> numbers;
  SharedPlan<C> source;
  void block(int row, int column, int n, C* out) const override {
    for (int done = 0, run; done < n; done += run) {
      int first_row = row, first_column = column + done;
      remap(numbers.data(), first_row, first_column);
      for (run = 1; done + run < n; run++) {
        int next_row = row, next_column = column + done + run;
        remap(numbers.data(), next_row, next_column);
        if (next_row != first_row || next_column != first_column + run) break;
      }
      if (first_row == NOWHERE)
        std::fill(out + done, out + done + run, C(0));
      else
        source->block(first_row, first_column, run, out + done);
    }
  }
};

// A reduction along one axis; or the place of the largest or smallest element.
template <class C>
struct ReducedPlan : Plan<C> {
  std::unique_ptr<Reducer<C>> reducer;
  bool wants_place;
  int last, trailing, size, source_last;
  SharedPlan<C> source;
  C element(long before, long behind, int k) const {
    long place = (before * size + k) * trailing + behind;
    return source->at(place / source_last, place % source_last);
  }
  void block(int row, int column, int n, C* out) const override {
    for (int i = 0; i < n; i++) {
      long place = static_cast<long>(row) * last + column + i;
      State<C> state = reducer->start();
      C result = state.value, best = 0;
      for (int k = 0; k < size; k++) {
        C value = element(place / trailing, place % trailing, k), old = result;
        reducer->add(state, &value, 1);
        result = reducer->finish(state);
        if (result != old && old == old) best = static_cast<C>(k);
      }
      out[i] = wants_place ? best : result;
    }
  }
};

template <class C>
struct ChoicePlan : Plan<C> {
  SharedPlan<C> source, index;
  void block(int, int column, int n, C* out) const override {
    for (int i = 0; i < n; i++) out[i] = source->at(column + i, static_cast<int>(index->at(0, column + i)));
  }
};

template <class C>
struct FilledPlan : Plan<C> {
  SharedPlan<C> source, value, index;
  void block(int row, int column, int n, C* out) const override {
    source->block(row, column, n, out);
    int chosen = static_cast<int>(index->at(0, row)) - column;
    if (chosen >= 0 && chosen < n) out[chosen] = value->at(0, row);
  }
};

template <class C>
struct OneHotPlan : Plan<C> {
  SharedPlan<C> index;
  void block(int row, int column, int n, C* out) const override {
    int chosen = static_cast<int>(index->at(0, row));
    for (int i = 0; i < n; i++) out[i] = column + i == chosen;
  }
};

// Reads plans out of an argument, from its first byte on.
class Reader {
 public:
  Reader(const Launch& launch, const char* memory) : launch_(launch), memory_(memory) {}

  template <class C>
  SharedPlan<C> plan(const Type& type) {
    size_t aligned = alignment(type);
    align(aligned);
    SharedPlan<C> found = inner<C>(type);
    align(aligned);
    return found;
  }

 private:
  void align(size_t to) { at_ = (at_ + to - 1) / to * to; }

  const char* take(size_t size) {
    align(size);
    const char* here = memory_ + at_;
    at_ += size;
    return here;
  }

  template <class C>
  SharedPlan<C> inner(const Type& type) {
    if (type.word == "Tensor") return tensor<C>(type);
    if (type.word == "ScalarExp") return scalar<C>(type);
    if (type.word == "RangeExp") return range<C>(type);
    if (type.word == "TypecastExp") return cast<C>(type);
    Form form = form_of(type);
    std::vector<SharedPlan<C>> sources;
    for (int source : form.sources) {
      sources.push_back(plan<C>(type.arguments[source]));
      if (!sources.back()) return nullptr;
    }
    std::vector<int> numbers;
    for (int i = 0; i < form.numbers; i++) numbers.push_back(*reinterpret_cast<const int*>(take(4)));
    return made<C>(type, form, sources, numbers);
  }

  template <class C>
  SharedPlan<C> made(
      const Type& type, const Form& form, const std::vector<SharedPlan<C>>& sources, const std::vector<int>& numbers) {
    if (form.remap) {
      auto plan = std::make_shared<RemappedPlan<C>>();
      plan->remap = form.remap;
      plan->numbers = numbers;
      plan->source = sources[0];
      return plan;
    }
    if (type.word == "MakeTensorExp") return sources[0];
    if (type.word == "UnaryMapExp") return unary_of<C>(type, sources[0]);
    if (type.word == "BinaryMapExp") return binary_of<C>(type, sources);
    if (type.word == "ReduceWithAxisExp") return reduced<C>(type, sources[0], numbers);
    return chosen<C>(type, sources);
  }

  template <class C>
  SharedPlan<C> tensor(const Type& type) {
    auto plan = std::make_shared<TensorPlan<C>>();
    plan->access = access<C>(type.arguments[2]);
    if (!plan->access) return nullptr;
    plan->data = *reinterpret_cast<void* const*>(take(8));
    plan->stride = type.arguments[1].word == "1" ? 0 : *reinterpret_cast<const int*>(take(4));
    launch_.check(plan->data, 0);
    return plan;
  }

  template <class C>
  SharedPlan<C> scalar(const Type& type) {
    auto plan = std::make_shared<NumberPlan<C>>();
    Access<C> access = gpus::access<C>(type.arguments[0]);
    if (!access) return nullptr;
    plan->value = access.get(take(access.size));
    return plan;
  }

  template <class C>
  SharedPlan<C> range(const Type& type) {
    auto plan = std::make_shared<RangePlan<C>>();
    Access<C> access = gpus::access<C>(type.arguments[0]);
    if (!access) return nullptr;
    plan->start = access.get(take(access.size));
    take(access.size);  // where it stops
    plan->step = access.get(take(access.size));
    plan->repeat = *reinterpret_cast<const int*>(take(4));
    return plan;
  }

  template <class C>
  SharedPlan<C> cast(const Type& type) {
    SharedPlan<C> found;
    visit_computed({&type.arguments[1]}, [&](auto number) {
      using S = decltype(number);
      auto plan = std::make_shared<CastPlan<C, S>>();
      plan->store = access<S>(type.arguments[0]);
      plan->load = access<C>(type.arguments[0]);
      plan->source = this->plan<S>(type.arguments[2]);
      if (plan->source && plan->store) found = plan;
    });
    return found;
  }

  template <class C>
  SharedPlan<C> unary_of(const Type& type, SharedPlan<C> source) {
    auto plan = std::make_shared<UnaryPlan<C>>();
    plan->function = unary<C>(type.arguments[0].word);
    plan->rounds = is_half(element_type(type)) && type.arguments[0].word != "identity";
    plan->source = source;
    return plan->function ? plan : nullptr;
  }

  template <class C>
  SharedPlan<C> binary_of(const Type& type, const std::vector<SharedPlan<C>>& sources) {
    auto plan = std::make_shared<BinaryPlan<C>>();
    plan->function = binary<C>(type.arguments[0].word);
    plan->rounds = is_half(element_type(type));
    plan->left = sources[0];
    plan->right = sources[1];
    return plan->function ? plan : nullptr;
  }

  template <class C>
  SharedPlan<C> reduced(const Type& type, SharedPlan<C> source, const std::vector<int>& numbers) {
    auto plan = std::make_shared<ReducedPlan<C>>();
    plan->reducer = reducer<C>(type.arguments[0].word);
    plan->wants_place = type.arguments[4].word == "true";
    plan->last = numbers[0];
    plan->trailing = numbers[1];
    plan->size = numbers[2];
    plan->source_last = numbers[3];
    plan->source = source;
    return plan->reducer ? plan : nullptr;
  }

  template <class C>
  SharedPlan<C> chosen(const Type& type, const std::vector<SharedPlan<C>>& sources) {
    if (type.word == "MatChooseRowElementExp") {
      auto plan = std::make_shared<ChoicePlan<C>>();
      plan->source = sources[0];
      plan->index = sources[1];
      return plan;
    }
    if (type.word == "MatFillRowElementExp") {
      auto plan = std::make_shared<FilledPlan<C>>();
      plan->source = sources[0];
      plan->value = sources[1];
      plan->index = sources[2];
      return plan;
    }
    if (type.word == "OneHotEncodeExp") {
      auto plan = std::make_shared<OneHotPlan<C>>();
      plan->index = sources[0];
      return plan;
    }
    return nullptr;
  }

  const Launch& launch_;
  const char* memory_;
  size_t at_ = 0;
};

}  // namespace

template <class C>
SharedPlan<C> read_plan(const Launch& launch, int place) {
  Reader reader(launch, static_cast<const char*>(launch.raw(place)));
  return reader.plan<C>(launch.parameter(place).arguments[0]);
}

template SharedPlan<float> read_plan<float>(const Launch&, int);
template SharedPlan<double> read_plan<double>(const Launch&, int);
template SharedPlan<int64_t> read_plan<int64_t>(const Launch&, int);

Target read_target(const Launch& launch, int place) {
  const Type& expression = launch.parameter(place).arguments[0];
  bool is_slice = expression.word == "SliceExp";
  const Type& tensor = is_slice ? expression.arguments[0] : expression;
  Target target;
  if (tensor.word != "Tensor" || !size_of(tensor.arguments[2])) return target;
  auto* memory = static_cast<const char*>(launch.raw(place));
  bool is_line = tensor.arguments[1].word == "1";
  target.data = *reinterpret_cast<void* const*>(memory);
  target.stride = is_line ? 0 : *reinterpret_cast<const int*>(memory + 8);
  target.type = tensor.arguments[2];
  if (is_slice) {
    Form form = remapping(expression);
    auto* numbers = reinterpret_cast<const int*>(memory + (is_line ? 8 : 16));
    target.remap = form.remap;
    target.numbers.assign(numbers, numbers + form.numbers);
  }
  launch.check(target.data, 0);
  return target;
}

}  // namespace gpus
