// Streams and events, for the libraries that hand them out: libcudart and what stands on it.
#pragma once

#include "gpus.h"

namespace gpus {

// On the current device; blocking: the legacy default stream waits for it.
cudaStream_t make_stream(bool blocking);
void end_stream(cudaStream_t stream);   // once it is done
void synchronize(cudaStream_t stream);  // wait for all that is queued on it
void synchronize_device(int device);    // and on all others of this device
int device_of(cudaStream_t stream);     // of the legacy default stream: the current device

cudaEvent_t make_event();
void end_event(cudaEvent_t event);
void record(cudaEvent_t event, cudaStream_t stream);
// What is queued from now on waits for what was recorded last.
void wait_for(cudaStream_t stream, cudaEvent_t event);

}  // namespace gpus
