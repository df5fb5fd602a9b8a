// One upload of all weights. Several threads read the file into page-locked buffers, two each,
// while earlier buffers travel: the slower of the disk (or the page cache, about 10 GB/s a thread)
// and the bus (55 GB/s on PCIe 5 x16) sets the time.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/cuda/cuda_backend.h"
#include "support/machine.h"
#include "support/progress.h"
#include "support/start_threads.h"

namespace faststream {

namespace {

constexpr size_t kChunk = size_t{8} << 20;
constexpr int kMaxThreads = 8;

/// The threads' shared state: the next chunk to take, the bytes that are on the device, and the
/// first failure.
class Upload {
 public:
  Upload(const WeightSource& source, std::byte* device_memory, int device)
      : source_(source), device_memory_(device_memory), device_(device) {}

  /// Runs on the calling thread and calls `progress` there until all threads are done.
  void run(int n_threads, const std::function<void(size_t)>& progress) {
    running_ = n_threads;
    const std::vector<std::jthread> threads = start_threads(n_threads, [this] { work(); });
    std::unique_lock lock(mutex_);
    running_ -= n_threads - static_cast<int>(threads.size());
    size_t reported = 0;
    for (bool finished = false; !finished;) {
      changed_.wait(lock, [&] { return done_ != reported || running_ == 0; });
      finished = running_ == 0;
      if (done_ == reported) continue;
      reported = done_;
      if (!progress || failure_) continue;
      lock.unlock();
      try {
        progress(reported);
      } catch (...) {
        fail(std::current_exception());
      }
      lock.lock();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Slot {
    PinnedMemory memory;
    Event copied;
    size_t bytes = 0;
  };

  void work() {
    try {
      transfer();
    } catch (...) {
      fail(std::current_exception());
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  void transfer() {
    cuda_check(cudaSetDevice(device_), "loading weights");
    // The copies must end before their buffers do: finish() awaits them, or else the handler below.
    std::array<Slot, 2> slots;
    const Stream stream = make_stream();
    for (Slot& slot : slots) {
      slot.memory = allocate_pinned(std::min<size_t>(kChunk, source_.size()));
      slot.copied = make_event();
    }
    try {
      for (size_t turn = 0;; ++turn) {
        const size_t offset = next_.fetch_add(kChunk);
        if (offset >= source_.size() || failed_) break;
        Slot& slot = slots[turn % slots.size()];
        finish(slot);
        slot.bytes = std::min<size_t>(kChunk, source_.size() - offset);
        source_.read(offset, {slot.memory.get(), slot.bytes});
        cuda_check(cudaMemcpyAsync(device_memory_ + offset, slot.memory.get(), slot.bytes,
                                   cudaMemcpyHostToDevice, stream.get()),
                   "loading weights");
        cuda_check(cudaEventRecord(slot.copied.get(), stream.get()), "loading weights");
      }
    } catch (...) {
      cudaStreamSynchronize(stream.get());
      throw;
    }
    for (Slot& slot : slots) finish(slot);
  }

  void finish(Slot& slot) {
    cuda_check(cudaEventSynchronize(slot.copied.get()), "loading weights");
    if (slot.bytes == 0) return;
    const std::lock_guard lock(mutex_);
    done_ += slot.bytes;
    slot.bytes = 0;
    changed_.notify_one();
  }

  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    failed_ = true;
  }

  const WeightSource& source_;
  std::byte* device_memory_;
  int device_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t done_ = 0;
  int running_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

const std::byte* CudaBackend::load_weights(const WeightSource& source,
                                           const std::function<void(size_t)>& progress) {
  const size_t bytes = source.size();
  const size_t free = free_memory();
  if (bytes > free) {
    throw Error("The model needs " + format_bytes(bytes) + " of GPU memory, but " +
                format_bytes(free) + " are free on " + description() +
                "; use another GPU, a model file with smaller weights, or --device cpu.");
  }
  DeviceMemory memory = allocate_device(std::max<size_t>(bytes, 1));
  const int n_chunks = static_cast<int>((bytes + kChunk - 1) / kChunk);
  const int n_threads = std::min({kMaxThreads, available_threads(), n_chunks});
  if (n_threads > 0) Upload(source, memory.get(), device_).run(n_threads, progress);
  weights_.push_back(std::move(memory));
  return weights_.back().get();
}

}  // namespace faststream
