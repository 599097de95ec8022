// The parts of expressions, as they are evaluated.
#pragma once

#include "operations.h"
#include "plans.h"
#include "reducers.h"
#include "remaps.h"

namespace gpus {

template <class C> struct TensorPlan : Plan<C> {
  Access<C> access;
  const void* data;
  int stride;
  void block(int row, int column, int n, C* out) const override {
    access.load(access.at(data, static_cast<long>(row) * stride + column), 1, n, out);
  }
};

template <class C> struct NumberPlan : Plan<C> {
  C value;
  void block(int, int, int n, C* out) const override { std::fill(out, out + n, value); }
};

template <class C> struct RangePlan : Plan<C> {
  C start, step;
  int repeat;
  void block(int, int column, int n, C* out) const override {
    for (int i = 0; i < n; i++) out[i] = start + static_cast<C>((column + i) / repeat) * step;
  }
};

template <class C> struct UnaryPlan : Plan<C> {
  Unary<C> function;
  bool rounds;
  SharedPlan<C> source;
  void block(int row, int column, int n, C* out) const override {
    C values[BLOCK];
    source->block(row, column, n, values);
    function(values, out, n);
    if (rounds) round_to_half(out, n);
  }
};

template <class C> struct BinaryPlan : Plan<C> {
  Binary<C> function;
  bool rounds;
  SharedPlan<C> left, right;
  void block(int row, int column, int n, C* out) const override {
    C a[BLOCK], b[BLOCK];
    left->block(row, column, n, a);
    right->block(row, column, n, b);
    function(a, b, out, n);
    if (rounds) round_to_half(out, n);
  }
};

// From numbers S to C, by way of the type that the cast names.
template <class C, class S> struct CastPlan : Plan<C> {
  Access<S> store;
  Access<C> load;
  SharedPlan<S> source;
  void block(int row, int column, int n, C* out) const override {
    S values[BLOCK];
    double elements[BLOCK];  // of any type: none is larger
    source->block(row, column, n, values);
    store.store(elements, n, values, WRITE);
    load.load(elements, 1, n, out);
  }
};

template <class C> struct RemappedPlan : Plan<C> {
  Remap remap;
  std::vector<int> numbers;
  SharedPlan<C> source;
  void block(int row, int column, int n, C* out) const override {
    for (int done = 0, run; done < n; done += run) {
      int first_row = row, first_column = column + done;
      remap(numbers.data(), first_row, first_column);
      for (run = 1; done + run < n; run++) {
        int next_row = row, next_column = column + done + run;
        remap(numbers.data(), next_row, next_column);
        if (next_row != first_row || next_column != first_column + run) break;
      }
      if (first_row == NOWHERE)
        std::fill(out + done, out + done + run, C(0));
      else
        source->block(first_row, first_column, run, out + done);
    }
  }
};

// A reduction along one axis; or the place of the largest or smallest element.
template <class C> struct ReducedPlan : Plan<C> {
  std::unique_ptr<Reducer<C>> reducer;
  bool wants_place;
  int last, trailing, size, source_last;
  SharedPlan<C> source;
  C element(long before, long behind, int k) const {
    long place = (before * size + k) * trailing + behind;
    return source->at(place / source_last, place % source_last);
  }
  void block(int row, int column, int n, C* out) const override {
    for (int i = 0; i < n; i++) {
      long place = static_cast<long>(row) * last + column + i;
      State<C> state = reducer->start();
      C result = state.value, best = 0;
      for (int k = 0; k < size; k++) {
        C value = element(place / trailing, place % trailing, k), old = result;
        reducer->add(state, &value, 1);
        result = reducer->finish(state);
        if (result != old && old == old) best = static_cast<C>(k);
      }
      out[i] = wants_place ? best : result;
    }
  }
};

// Reductions of windows, those at the end of an image cut off there.
template <class C> struct PooledPlan : Plan<C> {
  std::unique_ptr<Reducer<C>> reducer;
  int height, width, step_down, step_across, source_height, source_width, own_height;
  SharedPlan<C> source;
  void block(int row, int column, int n, C* out) const override {
    int top = row % own_height * step_down, image = row / own_height;
    for (int i = 0; i < n; i++) {
      int left = (column + i) * step_across;
      State<C> state = reducer->start();
      for (int y = top; y < std::min(top + height, source_height); y++)
        for (int x = left; x < std::min(left + width, source_width); x++) {
          C value = source->at(image * source_height + y, x);
          reducer->add(state, &value, 1);
        }
      out[i] = reducer->finish(state);
    }
  }
};

template <class C> struct ChoicePlan : Plan<C> {
  SharedPlan<C> source, index;
  void block(int, int column, int n, C* out) const override {
    for (int i = 0; i < n; i++) out[i] = source->at(column + i, static_cast<int>(index->at(0, column + i)));
  }
};

template <class C> struct FilledPlan : Plan<C> {
  SharedPlan<C> source, value, index;
  void block(int row, int column, int n, C* out) const override {
    source->block(row, column, n, out);
    int chosen = static_cast<int>(index->at(0, row)) - column;
    if (chosen >= 0 && chosen < n) out[chosen] = value->at(0, row);
  }
};

// Indices into an array, as those of the same elements in a transposed one.
template <class C> struct TransposedIndicesPlan : Plan<C> {
  std::vector<int> strides, shape;  // in the transposed array, of the axes that the indices have
  SharedPlan<C> indices;
  void block(int row, int column, int n, C* out) const override {
    indices->block(row, column, n, out);
    for (int i = 0; i < n; i++) {
      long index = static_cast<long>(out[i]), transposed = 0;
      for (size_t axis = shape.size(); axis-- > 0; index /= shape[axis])
        transposed += index % shape[axis] * strides[axis];
      out[i] = static_cast<C>(transposed);
    }
  }
};

template <class C> struct OneHotPlan : Plan<C> {
  SharedPlan<C> index;
  void block(int row, int column, int n, C* out) const override {
    int chosen = static_cast<int>(index->at(0, row));
    for (int i = 0; i < n; i++) out[i] = column + i == chosen;
  }
};

}  // namespace gpus
