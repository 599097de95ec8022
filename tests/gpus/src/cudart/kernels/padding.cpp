// Pad: images with a border around them.
#include "arguments.h"

namespace gpus {
namespace {

// mshadow::Tensor<gpu, N, T>
struct Image {
  void* data;
  Extents shape;
  long plane;  // elements of its last axes

  Image(const Launch& launch, int place, int axes) : data(launch.value<void*>(place)) {
    int dimensions = atoi(launch.parameter(place).arguments[1].word.c_str());
    Extents all(static_cast<const char*>(launch.raw(place)) + sizeof data, dimensions);
    shape.axes.assign(all.axes.end() - axes, all.axes.end());
    plane = shape.size();
    launch.check(data, all.size() * size_of(launch.parameter(place).arguments[2]));
  }
};

// Where an element beside the image comes from, along one axis; -1: nowhere.
int padded_from(int place, int size, char way) {
  if (place >= 0 && place < size) return place;
  if (way == 'c') return -1;
  if (way == 'e') return place < 0 ? 0 : size - 1;
  return place < 0 ? -place : 2 * (size - 1) - place;
}

// image_2d_pad_constant_kernel(out, in, top, left, number), image_3d_pad_..., ..._edge_...,
// ..._reflect_..., and ..._grad_kernel(gradient, out gradient, ...)
template <int AXES, bool GRADIENT> Work pad(const Launch& launch) {
  const std::string& word = launch.name.kernel.word;
  char way = word[word.find("pad_") + 4];
  Image padded(launch, GRADIENT ? 1 : 0, AXES), inner(launch, GRADIENT ? 0 : 1, AXES);
  std::vector<int> before;
  for (int axis = 0; axis < AXES; axis++) before.push_back(launch.value<int>(2 + axis));
  long images = static_cast<long>(launch.grid.y) * launch.grid.z;
  return typed(launch.parameter(0).arguments[2], [&](auto element) -> Work {
    using T = decltype(element);
    T number = way == 'c' && !GRADIENT ? launch.value<T>(2 + AXES) : T(0);
    return each(images * padded.plane, [=](long i) {
      long place = 0, stride = 1, rest = i % padded.plane;
      for (int axis = AXES - 1; axis >= 0 && place >= 0; axis--) {
        int from = padded_from(rest % padded.shape[axis] - before[axis], inner.shape[axis], way);
        place = from < 0 ? -1 : place + from * stride;
        rest /= padded.shape[axis];
        stride *= inner.shape[axis];
      }
      T *outside = static_cast<T*>(padded.data) + i,
        *inside = static_cast<T*>(inner.data) + i / padded.plane * inner.plane + place;
      if (!GRADIENT) *outside = place < 0 ? number : *inside;
      if (GRADIENT && place >= 0) assign(*inside, way == 'c' ? WRITE : ADD, *outside);
    });
  });
}

const Registered registered{
    {"image_2d_pad_constant_kernel", pad<2, false>}, {"image_2d_pad_edge_kernel", pad<2, false>},
    {"image_2d_pad_reflect_kernel", pad<2, false>},  {"image_2d_pad_constant_grad_kernel", pad<2, true>},
    {"image_2d_pad_edge_grad_kernel", pad<2, true>}, {"image_2d_pad_reflect_grad_kernel", pad<2, true>},
    {"image_3d_pad_constant_kernel", pad<3, false>}, {"image_3d_pad_edge_kernel", pad<3, false>},
    {"image_3d_pad_reflect_kernel", pad<3, false>},  {"image_3d_pad_constant_grad_kernel", pad<3, true>},
    {"image_3d_pad_edge_grad_kernel", pad<3, true>}, {"image_3d_pad_reflect_grad_kernel", pad<3, true>}};

}  // namespace
}  // namespace gpus
