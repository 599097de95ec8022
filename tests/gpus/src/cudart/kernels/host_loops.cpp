#include "host_loops.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "types.h"

namespace gpus {
namespace {

using Loops = std::unordered_map<std::string, const void*>;  // by their demangled names, without spaces

std::string without_spaces(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

// The tables of a library's symbols, which is in memory.
struct Symbols {
  const ElfW(Sym) * first = nullptr;
  const char* names = nullptr;
  size_t count = 0;

  explicit Symbols(const dl_phdr_info& library) {
    const uint32_t* hashes = nullptr;
    for (int i = 0; i < library.dlpi_phnum; i++) {
      if (library.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
      auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
      for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) first = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
        if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
        if (entry->d_tag == DT_GNU_HASH) hashes = reinterpret_cast<const uint32_t*>(entry->d_un.d_ptr);
      }
    }
    if (first && names && hashes) count = count_of(hashes);
  }

  // A table of hashes does not say how many symbols there are: the last one ends the chain that begins last.
  static size_t count_of(const uint32_t* table) {
    uint32_t buckets = table[0], offset = table[1], bloom = table[2];
    const uint32_t* bucket = table + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
    const uint32_t* chain = bucket + buckets;
    uint32_t last = *std::max_element(bucket, bucket + buckets);
    if (last < offset) return offset;
    while (!(chain[last - offset] & 1)) last++;
    return last + 1;
  }
};

int add_loops(dl_phdr_info* library, size_t, void* found) {
  if (!strstr(library->dlpi_name, "libmxnet.so")) return 0;
  Symbols symbols(*library);
  for (size_t i = 0; i < symbols.count; i++) {
    const char* name = symbols.names + symbols.first[i].st_name;
    if (!symbols.first[i].st_value || !strstr(name, "mxnet_op6KernelI") || !strstr(name, "3cpuEE6LaunchI")) continue;
    int status;
    std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), free);
    if (text)
      (*static_cast<Loops*>(found))[without_spaces(text.get())] =
          reinterpret_cast<const void*>(library->dlpi_addr + symbols.first[i].st_value);
  }
  return 1;
}

const Loops& loops() {
  static const Loops& all = *[] {
    auto* found = new Loops;
    dl_iterate_phdr(add_loops, found);
    return found;
  }();
  return all;
}

// What the CPU's loop is called: Launch<ARGUMENTS>(Stream*, n, ARGUMENTS) instead of
// mxnet_generic_kernel<OPERATION, ARGUMENTS>.
std::string loop_name(const std::string& kernel) {
  const std::string begin = "void mxnet::op::mxnet_op::mxnet_generic_kernel<", end = ">(int, ";
  size_t parameters = kernel.find(end, begin.size());
  if (kernel.rfind(begin, 0) != 0 || parameters == std::string::npos) return "";
  size_t operation_end = begin.size();
  for (int depth = 0; kernel[operation_end] != ',' || depth; operation_end++)
    depth += (kernel[operation_end] == '<' || kernel[operation_end] == '(') -
             (kernel[operation_end] == '>' || kernel[operation_end] == ')');
  std::string operation = kernel.substr(begin.size(), operation_end - begin.size());
  std::string arguments = kernel.substr(operation_end + 1, parameters - operation_end - 1);
  return without_spaces("bool mxnet::op::mxnet_op::Kernel<" + operation + ", mshadow::cpu>::Launch<" + arguments +
                        ">(mshadow::Stream<mshadow::cpu>*, unsigned long, " + kernel.substr(parameters + end.size()));
}

// The registers and the stack of a call, as the System V ABI of x86-64 fills them.
class Call {
 public:
  // False: how this type is passed is not known.
  bool add(const Type& type, const void* value) {
    if (type.pointer) return add_word(*static_cast<const uint64_t*>(value));
    if (type.word == "float" || type.word == "double") return add_float(value, type.word == "float" ? 4 : 8);
    if (type.word == "Shape" ||
        (type.word == "StaticArray" && type.arguments[0].word == "int" && !type.arguments[0].pointer))
      return add_held(type, value);
    if (type.word == "unsigned long") return add_word(*static_cast<const uint64_t*>(value));
    if (type.word == "OpReqType" || type.word == "unsigned int") return add_word(*static_cast<const uint32_t*>(value));
    size_t size = size_of(type);  // a small number is extended to a word
    if (size == 0 || type.word == "half2_t") return false;
    uint64_t word = 0;
    memcpy(&word, value, size);
    if (type.word == "int") word = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(word)));
    if (type.word == "signed char") word = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(word)));
    return add_word(word);
  }

  bool add_word(uint64_t word) {
    if (words_ < words.size()) {
      words[words_++] = word;
      return true;
    }
    return add_to_stack(word);
  }

  void operator()(const void* function) const {
    using W = uint64_t;
    using Function = void (*)(W, W, W, W, W, W, double, double, double, double, double, double, double, double, W, W, W,
                              W, W, W, W, W, W, W, W, W);
    const auto& w = words;
    const auto& s = stack;
    const auto& f = floats;
    reinterpret_cast<Function>(const_cast<void*>(function))(w[0], w[1], w[2], w[3], w[4], w[5], f[0], f[1], f[2], f[3],
                                                            f[4], f[5], f[6], f[7], s[0], s[1], s[2], s[3], s[4], s[5],
                                                            s[6], s[7], s[8], s[9], s[10], s[11]);
  }

 private:
  bool add_float(const void* value, size_t size) {
    uint64_t bits = 0;
    memcpy(&bits, value, size);
    if (floats_ == floats.size()) return add_to_stack(bits);
    memcpy(&floats[floats_++], &bits, sizeof bits);
    return true;
  }

  bool add_to_stack(uint64_t word) {
    if (stack_ == stack.size()) return false;
    stack[stack_++] = word;
    return true;
  }

  // A class with a copy constructor of its own: the caller's copy is what is passed.
  bool add_held(const Type& type, const void* value) {
    size_t numbers = type.word == "Shape" ? atoi(type.arguments[0].word.c_str()) : atoi(type.arguments[1].word.c_str());
    auto copy =
        std::make_shared<std::vector<int>>(static_cast<const int*>(value), static_cast<const int*>(value) + numbers);
    held_.push_back(copy);
    return add_word(reinterpret_cast<uint64_t>(copy->data()));
  }

  std::array<uint64_t, 6> words{};
  std::array<double, 8> floats{};
  std::array<uint64_t, 12> stack{};
  size_t words_ = 0, floats_ = 0, stack_ = 0;
  std::vector<std::shared_ptr<std::vector<int>>> held_;
};

}  // namespace

Work host_loop(const Launch& launch) {
  auto found = loops().find(loop_name(launch.name.text));
  if (found == loops().end()) return {};
  Call call;
  call.add_word(0);  // the stream
  call.add_word(launch.n());
  for (int place = 1; place < launch.count(); place++) {
    if (launch.parameter(place).pointer) launch.check(launch.value<void*>(place), 0);
    if (!call.add(launch.parameter(place), launch.raw(place))) return {};
  }
  return [call, function = found->second] { call(function); };
}

}  // namespace gpus
