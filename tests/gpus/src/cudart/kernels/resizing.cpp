// contrib.BilinearResize2D.
#include "arguments.h"

namespace gpus {
namespace {

// Between which two elements of a row, or of a column, an element of the resized one lies.
template <class A> struct Between {
  int first, second;
  A of_first, of_second;  // their shares

  Between(A scale, int place, bool aligns_corners, int size) {
    A from = aligns_corners ? scale * place : std::max(A(0), scale * (place + A(0.5)) - A(0.5));
    first = static_cast<int>(from);
    second = first < size - 1 ? first + 1 : first;
    of_second = from - first;
    of_first = 1 - of_second;
  }
};

// caffe_gpu_interp2_kernel<gpu, T, A>(images, height, width, new height, new width, scales, whether corners
// stay, in, out), and ..._backward, which adds to the gradient what each share of a slope is
template <bool GRADIENT, class T, class A> Work resize_of(const Launch& launch) {
  long images = launch.value<long>(0);
  int height = launch.value<int>(1), width = launch.value<int>(2), new_height = launch.value<int>(3),
      new_width = launch.value<int>(4);
  A down = launch.value<A>(5), across = launch.value<A>(6);
  bool aligns = launch.value<bool>(7);
  auto* small = launch.array<T>(8, images * height * width);
  auto* resized = launch.array<T>(9, images * new_height * new_width);
  return each(images * new_height, [=](long line) {
    Between<A> rows(down, line % new_height, aligns, height);
    T* image = small + line / new_height * height * width;
    T *above = image + static_cast<long>(rows.first) * width, *below = image + static_cast<long>(rows.second) * width;
    for (int x = 0; x < new_width; x++) {
      Between<A> columns(across, x, aligns, width);
      T& here = resized[line * new_width + x];
      if constexpr (GRADIENT) {
        A slope = static_cast<A>(here);
        assign(above[columns.first], ADD, static_cast<T>(rows.of_first * columns.of_first * slope));
        assign(above[columns.second], ADD, static_cast<T>(rows.of_first * columns.of_second * slope));
        assign(below[columns.first], ADD, static_cast<T>(rows.of_second * columns.of_first * slope));
        assign(below[columns.second], ADD, static_cast<T>(rows.of_second * columns.of_second * slope));
      } else {
        auto mixed = [&](const T* row) {
          return columns.of_first * static_cast<A>(row[columns.first]) +
                 columns.of_second * static_cast<A>(row[columns.second]);
        };
        here = static_cast<T>(rows.of_first * mixed(above) + rows.of_second * mixed(below));
      }
    }
  });
}

template <bool GRADIENT> Work resize(const Launch& launch) {
  if (launch.count() != 10) return {};  // images of which channels are last
  const Type& computed = launch.name.kernel.arguments[2];
  return typed_real(launch.name.kernel.arguments[1], [&](auto element) -> Work {
    using T = decltype(element);
    if (computed.word == "float") return resize_of<GRADIENT, T, float>(launch);
    if (computed.word == "double") return resize_of<GRADIENT, T, double>(launch);
    return {};
  });
}

const Registered registered{{"caffe_gpu_interp2_kernel", resize<false>},
                            {"caffe_gpu_interp2_kernel_backward", resize<true>}};

}  // namespace
}  // namespace gpus
