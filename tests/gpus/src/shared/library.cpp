#include "library.h"

namespace gpus {

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
