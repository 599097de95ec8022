// The calls that convolve.
#include "algorithms.h"

namespace gpus {
namespace {

struct Workspace {
  void* address;
  size_t bytes;
};

// Whether the call is one that cuDNN takes.
cudnnStatus_t check(const DnnCall& call, const ConvolutionProblem& it, const Algorithm* algorithm, Workspace space) {
  if (algorithm == nullptr) {
    call.refuse("an algorithm that is not there");
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  cudnnDataType_t computed = it.x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  if (it.how.flips || it.how.computed != computed) {
    call.refuse("a mirrored convolution, or one that is to be computed in a type that is not there");
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  size_t needed = workspace_bytes(*algorithm, it);
  if (!it.fits() || space.bytes < needed) return CUDNN_STATUS_BAD_PARAM;
  if (needed && space.address == nullptr) return CUDNN_STATUS_BAD_PARAM;
  if (needed) call.reaches(space.address, needed);
  return CUDNN_STATUS_SUCCESS;
}

// What else uses the workspace meanwhile sees that it is in use.
void use(Workspace space, size_t needed) { memset(space.address, 0xFF, needed); }

// Queue work(element, arithmetic).
template <class Typed>
cudnnStatus_t queue(const DnnCall& call, const ConvolutionProblem& it, Direction direction, int number, Workspace space,
                    Typed work) {
  const Algorithm* algorithm = find_algorithm(direction, number);
  cudnnStatus_t status = check(call, it, algorithm, space);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (it.x.type == CUDNN_DATA_HALF && it.how.math == CUDNN_TENSOR_OP_MATH) count_name(call.name + " on tensor cores");
  return call.does_with(it.x.type, [=](auto element) {
    use(space, workspace_bytes(*algorithm, it));
    work(element, arithmetic(*algorithm, it));
  });
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t xd,
                                      const void* x, const cudnnFilterDescriptor_t wd, const void* w,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* space, size_t bytes, const void* beta,
                                      const cudnnTensorDescriptor_t yd, void* y) {
  DnnCall call("cudnnConvolutionForward", handle);
  ConvolutionProblem it{described(xd), described(wd), described(yd), described(convolution)};
  call.reaches(it.x, x);
  call.reaches(it.w, w);
  call.reaches(it.y, y);
  Blend blend(alpha, beta, it.y.type);
  return queue(call, it, Direction::FORWARD, algorithm, {space, bytes}, [=](auto element, Arithmetic how) {
    using T = decltype(element);
    Input<T> in(it.x, x), weights(it.w, w);
    Output<T> out(it.y, y, blend);
    convolve(it, in.values(), weights.values(), out.values(), how);
    out.write();
  });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t wd,
                                           const void* w, const cudnnTensorDescriptor_t yd, const void* dy,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* space, size_t bytes,
                                           const void* beta, const cudnnTensorDescriptor_t xd, void* dx) {
  DnnCall call("cudnnConvolutionBackwardData", handle);
  ConvolutionProblem it{described(xd), described(wd), described(yd), described(convolution)};
  call.reaches(it.x, dx);
  call.reaches(it.w, w);
  call.reaches(it.y, dy);
  Blend blend(alpha, beta, it.x.type);
  return queue(call, it, Direction::DATA, algorithm, {space, bytes}, [=](auto element, Arithmetic how) {
    using T = decltype(element);
    Input<T> weights(it.w, w), gradient(it.y, dy);
    Output<T> out(it.x, dx, blend);
    convolution_data_gradient(it, weights.values(), gradient.values(), out.values(), how);
    out.write();
  });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t xd,
                                             const void* x, const cudnnTensorDescriptor_t yd, const void* dy,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* space, size_t bytes,
                                             const void* beta, const cudnnFilterDescriptor_t wd, void* dw) {
  DnnCall call("cudnnConvolutionBackwardFilter", handle);
  ConvolutionProblem it{described(xd), described(wd), described(yd), described(convolution)};
  call.reaches(it.x, x);
  call.reaches(it.w, dw);
  call.reaches(it.y, dy);
  Blend blend(alpha, beta, it.w.type);
  return queue(call, it, Direction::FILTER, algorithm, {space, bytes}, [=](auto element, Arithmetic how) {
    using T = decltype(element);
    Input<T> in(it.x, x), gradient(it.y, dy);
    Output<T> out(it.w, dw, blend);
    convolution_filter_gradient(it, in.values(), gradient.values(), out.values(), how);
    out.write();
  });
}
}

}  // namespace gpus
