// Products of a block's tiles and the rows of several tokens.
#pragma once

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/step_kernel/tile_stages.cuh"

namespace faststream::step_kernel {

/// As Multiplier, of each tile and the rows of all tokens at once.
class TokenMultiplier {
 public:
  explicit __device__ TokenMultiplier(const RowMemory& rows) : rows_(rows) {}

  /// A product of the kind, of integers or in order, whose input is prepared.
  __device__ void run(Instruction::Kind kind, const ProductInstruction& p,
                      StageReader& stages) const {
    if (kind == Instruction::Kind::multiply_in_order) {
      multiply_in_order(p, stages);
    } else {
      multiply(p, stages);
    }
  }

 private:
  // Of a lane: the tensor cores give it two rows' for two tokens, and it finishes four others.
  static constexpr int kSums = 4;

  // What a lane finishes of a tile: of a token four rows that follow each other, or of gates and
  // ups two that do.
  struct Results {
    __device__ Results(const ProductInstruction& p, int tile)
        : gated(p.gated),
          token(lane() / kQuads),
          output(gated ? tile * (kTileRows / 2) + quad() * 2 : tile * kTileRows + quad() * kSums),
          exist(output < p.outputs && token < p.x_rows) {}
    /// The nth four of all tokens' results, which are no gates.
    __device__ Results(int n, const ProductInstruction& p)
        : gated(false),
          token(n / (p.outputs / kSums)),
          output((n - token * (p.outputs / kSums)) * kSums),
          exist(token < p.x_rows) {}

    [[nodiscard]] __device__ int row_of_tile(int i) const {
      return gated ? quad() * 2 + i % 2 + i / 2 * (kTileRows / 2) : quad() * kSums + i;
    }
    /// Of the weight, where they exist.
    [[nodiscard]] __device__ int row(const ProductInstruction& p, int i) const {
      return output + (gated ? i % 2 + i / 2 * p.outputs : i);
    }
    /// Of the first, in the product's results.
    [[nodiscard]] __device__ int64_t index(const ProductInstruction& p) const {
      return token * p.to.stride + output;
    }

    bool gated;
    int token;
    int output;  // the first
    bool exist;

   private:
    static constexpr int kQuads = kTileRows / kSums;
    static __device__ int quad() { return lane() % kQuads; }
  };

  // What a warp leaves of a stage. Lane 4g + t has the sums of rows g and g + 8 for tokens 2t and
  // 2t + 1: of the first row for both, then of the second.
  class Sums {
   public:
    // n: the stage's number.
    __device__ Sums(const ProductInstruction& p, uint32_t n)
        : sums_(shared_memory().of_tokens +
                n % token_sums_count(p.x_rows) * token_sums_size(p.x_rows)),
          ready_(sums_ + token_sums_size(p.x_rows) - 1) {}

    // How many stages of a tile, whose first this is, have left theirs.
    [[nodiscard]] __device__ uint32_t& ready() const { return ready_->x; }
    template <typename Sum>
    __device__ void put(const ProductInstruction& p, const Sum (&sums)[kSums]) const {
      if (exists(p)) memcpy(of_lane(), sums, sizeof sums);
    }
    __device__ void add_to(const ProductInstruction& p, int (&sums)[kSums]) const {
      if (!exists(p)) return;
      int others[kSums];
      memcpy(others, of_lane(), sizeof others);
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += others[i];
    }
    // The lanes' sums become those of their results.
    template <typename Sum>
    __device__ void exchange(const ProductInstruction& p, const Results& results,
                             Sum (&sums)[kSums]) const {
      put(p, sums);
      __syncwarp();
      if (results.token >= p.x_rows) return;
      const uint4* of_token = sums_ + results.token / 2 * kLanesOfTokens;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int row = results.row_of_tile(i);
        const auto* words = reinterpret_cast<const uint32_t*>(of_token + row % kLanesOfTokens);
        memcpy(&sums[i], words + row / kLanesOfTokens * 2 + results.token % 2, sizeof(Sum));
      }
    }

   private:
    static constexpr int kLanesOfTokens = 8;
    static __device__ bool exists(const ProductInstruction& p) { return lane() % 4 * 2 < p.x_rows; }
    [[nodiscard]] __device__ uint4* of_lane() const {
      return sums_ + lane() % 4 * kLanesOfTokens + lane() / 4;
    }
    uint4* sums_;
    uint4* ready_;
  };

  // Integers, on the tensor cores. Who has a tile's last chunk adds what others have left of
  // theirs.
  __device__ void multiply(const ProductInstruction& p, StageReader& stages) const {
    const TilesOfBlock mine(p);
    const int chunks = ceil_div(p.streamed_bytes, kChunkBytes);
    const int n_stages = mine.count * chunks;
    const uint32_t end = stages.begin() + n_stages;
    const bool is_whole = p.input_parts == 1;
    for (uint32_t n = first_in_turn(stages); n < end; n += kConsumers) {
      const Stage& stage = stages.await(n);
      const int chunk = stage.chunk;
      const Results results(p, stage.tile);
      const bool ends_tile = chunk + 1 == chunks;
      uint4 added = {};
      if (ends_tile && is_whole) added = ask_added(p, results);
      int sums[kSums] = {};
      multiply_chunk(p, stage, chunk, sums);
      float scales[kSums];
      float biases[kSums];
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        scales[i] = stage.scales[results.row_of_tile(i)];
        biases[i] = stage.biases[results.row_of_tile(i)];
      }
      StageReader::release(n);

      uint32_t& ready = Sums(p, n - chunk).ready();
      if (!ends_tile) {
        Sums(p, n).put(p, sums);
        count(ready);
        continue;
      }
      if (chunks > 1) await_count(ready, chunks - 1);
      for (int i = 1; i < chunks; ++i) Sums(p, n - i).add_to(p, sums);
      Sums(p, n).exchange(p, results, sums);
      if (is_whole) {
        finish(p, results, sums, scales, biases, added);
      } else if (results.exist) {
        publish_part(p, mine.part, results, sums);
      }
    }
    stages.pass(n_stages);
    if (!is_whole) add_up_parts(p);
  }

  // Four floats that results are added to, if they are to anything.
  __device__ uint4 ask_added(const ProductInstruction& p, const Results& results) const {
    return p.to.add && results.exist ? load_words(added_to(p, results)) : uint4{};
  }
  [[nodiscard]] __device__ const float* added_to(const ProductInstruction& p,
                                                 const Results& results) const {
    return static_cast<const float*>(rows_.at(p.added)) + results.index(p);
  }
  static __device__ void load_biases(const ProductInstruction& p, const Results& results,
                                     float (&biases)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      biases[i] = p.to.bias != nullptr && results.exist ? p.to.bias[results.row(p, i)] : 0;
    }
  }
  // scales, biases: of the weight's rows.
  __device__ void finish(const ProductInstruction& p, const Results& results,
                         const int (&sums)[kSums], const float (&scales)[kSums],
                         const float (&biases)[kSums], const uint4& added) const {
    const float row_scale = shared_memory().row_scales[min(results.token, p.x_rows - 1)];
    float values[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      values[i] = scaled(static_cast<float>(sums[i]), row_scale, scales[i]);
    }
    finish(p, results, values, biases, added);
  }
  // All values before the first is stored: none waits for another, and all are stored at once. The
  // code for activations is long and cold, so what has none goes around it, and gates come by
  // turns.
  __device__ void finish(const ProductInstruction& p, const Results& results,
                         float (&values)[kSums], const float (&biases)[kSums], uint4 added) const {
    if (!results.exist) return;
    if (p.to.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        values[i] = __fadd_rn(values[i], biases[i]);
      }
    }
    if (p.gated) return finish_gates(p, results, values);
    if (p.to.add) {
      while (p.added.awaited && is_unset(added)) added = load_words(added_to(p, results));
      float others[kSums];
      memcpy(others, &added, sizeof others);
#pragma unroll
      for (int i = 0; i < kSums; ++i) values[i] = __fadd_rn(values[i], others[i]);
    }
    if (p.to.activation != Activation::none) activate(p.to.activation, values);
    if (p.to.dtype == DType::f32) {
      uint4 words;
      memcpy(&words, values, sizeof words);
      store<float>(p, results, words);
    } else {
      store<T>(p, results,
               make_uint2(pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3])));
    }
  }
  __device__ void finish_gates(const ProductInstruction& p, const Results& results,
                               float (&values)[kSums]) const {
    if (!is_integer(p.weight_format)) {  // as beside many rows
#pragma unroll
      for (float& value : values) value = to_float(from_float<T>(value));
    }
    float gated[2] = {};
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      gated[0] = gated[1];
      gated[1] = gate_value(p.to.activation, p.to.gate_limit, i == 0 ? values[0] : values[1],
                            i == 0 ? values[2] : values[3]);
    }
    store<T>(p, results, pack_pair<T>(gated[0], gated[1]));
  }
  template <typename Element, typename Words>
  __device__ void store(const ProductInstruction& p, const Results& results,
                        const Words& words) const {
    const int64_t index = results.index(p);
    if (p.to.out != nullptr) {
      *reinterpret_cast<Words*>(static_cast<Element*>(p.to.out) + index) = words;
    }
    if (p.result.offset >= 0) publish(static_cast<Element*>(rows_.at(p.result)) + index, words);
  }

  // Where the sums of a part of the results' inputs are, each twice, so that no such word is unset.
  [[nodiscard]] __device__ uint4* partial(const ProductInstruction& p, int part,
                                          const Results& results) const {
    const int64_t row = int64_t{part} * p.x_rows + results.token;
    return reinterpret_cast<uint4*>(static_cast<uint32_t*>(rows_.at(p.partials)) + row * p.outputs +
                                    results.output);
  }
  __device__ void publish_part(const ProductInstruction& p, int part, const Results& results,
                               const int (&sums)[kSums]) const {
    uint4 words;
    int doubled[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) doubled[i] = 2 * sums[i];
    memcpy(&words, doubled, sizeof words);
    publish(partial(p, part, results), words);
  }
  // Once all blocks have published the parts' sums of their tiles: by all, four results a lane.
  __device__ void add_up_parts(const ProductInstruction& p) const {
    look(true);
    const int all = static_cast<int>(gridDim.x) * kConsumerThreads;
    const int fours = p.x_rows * (p.outputs / kSums);
    for (int first = blocks_behind(p.dealt) * kWarp + warp() * (all / kConsumers); first < fours;
         first += all) {
      const Results results(first + lane(), p);
      const uint4 added = ask_added(p, results);
      float scales[kSums] = {};
      float biases[kSums];
      if (results.exist) load_floats(p.to.scales + results.output, scales);
      load_biases(p, results, biases);
      uint4 words[kMaxInputParts];
      bring(
          words, true, [&](int part) { return part < p.input_parts && results.exist; },
          [&](int part) { return partial(p, part, results); });
      int sums[kSums] = {};
#pragma unroll
      for (const uint4& part : words) {
        int doubled[kSums];
        memcpy(doubled, &part, sizeof doubled);
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] += doubled[i] / 2;
      }
      finish(p, results, sums, scales, biases, added);
    }
    look(false);
  }

  // The shared address of a lane's row of what is multiplied, and its place in a pair: lanes of
  // tokens that do not exist have the last one's, whose sums nobody takes.
  static __device__ uint32_t token_address(const ProductInstruction& p) {
    return shared_address(shared_memory().x) + min(lane() % 8, p.x_rows - 1) * token_pitch(p) +
           lane() / 8 * 16;
  }

  static __device__ void multiply_chunk(const ProductInstruction& p, const Stage& stage, int chunk,
                                        int (&sums)[4]) {
    const int first = chunk * kChunkBytes;
    const int bytes = min(kChunkBytes, token_bytes(p) - first);
    const uint32_t x = token_address(p) + first;
    const uint32_t weights =
        shared_address(stage.weights) + lane() % kTileRows * kPitch + lane() / kTileRows * 16;
    int others[4] = {};  // a chain of their own
    const auto multiply_pair = [&](int at, const uint32_t(&columns)[4]) {
      uint32_t rows[4];
      load_matrices<false>(rows, weights + at);
      mma_16x8x32(sums, rows, columns[0], columns[1]);
      load_matrices<false>(rows, weights + at + kPairBytes / 2);
      mma_16x8x32(others, rows, columns[2], columns[3]);
    };
    if (bytes == kChunkBytes) {
#pragma unroll
      for (int at = 0; at < kChunkBytes; at += kPairBytes) {
        uint32_t columns[4];
        load_matrices<false>(columns, x + at);
        multiply_pair(at, columns);
      }
    } else {
#pragma unroll 1
      for (int at = 0; at < bytes; at += kPairBytes) {
        uint32_t columns[4];
        load_matrices<false>(columns, x + at);
        // What is behind the row's end are zeros.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (at + 16 * i >= bytes) columns[i] = 0;
        }
        multiply_pair(at, columns);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += others[i];
  }

  // Sixteen-bit weights, as Multiplier has them, whose tensor core instructions have the same row
  // in all columns.
  __device__ void multiply_in_order(const ProductInstruction& p, StageReader& stages) const {
    const TilesOfBlock mine(p);
    const int chunks = ceil_div(p.row_bytes, kChunkBytes);
    const uint32_t x = token_address(p);
    for (int n = warp(); n < mine.count; n += kConsumers) {
      const Results results(p, mine[n]);
      const uint4 added = ask_added(p, results);
      OwnStages own(stages, n, mine.count, chunks);
      float values[kSums] = {};
      add_in_order(p, x, own, values);
      Sums(p, warp()).exchange(p, results, values);
      float biases[kSums];
      load_biases(p, results, biases);
      finish(p, results, values, biases, added);
      __syncwarp();
    }
    stages.pass(mine.count * chunks);
  }

  RowMemory rows_;
};

}  // namespace faststream::step_kernel
