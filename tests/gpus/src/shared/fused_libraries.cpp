#include "fused_libraries.h"

#include <dlfcn.h>

#include "gpus.h"

namespace gpus {

std::string fused_folder() {
  Dl_info here = {};
  dladdr(reinterpret_cast<void*>(&fused_folder), &here);
  std::string path = here.dli_fname;
  size_t slash = path.rfind('/');
  return (slash == std::string::npos ? "." : path.substr(0, slash)) + "/fused";
}

const FusedKernel* fused_kernels(const std::string& library) {
  // Never closed: something of it may still be queued.
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto* kernels = loaded ? reinterpret_cast<FusedKernels*>(dlsym(loaded, "gpus_fused_kernels")) : nullptr;
  if (kernels == nullptr) fault("fused kernels that cannot be loaded: " + std::string(dlerror()));
  return kernels ? kernels() : nullptr;
}

}  // namespace gpus
