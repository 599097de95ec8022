// Memory and copies.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

#include "errors.h"
#include "streams.h"

using namespace gpus;

namespace {

// Count a copy by where it goes from and to.
void count_copy(int from, int to, size_t bytes) {
  if (from >= 0 && to >= 0 && from != to) {
    bool direct = peer_access(from, to) || peer_access(to, from);
    gpus::count(direct ? copies_direct : copies_staged);
    gpus::count(direct ? bytes_direct : bytes_staged, bytes);
    if (!direct && machine().promises_peers && may_be_peers(from, to))
      fault("a copy from gpu " + std::to_string(from) + " to gpu " + std::to_string(to) +
            " goes through the host, as no peer access is enabled");
  } else if (from >= 0 && to >= 0) {
    gpus::count(copies_within);
    gpus::count(bytes_within, bytes);
  } else if (to >= 0) {
    gpus::count(from == PINNED ? copies_from_pinned : copies_from_pageable);
    gpus::count(bytes_from_host, bytes);
  } else if (from >= 0) {
    gpus::count(copies_to_host);
    gpus::count(bytes_to_host, bytes);
  }
}

// Equal rows of bytes, `pitch` bytes from one to the next.
struct Rows {
  char* first;
  size_t pitch;
};

void copy_rows(Rows to, Rows from, size_t width, size_t height) {
  for (size_t row = 0; row < height; row++) memmove(to.first + row * to.pitch, from.first + row * from.pitch, width);
}

bool changes_copies(int source, int target) {
  if (source < 0 || target < 0) return false;
  for (auto [from, to] : machine().defects.copies)
    if (visible()[source] == from && visible()[target] == to) return true;
  return false;
}

constexpr bool ON_ANY_DEVICE = true;

// From anywhere to anywhere, on a stream. A stream of any GPU may copy between any two.
cudaError_t copy(Rows to, Rows from, size_t width, size_t height, cudaStream_t stream) {
  if (width * height == 0) return cudaSuccess;
  int source = owner(from.first), target = owner(to.first);
  bool may_read = source < 0 || check_access(from.first, from.pitch * (height - 1) + width, source, "a copy");
  bool may_write = target < 0 || check_access(to.first, to.pitch * (height - 1) + width, target, "a copy");
  if (!may_read || !may_write) return cudaSuccess;
  count_copy(source, target, width * height);
  if (!machine().computes && (source >= 0 || target >= 0)) return cudaSuccess;
  if (source == PAGEABLE) {  // CUDA has read all of it when the call returns
    auto held = std::make_shared<std::vector<char>>(width * height);
    copy_rows({held->data(), width}, from, width, height);
    queue(stream, "a copy", [=] { copy_rows(to, {held->data(), width}, width, height); }, ON_ANY_DEVICE);
    return cudaSuccess;
  }
  bool changes = changes_copies(source, target);
  Work work = [=] {
    copy_rows(to, from, width, height);
    if (changes) *to.first ^= 1;
  };
  queue(stream, "a copy", std::move(work), ON_ANY_DEVICE);
  if (target == PAGEABLE) synchronize(stream);  // and has written all of it
  return cudaSuccess;
}

Rows rows(const void* first, size_t pitch = 0) { return {static_cast<char*>(const_cast<void*>(first)), pitch}; }

cudaError_t wait_for_default_stream(cudaError_t error) {
  synchronize(nullptr);
  return error;
}

}  // namespace

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = gpu(current_device()).memory;
  *free = *total - bytes_in_use(current_device());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = allocate(bytes, current_device());
  return *address ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(address, *pitch * height);
}

cudaError_t cudaFree(void* address) {
  int device = owner(address);
  if (device >= 0) synchronize_device(device);  // as the real one does
  release(address);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = allocate_pinned(bytes);
  return *address ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* address) {
  release(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return wait_for_default_stream(copy(rows(to), rows(from), bytes, 1, nullptr));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(rows(to), rows(from), bytes, 1, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return copy(rows(to, to_pitch), rows(from, from_pitch), width, height, stream);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  if (owner(to) != to_device || owner(from) != from_device)
    fault("cudaMemcpyPeerAsync is told gpu " + std::to_string(from_device) + " to gpu " + std::to_string(to_device) +
          ", and goes from " + std::to_string(owner(from)) + " to " + std::to_string(owner(to)));
  return copy(rows(to), rows(from), bytes, 1, stream);
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  gpus::count(memsets);
  if (check_access(address, bytes, current_device(), "cudaMemsetAsync") && machine().computes)
    queue(stream, "cudaMemsetAsync", [=] { memset(address, value, bytes); }, ON_ANY_DEVICE);
  return cudaSuccess;
}
}
