// Several ranks give what one device gives, up to rounding.
#include "engine/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/random_model.h"
#include "engine/device.h"
#include "engine/engine.h"
#include "engine/load_weights.h"
#include "engine/runner.h"
#include "engine/source.h"
#include "models/shares.h"
#include "ranks/local_link.h"
#include "ranks/nccl_library.h"
#include "support/error.h"
#include "unit/backend/backend_weights.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/logits_distance.h"
#include "unit/engine/mixed_requests.h"
#include "unit/engine/model_shapes.h"
#include "unit/models/descriptions.h"
#include "unit/normal.h"
#include "unit/ranks/fake_nccl.h"
#include "unit/support/set_variable.h"

namespace faststream {
namespace {

// As Ranks would have it, were CUDA not in use by then.
const int kKernelsAreLoadedAtOnce = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

constexpr RunnerLimits kRankLimits{.n_pages = 20, .batch = {.max_tokens = 128, .max_logits = 128}};

std::vector<int32_t> tokens_for(int32_t count, int32_t salt, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 37 + salt * 11 + i * i) % vocab));
  }
  return tokens;
}

// Logits of all tokens of three texts, whose prompts come in pieces and together; then of one text.
std::vector<float> logits_of(Runner& runner) {
  const int64_t vocab = runner.config().vocab;
  std::vector<std::vector<int32_t>> texts;
  std::vector<Sequence> sequences(3);
  for (int32_t s = 0; s < 3; ++s) texts.push_back(tokens_for(40 + 7 * s, s, vocab));
  if (runner.config().encoder) {
    for (Sequence& sequence : sequences) {
      runner.caches().look_at(sequence, tokens_for(21, 5, runner.config().encoder->vocab));
    }
    Source* source = sequences[0].source.get();
    runner.read_sources(std::vector<Source*>{source});
  }
  std::vector<float> all;
  for (const auto& [first, count] : {std::pair{0, 33}, {33, 1}, {34, 2}, {36, 1}}) {
    std::vector<NewTokens> inputs;
    for (size_t s = 0; s < texts.size(); ++s) {
      inputs.push_back(
          {&sequences[s],
           std::span(texts[s]).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
           NewTokens::Logits::all});
    }
    runner.step(inputs);
    const std::vector<float> logits = runner.logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  for (int32_t n = 37; n < 40; ++n) {  // one alone
    const NewTokens input{&sequences[1], std::span(texts[1]).subspan(static_cast<size_t>(n), 1),
                          NewTokens::Logits::all};
    runner.step({&input, 1});
    const std::vector<float> logits = runner.logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  for (Sequence& sequence : sequences) runner.release(sequence);
  return all;
}

struct Kind {
  std::string name;
  ModelConfig config;
};

ModelConfig one_kv_head() {
  ModelConfig config = odd_shape(WeightFormat::f32);
  config.layer_kinds[0].attention().n_kv_heads = 1;
  return config;
}

// Of which ranks have more logits than are gathered over a network.
ModelConfig many_tokens() {
  ModelConfig config = odd_shape(WeightFormat::f32);
  config.vocab = 20'000;
  return config;
}

std::vector<Kind> kinds() {
  return {{"grouped queries", odd_shape(WeightFormat::f32)},
          {"one KV head", one_kv_head()},
          {"many tokens", many_tokens()},
          {"rich", rich_shape(WeightFormat::f32)},
          {"hybrid", hybrid_shape(WeightFormat::f32)},
          {"small hybrid", small_hybrid()},
          {"exchanging", exchanging_shape()},
          {"latents", latent_decoder()},
          {"translator", small_translator()}};
}

// devices: of the ranks, or one.
std::vector<float> logits_on(const std::string& devices, const ModelFile& file) {
  Ranks ranks(devices, static_cast<int32_t>(device_names(devices).size()), nullptr);
  const auto backend = choose_backend(ranks.device().device, 1, 0);
  Runner runner(ranks.load(
      file, read_config(file), *backend, false,
      [](const ModelConfig&, const RankFigures&) { return kRankLimits; }, nullptr));
  return logits_of(runner);
}

// devices: of several ranks each.
void expect_logits_of_one_device(const std::vector<std::string>& devices,
                                 const std::string& alone_on) {
  for (Kind& kind : kinds()) {
    set_formats(kind.config, WeightFormat::f32, WeightFormat::f32, WeightFormat::f32);
    kind.config.formats.clear();
    const ModelImage image = bench::make_random_model(kind.config, 7);
    const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
    const std::vector<float> expected = logits_on(alone_on, file);
    for (const std::string& names : devices) {
      EXPECT_LT(distance(logits_on(names, file), expected), 1e-4) << kind.name << " on " << names;
    }
  }
}

TEST(Ranks, GiveTheLogitsOfOneDevice) {
  expect_logits_of_one_device({"cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu,cpu"}, "cpu");
}

// Two with a GPU each, if there are two, and several that share one: their hosts add up.
std::vector<std::string> ranks_on_gpus() {
  std::vector<std::string> devices = {"cuda:0,0", "cuda:0,0,0"};
  if (cuda_device_count() > 1) devices.emplace_back("cuda:0,1");
  return devices;
}

TEST(RanksCuda, GiveTheLogitsOfOneDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  expect_logits_of_one_device(ranks_on_gpus(), "cuda");
}

ModelConfig wide_shape(WeightFormat format) {
  ModelConfig config = plain_decoder({.n_layers = 3,
                                      .hidden = 512,
                                      .n_heads = 8,
                                      .n_kv_heads = 4,
                                      .head_dim = 64,
                                      .ffn_hidden = 768,
                                      .vocab = 1000,
                                      .max_context = 512});
  config.weight_format = config.output_format = format;
  config.embedding_format = is_float(format) ? format : WeightFormat::bf16;
  return config;
}

// Whether hosts add up, of ranks that share a GPU, or GPUs, in kernels of their own or in that of a
// step: to the last bit.
TEST(RanksCuda, AddUpAlikeByHostsAndInSteps) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "takes two GPUs";
  for (const WeightFormat format :
       {WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4, WeightFormat::fp8}) {
    ModelConfig exchanging = exchanging_shape();
    if (format == WeightFormat::bf16) set_formats(exchanging, format, format, format);
    for (const ModelConfig& config :
         {wide_shape(format), rich_shape(format), hybrid_shape(format), exchanging}) {
      const ModelImage image = bench::make_random_model(config, 7);
      const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
      EXPECT_EQ(logits_on("cuda:0,1", file), logits_on("cuda:0,0", file))
          << format_name(format) << ", " << config.hidden << " wide";
    }
  }
}

// Bits first: to compare millions of numbers one by one takes long where tests are not optimized.
void expect_rows(const std::vector<float>& found, const std::vector<float>& expected,
                 int64_t columns) {
  ASSERT_EQ(found.size(), expected.size());
  if (std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0) return;
  const auto [other, right] = std::ranges::mismatch(found, expected);
  if (other == found.end()) return;  // zeros of both signs
  const int64_t at = other - found.begin();
  ADD_FAILURE() << "row " << at / columns << " of " << std::ssize(found) / columns << ", column "
                << at % columns << ": " << *other << " where " << *right << " is right";
}

// The sums themselves, of all sizes and into rows with gaps: of what rank r gives, 1 + r times
// something, in float32.
void expect_sums(const std::string& names, DType type) {
  const std::vector<std::string> devices = device_names(names);
  const auto links = make_local_links(static_cast<int>(devices.size()));
  const auto check = [&](size_t rank) {
    const auto backend = choose_backend(devices[rank], 1, 0);
    backend->join(*links[rank], type);
    for (const auto& [rows, cols, stride] : std::vector<std::array<int64_t, 3>>{{1, 8, 8},
                                                                                {1, 4096, 4096},
                                                                                {3, 72, 80},
                                                                                {7, 52, 52},
                                                                                {64, 4096, 4096},
                                                                                {300, 8192, 16384},
                                                                                {5, 131, 140}}) {
      const auto numbers = [&](int64_t n) {
        std::vector<float> values(static_cast<size_t>(n));
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(i % 61) - 30;  // exact in 16 bits, and so are the sums
        }
        return values;
      };
      const std::vector<float> terms = numbers(rows * cols);
      std::vector<float> share = terms;
      for (float& x : share) x *= static_cast<float>(1 + rank);
      const std::vector<float> before = numbers(rows * stride);
      const Buffer share_memory = backend->allocate(share.size() * sizeof(float));
      const Buffer out_memory = backend->allocate(before.size() * sizeof(float));
      const Matrix out = Matrix(out_memory.get(), DType::f32, rows, stride).columns(0, cols);
      for (const OutputMode output : {OutputMode::add, OutputMode::store, OutputMode::add}) {
        backend->copy_to_device(share_memory.get(), share.data(), share.size() * sizeof(float));
        backend->copy_to_device(out_memory.get(), before.data(), before.size() * sizeof(float));
        backend->sum_over_ranks(Matrix(share_memory.get(), DType::f32, rows, cols), output, out);
        std::vector<float> after(before.size());
        backend->copy_to_host(after.data(), out_memory.get(), after.size() * sizeof(float));
        const auto n = static_cast<float>(devices.size());
        std::vector<float> expected = before;
        for (int64_t r = 0; r < rows; ++r) {
          float* row = expected.data() + r * stride;
          const float* term = terms.data() + r * cols;
          for (int64_t c = 0; c < cols; ++c) {
            row[c] = (output == OutputMode::add ? row[c] : 0) + n * (n + 1) / 2 * term[c];
          }
        }
        expect_rows(after, expected, stride);
      }
    }
  };
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    threads.emplace_back([&check, rank] { check(rank); });
  }
}

// What products send each other's ranks in the place of storing it: to the last bit what they
// store.
void expect_sent_shares(const std::string& names, std::initializer_list<int64_t> row_counts) {
  const std::vector<std::string> devices = device_names(names);
  const auto links = make_local_links(static_cast<int>(devices.size()));
  constexpr int64_t kInputs = 288;
  constexpr int64_t kOutputs = 1040;
  const auto check = [&](size_t rank, DType type) {
    const auto backend = choose_backend(devices[rank], 1, 0);
    backend->join(*links[rank], type);
    Random random(static_cast<uint32_t>(rank + 1));
    for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4,
                                      WeightFormat::fp8, WeightFormat::mxfp4, WeightFormat::f32}) {
      const DType act = backend->activation_dtype(format);
      const DeviceWeight weight(*backend, random_weight(random, format, kOutputs, kInputs));
      for (const int64_t rows : row_counts) {
        const DeviceTensor x(*backend, random_tensor(random, act, rows, kInputs));
        const HostTensor before = random_tensor(random, DType::f32, rows, kOutputs);
        const auto sum = [&](OutputMode mode) {
          const DeviceTensor share(*backend, HostTensor(DType::f32, rows, kOutputs));
          const DeviceTensor out(*backend, before);
          Input input{.x = x.matrix()};
          backend->linear(input, weight.weight(), {.output = mode}, share.matrix());
          backend->sum_over_ranks(share.matrix(), OutputMode::add, out.matrix());
          return out.fetch();
        };
        const HostTensor stored = sum(OutputMode::store);
        EXPECT_TRUE(sum(OutputMode::share).bytes == stored.bytes)
            << names << ", " << format_name(format) << ", " << rows << " rows";
      }
    }
  };
  for (const DType type : {DType::f32, DType::bf16}) {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      threads.emplace_back([&check, rank, type] { check(rank, type); });
    }
  }
}

// Rank 0 has the columns of all, others keep theirs.
void expect_gathered_columns(const std::string& names) {
  const std::vector<std::string> devices = device_names(names);
  const auto links = make_local_links(static_cast<int>(devices.size()));
  const auto check = [&](size_t rank) {
    const auto backend = choose_backend(devices[rank], 1, 0);
    backend->join(*links[rank], DType::bf16);
    for (const auto& [rows, cols, each] : std::vector<std::array<int64_t, 3>>{
             {1, 1000, 512}, {3, 131, 64}, {5, 130, 128}, {1, 40, 64}, {40, 60001, 32000}}) {
      const int64_t stride = (cols + 3) / 4 * 4;
      std::vector<float> values(static_cast<size_t>(rows * stride), -1.0F);
      const int64_t first = static_cast<int64_t>(rank) * each;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = first; c < std::min(first + each, cols); ++c) {
          values[static_cast<size_t>(r * stride + c)] = static_cast<float>(r * cols + c);
        }
      }
      const Buffer memory = backend->allocate(values.size() * sizeof(float));
      backend->copy_to_device(memory.get(), values.data(), values.size() * sizeof(float));
      const Matrix m = Matrix(memory.get(), DType::f32, rows, stride).columns(0, cols);
      backend->gather_columns(m, each);
      std::vector<float> after(values.size());
      backend->copy_to_host(after.data(), memory.get(), after.size() * sizeof(float));
      const int64_t end = std::min(cols, each * static_cast<int64_t>(devices.size()));
      std::vector<float> expected = values;
      for (int64_t r = 0; r < rows && rank == 0; ++r) {
        float* row = expected.data() + r * stride;
        for (int64_t c = 0; c < end; ++c) row[c] = static_cast<float>(r * cols + c);
      }
      expect_rows(after, expected, stride);
    }
  };
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    threads.emplace_back([&check, rank] { check(rank); });
  }
}

TEST(Ranks, GatherColumns) {
  expect_gathered_columns("cpu,cpu");
  expect_gathered_columns("cpu,cpu,cpu");
}

TEST(RanksCuda, GatherColumns) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  for (const std::string& devices : ranks_on_gpus()) expect_gathered_columns(devices);
}

TEST(Ranks, AddUpWhatEachGives) {
  for (const DType type : {DType::f32, DType::bf16}) {
    expect_sums("cpu,cpu", type);
    expect_sums("cpu,cpu,cpu", type);
  }
}

TEST(RanksCuda, AddUpWhatEachGives) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  for (const std::string& devices : ranks_on_gpus()) {
    for (const DType type : {DType::f32, DType::bf16}) expect_sums(devices, type);
  }
}

TEST(Ranks, SendTheSharesOfProducts) { expect_sent_shares("cpu,cpu", {1, 3}); }

TEST(RanksCuda, SendTheSharesOfProducts) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  for (const std::string& devices : ranks_on_gpus()) {
    expect_sent_shares(devices, {1, 3, 6, 17, 64, 130, 1300, 2100});
  }
}

// Of the kinds above, lest all be computed whole by every rank.
TEST(Ranks, ShareWhatCanBeShared) {
  for (const Kind& kind : kinds()) {
    const ModelConfig share = share_of(kind.config, {0, 2});
    EXPECT_TRUE(std::ranges::any_of(share.layer_kinds, &LayerConfig::shares_mixers)) << kind.name;
    EXPECT_TRUE(std::ranges::any_of(share.layer_kinds, &LayerConfig::shares_feed_forward))
        << kind.name;
  }
  for (const int32_t ranks : {2, 3, 4}) {
    for (const LayerConfig& layer : share_of(exchanging_shape(), {0, ranks}).layer_kinds) {
      EXPECT_TRUE(layer.shares_mixers) << layer.name << " on " << ranks;
      EXPECT_TRUE(layer.shares_feed_forward) << layer.name << " on " << ranks;
    }
  }
}

// Random rows, alike in each call.
std::vector<float> random_rows(int64_t rows, int64_t columns) {
  std::mt19937 random(5);
  Normal normal;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (float& x : values) x = normal(random);
  return values;
}

// Columns [first, first + count) of rows of so many.
std::vector<float> columns_of(const std::vector<float>& rows, int64_t columns, int64_t first,
                              int64_t count) {
  std::vector<float> part;
  for (auto row = rows.begin(); row != rows.end(); row += columns) {
    part.insert(part.end(), row + first, row + first + count);
  }
  return part;
}

// Ranks have parts of two groups of columns: of the first each its own, of the second the last two
// the same.
struct PartOfRows {
  int64_t first;
  int64_t count;
  bool counts = true;
};
using PartsOfRank = std::array<PartOfRows, 2>;
constexpr int64_t kFirstGroup = 75;
constexpr int64_t kSecondGroup = 40;
constexpr int64_t kBothGroups = kFirstGroup + kSecondGroup;

std::vector<PartsOfRank> parts_of_ranks(size_t ranks) {
  if (ranks == 2) return {{{{0, 32}, {0, 40}}}, {{{32, 43}, {0, 40, false}}}};
  return {{{{0, 31}, {0, 18}}}, {{{31, 4}, {18, 22}}}, {{{35, 40}, {18, 22, false}}}};
}

// That of a rank.
using MakeBackend = std::function<std::unique_ptr<Backend>(size_t rank)>;
// Of two groups each.
using RowsOfRanks = std::vector<std::array<std::vector<float>, 2>>;

// A backend's memory with these floats.
Buffer memory_of(Backend& backend, const std::vector<float>& values) {
  Buffer memory = backend.allocate(values.size() * sizeof(float));
  backend.copy_to_device(memory.get(), values.data(), values.size() * sizeof(float));
  return memory;
}

// What norm_over_ranks() makes of the two parts of each rank, which lie beside each other in rows
// that begin with so many columns of no part.
RowsOfRanks normalize_parts(const std::vector<PartsOfRank>& ranks, const MakeBackend& make,
                            const std::vector<float>& rows, int64_t before) {
  const auto links = make_local_links(static_cast<int>(ranks.size()));
  const std::vector<float> weights = random_rows(1, kBothGroups);
  const int64_t n_rows = std::ssize(rows) / kBothGroups;
  RowsOfRanks parts(ranks.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Backend> backend = make(rank);
      backend->join(*links[rank], DType::bf16);  // which is not for these sums
      const Buffer norm_weights = memory_of(*backend, weights);
      const auto& [first_part, second_part] = ranks[rank];
      const int64_t stride = before + first_part.count + second_part.count;
      std::vector<float> own(static_cast<size_t>(n_rows * stride), 7.0F);
      std::vector<SharedNorm> norms;
      const Buffer memory = backend->allocate(own.size() * sizeof(float));
      const Matrix all(memory.get(), DType::f32, n_rows, stride);
      for (int64_t group = 0, to = before; group < 2; ++group) {
        const auto [first, count, counts] = ranks[rank][static_cast<size_t>(group)];
        const int64_t at = group * kFirstGroup + first;
        for (int64_t r = 0; r < n_rows; ++r) {
          std::copy_n(rows.begin() + r * kBothGroups + at, count, own.begin() + r * stride + to);
        }
        const auto* weight = reinterpret_cast<const float*>(norm_weights.get());
        norms.push_back(
            {.x = all.columns(to, count),
             .norm = Norm{.kind = NormKind::rms, .weight = weight, .eps = 1e-5F}.from(at),
             .share = {.columns = group == 0 ? kFirstGroup : kSecondGroup,
                       .group = static_cast<int32_t>(group),
                       .groups = 2,
                       .counts = counts}});
        to += count;
      }
      backend->copy_to_device(memory.get(), own.data(), own.size() * sizeof(float));
      backend->norm_over_ranks(norms);
      backend->copy_to_host(own.data(), memory.get(), own.size() * sizeof(float));
      parts[rank] = {columns_of(own, stride, before, first_part.count),
                     columns_of(own, stride, before + first_part.count, second_part.count)};
      for (const float x : columns_of(own, stride, 0, before)) EXPECT_EQ(x, 7.0F);
    });
  }
  threads.clear();
  return parts;
}

void expect_normalized_parts(size_t n_ranks, const MakeBackend& make, int64_t before = 0,
                             int64_t n_rows = 9) {
  const std::vector<PartsOfRank> ranks = parts_of_ranks(n_ranks);
  const std::vector<float> rows = random_rows(n_rows, kBothGroups);
  const std::vector<float> weights = random_rows(1, kBothGroups);
  const auto parts = normalize_parts(ranks, make, rows, before);
  for (const size_t group : {size_t{0}, size_t{1}}) {
    const int64_t begin = group == 0 ? 0 : kFirstGroup;
    const int64_t size = group == 0 ? kFirstGroup : kSecondGroup;
    std::vector<float> whole = columns_of(rows, kBothGroups, begin, size);
    const Matrix x(whole.data(), DType::f32, n_rows, size);
    const Norm norm{.kind = NormKind::rms, .weight = weights.data() + begin, .eps = 1e-5F};
    make_reference_backend()->norm(x, norm, OutputMode::store, x);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const PartOfRows& own = ranks[rank][group];
      EXPECT_LT(distance(parts[rank][group], columns_of(whole, size, own.first, own.count)), 1e-6)
          << "group " << group << ", rank " << rank;
    }
  }
  EXPECT_EQ(parts[n_ranks - 2][1], parts[n_ranks - 1][1]) << "the same columns on two ranks";
  // A row's bits do not depend on those beside it.
  const std::vector<float> last(rows.end() - kBothGroups, rows.end());
  const auto alone = normalize_parts(ranks, make, last, before);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const size_t group : {size_t{0}, size_t{1}}) {
      const std::vector<float>& among = parts[rank][group];
      EXPECT_EQ(alone[rank][group],
                std::vector(among.end() - ranks[rank][group].count, among.end()));
    }
  }
}

TEST(Ranks, NormalizeTogetherWhatEachHasAPartOf) {
  for (const size_t ranks : {2, 3}) {
    expect_normalized_parts(ranks, [](size_t /*rank*/) { return make_reference_backend(); });
    expect_normalized_parts(
        ranks, [](size_t /*rank*/) { return make_cpu_backend(2); }, 3);
  }
}

MakeBackend backends_on(const std::string& names) {
  return
      [devices = device_names(names)](size_t rank) { return choose_backend(devices[rank], 1, 0); };
}

// Of more rows than a kernel's, too.
void expect_normalized_parts_on(const std::string& gpus) {
  const size_t ranks = device_names(gpus).size();
  for (const int64_t before : {0, 8, 3}) {
    expect_normalized_parts(ranks, backends_on(gpus), before);
  }
  expect_normalized_parts(ranks, backends_on(gpus), 0, 40'000);
}

TEST(RanksCuda, NormalizeTogetherWhatEachHasAPartOf) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  for (const std::string& devices : ranks_on_gpus()) expect_normalized_parts_on(devices);
}

// In float32, though sums of shares are told to be of 16 bits; between rows is what others have.
void expect_float_sums(const MakeBackend& make, size_t ranks, int64_t rows, int64_t columns) {
  const auto links = make_local_links(static_cast<int>(ranks));
  const int64_t stride = columns + 4;
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto backend = make(rank);
      backend->join(*links[rank], DType::bf16);
      const auto is_sum = [&](int64_t i) { return i % stride >= 2 && i % stride < 2 + columns; };
      const auto term = [](int64_t i, int64_t of) {
        return static_cast<float>(1000 * (i % 5000) + 1 + of);
      };
      std::vector<float> values(static_cast<size_t>(rows * stride), -1.0F);
      for (int64_t i = 0; i < std::ssize(values); ++i) {
        if (is_sum(i)) values[static_cast<size_t>(i)] = term(i, static_cast<int64_t>(rank));
      }
      const Buffer memory = memory_of(*backend, values);
      const Matrix m = Matrix(memory.get(), DType::f32, rows, stride).columns(2, columns);
      backend->sum_floats_over_ranks(m);
      backend->copy_to_host(values.data(), memory.get(), values.size() * sizeof(float));
      for (int64_t i = 0; i < std::ssize(values); ++i) {
        float expected = is_sum(i) ? 0.0F : -1.0F;
        for (size_t r = 0; is_sum(i) && r < ranks; ++r)
          expected += term(i, static_cast<int64_t>(r));
        ASSERT_EQ(values[static_cast<size_t>(i)], expected) << i;
      }
    });
  }
}

TEST(Ranks, AddUpFloatsWithinMixers) {
  expect_float_sums([](size_t /*rank*/) { return make_cpu_backend(1); }, 3, 4, 3);
}

void expect_float_sums_on(const std::string& gpus) {
  for (const auto& [rows, columns] : {std::pair{1, 3}, {4, 3}, {1, 288}, {2000, 288}}) {
    expect_float_sums(backends_on(gpus), device_names(gpus).size(), rows, columns);
  }
}

TEST(RanksCuda, AddUpFloatsWithinMixers) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  for (const std::string& devices : ranks_on_gpus()) expect_float_sums_on(devices);
}

// NCCL's part, by one for tests that two ranks may share a GPU with.
TEST(RanksCuda, AddUpByNcclWhereItIsAskedFor) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  const SetVariable asked(kNcclVariable, fake_nccl());
  for (const std::string devices : {"cuda:0,0", "cuda:0,0,0"}) {
    for (const DType type : {DType::f32, DType::bf16}) expect_sums(devices, type);
    expect_gathered_columns(devices);
    expect_normalized_parts_on(devices);
    expect_float_sums_on(devices);
  }
  expect_logits_of_one_device({"cuda:0,0", "cuda:0,0,0"}, "cuda");
}

// To the last bit what hosts, or GPUs by themselves, add up: by NCCL itself, if there is one.
TEST(RanksCuda, AddUpAlikeByNccl) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "takes two GPUs";
  const auto nccl = find_nccl();
  if (!nccl) GTEST_SKIP() << "there is no NCCL";
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
    for (const ModelConfig& config : {wide_shape(format), hybrid_shape(format)}) {
      const ModelImage image = bench::make_random_model(config, 7);
      const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
      const std::vector<float> expected = [&] {
        const SetVariable off(kNcclVariable, "off");
        return logits_on("cuda:0,1", file);
      }();
      const SetVariable asked(kNcclVariable, nccl->path);
      EXPECT_EQ(logits_on("cuda:0,1", file), expected)
          << format_name(format) << ", " << config.hidden << " wide";
    }
  }
  const SetVariable asked(kNcclVariable, nccl->path);
  for (const DType type : {DType::f32, DType::bf16}) expect_sums("cuda:0,1", type);
  expect_gathered_columns("cuda:0,1");
  expect_normalized_parts_on("cuda:0,1");
  expect_float_sums_on("cuda:0,1");
}

// More ranks than can reach each other's memory, of which no two may have a GPU for NCCL: hosts add
// up.
TEST(RanksCuda, AddUpByHostsWhereNothingElseCan) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  expect_sums("cuda:0,0,0,0,0,0,0,0,0", DType::f32);
}

// What rank 0 says where all, or one, cannot use what was asked for; what nobody asked for is left
// alone.
TEST(RanksCuda, SayWhyNcclDoesNotAddUp) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  const ModelImage image = bench::make_random_model(odd_shape(WeightFormat::f32), 7);
  const ModelFile file = ModelFile::from_bytes(image.bytes(), "random");
  const auto why_not = [&] {
    try {
      static_cast<void>(logits_on("cuda:0,0", file));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why_not(), "");
  const SetVariable asked(kNcclVariable, fake_nccl());
  EXPECT_EQ(why_not(), "");
  const SetVariable fails("FAKE_NCCL_FAILS", "ncclCommInitRank");
  EXPECT_NE(why_not().find("it was told to fail"), std::string::npos) << why_not();
  {
    const SetVariable of("FAKE_NCCL_FAILS_OF", "1");
    EXPECT_NE(why_not().find("are not possible"), std::string::npos) << why_not();
  }
  const SetVariable later("FAKE_NCCL_FAILS", "ncclAllGather");
  EXPECT_NE(why_not().find("NCCL failed while adding up over ranks"), std::string::npos)
      << why_not();
}

std::vector<std::vector<std::vector<int32_t>>> texts_on(const std::filesystem::path& model,
                                                        const std::string& device) {
  Engine engine(model, {.device = device, .threads = 1, .slots = 6, .kv_tokens = 1024});
  return run_together(engine, requests_of_all_lengths(), samples_of);
}

TEST(RanksCuda, GiveTheTextsOfOneDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  const std::filesystem::path model = engine_model_of(engine_shape(WeightFormat::f32), "ranks-f32");
  const auto expected = texts_on(model, "cuda:0");
  EXPECT_EQ(texts_on(model, "cuda:0,0"), expected);
  if (cuda_device_count() > 1) {
    EXPECT_EQ(texts_on(model, "cuda:0,1"), expected);
  }
}

// Greedy ones and drawn ones, in company, with common beginnings and preempted.
TEST(Ranks, GiveTheTextsOfOneDevice) {
  const std::filesystem::path model = engine_model_of(engine_shape(WeightFormat::f32), "ranks-f32");
  EXPECT_EQ(texts_on(model, "cpu,cpu"), texts_on(model, "cpu"));
  const std::filesystem::path hybrid =
      engine_model_of(hybrid_engine_shape(small_delta_net()), "ranks-hybrid");
  EXPECT_EQ(texts_on(hybrid, "cpu,cpu"), texts_on(hybrid, "cpu"));
  const std::filesystem::path exchanging = engine_model_of(exchanging_shape(), "ranks-exchanging");
  const auto expected = texts_on(exchanging, "cpu");
  for (const char* devices : {"cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu,cpu"}) {
    EXPECT_EQ(texts_on(exchanging, devices), expected) << devices;
  }
}

TEST(Ranks, SayWhatDevicesMayBe) {
  const std::filesystem::path model = engine_model_of(engine_shape(WeightFormat::f32), "ranks-f32");
  for (const char* device : {"cpu,", ",cpu", "cpu,,cpu", "cpu,auto", "auto,auto", "cpu,cuda:0"}) {
    EXPECT_THROW(Engine(model, {.device = device}), UsageError) << device;
  }
  EXPECT_THROW(Engine(model, {.device = "cpu,cpu7"}), UsageError);
  EXPECT_EQ(device_names("cuda:0,1"), (std::vector<std::string>{"cuda:0", "cuda:1"}));
  EXPECT_EQ(device_names("cuda:2,cuda:5"), (std::vector<std::string>{"cuda:2", "cuda:5"}));
  EXPECT_EQ(device_names("cpu"), (std::vector<std::string>{"cpu"}));
}

}  // namespace
}  // namespace faststream
