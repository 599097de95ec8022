// libnvToolsExt.so.1: names for stretches of time, for NVIDIA's profilers. MXNet's own profiler gives them,
// and nobody listens here.
#include <cstdint>

extern "C" {

uint64_t nvtxRangeStartA(const char*) { return 1; }
void nvtxRangeEnd(uint64_t) {}
}
