// A kernel's source, compiled for the CPU by g++ into a library that the driver can load.
#pragma once

#include <string>
#include <vector>

namespace gpus {

struct Source {
  std::string name;                      // "fused_op_kernel.cu"
  std::string text;                      // as NVRTC was given it
  std::vector<std::string> expressions;  // names of kernels that are asked for
};

struct Compiled {
  std::string library;  // its path; empty if the source is wrong
  std::string digest;   // of all that goes into it; the library has it as its name
  std::string log;      // what is wrong, in NVRTC's form
};

// Libraries are kept, by digest: each source is compiled once on a machine, whoever asks.
// Several processes may at once.
Compiled compile(const Source& source);

}  // namespace gpus
