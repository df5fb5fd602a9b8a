// Speed of the CPU backend's products on the shapes of a 1.1-billion-parameter Llama (hidden 2048,
// ffn 8192, 32 heads, 8 KV heads), of experts, of attention, and of drawing a token.
//
//   cpu-kernels-bench [--benchmark_filter=linear/int8] [--benchmark_repetitions=5]
//
// "GB/s" counts weights once; "GOP/s" two operations for each weight and row. The ceilings are in
// tests/bench/RESULTS.md. Weights rotate among copies that exceed the caches together, as the
// layers of a model do.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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

Backend& backend() {
  static const std::unique_ptr<Backend> instance = make_cpu_backend(available_threads());
  return *instance;
}

/// Copies of a weight matrix, at least kWorkingSet in all.
class Weights {
 public:
  Weights(WeightFormat format, const Shape& shape)
      : bytes_(static_cast<size_t>(shape.out * row_bytes(format, shape.in))),
        copies_(std::max<size_t>(1, (kWorkingSet + bytes_ - 1) / bytes_)),
        memory_(backend().allocate(bytes_ * copies_)),
        scales_(static_cast<size_t>(shape.out * scale_shape(format, shape.in).row_bytes()) / 4,
                0.001F) {
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
    weight_.format = format;
    weight_.rows = shape.out;
    weight_.cols = shape.in;
    weight_.scales = is_float(format) ? nullptr : scales_.data();
  }

  /// The next copy.
  const Weight& next() {
    weight_.data = memory_.get() + bytes_ * (turn_++ % copies_);
    return weight_;
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
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

/// One sequence of `tokens` queries at the end of a context of `context` positions.
void run_attention(benchmark::State& state, DType dtype, int32_t tokens, int32_t context) {
  constexpr int32_t kHeads = 32;
  constexpr int32_t kKvHeads = 8;
  constexpr int32_t kDim = 64;
  const int32_t n_pages = pages_for(context);
  Batch batch;
  batch.query_start = {0, tokens};
  batch.kv_len = {context};
  batch.max_pages = n_pages;
  for (int32_t p = 0; p < n_pages; ++p) {
    batch.page_table.push_back(p);
  }
  for (int32_t t = 0; t < tokens; ++t) {
    batch.tokens.push_back(0);
    batch.positions.push_back(context - tokens + t);
    batch.sequence_of.push_back(0);
  }
  const int64_t cache = int64_t{n_pages} * kKvHeads * kPageTokens * kDim;
  const std::vector<float> values = random_values(cache);
  const size_t bytes = static_cast<size_t>(cache) * dtype_size(dtype);
  const Buffer k = backend().allocate(bytes);
  const Buffer v = backend().allocate(bytes);
  for (int64_t i = 0; i < cache; ++i) {
    store_float(k.get(), dtype, static_cast<size_t>(i), values[static_cast<size_t>(i)]);
    store_float(v.get(), dtype, static_cast<size_t>(i), values[static_cast<size_t>(i)]);
  }
  constexpr int64_t kQkv = int64_t{kHeads + 2 * kKvHeads} * kDim;
  std::vector<float> qkv = random_values(tokens * kQkv);
  std::vector<float> out(static_cast<size_t>(tokens) * kHeads * kDim);
  const KvLayer kv{k.get(), v.get(), dtype, n_pages, kKvHeads, kDim, kDim};
  const BatchView view = backend().upload(batch);
  for (auto _ : state) {
    backend().attention(view, {qkv.data(), DType::f32, tokens, kQkv},
                        {nullptr, DType::f32, tokens, 0}, {}, kv, {.scale = 0.125F},
                        {out.data(), DType::f32, tokens, kHeads * kDim});
  }
  const double pairs = tokens * (context - (tokens - 1) / 2.0);
  state.counters["GOP/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 4e-9 * pairs * kHeads * kDim,
                         benchmark::Counter::kIsRate);
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

void register_all() {
  for (const WeightFormat format :
       {WeightFormat::int8, WeightFormat::bf16, WeightFormat::f16, WeightFormat::f32}) {
    for (const Shape& shape : {kQkv, kAttentionOut, kGateUp, kDown, kOutput}) {
      for (const int64_t rows : {1, 4, 16, 32, 256}) {
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
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::bf16}) {
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
    int32_t tokens;
    int32_t context;
  };
  for (const auto& [tokens, context] :
       std::vector<Attention>{{1, 256}, {1, 2048}, {256, 256}, {2048, 2048}}) {
    const std::string name =
        "attention/bf16/tokens:" + std::to_string(tokens) + "/context:" + std::to_string(context);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [n = tokens, c = context](benchmark::State& state) {
                                   run_attention(state, DType::bf16, n, c);
                                 })
        ->UseRealTime()
        ->MinTime(0.2);
  }
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
