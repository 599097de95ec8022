// What the updates of parameters share (optimizer_op-inl.h, contrib/adamw-inl.h).
#pragma once

#include "arguments.h"

namespace gpus {

template <class C> C clipped(C value, C bound) {  // a negative bound is none
  return bound >= 0 ? value > bound ? bound : value < -bound ? -bound : value : value;
}

template <class C> C sign(C value) { return static_cast<C>((value > 0) - (value < 0)); }

// A kernel is Updates<T>::update, where T, the type of the weights, is that of argument `place`.
// Computed<T> is what is computed in.
#define UPDATE(kernel, update, place)                                                                \
  const Registered registered_##kernel {                                                             \
    {                                                                                                \
      #kernel, [](const Launch& launch) {                                                            \
        return typed_real(launch.parameter(place),                                                   \
                          [&](auto element) { return Updates<decltype(element)>::update(launch); }); \
      }                                                                                              \
    }                                                                                                \
  }

}  // namespace gpus
