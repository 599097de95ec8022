#include "collective.h"

#include <algorithm>
#include <chrono>

#include "numbers.h"

namespace gpus {
namespace {

template <class Visitor> bool visit(ncclDataType_t type, Visitor&& visitor) {
  switch (type) {
    case ncclInt8: visitor(int8_t()); return true;
    case ncclUint8: visitor(uint8_t()); return true;
    case ncclInt32: visitor(int32_t()); return true;
    case ncclUint32: visitor(uint32_t()); return true;
    case ncclInt64: visitor(int64_t()); return true;
    case ncclUint64: visitor(uint64_t()); return true;
    case ncclFloat16: visitor(half()); return true;
    case ncclFloat32: visitor(float()); return true;
    case ncclFloat64: visitor(double()); return true;
    default: return false;
  }
}

template <class T> T combine(ncclRedOp_t operation, T a, T b) {
  using C = Computed<T>;
  if (operation == ncclProd) return static_cast<T>(C(a) * C(b));
  if (operation == ncclMax) return std::max(a, b);
  if (operation == ncclMin) return std::min(a, b);
  return static_cast<T>(C(a) + C(b));
}

template <class T> void reduce(const Collective& what, const std::vector<Buffers>& ranks) {
  size_t first = (what.root + 1) % ranks.size();
  const T* begin = static_cast<const T*>(ranks[first].send);
  std::vector<T> sum(begin, begin + what.count);
  for (size_t hop = 1; hop < ranks.size(); hop++) {
    const T* own = static_cast<const T*>(ranks[(first + hop) % ranks.size()].send);
    for (size_t at = 0; at < what.count; at++) sum[at] = combine(what.operation, sum[at], own[at]);
  }
  std::copy(sum.begin(), sum.end(), static_cast<T*>(ranks[what.root].receive));
}

}  // namespace

bool is_known(const Collective& what) { return bytes_of(what) != size_t(-1) && what.operation <= ncclMin; }

size_t bytes_of(const Collective& what) {
  size_t bytes = -1;
  visit(what.type, [&](auto element) { bytes = what.count * sizeof element; });
  return bytes;
}

void carry_out(const Collective& what, const std::vector<Buffers>& ranks) {
  if (what.count == 0) return;
  if (what.kind == Collective::REDUCE) {
    visit(what.type, [&](auto element) { reduce<decltype(element)>(what, ranks); });
    return;
  }
  for (const Buffers& rank : ranks)
    if (rank.receive != ranks[what.root].send) memmove(rank.receive, ranks[what.root].send, bytes_of(what));
}

void Meeting::call(int rank, const Collective& mine, Buffers buffers, const std::string& name) {
  std::lock_guard<std::mutex> guard(lock_);
  buffers_[rank] = buffers;
  called_[rank] = true;
  if (mine == what) return;
  fault(name + " of rank " + std::to_string(rank) + " differs from what other ranks call at the same time");
  over_ = true;  // nobody waits for what cannot be
  changed_.notify_all();
}

void Meeting::attend(int rank, const std::string& name) {
  std::unique_lock<std::mutex> guard(lock_);
  if (over_) return;
  if (++present_ == buffers_.size()) {
    carry_out(what, buffers_);
    over_ = true;
    changed_.notify_all();
    return;
  }
  if (changed_.wait_for(guard, std::chrono::duration<double>(machine().patience_s), [this] { return over_; })) return;
  fault(name + " of rank " + std::to_string(rank) + " waits for ever" + missing());
  over_ = true;
  changed_.notify_all();
}

std::string Meeting::missing() const {
  std::string ranks;
  for (size_t rank = 0; rank < called_.size(); rank++)
    if (!called_[rank]) ranks += " " + std::to_string(rank);
  return ranks.empty() ? ", as the stream of another rank does not come to it"
                       : ", as it is not called by rank" + ranks;
}

std::shared_ptr<Meeting> Clique::join(int rank, const Collective& what, Buffers buffers, const std::string& name) {
  std::shared_ptr<Meeting> meeting;
  {
    std::lock_guard<std::mutex> guard(lock_);
    long number = calls_[rank]++;
    auto& there = meetings_[number];
    if (!there) there = std::make_shared<Meeting>(what, ranks_);
    meeting = there;
    if (*std::min_element(calls_.begin(), calls_.end()) > number) meetings_.erase(number);
  }
  meeting->call(rank, what, buffers, name);
  return meeting;
}

}  // namespace gpus
