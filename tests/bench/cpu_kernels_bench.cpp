// Speed of the CPU backend's products on the shapes of a 1.1-billion-parameter Llama (hidden 2048,
// ffn 8192, 32 heads, 8 KV heads), of experts, of attention, of what hybrids have beside these, and
// of drawing a token.
//
//   cpu-kernels-bench [--benchmark_filter=linear/int8] [--benchmark_repetitions=5]
//
// FASTSTREAM_BENCH_THREADS says how many threads work, all without it.
//
// "GB/s" counts weights once; "GOP/s" two operations for each weight and row. The ceilings are in
// tests/bench/RESULTS.md. Weights rotate among copies that exceed the caches together, as the
// layers of a model do.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "support/machine.h"

namespace faststream {
namespace {

constexpr size_t kWorkingSet = size_t{256} << 20;

struct Shape {
  const char* name;
  int64_t out;
  int64_t in;
};

constexpr Shape kQkv{"qkv", 3072, 2048};
constexpr Shape kAttentionOut{"attention_out", 2048, 2048};
constexpr Shape kGateUp{"gate_up", 16384, 2048};
constexpr Shape kDown{"down", 2048, 8192};
constexpr Shape kOutput{"output", 32000, 2048};
constexpr Shape kSquare{"square", 4096, 4096};

Backend& backend() {
  static const std::unique_ptr<Backend> instance = [] {
    const char* threads = std::getenv("FASTSTREAM_BENCH_THREADS");
    return make_cpu_backend(threads != nullptr ? std::atoi(threads) : available_threads());
  }();
  return *instance;
}

void count_operations(benchmark::State& state, double of_each) {
  state.counters["GOP/s"] = benchmark::Counter(
      1e-9 * of_each * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void count_bytes(benchmark::State& state, double of_each) {
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * of_each * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

/// Copies of a weight matrix, at least kWorkingSet in all.
class Weights {
 public:
  Weights(WeightFormat format, const Shape& shape)
      : bytes_(static_cast<size_t>(shape.out * row_bytes(format, shape.in))),
        copies_(std::max<size_t>(1, (kWorkingSet + bytes_ - 1) / bytes_)),
        memory_(backend().allocate(bytes_ * copies_)),
        scales_(static_cast<size_t>(shape.out * scale_shape(format).row_bytes()) / 4, 0.001F) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-0.05F, 0.05F);
    // A short random pattern suffices: the speed does not depend on values, but denormals would
    // slow.
    std::vector<std::byte> pattern(size_t{4096} * dtype_size(stored_type(format)));
    for (size_t i = 0; i < 4096; ++i) {
      if (is_float(format)) {
        store_float(pattern.data(), stored_type(format), i, uniform(random));
      } else {
        pattern[i] = static_cast<std::byte>(static_cast<int8_t>(uniform(random) * 2000));
      }
    }
    for (size_t at = 0; at < bytes_ * copies_; at += pattern.size()) {
      std::memcpy(memory_.get() + at, pattern.data(),
                  std::min(pattern.size(), bytes_ * copies_ - at));
    }
    if (is_coded(format)) describe_groups(format, shape);
    weight_.format = format;
    weight_.rows = shape.out;
    weight_.cols = shape.in;
    weight_.scales = is_integer(format) ? scales_.data() : nullptr;
  }

  /// The next copy.
  const Weight& next() {
    weight_.data = memory_.get() + bytes_ * (turn_++ % copies_);
    return weight_;
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  /// Scales of 2^-7, zero points of 0.
  void describe_groups(WeightFormat format, const Shape& shape) {
    const auto rows = static_cast<size_t>(row_bytes(format, shape.in));
    const auto block = static_cast<size_t>(packed_block_bytes(format));
    const auto described = static_cast<size_t>(described_bytes(format));
    constexpr float kScale = 0x1p-7F;
    for (size_t row = 0; row < bytes_ * copies_; row += rows) {
      for (size_t at = row; at < row + rows; at += block) {
        if (format == WeightFormat::mxfp4) {
          std::memset(memory_.get() + at, 127 - 7, described);
          continue;
        }
        for (size_t i = 0; i < described; i += sizeof kScale) {
          std::memcpy(memory_.get() + at + i, &kScale, sizeof kScale);
        }
      }
    }
  }

  size_t bytes_;
  size_t copies_;
  Buffer memory_;
  std::vector<float> scales_;
  Weight weight_;
  size_t turn_ = 0;
};

std::vector<float> random_values(int64_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

void run_product(benchmark::State& state, WeightFormat format, const Shape& shape, int64_t rows,
                 bool gated) {
  Weights weights(format, shape);
  const int64_t n = gated ? shape.out / 2 : shape.out;
  std::vector<float> x = random_values(rows * shape.in);
  std::vector<float> out(static_cast<size_t>(rows * n));
  Input input{.x = {x.data(), DType::f32, rows, shape.in}};
  const Matrix output(out.data(), DType::f32, rows, n);
  for (auto _ : state) {
    if (gated) {
      backend().gated_linear(input, weights.next(), nullptr, Activation::silu, output);
    } else {
      backend().linear(input, weights.next(), {}, output);
    }
  }
  const auto count = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(count * static_cast<double>(weights.bytes()) * 1e-9,
                                              benchmark::Counter::kIsRate);
  state.counters["GOP/s"] = benchmark::Counter(
      count * 2e-9 * static_cast<double>(shape.out * shape.in * rows), benchmark::Counter::kIsRate);
}

/// The experts of a layer of 64 with 8 used, hidden 2048 and a middle of 1024. "GB/s" counts the
/// weights of those that some token uses.
void run_experts(benchmark::State& state, WeightFormat format, int64_t tokens) {
  constexpr int64_t kExperts = 64;
  constexpr int64_t kUsed = 8;
  constexpr int64_t kHidden = 2048;
  constexpr int64_t kMiddle = 1024;
  Weights up(format, {"up", kExperts * 2 * kMiddle, kHidden});
  Weights down(format, {"down", kExperts * kHidden, kMiddle});
  std::vector<float> x = random_values(tokens * kHidden);
  std::vector<float> out(x.size());
  // The choice changes from turn to turn.
  constexpr int64_t kTurns = 16;
  std::vector<float> scores = random_values(kTurns * tokens * kExperts);
  double used_bytes = 0;
  int64_t turn = 0;
  for (auto _ : state) {
    float* logits = scores.data() + turn++ % kTurns * tokens * kExperts;
    Input input{.x = {x.data(), DType::f32, tokens, kHidden}};
    backend().experts(input, {logits, DType::f32, tokens, kExperts}, {.used = kUsed},
                      {.n_experts = kExperts, .up = up.next(), .down = down.next()},
                      OutputMode::store, {out.data(), DType::f32, tokens, kHidden});
    // Expected of a random choice.
    const double share = 1 - std::pow(1 - double{kUsed} / kExperts, tokens);
    used_bytes += share * static_cast<double>(up.bytes() + down.bytes());
  }
  state.counters["GB/s"] = benchmark::Counter(used_bytes * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GOP/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 6e-9 * kHidden * kMiddle *
                             kUsed * static_cast<double>(tokens),
                         benchmark::Counter::kIsRate);
}

struct AttentionShape {
  const char* name;
  int32_t heads;
  int32_t kv_heads;
  int32_t dim;
};

constexpr AttentionShape kLlama{"bf16", 32, 8, 64};
constexpr AttentionShape kHeadsOf256{"heads_of_256", 16, 4, 256};
constexpr AttentionShape kHeadsOf512{"heads_of_512", 16, 2, 512};

/// One sequence of `tokens` new tokens at the end of a context of `context` positions.
Batch one_sequence(int32_t tokens, int32_t context) {
  Batch batch;
  batch.add_sequence(std::vector<int32_t>(static_cast<size_t>(tokens)), context - tokens);
  batch.max_pages = pages_for(context);
  for (int32_t p = 0; p < batch.max_pages; ++p) batch.page_table.push_back(p);
  return batch;
}

/// So many elements of a cache.
Buffer random_cache(DType dtype, int64_t count) {
  const std::vector<float> values = random_values(count);
  Buffer cache = backend().allocate(static_cast<size_t>(count) * dtype_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) store_float(cache.get(), dtype, i, values[i]);
  return cache;
}

double pairs_of(int32_t tokens, int32_t context) { return tokens * (context - (tokens - 1) / 2.0); }

void run_attention(benchmark::State& state, const AttentionShape& shape, DType dtype,
                   int32_t tokens, int32_t context) {
  const Batch batch = one_sequence(tokens, context);
  const int64_t cache = int64_t{batch.max_pages} * shape.kv_heads * kPageTokens * shape.dim;
  const Buffer k = random_cache(dtype, cache);
  const Buffer v = random_cache(dtype, cache);
  const int64_t qkv_dim = int64_t{shape.heads + 2 * shape.kv_heads} * shape.dim;
  const int64_t sums_dim = int64_t{shape.heads} * shape.dim;
  std::vector<float> qkv = random_values(tokens * qkv_dim);
  std::vector<float> out(static_cast<size_t>(tokens * sums_dim));
  const KvLayer kv{k.get(), v.get(), dtype, batch.max_pages, shape.kv_heads, shape.dim, shape.dim};
  const BatchView view = backend().upload(batch);
  for (auto _ : state) {
    backend().attention(view, {qkv.data(), DType::f32, tokens, qkv_dim},
                        {nullptr, DType::f32, tokens, 0}, {}, kv, {.scale = 0.125F},
                        {out.data(), DType::f32, tokens, sums_dim});
  }
  count_operations(state, 4 * pairs_of(tokens, context) * static_cast<double>(sums_dim));
}

/// As DeepSeek-V2-Lite has it. "GOP/s" counts attention as of heads of 192 and 128, and what these
/// heads are made by, once for each token.
void run_latent_attention(benchmark::State& state, int32_t tokens, int32_t context) {
  constexpr int64_t kHeads = 16;
  constexpr int64_t kRank = 512;
  constexpr int64_t kRope = 64;
  constexpr int64_t kPart = 128;  // of a key, and a value
  constexpr int64_t kKept = kRope + kRank;
  Weights keys(WeightFormat::int8, {"keys", kHeads * kRank, kPart});
  Weights values(WeightFormat::int8, {"values", kHeads * kPart, kRank});
  const Batch batch = one_sequence(tokens, context);
  const Buffer latents = random_cache(DType::bf16, int64_t{batch.max_pages} * kPageTokens * kKept);
  std::vector<float> queries = random_values(tokens * kHeads * (kRope + kPart));
  std::vector<float> latent_qkv = random_values(tokens * (kHeads + 1) * kKept);
  std::vector<float> latent_sums(static_cast<size_t>(tokens * kHeads * kRank));
  std::vector<float> out(static_cast<size_t>(tokens * kHeads * kPart));
  const KvLayer kv{.k = latents.get(),
                   .v = latents.get() + kRope * dtype_size(DType::bf16),
                   .dtype = DType::bf16,
                   .n_pages = batch.max_pages,
                   .n_kv_heads = 1,
                   .head_dim = kKept,
                   .v_head_dim = kRank,
                   .values_in_keys = true};
  const BatchView view = backend().upload(batch);
  for (auto _ : state) {
    backend().latent_attention(
        view, {queries.data(), DType::f32, tokens, kHeads * (kRope + kPart)},
        {nullptr, DType::f32, tokens, 0},
        {.n_heads = kHeads, .rope_dim = kRope, .keys = keys.next(), .values = values.next()}, kv,
        {.scale = 0.07F}, {latent_qkv.data(), DType::f32, tokens, (kHeads + 1) * kKept},
        {latent_sums.data(), DType::f32, tokens, kHeads * kRank},
        {out.data(), DType::f32, tokens, kHeads * kPart});
  }
  const double of_pair = 2 * kHeads * (kRope + 2 * kPart);
  const double of_token = 4 * kHeads * kRank * kPart;
  count_operations(state, of_pair * pairs_of(tokens, context) + of_token * tokens);
}

/// States of layers which exceed the caches together.
class States {
 public:
  explicit States(int64_t size)
      : size_(size),
        layers_(std::max<int64_t>(1, static_cast<int64_t>(kWorkingSet / 8) / size)),
        memory_(backend().allocate(static_cast<size_t>(layers_ * 3 * size) * sizeof(float))) {
    std::memset(memory_.get(), 0, static_cast<size_t>(layers_ * 3 * size) * sizeof(float));
  }

  /// The next layer's.
  StateLayer next() {
    auto* floats = static_cast<float*>(static_cast<void*>(memory_.get()));
    return {.data = floats + turn_++ % layers_ * 3 * size_, .stride = size_, .n_states = 3};
  }

 private:
  int64_t size_;
  int64_t layers_;
  Buffer memory_;
  int64_t turn_ = 0;
};

/// A step of one sequence that goes on from state 1, and writes state 2.
Batch recurrent_step(int32_t tokens) {
  Batch batch = one_sequence(tokens, tokens);
  batch.state_from = {1};
  batch.state_to = {2};
  batch.state_border = {0};
  return batch;
}

struct RecurrenceShape {
  const char* name;
  Recurrence recurrence;
};

constexpr RecurrenceShape kRecurrences[] = {
    {"delta",
     {.n_heads = 32,
      .n_key_heads = 16,
      .key_dim = 128,
      .value_dim = 128,
      .delta = true,
      .unit_eps = 1e-6F}},
    {"delta_by_channel",
     {.n_heads = 32,
      .n_key_heads = 32,
      .key_dim = 128,
      .value_dim = 128,
      .delta = true,
      .by_channel = true,
      .unit_eps = 1e-6F}},
    {"state_space", {.n_heads = 64, .n_key_heads = 8, .key_dim = 128, .value_dim = 64}}};

/// "GB/s" counts the state twice.
void run_recur(benchmark::State& state, Recurrence r, int64_t tokens) {
  const int64_t q_dim = int64_t{r.n_key_heads} * r.key_dim;
  const int64_t v_dim = int64_t{r.n_heads} * r.value_dim;
  const int64_t in = 2 * q_dim + v_dim;
  const int64_t size = r.key_dim * v_dim;
  const std::vector<float> rates(static_cast<size_t>(r.n_heads), -0.5F);
  const std::vector<float> steps(static_cast<size_t>(r.n_heads * r.key_dim), 0.1F);
  r.rates = rates.data();
  r.steps = steps.data();
  std::vector<float> qkv = random_values(tokens * in);
  std::vector<float> gates = random_values(tokens * gate_columns(r));
  std::vector<float> out(static_cast<size_t>(tokens * v_dim));
  States states(size);
  const Batch batch = recurrent_step(static_cast<int32_t>(tokens));
  const BatchView view = backend().upload(batch);
  const Matrix all(qkv.data(), DType::f32, tokens, in);
  for (auto _ : state) {
    backend().recur(view, all.columns(0, q_dim), all.columns(q_dim, q_dim),
                    all.columns(2 * q_dim, v_dim),
                    {gates.data(), DType::f32, tokens, gate_columns(r)}, r, states.next(),
                    {out.data(), DType::f32, tokens, v_dim});
  }
  count_bytes(state, 2.0 * sizeof(float) * static_cast<double>(size));
  count_operations(state, 6.0 * static_cast<double>(size * tokens));
}

/// As Falcon-Mamba has it. "GOP/s": of states, an exponential counted as one.
void run_scan(benchmark::State& state, int64_t tokens) {
  constexpr int64_t kChannels = 8192;
  constexpr int64_t kStates = 16;
  const std::vector<float> rates(static_cast<size_t>(kChannels * kStates), -0.5F);
  const std::vector<float> ones(static_cast<size_t>(kChannels), 0.1F);
  std::vector<float> x = random_values(tokens * kChannels);
  std::vector<float> gates = random_values(tokens * kChannels);
  std::vector<float> bc = random_values(tokens * 2 * kStates);
  std::vector<float> out(static_cast<size_t>(tokens * kChannels));
  const SelectiveScan scan{
      .state_size = kStates, .rates = rates.data(), .steps = ones.data(), .skips = ones.data()};
  States states(kChannels * kStates);
  const Batch batch = recurrent_step(static_cast<int32_t>(tokens));
  const BatchView view = backend().upload(batch);
  const Matrix b_and_c(bc.data(), DType::f32, tokens, 2 * kStates);
  for (auto _ : state) {
    backend().scan(view, {x.data(), DType::f32, tokens, kChannels},
                   {gates.data(), DType::f32, tokens, kChannels}, b_and_c.columns(0, kStates),
                   b_and_c.columns(kStates, kStates), scan, states.next(),
                   {out.data(), DType::f32, tokens, kChannels});
  }
  count_bytes(state, 2.0 * sizeof(float) * kChannels * kStates);
  count_operations(state, 7.0 * static_cast<double>(kChannels * kStates * tokens));
}

/// "GB/s" counts what is read and written of the tokens.
void run_convolve(benchmark::State& state, int64_t tokens) {
  constexpr int64_t kChannels = 8192;
  constexpr int64_t kTaps = 4;
  const std::vector<float> weight(static_cast<size_t>(kTaps * kChannels), 0.3F);
  std::vector<float> x = random_values(tokens * kChannels * 3 / 2);
  std::vector<float> out(static_cast<size_t>(tokens * kChannels));
  States states(kChannels * (kTaps - 1));
  const Batch batch = recurrent_step(static_cast<int32_t>(tokens));
  const BatchView view = backend().upload(batch);
  const Convolution convolution{
      .taps = kTaps, .weight = weight.data(), .activation = Activation::silu};
  for (auto _ : state) {
    backend().convolve(
        view, Matrix(x.data(), DType::f32, tokens, kChannels * 3 / 2).columns(0, kChannels),
        convolution, states.next(), {out.data(), DType::f32, tokens, kChannels});
  }
  count_bytes(state, 2.0 * sizeof(float) * static_cast<double>(kChannels * tokens));
}

/// Gated sums of 4096 a token, and norms of their 32 heads.
void run_scale(benchmark::State& state, Activation activation, int64_t tokens) {
  constexpr int64_t kColumns = 4096;
  std::vector<float> factors = random_values(tokens * kColumns * 3);
  std::vector<float> m(static_cast<size_t>(tokens * kColumns), 1e-30F);
  for (auto _ : state) {
    backend().scale(Matrix(factors.data(), DType::f32, tokens, 3 * kColumns).columns(0, kColumns),
                    activation, {m.data(), DType::f32, tokens, kColumns});
    m.assign(m.size(), 1.0F);
  }
  count_bytes(state, 3.0 * sizeof(float) * static_cast<double>(kColumns * tokens));
}

void run_head_norms(benchmark::State& state, int64_t tokens) {
  constexpr int64_t kDim = 128;
  const int64_t rows = 32 * tokens;
  std::vector<float> x = random_values(rows * kDim);
  const std::vector<float> weight(static_cast<size_t>(kDim), 1.0F);
  const Matrix m(x.data(), DType::f32, rows, kDim);
  for (auto _ : state) {
    backend().norm(m, {.kind = NormKind::rms, .weight = weight.data(), .eps = 1e-6F},
                   OutputMode::store, m);
  }
  count_bytes(state, 2.0 * sizeof(float) * static_cast<double>(rows * kDim));
}

/// Experts that are next to nothing beside the choice of `used` of `n`.
void run_router(benchmark::State& state, Router::Score score, int64_t n, int32_t used,
                int32_t groups, int64_t tokens) {
  constexpr int64_t kHidden = 32;
  Weights up(WeightFormat::f32, {"up", n * kHidden, kHidden});
  Weights down(WeightFormat::f32, {"down", n * kHidden, kHidden});
  std::vector<float> x = random_values(tokens * kHidden);
  std::vector<float> out(x.size());
  std::vector<float> scores = random_values(tokens * n);
  for (auto _ : state) {
    Input input{.x = {x.data(), DType::f32, tokens, kHidden}};
    backend().experts(input, {scores.data(), DType::f32, tokens, n},
                      {.used = used,
                       .score = score,
                       .groups = groups,
                       .groups_used = (groups + 1) / 2,
                       .normalized = true},
                      {.n_experts = static_cast<int32_t>(n),
                       .up = up.next(),
                       .down = down.next(),
                       .gated = false},
                      OutputMode::store, {out.data(), DType::f32, tokens, kHidden});
  }
}

/// One row of logits like a model's: normal, deviation 3.
void run_sample(benchmark::State& state, int64_t vocab, const SamplingRow& rule) {
  std::vector<float> logits = random_values(vocab);
  for (float& logit : logits) logit *= 3;
  std::vector<float> row(logits.size());
  SampledToken token;
  SamplingRow drawn = rule;
  for (auto _ : state) {
    row = logits;  // edits change them; 10 us
    ++drawn.position;
    backend().sample({row.data(), DType::f32, 1, vocab}, {&drawn, 1}, {&token, 1});
  }
}

void register_samples() {
  constexpr int64_t kVocab = 131072;
  static std::vector<LogitEdit> penalties;
  for (int32_t i = 0; i < 1000; ++i) penalties.push_back({i * 131, 1.1F, -0.1F});
  const std::vector<std::pair<const char*, SamplingRow>> rules = {
      {"greedy", {}},
      {"default", {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F}},
      {"all", {.temperature = 0.8F}},
      {"top_p", {.temperature = 0.8F, .top_p = 0.95F}},
      {"top_p_hot", {.temperature = 5, .top_p = 0.95F}},
      {"min_p", {.temperature = 0.8F, .min_p = 0.05F}},
      {"top_k_50000", {.temperature = 0.8F, .top_k = 50000, .top_p = 0.95F}},
      {"penalties", {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .edits = penalties}},
      {"rank", {.n_candidates = 8}},
      {"rank_penalties", {.edits = penalties, .n_candidates = 8}},
      {"logprobs", {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .n_logprobs = 20}},
      {"everything",
       {.temperature = 0.8F,
        .top_p = 0.95F,
        .min_p = 0.001F,
        .n_logprobs = 20,
        .edits = penalties}},
  };
  for (const auto& [name, rule] : rules) {
    benchmark::RegisterBenchmark(
        ("sample/" + std::string(name) + "/vocab:" + std::to_string(kVocab)).c_str(),
        [r = rule](benchmark::State& state) { run_sample(state, kVocab, r); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond)
        ->MinTime(0.1);
  }
}

void register_run(const std::string& name, const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.2);
}

void register_hybrids() {
  for (const auto& [tokens, context] : std::vector<std::pair<int32_t, int32_t>>{
           {1, 256}, {1, 4096}, {512, 512}, {512, 4096}, {64, 4096}}) {
    register_run(
        "latent_attention/tokens:" + std::to_string(tokens) + "/context:" + std::to_string(context),
        [n = tokens, c = context](benchmark::State& state) { run_latent_attention(state, n, c); });
  }
  for (const int64_t tokens : {1, 512}) {
    const std::string of_tokens = "/tokens:" + std::to_string(tokens);
    for (const auto& [name, recurrence] : kRecurrences) {
      register_run(
          "recur/" + std::string(name) + of_tokens,
          [r = recurrence, tokens](benchmark::State& state) { run_recur(state, r, tokens); });
    }
    register_run("scan" + of_tokens,
                 [tokens](benchmark::State& state) { run_scan(state, tokens); });
    register_run("convolve" + of_tokens,
                 [tokens](benchmark::State& state) { run_convolve(state, tokens); });
    register_run("scale/none" + of_tokens,
                 [tokens](benchmark::State& state) { run_scale(state, Activation::none, tokens); });
    register_run("scale/silu" + of_tokens,
                 [tokens](benchmark::State& state) { run_scale(state, Activation::silu, tokens); });
    register_run("head_norms" + of_tokens,
                 [tokens](benchmark::State& state) { run_head_norms(state, tokens); });
    register_run("router/softmax/8_of_256" + of_tokens, [tokens](benchmark::State& state) {
      run_router(state, Router::Score::softmax, 256, 8, 1, tokens);
    });
    register_run("router/sigmoid/8_of_256_in_8" + of_tokens, [tokens](benchmark::State& state) {
      run_router(state, Router::Score::sigmoid, 256, 8, 8, tokens);
    });
  }
}

void register_all() {
  for (const WeightFormat format : {WeightFormat::int4, WeightFormat::int8, WeightFormat::bf16,
                                    WeightFormat::f16, WeightFormat::f32}) {
    for (const Shape& shape : {kQkv, kAttentionOut, kGateUp, kDown, kOutput}) {
      for (const int64_t rows : {1, 4, 8, 16, 32, 256}) {
        const bool gated = shape.name == kGateUp.name;
        const std::string name = "linear/" + std::string(format_name(format)) + "/" + shape.name +
                                 "/rows:" + std::to_string(rows);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [=](benchmark::State& state) { run_product(state, format, shape, rows, gated); })
            ->UseRealTime()
            ->MinTime(0.2);
      }
    }
  }
  for (const WeightFormat format : kWeightFormats) {
    for (const int64_t rows : {1, 2, 4, 6, 8, 32, 128}) {
      benchmark::RegisterBenchmark(
          ("formats/" + std::string(format_name(format)) + "/rows:" + std::to_string(rows)).c_str(),
          [=](benchmark::State& state) { run_product(state, format, kSquare, rows, false); })
          ->UseRealTime()
          ->MinTime(0.2);
    }
  }
  for (const WeightFormat format : {WeightFormat::int4, WeightFormat::int8, WeightFormat::bf16}) {
    for (const int64_t tokens : {1, 4, 16, 64, 256}) {
      const std::string name =
          "experts/" + std::string(format_name(format)) + "/tokens:" + std::to_string(tokens);
      benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { run_experts(state, format, tokens); })
          ->UseRealTime()
          ->MinTime(0.2);
    }
  }
  struct Attention {
    AttentionShape shape;
    int32_t tokens;
    int32_t context;
  };
  for (const auto& [shape, tokens, context] : std::vector<Attention>{{kLlama, 1, 256},
                                                                     {kLlama, 1, 2048},
                                                                     {kLlama, 256, 256},
                                                                     {kLlama, 2048, 2048},
                                                                     {kHeadsOf256, 1, 2048},
                                                                     {kHeadsOf256, 512, 512},
                                                                     {kHeadsOf512, 1, 2048},
                                                                     {kHeadsOf512, 512, 512}}) {
    register_run("attention/" + std::string(shape.name) + "/tokens:" + std::to_string(tokens) +
                     "/context:" + std::to_string(context),
                 [s = shape, n = tokens, c = context](benchmark::State& state) {
                   run_attention(state, s, DType::bf16, n, c);
                 });
  }
  register_hybrids();
  register_samples();
}

}  // namespace
}  // namespace faststream

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  faststream::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
