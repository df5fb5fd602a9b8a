// A token's convolution.
#pragma once

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/step_kernel/consumer_threads.cuh"

namespace faststream::step_kernel {

/// What kernels/cuda/recurrent/convolve.cu computes, bit for bit: each lane two channels. Warps of
/// different blocks have consecutive ones, so that as many multiprocessors as can ask for memory.
class Convolver {
 public:
  explicit __device__ Convolver(const RowMemory& rows) : rows_(rows) {}

  __device__ void convolve(const ConvolveInstruction& c) const {
    const int warps = ceil_div(c.channels, kChannels * kWarp);
    for (int n = static_cast<int>(blockIdx.x) + warp() * static_cast<int>(gridDim.x); n < warps;
         n += kConsumers * static_cast<int>(gridDim.x)) {
      convolve(c, (n * kWarp + lane()) * kChannels);
    }
  }

 private:
  static constexpr int kChannels = 2;

  // Two channels from `channel` on, if there are any.
  __device__ void convolve(const ConvolveInstruction& c, int channel) const {
    const Convolution& convolution = c.convolution;
    const int tail = convolution.taps - 1;
    const bool exists = channel < c.channels;
    // Asked for before the row is awaited.
    float2 weights[kMaxTaps] = {};
    float2 elements[kMaxTaps] = {};
    float2 sum = {};
    if (exists) {
      const float* before = c.state.before() + channel;
#pragma unroll
      for (int i = 0; i < kMaxTaps; ++i) {
        if (i > tail) break;
        weights[i] = pair_at(convolution.weight + int64_t{i} * c.channels + channel);
        if (i < tail) elements[i] = pair_at(before + int64_t{i} * c.channels);
      }
      if (convolution.bias != nullptr) sum = pair_at(convolution.bias + channel);
    }
    uint32_t words[1];
    const auto* x = static_cast<const T*>(rows_.at(c.x));
    bring(
        words, c.x.awaited, [&](int) { return exists; }, [&](int) { return x + channel; });
    if (!exists) return;
    T own[kChannels];
    memcpy(own, words, sizeof own);
    const float2 last = make_float2(to_float(own[0]), to_float(own[1]));
    float* after = c.state.after() + channel;
#pragma unroll
    for (int i = 0; i < kMaxTaps; ++i) {
      if (i > tail) break;
      if (i == tail) elements[i] = last;
      sum.x = fmaf(weights[i].x, elements[i].x, sum.x);
      sum.y = fmaf(weights[i].y, elements[i].y, sum.y);
      if (i > 0) *reinterpret_cast<float2*>(after + int64_t{i - 1} * c.channels) = elements[i];
    }
    float results[kChannels] = {sum.x, sum.y};
#pragma unroll 1
    for (float& result : results) result = activate(convolution.activation, result);
    const uint32_t pair = pack_pair<T>(results[0], results[1]);
    if (c.result.offset >= 0) publish(static_cast<T*>(rows_.at(c.result)) + channel, pair);
    if (c.out != nullptr) *reinterpret_cast<uint32_t*>(static_cast<T*>(c.out) + channel) = pair;
  }

  static __device__ float2 pair_at(const float* from) {
    return *reinterpret_cast<const float2*>(from);
  }

  RowMemory rows_;
};

}  // namespace faststream::step_kernel
