// What the libraries of a simulated machine share: its devices, their memory and streams, and what a test is
// told.
//
// MXNet's CUDA build asks for libcudart, libcudnn and others by name. The libraries made of this folder have
// these names and compute on the CPU, so gpu(0), gpu(1), ... can be used on a machine without a GPU, with
// right numbers. What a real GPU punishes with wrong numbers or an end of the process is a fault here, and a
// test that meets one fails.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace gpus {

// --- The machine (machine.cpp), as the file named in SIMULATED_GPUS describes it. ---

struct Gpu {
  int major, minor;  // compute capability
  size_t memory;     // bytes
  std::string bus;   // "00000000:00:17.0"
  std::string uuid;  // "GPU-..."
  std::string name;
};

// What is broken about it, for tests of those who look for it.
struct Defects {
  std::vector<std::pair<int, int>> copies;  // of copies from one to another, a bit changes
  std::vector<int> forgetful;               // every so often such a GPU leaves a kernel out
  std::vector<int> hanging;                 // one that does nothing, for ever
};

struct Machine {
  std::vector<Gpu> gpus;                  // all of them, in the order of their buses
  std::vector<std::vector<int>> nvlinks;  // how many between two of them
  std::vector<std::vector<bool>> peers;   // which may read which other's memory
  std::string driver = "535.183.01";
  double patience_s = 20;       // so long a collective waits for ranks that do not come: a real one waits for ever
  int delay_us = 0;             // everything queued begins up to so much later
  unsigned seed = 0;            // of the delays
  bool computes = true;         // false: nothing is computed, only counted
  bool tf32 = false;            // float32 products are made of rounded factors, as an A100 makes them
  bool promises_peers = false;  // a copy between two that may be peers, and are not, is a fault
  Defects defects;
};

const Machine& machine();

// The GPUs that this process sees: positions in machine().gpus, by CUDA_VISIBLE_DEVICES.
// CUDA's numbers count these.
const std::vector<int>& visible();
const Gpu& gpu(int device);
bool may_be_peers(int device, int other);

// The newest CUDA that the driver knows, by its branch (NVIDIA, CUDA compatibility, table of drivers):
// 11040 of 470.57.02.
int newest_cuda();

// The device of this thread, as cudaSetDevice chose it.
int current_device();
void set_current_device(int device);

// --- Memory (memory.cpp). New memory of a GPU is full of NaN. ---

constexpr int PAGEABLE = -1, PINNED = -2;  // the host's

void* allocate(size_t bytes, int device);  // nullptr: there is not so much left
void* allocate_pinned(size_t bytes);
void release(void* block);       // a fault if it is none, or not any more
int owner(const void* address);  // a device, PAGEABLE or PINNED
size_t bytes_in_use(int device);
bool wait_for_release(int device, size_t bytes,
                      std::chrono::milliseconds patience);  // until so many are in use

// A fault, unless work on `device` may reach these bytes: its own, pinned ones, and those of peers whose
// access is enabled. `bytes` 0: their number is not known. A null pointer is nobody's. False after a fault:
// such work must be left out.
bool check_access(const void* address, size_t bytes, int device, const std::string& who, size_t at_once = 1);

// cudaErrorPeerAccessAlreadyEnabled, cudaErrorPeerAccessUnsupported, or success.
cudaError_t enable_peer_access(int device, int other);
cudaError_t disable_peer_access(int device, int other);
bool peer_access(int device, int other);

// --- Streams (streams.cpp). Each is a thread, which does what is queued in order,
// each thing after a random delay. ---

using Work = std::function<void()>;

// Queue work of `who` on a stream; nullptr is the legacy default stream, of which this waits. Kernels belong
// on streams of the current device: others are a fault. A copy may go on a stream of any, and so may a wait.
void queue(cudaStream_t stream, const std::string& who, Work work, bool on_any_device = false);

// --- What a test is told (report.cpp). ---

// What is counted since the process began. Each name is also what Python asks for.
#define GPUS_COUNTERS                                                                                                 \
  allocations, frees, launches, fused_launches, library_calls, memsets, stream_synchronizations,                      \
      device_synchronizations, copies_direct, bytes_direct, copies_staged, bytes_staged, copies_within, bytes_within, \
      copies_from_pageable, copies_from_pinned, bytes_from_host, copies_to_host, bytes_to_host, graph_launches

enum Counter { GPUS_COUNTERS, counters };

void count(Counter counter, long times = 1);
void count_name(const std::string& kernel_or_call);  // how often each has run, by its name
void fault(const std::string& text);                 // what is wrong; a test that meets it fails

}  // namespace gpus
