// Streams and events.
#include "streams.h"

using namespace gpus;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = make_stream(true);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = make_stream(flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  end_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  gpus::count(stream_synchronizations);
  synchronize(stream);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  gpus::count(device_synchronizations);
  synchronize_device(current_device());
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = make_event();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  end_event(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  record(event, stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  wait_for(stream, event);
  return cudaSuccess;
}
}
