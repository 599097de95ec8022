// Memory of GPUs is the host's, with an owner, and full of NaN when it is new.
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "gpus.h"

namespace gpus {
namespace {

constexpr size_t ALIGNMENT = 512;  // cudaMalloc's
constexpr int NAN_BYTE = 0xFF;     // four of them are a NaN of float32, two one of float16, eight one of float64
constexpr size_t KEPT_BYTES = size_t(1) << 28;  // of freed blocks, whose addresses nobody else gets meanwhile

struct Block {
  size_t bytes;
  int owner;
  bool freed;
};

std::mutex& lock = *new std::mutex;
std::map<const char*, Block>& blocks = *new std::map<const char*, Block>;
std::deque<char*>& freed = *new std::deque<char*>;
size_t freed_bytes = 0;
std::condition_variable& released = *new std::condition_variable;
std::map<int, size_t>& in_use = *new std::map<int, size_t>;
std::map<std::pair<int, int>, bool>& enabled = *new std::map<std::pair<int, int>, bool>;

// The block that holds an address, or nullptr. With the lock held.
std::pair<const char* const, Block>* find(const void* address) {
  auto after = blocks.upper_bound(static_cast<const char*>(address));
  if (after == blocks.begin()) return nullptr;
  auto& found = *std::prev(after);
  bool inside = address == found.first || static_cast<const char*>(address) < found.first + found.second.bytes;
  return inside ? &found : nullptr;
}

void* new_block(size_t bytes, int owner) {
  void* address = nullptr;
  // Kernels that take several elements at once write beyond the last, and read NaN there.
  size_t whole = (bytes / ALIGNMENT + 1) * ALIGNMENT;
  if (posix_memalign(&address, ALIGNMENT, whole)) return nullptr;
  if (owner != PINNED && machine().computes) memset(address, NAN_BYTE, whole);
  std::lock_guard<std::mutex> guard(lock);
  blocks[static_cast<char*>(address)] = {bytes, owner, false};
  in_use[owner] += bytes;
  return address;
}

// The oldest freed blocks are given back for good.
void forget_freed() {
  while (freed_bytes > KEPT_BYTES) {
    auto block = blocks.find(freed.front());
    freed_bytes -= block->second.bytes;
    free(freed.front());
    freed.pop_front();
    blocks.erase(block);
  }
}

std::string place(int owner) {
  return owner == PAGEABLE ? "the host" : owner == PINNED ? "the host, pinned" : "gpu " + std::to_string(owner);
}

// What is wrong with the access, or an empty text.
std::string wrong(const void* address, size_t bytes, int device, size_t at_once) {
  std::lock_guard<std::mutex> guard(lock);
  auto* block = find(address);
  if (block == nullptr) return "pageable memory of the host";
  if (block->second.freed) return "memory of " + place(block->second.owner) + " that is freed";
  size_t reachable = (block->second.bytes + at_once - 1) / at_once * at_once;
  if (static_cast<const char*>(address) + bytes > block->first + reachable)
    return std::to_string(bytes) + " bytes, of which there are fewer in its block";
  int owner = block->second.owner;
  if (owner == device || owner == PINNED || enabled[{device, owner}]) return "";
  return "memory of " + place(owner) + " without peer access";
}

}  // namespace

void* allocate(size_t bytes, int device) {
  {
    std::lock_guard<std::mutex> guard(lock);
    if (in_use[device] + bytes > gpu(device).memory) return nullptr;
  }
  count(allocations);
  return new_block(bytes, device);
}

void* allocate_pinned(size_t bytes) { return new_block(bytes, PINNED); }

void release(void* block) {
  if (block == nullptr) return;
  count(frees);
  std::unique_lock<std::mutex> guard(lock);
  auto found = blocks.find(static_cast<char*>(block));
  if (found == blocks.end() || found->second.freed) {
    guard.unlock();
    fault(found == blocks.end() ? "something is freed that was not allocated" : "memory is freed twice");
    return;
  }
  found->second.freed = true;
  in_use[found->second.owner] -= found->second.bytes;
  freed.push_back(static_cast<char*>(block));
  freed_bytes += found->second.bytes;
  released.notify_all();
  // What still reads it gets NaN, whatever it thinks to read.
  if (machine().computes) memset(block, NAN_BYTE, found->second.bytes);
  forget_freed();
}

int owner(const void* address) {
  std::lock_guard<std::mutex> guard(lock);
  auto* block = find(address);
  return block == nullptr || block->second.freed ? PAGEABLE : block->second.owner;
}

size_t bytes_in_use(int device) {
  std::lock_guard<std::mutex> guard(lock);
  return in_use[device];
}

bool wait_for_release(int device, size_t bytes, std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> guard(lock);
  return released.wait_for(guard, patience, [&] { return in_use[device] <= bytes; });
}

bool check_access(const void* address, size_t bytes, int device, const std::string& who, size_t at_once) {
  if (address == nullptr) return true;
  std::string what = wrong(address, bytes, device, at_once);
  if (!what.empty()) fault("illegal access: " + who + " on gpu " + std::to_string(device) + " reaches " + what);
  return what.empty();
}

cudaError_t enable_peer_access(int device, int other) {
  if (!may_be_peers(device, other)) return cudaErrorPeerAccessUnsupported;
  std::lock_guard<std::mutex> guard(lock);
  bool& access = enabled[{device, other}];
  if (access) return cudaErrorPeerAccessAlreadyEnabled;
  access = true;
  return cudaSuccess;
}

cudaError_t disable_peer_access(int device, int other) {
  std::lock_guard<std::mutex> guard(lock);
  bool& access = enabled[{device, other}];
  if (!access) return cudaErrorPeerAccessNotEnabled;
  access = false;
  return cudaSuccess;
}

bool peer_access(int device, int other) {
  std::lock_guard<std::mutex> guard(lock);
  return enabled[{device, other}];
}

}  // namespace gpus
