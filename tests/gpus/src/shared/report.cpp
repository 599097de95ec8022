// Counters and faults, which Python reads through the C functions at the end of this file.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

#include "gpus.h"

namespace gpus {
namespace {

std::atomic<long> numbers[counters];
// Never destroyed: threads of streams and of MXNet go on while the process ends.
std::mutex& lock = *new std::mutex;
std::map<std::string, long>& names = *new std::map<std::string, long>;
std::vector<std::string>& faults = *new std::vector<std::string>;

#define TEXT_OF(...) #__VA_ARGS__
#define EXPANDED_TEXT_OF(...) TEXT_OF(__VA_ARGS__)
constexpr const char* COUNTER_NAMES = EXPANDED_TEXT_OF(GPUS_COUNTERS);  // "allocations, frees, ..."

std::vector<std::string> counter_names() {
  std::istringstream text(COUNTER_NAMES);
  std::vector<std::string> found;
  for (std::string name; std::getline(text >> std::ws, name, ',');) found.push_back(name);
  return found;
}

// A process with faults that nobody has taken does not end well.
void at_exit() {
  std::lock_guard<std::mutex> guard(lock);
  if (faults.empty()) return;
  fflush(nullptr);
  _exit(86);
}

// The beginning of what fits into `buffer`; the whole length is returned, as snprintf does.
long text_into(const std::string& text, char* buffer, long size) { return snprintf(buffer, size, "%s", text.c_str()); }

}  // namespace

void count(Counter counter, long times) { numbers[counter] += times; }

void count_name(const std::string& kernel_or_call) {
  std::lock_guard<std::mutex> guard(lock);
  names[kernel_or_call]++;
}

void fault(const std::string& text) {
  std::lock_guard<std::mutex> guard(lock);
  static const int registered = atexit(at_exit);
  (void)registered;
  for (const std::string& known : faults)
    if (known == text) return;
  faults.push_back(text);
  fprintf(stderr, "simulated GPUs: %s\n", text.c_str());
}

}  // namespace gpus

extern "C" {

long gpus_counter(const char* name) {
  static const std::vector<std::string> names = gpus::counter_names();
  for (int counter = 0; counter < gpus::counters; counter++)
    if (names[counter] == name) return gpus::numbers[counter];
  return -1;
}

// Names of all counters, one a line.
long gpus_counters(char* buffer, long size) {
  std::string text;
  for (const std::string& name : gpus::counter_names()) text += name + "\n";
  return gpus::text_into(text, buffer, size);
}

// "12 mxnet::op::..." for each kernel and library call so far, one a line.
long gpus_names(char* buffer, long size) {
  std::lock_guard<std::mutex> guard(gpus::lock);
  std::string text;
  for (const auto& [name, times] : gpus::names) text += std::to_string(times) + " " + name + "\n";
  return gpus::text_into(text, buffer, size);
}

// The faults so far, one a line.
long gpus_faults(char* buffer, long size) {
  std::lock_guard<std::mutex> guard(gpus::lock);
  std::string text;
  for (const std::string& fault : gpus::faults) text += fault + "\n";
  return gpus::text_into(text, buffer, size);
}

void gpus_forget_faults() {
  std::lock_guard<std::mutex> guard(gpus::lock);
  gpus::faults.clear();
}

// What missing.py has the libraries call.
void gpus_missing(const char* name) { gpus::fault(std::string("unknown call: ") + name); }

// Waits, no longer than `patience_ms`, until no more than so many bytes of a GPU are in use; how many are
// then.
long gpus_bytes_left(int device, long bytes, long patience_ms) {
  gpus::wait_for_release(device, bytes, std::chrono::milliseconds(patience_ms));
  return (long)gpus::bytes_in_use(device);
}

long gpus_bytes_in_use(int device) { return (long)gpus::bytes_in_use(device); }
}
