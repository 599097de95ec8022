#include "table.h"

#include <mutex>

#include "host_loops.h"
#include "types.h"

namespace gpus {
namespace {

std::map<std::string, Kernel>& table() {
  static auto& kernels = *new std::map<std::string, Kernel>;
  return kernels;
}

std::string trimmed(const std::string& text) {
  size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// The parts between commas that stand in no bracket.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (char letter : text) {
    if (letter == '<' || letter == '(' || letter == '{') depth++;
    if (letter == '>' || letter == ')' || letter == '}') depth--;
    if (letter == ',' && depth == 0) {
      parts.push_back(trimmed(part));
      part.clear();
    } else {
      part += letter;
    }
  }
  if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  return parts;
}

// Where the bracket that closes at `end` opens.
size_t opening(const std::string& text, size_t end, char open, char close) {
  int depth = 0;
  for (size_t at = end + 1; at-- > 0;) {
    if (text[at] == close) depth++;
    if (text[at] == open && --depth == 0) return at;
  }
  return std::string::npos;
}

void remove_all(std::string& text, const std::string& word) {
  for (size_t at; (at = text.find(word)) != std::string::npos;) text.erase(at, word.size());
}

// "mshadow::expr::Plan<A, B>::Inner<3>": the word is Inner, and its argument 3.
Type parse_type(std::string text) {
  Type type;
  while (!text.empty() && (text.back() == '*' || text.back() == '&' || text.back() == ' ')) {
    type.pointer = type.pointer || text.back() == '*';
    text.pop_back();
  }
  type.text = text;
  remove_all(type.text, " const");
  std::string head = type.text;
  if (!head.empty() && head.back() == '>') {
    size_t open = opening(head, head.size() - 1, '<', '>');
    for (const std::string& argument : split(head.substr(open + 1, head.size() - open - 2)))
      type.arguments.push_back(parse_type(argument));
    head = head.substr(0, open);
  }
  size_t colon = head.rfind("::");
  type.word = colon == std::string::npos ? head : head.substr(colon + 2);
  return type;
}

// Where the parameters of a call begin: the last bracket pair of the text.
size_t parameters_of(const std::string& text) { return opening(text, text.rfind(')'), '(', ')'); }

const KernelName& parsed(const std::string& demangled) {
  static std::mutex& lock = *new std::mutex;
  static auto& names = *new std::map<std::string, KernelName>;
  std::lock_guard<std::mutex> guard(lock);
  auto found = names.find(demangled);
  if (found == names.end()) found = names.emplace(demangled, parse_kernel_name(demangled)).first;
  return found->second;
}

}  // namespace

KernelName parse_kernel_name(const std::string& demangled) {
  KernelName name;
  name.text = demangled;
  size_t open = parameters_of(demangled);
  std::string head = demangled.substr(0, open);
  if (head.rfind("void ", 0) == 0) head = head.substr(5);
  name.kernel = parse_type(head);
  if (open != std::string::npos)
    for (const std::string& parameter : split(demangled.substr(open + 1, demangled.rfind(')') - open - 1)))
      name.parameters.push_back(parse_type(parameter));
  return name;
}

void* Launch::pointer(int place, size_t elements) const {
  void* address = value<void*>(place);
  const Type& type = parameter(place);
  check(address, elements * size_of(type), type.word == "half2_t" ? 2 * size_of(type) : 1);
  return address;
}

void Launch::check(const void* address, size_t bytes, size_t at_once) const {
  legal_ = check_access(address, bytes, device, name.text, at_once) && legal_;
}

size_t size_of(const Type& type) {
  size_t bytes = 0;
  visit(type, [&](auto element) { bytes = sizeof element; });
  return bytes;
}

Registered::Registered(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) table()[entry.word] = entry.kernel;
}

Work kernel_work(const std::string& demangled, void** arguments, dim3 grid, dim3 block, int device) {
  Launch launch(parsed(demangled), arguments, grid, block, device);
  const Type& kernel = launch.name.kernel;
  auto found = table().find(kernel.word);
  if (found == table().end() && kernel.word.rfind("mxnet_generic_kernel", 0) == 0 && !kernel.arguments.empty())
    found = table().find(launch.operation().word);
  Work work = found == table().end() ? Work() : found->second(launch);
  if (!work) work = host_loop(launch);
  return work && !launch.legal() ? [] {} : work;
}

}  // namespace gpus
