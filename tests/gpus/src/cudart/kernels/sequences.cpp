// SequenceMask, SequenceLast and SequenceReverse.
#include "arguments.h"

namespace gpus {
namespace {

// SequenceMask0GPUKernel<request>(N, array, lengths, longest, batch, rest, value), whose axis of time is the
// first one, and SequenceMask1GPUKernel, where it is the second one
template <bool time_first> Work mask(const Launch& launch) {
  int request = request_in(launch.operation(), 0), longest = launch.value<int>(3), batch = launch.value<int>(4);
  int rest = launch.value<int>(5);
  Indices lengths(launch, 2, batch);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto* array = launch.array<T>(1, launch.n());
    T value = launch.value<T>(6);
    return each(launch.n(), [=](long i) {
      long sequence = time_first ? i / rest % batch : i / rest / longest,
           time = time_first ? i / rest / batch : i / rest % longest;
      if (time >= lengths[sequence]) assign(array[i], request, value);
    });
  });
}

// SequenceMaskKernel(array (time, batch, rest), lengths, value), of CTCLoss: arguments of type
// mshadow::Tensor
Work mask_tensor(const Launch& launch) {
  struct {
    void* data;
    int time, batch, rest, stride;
  } tensor;
  memcpy(&tensor, launch.raw(0), sizeof tensor);
  const Type& type = launch.parameter(1).arguments[2];
  Access<double> lengths = access<double>(type);
  auto* of_sequences = launch.value<void*>(1);
  if (!lengths || launch.parameter(0).arguments[1].word != "3") return {};
  launch.check(of_sequences, tensor.batch * lengths.size);
  return typed(launch.parameter(0).arguments[2], [&](auto element) -> Work {
    using T = decltype(element);
    auto* array = static_cast<T*>(tensor.data);
    launch.check(array, static_cast<size_t>(tensor.time) * tensor.batch * tensor.stride * sizeof(T));
    T value = launch.value<T>(2);
    return each(tensor.batch, [=](long sequence) {
      for (long time = lengths.get(lengths.at(of_sequences, sequence)); time < tensor.time; time++) {
        T* row = array + (time * tensor.batch + sequence) * tensor.stride;
        std::fill(row, row + tensor.rest, value);
      }
    });
  });
}

// SequenceLastKernel<request>(N, out, in, lengths, stride of time, stride of the batch, shape),
// and its gradient, which adds
template <bool gradient> Work last(const Launch& launch) {
  int request = gradient ? ADD : request_in(launch.operation(), 0), time = launch.value<int>(4),
      batch = launch.value<int>(5);
  Extents shape = extents(launch, 6);
  Indices lengths(launch, 3, shape[0]);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    auto *first = launch.array<T>(1), *second = launch.array<T>(2);
    return each(launch.n(), [=](long i) {
      long sequence = i / shape[1], place = (lengths[sequence] - 1) * time + sequence * batch + i % shape[1];
      if (gradient)
        assign(first[place], request, second[i]);
      else
        assign(first[i], request, second[place]);
    });
  });
}

// ReverseKernel<(mxnet::OpReqType)request>(N, out, in, longest, batch, rest, elements, lengths)
Work reverse_sequences(const Launch& launch) {
  const std::string& word = launch.operation().arguments[0].text;
  int request = atoi(word.c_str() + word.find(')') + 1);
  long longest = launch.value<int>(3), batch = launch.value<int>(4), rest = launch.value<int>(5);
  bool has_lengths = launch.value<void*>(7);
  Indices lengths(launch, 7, batch);
  return typed(launch.parameter(1), [&](auto element) -> Work {
    using T = decltype(element);
    size_t elements = launch.value<int>(6);
    auto *out = launch.array<T>(1, elements), *in = launch.array<T>(2, elements);
    return each(longest * batch, [=](long i) {
      long time = i / batch, sequence = i % batch, length = has_lengths ? lengths[sequence] : longest;
      long from = time < length ? length - 1 - time : time;
      for (long k = 0; k < rest; k++) assign(out[i * rest + k], request, in[(from * batch + sequence) * rest + k]);
    });
  });
}

const Registered registered{{"SequenceMask0GPUKernel", mask<true>}, {"SequenceMask1GPUKernel", mask<false>},
                            {"SequenceMaskKernel", mask_tensor},    {"SequenceLastKernel", last<false>},
                            {"SequenceLastGradKernel", last<true>}, {"ReverseKernel", reverse_sequences}};

}  // namespace
}  // namespace gpus
