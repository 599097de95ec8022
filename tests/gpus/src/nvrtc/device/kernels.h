// After a kernel's source: what runs its kernels, by their names.
#pragma once

#include <dlfcn.h>

#include "../../shared/fused.h"

#ifndef GPUS_VECTOR
#define GPUS_VECTOR 1  // elements that a kernel reads at once
#endif

namespace gpus {

template <class T> struct Parameter {
  static FusedArgument told(size_t) { return {sizeof(T), false, 0, 1}; }
};

template <class T> struct Parameter<T*> {
  static FusedArgument told(size_t elements) {
    size_t vector = sizeof(T) * GPUS_VECTOR;
    size_t read_at_once = vector < 16 ? vector : 16;  // more takes several reads
    return {sizeof(T*), true, elements * sizeof(T), read_at_once};
  }
};

// How many elements an array has whose op::Shape this is; 0 for an argument that is none.
template <class T>
auto elements_in(const void* argument, int) -> decltype(size_t(static_cast<const T*>(argument)->size)) {
  return static_cast<const T*>(argument)->size;
}
template <class T> size_t elements_in(const void*, long) { return 0; }
template <class T> size_t elements_told_by(const void* argument) { return elements_in<T>(argument, 0); }

template <int... places> struct Places {};
template <int n, int... places> struct PlacesTo : PlacesTo<n - 1, n - 1, places...> {};
template <int... places> struct PlacesTo<0, places...> {
  using type = Places<places...>;
};

template <class Function, Function* function> struct Runner;

template <class... Types, void (*function)(Types...)> struct Runner<void(Types...), function> {
  static const int count = sizeof...(Types);

  // A fused operator's kernel has the shapes of its arrays right before their pointers, in the same order.
  static FusedArgument argument(int place, void** arguments) {
    FusedArgument (*const parameters[])(size_t) = {Parameter<Types>::told..., nullptr};
    size_t (*const tells[])(const void*) = {elements_told_by<Types>..., nullptr};
    int pointers = 0;
    for (int other = 0; other < count; other++) pointers += parameters[other](0).pointer;
    int shape = place - pointers;
    return parameters[place](shape < 0 ? 0 : tells[shape](arguments[shape]));
  }

  static void run(const unsigned* grid, const unsigned* block, void** arguments) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
      for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
          run_block(block, arguments, typename PlacesTo<count>::type());
  }

 private:
  template <int... places> static void run_block(const unsigned* block, void** arguments, Places<places...>) {
    for (threadIdx.z = 0; threadIdx.z < block[2]; threadIdx.z++)
      for (threadIdx.y = 0; threadIdx.y < block[1]; threadIdx.y++)
        for (threadIdx.x = 0; threadIdx.x < block[0]; threadIdx.x++)
          function(*static_cast<Types*>(arguments[places])...);
  }
};

template <class Function, Function* function> FusedKernel kernel(const char* expression) {
  Dl_info found = {};
  dladdr(reinterpret_cast<void*>(function), &found);
  using Run = Runner<Function, function>;
  return {expression, found.dli_sname, Run::count, Run::argument, Run::run};
}

}  // namespace gpus

#define GPUS_KERNEL(expression, ...) gpus::kernel<decltype(__VA_ARGS__), __VA_ARGS__>(expression),
