// Times the CUDA backend's operations, products on the shapes of Llama-3-8B and experts on those of
// models that have some, and prints what they reach beside the GPU's ceiling. A plain program:
// cuda-kernels-bench [filter], where filter is a part of a name.
//
// Calls are captured in a CUDA graph, so launches by the host do not count; every call of a graph
// reads another copy of its weights or pages, so that the L2 cache (50 MB on an H100) does not
// help. The median of kRepeats launches after a warm-up.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/types.cuh"

namespace faststream {
namespace {

constexpr int kRepeats = 9;
constexpr int64_t kRotation = int64_t{2} << 30;  // bytes that the calls of a graph walk through
// H100 SXM5: HBM3 as measured, tensor cores as in NVIDIA's data sheet without sparsity.
constexpr double kMemoryGbs = 3100;
constexpr double kTflopsBf16 = 989;
constexpr double kTopsInt8 = 1979;
constexpr double kTflopsF32 = 67;

// Random signs and mantissas; as 16-bit floats, all in ±[1, 2) · 2^-4 so that sums stay finite.
__global__ void fill_kernel(uint16_t* data, int64_t count, uint16_t mask, uint16_t base) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    auto hash = static_cast<uint32_t>(i) * 2654435761U;
    hash ^= hash >> 15;
    hash *= 2246822519U;
    data[i] = static_cast<uint16_t>((hash >> 13 & mask) | base);
  }
}

struct GraphDestroy {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
struct GraphExecDestroy {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};

class Bench {
 public:
  explicit Bench(std::string filter) : filter_(std::move(filter)), backend_(0) {
    cuda_check(cudaEventCreate(&start_), "creating an event");
    cuda_check(cudaEventCreate(&stop_), "creating an event");
    weights_ = filled(kRotation, DType::bf16);
    scales_ = backend_.allocate(65536 * sizeof(float));
    const std::vector<float> ones(65536, 1.0F);
    backend_.copy_to_device(scales_.get(), ones.data(), ones.size() * sizeof(float));
    std::printf("%s\n%-44s %10s %12s %8s\n", backend_.description().c_str(), "operation", "us",
                "reached", "ceiling");
  }
  ~Bench() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// What becomes of sums: results of x's type, or f32, added to what is there or stored.
  enum class Finish { store, widen, add, gate };

  void linears() {
    struct Shape {
      const char* name;
      int64_t outputs;
      int64_t inputs;
      Finish finish;
    };
    constexpr Shape kShapes[] = {{"attention_qkv", 6144, 4096, Finish::store},
                                 {"attention_out", 4096, 4096, Finish::add},
                                 {"ffn_gate_up", 28672, 4096, Finish::gate},
                                 {"ffn_down", 4096, 14336, Finish::add},
                                 {"output", 128256, 4096, Finish::widen}};
    for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4, WeightFormat::bf16}) {
      for (const Shape& shape : kShapes) {
        for (const int64_t rows : {2, 4, 8, 16, 32, 64, 128, 256, 407, 512, 1024, 1536, 2048}) {
          const std::string name = std::string(shape.name) + " " +
                                   std::string(format_name(format)) + " rows " +
                                   std::to_string(rows);
          if (!wanted(name)) continue;
          linear(name, format, shape.outputs, shape.inputs, rows, shape.finish);
        }
      }
    }
  }

  void experts() {
    struct Shape {
      const char* name;
      int32_t n_experts;
      int32_t used;
      int64_t hidden;
      int64_t middle;
    };
    constexpr Shape kShapes[] = {{"qwen3-30b-a3b", 128, 8, 2048, 768},
                                 {"gpt-oss-20b", 32, 4, 2880, 2880},
                                 {"deepseek-v2-lite", 64, 6, 2048, 1408},
                                 {"gemma-4-26b-a4b", 128, 8, 2816, 704}};
    for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4, WeightFormat::bf16}) {
      for (const Shape& shape : kShapes) {
        for (const int64_t tokens : {1, 8, 64, 256, 512, 1024, 2048, 8192}) {
          const std::string name = "experts " + std::string(shape.name) + " " +
                                   std::string(format_name(format)) + " tokens " +
                                   std::to_string(tokens);
          if (!wanted(name)) continue;
          experts(name, format, shape.n_experts, shape.used, shape.hidden, shape.middle, tokens);
        }
      }
    }
  }

  /// Scores of experts: products of f32 weights.
  void routers() {
    constexpr std::pair<int64_t, int64_t> kShapes[] = {{64, 2048}, {128, 2816}};
    for (const auto& [outputs, inputs] : kShapes) {
      for (const int64_t rows : {1, 8, 32, 64, 128, 256, 512, 2048, 8192}) {
        const std::string name = "router " + std::to_string(outputs) + " of " +
                                 std::to_string(inputs) + " rows " + std::to_string(rows);
        if (wanted(name)) router(name, outputs, inputs, rows);
      }
    }
  }

  void attention_decodes() {
    for (const int32_t n_sequences : {1, 16, 64}) {
      for (const int32_t kv_len : {128, 512, 2048, 8192}) {
        for (const int32_t n_kv_heads : {32, 8}) {
          attention("attention decode, " + std::to_string(n_sequences) + " sequences, " +
                        std::to_string(n_kv_heads) + " KV heads, " + std::to_string(kv_len),
                    std::vector(static_cast<size_t>(n_sequences), kv_len), 1, n_kv_heads);
        }
      }
    }
    for (const int32_t n_sequences : {16, 64, 150, 250}) {
      for (const int32_t longest : {256, 1500}) {
        std::vector<int32_t> lengths;  // evenly from an eighth of the longest on, in no order
        for (int32_t s = 0; s < n_sequences; ++s) {
          lengths.push_back(longest - longest * 7 / 8 * s / n_sequences);
        }
        std::shuffle(lengths.begin(), lengths.end(), std::mt19937(2));
        attention("attention decode, " + std::to_string(n_sequences) + " sequences, 8 KV heads, " +
                      std::to_string(longest / 8) + " to " + std::to_string(longest),
                  lengths, 1, 8);
      }
    }
  }

  /// DeepSeek-V2-Lite's.
  void latents() {
    for (const int64_t rows : {1, 64, 512}) {
      heads("heads of keys, rows " + std::to_string(rows), 16, 64, 128, 512, rows);
      heads("heads of values, rows " + std::to_string(rows), 16, 0, 512, 128, rows);
    }
    for (const int32_t n_sequences : {1, 16, 64}) {
      for (const int32_t kv_len : {17, 1000, 7000}) {
        latent("latent decode, " + std::to_string(n_sequences) + " sequences, " +
                   std::to_string(kv_len),
               n_sequences, kv_len, 1);
      }
    }
    for (const int32_t n_queries : {32, 512, 2048, 8192}) {
      latent("latent prefill " + std::to_string(n_queries), 1, n_queries, n_queries);
    }
  }

  void attention_prefills() {
    for (const int32_t length : {128, 512, 2048}) {
      attention("attention prefill " + std::to_string(length), {length}, length, 32);
    }
    struct Shape {
      int32_t head_dim;
      int32_t n_heads;
      int32_t n_kv_heads;
    };
    for (const Shape& shape : {Shape{128, 32, 8}, {256, 16, 4}, {256, 16, 8}, {512, 16, 2}}) {
      attention("attention prefill 8192, heads of " + std::to_string(shape.head_dim) + ", " +
                    std::to_string(shape.n_kv_heads) + " KV heads",
                {8192}, 8192, shape.n_kv_heads, shape.n_heads, shape.head_dim);
    }
    for (const int32_t kv_len : {2048, 8192}) {
      for (const Shape& shape : {Shape{256, 16, 4}, {512, 16, 2}}) {
        attention("attention decode, 16 sequences, heads of " + std::to_string(shape.head_dim) +
                      ", " + std::to_string(kv_len),
                  std::vector<int32_t>(16, kv_len), 1, shape.n_kv_heads, shape.n_heads,
                  shape.head_dim);
      }
    }
  }

  /// Prompts of 8,192 tokens of layers as qwen3.5-9b has them, and of Mamba 2's heads.
  void recurrent_layers() {
    constexpr int64_t kTokens = 8192;
    Batch batch;
    batch.add_sequence(std::vector<int32_t>(kTokens), 0);
    batch.state_from = {0};
    batch.state_to = {1};
    batch.state_border = {2};
    const BatchView view = backend_.upload(batch);
    recur("recur 32 heads of 128 x 128, delta", view,
          {.n_heads = 32,
           .n_key_heads = 16,
           .key_dim = 128,
           .value_dim = 128,
           .delta = true,
           .unit_eps = 1e-6F,
           .query_scale = 0.088F});
    recur("recur 64 heads of 128 x 64", view,
          {.n_heads = 64, .n_key_heads = 1, .key_dim = 128, .value_dim = 64});

    constexpr int64_t kChannels = 8192;
    constexpr int64_t kTaps = 4;
    const Buffer x = filled(kTokens * (kChannels + 4096) * 2, DType::bf16);
    const Buffer out = filled(kTokens * kChannels * 2, DType::bf16);
    const Buffer states = zeros(3 * (kTaps - 1) * kChannels);
    const Matrix projected{x.get(), DType::bf16, kTokens, kChannels + 4096};
    const Convolution convolution{.taps = kTaps,
                                  .weight = reinterpret_cast<const float*>(scales_.get()),
                                  .activation = Activation::silu};
    run_memory("convolve 8192 tokens of 8192 channels", 8, kTokens * kChannels * 4, [&](int64_t) {
      backend_.convolve(view, projected.columns(0, kChannels), convolution,
                        {reinterpret_cast<float*>(states.get()), (kTaps - 1) * kChannels, 3},
                        {out.get(), DType::bf16, kTokens, kChannels});
    });
    run_memory("scale 8192 rows of 4096", 8, kTokens * 4096 * 6, [&](int64_t) {
      backend_.scale(projected.columns(kChannels, 4096), Activation::silu,
                     {out.get(), DType::bf16, kTokens, 4096});
    });
  }

  void small_operations() {
    for (const int64_t rows : {1, 512}) {
      const Buffer x = filled(rows * 4096 * 4, DType::bf16);
      const Buffer out = backend_.allocate(static_cast<size_t>(rows) * 4096 * 2);
      const Norm norm{.kind = NormKind::rms,
                      .weight = reinterpret_cast<const float*>(scales_.get()),
                      .eps = 1e-5F};
      run_memory("norm rows " + std::to_string(rows), 32, rows * 4096 * 6, [&](int64_t) {
        backend_.norm({x.get(), DType::f32, rows, 4096}, norm, OutputMode::store,
                      {out.get(), DType::bf16, rows, 4096});
      });
    }
  }

  /// Not captured: sample() waits for its result, so this is what a decode step sees.
  void samples() {
    std::vector<LogitEdit> edits;  // of no effect, so that all repetitions see the same logits
    for (int32_t i = 0; i < 1000; ++i) edits.push_back({.token = 31 * i});
    const std::pair<const char*, SamplingRow> rules[] = {
        {"greedy", {}},
        {"top_k 40, top_p 0.95", {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F}},
        {"top_k 1000", {.temperature = 0.8F, .top_k = 1000}},
        {"top_k 5000", {.temperature = 0.8F, .top_k = 5000}},
        {"all tokens", {.temperature = 0.8F}},
        {"top_p 0.95", {.temperature = 0.8F, .top_p = 0.95F}},
        {"min_p 0.05", {.temperature = 0.8F, .min_p = 0.05F}},
        {"top_p 0.95, min_p 0.05", {.temperature = 0.8F, .top_p = 0.95F, .min_p = 0.05F}},
        {"top_k 40, 1000 edits", {.temperature = 0.8F, .top_k = 40, .edits = edits}},
        {"greedy, 5 logprobs", {.n_logprobs = 5}},
        {"top_k 40, 20 logprobs", {.temperature = 0.8F, .top_k = 40, .n_logprobs = 20}},
        {"rank 8", {.n_candidates = 8}},
        {"rank 8, 1000 edits", {.edits = edits, .n_candidates = 8}},
        {"rank 128", {.n_candidates = 128}}};
    for (const int64_t vocab : {32000, 128256}) {
      for (const int64_t rows : {1, 64}) {
        const Buffer logits = random_logits(rows * vocab);
        for (const auto& [what, rule] : rules) {
          sample("sample " + std::to_string(rows) + " x " + std::to_string(vocab) + ", " + what,
                 {logits.get(), DType::f32, rows, vocab}, rule);
        }
      }
    }
  }

 private:
  [[nodiscard]] bool wanted(const std::string& name) const {
    return name.find(filter_) != std::string::npos;
  }

  Buffer random_logits(int64_t count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(static_cast<size_t>(count));
    for (float& logit : logits) logit = normal(random);
    Buffer device = backend_.allocate(logits.size() * sizeof(float));
    backend_.copy_to_device(device.get(), logits.data(), logits.size() * sizeof(float));
    return device;
  }

  void sample(const std::string& name, const Matrix& logits, const SamplingRow& rule) {
    if (!wanted(name)) return;
    std::vector<SamplingRow> rules(static_cast<size_t>(logits.rows), rule);
    std::vector<SampledToken> sampled(rules.size());
    std::vector<double> times;
    for (int i = 0; i < 10 * kRepeats; ++i) {
      for (size_t r = 0; r < rules.size(); ++r) {
        rules[r].sequence = r;
        rules[r].position = static_cast<uint64_t>(i);
      }
      cuda_check(cudaEventRecord(start_, backend_.launched_stream()), "timing");
      backend_.sample(logits, rules, sampled);
      times.push_back(stop());
    }
    std::printf("%-44s %10.1f\n", name.c_str(), median(times));
  }

  Buffer filled(int64_t bytes, DType type) {
    Buffer buffer = backend_.allocate(static_cast<size_t>(bytes));
    const uint16_t mask = type == DType::bf16 ? 0x807f : 0x83ff;
    const uint16_t base = type == DType::bf16 ? 0x3d80 : 0x2c00;
    fill_kernel<<<1024, 256, 0, backend_.launched_stream()>>>(
        reinterpret_cast<uint16_t*>(buffer.get()), bytes / 2, mask, base);
    cuda_check(cudaGetLastError(), "filling a buffer");
    return buffer;
  }

  double stop() {
    cuda_check(cudaEventRecord(stop_, backend_.launched_stream()), "timing");
    cuda_check(cudaEventSynchronize(stop_), "timing");
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, start_, stop_), "timing");
    return 1000.0 * milliseconds;
  }

  static double median(std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    return times[times.size() / 2];
  }

  /// Microseconds of one call(i), i in [0, calls).
  double time(int calls, const std::function<void(int64_t)>& call) {
    for (int i = 0; i < 2; ++i) call(i);  // grows workspaces, chooses algorithms
    backend_.synchronize();
    const cudaStream_t stream = backend_.launched_stream();
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (int i = 0; i < calls; ++i) call(i);
    cudaGraph_t raw = nullptr;
    cuda_check(cudaStreamEndCapture(stream, &raw), "capturing");
    const std::unique_ptr<CUgraph_st, GraphDestroy> graph(raw);
    cudaGraphExec_t raw_executable = nullptr;
    cuda_check(cudaGraphInstantiate(&raw_executable, graph.get(), 0), "capturing");
    const std::unique_ptr<CUgraphExec_st, GraphExecDestroy> executable(raw_executable);
    std::vector<double> times;
    for (int i = 0; i < kRepeats + 1; ++i) {
      cuda_check(cudaEventRecord(start_, stream), "timing");
      cuda_check(cudaGraphLaunch(executable.get(), stream), "launching a graph");
      const double elapsed = stop();
      if (i > 0) times.push_back(elapsed / calls);
    }
    return median(times);
  }

  void run_memory(const std::string& name, int calls, int64_t bytes,
                  const std::function<void(int64_t)>& call) {
    if (!wanted(name)) return;
    const double us = time(calls, call);
    const double gbs = static_cast<double>(bytes) / us / 1e3;
    std::printf("%-44s %10.2f %7.0f GB/s %7.1f%%\n", name.c_str(), us, gbs, 100 * gbs / kMemoryGbs);
  }

  void run_compute(const std::string& name, int calls, double operations, double ceiling,
                   const std::function<void(int64_t)>& call) {
    if (!wanted(name)) return;
    const double us = time(calls, call);
    const double tops = operations / us / 1e6;
    std::printf("%-44s %10.2f %5.0f TFLOP/s %6.1f%%\n", name.c_str(), us, tops,
                100 * tops / ceiling);
  }

  void linear(const std::string& name, WeightFormat format, int64_t outputs, int64_t inputs,
              int64_t rows, Finish finish) {
    const bool gated = finish == Finish::gate;
    const DType out_type = gated || finish == Finish::store ? DType::bf16 : DType::f32;
    const int64_t bytes = outputs * row_bytes(format, inputs);
    const int64_t copies = kRotation / bytes;
    const int64_t columns = gated ? outputs / 2 : outputs;
    const Buffer x = filled(rows * inputs * 2, DType::bf16);
    const Buffer out = backend_.allocate(static_cast<size_t>(rows * columns) * 4);
    cuda_check(cudaMemsetAsync(out.get(), 0, static_cast<size_t>(rows * columns) * 4,
                               backend_.launched_stream()),
               "clearing a buffer");
    Input input{.x = {x.get(), DType::bf16, rows, inputs}};
    const auto call = [&](int64_t i) {
      const Weight weight{
          weights_.get() + i % copies * bytes, format, outputs, inputs,
          is_integer(format) ? reinterpret_cast<const float*>(scales_.get()) : nullptr};
      if (gated) {
        backend_.gated_linear(input, weight, nullptr, Activation::silu,
                              {out.get(), out_type, rows, columns});
      } else {
        const OutputMode output = finish == Finish::add ? OutputMode::add : OutputMode::store;
        backend_.linear(input, weight, {.output = output}, {out.get(), out_type, rows, columns});
      }
    };
    const int calls = static_cast<int>(std::clamp<int64_t>(copies, 8, 32));
    if (rows <= 16) {
      run_memory(name, calls, bytes, call);
    } else {
      run_compute(name, calls, 2.0 * static_cast<double>(rows * outputs * inputs),
                  is_integer(format) ? kTopsInt8 : kTflopsBf16, call);
    }
  }

  void router(const std::string& name, int64_t outputs, int64_t inputs, int64_t rows) {
    const Buffer x = filled(rows * inputs * 2, DType::bf16);
    const Buffer weight = filled(outputs * inputs * 4, DType::f32);
    const Buffer out = backend_.allocate(static_cast<size_t>(rows * outputs) * 4);
    const auto call = [&](int64_t /*i*/) {
      Input input{.x = {x.get(), DType::bf16, rows, inputs}};
      backend_.linear(input, {weight.get(), WeightFormat::f32, outputs, inputs}, {.in_order = true},
                      {out.get(), DType::f32, rows, outputs});
    };
    constexpr int kCalls = 16;
    run_compute(name, kCalls, 2.0 * static_cast<double>(rows * outputs * inputs), kTflopsF32, call);
  }

  /// Tokens choose at random, so that each of few reads weights of its own.
  void experts(const std::string& name, WeightFormat format, int32_t n_experts, int32_t used,
               int64_t hidden, int64_t middle, int64_t tokens) {
    const int64_t up_bytes = n_experts * 2 * middle * row_bytes(format, hidden);
    const int64_t bytes = up_bytes + up_bytes / 2;
    if (bytes > kRotation) return;
    const int64_t copies = kRotation / bytes;
    const Buffer x = filled(tokens * hidden * 2, DType::bf16);
    const Buffer out = backend_.allocate(static_cast<size_t>(tokens * hidden) * 4);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(static_cast<size_t>(tokens * n_experts));
    for (float& number : numbers) number = normal(random);
    const Buffer scores = backend_.allocate(numbers.size() * sizeof(float));
    backend_.copy_to_device(scores.get(), numbers.data(), numbers.size() * sizeof(float));
    const std::vector<float> ones(static_cast<size_t>(n_experts * std::max(2 * middle, hidden)), 1);
    const Buffer scales = backend_.allocate(ones.size() * sizeof(float));
    backend_.copy_to_device(scales.get(), ones.data(), ones.size() * sizeof(float));
    const auto* weight_scales =
        is_integer(format) ? reinterpret_cast<const float*>(scales.get()) : nullptr;
    const auto call = [&](int64_t i) {
      const std::byte* up = weights_.get() + i % copies * bytes;
      Input input{.x = {x.get(), DType::bf16, tokens, hidden}};
      backend_.experts(input, {scores.get(), DType::f32, tokens, n_experts},
                       {.used = used, .normalized = true},
                       {.n_experts = n_experts,
                        .up = {up, format, n_experts * 2 * middle, hidden, weight_scales},
                        .down = {up + up_bytes, format, n_experts * hidden, middle, weight_scales}},
                       OutputMode::add, {out.get(), DType::f32, tokens, hidden});
    };
    const int calls = static_cast<int>(std::clamp<int64_t>(copies, 8, 32));
    const int64_t pairs = tokens * used;
    if (pairs <= 16 * n_experts) {
      // The experts that random choices hit.
      const double missed = std::pow(1 - 1.0 / n_experts, static_cast<double>(pairs));
      const double hit = tokens == 1 ? used : n_experts * (1 - missed);
      run_memory(name, calls, static_cast<int64_t>(hit * static_cast<double>(bytes / n_experts)),
                 call);
    } else {
      run_compute(name, calls, 6.0 * static_cast<double>(pairs * middle * hidden),
                  is_integer(format) ? kTopsInt8 : kTflopsBf16, call);
    }
  }

  void heads(const std::string& name, int64_t n_heads, int64_t copied, int64_t inputs,
             int64_t outputs, int64_t rows) {
    if (!wanted(name)) return;
    const int64_t bytes = n_heads * outputs * inputs;
    const Weight weight = weight_of(WeightFormat::int8, n_heads * outputs, inputs);
    const int64_t in = n_heads * (copied + inputs);
    const int64_t width = n_heads * (copied + outputs);
    const Buffer x = filled(rows * in * 2, DType::bf16);
    const Buffer out = backend_.allocate(static_cast<size_t>(rows * width) * 2);
    run_memory(name, 32, bytes + 2 * rows * (in + width), [&](int64_t i) {
      Weight other = weight;
      other.data = weights_.get() + i % (kRotation / bytes) * bytes;
      backend_.head_linear({x.get(), DType::bf16, rows, in}, other, n_heads,
                           {out.get(), DType::bf16, rows, width});
    });
  }

  Weight weight_of(WeightFormat format, int64_t rows, int64_t cols) {
    return {.data = weights_.get(),
            .format = format,
            .rows = rows,
            .cols = cols,
            .scales = is_integer(format) ? scales_.get() : nullptr};
  }

  /// Of sequences in whose caches there are kv_len tokens, the last n_queries of them new.
  void latent(const std::string& name, int32_t n_sequences, int32_t kv_len, int32_t n_queries) {
    if (!wanted(name)) return;
    constexpr int64_t kHeads = 16;
    constexpr int64_t kRope = 64;
    constexpr int64_t kNope = 128;
    constexpr int64_t kValue = 128;
    constexpr int64_t kRank = 512;
    constexpr int64_t kKept = kRope + kRank;
    const int32_t each = pages_for(kv_len);
    const int32_t n_pages = each * n_sequences;
    Batch batch;
    batch.max_pages = each;
    const std::vector<int32_t> tokens(static_cast<size_t>(n_queries));
    for (int32_t s = 0; s < n_sequences; ++s) {
      batch.add_sequence(tokens, kv_len - n_queries);
      for (int32_t page = 0; page < each; ++page) {
        batch.page_table.push_back(page * n_sequences + s);
      }
    }
    const BatchView view = backend_.upload(batch);
    const int64_t rows = batch.n_tokens();
    const int64_t bytes = int64_t{n_pages} * kPageTokens * kKept * 2;
    const int64_t copies = std::max<int64_t>(1, kRotation / bytes);
    const Buffer queries = filled(rows * kHeads * (kRope + kNope) * 2, DType::bf16);
    const Buffer qkv = filled(rows * (kHeads + 1) * kKept * 2, DType::bf16);
    const Buffer sums = backend_.allocate(static_cast<size_t>(rows * kHeads * kRank) * 2);
    const Buffer out = backend_.allocate(static_cast<size_t>(rows * kHeads * kValue) * 2);
    const Buffer cos_sin = filled(rows * kRope * 4, DType::f32);
    const LatentHeads heads{.n_heads = kHeads,
                            .rope_dim = kRope,
                            .keys = weight_of(WeightFormat::int8, kHeads * kRank, kNope),
                            .values = weight_of(WeightFormat::int8, kHeads * kValue, kRank)};
    const auto call = [&](int64_t i) {
      std::byte* k = weights_.get() + i % copies * bytes;
      const KvLayer kv{.k = k,
                       .v = k + kRope * 2,
                       .dtype = DType::bf16,
                       .n_pages = n_pages,
                       .n_kv_heads = 1,
                       .head_dim = kKept,
                       .v_head_dim = kRank,
                       .values_in_keys = true};
      const Matrix all{qkv.get(), DType::bf16, rows, (kHeads + 1) * kKept};
      const Matrix rotations{cos_sin.get(), DType::f32, rows, kRope};
      if (n_queries == 1) {
        backend_.attention(view, all, rotations, {}, kv, {.scale = 0.07F},
                           {sums.get(), DType::bf16, rows, kHeads * kRank});
        return;
      }
      backend_.latent_attention(view, {queries.get(), DType::bf16, rows, kHeads * (kRope + kNope)},
                                rotations, heads, kv, {.scale = 0.07F}, all,
                                {sums.get(), DType::bf16, rows, kHeads * kRank},
                                {out.get(), DType::bf16, rows, kHeads * kValue});
    };
    if (n_queries == 1) {
      run_memory(name, 16, int64_t{n_sequences} * kv_len * kKept * 2, call);
    } else {
      run_compute(name, 4, 1.0 * n_queries * n_queries * kHeads * (kRope + kNope + kValue),
                  kTflopsBf16, call);
    }
  }

  Buffer zeros(int64_t floats) {
    const auto bytes = static_cast<size_t>(floats) * sizeof(float);
    Buffer buffer = backend_.allocate(bytes);
    cuda_check(cudaMemsetAsync(buffer.get(), 0, bytes, backend_.launched_stream()),
               "clearing a buffer");
    return buffer;
  }

  /// Of one sequence; its rows of queries, keys and values are joined.
  void recur(const std::string& name, const BatchView& view, Recurrence recurrence) {
    if (!wanted(name)) return;
    const int64_t keys = int64_t{recurrence.n_key_heads} * recurrence.key_dim;
    const int64_t values = int64_t{recurrence.n_heads} * recurrence.value_dim;
    const int64_t matrix = values * recurrence.key_dim;
    const Buffer rows = filled(view.n_tokens * (2 * keys + values) * 2, DType::bf16);
    const Buffer out = backend_.allocate(static_cast<size_t>(view.n_tokens * values) * 2);
    const Buffer gates = zeros(int64_t{view.n_tokens} * 2 * recurrence.n_heads);
    const Buffer states = zeros(3 * matrix);
    const std::vector<float> rates(static_cast<size_t>(recurrence.n_heads), -0.1F);
    const Buffer device_rates = zeros(recurrence.n_heads);
    const Buffer steps = zeros(recurrence.n_heads);
    backend_.copy_to_device(device_rates.get(), rates.data(), rates.size() * sizeof(float));
    recurrence.rates = reinterpret_cast<const float*>(device_rates.get());
    recurrence.steps = reinterpret_cast<const float*>(steps.get());
    const Matrix qkv{rows.get(), DType::bf16, view.n_tokens, 2 * keys + values};
    run_memory(name, 4, view.n_tokens * (2 * keys + 2 * values) * 2, [&](int64_t) {
      backend_.recur(view, qkv.columns(0, keys), qkv.columns(keys, keys),
                     qkv.columns(2 * keys, values),
                     {gates.get(), DType::f32, view.n_tokens, int64_t{2} * recurrence.n_heads},
                     recurrence, {reinterpret_cast<float*>(states.get()), matrix, 3},
                     {out.get(), DType::bf16, view.n_tokens, values});
    });
  }

  /// Of sequences with caches of these lengths, each with so many queries at its end.
  void attention(const std::string& name, const std::vector<int32_t>& kv_lens, int32_t n_queries,
                 int32_t n_kv_heads, int32_t n_heads = 32, int32_t head_dim = 128) {
    if (!wanted(name)) return;
    int32_t n_pages = 0;
    Batch batch;
    for (const int32_t kv_len : kv_lens) {
      n_pages += pages_for(kv_len);
      batch.max_pages = std::max(batch.max_pages, pages_for(kv_len));
    }
    const int64_t token_bytes = int64_t{n_kv_heads} * head_dim * 2;  // of K, and of V
    const int64_t bytes = n_pages * kPageTokens * token_bytes;
    if (2 * bytes > kRotation) return;
    const int64_t copies = kRotation / (2 * bytes);

    std::vector<int32_t> pages(static_cast<size_t>(n_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
    auto page = pages.begin();
    int64_t seen_bytes = 0;
    for (const int32_t kv_len : kv_lens) {
      const int32_t sequence = batch.n_sequences();
      batch.query_start.push_back(batch.n_tokens());
      for (int32_t i = 0; i < n_queries; ++i) {
        batch.tokens.push_back(0);
        batch.positions.push_back(kv_len - n_queries + i);
        batch.sequence_of.push_back(sequence);
      }
      batch.kv_len.push_back(kv_len);
      batch.page_table.insert(batch.page_table.end(), page, page + pages_for(kv_len));
      batch.page_table.resize(static_cast<size_t>(sequence + 1) *
                              static_cast<size_t>(batch.max_pages));
      page += pages_for(kv_len);
      seen_bytes += 2 * kv_len * token_bytes;
    }
    batch.query_start.push_back(batch.n_tokens());
    const BatchView view = backend_.upload(batch);
    const int64_t rows = batch.n_tokens();
    const int64_t columns = (n_heads + 2 * n_kv_heads) * head_dim;
    const Buffer qkv = filled(rows * columns * 2, DType::bf16);
    const Buffer out = backend_.allocate(static_cast<size_t>(rows) * n_heads * head_dim * 2);
    const auto call = [&](int64_t i) {
      std::byte* k = weights_.get() + i % copies * 2 * bytes;
      backend_.attention(view, {qkv.get(), DType::bf16, rows, columns},
                         {nullptr, DType::f32, rows, 0}, {},
                         {k, k + bytes, DType::bf16, n_pages, n_kv_heads, head_dim, head_dim},
                         {.scale = 0.06F}, {out.get(), DType::bf16, rows, n_heads * head_dim});
    };
    const int calls = static_cast<int>(std::clamp<int64_t>(copies, n_queries > 4096 ? 2 : 8, 32));
    if (n_queries == 1) {
      run_memory(name, calls, seen_bytes, call);
    } else {
      run_compute(name, calls, 2.0 * n_queries * n_queries * head_dim * n_heads, kTflopsBf16, call);
    }
  }

  std::string filter_;
  CudaBackend backend_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  Buffer weights_;
  Buffer scales_;
};

int run(int argc, char** argv) {
  if (cuda_device_count() == 0) {
    std::fprintf(stderr, "There is no GPU to measure: %s.\n", cuda_unavailable_reason().c_str());
    return 1;
  }
  Bench bench(argc > 1 ? argv[1] : "");
  bench.small_operations();
  bench.linears();
  bench.experts();
  bench.routers();
  bench.attention_decodes();
  bench.attention_prefills();
  bench.latents();
  bench.recurrent_layers();
  bench.samples();
  return 0;
}

}  // namespace
}  // namespace faststream

int main(int argc, char** argv) {
  try {
    return faststream::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
