// Running sums, histograms and what is left without repetition: CUB's, and MXNet's cumsum.
#include "arguments.h"

namespace gpus {
namespace {

Work nothing(const Launch&) {
  return [] {};
}

// DeviceScanKernel<..., Sum, INIT, ...>(in, out, state, first tile, sum, init, n): sums of all before,
// and without INIT with it
Work scan(const Launch& launch) {
  bool inclusive = launch.parameter(5).word == "NullType";
  if (launch.parameter(4).word != "Sum") return {};
  if (launch.value<int>(3) > 0) return nothing(launch);
  int n = launch.value<int>(6);
  return typed(launch.parameter(0), [&](auto in_element) {
    return typed(launch.parameter(1), [&](auto out_element) -> Work {
      using I = decltype(in_element);
      using O = decltype(out_element);
      auto* in = launch.array<I>(0, n);
      auto* out = launch.array<O>(1, n);
      double start = inclusive ? 0 : access<double>(launch.parameter(5)).get(launch.raw(5));
      return [=] {
        Computed<O> sum = static_cast<Computed<O>>(start);
        for (int i = 0; i < n; i++) {
          auto with = static_cast<Computed<O>>(sum + static_cast<Computed<O>>(in[i]));
          out[i] = static_cast<O>(inclusive ? with : sum);
          sum = with;
        }
      };
    });
  });
}

// DeviceHistogramInitKernel(bins, counts, ...), one channel
Work clear_histogram(const Launch& launch) {
  int bins = launch.value<int>(0), *counts = launch.value<int*>(1);
  launch.check(counts, bins * sizeof(int));
  return [=] { std::fill(counts, counts + bins, 0); };
}

// DeviceHistogramSweepKernel(samples, bins, ..., counts, ..., ..., scale, n, ...), with a scale {bins,
// end, begin, width}
Work histogram(const Launch& launch) {
  struct Scale {
    int bins, end, begin, width;
  };
  int n = launch.value<int>(7), bins = launch.value<int>(1), *counts = launch.value<int*>(3);
  if (launch.parameter(0).word != "int" || launch.parameter(6).text.find("ScaleTransform") == std::string::npos)
    return {};
  Scale scale = launch.value<Scale>(6);
  auto* samples = launch.array<int>(0, n);
  launch.check(counts, bins * sizeof(int));
  return each(n, [=](long i) {
    if (samples[i] >= scale.begin && samples[i] < scale.end) counts[(samples[i] - scale.begin) / scale.width]++;
  });
}

// DeviceSelectSweepKernel(in, ..., out, how many, ..., ..., Equality, n, ...):
// of equal neighbors the first one
Work unique(const Launch& launch) {
  if (launch.parameter(6).word != "Equality") return {};
  int n = launch.value<int>(7);
  return typed(launch.parameter(0), [&](auto element) {
    return typed(launch.parameter(3), [&](auto counted) -> Work {
      auto *in = static_cast<decltype(element)*>(launch.pointer(0, n)),
           *out = static_cast<decltype(element)*>(launch.pointer(2));
      auto* count = static_cast<decltype(counted)*>(launch.pointer(3, 1));
      return [=] { *count = static_cast<decltype(counted)>(std::unique_copy(in, in + n, out) - out); };
    });
  });
}

// cumsum_forward(N, out, in, size, elements behind the axis)
Work running_sum(const Launch& launch) {
  int size = launch.value<int>(3), trailing = launch.value<int>(4);
  size_t elements = static_cast<size_t>(launch.n()) * size;
  return typed(launch.parameter(1), [&](auto out_element) {
    return typed(launch.parameter(2), [&](auto in_element) -> Work {
      using O = decltype(out_element);
      auto* out = launch.array<O>(1, elements);
      auto* in = static_cast<decltype(in_element)*>(launch.pointer(2, elements));
      return each(launch.n(), [=](long i) {
        long first = i / trailing * size * trailing + i % trailing;
        out[first] = static_cast<O>(in[first]);
        for (long k = 1; k < size; k++)
          out[first + k * trailing] =
              static_cast<O>(out[first + (k - 1) * trailing] + static_cast<O>(in[first + k * trailing]));
      });
    });
  });
}

const Registered registered{{"cumsum_forward", running_sum},
                            {"DeviceScanInitKernel", nothing},
                            {"DeviceScanKernel", scan},
                            {"DeviceCompactInitKernel", nothing},
                            {"DeviceSelectSweepKernel", unique},
                            {"DeviceHistogramInitKernel", clear_histogram},
                            {"DeviceHistogramSweepKernel", histogram}};

}  // namespace
}  // namespace gpus
