#include "algorithms.h"

#include <random>
#include <vector>

namespace gpus {
namespace {

constexpr size_t MOST_WORKSPACE = 1 << 20;

// By NVIDIA's "Reproducibility" the backward algorithms 0, and 3 for filters, add with atomic operations.
// cuDNN's guess at what is fastest comes first, and on real GPUs, too, it is often one of these.
const std::vector<Algorithm>& offered(Direction direction) {
  static const std::vector<Algorithm> forward = {{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, true, true},
                                                 {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, true, false},
                                                 {CUDNN_CONVOLUTION_FWD_ALGO_GEMM, true, true}};
  static const std::vector<Algorithm> data = {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, false, false},
                                              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, true, true}};
  static const std::vector<Algorithm> filter = {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, false, false},
                                                {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, false, true},
                                                {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, true, true}};
  return direction == Direction::FORWARD ? forward : direction == Direction::DATA ? data : filter;
}

template <class Result>
cudnnStatus_t fill(const ConvolutionProblem& problem, std::vector<Algorithm> order, int asked, int* returned,
                   Result* results) {
  if (!problem.fits()) return CUDNN_STATUS_BAD_PARAM;
  *returned = std::min<int>(asked, order.size());
  for (int place = 0; place < *returned; place++) {
    results[place] = {};
    results[place].algo = static_cast<decltype(results->algo)>(order[place].number);
    results[place].status = CUDNN_STATUS_SUCCESS;
    results[place].time = place + 1;
    results[place].memory = workspace_bytes(order[place], problem);
    results[place].determinism = order[place].deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
    results[place].mathType = problem.how.math;
  }
  return CUDNN_STATUS_SUCCESS;
}

// What is fastest is another one each time.
template <class Result>
cudnnStatus_t measure(const char* name, cudnnHandle_t handle, Direction direction, const ConvolutionProblem& problem,
                      int asked, int* returned, Result* results) {
  DnnCall call(name, handle);
  std::vector<Algorithm> order = offered(direction);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(any_number()));
  return fill(problem, order, asked, returned, results);
}

template <class Algo>
cudnnStatus_t workspace(Direction direction, const ConvolutionProblem& problem, Algo number, size_t* bytes) {
  const Algorithm* algorithm = find_algorithm(direction, number);
  if (algorithm == nullptr) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!problem.fits()) return CUDNN_STATUS_BAD_PARAM;
  *bytes = workspace_bytes(*algorithm, problem);
  return CUDNN_STATUS_SUCCESS;
}

// In the order in which each function is given them.
ConvolutionProblem forward_problem(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                   cudnnConvolutionDescriptor_t how, cudnnTensorDescriptor_t y) {
  return {described(x), described(w), described(y), described(how)};
}
ConvolutionProblem data_problem(cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t how,
                                cudnnTensorDescriptor_t x) {
  return forward_problem(x, w, how, y);
}
ConvolutionProblem filter_problem(cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y,
                                  cudnnConvolutionDescriptor_t how, cudnnFilterDescriptor_t w) {
  return forward_problem(x, w, how, y);
}

}  // namespace

const Algorithm* find_algorithm(Direction direction, int number) {
  for (const Algorithm& algorithm : offered(direction))
    if (algorithm.number == number) return &algorithm;
  return nullptr;
}

size_t workspace_bytes(const Algorithm& algorithm, const ConvolutionProblem& problem) {
  if (!algorithm.needs_workspace) return 0;
  Geometry it = problem.geometry();
  size_t columns = problem.w.sizes[1] * it.window_size() * it.out_plane() * size_of(problem.how.computed);
  return std::min(MOST_WORKSPACE, columns);
}

Arithmetic arithmetic(const Algorithm& algorithm, const ConvolutionProblem& problem) {
  Arithmetic how;
  how.tf32 = problem.x.type == CUDNN_DATA_FLOAT && problem.how.math != CUDNN_FMA_MATH && tf32_allowed();
  how.first = algorithm.deterministic ? algorithm.number : any_number();
  return how;
}

extern "C" {

#define ALGORITHMS(Kind, Result, Algo, DIRECTION, problem, A, B, D)                                         \
  cudnnStatus_t cudnnGetConvolution##Kind##AlgorithmMaxCount(cudnnHandle_t, int* number) {                  \
    *number = offered(DIRECTION).size();                                                                    \
    return CUDNN_STATUS_SUCCESS;                                                                            \
  }                                                                                                         \
  cudnnStatus_t cudnnGetConvolution##Kind##Algorithm_v7(cudnnHandle_t, const A a, const B b,                \
                                                        const cudnnConvolutionDescriptor_t how, const D d,  \
                                                        const int asked, int* returned, Result* results) {  \
    return fill(problem(a, b, how, d), offered(DIRECTION), asked, returned, results);                       \
  }                                                                                                         \
  cudnnStatus_t cudnnFindConvolution##Kind##Algorithm(cudnnHandle_t handle, const A a, const B b,           \
                                                      const cudnnConvolutionDescriptor_t how, const D d,    \
                                                      const int asked, int* returned, Result* results) {    \
    return measure(__func__, handle, DIRECTION, problem(a, b, how, d), asked, returned, results);           \
  }                                                                                                         \
  cudnnStatus_t cudnnGetConvolution##Kind##WorkspaceSize(cudnnHandle_t, const A a, const B b,               \
                                                         const cudnnConvolutionDescriptor_t how, const D d, \
                                                         Algo number, size_t* bytes) {                      \
    return workspace(DIRECTION, problem(a, b, how, d), number, bytes);                                      \
  }

ALGORITHMS(Forward, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t, Direction::FORWARD, forward_problem,
           cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t)
ALGORITHMS(BackwardData, cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t, Direction::DATA,
           data_problem, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t)
ALGORITHMS(BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t, Direction::FILTER,
           filter_problem, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t)
}

}  // namespace gpus
