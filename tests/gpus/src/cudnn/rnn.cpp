#include "rnn.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "multiply.h"

namespace gpus {
namespace {

template <class T> T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }

// Where the weights of a layer and direction lie; T may be const.
template <class T> struct Weights {
  Weights(const RnnShape& it, int layer, int direction, T* all) {
    size_t at = 0, both = 0;
    for (int below = 0; below < it.layers; below++)
      for (int other = 0; other < it.directions; other++, both++) {
        if (below == layer && other == direction) {
          input = all + at;
          hidden = input + size_t(it.rows()) * it.inputs(layer);
          place_ = both;
        }
        at += size_t(it.rows()) * (it.inputs(below) + it.hidden);
      }
    input_bias = all + at + place_ * 2 * it.rows();
    hidden_bias = input_bias + it.rows();
  }

  T *input = nullptr, *hidden = nullptr, *input_bias, *hidden_bias;

 private:
  size_t place_ = 0;
};

// What is kept of a layer and direction: the gates after their functions, LSTM's cells or what GRU's reset
// gate is multiplied with, and the gradients of the gates' two sums. The layer's outputs,
// of all directions, stand before.
template <class T> struct Kept {
  Kept(const RnnShape& it, int layer, int direction, T* reserve) {
    size_t gate = it.places() * it.rows(), extra_size = it.places() * it.hidden, one = 3 * gate + extra_size;
    outputs = reserve + layer * (it.outputs() + it.directions * one);
    gates = outputs + it.outputs() + direction * one;
    extra = gates + gate;
    input_gradient = extra + extra_size;
    hidden_gradient = input_gradient + gate;
  }

  T *outputs, *gates, *extra, *input_gradient, *hidden_gradient;
};

// A walk over the steps of a direction, and the state that each begins with.
template <class T> struct Walk {
  const RnnShape& it;
  int layer, direction;
  const T* first;  // h0 of all layers, or nullptr
  std::vector<T> zeros;

  Walk(const RnnShape& it, int layer, int direction, const T* first)
      : it(it), layer(layer), direction(direction), first(first), zeros(it.hidden, T(0)) {}

  int step(int turn) const { return direction ? it.steps - 1 - turn : turn; }
  size_t state_at(int n) const {
    return (size_t(layer) * it.directions + direction) * it.state() + size_t(n) * it.hidden;
  }
  T* output(T* outputs, int turn, int n) const {
    return outputs + ((size_t(step(turn)) * it.batch + n) * it.directions + direction) * it.hidden;
  }
  const T* before(T* outputs, int turn, int n) const {
    if (turn) return output(outputs, turn - 1, n);
    return first ? first + state_at(n) : zeros.data();
  }
  // LSTM's cells lie place by place.
  const T* cell_before(const T* cells, const T* c0, int turn, int n) const {
    if (turn) return cells + (size_t(step(turn - 1)) * it.batch + n) * it.hidden;
    return c0 ? c0 + state_at(n) : zeros.data();
  }
};

// The gates at a place hold the sums of the inputs; `hidden` those of the state before.
template <class T>
void cell(const RnnShape& it, T* gates, const T* hidden, Weights<const T> w, const T* h, const T* c, T* extra, T* out) {
  int size = it.hidden;
  for (int k = 0; k < size; k++) {
    auto sum = [&](int gate) {
      int at = gate * size + k;
      return (gates[at] + w.input_bias[at]) + (hidden[at] + w.hidden_bias[at]);
    };
    if (it.mode == CUDNN_LSTM) {
      T in = sigmoid(sum(0)), forget = sigmoid(sum(1)), candidate = std::tanh(sum(2)), open = sigmoid(sum(3));
      extra[k] = forget * c[k] + in * candidate;
      out[k] = open * std::tanh(extra[k]);
      gates[k] = in, gates[size + k] = forget, gates[2 * size + k] = candidate, gates[3 * size + k] = open;
    } else if (it.mode == CUDNN_GRU) {
      int last = 2 * size + k;
      T reset = sigmoid(sum(0)), keep = sigmoid(sum(1));
      extra[k] = hidden[last] + w.hidden_bias[last];
      T candidate = std::tanh(gates[last] + w.input_bias[last] + reset * extra[k]);
      out[k] = (1 - keep) * candidate + keep * h[k];
      gates[k] = reset, gates[size + k] = keep, gates[last] = candidate;
    } else {
      gates[k] = out[k] = it.mode == CUDNN_RNN_TANH ? std::tanh(sum(0)) : std::max(sum(0), T(0));
    }
  }
}

// From the gradient `dh` of an output, and of LSTM's cell `dc`, those of the gates' sums; dh and dc become
// what goes to the step before directly.
template <class T>
void cell_gradient(const RnnShape& it, const T* gates, const T* extra, const T* h, const T* c, T* dh, T* dc, T* input,
                   T* hidden) {
  int size = it.hidden;
  for (int k = 0; k < size; k++) {
    if (it.mode == CUDNN_LSTM) {
      T in = gates[k], forget = gates[size + k], candidate = gates[2 * size + k], open = gates[3 * size + k];
      T shown = std::tanh(extra[k]);
      T cell = dc[k] + dh[k] * open * (1 - shown * shown);
      input[k] = cell * candidate * in * (1 - in);
      input[size + k] = cell * c[k] * forget * (1 - forget);
      input[2 * size + k] = cell * in * (1 - candidate * candidate);
      input[3 * size + k] = dh[k] * shown * open * (1 - open);
      for (int gate = 0; gate < 4; gate++) hidden[gate * size + k] = input[gate * size + k];
      dc[k] = cell * forget;
      dh[k] = 0;
    } else if (it.mode == CUDNN_GRU) {
      T reset = gates[k], keep = gates[size + k], candidate = gates[2 * size + k];
      T last = dh[k] * (1 - keep) * (1 - candidate * candidate);
      input[k] = hidden[k] = last * extra[k] * reset * (1 - reset);
      input[size + k] = hidden[size + k] = dh[k] * (h[k] - candidate) * keep * (1 - keep);
      input[2 * size + k] = last;
      hidden[2 * size + k] = last * reset;
      dh[k] *= keep;
    } else {
      T slope = it.mode == CUDNN_RNN_TANH ? 1 - gates[k] * gates[k] : T(gates[k] > 0);
      input[k] = hidden[k] = dh[k] * slope;
      dh[k] = 0;
    }
  }
}

}  // namespace

size_t RnnShape::weights() const {
  size_t number = 0;
  for (int layer = 0; layer < layers; layer++) number += size_t(directions) * rows() * (inputs(layer) + hidden + 2);
  return number;
}

size_t RnnShape::reserve() const {
  return layers * (outputs() + directions * (3 * places() * rows() + places() * hidden));
}

template <class T>
void rnn_forward(const RnnShape& it, const T* weights, const T* x, const T* h0, const T* c0, T* y, T* h, T* c,
                 T* reserve) {
  std::vector<T> hidden(size_t(it.batch) * it.rows()), before(it.state());
  for (int layer = 0; layer < it.layers; layer++)
    for (int direction = 0; direction < it.directions; direction++) {
      const T* input = layer ? Kept<T>(it, layer - 1, 0, reserve).outputs : x;
      Weights<const T> w(it, layer, direction, weights);
      Kept<T> kept(it, layer, direction, reserve);
      Walk<T> walk(it, layer, direction, h0);
      int inputs = it.inputs(layer);
      multiply<T>(it.places(), it.rows(), inputs, {input, inputs, 1}, {w.input, 1, inputs}, kept.gates);
      for (int turn = 0; turn < it.steps; turn++) {
        for (int n = 0; n < it.batch; n++)
          std::copy_n(walk.before(kept.outputs, turn, n), it.hidden, before.data() + size_t(n) * it.hidden);
        multiply<T>(it.batch, it.rows(), it.hidden, {before.data(), it.hidden, 1}, {w.hidden, 1, it.hidden},
                    hidden.data());
        for (int n = 0; n < it.batch; n++) {
          size_t place = size_t(walk.step(turn)) * it.batch + n;
          cell(it, kept.gates + place * it.rows(), hidden.data() + size_t(n) * it.rows(), w,
               before.data() + size_t(n) * it.hidden, walk.cell_before(kept.extra, c0, turn, n),
               kept.extra + place * it.hidden, walk.output(kept.outputs, turn, n));
        }
      }
      for (int n = 0; n < it.batch; n++) {
        if (h) std::copy_n(walk.before(kept.outputs, it.steps, n), it.hidden, h + walk.state_at(n));
        if (c) std::copy_n(walk.cell_before(kept.extra, c0, it.steps, n), it.hidden, c + walk.state_at(n));
      }
    }
  std::copy_n(Kept<T>(it, it.layers - 1, 0, reserve).outputs, it.outputs(), y);
}

template <class T>
void rnn_data_gradient(const RnnShape& it, const T* weights, const T* dy, const T* dh, const T* dc, const T* h0,
                       const T* c0, T* dx, T* dh0, T* dc0, T* reserve) {
  std::vector<T> above(dy, dy + it.outputs()), own, part, through(it.state()), cells(it.state());
  for (int layer = it.layers - 1; layer >= 0; layer--, above = own) {
    int inputs = it.inputs(layer);
    own.assign(it.places() * inputs, T(0));
    part.resize(own.size());
    for (int direction = 0; direction < it.directions; direction++) {
      Weights<const T> w(it, layer, direction, weights);
      Kept<T> kept(it, layer, direction, reserve);
      Walk<T> walk(it, layer, direction, h0);
      std::vector<T> state(it.state(), T(0));
      cells.assign(it.state(), T(0));
      if (dh) std::copy_n(dh + walk.state_at(0), it.state(), state.data());
      if (dc) std::copy_n(dc + walk.state_at(0), it.state(), cells.data());
      for (int turn = it.steps - 1; turn >= 0; turn--) {
        size_t first = size_t(walk.step(turn)) * it.batch;
        for (int n = 0; n < it.batch; n++) {
          size_t place = first + n;
          T* mine = state.data() + size_t(n) * it.hidden;
          const T* given = walk.output(above.data(), turn, n);
          for (int k = 0; k < it.hidden; k++) mine[k] += given[k];
          cell_gradient(it, kept.gates + place * it.rows(), kept.extra + place * it.hidden,
                        walk.before(kept.outputs, turn, n), walk.cell_before(kept.extra, c0, turn, n), mine,
                        cells.data() + size_t(n) * it.hidden, kept.input_gradient + place * it.rows(),
                        kept.hidden_gradient + place * it.rows());
        }
        multiply<T>(it.batch, it.hidden, it.rows(), {kept.hidden_gradient + first * it.rows(), it.rows(), 1},
                    {w.hidden, it.hidden, 1}, through.data());
        for (size_t at = 0; at < it.state(); at++) state[at] += through[at];
      }
      multiply<T>(it.places(), inputs, it.rows(), {kept.input_gradient, it.rows(), 1}, {w.input, inputs, 1},
                  part.data());
      for (size_t at = 0; at < own.size(); at++) own[at] += part[at];
      if (dh0) std::copy_n(state.data(), it.state(), dh0 + walk.state_at(0));
      if (dc0) std::copy_n(cells.data(), it.state(), dc0 + walk.state_at(0));
    }
  }
  std::copy(above.begin(), above.end(), dx);
}

template <class T>
void rnn_weight_gradient(const RnnShape& it, const T* x, const T* h0, T* gradient, const T* reserve) {
  T* kept_numbers = const_cast<T*>(reserve);  // Kept shows them; nothing is written
  std::vector<T> sums, before(it.places() * it.hidden);
  auto add = [&](const T* gates, const T* values, int columns, T* weights, T* bias) {
    sums.resize(size_t(it.rows()) * columns);
    multiply<T>(it.rows(), columns, it.places(), {gates, 1, it.rows()}, {values, columns, 1}, sums.data());
    for (size_t at = 0; at < sums.size(); at++) weights[at] += sums[at];
    for (size_t place = 0; place < it.places(); place++)
      for (int row = 0; row < it.rows(); row++) bias[row] += gates[place * it.rows() + row];
  };
  for (int layer = 0; layer < it.layers; layer++)
    for (int direction = 0; direction < it.directions; direction++) {
      const T* input = layer ? Kept<T>(it, layer - 1, 0, kept_numbers).outputs : x;
      Weights<T> w(it, layer, direction, gradient);
      Kept<T> kept(it, layer, direction, kept_numbers);
      Walk<T> walk(it, layer, direction, h0);
      for (int turn = 0; turn < it.steps; turn++)
        for (int n = 0; n < it.batch; n++)
          std::copy_n(walk.before(kept.outputs, turn, n), it.hidden,
                      before.data() + (size_t(walk.step(turn)) * it.batch + n) * it.hidden);
      add(kept.input_gradient, input, it.inputs(layer), w.input, w.input_bias);
      add(kept.hidden_gradient, before.data(), it.hidden, w.hidden, w.hidden_bias);
    }
}

#define INSTANCES(T)                                                                                                   \
  template void rnn_forward(const RnnShape&, const T*, const T*, const T*, const T*, T*, T*, T*, T*);                  \
  template void rnn_data_gradient(const RnnShape&, const T*, const T*, const T*, const T*, const T*, const T*, T*, T*, \
                                  T*, T*);                                                                             \
  template void rnn_weight_gradient(const RnnShape&, const T*, const T*, T*, const T*);
INSTANCES(float)
INSTANCES(double)

}  // namespace gpus
