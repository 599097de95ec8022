// The machine, read once from the file that SIMULATED_GPUS names: a line for each thing, words between
// blanks.
//
//   driver 535.183.01
//   gpu 7 0 17179869184 00000000:00:17.0 GPU-5d1c... Tesla V100-SXM2-16GB
//   nvlink 0 3 2          (GPUs 0 and 3 have two links)
//   no_peers 0 5          (neither may read the other's memory)
//   delay_us 200
//   patience_s 20
//   seed 7
//   counts_only
//   tf32
//   promise_peers
//   changes_copies 1 2    (from GPU 1 to GPU 2)
//   forgets_kernels 3
//   hangs 2
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "gpus.h"

namespace gpus {
namespace {

thread_local int current = 0;

[[noreturn]] void refuse(const std::string& why) {
  fprintf(stderr, "simulated GPUs: %s\n", why.c_str());
  exit(86);
}

struct Pair {
  size_t a, b;
  int links;  // 0: no peers
};

void read_line(const std::string& line, Machine& machine, std::vector<Pair>& pairs) {
  std::istringstream words(line);
  std::string what;
  if (!(words >> what)) return;
  if (what == "driver") {
    words >> machine.driver;
  } else if (what == "gpu") {
    Gpu gpu;
    words >> gpu.major >> gpu.minor >> gpu.memory >> gpu.bus >> gpu.uuid >> std::ws;
    std::getline(words, gpu.name);
    machine.gpus.push_back(gpu);
  } else if (what == "nvlink") {
    Pair pair;
    words >> pair.a >> pair.b >> pair.links;
    pairs.push_back(pair);
  } else if (what == "no_peers") {
    Pair pair{0, 0, 0};
    words >> pair.a >> pair.b;
    pairs.push_back(pair);
  } else if (what == "patience_s") {
    words >> machine.patience_s;
  } else if (what == "delay_us") {
    words >> machine.delay_us;
  } else if (what == "seed") {
    words >> machine.seed;
  } else if (what == "counts_only") {
    machine.computes = false;
  } else if (what == "tf32") {
    machine.tf32 = true;
  } else if (what == "promise_peers") {
    machine.promises_peers = true;
  } else if (what == "changes_copies") {
    std::pair<int, int> pair;
    words >> pair.first >> pair.second;
    machine.defects.copies.push_back(pair);
  } else if (what == "forgets_kernels" || what == "hangs") {
    int gpu = 0;
    words >> gpu;
    (what == "hangs" ? machine.defects.hanging : machine.defects.forgetful).push_back(gpu);
  } else {
    refuse("a line that says nothing here: " + line);
  }
  if (words.fail()) refuse("a line that lacks something: " + line);
}

Machine read_machine() {
  Machine machine;
  std::vector<Pair> pairs;
  const char* path = getenv("SIMULATED_GPUS");
  if (path == nullptr) refuse("SIMULATED_GPUS names no file: it describes the machine, see tests/gpus/machines.py");
  std::ifstream file(path);
  if (!file) refuse(std::string("cannot read ") + path + ", which SIMULATED_GPUS names");
  for (std::string line; std::getline(file, line);) read_line(line, machine, pairs);
  size_t number = machine.gpus.size();
  machine.nvlinks.assign(number, std::vector<int>(number, 0));
  machine.peers.assign(number, std::vector<bool>(number, true));
  for (const Pair& pair : pairs) {
    if (pair.a >= number || pair.b >= number) refuse("a pair of GPUs that are not there");
    machine.nvlinks[pair.a][pair.b] = machine.nvlinks[pair.b][pair.a] = pair.links;
    machine.peers[pair.a][pair.b] = machine.peers[pair.b][pair.a] = pair.links > 0;
  }
  return machine;
}

// As CUDA counts them before CUDA_VISIBLE_DEVICES chooses: the fastest first, here the newest,
// or along the bus.
std::vector<int> in_cuda_order() {
  const std::vector<Gpu>& gpus = machine().gpus;
  std::vector<int> order;
  for (size_t gpu = 0; gpu < gpus.size(); gpu++) order.push_back(gpu);
  const char* wanted = getenv("CUDA_DEVICE_ORDER");
  if (wanted && !strcmp(wanted, "PCI_BUS_ID")) return order;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return gpus[a].major * 10 + gpus[a].minor > gpus[b].major * 10 + gpus[b].minor;
  });
  return order;
}

// As CUDA reads it: numbers or beginnings of UUIDs; what comes after one that does not exist is ignored.
std::vector<int> read_visible() {
  const std::vector<int> order = in_cuda_order();
  std::vector<int> seen;
  const char* wanted = getenv("CUDA_VISIBLE_DEVICES");
  if (wanted == nullptr) return order;
  std::istringstream words(wanted);
  for (std::string word; std::getline(words, word, ',');) {
    int found = -1;
    for (size_t number = 0; number < order.size(); number++) {
      bool named = word.rfind("GPU-", 0) == 0 && machine().gpus[order[number]].uuid.rfind(word, 0) == 0;
      if (word == std::to_string(number) || named) found = order[number];
    }
    if (found < 0) break;
    for (int gpu : seen)
      if (gpu == found) return {};
    seen.push_back(found);
  }
  return seen;
}

}  // namespace

const Machine& machine() {
  static const Machine& machine = *new Machine(read_machine());
  return machine;
}

const std::vector<int>& visible() {
  static const std::vector<int>& seen = *new std::vector<int>(read_visible());
  return seen;
}

const Gpu& gpu(int device) { return machine().gpus[visible()[device]]; }

bool may_be_peers(int device, int other) {
  return device != other && machine().peers[visible()[device]][visible()[other]];
}

int newest_cuda() {
  int branch = atoi(machine().driver.c_str());
  if (branch >= 550) return 12040;
  if (branch >= 535) return 12020;
  if (branch >= 525) return 12000;
  if (branch >= 520) return 11080;
  if (branch >= 515) return 11070;
  if (branch >= 510) return 11060;
  if (branch >= 495) return 11050;
  if (branch >= 470) return 11040;
  if (branch >= 465) return 11030;
  if (branch >= 460) return 11020;
  return branch >= 450 ? 11000 : 10020;
}

int current_device() { return current; }
void set_current_device(int device) { current = device; }

}  // namespace gpus
