// The algorithms that are offered for convolutions. All compute the same, with sums in other orders,
// and in other memory.
#pragma once

#include "convolution.h"

namespace gpus {

enum class Direction { FORWARD, DATA, FILTER };

struct Algorithm {
  int number;  // cuDNN's
  bool deterministic;
  bool needs_workspace;
};

// The algorithm of this number, or nullptr.
const Algorithm* find_algorithm(Direction direction, int number);

// What it needs: the columns of an image, at most 1 MiB.
size_t workspace_bytes(const Algorithm& algorithm, const ConvolutionProblem& problem);

// How an algorithm computes: one that is not deterministic has another order each time.
Arithmetic arithmetic(const Algorithm& algorithm, const ConvolutionProblem& problem);

}  // namespace gpus
