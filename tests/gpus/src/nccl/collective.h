// Collective operations: what each rank of a clique calls, and what is done once all have.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "library.h"

namespace gpus {

// What all ranks must agree on.
struct Collective {
  enum Kind { REDUCE, BROADCAST } kind;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t operation;
  int root;

  bool operator==(const Collective& other) const {
    return kind == other.kind && count == other.count && type == other.type && operation == other.operation &&
           root == other.root;
  }
};

struct Buffers {
  const void* send;
  void* receive;
};

// Whether there are numbers of this type, and a sum or the like.
bool is_known(const Collective& what);
size_t bytes_of(const Collective& what);

// What comes of it, in the order of a ring that ends at the root: float16 is rounded at each rank,
// as NCCL adds it.
void carry_out(const Collective& what, const std::vector<Buffers>& ranks);

// One operation of all ranks. It is done by the stream that comes last; the others wait for it,
// as NCCL's kernels do.
class Meeting {
 public:
  Meeting(const Collective& what, size_t ranks) : what(what), buffers_(ranks), called_(ranks) {}

  // A rank has made the call, in the order of its calls.
  void call(int rank, const Collective& mine, Buffers buffers, const std::string& name);

  // A rank's stream has come to it.
  void attend(int rank, const std::string& name);

  const Collective what;

 private:
  std::string missing() const;

  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<Buffers> buffers_;
  std::vector<bool> called_;
  size_t present_ = 0;
  bool over_ = false;
};

// All communicators of one ncclCommInitAll. The n-th call of a rank meets the n-th of the others.
class Clique {
 public:
  explicit Clique(size_t ranks) : ranks_(ranks), calls_(ranks) {}

  std::shared_ptr<Meeting> join(int rank, const Collective& what, Buffers buffers, const std::string& name);

  size_t size() const { return ranks_; }

 private:
  const size_t ranks_;
  std::mutex lock_;
  std::vector<long> calls_;  // so many has each rank made
  std::map<long, std::shared_ptr<Meeting>> meetings_;
};

}  // namespace gpus
