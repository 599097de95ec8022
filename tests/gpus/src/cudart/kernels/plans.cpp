#include "plans.h"

#include "plan_nodes.h"

namespace gpus {
namespace {

// Reads plans out of an argument, from its first byte on.
class Reader {
 public:
  Reader(const Launch& launch, const char* memory) : launch_(launch), memory_(memory) {}

  template <class C> SharedPlan<C> plan(const Type& type) {
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

  template <class C> SharedPlan<C> inner(const Type& type) {
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
  SharedPlan<C> made(const Type& type, const Form& form, const std::vector<SharedPlan<C>>& sources,
                     const std::vector<int>& numbers) {
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
    if (type.word == "PoolingExp") return pooled<C>(type, sources[0], numbers);
    if (type.word == "TransposeIndicesExp") {
      auto plan = std::make_shared<TransposedIndicesPlan<C>>();
      plan->strides.assign(numbers.begin(), numbers.begin() + form.numbers / 2);
      plan->shape.assign(numbers.begin() + form.numbers / 2, numbers.end());
      plan->indices = sources[0];
      return plan;
    }
    return chosen<C>(type, sources);
  }

  template <class C> SharedPlan<C> tensor(const Type& type) {
    auto plan = std::make_shared<TensorPlan<C>>();
    plan->access = access<C>(type.arguments[2]);
    if (!plan->access) return nullptr;
    plan->data = *reinterpret_cast<void* const*>(take(8));
    plan->stride = type.arguments[1].word == "1" ? 0 : *reinterpret_cast<const int*>(take(4));
    launch_.check(plan->data, 0);
    return plan;
  }

  template <class C> SharedPlan<C> scalar(const Type& type) {
    auto plan = std::make_shared<NumberPlan<C>>();
    Access<C> access = gpus::access<C>(type.arguments[0]);
    if (!access) return nullptr;
    plan->value = access.get(take(access.size));
    return plan;
  }

  template <class C> SharedPlan<C> range(const Type& type) {
    auto plan = std::make_shared<RangePlan<C>>();
    Access<C> access = gpus::access<C>(type.arguments[0]);
    if (!access) return nullptr;
    plan->start = access.get(take(access.size));
    take(access.size);  // where it stops
    plan->step = access.get(take(access.size));
    plan->repeat = *reinterpret_cast<const int*>(take(4));
    return plan;
  }

  template <class C> SharedPlan<C> cast(const Type& type) {
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

  template <class C> SharedPlan<C> unary_of(const Type& type, SharedPlan<C> source) {
    auto plan = std::make_shared<UnaryPlan<C>>();
    plan->function = unary<C>(type.arguments[0].word);
    plan->rounds = is_half(element_type(type)) && type.arguments[0].word != "identity";
    plan->source = source;
    return plan->function ? plan : nullptr;
  }

  template <class C> SharedPlan<C> binary_of(const Type& type, const std::vector<SharedPlan<C>>& sources) {
    auto plan = std::make_shared<BinaryPlan<C>>();
    plan->function = binary<C>(type.arguments[0].word);
    plan->rounds = is_half(element_type(type));
    plan->left = sources[0];
    plan->right = sources[1];
    return plan->function ? plan : nullptr;
  }

  template <class C> SharedPlan<C> reduced(const Type& type, SharedPlan<C> source, const std::vector<int>& numbers) {
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

  template <class C> SharedPlan<C> pooled(const Type& type, SharedPlan<C> source, const std::vector<int>& numbers) {
    auto plan = std::make_shared<PooledPlan<C>>();
    plan->reducer = reducer<C>(type.arguments[0].word);
    plan->height = numbers[0];
    plan->width = numbers[1];
    plan->step_down = numbers[2];
    plan->step_across = numbers[3];
    plan->source_height = numbers[4];
    plan->source_width = numbers[5];
    plan->own_height = numbers[6];
    plan->source = source;
    return plan->reducer ? plan : nullptr;
  }

  template <class C> SharedPlan<C> chosen(const Type& type, const std::vector<SharedPlan<C>>& sources) {
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

template <class C> SharedPlan<C> read_plan(const Launch& launch, int place) {
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
    Form form = form_of(expression);
    auto* numbers = reinterpret_cast<const int*>(memory + (is_line ? 8 : 16));
    target.remap = form.remap;
    target.numbers.assign(numbers, numbers + form.numbers);
  }
  launch.check(target.data, 0);
  return target;
}

}  // namespace gpus
