#include "descriptors.h"

#include <algorithm>

#include "gpus.h"

namespace gpus {
namespace {

// Where axis `axis` of `number` goes among N, C, D, H, W:
// behind the first two the axes that are there stand last.
int place(int axis, int number) { return axis < 2 ? axis : axis + MOST_AXES - number; }

bool is_type(cudnnDataType_t type) {
  bool known = visit(type, [](auto) {});
  if (!known) fault("cuDNN is given a type of data that is not there: " + std::to_string(type));
  return known;
}

bool fits(int number) {
  if (number < 1 || number > MOST_AXES) fault("cuDNN is given " + std::to_string(number) + " axes");
  return number >= 1 && number <= MOST_AXES;
}

// The strides of NCHW, or of NHWC.
void lay_out(Tensor& tensor, cudnnTensorFormat_t format) {
  static const int last_first[2][MOST_AXES] = {{4, 3, 2, 1, 0}, {1, 4, 3, 2, 0}};
  ptrdiff_t stride = 1;
  for (int axis : last_first[format == CUDNN_TENSOR_NHWC]) {
    tensor.strides[axis] = stride;
    stride *= tensor.sizes[axis];
  }
}

cudnnStatus_t set(Tensor& tensor, cudnnDataType_t type, cudnnTensorFormat_t format, int number, const int* sizes) {
  if (!is_type(type) || !fits(number)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC) {
    fault("cuDNN is given a layout that is not there: " + std::to_string(format));
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  tensor = Tensor();
  tensor.type = type;
  for (int axis = 0; axis < number; axis++) tensor.sizes[place(axis, number)] = sizes[axis];
  if (*std::min_element(sizes, sizes + number) <= 0) return CUDNN_STATUS_BAD_PARAM;
  lay_out(tensor, format);
  return CUDNN_STATUS_SUCCESS;
}

// Of D, H, W the last `number`.
void set_axes(int* values, int number, const int* given) { std::copy(given, given + number, values + 3 - number); }

}  // namespace

size_t Tensor::elements() const { return size_t(sizes[0]) * sizes[1] * plane(); }

size_t Tensor::bytes() const {
  if (elements() == 0) return 0;
  size_t last = 0;
  for (int axis = 0; axis < MOST_AXES; axis++) last += (sizes[axis] - 1) * strides[axis];
  return (last + 1) * size_of(type);
}

bool Tensor::contiguous() const {
  ptrdiff_t stride = 1;
  for (int axis = MOST_AXES - 1; axis >= 0; axis--) {
    if (sizes[axis] != 1 && strides[axis] != stride) return false;
    stride *= sizes[axis];
  }
  return true;
}

bool same_sizes(const Tensor& a, const Tensor& b) { return std::equal(a.sizes, a.sizes + MOST_AXES, b.sizes); }

size_t size_of(cudnnDataType_t type) {
  size_t bytes = 0;
  visit(type, [&](auto element) { bytes = sizeof element; });
  return bytes;
}

extern "C" {

DESCRIPTOR(Tensor, Tensor)
DESCRIPTOR(Filter, Tensor)
DESCRIPTOR(Convolution, Convolution)
DESCRIPTOR(Pooling, Pooling)
DESCRIPTOR(Activation, Activation)
DESCRIPTOR(Dropout, Dropout)

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  int sizes[] = {n, c, h, w};
  return set(described(tensor), type, format, 4, sizes);
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int number,
                                         const int* sizes, const int* strides) {
  cudnnStatus_t status = set(described(tensor), type, CUDNN_TENSOR_NCHW, number, sizes);
  if (status == CUDNN_STATUS_SUCCESS)
    for (int axis = 0; axis < number; axis++) described(tensor).strides[place(axis, number)] = strides[axis];
  return status;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  int sizes[] = {k, c, h, w};
  return set(described(filter), type, format, 4, sizes);
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int number, const int* sizes) {
  return set(described(filter), type, format, number, sizes);
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int number, const int* padding,
                                              const int* strides, const int* dilations, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t computed) {
  Convolution& it = described(convolution);
  if (!is_type(computed) || number < 1 || number > 3) return CUDNN_STATUS_NOT_SUPPORTED;
  it.window = Window();
  set_axes(it.window.padding, number, padding);
  set_axes(it.window.strides, number, strides);
  set_axes(it.window.dilations, number, dilations);
  it.flips = mode == CUDNN_CONVOLUTION;
  it.computed = computed;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t computed) {
  int padding[] = {pad_h, pad_w}, strides[] = {stride_h, stride_w}, dilations[] = {dilation_h, dilation_w};
  return cudnnSetConvolutionNdDescriptor(convolution, 2, padding, strides, dilations, mode, computed);
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  described(convolution).groups = groups;
  return groups > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  described(convolution).math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t, int number, const int* sizes, const int* padding,
                                          const int* strides) {
  if (number < 1 || number > 3) return CUDNN_STATUS_NOT_SUPPORTED;
  Pooling& it = described(pooling);
  it = {mode, Window()};
  set_axes(it.window.sizes, number, sizes);
  set_axes(it.window.padding, number, padding);
  set_axes(it.window.strides, number, strides);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int h, int w, int pad_h, int pad_w, int stride_h,
                                          int stride_w) {
  int sizes[] = {h, w}, padding[] = {pad_h, pad_w}, strides[] = {stride_h, stride_w};
  return cudnnSetPoolingNdDescriptor(pooling, mode, nan, 2, sizes, padding, strides);
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t, double limit) {
  described(activation) = {mode, limit};
  return CUDNN_STATUS_SUCCESS;
}
}

}  // namespace gpus
