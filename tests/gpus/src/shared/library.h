// What the calls of NVIDIA's libraries have in common: a handle that belongs to a device and a stream.
#pragma once

#include <string>

#include "gpus.h"

namespace gpus {

// What a library's handle is made for; each library adds its own settings.
struct Handle {
  int device = current_device();
  cudaStream_t stream = nullptr;
};

// Whether float32 products may be of factors that are rounded to TF32, where the call's own setting allows
// it: NVIDIA_TF32_OVERRIDE=0 forbids it to all of NVIDIA's libraries.
bool tf32_allowed();

// Another number each time and in each run: where the order of a sum depends on what the GPU does first.
size_t any_number();

// One call: it is counted, its pointers are checked before anything is queued, and then its work is.
class Call {
 public:
  Call(const char* name, const Handle& handle);

  // A fault, unless the call's device may reach so many bytes there.
  void reaches(const void* address, size_t bytes) const;

  // A fault for an argument that no real library takes, or none here: `what` says which.
  void refuse(const std::string& what) const;

  // Queue the work, if anything is computed on this machine.
  void does(Work work) const;

  const std::string name;
  const int device;

 private:
  cudaStream_t stream_;
};

}  // namespace gpus
