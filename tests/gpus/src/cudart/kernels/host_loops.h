// The loops over elements that libmxnet.so has for the CPU.
//
// mxnet_generic_kernel<OPERATION, ARGUMENTS...> calls OPERATION::Map for each i, and so does
// Kernel<OPERATION, cpu>::Launch, of which the library exports those that its compiler did not inline. For
// operations that are rare in training they save a second implementation: what the GPU's kernel does to each
// element is what the CPU's loop does.
#pragma once

#include "table.h"

namespace gpus {

// The loop for a kernel of which the table has none; nothing if the library has none, either, or one with
// arguments of types that are not known here.
Work host_loop(const Launch& launch);

}  // namespace gpus
