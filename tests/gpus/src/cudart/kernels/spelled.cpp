// What a name was taken for, in words, so that a test can look at it.
#include <cstdio>

#include "table.h"

namespace gpus {
namespace {

// "Shape(2)*": the word, the arguments, and whether it is a pointer.
std::string spelled(const Type& type) {
  std::string text = type.word;
  if (!type.arguments.empty()) {
    text += "(";
    for (const Type& argument : type.arguments)
      text += (&argument == &type.arguments[0] ? "" : ",") + spelled(argument);
    text += ")";
  }
  return type.pointer ? text + "*" : text;
}

}  // namespace
}  // namespace gpus

// A line for the kernel, and one for each parameter. The length of all of it.
extern "C" int gpus_kernel_name(const char* demangled, char* out, long size) {
  gpus::KernelName name = gpus::parse_kernel_name(demangled);
  std::string text = gpus::spelled(name.kernel);
  for (const gpus::Type& parameter : name.parameters) text += "\n" + gpus::spelled(parameter);
  return snprintf(out, size, "%s", text.c_str());
}
