// Convolutions and their gradients, as products of matrices.
#pragma once

#include "columns.h"
#include "multiply.h"
#include "views.h"

namespace gpus {

struct ConvolutionProblem {
  Tensor x, w, y;
  Convolution how;

  Geometry geometry() const;
  bool fits() const;  // whether y has the sizes that x, w and the convolution give it
};

// Of dense arrays, as Input and Output hold them; T: float or double.
template <class T> void convolve(const ConvolutionProblem& it, const T* x, const T* w, T* y, Arithmetic how);
template <class T>
void convolution_data_gradient(const ConvolutionProblem& it, const T* w, const T* dy, T* dx, Arithmetic how);
template <class T>
void convolution_filter_gradient(const ConvolutionProblem& it, const T* x, const T* dy, T* dw, Arithmetic how);

}  // namespace gpus
