// A convolution as a product of matrices: what each place of the output sees of the input, in a column.
#pragma once

#include <algorithm>
#include <cstring>

#include "descriptors.h"

namespace gpus {

// x: its axes N and C, and D, H, W of an image; y: D, H, W of what comes out.
struct Geometry {
  int channels;  // of an image
  int in[3], out[3];
  Window window;

  size_t in_plane() const { return size_t(in[0]) * in[1] * in[2]; }
  size_t out_plane() const { return size_t(out[0]) * out[1] * out[2]; }
  size_t window_size() const { return size_t(window.sizes[0]) * window.sizes[1] * window.sizes[2]; }
};

// The outputs of an axis, from `first` to before `end`, whose element `tap` of the window lies on the input,
// and where the first does.
struct Seen {
  int first, end, at;
};

inline Seen seen(const Geometry& it, int axis, int tap) {
  const Window& window = it.window;
  int begin = tap * window.dilations[axis] - window.padding[axis], stride = window.strides[axis];
  int first = begin < 0 ? (-begin + stride - 1) / stride : 0;
  int left = it.in[axis] - 1 - begin;
  int end = left < 0 ? 0 : std::min(it.out[axis], left / stride + 1);
  first = std::min(first, std::max(end, 0));
  return {first, std::max(end, first), begin + first * stride};
}

// visit(row of the columns, offset in the output's plane, offset in the image, how many) for all that is seen
// of an image with so many channels: each visit is a part of a row of outputs,
// whose inputs are strides[2] apart.
template <class Visit> void for_each_seen(const Geometry& it, int channels, Visit visit) {
  const Window& window = it.window;
  size_t row = 0;
  for (int channel = 0; channel < channels; channel++)
    for (int d = 0; d < window.sizes[0]; d++)
      for (int h = 0; h < window.sizes[1]; h++)
        for (int w = 0; w < window.sizes[2]; w++, row++) {
          Seen depth = seen(it, 0, d), height = seen(it, 1, h), width = seen(it, 2, w);
          if (width.first == width.end) continue;
          for (int z = depth.first, in_z = depth.at; z < depth.end; z++, in_z += window.strides[0])
            for (int y = height.first, in_y = height.at; y < height.end; y++, in_y += window.strides[1])
              visit(row, (size_t(z) * it.out[1] + y) * it.out[2] + width.first,
                    channel * it.in_plane() + (size_t(in_z) * it.in[1] + in_y) * it.in[2] + width.at,
                    width.end - width.first);
        }
}

// columns[row * length + offset in the output's plane]: what an image shows;
// 0 where the window lies beside it.
template <class T> void to_columns(const Geometry& it, int channels, const T* image, T* columns, size_t length) {
  size_t plane = it.out_plane(), rows = channels * it.window_size();
  for (size_t row = 0; row < rows; row++) memset(columns + row * length, 0, plane * sizeof(T));
  int stride = it.window.strides[2];
  for_each_seen(it, channels, [&](size_t row, size_t out, size_t in, int number) {
    T* to = columns + row * length + out;
    const T* from = image + in;
    if (stride == 1)
      memcpy(to, from, number * sizeof(T));
    else
      for (int at = 0; at < number; at++) to[at] = from[at * stride];
  });
}

// The other way: each element of the columns is added to the one of the image that it was taken from.
template <class T> void add_columns(const Geometry& it, int channels, const T* columns, size_t length, T* image) {
  int stride = it.window.strides[2];
  for_each_seen(it, channels, [&](size_t row, size_t out, size_t in, int number) {
    const T* from = columns + row * length + out;
    T* to = image + in;
    for (int at = 0; at < number; at++) to[at * stride] += from[at];
  });
}

}  // namespace gpus
