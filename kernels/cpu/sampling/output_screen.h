// Which tokens can have the largest logit, found without the product of the whole output matrix.
//
// An output matrix W and a row x are rounded to eight bits, W' with a scale a channel, and
// multiplied in integers: at several times the rate of floats, and of a quarter of the bytes. From
// x · w - x' · w' = (x - x') · w' + x · (w - w') follows |x · w - x' · w'| <= |x - x'| |w'| +
// |x| |w - w'| (Cauchy-Schwarz). What falls below the largest logit by more than that need not be
// multiplied: of 58,101 normally distributed channels all but 1 to 15.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "kernels/cpu/isa/kernels.h"
#include "support/thread_pool.h"

namespace faststream {

/// At least |w'| and |w - w'| of channels, or the largest of blocks of kLogitBlock channels.
struct ChannelBounds {
  float* norms = nullptr;
  float* errors = nullptr;
};

/// What a row adds to the bounds of channels.
struct RowBounds {
  float of_norms = 0;   ///< at least |x - x'|, and what computing logits in floats may add
  float of_errors = 0;  ///< at least |x|

  /// How far the logit of channel or block `i` is at most from that of the rounded matrix and row;
  /// infinite or not a number where nothing is known of it.
  [[nodiscard]] float reach(const ChannelBounds& bounds, int64_t i) const {
    return of_norms * bounds.norms[i] + of_errors * bounds.errors[i];
  }
};

/// An output matrix rounded to eight bits, and how far it is from the matrix.
class OutputScreen {
 public:
  /// Columns that a matrix has at most.
  static constexpr int64_t kMostInputs = 1 << 16;

  /// Bytes that a screen of such a matrix takes.
  static size_t bytes(int64_t vocab, int64_t in);

  /// memory: bytes(), 64-byte aligned.
  OutputScreen(const Weight& weight, Buffer memory, const Kernels& kernels, ThreadPool& pool);

  /// The rounded matrix.
  [[nodiscard]] const Weight& rounded() const { return rounded_; }
  [[nodiscard]] const ChannelBounds& of_channels() const { return of_channels_; }
  [[nodiscard]] const ChannelBounds& of_blocks() const { return of_blocks_; }
  /// Of x [in], which is rounded to `room` [in].
  [[nodiscard]] RowBounds row_bounds(const float* x, int8_t* room) const;

 private:
  Buffer memory_;
  Weight rounded_;
  ChannelBounds of_channels_;
  ChannelBounds of_blocks_;
  float (*quantize_)(const float* x, int64_t in, int8_t* quantized);
};

}  // namespace faststream
