// Owners of CUDA resources: each frees what it holds on destruction.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "kernels/cuda/cuda_check.h"

namespace faststream {

struct CudaFree {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
struct CudaFreeHost {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};
struct CudaStreamDestroy {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct CudaEventDestroy {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};

using DeviceMemory = std::unique_ptr<std::byte, CudaFree>;
using PinnedMemory = std::unique_ptr<std::byte, CudaFreeHost>;
using Stream = std::unique_ptr<CUstream_st, CudaStreamDestroy>;
using Event = std::unique_ptr<CUevent_st, CudaEventDestroy>;

/// Page-locked host memory that copies may use asynchronously.
inline PinnedMemory allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  cuda_check(cudaMallocHost(&memory, bytes), "allocating page-locked memory");
  return PinnedMemory(static_cast<std::byte*>(memory));
}

/// A stream that does not wait for the default stream.
inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return Stream(stream);
}

/// An event for ordering, without a time stamp.
inline Event make_event() {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  return Event(event);
}

/// An event whose time can be asked for.
inline Event make_timing_event() {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreate(&event), "creating an event");
  return Event(event);
}

/// Memory that grows when more is asked for than ever before and is otherwise reused. Growing frees
/// the old memory, which waits for the kernels that use it: the steady state never grows.
template <typename Memory, Memory (*kAllocate)(size_t)>
class GrowingBuffer {
 public:
  std::byte* at_least(size_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      const size_t rounded = (bytes + kGrain - 1) / kGrain * kGrain;
      memory_ = kAllocate(rounded);
      size_ = rounded;
    }
    return memory_.get();
  }

 private:
  static constexpr size_t kGrain = 1 << 16;
  Memory memory_;
  size_t size_ = 0;
};

/// Device memory on the current GPU. Throws Error that says how much was asked for and is free.
DeviceMemory allocate_device(size_t bytes);

using DeviceBuffer = GrowingBuffer<DeviceMemory, allocate_device>;
using PinnedBuffer = GrowingBuffer<PinnedMemory, allocate_pinned>;

/// Small copies to the GPU for a stream, made beside what that does until it comes to them: between
/// two kernels each would take as long as several launches. The host fills one of three buffers
/// while others are copied or in use.
class Uploads {
 public:
  static constexpr int kBuffers = 3;

  /// The next copy's `bytes`, to be filled: waits until the third copy before is done.
  std::byte* fill(size_t bytes) {
    if (!stream_) stream_ = make_stream();
    Buffer& buffer = buffers_[next_];
    if (!buffer.copied) {
      buffer.copied = make_event();
      buffer.used = make_event();
    }
    cuda_check(cudaEventSynchronize(buffer.copied.get()), "waiting for an earlier copy");
    bytes_ = bytes;
    return buffer.host.at_least(bytes);
  }
  /// Copies what was filled to device memory, for what is in the stream by the next copy.
  std::byte* copy(cudaStream_t stream) {
    Buffer& buffer = buffers_[next_];
    // What used the copy before is in the stream by now.
    const Buffer& before = buffers_[(next_ + kBuffers - 1) % kBuffers];
    if (before.used) cuda_check(cudaEventRecord(before.used.get(), stream), kDoing);
    next_ = (next_ + 1) % kBuffers;
    std::byte* device = buffer.device.at_least(bytes_);
    cuda_check(cudaStreamWaitEvent(stream_.get(), buffer.used.get()), kDoing);
    cuda_check(cudaMemcpyAsync(device, buffer.host.at_least(bytes_), bytes_, cudaMemcpyHostToDevice,
                               stream_.get()),
               kDoing);
    cuda_check(cudaEventRecord(buffer.copied.get(), stream_.get()), kDoing);
    cuda_check(cudaStreamWaitEvent(stream, buffer.copied.get()), kDoing);
    return device;
  }

 private:
  static constexpr std::string_view kDoing = "copying to the GPU";

  struct Buffer {
    PinnedBuffer host;
    DeviceBuffer device;
    Event copied;
    Event used;  // the stream has done what reads the device's
  };
  Buffer buffers_[kBuffers];
  Stream stream_;
  int next_ = 0;
  size_t bytes_ = 0;
};

}  // namespace faststream
