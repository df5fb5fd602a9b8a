// The likeliest token of each row by an OutputScreen: the product in eight bits says which tokens
// can be it, and the products of these in floats say which is, as few rows are multiplied: it does
// not depend on the rows beside. Where too many can be it, a row has all its logits multiplied.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/sampling/sample.h"

namespace faststream {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Of a vocabulary one part in so many is multiplied channel by channel at most, which takes several
// times as long for each as a product of all.
constexpr int64_t kCandidateShare = 32;

bool is_greedy(const SamplingRow& rule) {
  return rule.n_candidates == 0 && rule.n_logprobs < 0 && rule.temperature <= 0;
}

/// A row that is searched for its likeliest token.
class ScreenedRow {
 public:
  /// rounded [vocab]: logits of the rounded row and matrix, which change. room: of room_floats().
  ScreenedRow(const Kernels& kernels, const OutputScreen& screen, float* rounded, float* room)
      : kernels_(kernels),
        screen_(screen),
        vocab_(screen.rounded().rows),
        rounded_(rounded),
        largest_(room),
        high_(room + logit_blocks(vocab_)),
        quantized_(static_cast<int8_t*>(static_cast<void*>(room + 2 * logit_blocks(vocab_)))) {}

  static int64_t room_floats(int64_t vocab, int64_t in) { return 2 * logit_blocks(vocab) + in; }

  /// logit(token): that of x and the matrix. Nothing where too many tokens can be the likeliest, or
  /// a logit may be infinite or not a number.
  template <class Logit>
  std::optional<int32_t> likeliest(const float* x, std::span<const LogitEdit> edits,
                                   std::span<const uint32_t> mask, const Logit& logit) {
    const int64_t most = vocab_ / kCandidateShare;
    if (static_cast<int64_t>(edits.size()) > most) return {};
    // Edited tokens compete apart from the others.
    for (const LogitEdit& edit : edits) rounded_[edit.token] = -kInfinity;
    if (!mask.empty()) apply_mask(mask, {rounded_, static_cast<size_t>(vocab_)});
    const RowBounds bounds = screen_.row_bounds(x, quantized_);
    const std::optional<int64_t> start = bound_blocks(bounds);
    if (!start) return {};

    const auto key = [&](int64_t token) {
      return token_key(logit(token), static_cast<int32_t>(token));
    };
    uint64_t best = key(*start);
    int64_t candidates = 0;
    for (int64_t b = 0; b < logit_blocks(vocab_); ++b) {
      if (high_[b] < key_logit(best)) continue;
      const int64_t end = std::min((b + 1) * kLogitBlock, vocab_);
      for (int64_t token = b * kLogitBlock; token < end; ++token) {
        const float reach = bounds.reach(screen_.of_channels(), token) + rounding(rounded_[token]);
        if (rounded_[token] + reach < key_logit(best)) continue;
        if (++candidates > most) return {};
        best = std::max(best, key(token));
      }
    }
    for (const LogitEdit& edit : edits) {
      if (!may_draw(mask, static_cast<size_t>(edit.token))) continue;
      float edited = logit(edit.token);
      edit_logit(edit, edited);
      if (!(edited < kInfinity)) return {};
      best = std::max(best, token_key(edited, edit.token));
    }
    return key_id(best);
  }

 private:
  /// Of the sum of a product and a bias; finite.
  static float rounding(float logit) {
    return 0x1p-22F * std::min(std::abs(logit), std::numeric_limits<float>::max());
  }

  /// Finds what no logit of a block is above, and a token whose logit is one of the largest.
  std::optional<int64_t> bound_blocks(const RowBounds& bounds) {
    if (!kernels_.largest_logits(rounded_, vocab_, largest_)) return {};
    int64_t block = -1;
    float low = -kInfinity;
    for (int64_t b = 0; b < logit_blocks(vocab_); ++b) {
      const float reach = bounds.reach(screen_.of_blocks(), b) + rounding(largest_[b]);
      high_[b] = largest_[b] + reach;
      if (!(high_[b] < kInfinity)) return {};
      if (largest_[b] - reach > low) {
        low = largest_[b] - reach;
        block = b;
      }
    }
    if (block < 0) return {};
    const int64_t first = block * kLogitBlock;
    return first + kernels_.find_logit({rounded_ + first, vocab_ - first}, largest_[block], 0);
  }

  const Kernels& kernels_;
  const OutputScreen& screen_;
  int64_t vocab_;
  float* rounded_;
  float* largest_;  // of each block of `rounded`
  float* high_;     // no logit of a block is above
  int8_t* quantized_;
};

/// The logit of a token by a product of few rows, of which `row` is the one.
float logit_of(const DotTask& row, Kernels::Dot dot, const LogitProduct& product, int64_t token) {
  const Weight& weight = product.weight;
  float sum = 0;
  DotTask task = row;
  task.weights = weight.row(token);
  task.channels = 1;
  task.sums = &sum;
  dot(task);
  return product.bias != nullptr ? sum + product.bias[token] : sum;
}

}  // namespace

bool CpuBackend::has_screens_of(WeightFormat format, int64_t inputs) const {
  return kernels_.tiles_i8 && is_float(format) && inputs <= OutputScreen::kMostInputs;
}

const OutputScreen* CpuBackend::screen_of(const LogitProduct& product,
                                          std::span<const SamplingRow> rules) {
  // Rows that a screen takes as long to make as it saves of them.
  constexpr int64_t kRowsOfScreen = 64;
  const Weight& weight = product.weight;
  if (!has_screens_of(weight.format, weight.cols) || product.soft_cap > 0 || rules.empty() ||
      !std::all_of(rules.begin(), rules.end(), is_greedy)) {
    return nullptr;
  }
  if (screened_.matrix != weight.data) screened_ = {.matrix = weight.data};
  if (screened_.missed > kRowsOfScreen + screened_.rows / 4) {  // for good: nothing is counted
    screened_.screen.reset();
    return nullptr;
  }
  screened_.rows += static_cast<int64_t>(rules.size());
  if (screened_.rows <= kRowsOfScreen) return nullptr;
  if (!screened_.screen) {
    Buffer memory = allocate(OutputScreen::bytes(weight.rows, weight.cols));
    screened_.screen = std::make_unique<OutputScreen>(weight, std::move(memory), kernels_, pool_);
  }
  return screened_.screen.get();
}

std::unique_ptr<Choices> CpuBackend::choose_greedily(LogitProduct& product, const Matrix& logits,
                                                     std::span<const SamplingRow> rules) {
  const OutputScreen* screen = screen_of(product, rules);
  if (screen == nullptr) return nullptr;
  for (const SamplingRow& rule : rules) require_rule(rule, logits.cols);
  const Matrix x = normalize(*this, product.input);
  require(static_cast<int64_t>(rules.size()) == x.rows, "choose_greedily: one rule for each row");
  const Weight& weight = product.weight;
  multiply({linear_product(x, screen->rounded(), {.bias = product.bias}, logits)});

  std::vector<Product> rows;
  for (int64_t r = 0; r < x.rows; ++r) {
    rows.push_back(linear_product(x.row_range(r, 1), weight, {}, logits.row_range(r, 1)));
  }
  const FewRows few = prepare_few_rows(rows);
  std::vector<std::optional<int32_t>> found(rules.size());
  pool_.parallel_for(x.rows, 1, 1, [&](int thread, int64_t r, int64_t) {
    const auto i = static_cast<size_t>(r);
    ScreenedRow row(kernels_, *screen, static_cast<float*>(logits.data) + r * logits.stride,
                    thread_scratch_[static_cast<size_t>(thread)].get<float>(
                        ScreenedRow::room_floats(logits.cols, x.cols)));
    found[i] = row.likeliest(few.rows[i].x, rules[i].edits, rules[i].mask, [&](int64_t token) {
      return logit_of(few.rows[i], few.kernel, product, token);
    });
  });

  std::vector<size_t> missed;
  std::vector<SampledToken> sampled(rules.size());
  for (size_t r = 0; r < rules.size(); ++r) {
    if (found[r]) {
      sampled[r].token = *found[r];
    } else {
      missed.push_back(r);
    }
  }
  if (!missed.empty()) sample_missed(product, x, logits, rules, missed, sampled);
  return made_choices(std::move(sampled));
}

void CpuBackend::sample_missed(const LogitProduct& product, const Matrix& x, const Matrix& logits,
                               std::span<const SamplingRow> rules, std::span<const size_t> missed,
                               std::span<SampledToken> sampled) {
  screened_.missed += static_cast<int64_t>(missed.size());
  const auto count = static_cast<int64_t>(missed.size());
  Matrix rows(row_scratch_.get<float>(count * x.cols), DType::f32, count, x.cols);
  std::vector<SamplingRow> rules_of_missed;
  for (int64_t i = 0; i < count; ++i) {
    const size_t r = missed[static_cast<size_t>(i)];
    std::memcpy(rows.row_range(i, 1).data, x.row_range(static_cast<int64_t>(r), 1).data,
                static_cast<size_t>(x.cols) * sizeof(float));
    rules_of_missed.push_back(rules[r]);
  }
  const Matrix of_missed = logits.first_rows(count);
  multiply(
      {linear_product(rows, product.weight, {.bias = product.bias, .in_order = true}, of_missed)});
  std::vector<SampledToken> tokens(missed.size());
  sample_rows(of_missed, rules_of_missed, tokens);
  for (size_t i = 0; i < missed.size(); ++i) sampled[missed[i]] = std::move(tokens[i]);
}

}  // namespace faststream
