// cuDNN's handle.
#pragma once

#include <cudnn.h>

#include "library.h"

namespace gpus {

inline Handle& dnn(cudnnHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

}  // namespace gpus
