// The residual stream, as branches of a layer read it and are added to it.
#pragma once

#include <span>

#include "backend/backend.h"
#include "models/activations.h"
#include "models/decoder_weights.h"
#include "models/pass.h"
#include "models/products.h"

namespace faststream {

/// x = norm(x), of each row.
inline void renormalize(Backend& backend, const Norm& norm, const Matrix& x) {
  if (norm.kind != NormKind::none) backend.norm(x, norm, OutputMode::store, x);
}

/// The same of several, of which other ranks may have further columns.
inline void renormalize(Backend& backend, std::span<const SharedNorm> norms) {
  if (norms.front().share) return backend.norm_over_ranks(norms);
  for (const auto& [x, norm, share] : norms) renormalize(backend, norm, x);
}

/// A branch up to its last product, which may add to the residual stream where it is.
struct LastProduct {
  const Pass& pass;
  Input input;
  const Linear& linear;

  /// out [rows, hidden] f32 = or += the branch.
  void operator()(OutputMode output, const Matrix& out) {
    multiply(pass, input, linear, out, output);
  }
};

/// One pass's, whose memory is the activations' `residual`. Other streams (AltUpConfig) lie beside
/// it in the same rows.
class Stream {
 public:
  Stream(Backend& backend, const Activations& memory, int64_t tokens)
      : backend_(backend),
        memory_(memory),
        parts_(memory.residual.first_rows(tokens)),
        rows_(parts_.columns(0, memory.normed.cols)) {}

  /// [rows, hidden] f32
  [[nodiscard]] const Matrix& rows() const { return rows_; }
  /// [rows, stream_dim] f32: with the other streams.
  [[nodiscard]] const Matrix& parts() const { return parts_; }

  /// Goes on with these rows alone, of parts().
  void keep(const Matrix& rows) {
    parts_ = rows;
    rows_ = parts_.columns(0, rows_.cols);
    copy_ = {};
  }

  /// Whoever writes to it says so.
  void is_changed() { copy_ = {}; }

  void normalize(const Norm& norm) { renormalize(backend_, norm, rows_); }

  /// factor: [1], in the backend's memory.
  void scale(const float* factor) {
    backend_.scale({const_cast<float*>(factor), DType::f32, 1, 1}, Activation::none, rows_);
    copy_ = {};
  }

  /// What a branch reads, in `memory` where it must be written: the stream itself, or its copy,
  /// where one is of the right type already, unless it may change first.
  [[nodiscard]] Input before(const Norm& norm, const Matrix& memory,
                             bool may_change = false) const {
    const auto serves = [&](const Matrix& rows) {
      return rows.data != nullptr && rows.dtype == memory.dtype && norm.kind == NormKind::none &&
             !may_change;
    };
    if (serves(rows_)) return {.x = rows_};
    if (serves(copy_)) return {.x = copy_};
    return {.x = rows_, .norm = norm, .normed = memory.first_rows(rows_.rows)};
  }

  /// Adds what last_product gives, through norms.after, to the other streams alone, if there are
  /// any, or else to this one, as add() does.
  template <typename Product>
  void add_to_others(const BranchNormWeights& norms, Product last_product) {
    if (parts_.cols == rows_.cols) return add(norms, last_product);
    const Matrix branch = memory_.branch.first_rows(rows_.rows);
    last_product(OutputMode::store, branch);
    const int64_t kept = parts_.cols - rows_.cols;  // the stream as it was
    for (int64_t at = rows_.cols; at < kept; at += rows_.cols) {
      backend_.norm(branch, norms.after, OutputMode::add, parts_.columns(at, rows_.cols));
    }
  }

  /// Adds what last_product(output, out) of a branch gives.
  template <typename Product>
  void add(const BranchNormWeights& norms, Product last_product) {
    if (norms.after.kind == NormKind::none) {
      last_product(OutputMode::add, rows_);
    } else {
      const Matrix branch = memory_.branch.first_rows(rows_.rows);
      last_product(OutputMode::store, branch);
      backend_.norm(branch, norms.after, OutputMode::add, rows_);
    }
    copy_ = {};
    if (norms.stream.kind == NormKind::none || memory_.stream_copy.data == nullptr) {
      normalize(norms.stream);
    } else {
      copy_ = memory_.stream_copy.first_rows(rows_.rows);
      backend_.norm_stream(rows_, norms.stream, copy_);
    }
  }

 private:
  Backend& backend_;
  const Activations& memory_;
  Matrix parts_;
  Matrix rows_;
  Matrix copy_ = {};  // the same as branches read it, where a norm wrote that; else without data
};

}  // namespace faststream
