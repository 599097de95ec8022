// Images of mx.nd.image: to_tensor and normalize, a block of threads for each.
#include "arguments.h"

namespace gpus {
namespace {

// ToTensorCudaKernel(in, out, request, N, H, W, C, divisor): (N, H, W, C) becomes (N, C, H, W)
Work to_tensor(const Launch& launch) {
  int request = launch.value<int>(2);
  long images = launch.grid.x, pixels = static_cast<long>(launch.value<int>(4)) * launch.value<int>(5);
  long channels = launch.value<int>(6), elements = images * pixels * channels;
  float divisor = launch.value<float>(7);
  auto* out = launch.value<float*>(1);
  launch.check(out, elements * sizeof(float));
  return typed(launch.parameter(0).arguments[2], [&](auto element) -> Work {
    auto* in = launch.value<decltype(element)*>(0);
    launch.check(in, elements * sizeof element);
    return each(elements, [=](long i) {
      long image = i / (channels * pixels), channel = i / pixels % channels, pixel = i % pixels;
      assign(out[i], request, static_cast<float>(in[(image * pixels + pixel) * channels + channel]) / divisor);
    });
  });
}

// NormalizeCudaKernel(in, out, request, N, C, H, W, means, deviations), three of each, and
// NormalizeBackwardCudaKernel(out gradient, gradient, request, N, C, H, W, deviations)
template <bool gradient> Work normalise(const Launch& launch) {
  int request = launch.value<int>(2);
  long images = launch.grid.x, channels = launch.value<int>(4);
  long pixels = static_cast<long>(launch.value<int>(5)) * launch.value<int>(6);
  std::array<float, 3> means{}, deviations;
  for (int channel = 0; channel < 3; channel++) {
    if (!gradient) means[channel] = launch.value<float>(7 + channel);
    deviations[channel] = launch.value<float>((gradient ? 7 : 10) + channel);
  }
  return typed(launch.parameter(0), [&](auto element) -> Work {
    using T = decltype(element);
    using C = Computed<T>;
    auto* in = launch.array<T>(0, images * channels * pixels);
    auto* out = launch.array<T>(1, images * channels * pixels);
    return each(images * channels * pixels, [=](long i) {
      long channel = std::min<long>(i / pixels % channels, 2);
      float value = (static_cast<C>(in[i]) - means[channel]) / deviations[channel];
      double slope = static_cast<double>(in[i]) * (1.0 / deviations[channel]);
      assign(out[i], request, gradient ? stored<T>(slope) : stored<T>(value));
    });
  });
}

const Registered registered{{"ToTensorCudaKernel", to_tensor},
                            {"NormalizeCudaKernel", normalise<false>},
                            {"NormalizeBackwardCudaKernel", normalise<true>}};

}  // namespace
}  // namespace gpus
