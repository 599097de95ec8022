// How the driver finds and runs the kernels of a source that NVRTC was given and g++ has compiled for the
// CPU: each such library has the function gpus_fused_kernels. It is included there, too,
// and so it includes nothing of ours.
#pragma once

#include <stddef.h>

namespace gpus {

// What a kernel wants at one place of its call.
struct FusedArgument {
  size_t bytes;  // of the argument itself
  bool pointer;
  size_t reach;      // of a pointer: to how many bytes; 0: that is not known
  size_t alignment;  // of a pointer: its address must be a multiple of so many bytes
};

struct FusedKernel {
  const char* expression;  // what nvrtcAddNameExpression was given
  const char* lowered;     // the mangled name
  int count;               // of arguments
  FusedArgument (*argument)(int place, void** arguments);
  // All threads, one after the other.
  void (*run)(const unsigned* grid, const unsigned* block, void** arguments);
};

// The kernels of a library; after the last, one without an expression.
using FusedKernels = const FusedKernel*();

// In the PTX, before the digest of the source: the library has the digest as its name,
// in the folder that fused_folder() tells.
constexpr char FUSED_MARK[] = "// simulated GPUs: ";

}  // namespace gpus
