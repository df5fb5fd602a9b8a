#include "engine/runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/kv_groups.h"
#include "support/error.h"

namespace faststream {
namespace {

// The page in which the first position is that the token at `position` sees.
size_t first_page(int64_t position, int64_t window) {
  return static_cast<size_t>(std::max<int64_t>(position - window + 1, 0) / kPageTokens);
}

PagePool make_pool(const ModelConfig& config, const RunnerLimits& limits) {
  std::vector<WindowPages> windows;
  for (const KvGroup& group : kv_groups(config, DType::f32)) {
    if (group.window == 0) continue;
    const int32_t n_frames = limits.sequences == 0
                                 ? limits.n_pages
                                 : window_frames(group, limits.sequences, limits.batch.max_tokens);
    windows.emplace_back(group.window, n_frames, limits.n_pages);
  }
  return PagePool(limits.n_pages, limits.n_modest_pages, std::move(windows));
}

}  // namespace

SamplingRow sampling_row(const SamplingParams& params, int64_t position, int32_t stream) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .seed = params.seed.value_or(0),
          .sequence = static_cast<uint64_t>(stream),
          .position = static_cast<uint64_t>(position),
          .min_p = params.min_p};
}

Runner::Runner(const ModelFile& file, Backend& backend, const RunnerLimits& limits,
               const std::function<void(size_t)>& progress)
    : config_(read_config(file)),
      backend_(backend),
      limits_(limits),
      pages_(make_pool(config_, limits)) {
  model_ =
      make_model(config_, load_weights(file, config_, backend, progress), backend, limits.batch);

  const DType dtype = backend.kv_dtype(config_.weight_dtype);
  const std::vector<KvGroup> groups = kv_groups(config_, dtype);
  std::vector<int32_t> n_pages = {limits.n_pages};
  for (const WindowPages& window : pages_.windows()) n_pages.push_back(window.n_frames());
  for (size_t g = 0; g < groups.size(); ++g) {
    kv_bytes_ += static_cast<size_t>(n_pages[g]) * kPageTokens * groups[g].token_bytes;
  }
  kv_memory_ = backend.allocate(kv_bytes_);
  std::byte* memory = kv_memory_.get();
  kv_.resize(config_.layers.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<KvLayer>& of_group = kv_groups_.emplace_back();
    for (const int64_t n : groups[g].layers) {
      const AttentionConfig& attention = config_.layer(n).attention;
      const size_t half = static_cast<size_t>(n_pages[g]) * kPageTokens *
                          static_cast<size_t>(attention.kv_dim()) * dtype_size(dtype);
      of_group.push_back({.k = memory,
                          .v = memory + half,
                          .dtype = dtype,
                          .n_pages = n_pages[g],
                          .n_kv_heads = static_cast<int32_t>(attention.n_kv_heads),
                          .head_dim = static_cast<int32_t>(attention.head_dim),
                          .group = static_cast<int32_t>(g)});
      kv_[static_cast<size_t>(n)] = of_group.back();
      memory += 2 * half;
    }
  }
  logits_memory_ =
      backend.allocate(static_cast<size_t>(limits.batch.max_logits) *
                       static_cast<size_t>(logits_stride(config_.vocab)) * sizeof(float));
}

void Runner::check_tokens(std::span<const int32_t> tokens, int64_t vocab) const {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    throw Error("token id " + std::to_string(token) + " is outside the model's vocabulary of " +
                std::to_string(vocab));
  }
}

std::shared_ptr<Source> Runner::make_source(std::span<const int32_t> tokens) {
  const ModelConfig& encoder = *config_.encoder;
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  if (n_tokens < 1 || n_tokens > encoder.max_context) {
    throw Error("a source has " + std::to_string(n_tokens) +
                " tokens, but the encoder reads 1 to " + std::to_string(encoder.max_context));
  }
  check_tokens(tokens, encoder.vocab);
  if (pages_for(n_tokens) > pages_.n_free()) {
    throw Error("the KV cache has no room for a source of " + std::to_string(n_tokens) +
                " tokens; give fewer sequences or a larger --kv-tokens");
  }
  return std::make_shared<Source>(tokens, pages_);
}

void Runner::read_sources(std::span<Source* const> sources) {
  batch_ = Batch{};
  for (const Source* source : sources) {
    batch_.max_pages = std::max(batch_.max_pages, pages_for(source->n_tokens()));
  }
  batch_.page_table.resize(sources.size() * static_cast<size_t>(batch_.max_pages));
  auto row = batch_.page_table.begin();
  for (const Source* source : sources) {
    batch_.add_sequence(source->tokens(), 0, config_.encoder->rope_length(source->n_tokens()));
    std::ranges::copy(source->pages(), row);
    row += batch_.max_pages;
  }
  if (batch_.n_tokens() > limits_.batch.max_tokens) {
    throw Error("sources of " + std::to_string(batch_.n_tokens()) +
                " tokens exceed the limit of a batch, " + std::to_string(limits_.batch.max_tokens));
  }
  model_->read_sources(backend_.upload(batch_), kv_);
  for (Source* source : sources) source->is_read = true;
}

void Runner::step(std::span<const NewTokens> inputs) {
  advance(inputs);
  try {
    compute(inputs);
  } catch (...) {
    take_back(inputs);
    throw;
  }
}

void Runner::advance(std::span<const NewTokens> inputs) {
  take_pages(inputs);
  for (const NewTokens& input : inputs) {
    input.sequence->n_cached += static_cast<int32_t>(input.tokens.size());
  }
}

void Runner::take_back(std::span<const NewTokens> inputs) {
  for (const NewTokens& input : inputs) {
    input.sequence->n_cached -= static_cast<int32_t>(input.tokens.size());
  }
}

void Runner::compute(std::span<const NewTokens> inputs) {
  pack(inputs);
  product_ = model_->forward(backend_.upload(batch_), kv_);
}

// For the last step's logits [n_logits, vocab].
Matrix Runner::logits_memory() const {
  const Matrix rows(logits_memory_.get(), DType::f32, n_logits(), logits_stride(config_.vocab));
  return rows.columns(0, config_.vocab);
}

Matrix Runner::multiply_logits() {
  const Matrix logits = logits_memory();
  if (logits.rows == 0) return logits;
  backend_.linear(product_.input, product_.weight, {.bias = product_.bias}, logits);
  if (product_.soft_cap > 0) backend_.soft_cap(product_.soft_cap, logits);
  return logits;
}

std::unique_ptr<Choices> Runner::choose(std::span<const SamplingRow> rules) {
  if (auto choices = backend_.choose_likeliest(product_, logits_memory(), rules)) return choices;
  return backend_.choose(multiply_logits(), rules);
}

void Runner::sample(std::span<const SamplingRow> rules, std::vector<SampledToken>& sampled) {
  sampled.resize(rules.size());
  const std::unique_ptr<Choices> choices = choose(rules);
  choices->wait();
  for (size_t r = 0; r < sampled.size(); ++r) choices->read(r, sampled[r]);
}

std::vector<float> Runner::logits() {
  const auto rows = static_cast<size_t>(n_logits());
  const auto vocab = static_cast<size_t>(config_.vocab);
  const auto stride = static_cast<size_t>(logits_stride(config_.vocab));
  multiply_logits();
  std::vector<float> host(rows * stride);
  backend_.copy_to_host(host.data(), logits_memory_.get(), host.size() * sizeof(float));
  for (size_t r = 1; r < rows && stride != vocab; ++r) {
    std::copy_n(host.data() + r * stride, vocab, host.data() + r * vocab);
  }
  host.resize(rows * vocab);
  return host;
}

bool Runner::can_go_on(std::span<const int32_t> pages, int32_t n_tokens) const {
  const auto end = pages.begin() + pages_for(n_tokens);
  return std::ranges::all_of(pages_.windows(), [&](const WindowPages& window) {
    const auto first =
        pages.begin() + static_cast<ptrdiff_t>(first_page(n_tokens, window.window()));
    return std::all_of(std::min(first, end), end,
                       [&](int32_t page) { return window.frame(page) >= 0; });
  });
}

std::vector<std::vector<PageCopy>> Runner::copies_of_groups(std::span<const PageCopy> copies) {
  std::vector<std::vector<PageCopy>> of_groups = {{copies.begin(), copies.end()}};
  for (WindowPages& window : pages_.windows()) {
    for (const PageCopy& copy : copies) {
      window.hold(copy.from);
      window.hold(copy.to);
    }
    std::vector<PageCopy>& frames = of_groups.emplace_back(copies.size());
    std::ranges::transform(copies, frames.begin(), [&](const PageCopy& copy) {
      return PageCopy{.from = window.frame(copy.from), .to = window.frame(copy.to)};
    });
    for (const PageCopy& copy : copies) {
      window.release(copy.from);
      window.release(copy.to);
    }
  }
  return of_groups;
}

void Runner::copy(std::span<const std::vector<PageCopy>> copies) {
  for (size_t g = 0; g < copies.size(); ++g) backend_.copy_pages(kv_groups_[g], copies[g]);
}

Sequence Runner::fork(const Sequence& sequence) {
  Sequence fork{.n_cached = sequence.n_cached,
                .rope_length = sequence.rope_length,
                .pages = sequence.pages,
                .windows = std::vector<Sequence::HeldPages>(pages_.windows().size()),
                .source = sequence.source};
  for (const int32_t page : fork.pages) pages_.retain(page);
  hold_windows(fork);
  return fork;
}

PageCopy Runner::replace_page(Sequence& sequence, size_t index, int32_t page) {
  const int32_t old = std::exchange(sequence.pages[index], page);
  for (size_t g = 0; g < sequence.windows.size(); ++g) {
    if (index < sequence.windows[g].first || index >= sequence.windows[g].end) continue;
    pages_.windows()[g].hold(page);
    pages_.windows()[g].release(old);
  }
  pages_.release(old);
  return {.from = old, .to = page};
}

void Runner::release(Sequence& sequence) {
  for (size_t g = 0; g < sequence.windows.size(); ++g) {
    for (size_t i = sequence.windows[g].first; i < sequence.windows[g].end; ++i) {
      pages_.windows()[g].release(sequence.pages[i]);
    }
  }
  sequence.windows.clear();
  for (const int32_t page : sequence.pages) pages_.release(page);
  sequence.pages.clear();
  sequence.source.reset();
  sequence.n_cached = 0;
  sequence.rope_length = 0;
}

// Holds the pages that the next n_new tokens see and are written to, and lets go of those before.
void Runner::move_windows(Sequence& sequence, size_t n_new) {
  sequence.windows.resize(pages_.windows().size());
  const auto end = static_cast<size_t>(pages_for(sequence.n_cached + static_cast<int64_t>(n_new)));
  for (size_t g = 0; g < sequence.windows.size(); ++g) {
    WindowPages& window = pages_.windows()[g];
    Sequence::HeldPages& held = sequence.windows[g];
    const size_t first = first_page(sequence.n_cached, window.window());
    for (; held.first < std::min(first, held.end); ++held.first) {
      window.release(sequence.pages[held.first]);
    }
    held.first = std::max(held.first, first);
    held.end = std::max(held.end, held.first);
    for (; held.end < end; ++held.end) window.hold(sequence.pages[held.end]);
  }
}

// Checks everything first, so that a refusal changes nothing.
void Runner::take_pages(std::span<const NewTokens> inputs) {
  const auto missing_pages = [](const NewTokens& input) {
    return input.sequence->missing_pages(input.sequence->n_cached +
                                         static_cast<int64_t>(input.tokens.size()));
  };
  int64_t tokens = 0;
  int64_t logits = 0;
  int64_t pages = 0;
  for (const NewTokens& input : inputs) {
    const auto n = static_cast<int64_t>(input.tokens.size());
    if (n == 0) throw Error("a sequence in a batch has no tokens");
    check_tokens(input.tokens, config_.vocab);
    tokens += n;
    logits += input.logits == NewTokens::Logits::all    ? n
              : input.logits == NewTokens::Logits::last ? 1
                                                        : 0;
    pages += missing_pages(input);
  }
  if (tokens > limits_.batch.max_tokens || logits > limits_.batch.max_logits) {
    throw Error("a batch of " + std::to_string(tokens) + " tokens and " + std::to_string(logits) +
                " rows of logits exceeds the limits of " +
                std::to_string(limits_.batch.max_tokens) + " and " +
                std::to_string(limits_.batch.max_logits));
  }
  if (pages > pages_.n_free()) {
    throw Error("the KV cache has " + std::to_string(pages_.n_free()) + " free pages of " +
                std::to_string(kPageTokens) + " tokens, " + std::to_string(pages) +
                " are needed; give a smaller context or fewer sequences");
  }
  for (const NewTokens& input : inputs) {
    for (int32_t n = missing_pages(input); n > 0; --n) {
      input.sequence->pages.push_back(pages_.take());
    }
    move_windows(*input.sequence, input.tokens.size());
  }
}

void Runner::pack(std::span<const NewTokens> inputs) {
  batch_ = Batch{};
  for (const NewTokens& input : inputs) {
    batch_.max_pages =
        std::max(batch_.max_pages, static_cast<int32_t>(input.sequence->pages.size()));
  }
  for (const NewTokens& input : inputs) {
    const int32_t first_row = batch_.n_tokens();
    const auto n_new = static_cast<int32_t>(input.tokens.size());
    batch_.add_sequence(input.tokens, input.sequence->n_cached - n_new,
                        input.sequence->rope_length);
    if (input.logits == NewTokens::Logits::none) continue;
    const int32_t first =
        input.logits == NewTokens::Logits::all ? first_row : batch_.n_tokens() - 1;
    for (int32_t row = first; row < batch_.n_tokens(); ++row) batch_.logit_rows.push_back(row);
  }
  pack_pages(inputs);
  if (config_.encoder) pack_sources(inputs);
}

void Runner::pack_pages(std::span<const NewTokens> inputs) {
  const auto columns = static_cast<size_t>(batch_.max_pages);
  batch_.n_groups = static_cast<int32_t>(kv_groups_.size());
  batch_.page_table.resize(kv_groups_.size() * inputs.size() * columns);
  auto row = batch_.page_table.begin();
  const auto next_row = [&] { return std::exchange(row, row + batch_.max_pages); };
  for (const NewTokens& input : inputs) std::ranges::copy(input.sequence->pages, next_row());
  for (size_t g = 0; g < pages_.windows().size(); ++g) {
    for (const NewTokens& input : inputs) {
      const auto table = next_row();
      const Sequence::HeldPages& held = input.sequence->windows[g];
      for (size_t i = held.first; i < held.end; ++i) {
        table[static_cast<ptrdiff_t>(i)] = pages_.windows()[g].frame(input.sequence->pages[i]);
      }
    }
  }
}

void Runner::pack_sources(std::span<const NewTokens> inputs) {
  for (const NewTokens& input : inputs) {
    if (!input.sequence->source || !input.sequence->source->is_read) {
      throw Error("a sequence in a batch has no source that the encoder has read");
    }
    const Source& source = *input.sequence->source;
    batch_.source_len.push_back(source.n_tokens());
    batch_.max_source_pages =
        std::max(batch_.max_source_pages, static_cast<int32_t>(source.pages().size()));
  }
  batch_.source_pages.resize(inputs.size() * static_cast<size_t>(batch_.max_source_pages));
  auto row = batch_.source_pages.begin();
  for (const NewTokens& input : inputs) {
    std::ranges::copy(input.sequence->source->pages(), row);
    row += batch_.max_source_pages;
  }
}

}  // namespace faststream
