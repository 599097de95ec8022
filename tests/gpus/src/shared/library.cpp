#include "library.h"

#include <atomic>
#include <chrono>
#include <cstdlib>

namespace gpus {

bool tf32_allowed() {
  static const char* const override = getenv("NVIDIA_TF32_OVERRIDE");
  static const bool allowed = machine().tf32 && (override == nullptr || std::string(override) != "0");
  return allowed;
}

size_t any_number() {
  static std::atomic<size_t> state(std::chrono::steady_clock::now().time_since_epoch().count());
  size_t number = state.fetch_add(0x9E3779B97F4A7C15);  // splitmix64
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EB;
  return number ^ (number >> 31);
}

Call::Call(const char* name, const Handle& handle) : name(name), device(current_device()), stream_(handle.stream) {
  count(library_calls);
  count_name(name);
  if (handle.device != device)
    refuse("a handle of gpu " + std::to_string(handle.device) + " while gpu " + std::to_string(device) + " is current");
}

void Call::reaches(const void* address, size_t bytes) const { check_access(address, bytes, device, name); }

void Call::refuse(const std::string& what) const { fault(name + " is given " + what); }

void Call::does(Work work) const {
  if (machine().computes) queue(stream_, name, std::move(work));
}

}  // namespace gpus
