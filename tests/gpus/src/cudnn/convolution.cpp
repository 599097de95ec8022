#include "convolution.h"

namespace gpus {
namespace {

constexpr size_t BLOCK_BYTES = 1 << 22;  // of columns, those of whole images

// The product's matrices, for one group of channels and a block of images:
//   w (filters, taps), columns (taps, places), and y (filters, places); places:
//   those of all images of the block.
template <class T> class Blocks {
 public:
  explicit Blocks(const ConvolutionProblem& it)
      : geometry(it.geometry()),
        groups(it.how.groups),
        images(it.x.sizes[0]),
        channels(it.x.sizes[1] / groups),
        filters(it.w.sizes[0] / groups),
        taps(channels * geometry.window_size()),
        plane(geometry.out_plane()) {
    size_t one = std::max<size_t>(1, taps * plane * sizeof(T));
    block = std::max<int>(1, std::min<size_t>(images, BLOCK_BYTES / one));
    columns.reset(new T[taps * plane * block]);
    outputs.reset(new T[filters * plane * block]);
  }

  // action(group, first image, how many) for each.
  template <class Action> void each(Action action) {
    for (int group = 0; group < groups; group++)
      for (int first = 0; first < images; first += block) action(group, first, std::min(block, images - first));
  }

  size_t image_at(int image, int group) const {
    return (size_t(image) * groups + group) * channels * geometry.in_plane();
  }
  size_t output_at(int image, int group) const { return (size_t(image) * groups + group) * filters * plane; }
  size_t weights_at(int group) const { return size_t(group) * filters * taps; }

  void see(const T* x, int group, int first, int number) {
    for (int image = 0; image < number; image++)
      to_columns(geometry, channels, x + image_at(first + image, group), columns.get() + image * plane, number * plane);
  }

  // y lies image by image, and the block's matrix filter by filter.
  void gather(const T* y, int group, int first, int number) {
    for (int image = 0; image < number; image++)
      for (size_t filter = 0; filter < filters; filter++)
        memcpy(outputs.get() + (filter * number + image) * plane, y + output_at(first + image, group) + filter * plane,
               plane * sizeof(T));
  }

  void scatter(T* y, int group, int first, int number) const {
    for (int image = 0; image < number; image++)
      for (size_t filter = 0; filter < filters; filter++)
        memcpy(y + output_at(first + image, group) + filter * plane, outputs.get() + (filter * number + image) * plane,
               plane * sizeof(T));
  }

  const Geometry geometry;
  const int groups, images, channels;
  const size_t filters, taps, plane;
  int block;
  std::unique_ptr<T[]> columns, outputs;
};

}  // namespace

Geometry ConvolutionProblem::geometry() const {
  Geometry geometry{x.sizes[1], {}, {}, how.window};
  for (int axis = 0; axis < 3; axis++) {
    geometry.in[axis] = x.sizes[2 + axis];
    geometry.out[axis] = y.sizes[2 + axis];
    geometry.window.sizes[axis] = w.sizes[2 + axis];
  }
  return geometry;
}

bool ConvolutionProblem::fits() const {
  if (x.sizes[0] != y.sizes[0] || w.sizes[0] != y.sizes[1] || x.sizes[1] != w.sizes[1] * how.groups) return false;
  if (w.sizes[0] % how.groups || x.type != w.type || x.type != y.type) return false;
  for (int axis = 0; axis < 3; axis++) {
    const Window& window = how.window;
    int left = x.sizes[2 + axis] + 2 * window.padding[axis] - window.dilations[axis] * (w.sizes[2 + axis] - 1) - 1;
    if (left < 0 || left / window.strides[axis] + 1 != y.sizes[2 + axis]) return false;
  }
  return true;
}

template <class T> void convolve(const ConvolutionProblem& it, const T* x, const T* w, T* y, Arithmetic how) {
  Blocks<T> blocks(it);
  blocks.each([&](int group, int first, int number) {
    blocks.see(x, group, first, number);
    int places = number * blocks.plane, taps = blocks.taps;
    multiply<T>(blocks.filters, places, taps, {w + blocks.weights_at(group), taps, 1},
                {blocks.columns.get(), places, 1}, blocks.outputs.get(), how);
    blocks.scatter(y, group, first, number);
  });
}

template <class T>
void convolution_data_gradient(const ConvolutionProblem& it, const T* w, const T* dy, T* dx, Arithmetic how) {
  Blocks<T> blocks(it);
  memset(dx, 0, it.x.elements() * sizeof(T));
  blocks.each([&](int group, int first, int number) {
    blocks.gather(dy, group, first, number);
    int places = number * blocks.plane, taps = blocks.taps;
    multiply<T>(taps, places, blocks.filters, {w + blocks.weights_at(group), 1, taps},
                {blocks.outputs.get(), places, 1}, blocks.columns.get(), how);
    for (int image = 0; image < number; image++)
      add_columns(blocks.geometry, blocks.channels, blocks.columns.get() + image * blocks.plane, places,
                  dx + blocks.image_at(first + image, group));
  });
}

template <class T>
void convolution_filter_gradient(const ConvolutionProblem& it, const T* x, const T* dy, T* dw, Arithmetic how) {
  Blocks<T> blocks(it);
  std::unique_ptr<T[]> sums(new T[blocks.filters * blocks.taps]);
  memset(dw, 0, it.w.elements() * sizeof(T));
  blocks.each([&](int group, int first, int number) {
    blocks.see(x, group, first, number);
    blocks.gather(dy, group, first, number);
    int places = number * blocks.plane, taps = blocks.taps;
    multiply<T>(blocks.filters, taps, places, {blocks.outputs.get(), places, 1}, {blocks.columns.get(), 1, places},
                sums.get(), how);
    T* to = dw + blocks.weights_at(group);
    for (size_t at = 0; at < blocks.filters * blocks.taps; at++) to[at] += sums[at];
  });
}

#define INSTANCES(T)                                                                                      \
  template void convolve(const ConvolutionProblem&, const T*, const T*, T*, Arithmetic);                  \
  template void convolution_data_gradient(const ConvolutionProblem&, const T*, const T*, T*, Arithmetic); \
  template void convolution_filter_gradient(const ConvolutionProblem&, const T*, const T*, T*, Arithmetic);
INSTANCES(float)
INSTANCES(double)

}  // namespace gpus
