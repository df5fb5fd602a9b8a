// Sums over the last elements of each channel.
//
// Where memory allows loads of 16 bytes and there are at most four taps, a thread has 8 channels of
// a run of tokens, whose last elements and weights it keeps in registers: an element is read once,
// but for those before a run. Else a thread has a channel of a token.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream {

namespace {

constexpr int kThreads = 128;
constexpr int kChannels = 8;  // of a thread, where memory is aligned
constexpr int kMostTaps = 4;  // of such threads
constexpr int kLongRun = 32;  // tokens; a run more reads taps - 1 rows more
constexpr int kShortRun = 4;
constexpr int kAhead = 4;            // rows that a thread reads ahead; with 8 it spills
constexpr int kLongRunsFrom = 2048;  // tokens from which on long runs are enough for all of a GPU

struct ConvolveArguments {
  BatchView batch;
  Matrix x;
  Convolution convolution;
  StateLayer states;
  Matrix out;
};

// kEach channels, from c on, of one sequence: what it had before the step, its tokens in the step,
// and where states of it are kept.
template <typename T, int kEach>
class Text {
 public:
  __device__ Text(const ConvolveArguments& a, int32_t s, int64_t c)
      : begin_(a.batch.query_start[s]),
        n_new_(a.batch.query_start[s + 1] - begin_),
        until_border_(border_of(a.batch.kv_len[s]) - (a.batch.kv_len[s] - n_new_)),
        tail_(a.convolution.taps - 1),
        channels_(a.x.cols),
        x_(static_cast<const T*>(a.x.data) + begin_ * a.x.stride + c),
        x_stride_(a.x.stride) {
    const auto state = [&](int32_t n) { return a.states.data + n * a.states.stride + c; };
    before_ = state(a.batch.state_from[s]);
    last_ = state(a.batch.state_to[s]);
    border_ = a.batch.state_border[s] != 0 && until_border_ > 0 ? state(a.batch.state_border[s])
                                                                : nullptr;
  }

  [[nodiscard]] __device__ int64_t begin() const { return begin_; }
  [[nodiscard]] __device__ int64_t end() const { return begin_ + n_new_; }

  // Of token i of the step, from 0 on, or before it.
  __device__ void element(int32_t i, float (&to)[kEach]) const {
    if (i < 0) {
      load_floats<kEach>(before_ + (tail_ + i) * channels_, to);
    } else {
      load_floats<kEach>(x_ + i * x_stride_, to);
    }
  }

  // Writes what token `place`, whose element this is, has to of the states that are kept.
  __device__ void keep(int32_t place, const float (&own)[kEach]) const {
    keep(place, own, n_new_, last_);
    if (border_ != nullptr) keep(place, own, until_border_, border_);
  }

 private:
  // Of the last elements after n_tokens of the step: its own, and if it is the first token those
  // before it.
  __device__ void keep(int32_t place, const float (&own)[kEach], int32_t n_tokens,
                       float* to) const {
    const int32_t slot = place - (n_tokens - tail_);
    if (slot >= 0 && slot < tail_) store_floats<kEach>(own, to + slot * channels_);
    if (place != 0) return;
    for (int32_t i = 0; i < tail_ - n_tokens; ++i) {
      float element[kEach];
      load_floats<kEach>(before_ + (i + n_tokens) * channels_, element);
      store_floats<kEach>(element, to + i * channels_);
    }
  }

  int32_t begin_;
  int32_t n_new_;
  int32_t until_border_;  // tokens of the step
  int32_t tail_;
  int64_t channels_;
  const T* x_;
  int64_t x_stride_;
  const float* before_;  // [tail, channels], as the others
  float* last_;
  float* border_;  // or null
};

template <typename T>
__global__ void __launch_bounds__(kThreads) convolve_kernel(const ConvolveArguments a) {
  begin_kernel();
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= a.x.cols) return;
  const int64_t t = blockIdx.y;
  const Text<T, 1> text(a, a.batch.sequence_of[t], c);
  const auto place = static_cast<int32_t>(t - text.begin());
  const int32_t tail = a.convolution.taps - 1;
  float sum = a.convolution.bias != nullptr ? a.convolution.bias[c] : 0.0F;
  float own[1];
  for (int32_t i = 0; i <= tail; ++i) {
    text.element(place - tail + i, own);
    sum = fmaf(a.convolution.weight[i * a.x.cols + c], own[0], sum);
  }
  static_cast<T*>(a.out.data)[t * a.out.stride + c] =
      from_float<T>(activate(a.convolution.activation, sum));
  text.keep(place, own);
}

// Eight channels of kRun tokens.
template <typename T, int kTaps, int kRun>
__global__ void __launch_bounds__(kThreads) convolve_run_kernel(const ConvolveArguments a) {
  begin_kernel();
  const int64_t c = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChannels;
  if (c >= a.x.cols) return;
  const int64_t first = int64_t{blockIdx.y} * kRun;
  const int64_t end = min(first + kRun, int64_t{a.batch.n_tokens});
  float weights[kTaps][kChannels];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    load_floats<kChannels>(a.convolution.weight + i * a.x.cols + c, weights[i]);
  }
  float bias[kChannels] = {};
  if (a.convolution.bias != nullptr) load_floats<kChannels>(a.convolution.bias + c, bias);

  Text<T, kChannels> text(a, a.batch.sequence_of[first], c);
  float elements[kTaps][kChannels];  // the last ones, then the token's own
  const auto begin_text = [&](int64_t t) {
#pragma unroll
    for (int i = 1; i < kTaps; ++i) {
      text.element(static_cast<int32_t>(t - text.begin()) - kTaps + i, elements[i]);
    }
  };
  begin_text(first);
  const T* x = static_cast<const T*>(a.x.data) + c;
  T* out = static_cast<T*>(a.out.data) + c;
#pragma unroll 1
  for (int64_t ahead = first; ahead < end; ahead += kAhead) {
    float rows[kAhead][kChannels];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      load_floats<kChannels>(x + min(ahead + i, end - 1) * a.x.stride, rows[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t t = ahead + i;
      if (t >= end) break;
      if (t == text.end()) {
        text = Text<T, kChannels>(a, a.batch.sequence_of[t], c);
        begin_text(t);
      }
      float sums[kChannels];
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        float sum = bias[j];
#pragma unroll
        for (int tap = 0; tap < kTaps - 1; ++tap) {
          elements[tap][j] = elements[tap + 1][j];
          sum = fmaf(weights[tap][j], elements[tap][j], sum);
        }
        elements[kTaps - 1][j] = rows[i][j];
        sums[j] = fmaf(weights[kTaps - 1][j], rows[i][j], sum);
      }
      activate(a.convolution.activation, sums);
      store_floats(sums, out + t * a.out.stride);
      text.keep(static_cast<int32_t>(t - text.begin()), rows[i]);
    }
  }
}

bool is_aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0 && stride % kChannels == 0;
}

template <typename T, int kRun, int kTaps = 2>
void launch_runs(const Queue& queue, const ConvolveArguments& a) {
  if constexpr (kTaps < kMostTaps) {
    if (a.convolution.taps > kTaps) return launch_runs<T, kRun, kTaps + 1>(queue, a);
  }
  const Grid grid{{static_cast<unsigned>(ceil_div(a.x.cols, kThreads * kChannels)),
                   static_cast<unsigned>(ceil_div(a.batch.n_tokens, kRun))},
                  kThreads};
  queue.launch("convolving", convolve_run_kernel<T, kTaps, kRun>, grid, a);
}

template <typename T>
void launch_convolution(const Queue& queue, const ConvolveArguments& a) {
  const bool aligned = a.convolution.taps <= kMostTaps && a.x.cols % kChannels == 0 &&
                       is_aligned(a.x.data, a.x.stride) && is_aligned(a.out.data, a.out.stride) &&
                       is_aligned(a.states.data, a.states.stride) &&
                       is_aligned(a.convolution.weight, 0) && is_aligned(a.convolution.bias, 0);
  if (!aligned) {
    const Grid grid{{static_cast<unsigned>(ceil_div(a.x.cols, kThreads)),
                     static_cast<unsigned>(a.batch.n_tokens)},
                    kThreads};
    queue.launch("convolving", convolve_kernel<T>, grid, a);
  } else if (a.batch.n_tokens < kLongRunsFrom) {
    launch_runs<T, kShortRun>(queue, a);
  } else {
    launch_runs<T, kLongRun>(queue, a);
  }
}

}  // namespace

void CudaBackend::convolve(const BatchView& batch, const Matrix& x, const Convolution& convolution,
                           const StateLayer& states, const Matrix& out) {
  if (batch.n_tokens == 0 || step_kernel_.convolve(batch, x, convolution, states, out)) return;
  const ConvolveArguments arguments{batch, x, convolution, states, out};
  with_float_type(x.dtype,
                  [&](auto type) { launch_convolution<decltype(type)>(queue(), arguments); });
}

}  // namespace faststream
