#include "engine/embedder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "backend/batch.h"
#include "engine/cache_kinds.h"
#include "engine/kv_groups.h"
#include "engine/load_weights.h"
#include "engine/model_on_device.h"
#include "models/model.h"
#include "support/machine.h"
#include "support/thread_pool.h"

namespace faststream {
namespace {

// Tokens of a step, if no text has more: a device that has memory of its own wants many.
constexpr int64_t kHostStepTokens = 512;
constexpr int64_t kDeviceStepTokens = 16384;
constexpr int32_t kMaxStepTexts = 1024;
// Of a recurrent layer's states, of which each text of a step has one while the layer works.
constexpr size_t kMostStateBytes = size_t{256} << 20;
// Texts of which the tokens are kept at once.
constexpr size_t kTokenizedTexts = 8192;

// A text, or a pair of them, as the model takes it.
struct Tokens {
  std::vector<int32_t> ids = {};
  size_t first_of_second = 0;  ///< where segment 1 begins; ids.size(): nowhere
  bool cut = false;
};

// How many tokens of two texts stay where `room` is left, as Hugging Face's tokenizers cut pairs
// ("longest_first"): the longer one until both are equal, then both.
std::pair<size_t, size_t> cut_pair(size_t first, size_t second, size_t room) {
  const size_t shorter = std::min(first, second);
  if (first + second <= room) return {first, second};
  const size_t of_shorter = std::min(shorter, room / 2);
  const size_t of_longer = room - of_shorter;
  return first <= second ? std::pair(of_shorter, of_longer) : std::pair(of_longer, of_shorter);
}

// Whether keys and values are of use after their layer: a later one reads them, or they are those
// of a source, of which all layers of a decoder have some before its first one runs.
bool keeps_kv(const ModelConfig& config, int64_t layer) {
  return config.encoder || lends_kv(config, layer);
}

// Bytes of KV pages that the layers of a step need: those that layers share, as their keys and
// values are of no use after them, then those of each layer that keeps its own.
std::vector<size_t> kv_bytes(const ModelConfig& config, DType dtype, int32_t n_pages) {
  std::vector<size_t> bytes(1);
  for (const int64_t n : kv_layers(config)) {
    const size_t of_layer = static_cast<size_t>(n_pages) * kPageTokens *
                            kv_token_bytes(*kv_geometry(config.layer(n)), dtype);
    if (keeps_kv(config, n)) {
      bytes.push_back(of_layer);
    } else {
      bytes.front() = std::max(bytes.front(), of_layer);
    }
  }
  return bytes;
}

// Bytes of the largest state of a layer; 0: no layer has any.
size_t largest_state(const ModelConfig& config) {
  size_t bytes = 0;
  for (const int64_t n : state_layers(config))
    bytes = std::max(bytes, layer_state_bytes(config, n));
  return bytes;
}

// How many texts a step takes at most.
int32_t most_texts(size_t state_bytes) {
  if (state_bytes == 0) return kMaxStepTexts;
  return static_cast<int32_t>(std::clamp<size_t>(kMostStateBytes / state_bytes, 1, kMaxStepTexts));
}

void finish(const PoolingConfig& pooling, std::span<float> vector) {
  double squares = 0;
  for (float& value : vector) {
    if (!std::isfinite(value)) {
      throw Error(std::string("the model computes NaN or infinity; ") + kOverflowAdvice);
    }
    if (pooling.sigmoid) value = static_cast<float>(1 / (1 + std::exp(-double{value})));
    squares += double{value} * value;
  }
  if (!pooling.normalize) return;
  const double length = std::max(std::sqrt(squares), 1e-12);  // as PyTorch's normalize()
  for (float& value : vector) value = static_cast<float>(value / length);
}

}  // namespace

struct Embedder::Impl : ModelOnDevice {
  Impl(const std::filesystem::path& path, const EmbedderOptions& options)
      : ModelOnDevice(path, options.check_interrupted),
        check_interrupted(options.check_interrupted),
        pool(options.threads > 0 ? options.threads : available_threads()) {
    if (!config.output.none) {
      throw Error(file.name() +
                  ": writes text and gives no vectors; run it without --embed and --rank");
    }
    if (!config.pooling) {
      throw Error(file.name() + ": does not say how vectors are made; convert it with --pooling");
    }
    info = {.device = {},
            .vector_size = config.vector_size(),
            .context = choose_context(options),
            .scores = config.pooling->scores,
            .pairs = tokenizer->config().between.has_value(),
            .load_seconds = 0,
            .weight_bytes = weight_bytes()};
    place(options.device, options.threads, weight_bytes(), options.load_progress,
          [&](const auto& progress) {
            plan_steps();
            const WeightLookup weights = load_weights(file, config, *backend, progress);
            model = make_model(config, weights, *backend, limits);
            allocate_pages();
            allocate_states();
          });
    info.device = backend->description();
    info.load_seconds = load_seconds;
  }

  [[nodiscard]] int64_t choose_context(const EmbedderOptions& options) const {
    const int64_t most = config.pooling->max_tokens > 0 ? config.pooling->max_tokens  //
                                                        : config.max_context;
    const auto least = static_cast<int64_t>(special_tokens(true) + 2);
    if (most < least) {
      throw Error(file.name() + ": cuts texts at " + std::to_string(most) +
                  " tokens, which leaves no room for words; correct the checkpoint's length");
    }
    if (options.context == 0) return most;
    if (options.context < least || options.context > config.max_context) {
      throw UsageError("--context " + std::to_string(options.context) + ": the model takes " +
                       std::to_string(least) + " to " + std::to_string(config.max_context) +
                       " tokens");
    }
    return options.context;
  }

  // Around a text, or a pair.
  [[nodiscard]] size_t special_tokens(bool pair) const {
    const TokenizerConfig& around = tokenizer->config();
    const size_t between = pair && around.between ? around.between->size() : 0;
    return around.prefix.size() + around.suffix.size() + between;
  }

  // The largest steps for which there is memory.
  void plan_steps() {
    const int64_t preferred = backend->takes_memory_on_use() ? kHostStepTokens : kDeviceStepTokens;
    const DType activations = backend->activation_dtype(config.weight_format);
    const DType kv_type = backend->kv_dtype(config.weight_format);
    const size_t state_bytes = largest_state(config);
    int64_t tokens = std::max(preferred, info.context);
    for (;;) {
      limits = {
          .max_tokens = static_cast<int32_t>(tokens),
          .max_logits = static_cast<int32_t>(std::min<int64_t>(tokens, most_texts(state_bytes)))};
      n_text_pages = pages_for(tokens) + limits.max_logits;
      n_pages = config.encoder ? 2 * n_text_pages : n_text_pages;
      const std::vector<size_t> of_kv = kv_bytes(config, kv_type, n_pages);
      const size_t taken =
          weight_bytes() + activation_bytes(config, activations, limits) +
          std::accumulate(of_kv.begin(), of_kv.end(), size_t{0}) + n_states() * state_bytes +
          backend->scratch_bytes(step_bounds(config, limits, limits.max_logits, info.context));
      if (taken <= backend->free_memory()) return;
      if (tokens == info.context) {
        throw Error(file.name() + ": needs " + std::to_string(taken >> 20) +
                    " MiB of memory for texts of " + std::to_string(info.context) +
                    " tokens; give a smaller --context");
      }
      tokens = std::max(tokens / 2, info.context);
    }
  }

  void allocate_pages() {
    const DType dtype = backend->kv_dtype(config.weight_format);
    for (const size_t bytes : kv_bytes(config, dtype, n_pages)) {
      kv_memory.push_back(backend->allocate(bytes));
    }
    size_t keepers = 0;
    for (const int64_t n : kv_layers(config)) {
      const Buffer& memory = kv_memory[keeps_kv(config, n) ? ++keepers : 0];
      kv.push_back(kv_layer(*kv_geometry(config.layer(n)), dtype, memory.get(), n_pages, 0));
    }
  }

  // That of an empty text, and one for each text of a step.
  [[nodiscard]] size_t n_states() const { return static_cast<size_t>(limits.max_logits) + 1; }

  // All layers' states are in the same memory, for a text's are of no use after its layer: that of
  // an empty text, which none writes, is where it is for all of them.
  void allocate_states() {
    const size_t bytes = largest_state(config);
    if (bytes == 0) return;
    state_memory = backend->allocate(n_states() * bytes);
    const std::vector<std::byte> empty(bytes);
    backend->copy_to_device(state_memory.get(), empty.data(), bytes);
    states.assign(state_layers(config).size(),
                  {.data = reinterpret_cast<float*>(state_memory.get()),
                   .stride = static_cast<int64_t>(bytes / sizeof(float)),
                   .n_states = static_cast<int32_t>(n_states())});
  }

  [[nodiscard]] Tokens single(std::string_view text) const {
    const TokenizerConfig& around = tokenizer->config();
    const std::string& prompt = config.pooling->prompt;
    std::vector<int32_t> ids = prompt.empty()
                                   ? tokenizer->encode(text, false)
                                   : tokenizer->encode(prompt + std::string(text), false);
    const size_t room = static_cast<size_t>(info.context) - special_tokens(false);
    Tokens tokens{.cut = ids.size() > room};
    if (tokens.cut) ids.resize(room);
    tokens.ids = around.prefix;
    tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    tokens.ids.insert(tokens.ids.end(), around.suffix.begin(), around.suffix.end());
    tokens.first_of_second = tokens.ids.size();
    return tokens;
  }

  [[nodiscard]] Tokens pair(std::span<const int32_t> first, std::string_view text) const {
    const TokenizerConfig& around = tokenizer->config();
    const std::vector<int32_t> second = tokenizer->encode(text, false);
    const size_t room = static_cast<size_t>(info.context) - special_tokens(true);
    const auto [n_first, n_second] = cut_pair(first.size(), second.size(), room);
    Tokens tokens{.cut = n_first < first.size() || n_second < second.size()};
    const auto append = [&](std::span<const int32_t> ids) {
      tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    };
    append(around.prefix);
    append(first.first(n_first));
    append(*around.between);
    tokens.first_of_second = tokens.ids.size();
    append(std::span(second).first(n_second));
    append(around.suffix);
    if (!around.pair_segments) tokens.first_of_second = tokens.ids.size();
    return tokens;
  }

  // tokens_of(text) for each text, on all threads.
  template <typename TokensOf>
  std::vector<TextVector> run(std::span<const std::string> texts, const TokensOf& tokens_of) {
    std::vector<TextVector> vectors(texts.size());
    std::vector<Tokens> tokens;
    for (size_t done = 0; done < texts.size(); done += tokens.size()) {
      tokens.assign(std::min(kTokenizedTexts, texts.size() - done), {});
      pool.parallel_for(static_cast<int64_t>(tokens.size()), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          tokens[i] = tokens_of(texts[done + i]);
        }
      });
      for (size_t first = 0; first < tokens.size();) {
        if (tokens[first].ids.empty()) {
          ++first;
          continue;
        }
        if (check_interrupted) check_interrupted();
        const size_t count = texts_of_step(std::span(tokens).subspan(first));
        step(std::span(tokens).subspan(first, count),
             std::span(vectors).subspan(done + first, count));
        first += count;
      }
    }
    return vectors;
  }

  // How many of these the next step takes: up to one that has no tokens.
  [[nodiscard]] size_t texts_of_step(std::span<const Tokens> tokens) const {
    size_t count = 0;
    int64_t sum = 0;
    while (count < tokens.size() && count < static_cast<size_t>(limits.max_logits)) {
      const std::vector<int32_t>& ids = tokens[count].ids;
      sum += static_cast<int64_t>(ids.size());
      if (ids.empty() || sum > limits.max_tokens) break;
      ++count;
    }
    return count;
  }

  void step(std::span<const Tokens> tokens, std::span<TextVector> vectors) {
    if (config.encoder) {
      pack(tokens, *config.encoder);
      model->read_sources(backend->upload(batch), kv);
    }
    pack(tokens, config);
    const Matrix result = model->embed(backend->upload(batch), {.kv = kv, .states = states});
    values.resize(static_cast<size_t>(result.rows * result.cols));
    backend->copy_to_host(values.data(), result.data, values.size() * sizeof(float));
    const auto columns = static_cast<size_t>(result.cols);
    for (size_t i = 0; i < vectors.size(); ++i) {
      const auto row = std::span(values).subspan(i * columns, columns);
      finish(*config.pooling, row);
      vectors[i] = {.values = {row.begin(), row.end()},
                    .tokens = static_cast<int64_t>(tokens[i].ids.size()),
                    .cut = tokens[i].cut};
    }
  }

  // The texts as the model, or its encoder, reads them. Sources are in the second half of pages.
  void pack(std::span<const Tokens> texts, const ModelConfig& stack) {
    batch = Batch{};
    const bool is_encoder = &stack == config.encoder.get();
    const bool has_segments = stack.embedding.segments > 1;
    for (const Tokens& text : texts) {
      add_text(text.ids, stack);
      batch.max_pages = std::max(batch.max_pages, pages_for(batch.kv_len.back()));
      if (!is_encoder && !states.empty()) {
        batch.state_from.push_back(0);
        batch.state_to.push_back(batch.n_sequences());
        batch.state_border.push_back(0);
      }
      if (!has_segments) continue;
      for (size_t i = 0; i < text.ids.size(); ++i) {
        batch.segments.push_back(i < text.first_of_second ? 0 : 1);
      }
    }
    batch.page_table = pages_from(is_encoder ? n_text_pages : 0);
    if (is_encoder || !config.encoder) return;
    batch.source_len = batch.kv_len;
    batch.source_pages = pages_from(n_text_pages);
    batch.max_source_pages = batch.max_pages;
  }

  // A decoder beside an encoder sees them shifted.
  void add_text(const std::vector<int32_t>& ids, const ModelConfig& stack) {
    const int32_t rope_length = stack.rope_length(static_cast<int64_t>(ids.size()));
    if (&stack != &config || !config.pooling->start) return batch.add_sequence(ids, 0, rope_length);
    std::vector<int32_t> shifted = {*config.pooling->start};
    shifted.insert(shifted.end(), ids.begin(), ids.end() - 1);
    batch.add_sequence(shifted, 0, rope_length);
  }

  // As Batch::page_table: those of the batch's sequences, one after the other.
  [[nodiscard]] std::vector<int32_t> pages_from(int32_t page) const {
    std::vector<int32_t> table;
    for (const int32_t n : batch.kv_len) {
      for (int32_t i = 0; i < batch.max_pages; ++i) {
        table.push_back(i < pages_for(n) ? page++ : 0);
      }
    }
    return table;
  }

  std::function<void()> check_interrupted;
  ThreadPool pool;  // for tokenizing
  std::unique_ptr<Model> model;
  std::vector<Buffer> kv_memory;
  EmbedderInfo info;
  BatchLimits limits;
  int32_t n_text_pages = 0;
  int32_t n_pages = 0;  ///< with those of sources
  std::vector<KvLayer> kv;
  Buffer state_memory;
  std::vector<StateLayer> states;  // of state_layers()
  Batch batch;
  std::vector<float> values;
};

Embedder::Embedder(const std::filesystem::path& model, const EmbedderOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
Embedder::Embedder(Embedder&&) noexcept = default;
Embedder& Embedder::operator=(Embedder&&) noexcept = default;
Embedder::~Embedder() = default;

const EmbedderInfo& Embedder::info() const { return impl_->info; }

std::vector<TextVector> Embedder::embed(std::span<const std::string> texts) {
  return impl_->run(texts, [&](std::string_view text) { return impl_->single(text); });
}

std::vector<TextVector> Embedder::score(std::string_view first,
                                        std::span<const std::string> texts) {
  if (!impl_->info.scores || !impl_->info.pairs) {
    throw UsageError(impl_->file.name() + ": scores no pairs of texts; give a cross-encoder");
  }
  const std::vector<int32_t> ids = impl_->tokenizer->encode(first, false);
  return impl_->run(texts, [&](std::string_view text) { return impl_->pair(ids, text); });
}

}  // namespace faststream
