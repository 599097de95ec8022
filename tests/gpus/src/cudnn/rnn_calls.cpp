// The calls of recurrent networks. All sequences of a batch have the same length,
// and no layer drops anything out.
#include <algorithm>
#include <memory>

#include "rnn.h"
#include "views.h"

namespace gpus {
namespace {

constexpr size_t WORKSPACE_BYTES = 1024;

struct Rnn {
  RnnShape shape;
  float dropped = 0;
  bool projects = false, clips = false;
};

// x or y: (steps, batch, width).
struct Sequences {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int steps = 0, batch = 0, width = 0;
  bool of_one_length = true;

  size_t elements() const { return size_t(steps) * batch * width; }
};

Rnn& described(cudnnRNNDescriptor_t it) { return *reinterpret_cast<Rnn*>(it); }
Sequences& described(cudnnRNNDataDescriptor_t it) { return *reinterpret_cast<Sequences*>(it); }

Tensor flat(cudnnDataType_t type, size_t elements) {
  Tensor tensor;
  tensor.type = type;
  tensor.sizes[4] = elements;
  for (ptrdiff_t& stride : tensor.strides) stride = 1;
  return tensor;
}

size_t bytes_kept(const RnnShape& shape, cudnnDataType_t type) {
  return shape.reserve() * (type == CUDNN_DATA_DOUBLE ? sizeof(double) : sizeof(float));
}

// Numbers that may not be there, in what is computed with.
template <class T> class Read {
 public:
  Read(cudnnDataType_t type, size_t elements, const void* address) {
    if (address) input_.reset(new Input<T>(flat(type, elements), address));
  }
  const Computed<T>* values() const { return input_ ? input_->values() : nullptr; }

 private:
  std::unique_ptr<Input<T>> input_;
};

template <class T> class Written {
 public:
  Written(cudnnDataType_t type, size_t elements, void* address, double keep = 0) : tensor_(flat(type, elements)) {
    Blend blend;
    blend.beta = keep;
    if (address) output_.reset(new Output<T>(tensor_, address, blend));
  }
  Computed<T>* values() { return output_ ? output_->values() : nullptr; }
  void write() {
    if (output_) output_->write();
  }

 private:
  Tensor tensor_;
  std::unique_ptr<Output<T>> output_;
};

class RnnCall : public DnnCall {
 public:
  RnnCall(const char* name, cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const Sequences& x)
      : DnnCall(name, handle), shape(described(rnn).shape), type(x.type) {
    shape.steps = x.steps;
    shape.batch = x.batch;
    shape.width = x.width;
    const Rnn& it = described(rnn);
    if (it.projects || it.clips) refuse("a recurrent network with projections or limits, which is not there");
    if (it.dropped > 0 && shape.layers > 1)
      refuse("a recurrent network with dropout between its layers, which is not there");
    if (!x.of_one_length) refuse("sequences of several lengths, which are not there");
  }

  void reaches_elements(const void* address, size_t elements) const { reaches(address, elements * size_of(type)); }
  void reaches_states(std::initializer_list<const void*> states) const {
    for (const void* state : states) reaches_elements(state, shape.states());
  }

  // Whether the workspace and the reserve are as large as was said.
  bool is_roomy(void* space, size_t bytes, void* reserve, size_t reserved) const {
    reaches(space, WORKSPACE_BYTES);
    if (reserve) reaches(reserve, bytes_kept(shape, type));
    return bytes >= WORKSPACE_BYTES && (reserve == nullptr || reserved >= bytes_kept(shape, type));
  }

  RnnShape shape;
  cudnnDataType_t type;
};

struct States {
  const void *h0, *c0;
  void *h, *c;
};

// With no reserve what training would keep is forgotten.
cudnnStatus_t forward(const RnnCall& call, const void* w, const void* x, void* y, States states, void* reserve) {
  RnnShape it = call.shape;
  cudnnDataType_t type = call.type;
  call.reaches_elements(w, it.weights());
  call.reaches_elements(x, it.places() * it.width);
  call.reaches_elements(y, it.outputs());
  call.reaches_states({states.h0, states.c0, states.h, states.c});
  return call.does_with(type, [=](auto element) {
    using T = decltype(element);
    using C = Computed<T>;
    Read<T> weights(type, it.weights(), w), in(type, it.places() * it.width, x);
    Read<T> h0(type, it.states(), states.h0), c0(type, it.states(), states.c0);
    Written<T> out(type, it.outputs(), y), h(type, it.states(), states.h), c(type, it.states(), states.c);
    std::unique_ptr<C[]> forgotten(reserve ? nullptr : new C[it.reserve()]);
    rnn_forward(it, weights.values(), in.values(), h0.values(), c0.values(), out.values(), h.values(), c.values(),
                reserve ? static_cast<C*>(reserve) : forgotten.get());
    for (Written<T>* result : {&out, &h, &c}) result->write();
  });
}

}  // namespace

extern "C" {

DESCRIPTOR(RNN, Rnn)
DESCRIPTOR(RNNData, Sequences)

cudnnStatus_t cudnnSetRNNDescriptor_v6(cudnnHandle_t, cudnnRNNDescriptor_t rnn, const int hidden, const int layers,
                                       cudnnDropoutDescriptor_t dropout, cudnnRNNInputMode_t input,
                                       cudnnDirectionMode_t direction, cudnnRNNMode_t mode, cudnnRNNAlgo_t,
                                       cudnnDataType_t) {
  if (input != CUDNN_LINEAR_INPUT) return CUDNN_STATUS_NOT_SUPPORTED;
  described(rnn) = {{mode, hidden, layers, direction == CUDNN_BIDIRECTIONAL ? 2 : 1}, gpus::described(dropout).share};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNMatrixMathType(cudnnRNNDescriptor_t, cudnnMathType_t) { return CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnSetRNNPaddingMode(cudnnRNNDescriptor_t, unsigned) { return CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnSetRNNProjectionLayers(cudnnHandle_t, cudnnRNNDescriptor_t rnn, const int, const int) {
  described(rnn).projects = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNSetClip(cudnnHandle_t, cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t mode, cudnnNanPropagation_t,
                              double, double) {
  described(rnn).clips = mode != CUDNN_RNN_CLIP_NONE;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int steps, int batch, int width,
                                        const int* lengths, void*) {
  if (layout == CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED) return CUDNN_STATUS_NOT_SUPPORTED;
  described(data) = {type, steps, batch, width,
                     std::all_of(lengths, lengths + batch, [=](int it) { return it == steps; })};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNParamsSize(cudnnHandle_t, const cudnnRNNDescriptor_t rnn, const cudnnTensorDescriptor_t x,
                                    size_t* bytes, cudnnDataType_t type) {
  RnnShape shape = described(rnn).shape;
  shape.width = gpus::described(x).sizes[1];
  *bytes = shape.weights() * size_of(type);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWorkspaceSize(cudnnHandle_t, const cudnnRNNDescriptor_t, const int,
                                       const cudnnTensorDescriptor_t*, size_t* bytes) {
  *bytes = WORKSPACE_BYTES;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNTrainingReserveSize(cudnnHandle_t, const cudnnRNNDescriptor_t rnn, const int steps,
                                             const cudnnTensorDescriptor_t* x, size_t* bytes) {
  RnnShape shape = described(rnn).shape;
  shape.steps = steps;
  shape.batch = gpus::described(*x).sizes[0];
  *bytes = bytes_kept(shape, gpus::described(*x).type);
  return CUDNN_STATUS_SUCCESS;
}

#define ATTENTION                                                                                                     \
  const cudnnRNNDataDescriptor_t, const void*, const cudnnRNNDataDescriptor_t, void*, const cudnnRNNDataDescriptor_t, \
      void*, const cudnnRNNDataDescriptor_t, void*  // reserved, NVIDIA says

cudnnStatus_t cudnnRNNForwardTrainingEx(cudnnHandle_t handle, const cudnnRNNDescriptor_t rnn,
                                        const cudnnRNNDataDescriptor_t xd, const void* x, const cudnnTensorDescriptor_t,
                                        const void* hx, const cudnnTensorDescriptor_t, const void* cx,
                                        const cudnnFilterDescriptor_t, const void* w, const cudnnRNNDataDescriptor_t,
                                        void* y, const cudnnTensorDescriptor_t, void* hy, const cudnnTensorDescriptor_t,
                                        void* cy, ATTENTION, void* space, size_t bytes, void* reserve,
                                        size_t reserved) {
  RnnCall call("cudnnRNNForwardTrainingEx", handle, rnn, described(xd));
  if (reserve == nullptr || !call.is_roomy(space, bytes, reserve, reserved)) return CUDNN_STATUS_BAD_PARAM;
  return forward(call, w, x, y, {hx, cx, hy, cy}, reserve);
}

cudnnStatus_t cudnnRNNForwardInferenceEx(cudnnHandle_t handle, const cudnnRNNDescriptor_t rnn,
                                         const cudnnRNNDataDescriptor_t xd, const void* x,
                                         const cudnnTensorDescriptor_t, const void* hx, const cudnnTensorDescriptor_t,
                                         const void* cx, const cudnnFilterDescriptor_t, const void* w,
                                         const cudnnRNNDataDescriptor_t, void* y, const cudnnTensorDescriptor_t,
                                         void* hy, const cudnnTensorDescriptor_t, void* cy, ATTENTION, void* space,
                                         size_t bytes) {
  RnnCall call("cudnnRNNForwardInferenceEx", handle, rnn, described(xd));
  if (!call.is_roomy(space, bytes, nullptr, 0)) return CUDNN_STATUS_BAD_PARAM;
  return forward(call, w, x, y, {hx, cx, hy, cy}, nullptr);
}

cudnnStatus_t cudnnRNNBackwardDataEx(cudnnHandle_t handle, const cudnnRNNDescriptor_t rnn,
                                     const cudnnRNNDataDescriptor_t, const void* y, const cudnnRNNDataDescriptor_t,
                                     const void* dy, const cudnnRNNDataDescriptor_t, const void*,
                                     const cudnnTensorDescriptor_t, const void* dhy, const cudnnTensorDescriptor_t,
                                     const void* dcy, const cudnnFilterDescriptor_t, const void* w,
                                     const cudnnTensorDescriptor_t, const void* hx, const cudnnTensorDescriptor_t,
                                     const void* cx, const cudnnRNNDataDescriptor_t dxd, void* dx,
                                     const cudnnTensorDescriptor_t, void* dhx, const cudnnTensorDescriptor_t, void* dcx,
                                     const cudnnRNNDataDescriptor_t, void*, void* space, size_t bytes, void* reserve,
                                     size_t reserved) {
  RnnCall call("cudnnRNNBackwardDataEx", handle, rnn, described(dxd));
  if (reserve == nullptr || !call.is_roomy(space, bytes, reserve, reserved)) return CUDNN_STATUS_BAD_PARAM;
  RnnShape it = call.shape;
  cudnnDataType_t type = call.type;
  call.reaches_elements(w, it.weights());
  call.reaches_elements(dx, it.places() * it.width);
  for (const void* output : {y, dy}) call.reaches_elements(output, it.outputs());
  call.reaches_states({dhy, dcy, hx, cx, dhx, dcx});
  return call.does_with(type, [=](auto element) {
    using T = decltype(element);
    Read<T> weights(type, it.weights(), w), out(type, it.outputs(), dy), h(type, it.states(), dhy),
        c(type, it.states(), dcy);
    Read<T> h0(type, it.states(), hx), c0(type, it.states(), cx);
    Written<T> in(type, it.places() * it.width, dx), to_h(type, it.states(), dhx), to_c(type, it.states(), dcx);
    rnn_data_gradient(it, weights.values(), out.values(), h.values(), c.values(), h0.values(), c0.values(), in.values(),
                      to_h.values(), to_c.values(), static_cast<Computed<T>*>(reserve));
    for (Written<T>* result : {&in, &to_h, &to_c}) result->write();
  });
}

cudnnStatus_t cudnnRNNBackwardWeightsEx(cudnnHandle_t handle, const cudnnRNNDescriptor_t rnn,
                                        const cudnnRNNDataDescriptor_t xd, const void* x, const cudnnTensorDescriptor_t,
                                        const void* hx, const cudnnRNNDataDescriptor_t, const void* y, void* space,
                                        size_t bytes, const cudnnFilterDescriptor_t, void* dw, void* reserve,
                                        size_t reserved) {
  RnnCall call("cudnnRNNBackwardWeightsEx", handle, rnn, described(xd));
  if (reserve == nullptr || !call.is_roomy(space, bytes, reserve, reserved)) return CUDNN_STATUS_BAD_PARAM;
  RnnShape it = call.shape;
  cudnnDataType_t type = call.type;
  call.reaches_elements(x, it.places() * it.width);
  call.reaches_elements(y, it.outputs());
  call.reaches_elements(dw, it.weights());
  call.reaches_states({hx});
  return call.does_with(type, [=](auto element) {
    using T = decltype(element);
    using C = Computed<T>;
    Read<T> in(type, it.places() * it.width, x), h0(type, it.states(), hx);
    Written<T> gradient(type, it.weights(), dw, 1);
    std::fill_n(gradient.values(), it.weights(), C(0));
    rnn_weight_gradient(it, in.values(), h0.values(), gradient.values(), static_cast<const C*>(reserve));
    gradient.write();
  });
}
}

}  // namespace gpus
