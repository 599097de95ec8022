// contrib.AdaptiveAvgPooling2D: means over as many parts of each image as are asked for, which overlap where
// they have to.
#include <cmath>

#include "arguments.h"

namespace gpus {
namespace {

struct Part {
  int first, end;
  Part(int place, int parts, int size)
      : first(static_cast<int>(std::floor(static_cast<float>(place * size) / parts))),
        end(static_cast<int>(std::ceil(static_cast<float>((place + 1) * size) / parts))) {}
  int size() const { return end - first; }
};

// visitor(out, in, rows, columns) for each mean, whose part of the image begins at `in`: the arguments
// height, width, and those of the output, from place 2 on; each block of the grid has an image
template <class T, class Visitor> Work each_part(const Launch& launch, T* in, T* out, Visitor visitor) {
  int height = launch.value<int>(2), width = launch.value<int>(3), out_height = launch.value<int>(4),
      out_width = launch.value<int>(5);
  size_t images = launch.grid.x;
  launch.check(in, images * height * width * sizeof(T));
  launch.check(out, images * out_height * out_width * sizeof(T));
  return each(images, [=](long image) {
    for (int y = 0; y < out_height; y++)
      for (int x = 0; x < out_width; x++) {
        Part rows(y, out_height, height), columns(x, out_width, width);
        visitor(out[(image * out_height + y) * out_width + x],
                in + (image * height + rows.first) * width + columns.first, rows.size(), columns.size(), width);
      }
  });
}

// adaptiveaveragepool(in, out, height, width, out height, out width, strides of images, rows and elements)
Work means(const Launch& launch) {
  bool dense = launch.value<int64_t>(7) == launch.value<int>(3) && launch.value<int64_t>(8) == 1;
  if (!dense) return {};
  return typed_real(launch.parameter(0), [&](auto element) {
    using T = decltype(element);
    using C = Computed<T>;
    auto mean = [](T& out, const T* in, int rows, int columns, int width) {
      T sum(0);  // of T, rounded each time
      for (int y = 0; y < rows; y++)
        for (int x = 0; x < columns; x++)
          sum = static_cast<T>(static_cast<C>(sum) + static_cast<C>(in[static_cast<long>(y) * width + x]));
      out = static_cast<T>(static_cast<C>(static_cast<T>(static_cast<C>(sum) / rows)) / columns);
    };
    return each_part(launch, launch.value<T*>(0), launch.value<T*>(1), mean);
  });
}

// atomicadaptiveaveragegradinput(gradient, out gradient, height, width, out height, out width): adds
Work slopes(const Launch& launch) {
  return typed_real(launch.parameter(0), [&](auto element) {
    using T = decltype(element);
    using C = Computed<T>;
    auto spread = [](T& out, T* in, int rows, int columns, int width) {
      C slope = static_cast<C>(static_cast<T>(static_cast<C>(out) / columns)) / rows;
      for (int y = 0; y < rows; y++)
        for (int x = 0; x < columns; x++) assign(in[static_cast<long>(y) * width + x], ADD, static_cast<T>(slope));
    };
    return each_part(launch, launch.value<T*>(0), launch.value<T*>(1), spread);
  });
}

const Registered registered{{"adaptiveaveragepool", means}, {"atomicadaptiveaveragegradinput", slopes}};

}  // namespace
}  // namespace gpus
