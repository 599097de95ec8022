#include "compile.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "fused_libraries.h"

#ifndef GPUS_SOURCES
#error "GPUS_SOURCES is the folder src, where device/ lies below nvrtc/: Makefile"
#endif

extern char** environ;

namespace gpus {
namespace {

const std::string NAMES = "__nv_name_map";  // as NVRTC calls the place of name expressions
const std::string HEADERS = GPUS_SOURCES "/nvrtc/device/";
// As the kernels of libmxnet.so are compiled here: sums keep their order, and nothing is contracted.
const std::vector<std::string> FLAGS = {"-x",
                                        "c++",
                                        "-std=c++17",
                                        "-O2",
                                        "-march=native",
                                        "-ffp-contract=off",
                                        "-fno-math-errno",
                                        "-fno-strict-aliasing",
                                        "-fPIC",
                                        "-fno-semantic-interposition",
                                        "-shared",
                                        "-w",
                                        "-fdiagnostics-color=never",
                                        "-fno-diagnostics-show-caret"};

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// FNV-1a's 64 bits from two beginnings: enough for the sources of some tests.
std::string digest_of(const std::string& text) {
  uint64_t parts[] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
  for (uint64_t& part : parts)
    for (unsigned char letter : text) part = (part ^ letter) * 0x100000001b3u;
  char digits[33];
  snprintf(digits, sizeof digits, "%016lx%016lx", (unsigned long)parts[0], (unsigned long)parts[1]);
  return digits;
}

// MXNet's source has two instructions of PTX, which say how float16 is converted.
std::string without_ptx(std::string text) {
  static const std::regex to_half(
      R"code(asm\("\{\s*cvt\.rn\.f16\.f32 %0, %1;\}\\n" : "=h"\(([^)]*)\) : "f"\(([^)]*)\)\))code");
  static const std::regex to_float(
      R"code(asm\("\{\s*cvt\.f32\.f16 %0, %1;\}\\n" : "=f"\(([^)]*)\) : "h"\(([^)]*)\)\))code");
  text = std::regex_replace(text, to_half, "$1 = gpus_to_half($2)");
  return std::regex_replace(text, to_float, "$1 = gpus_to_float($2)");
}

// The kernels that can be asked for: those of the expressions, and those with C's names.
std::set<std::string> kernels_of(const Source& source) {
  std::set<std::string> names(source.expressions.begin(), source.expressions.end());
  static const std::regex plain(R"(extern\s+"C"\s+__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?void\s+(\w+))");
  for (std::sregex_iterator found(source.text.begin(), source.text.end(), plain), end; found != end; ++found)
    names.insert((*found)[1]);
  return names;
}

std::string for_the_cpu(const Source& source) {
  std::ostringstream text;
  text << "#include \"" << HEADERS << "words.h\"\n#line 1 \"" << source.name << "\"\n"
       << without_ptx(source.text) << "\n";
  if (source.text.find("static const int nvec = ") != std::string::npos) text << "#define GPUS_VECTOR nvec\n";
  text << "#include \"" << HEADERS << "kernels.h\"\n"
       << "extern \"C\" const gpus::FusedKernel* gpus_fused_kernels() {\n"
       << "static const gpus::FusedKernel all[] = {\n";
  for (const std::string& name : kernels_of(source))
    text << "#line 2 \"" << NAMES << "\"\nGPUS_KERNEL(\"" << name << "\", " << name << ")\n";
  text << "{}};\nreturn all;\n}\n";
  return text.str();
}

// Beside our own libraries.
std::string make_folder() {
  std::string folder = fused_folder();
  mkdir(folder.c_str(), 0777);
  return folder;
}

// g++ writes what it has to say into `said`. Its exit status; -1: it cannot be started.
int run_compiler(const std::string& from, const std::string& to, const std::string& said) {
  std::vector<std::string> words = {"g++"};
  words.insert(words.end(), FLAGS.begin(), FLAGS.end());
  for (const std::string& word : {from, std::string("-o"), to}) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 2, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&files, 2, 1);
  std::vector<char*> variables = {const_cast<char*>("LC_ALL=C")};  // plain quotation marks
  for (char** variable = environ; *variable; variable++)
    if (strncmp(*variable, "LC_ALL=", 7)) variables.push_back(*variable);
  variables.push_back(nullptr);
  pid_t child;
  int refused = posix_spawnp(&child, "g++", &files, nullptr, arguments.data(), variables.data()), status = 0;
  posix_spawn_file_actions_destroy(&files);
  if (refused) return -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// g++ says "k.cu:2:7: error: 'y' was not declared in this scope"; NVRTC says
// "k.cu(2): error: identifier "y" is undefined".
std::string in_nvrtcs_form(const std::string& said, const std::string& name) {
  static const std::regex error(R"(^([^:]*):(\d+):\d+: (?:fatal )?error: (.*)$)"),
      unknown("^.(\\w+). was not declared.*$");
  std::istringstream lines(said);
  std::string log;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (!std::regex_match(line, parts, error)) continue;
    if (parts[1] != name && parts[1] != NAMES) continue;  // what follows from it
    std::string what = std::regex_replace(std::string(parts[3]), unknown, "identifier \"$1\" is undefined");
    log += std::string(parts[1]) + "(" + std::string(parts[2]) + "): error: " + what + "\n\n";
    number++;
  }
  if (number == 0) return said;
  log += std::to_string(number) + (number == 1 ? " error" : " errors");
  return log + " detected in the compilation of \"" + name + "\".\n";
}

}  // namespace

Compiled compile(const Source& source) {
  std::string text = for_the_cpu(source);
  std::string digest = digest_of(text + content(HEADERS + "words.h") + content(HEADERS + "kernels.h"));
  std::string base = make_folder() + "/" + digest, library = base + ".so";
  if (access(library.c_str(), R_OK) == 0) return {library, digest, ""};
  static std::atomic<int> number{0};
  std::string mine = base + "." + std::to_string(getpid()) + "-" + std::to_string(number++);
  std::string made = mine + ".so";
  std::ofstream(mine + ".cpp") << text;
  std::ofstream(mine + ".cu") << source.text;
  int status = run_compiler(mine + ".cpp", made, mine + ".log");
  std::string said = content(mine + ".log");
  for (const char* end : {".cpp", ".log"}) unlink((mine + end).c_str());
  if (status == 0) {
    // Another process may have made the same: each is whole, and the last one stays.
    // The source stays for those who look.
    rename((mine + ".cu").c_str(), (base + ".cu").c_str());
    rename(made.c_str(), library.c_str());
    return {library, digest, ""};
  }
  unlink((mine + ".cu").c_str());
  if (status < 0) said = "nvrtc: error: the simulated GPUs need g++, which cannot be started\n";
  return {"", digest, in_nvrtcs_form(said, source.name)};
}

}  // namespace gpus
