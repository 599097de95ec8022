// Sorts: of CUB and Thrust, which MXNet's sort, topk, take and shuffle launch, and MXNet's own of a few first
// elements.
//
// Their algorithms take several launches, of which the first ones only count and divide the work. Here one
// does the work, and the others do nothing; what lies in their temporary memory is nobody's business.
#include <cmath>
#include <numeric>
#include <tuple>

#include "arguments.h"

namespace gpus {
namespace {

Work nothing(const Launch&) {
  return [] {};
}

// The sizes of types that are only moved.
size_t moved_size(const Type& type) {
  if (type.word == "unsigned int") return 4;
  if (type.word == "unsigned long") return 8;
  return size_of(type);
}

// out[i] = in[order[i]], for elements of any type; nothing for null pointers.
void permute(const char* in, char* out, size_t size, const std::vector<int>& order) {
  if (!in || !out || !size) return;
  std::vector<char> held(in, in + order.size() * size);  // they may be the same
  for (size_t i = 0; i < order.size(); i++) memcpy(out + i * size, held.data() + order[i] * size, size);
}

// The bits of a key, as whole numbers of the same order: CUB sorts by these.
uint64_t ordered_bits(const char* key, const Type& type, size_t size) {
  uint64_t bits = 0, top = uint64_t(1) << (8 * size - 1), all = top | (top - 1);
  memcpy(&bits, key, size);
  bool is_real = type.word == "float" || type.word == "double" || is_half(type) || type.word == "__half";
  if (is_real) return bits & top ? ~bits & all : bits | top;
  bool is_signed = type.word == "int" || type.word == "long" || type.word == "signed char";
  return is_signed ? bits ^ top : bits;
}

// A stable sort of pairs by some bits of their keys. The arguments from `place` on: keys, sorted keys,
// values, sorted values.
Work radix_sort(const Launch& launch, int n, int first_bit, int bits, bool descends) {
  const Type &key = launch.parameter(0), &value = launch.parameter(2);
  size_t key_size = moved_size(key), value_size = moved_size(value);
  if (!key_size || (!value_size && value.word != "NullType")) return {};
  auto *keys = launch.array<char>(0, n), *sorted_keys = launch.array<char>(1, n);
  auto *values = launch.value<char*>(2), *sorted_values = launch.value<char*>(3);
  if (value_size) launch.check(values, n * value_size), launch.check(sorted_values, n * value_size);
  return [=, key = key] {
    uint64_t mask = bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1;
    std::vector<uint64_t> digits(n);
    for (int i = 0; i < n; i++) digits[i] = ordered_bits(keys + i * key_size, key, key_size) >> first_bit & mask;
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return descends ? digits[a] > digits[b] : digits[a] < digits[b]; });
    permute(keys, sorted_keys, key_size, order);
    permute(values, sorted_values, value_size, order);
  };
}

// DeviceRadixSortSingleTileKernel<Policy, descends, ...>(keys in, out, values in, out, n, first bit, end bit)
Work radix_sort_tile(const Launch& launch) {
  int first = launch.value<int>(5);
  return radix_sort(launch, launch.value<int>(4), first, launch.value<int>(6) - first, is_true(launch.name.kernel, 1));
}

// DeviceRadixSortDownsweepKernel<Policy, ..., descends, ...>(keys in, out, values in, out, ..., n,
// bit, bits, ...)
Work radix_sort_digit(const Launch& launch) {
  return radix_sort(launch, launch.value<int>(5), launch.value<int>(6), launch.value<int>(7),
                    is_true(launch.name.kernel, 2));
}

// Thrust's merge sort: (ping, keys, values, n, buffer of keys, buffer of values, comparison). Where ping is
// true, a step goes from the arrays to the buffers, yet the sort of blocks remains in the arrays.
struct MergeSort {
  char *keys, *values, *key_buffer, *value_buffer;
  size_t key_size, value_size;
  int n;
  bool ping;
  Type key, comparison;

  explicit MergeSort(const Launch& launch)
      : keys(launch.value<char*>(1)),
        values(launch.value<char*>(2)),
        key_buffer(launch.value<char*>(4)),
        value_buffer(launch.value<char*>(5)),
        key_size(moved_size(launch.parameter(4))),
        value_size(moved_size(launch.parameter(5))),
        n(launch.value<long>(3)),
        ping(launch.value<bool>(0)),
        key(launch.parameter(4)),
        comparison(launch.parameter(6)) {
    for (char* array : {keys, key_buffer}) launch.check(array, n * key_size);
    for (char* array : {values, value_buffer}) launch.check(array, n * value_size);
  }
};

Work merge_sort(const Launch& launch) {
  MergeSort sort(launch);
  bool descends = sort.comparison.word.rfind("greater", 0) == 0;
  if (!sort.key_size || !sort.value_size || (!descends && sort.comparison.word.rfind("less", 0) != 0)) return {};
  return [=] {
    std::vector<uint64_t> bits(sort.n);
    for (int i = 0; i < sort.n; i++) bits[i] = ordered_bits(sort.keys + i * sort.key_size, sort.key, sort.key_size);
    std::vector<int> order(sort.n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return descends ? bits[a] > bits[b] : bits[a] < bits[b]; });
    permute(sort.keys, sort.ping ? sort.keys : sort.key_buffer, sort.key_size, order);
    permute(sort.values, sort.ping ? sort.values : sort.value_buffer, sort.value_size, order);
  };
}

// All is in order: what is left of merging is to copy.
Work merge(const Launch& launch) {
  MergeSort sort(launch);
  if (!sort.key_size || !sort.value_size) return {};
  return [=] {
    auto move = [&](char* array, char* buffer, size_t size) {
      memcpy(sort.ping ? buffer : array, sort.ping ? array : buffer, sort.n * size);
    };
    move(sort.keys, sort.key_buffer, sort.key_size);
    move(sort.values, sort.value_buffer, sort.value_size);
  };
}

// ParallelForAgent(function, n), where the function copies, {from, to}, or fills, {to, value}
Work parallel_for(const Launch& launch) {
  struct Copy {
    const char* from;
    char* to;
  };
  const Type& function = launch.parameter(0);
  long n = launch.value<long>(1);
  auto pointed = [](const Type& type) -> const Type& { return type.word == "device_ptr" ? type.arguments[0] : type; };
  if (function.word == "unary_transform_f" && function.arguments[3].word == "identity") {
    Copy copy = launch.value<Copy>(0);
    size_t size = moved_size(pointed(function.arguments[0]));
    if (!size || size != moved_size(pointed(function.arguments[1]))) return {};
    launch.check(copy.from, n * size);
    launch.check(copy.to, n * size);
    return [=] { memmove(copy.to, copy.from, n * size); };
  }
  if (function.word == "functor" && function.text.find("__uninitialized_fill") != std::string::npos) {
    size_t size = moved_size(pointed(function.arguments[0]));
    if (!size) return {};
    char* to = launch.value<char*>(0);
    std::string value(static_cast<const char*>(launch.raw(0)) + sizeof to, size);
    launch.check(to, n * size);
    return [=] {
      for (long i = 0; i < n; i++) memcpy(to + i * size, value.data(), size);
    };
  }
  return {};
}

// thrust::cuda_cub::core::_kernel_agent<AGENT, ...>
Work agent(const Launch& launch) {
  const std::string& word = launch.name.kernel.arguments[0].word;
  if (word == "BlockSortAgent") return merge_sort(launch);
  if (word == "PartitionAgent") return nothing(launch);
  if (word == "MergeAgent") return merge(launch);
  if (word == "ParallelForAgent") return parallel_for(launch);
  return {};
}

// PartialSortSmallK(K, N, values, indices, ascends): of each N, a block's, the first K in order,
// and of equal ones the lower index
Work partial_sort(const Launch& launch) {
  int most = launch.value<int>(0), n = launch.value<int>(1), rows = launch.grid.x;
  bool ascends = launch.value<bool>(4);
  return typed(launch.parameter(2), [&](auto element) -> Work {
    using T = decltype(element);
    auto* values = launch.array<T>(2, static_cast<size_t>(rows) * n);
    auto* indices = launch.array<int>(3, static_cast<size_t>(rows) * n);
    return each(rows, [=](long row) {
      std::vector<std::pair<T, int>> pairs(n);
      for (int i = 0; i < n; i++) pairs[i] = {values[row * n + i], indices[row * n + i]};
      std::stable_sort(pairs.begin(), pairs.end(),
                       [=](const auto& a, const auto& b) { return ascends ? a.first < b.first : a.first > b.first; });
      for (int i = 0; i < std::min(most, n); i++) std::tie(values[row * n + i], indices[row * n + i]) = pairs[i];
    });
  });
}

const Registered registered{{"PartialSortSmallK", partial_sort},
                            {"DeviceRadixSortSingleTileKernel", radix_sort_tile},
                            {"DeviceRadixSortUpsweepKernel", nothing},
                            {"RadixSortScanBinsKernel", nothing},
                            {"DeviceRadixSortDownsweepKernel", radix_sort_digit},
                            {"_kernel_agent", agent},
                            {"EmptyKernel", nothing}};

}  // namespace
}  // namespace gpus
