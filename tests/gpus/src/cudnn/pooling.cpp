// Pooling: what a window sees of each channel of an image, its largest element or its mean.
#include <limits>
#include <vector>

#include "columns.h"
#include "views.h"

namespace gpus {
namespace {

bool is_maximum(const Pooling& it) {
  return it.mode == CUDNN_POOLING_MAX || it.mode == CUDNN_POOLING_MAX_DETERMINISTIC;
}

Geometry geometry(const Pooling& it, const Tensor& x, const Tensor& y) {
  Geometry geometry{1, {}, {}, it.window};
  for (int axis = 0; axis < 3; axis++) {
    geometry.in[axis] = x.sizes[2 + axis];
    geometry.out[axis] = y.sizes[2 + axis];
  }
  return geometry;
}

// How much of a window lies on an axis, padding at its end included: MXNet's convention "full" has the last
// window look over it, and MXNet's test_pooling_full_2d holds that cuDNN's means are those of the CPU.
int on_axis(const Geometry& it, int axis, int out) {
  int first = out * it.window.strides[axis] - it.window.padding[axis];
  return std::min(it.window.sizes[axis], it.in[axis] + it.window.padding[axis] - first);
}

// By how many a mean divides, for each output of a plane.
template <class T> std::vector<T> counts(const Pooling& it, const Geometry& geometry) {
  std::vector<T> number(geometry.out_plane(), 0);
  if (it.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING) {
    size_t place = 0;
    for (int z = 0; z < geometry.out[0]; z++)
      for (int y = 0; y < geometry.out[1]; y++)
        for (int x = 0; x < geometry.out[2]; x++)
          number[place++] = on_axis(geometry, 0, z) * on_axis(geometry, 1, y) * on_axis(geometry, 2, x);
  } else {
    for_each_seen(geometry, 1, [&](size_t, size_t out, size_t, int length) {
      for (int at = 0; at < length; at++) number[out + at]++;
    });
  }
  return number;
}

template <class T> void pool(const Pooling& it, const Geometry& geometry, size_t planes, const T* x, T* y) {
  size_t in_plane = geometry.in_plane(), out_plane = geometry.out_plane();
  int stride = geometry.window.strides[2];
  bool maximum = is_maximum(it);
  std::vector<T> number = counts<T>(it, geometry);
  for (size_t plane = 0; plane < planes; plane++, x += in_plane, y += out_plane) {
    std::fill(y, y + out_plane, maximum ? std::numeric_limits<T>::lowest() : T(0));
    for_each_seen(geometry, 1, [&](size_t, size_t out, size_t in, int length) {
      T* to = y + out;
      const T* from = x + in;
      if (maximum)
        for (int at = 0; at < length; at++) to[at] = from[at * stride] > to[at] ? from[at * stride] : to[at];
      else
        for (int at = 0; at < length; at++) to[at] += from[at * stride];
    });
    if (!maximum)
      for (size_t at = 0; at < out_plane; at++) y[at] /= number[at];
  }
}

// Of equal largest elements the first that the window meets has the whole gradient:
// -1 where there is none (NaN).
template <class T>
void find_largest(const Geometry& geometry, const T* x, const T* y, std::vector<ptrdiff_t>& largest) {
  int stride = geometry.window.strides[2];
  largest.assign(geometry.out_plane(), -1);
  for_each_seen(geometry, 1, [&](size_t, size_t out, size_t in, int length) {
    for (int at = 0; at < length; at++)
      if (largest[out + at] < 0 && x[in + at * stride] == y[out + at]) largest[out + at] = in + at * stride;
  });
}

// An element that is the largest of several windows has the sum of their gradients,
// which CUDNN_POOLING_MAX adds in any order.
template <class T>
void maximum_gradient(const std::vector<ptrdiff_t>& largest, bool deterministic, const T* dy, T* dx) {
  size_t plane = largest.size(), out = deterministic ? 0 : any_number() % plane;
  for (size_t turn = 0; turn < plane; turn++, out = out + 1 == plane ? 0 : out + 1)
    if (largest[out] >= 0) dx[largest[out]] += dy[out];
}

template <class T>
void pool_gradient(const Pooling& it, const Geometry& geometry, size_t planes, const T* x, const T* y, const T* dy,
                   T* dx) {
  size_t in_plane = geometry.in_plane(), out_plane = geometry.out_plane();
  int stride = geometry.window.strides[2];
  bool maximum = is_maximum(it);
  std::vector<T> number = counts<T>(it, geometry);
  std::vector<ptrdiff_t> largest;
  std::fill(dx, dx + planes * in_plane, T(0));
  for (size_t plane = 0; plane < planes; plane++, x += in_plane, dx += in_plane, y += out_plane, dy += out_plane) {
    if (maximum) {
      find_largest(geometry, x, y, largest);
      maximum_gradient(largest, it.mode == CUDNN_POOLING_MAX_DETERMINISTIC, dy, dx);
      continue;
    }
    for_each_seen(geometry, 1, [&](size_t, size_t out, size_t in, int length) {
      for (int at = 0; at < length; at++) dx[in + at * stride] += dy[out + at] / number[out + at];
    });
  }
}

bool fits(const DnnCall& call, const Tensor& x, const Tensor& y) {
  bool well = x.sizes[0] == y.sizes[0] && x.sizes[1] == y.sizes[1] && x.type == y.type;
  if (!well) call.refuse("tensors that do not match");
  return well;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha,
                                  const cudnnTensorDescriptor_t xd, const void* x, const void* beta,
                                  const cudnnTensorDescriptor_t yd, void* y) {
  DnnCall call("cudnnPoolingForward", handle);
  Tensor in = described(xd), out = described(yd);
  call.reaches(in, x);
  call.reaches(out, y);
  if (!fits(call, in, out)) return CUDNN_STATUS_BAD_PARAM;
  Blend blend(alpha, beta, out.type);
  return call.does_with(in.type, [=, it = described(pooling)](auto element) {
    using T = decltype(element);
    Input<T> from(in, x);
    Output<T> to(out, y, blend);
    pool(it, geometry(it, in, out), size_t(in.sizes[0]) * in.sizes[1], from.values(), to.values());
    to.write();
  });
}

cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha,
                                   const cudnnTensorDescriptor_t yd, const void* y, const cudnnTensorDescriptor_t dyd,
                                   const void* dy, const cudnnTensorDescriptor_t xd, const void* x, const void* beta,
                                   const cudnnTensorDescriptor_t dxd, void* dx) {
  DnnCall call("cudnnPoolingBackward", handle);
  Tensor in = described(xd), out = described(yd), gradient = described(dyd), to = described(dxd);
  call.match(in, to);
  call.match(out, gradient);
  call.reaches(in, x);
  call.reaches(out, y);
  call.reaches(gradient, dy);
  call.reaches(to, dx);
  if (!fits(call, in, out)) return CUDNN_STATUS_BAD_PARAM;
  Blend blend(alpha, beta, to.type);
  return call.does_with(in.type, [=, it = described(pooling)](auto element) {
    using T = decltype(element);
    Input<T> from(in, x), pooled(out, y), gradients(gradient, dy);
    Output<T> result(to, dx, blend);
    pool_gradient(it, geometry(it, in, out), size_t(in.sizes[0]) * in.sizes[1], from.values(), pooled.values(),
                  gradients.values(), result.values());
    result.write();
  });
}
}

}  // namespace gpus
