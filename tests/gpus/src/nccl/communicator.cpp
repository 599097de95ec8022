// libnccl.so.2: communicators of one process, groups of calls, and the collectives that libmxnet.so knows.
#include "collective.h"

using namespace gpus;

struct ncclComm : Handle {
  ncclComm(std::shared_ptr<Clique> clique, int rank, int on) : clique(clique), rank(rank) { device = on; }

  std::shared_ptr<Clique> clique;
  int rank;
};

namespace {

thread_local int depth = 0;  // of groups
thread_local std::vector<std::function<void()>> grouped;

// Calls of a group begin when it ends, so that one thread may call for several ranks.
void begin(std::function<void()> call) {
  if (depth)
    grouped.push_back(std::move(call));
  else
    call();
}

ncclResult_t start(const char* name, ncclComm_t comm, const Collective& what, Buffers buffers, cudaStream_t stream) {
  int before = current_device();
  set_current_device(comm->device);  // NCCL goes to the communicator's device
  Handle handle = *comm;
  handle.stream = stream;
  Call call(name, handle);
  bool root = comm->rank == what.root;
  ncclResult_t result = ncclSuccess;
  if (!is_known(what) || what.root < 0 || what.root >= (int)comm->clique->size()) {
    call.refuse("a type, an operation or a root that is not there");
    result = ncclInvalidArgument;
  } else {
    bool sends = what.kind == Collective::REDUCE || root, receives = what.kind == Collective::BROADCAST || root;
    if (sends) call.reaches(buffers.send, bytes_of(what));
    if (receives) call.reaches(buffers.receive, bytes_of(what));
    if (what.count && ((sends && !buffers.send) || (receives && !buffers.receive))) call.refuse("no address");
    auto begun = [comm, call, what, buffers] {
      auto meeting = comm->clique->join(comm->rank, what, buffers, call.name);
      int outside = current_device();
      set_current_device(comm->device);
      call.does([meeting, rank = comm->rank, name = call.name] { meeting->attend(rank, name); });
      set_current_device(outside);
    };
    begin(begun);
  }
  set_current_device(before);
  return result;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess           ? "no error"
         : result == ncclInvalidArgument ? "invalid argument"
                                         : "unknown result code";
}

ncclResult_t ncclCommInitAll(ncclComm_t* communicators, int number, const int* devices) {
  auto clique = std::make_shared<Clique>(number);
  for (int rank = 0; rank < number; rank++)
    for (int other = 0; devices && other < rank; other++)
      if (devices[rank] == devices[other]) return ncclInvalidUsage;
  for (int rank = 0; rank < number; rank++)
    communicators[rank] = new ncclComm(clique, rank, devices ? devices[rank] : rank);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth) return ncclSuccess;
  std::vector<std::function<void()>> calls;
  calls.swap(grouped);
  for (auto& call : calls) call();
  return ncclSuccess;
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return start("ncclReduce", comm, {Collective::REDUCE, count, type, operation, root}, {send, receive}, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return start("ncclBroadcast", comm, {Collective::BROADCAST, count, type, ncclSum, root}, {send, receive}, stream);
}

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return start("ncclBcast", comm, {Collective::BROADCAST, count, type, ncclSum, root}, {buffer, buffer}, stream);
}
}
