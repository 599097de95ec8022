// Dropout. Its random numbers lie in memory of the GPU, and the reserve keeps a bit for each element:
// whether it was kept.
#include "views.h"

namespace gpus {
namespace {

// What lies at the beginning of the states.
struct States {
  uint64_t seed, drawn;
};

constexpr size_t STATES_BYTES = 4096;

// The number-th number of a seed: splitmix64.
uint64_t draw(uint64_t seed, uint64_t number) {
  uint64_t value = seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// Below `share`: the element is dropped.
float uniform(uint64_t number) { return static_cast<float>(number >> 40) * 0x1p-24f; }

size_t reserve_bytes(const Tensor& x) { return (x.elements() + 7) / 8; }

bool is_kept(const unsigned char* reserve, size_t at) { return reserve[at / 8] >> (at % 8) & 1; }

void draw_mask(States& states, float share, size_t number, unsigned char* reserve) {
  memset(reserve, 0, (number + 7) / 8);
  for (size_t at = 0; at < number; at++)
    if (uniform(draw(states.seed, states.drawn + at)) >= share) reserve[at / 8] |= 1 << (at % 8);
  states.drawn += number;
}

template <class T> void apply_mask(const unsigned char* reserve, float share, size_t number, const T* x, T* y) {
  T scale = share < 1 ? T(1) / T(1 - share) : T(0);
  for (size_t at = 0; at < number; at++) y[at] = is_kept(reserve, at) ? x[at] * scale : T(0);
}

cudnnStatus_t apply(const DnnCall& call, const Dropout& dropout, bool draws, const Tensor& in, const void* x,
                    const Tensor& out, void* y, void* reserve, size_t bytes) {
  call.match(in, out);
  call.reaches(in, x);
  call.reaches(out, y);
  call.reaches(reserve, reserve_bytes(in));
  if (draws) call.reaches(dropout.states, dropout.bytes);
  if (draws && dropout.states == nullptr) return CUDNN_STATUS_BAD_PARAM;
  if (bytes < reserve_bytes(in)) return CUDNN_STATUS_BAD_PARAM;
  return call.does_with(in.type, [=](auto element) {
    using T = decltype(element);
    auto* mask = static_cast<unsigned char*>(reserve);
    if (draws) draw_mask(*reinterpret_cast<States*>(dropout.states), dropout.share, in.elements(), mask);
    Output<T> to(out, y, Blend());
    apply_mask(mask, dropout.share, in.elements(), Input<T>(in, x).values(), to.values());
    to.write();
  });
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t* bytes) {
  *bytes = STATES_BYTES;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDropoutGetReserveSpaceSize(cudnnTensorDescriptor_t x, size_t* bytes) {
  *bytes = reserve_bytes(described(x));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float share,
                                        void* states, size_t bytes, unsigned long long seed) {
  described(dropout).share = share;
  if (states == nullptr) return CUDNN_STATUS_SUCCESS;  // the states stay what they are
  described(dropout) = {share, static_cast<char*>(states), bytes};
  DnnCall call("cudnnSetDropoutDescriptor", handle);
  if (bytes < STATES_BYTES) return CUDNN_STATUS_INVALID_VALUE;
  call.reaches(states, bytes);
  call.does([states, seed] { *static_cast<States*>(states) = {seed, 0}; });
  return CUDNN_STATUS_SUCCESS;
}

// The states go on where they are.
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t, float share, void* states,
                                            size_t bytes, unsigned long long) {
  if (bytes < STATES_BYTES) return CUDNN_STATUS_INVALID_VALUE;
  described(dropout) = {share, static_cast<char*>(states), bytes};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDropoutForward(cudnnHandle_t handle, const cudnnDropoutDescriptor_t dropout,
                                  const cudnnTensorDescriptor_t xd, const void* x, const cudnnTensorDescriptor_t yd,
                                  void* y, void* reserve, size_t bytes) {
  DnnCall call("cudnnDropoutForward", handle);
  return apply(call, described(dropout), true, described(xd), x, described(yd), y, reserve, bytes);
}

cudnnStatus_t cudnnDropoutBackward(cudnnHandle_t handle, const cudnnDropoutDescriptor_t dropout,
                                   const cudnnTensorDescriptor_t dyd, const void* dy, const cudnnTensorDescriptor_t dxd,
                                   void* dx, void* reserve, size_t bytes) {
  DnnCall call("cudnnDropoutBackward", handle);
  return apply(call, described(dropout), false, described(dyd), dy, described(dxd), dx, reserve, bytes);
}
}

}  // namespace gpus
