// A product's input, in shared memory as its multiplication wants it.
#pragma once

#include "kernels/cuda/program/consumer_threads.cuh"
#include "kernels/cuda/types.cuh"

namespace faststream::program {

/// By all consumers, every block for itself: brings rows once they are there, normalizes them, and
/// rounds them to T or, beside i8 weights, to eight bits.
class Preparer {
 public:
  explicit __device__ Preparer(const RowMemory& rows) : rows_(rows) {}

  __device__ void prepare(const ProductInstruction& p) const {
    if (p.x_dtype == DType::f32) {
      constexpr int kMost = kMaxNormalized / 8 / kConsumerThreads;
      p.inputs <= kMaxNormalized / 2 ? prepare_floats<kMost / 2>(p) : prepare_floats<kMost>(p);
    } else if (p.x_rows == 1) {
      Team team{thread(), kAll, shared_memory().parts[0]};
      prepare_row(p, 0, team);
    } else if (p.x_rows > kFewRows && p.inputs <= kMaxWarpInputs) {
      prepare_rows<kWarp>(p);
    } else {
      prepare_rows<kConsumerThreads / kFewRows>(p);
    }
    synchronize();
  }

 private:
  using Team = RowTeam<kConsumerThreads>;
  static constexpr int kFewRows = 4;  // of experts, for each of which there are two warps

  // A row of x to shared memory, by a team that has kEights eights of its elements a thread:
  // rounded to T, or to eight bits beside i8 weights. of_eight(e, values) gives a thread's e-th.
  template <int kEights, int kThreads, typename OfEight>
  static __device__ void store_row(const ProductInstruction& p, int row, RowTeam<kThreads>& team,
                                   const OfEight& of_eight) {
    const int n = p.inputs;
    const auto for_each_eight = [&](const auto& use) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const int c = 8 * (team.thread() + kThreads * e);
        if (c < n) {
          float values[8];
          of_eight(e, values);
          use(c, values);
        }
      }
    };
    if (p.weight_dtype != DType::i8) {
      T* to = reinterpret_cast<T*>(shared_memory().x) + static_cast<int64_t>(row) * n;
      for_each_eight([&](int c, const float(&values)[8]) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
        *reinterpret_cast<uint4*>(to + c) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      });
      return;
    }
    RowScale scale;
    for_each_eight([&](int /*c*/, const float(&values)[8]) {
#pragma unroll
      for (const float value : values) scale.see(value);
    });
    scale.join(team);
    if (team.thread() == 0) shared_memory().row_scales[row] = scale.scale();
    const float inverse = scale.inverse();
    unsigned char* to = shared_memory().x + static_cast<int64_t>(row) * n;
    for_each_eight([&](int c, const float(&values)[8]) {
      uint32_t packed[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int integers[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) integers[i] = quantized(values[4 * half + i], inverse);
        packed[half] = pack_bytes(integers);
      }
      *reinterpret_cast<uint2*>(to + c) = make_uint2(packed[0], packed[1]);
    });
  }

  // What the neighbouring lane has.
  static __device__ uint4 exchanged(const uint4& words) {
    return make_uint4(
        __shfl_xor_sync(kAllLanes, words.x, 1), __shfl_xor_sync(kAllLanes, words.y, 1),
        __shfl_xor_sync(kAllLanes, words.z, 1), __shfl_xor_sync(kAllLanes, words.w, 1));
  }

  static __device__ uint4 selected(bool first, const uint4& a, const uint4& b) {
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
  }

  // A row of the residual stream, normalized.
  template <int kEights>
  __device__ void prepare_floats(const ProductInstruction& p) const {
    const bool has_norm = p.norm.kind != NormKind::none;
    const auto element = [](int e) { return 8 * (thread() + kConsumerThreads * e); };
    float weights[kEights][8] = {};
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (has_norm && element(e) < p.inputs) load_floats(p.norm.weight + element(e), weights[e]);
    }
    const auto* x = static_cast<const float*>(rows_.at(p.x));
    uint4 pieces[2 * kEights];
    // Two lanes bring the halves of one's eight, then of the other's: memory gives 32 bytes at
    // once.
    const bool is_second = thread() % 2 != 0;
    bring(pieces, p.x.awaited, [&](int i) {
      const int c = element(i / 2) + 8 * (i % 2 - thread() % 2);
      return c < p.inputs ? x + c + thread() % 2 * 4 : nullptr;
    });
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const uint4 other = exchanged(selected(is_second, pieces[2 * e], pieces[2 * e + 1]));
      pieces[2 * e] = selected(is_second, other, pieces[2 * e]);
      pieces[2 * e + 1] = selected(is_second, pieces[2 * e + 1], other);
    }
    float values[kEights][8];
    memcpy(values, pieces, sizeof values);
    Team team{thread(), kAll, shared_memory().parts[0]};
    const MeasuredNorm norm = measure(p.inputs, p.norm, team, [&](const auto& add) {
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        if (element(e) < p.inputs) {
#pragma unroll
          for (const float value : values[e]) add(e % Team::kTurns, value);
        }
      }
    });
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& value = values[e][i];
        const bool biased = p.norm.bias != nullptr && element(e) < p.inputs;
        if (has_norm) {
          value = norm.apply(value, weights[e][i], biased ? p.norm.bias[element(e) + i] : 0);
        }
        value = to_float(from_float<T>(value));
      }
    }
    store_row<kEights>(p, 0, team, [&](int e, float(&eight)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) eight[i] = values[e][i];
    });
  }

  // A row of T.
  template <int kThreads>
  __device__ void prepare_row(const ProductInstruction& p, int row, RowTeam<kThreads>& team) const {
    const T* x = static_cast<const T*>(rows_.at(p.x)) + row * p.x_stride;
    uint4 raw[kMaxEights];
    bring(raw, p.x.awaited, [&](int e) {
      const int c = 8 * (team.thread() + kThreads * e);
      return c < p.inputs ? x + c : nullptr;
    });
    store_row<kMaxEights>(p, row, team, [&](int e, float(&eight)[8]) {
      T elements[8];
      memcpy(elements, &raw[e], sizeof elements);
#pragma unroll
      for (int i = 0; i < 8; ++i) eight[i] = to_float(elements[i]);
    });
  }

  // Experts' rows, each by so many threads.
  template <int kThreads>
  __device__ void prepare_rows(const ProductInstruction& p) const {
    const int nth = thread() / kThreads;
    RowTeam<kThreads> team{thread() % kThreads, kRowTeam + nth, shared_memory().parts[nth]};
    for (int row = nth; row < p.x_rows; row += kConsumerThreads / kThreads) {
      prepare_row(p, row, team);
    }
  }

  RowMemory rows_;
};

}  // namespace faststream::program
