#include "convert/calibration/observing_backend.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/load_weights.h"
#include "kernels/cpu/experts/router.h"

namespace faststream::convert {
namespace {

// Few tokens say little of an expert's inputs: those of all experts of its layer count as so many.
constexpr double kTokensOfAll = 32;

// Nothing is chosen.
class NoChoices final : public Choices {
 public:
  void wait() override {}
  void read(size_t /*r*/, SampledToken& /*to*/) override {}
};

size_t bytes_of(int64_t elements, DType type) {
  return static_cast<size_t>(elements) * dtype_size(type);
}

// Elements of the blocks of products of so many columns.
size_t gram_elements(int64_t columns, int64_t block) {
  const int64_t rest = columns % block;
  return static_cast<size_t>(columns / block * block * block + rest * rest);
}

}  // namespace

ObservingBackend::ObservingBackend(std::unique_ptr<Backend> backend, const ModelFile& file,
                                   const ModelConfig& config, const std::set<TensorId>& wanted,
                                   const std::set<TensorId>& with_gram, int64_t gram_columns)
    : ForwardingBackend(std::move(backend)), gram_columns_(gram_columns) {
  for (const TensorPlan& plan : tensor_plan(config)) {
    TensorId id = plan.id;
    if (id.kind == TensorKind::embedding && plan.is_multiplied()) id.kind = TensorKind::output;
    if (!plan.is_multiplied() || !wanted.contains(id)) continue;
    const TensorInfo& tensor = file.require(plan.name, plan.stored_as(), plan.stored_shape());
    const int64_t parts = ActivationStatistics::parts_of(plan);
    Observed observed{.id = id,
                      .offset = tensor.offset,
                      .part_bytes = tensor.bytes / static_cast<uint64_t>(parts),
                      .columns = plan.columns(),
                      .of_experts = plan.experts > 0,
                      .has_gram = with_gram.contains(id),
                      .parts = {}};
    observed.parts.resize(static_cast<size_t>(parts));
    observed_.push_back(std::move(observed));
  }
  std::ranges::sort(observed_, {}, &Observed::offset);
}

const std::byte* ObservingBackend::load_weights(const WeightSource& source,
                                                const std::function<void(size_t)>& progress) {
  base_ = ForwardingBackend::load_weights(source, progress);
  first_offset_ = source.offset;
  return base_;
}

void ObservingBackend::linear(Input& input, const Weight& weight, const Epilogue& epilogue,
                              const Matrix& out) {
  observe(normalize(*this, input), weight);
  ForwardingBackend::linear(input, weight, epilogue, out);
}

void ObservingBackend::gated_linear(Input& input, const Weight& gate_up, const float* bias,
                                    const Gate& gate, const Matrix& out) {
  observe(normalize(*this, input), gate_up);
  ForwardingBackend::gated_linear(input, gate_up, bias, gate, out);
}

void ObservingBackend::head_linear(const Matrix& x, const Weight& weight, int64_t n_heads,
                                   const Matrix& out) {
  const int64_t width = x.cols / n_heads;
  const int64_t rows = weight.rows / n_heads;
  for (int64_t h = 0; h < n_heads; ++h) {
    const int64_t first = h * width + width - weight.cols;
    observe(x.columns(first, weight.cols), weight.row_range(h * rows, rows));
  }
  ForwardingBackend::head_linear(x, weight, n_heads, out);
}

// Attention over latents as products of heads, which are observed.
void ObservingBackend::latent_attention(const BatchView& batch, const Matrix& queries,
                                        const Matrix& cos_sin, const LatentHeads& heads,
                                        const KvLayer& kv, const AttentionRule& rule,
                                        const Matrix& latent_qkv, const Matrix& latent_sums,
                                        const Matrix& out) {
  // NOLINTNEXTLINE(bugprone-parent-virtual-call): the one made of other operations
  Backend::latent_attention(batch, queries, cos_sin, heads, kv, rule, latent_qkv, latent_sums, out);
}

std::unique_ptr<Choices> ObservingBackend::choose_greedily(LogitProduct& product,
                                                           const Matrix& /*logits*/,
                                                           std::span<const SamplingRow> /*rules*/) {
  observe(normalize(*this, product.input), product.weight);
  return std::make_unique<NoChoices>();
}

// As the reference has it, expert by expert, on rows that are brought together here.
void ObservingBackend::experts(Input& input, const Matrix& scores, const Router& router,
                               const Experts& experts, OutputMode output, const Matrix& out) {
  const Matrix& x = normalize(*this, input);
  const std::vector<float> rows = to_host(x);
  const std::vector<float> logits = to_host(scores);
  const auto in = static_cast<size_t>(x.cols);
  const auto hidden = static_cast<size_t>(out.cols);
  const auto scored = static_cast<size_t>(scores.cols);
  std::vector<float> sums = output == OutputMode::add
                                ? to_host(out)
                                : std::vector<float>(static_cast<size_t>(out.rows) * hidden);
  struct Use {
    size_t row;
    float weight;
  };
  // The router's numbers are in the backend's memory.
  std::vector<std::vector<float>> numbers;
  const auto on_host = [&](const float* from) -> const float* {
    if (from == nullptr) return nullptr;
    numbers.emplace_back(scored);
    copy_to_host(numbers.back().data(), from, scored * sizeof(float));
    return numbers.back().data();
  };
  Router chooser = router;
  chooser.correction = on_host(router.correction);
  chooser.expert_scales = on_host(router.expert_scales);
  std::vector<std::vector<Use>> uses(scored);
  std::vector<ChosenExpert> chosen(static_cast<size_t>(router.used));
  for (size_t t = 0; t < static_cast<size_t>(x.rows); ++t) {
    choose_experts(std::span(logits).subspan(t * scored, scored), chooser, chosen);
    for (const ChosenExpert& one : chosen) {
      uses[static_cast<size_t>(one.expert)].push_back({t, one.weight});
    }
  }
  for (size_t e = 0; e < scored; ++e) {
    if (uses[e].empty()) continue;
    std::vector<float> own;
    for (const Use& use : uses[e]) {
      const float factor = router.weighs_input ? use.weight : 1;
      for (size_t c = 0; c < in; ++c) own.push_back(factor * rows[use.row * in + c]);
    }
    const bool has_tensors = e < static_cast<size_t>(experts.n_experts);
    if (has_tensors) own = run_expert(experts, static_cast<int64_t>(e), own);
    for (size_t i = 0; i < uses[e].size(); ++i) {
      const float factor = router.weighs_input ? 1 : uses[e][i].weight;
      float* to = &sums[uses[e][i].row * hidden];
      for (size_t c = 0; c < hidden; ++c) to[c] += factor * own[i * hidden + c];
    }
  }
  for (int64_t r = 0; r < out.rows; ++r) {
    copy_to_device(out.row_range(r, 1).data, &sums[static_cast<size_t>(r) * hidden],
                   hidden * sizeof(float));
  }
}

std::vector<float> ObservingBackend::run_expert(const Experts& experts, int64_t expert,
                                                std::span<const float> rows) {
  const int64_t n = experts.n_experts;
  const auto part = [&](const Weight& weight) {
    return weight.row_range(expert * (weight.rows / n), weight.rows / n);
  };
  const auto bias_of = [&](const float* bias, const Weight& of_part) {
    return bias == nullptr ? nullptr : bias + expert * of_part.rows;
  };
  const Weight up = part(experts.up);
  const Weight down = part(experts.down);
  const auto count = static_cast<int64_t>(rows.size()) / up.cols;
  const DType act = activation_dtype(up.format);
  // Each at a multiple of 256 bytes.
  const auto room = [&](int64_t cols, DType type) {
    return (bytes_of(count * cols, type) + 255) / 256 * 256;
  };
  const size_t of_rows = room(up.cols, DType::f32);
  const size_t of_act = room(up.cols, act);
  const size_t of_middle = room(down.cols, act);
  std::byte* memory =
      take(expert_rows_, of_rows + of_act + of_middle + room(down.rows, DType::f32));
  const Matrix given(memory, DType::f32, count, up.cols);
  const Matrix x(memory + of_rows, act, count, up.cols);
  const Matrix middle(memory + of_rows + of_act, act, count, down.cols);
  const Matrix result(memory + of_rows + of_act + of_middle, DType::f32, count, down.rows);
  copy_to_device(given.data, rows.data(), rows.size_bytes());
  norm(given, {}, OutputMode::store, x);
  Input input{.x = x};
  if (experts.gated) {
    gated_linear(input, up, bias_of(experts.up_bias, up), experts.gate(), middle);
  } else {
    linear(input, up, {.bias = bias_of(experts.up_bias, up), .activation = experts.activation},
           middle);
  }
  Input activated{.x = middle};
  linear(activated, down, {.bias = bias_of(experts.down_bias, down)}, result);
  return to_host(result);
}

void ObservingBackend::observe(const Matrix& x, const Weight& weight) {
  const auto* data = static_cast<const std::byte*>(weight.data);
  if (base_ == nullptr || data < base_) return;
  const uint64_t offset = first_offset_ + static_cast<uint64_t>(data - base_);
  const auto after = std::ranges::upper_bound(observed_, offset, {}, &Observed::offset);
  if (after == observed_.begin()) return;
  Observed& observed = *std::prev(after);
  const uint64_t part = (offset - observed.offset) / observed.part_bytes;
  if (part >= observed.parts.size()) return;
  add(observed, to_host(x), observed.parts[part]);
}

void ObservingBackend::add(const Observed& observed, std::span<const float> rows, Sums& sums) {
  const auto columns = static_cast<size_t>(observed.columns);
  std::vector<float> squares(columns);  // of one step: few rows
  for (size_t at = 0; at < rows.size(); at += columns) {
    const float* row = &rows[at];
    for (size_t c = 0; c < columns; ++c) squares[c] += row[c] * row[c];
  }
  sums.squares.resize(columns);
  for (size_t c = 0; c < columns; ++c) sums.squares[c] += squares[c];
  const size_t count = rows.size() / columns;
  sums.count += static_cast<double>(count);
  if (observed.has_gram) add_products(observed, rows, sums);
}

// Xᵀ X is a product as the backend has it: columns of X are what is multiplied, and the weights.
void ObservingBackend::add_products(const Observed& observed, std::span<const float> rows,
                                    Sums& sums) {
  constexpr int64_t kTogether = 16;  // as devices like to read: zeros add nothing
  const int64_t columns = observed.columns;
  const auto n_rows = static_cast<int64_t>(rows.size()) / columns;
  const int64_t count = (n_rows + kTogether - 1) / kTogether * kTogether;
  if (sums.gram == nullptr) {
    const std::vector<float> zeros(gram_elements(columns, gram_columns_));
    sums.gram = allocate(zeros.size() * sizeof(float));
    copy_to_device(sums.gram.get(), zeros.data(), zeros.size() * sizeof(float));
  }
  std::vector<float> turned(static_cast<size_t>(columns * count));
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      turned[static_cast<size_t>(c * count + r)] = rows[static_cast<size_t>(r * columns + c)];
    }
  }
  std::byte* memory = take(turned_, turned.size() * sizeof(float));
  copy_to_device(memory, turned.data(), turned.size() * sizeof(float));
  auto* to = reinterpret_cast<float*>(sums.gram.get());
  for (int64_t first = 0; first < columns; first += gram_columns_) {
    const int64_t n = std::min(gram_columns_, columns - first);
    const Weight weight{.data = memory + bytes_of(first * count, DType::f32),
                        .format = WeightFormat::f32,
                        .rows = n,
                        .cols = count};
    Input input{.x = Matrix(memory + bytes_of(first * count, DType::f32), DType::f32, n, count)};
    ForwardingBackend::linear(input, weight, {.output = OutputMode::add},
                              Matrix(to + first * gram_columns_, DType::f32, n, n));
  }
}

std::vector<float> ObservingBackend::to_host(const Matrix& m) {
  const size_t element = dtype_size(m.dtype);
  const auto cols = static_cast<size_t>(m.cols);
  std::vector<float> values(static_cast<size_t>(m.rows) * cols);
  if (m.rows == 0) return values;
  // From the first element to the last, with what is between rows.
  std::vector<std::byte> raw(static_cast<size_t>((m.rows - 1) * m.stride + m.cols) * element);
  copy_to_host(raw.data(), m.data, raw.size());
  for (size_t r = 0; r < static_cast<size_t>(m.rows); ++r) {
    decode_row(format_of(m.dtype), raw.data() + r * static_cast<size_t>(m.stride) * element,
               nullptr, 0, std::span(values).subspan(r * cols, cols));
  }
  return values;
}

std::byte* ObservingBackend::take(Scratch& scratch, size_t bytes) {
  if (scratch.bytes < bytes) {
    synchronize();  // what is given back may be in use
    scratch.memory = nullptr;
    scratch.memory = allocate(bytes);
    scratch.bytes = bytes;
  }
  return scratch.memory.get();
}

InputMoments ObservingBackend::moments_of(const Observed& observed, const Sums& sums) {
  InputMoments moments{.count = sums.count, .mean_squares = {}};
  for (const double sum : sums.squares) {
    moments.mean_squares.push_back(static_cast<float>(sum / sums.count));
  }
  if (sums.gram != nullptr) {
    moments.gram_columns = gram_columns_;
    moments.gram.resize(gram_elements(observed.columns, gram_columns_));
    copy_to_host(moments.gram.data(), sums.gram.get(), moments.gram.size() * sizeof(float));
    for (float& value : moments.gram) value = static_cast<float>(value / sums.count);
  }
  return moments;
}

ActivationStatistics ObservingBackend::statistics() {
  ActivationStatistics statistics;
  for (const Observed& observed : observed_) {
    Sums all;  // of all experts, without products
    if (observed.of_experts) {
      all.squares.resize(static_cast<size_t>(observed.columns));
      for (const Sums& sums : observed.parts) {
        all.count += sums.count;
        for (size_t c = 0; c < sums.squares.size(); ++c) all.squares[c] += sums.squares[c];
      }
    }
    for (size_t p = 0; p < observed.parts.size(); ++p) {
      const Sums& sums = observed.parts[p];
      if (sums.count == 0 && all.count == 0) continue;
      InputMoments moments{
          .count = 0, .mean_squares = std::vector<float>(static_cast<size_t>(observed.columns))};
      if (sums.count > 0) moments = moments_of(observed, sums);
      if (all.count > 0) {
        for (size_t c = 0; c < moments.mean_squares.size(); ++c) {
          const double of_all = all.squares[c] / all.count;
          moments.mean_squares[c] =
              static_cast<float>((moments.mean_squares[c] * sums.count + of_all * kTokensOfAll) /
                                 (sums.count + kTokensOfAll));
        }
      }
      statistics.set(observed.id, static_cast<int64_t>(p), std::move(moments));
    }
  }
  return statistics;
}

}  // namespace faststream::convert
