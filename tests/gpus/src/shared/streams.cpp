#include "streams.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

namespace gpus {
namespace {

constexpr unsigned ONE_IN = 4;  // so many things begin at once for each that is late

// Delays are the machine's, until a test asks for others.
struct Delays {
  std::atomic<int> most_us;
  std::atomic<unsigned> seed;
};

Delays& delays() {
  static Delays& delays = *new Delays{{machine().delay_us}, {machine().seed}};
  return delays;
}

// A thread that does what is queued, in order.
class Stream {
 public:
  Stream(int device, bool blocking, unsigned number)
      : device(device), blocking(blocking), number_(number), thread_([this] { run(); }) {}

  ~Stream() {
    {
      std::lock_guard<std::mutex> guard(lock_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void queue(Work work) {
    {
      std::lock_guard<std::mutex> guard(lock_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock<std::mutex> guard(lock_);
    idle_.wait(guard, [this] { return queue_.empty() && !busy_; });
  }

  const int device;
  const bool blocking;

 private:
  void run() {
    set_current_device(device);
    std::unique_lock<std::mutex> guard(lock_);
    while (true) {
      changed_.wait(guard, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Work work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      guard.unlock();
      be_late();
      work();
      work = nullptr;
      guard.lock();
      busy_ = false;
      if (queue_.empty()) idle_.notify_all();
    }
  }

  // A GPU that hangs takes what is queued, and does nothing.
  void be_late() {
    for (int hanging : machine().defects.hanging)
      while (visible()[device] == hanging) std::this_thread::sleep_for(std::chrono::hours(1));
    int most = delays().most_us;
    unsigned seed = delays().seed * 1000003u + number_;
    if (seed != seed_) random_.seed(seed_ = seed);
    if (most && random_() % ONE_IN == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % most));
  }

  const unsigned number_;
  unsigned seed_ = std::mt19937::default_seed;
  std::mt19937 random_;
  std::mutex lock_;
  std::condition_variable changed_, idle_;
  std::deque<Work> queue_;
  bool busy_ = false, ending_ = false;
  std::thread thread_;
};

std::mutex& lock = *new std::mutex;
std::set<Stream*>& streams = *new std::set<Stream*>;
unsigned made = 0;

// nullptr, cudaStreamLegacy and cudaStreamPerThread, which MXNet does not use.
bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

Stream* cast(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }

std::vector<Stream*> streams_of(int device, bool all) {
  std::lock_guard<std::mutex> guard(lock);
  std::vector<Stream*> found;
  for (Stream* stream : streams)
    if (stream->device == device && (all || stream->blocking)) found.push_back(stream);
  return found;
}

// Recorded and done are counted: to wait for an event is to wait for what was recorded last,
// not for what will be.
struct Event {
  std::mutex lock;
  std::condition_variable done_one;
  long recorded = 0, done = 0;
};

using SharedEvent = std::shared_ptr<Event>;  // what is queued may outlive cudaEventDestroy

SharedEvent& cast(cudaEvent_t event) { return *reinterpret_cast<SharedEvent*>(event); }

}  // namespace

void queue(cudaStream_t stream, const std::string& who, Work work, bool on_any_device) {
  if (is_default(stream)) {
    for (Stream* other : streams_of(current_device(), false)) other->synchronize();
    work();
    return;
  }
  int device = cast(stream)->device;
  if (device != current_device() && !on_any_device)
    fault(who + " on gpu " + std::to_string(current_device()) + " is given a stream of gpu " + std::to_string(device));
  cast(stream)->queue(std::move(work));
}

cudaStream_t make_stream(bool blocking) {
  std::lock_guard<std::mutex> guard(lock);
  auto* stream = new Stream(current_device(), blocking, made++);
  streams.insert(stream);
  return reinterpret_cast<cudaStream_t>(stream);
}

void end_stream(cudaStream_t stream) {
  {
    std::lock_guard<std::mutex> guard(lock);
    streams.erase(cast(stream));
  }
  delete cast(stream);
}

void synchronize(cudaStream_t stream) {
  if (is_default(stream))
    queue(stream, "cudaStreamSynchronize", [] {});
  else
    cast(stream)->synchronize();
}

void synchronize_device(int device) {
  for (Stream* stream : streams_of(device, true)) stream->synchronize();
}

int device_of(cudaStream_t stream) { return is_default(stream) ? current_device() : cast(stream)->device; }

cudaEvent_t make_event() { return reinterpret_cast<cudaEvent_t>(new SharedEvent(std::make_shared<Event>())); }

void end_event(cudaEvent_t event) { delete &cast(event); }

void record(cudaEvent_t event, cudaStream_t stream) {
  SharedEvent shared = cast(event);
  long mine;
  {
    std::lock_guard<std::mutex> guard(shared->lock);
    mine = ++shared->recorded;
  }
  queue(stream, "cudaEventRecord", [shared, mine] {
    std::lock_guard<std::mutex> guard(shared->lock);
    shared->done = std::max(shared->done, mine);
    shared->done_one.notify_all();
  });
}

void wait_for(cudaStream_t stream, cudaEvent_t event) {
  SharedEvent shared = cast(event);
  long last;
  {
    std::lock_guard<std::mutex> guard(shared->lock);
    last = shared->recorded;
  }
  queue(
      stream, "cudaStreamWaitEvent",
      [shared, last] {
        std::unique_lock<std::mutex> guard(shared->lock);
        shared->done_one.wait(guard, [&] { return shared->done >= last; });
      },
      true);
}

}  // namespace gpus

extern "C" {

// For tests: what is queued on the stream after this begins only when gpus_let_go is given what this returns.
void* gpus_hold(cudaStream_t stream) {
  auto* open = new std::promise<void>;
  std::shared_future<void> opened = open->get_future().share();
  gpus::queue(stream, "gpus_hold", [opened] { opened.wait(); });
  return open;
}

void gpus_let_go(void* hold) {
  auto* open = static_cast<std::promise<void>*>(hold);
  open->set_value();
  delete open;
}

// For tests: everything that is queued begins up to so much later from now on; below 0:
// as the machine has it.
void gpus_delay(int most_us, unsigned seed) {
  const gpus::Machine& machine = gpus::machine();
  gpus::delays().seed = most_us < 0 ? machine.seed : seed;
  gpus::delays().most_us = most_us < 0 ? machine.delay_us : most_us;
}
}
