// Pooling: what a window sees of each channel of an image, its largest element or its mean.
#include <limits>
#include <vector>

#include "columns.h"
#include "views.h"

namespace gpus {
namespace {

bool is_maximum(const Pooling& it) { return it.mode == CUDNN_POOLING_MAX || it.mode == CUDNN_POOLING_MAX_DETERMINISTIC; }

Geometry geometry(const Pooling& it, const Tensor& x, const Tensor& y) {
  Geometry geometry{1, {}, {}, it.window};
  for (int axis = 0; axis < 3; axis++) {
    geometry.in[axis] = x.sizes[2 + axis];
    geometry.out[axis] = y.sizes[2 + axis];
  }
  return geometry;
}

// By how many a mean divides, for each output of a plane.
template <class T>
std::vector<T> counts(const Pooling& it, const Geometry& geometry) {
  size_t plane = geometry.out_plane();
  if (it.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING) return std::vector<T>(plane, geometry.window_size());
  std::vector<T> number(plane, 0);
  for_each_seen(geometry, 1, [&](size_t, size_t out, size_t, int length) {
    for (int at = 0; at < length; at++) number[out + at]++;
  });
  return number;
}

template <class T>
void pool(const Pooling& it, const Geometry& geometry, size_t planes, const T* x, T* y) {
  size_t in_plane = geometry.in_plane(), out_plane = geometry.out_plane();
  int stride = geometry.window.strides[2];
  bool maximum = is_maximum(it);
  std::vector<T> number = counts<T>(it, geometry);
  for (size_t plane = 0; plane < planes; plane++, x += in_plane, y += out_plane) {
    std::fill(y, y + out_plane, maximum ? -std::numeric_limits<T>::infinity() : T(0));
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

// Of equal largest elements the first that the window meets has the whole gradient.
template <class T>
void maximum_gradient(const Geometry& geometry, const T* x, const T* y, const T* dy, T* dx, std::vector<bool>& given) {
  int stride = geometry.window.strides[2];
  given.assign(geometry.out_plane(), false);
  for_each_seen(geometry, 1, [&](size_t, size_t out, size_t in, int length) {
    for (int at = 0; at < length; at++) {
      if (given[out + at] || x[in + at * stride] != y[out + at]) continue;
      given[out + at] = true;
      dx[in + at * stride] += dy[out + at];
    }
  });
}

template <class T>
void pool_gradient(const Pooling& it, const Geometry& geometry, size_t planes, const T* x, const T* y, const T* dy, T* dx) {
  size_t in_plane = geometry.in_plane(), out_plane = geometry.out_plane();
  int stride = geometry.window.strides[2];
  bool maximum = is_maximum(it);
  std::vector<T> number = counts<T>(it, geometry);
  std::vector<bool> given;
  std::fill(dx, dx + planes * in_plane, T(0));
  for (size_t plane = 0; plane < planes; plane++, x += in_plane, dx += in_plane, y += out_plane, dy += out_plane) {
    if (maximum) {
      maximum_gradient(geometry, x, y, dy, dx, given);
      continue;
    }
    for_each_seen(geometry, 1, [&](size_t, size_t out, size_t in, int length) {
      for (int at = 0; at < length; at++) dx[in + at * stride] += dy[out + at] / number[out + at];
    });
  }
}

// Whether a window of this pooling can come to so many outputs. MXNet's convention "full" lets the last ones look over the edge.
bool fits(const DnnCall& call, const Tensor& x, const Tensor& y) {
  bool well = x.sizes[0] == y.sizes[0] && x.sizes[1] == y.sizes[1] && x.type == y.type;
  if (!well) call.refuse("tensors that do not match");
  return well;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnPoolingForward(
    cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha, const cudnnTensorDescriptor_t xd,
    const void* x, const void* beta, const cudnnTensorDescriptor_t yd, void* y) {
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

cudnnStatus_t cudnnPoolingBackward(
    cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha, const cudnnTensorDescriptor_t yd,
    const void* y, const cudnnTensorDescriptor_t dyd, const void* dy, const cudnnTensorDescriptor_t xd, const void* x,
    const void* beta, const cudnnTensorDescriptor_t dxd, void* dx) {
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
