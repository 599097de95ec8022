// Recurrent networks: LSTM, GRU and the plain ones, in layers, forwards or both ways.
#pragma once

#include "descriptors.h"

namespace gpus {

// Arrays are (steps, batch, width), states (layers * directions, batch, hidden). The weights of a layer and
// direction are (gates * hidden, inputs) and (gates * hidden, hidden), one after the other; behind all of
// them two biases (gates * hidden) each.
struct RnnShape {
  cudnnRNNMode_t mode;
  int hidden, layers, directions;
  int steps = 0, batch = 0, width = 0;

  int gates() const { return mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1; }
  int rows() const { return gates() * hidden; }
  int inputs(int layer) const { return layer ? directions * hidden : width; }
  size_t places() const { return size_t(steps) * batch; }
  size_t state() const { return size_t(batch) * hidden; }  // of a layer and direction
  size_t states() const { return layers * directions * state(); }
  size_t outputs() const { return places() * directions * hidden; }
  size_t weights() const;
  size_t reserve() const;  // numbers that training keeps
};

// What a forward pass keeps and a backward pass adds. T: float or double; null states are zeros,
// and null results nobody's.
template <class T>
void rnn_forward(const RnnShape& it, const T* weights, const T* x, const T* h0, const T* c0, T* y, T* h, T* c,
                 T* reserve);
template <class T>
void rnn_data_gradient(const RnnShape& it, const T* weights, const T* dy, const T* dh, const T* dc, const T* h0,
                       const T* c0, T* dx, T* dh0, T* dc0, T* reserve);
// Added to what is there.
template <class T> void rnn_weight_gradient(const RnnShape& it, const T* x, const T* h0, T* gradient, const T* reserve);

}  // namespace gpus
