// mshadow's kernels for expressions: target = expression, and reductions of expressions to one axis.
#include "plans.h"
#include "reducers.h"

namespace gpus {
namespace {

template <class C> Work map_of(const Launch& launch, const Target& target) {
  SharedPlan<C> plan = read_plan<C>(launch, 3);
  if (!plan) return {};
  Extents shape = extents(launch, 2);
  std::string saver = launch.name.kernel.arguments[0].word;
  Access<C> access = gpus::access<C>(target.type);
  return [=] {
    C values[BLOCK];
    for (int row = 0; row < shape[0]; row++)
      for (int column = 0; column < shape[1]; column += BLOCK) {
        int n = std::min(BLOCK, shape[1] - column);
        plan->block(row, column, n, values);
        save(saver, access, target.at(row, column, access.size), n, values);
      }
  };
}

// MapPlanKernel(target, stride, shape, expression), and the same in parts.
Work map(const Launch& launch) {
  Target target = read_target(launch, 0);
  Work work;
  if (target) visit_computed({&target.type}, [&](auto number) { work = map_of<decltype(number)>(launch, target); });
  return work;
}

template <class C> Work reduction_of(const Launch& launch, const Target& target) {
  SharedPlan<C> plan = read_plan<C>(launch, 1);
  std::shared_ptr<Reducer<C>> reducer = gpus::reducer<C>(launch.name.kernel.arguments[1].word);
  if (!plan || !reducer) return {};
  Access<C> access = gpus::access<C>(target.type);
  C scale = gpus::access<C>(launch.parameter(2)).get(launch.raw(2));
  std::string saver = launch.name.kernel.arguments[0].word;
  Extents shape = extents(launch, 3);
  bool keeps_columns = shape.count() == 2;
  // What remains is an axis of `kept` elements; element k is made of runs of `width` columns,
  // from `runs` rows.
  int kept = shape[1], rows = keeps_columns ? shape[0] : shape[0] * shape[2], width = keeps_columns ? 1 : shape[3];
  return [=] {
    C values[BLOCK];
    for (int k = 0; k < kept; k++) {
      State<C> state = reducer->start();
      for (int row = 0; row < rows; row++)
        for (int column = 0; column < width; column += BLOCK) {
          int n = std::min(BLOCK, width - column);
          if (keeps_columns)
            plan->block(row, k, 1, values);
          else
            plan->block((row / shape[2] * shape[1] + k) * shape[2] + row % shape[2], column, n, values);
          reducer->add(state, values, n);
        }
      C result = reducer->finish(state) * scale;
      save(saver, access, target.at(0, k, access.size), 1, &result);
    }
  };
}

// MapRedKeepLowestKernel(target, expression, scale, Shape<2>) keeps the columns, MapReduceKeepDim1Kernel(...,
// Shape<4>) axis 1.
Work reduce(const Launch& launch) {
  Target target = read_target(launch, 0);
  Work work;
  if (target)
    visit_computed({&target.type}, [&](auto number) { work = reduction_of<decltype(number)>(launch, target); });
  return work;
}

const Registered registered{{"MapPlanKernel", map},
                            {"MapPlanLargeKernel", map},
                            {"MapRedKeepLowestKernel", reduce},
                            {"MapReduceKeepDim1Kernel", reduce}};

}  // namespace
}  // namespace gpus
