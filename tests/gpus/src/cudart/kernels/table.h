// Kernels of libmxnet.so, found by their demangled names.
//
// A name such as
//
//   void mxnet::op::mxnet_op::mxnet_generic_kernel<
//       mxnet::op::mxnet_op::op_with_req<mxnet::op::mshadow_op::plus, 1>, float*, float*, float*>(
//       int, float*, float*, float*)
//
// is taken apart once. The table has an entry for each kernel by the last word before "<", here
// mxnet_generic_kernel, and one for each operation that mxnet_generic_kernel carries out, by that of its
// first argument, here op_with_req.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "gpus.h"

namespace gpus {

// A type or a template with its arguments: "mshadow::Shape<2>" has the word "Shape" and the argument "2".
struct Type {
  std::string text;             // all of it, without "const"
  std::string word;             // its last word before "<": "Shape", "float", "2"
  std::vector<Type> arguments;  // those of that template
  bool pointer = false;         // "float*"; its text and word are those of what it points to
};

struct KernelName {
  std::string text;
  Type kernel;                   // the function, with its template arguments
  std::vector<Type> parameters;  // of the call
};

KernelName parse_kernel_name(const std::string& demangled);

// A kernel that is launched: its name, and where its arguments lie,
// whose values are copied before the call returns.
class Launch {
 public:
  Launch(const KernelName& name, void** arguments, dim3 grid, dim3 block, int device)
      : name(name), grid(grid), block(block), device(device), arguments_(arguments) {}

  // The value of an argument. A pointer is checked: the device must be allowed to reach `elements` of it.
  template <class T> T value(int place) const { return *static_cast<T*>(arguments_[place]); }
  void* pointer(int place, size_t elements = 0) const;
  template <class T> T* array(int place, size_t elements = 0) const {
    return static_cast<T*>(pointer(place, elements));
  }
  // For a pointer that an argument holds. At the end of its block a kernel may go on to a multiple of
  // `at_once`.
  void check(const void* address, size_t bytes, size_t at_once = 1) const;
  bool legal() const { return legal_; }  // whether it may reach all pointers so far
  const void* raw(int place) const { return arguments_[place]; }
  int count() const { return static_cast<int>(name.parameters.size()); }
  const Type& parameter(int place) const { return name.parameters[place]; }

  // For mxnet_generic_kernel<OPERATION, ...>(int n, ...): the operation, and n.
  const Type& operation() const { return name.kernel.arguments[0]; }
  int n() const { return value<int>(0); }
  int elements() const { return parameter(1).word == "half2_t" ? 2 * n() : n(); }  // of the first array: pairs are two

  const KernelName& name;
  const dim3 grid, block;
  const int device;

 private:
  void** arguments_;
  mutable bool legal_ = true;
};

// What a launch does, with all arguments read; nothing where this form of the kernel is not known.
using Kernel = Work (*)(const Launch&);

// Each file of kernels has one, which enters them into the table: const Registered registered{{"pick", pick}, ...};
struct Registered {
  struct Entry {
    const char* word;
    Kernel kernel;
  };
  Registered(std::initializer_list<Entry> entries);
};

// The work of a launch; nothing for an unknown kernel.
Work kernel_work(const std::string& demangled, void** arguments, dim3 grid, dim3 block, int device);

}  // namespace gpus
