// Libraries of kernels that were compiled at run time: NVRTC makes them, and the driver runs them.
#pragma once

#include <string>

#include "fused.h"

namespace gpus {

std::string fused_folder();                                    // beside our own libraries
const FusedKernel* fused_kernels(const std::string& library);  // nullptr, and a fault: it cannot be loaded

}  // namespace gpus
