// Heads that predict further tokens change no text, and read what they are to read.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/mtp_drafter.h"
#include "support/error.h"
#include "unit/backend/failing_backend.h"
#include "unit/effort.h"
#include "unit/engine/chosen_text.h"
#include "unit/engine/engine_model.h"
#include "unit/engine/mixed_requests.h"
#include "unit/engine/repeating_requests.h"

namespace faststream {
namespace {

// The same with a predictor whose layer is of the last layer's kind.
ModelConfig with_predictor(ModelConfig config) {
  const LayerConfig layer = config.layer(config.n_layers() - 1);
  const NormConfig norm = layer.mixer_norms.before;
  ModelConfig predictor;
  predictor.hidden = config.hidden;
  predictor.vocab = config.vocab;
  predictor.max_context = config.max_context;
  predictor.ropes = config.ropes;
  predictor.embedding = {.shared = true, .norm = norm};
  predictor.hidden_input = HiddenInputConfig{.norm = norm};
  predictor.layer_kinds = {layer};
  predictor.layers = {0};
  predictor.output = {.norm = norm, .shared = true};
  config.predictors.push_back(predictor);
  set_formats(config, config.weight_format, config.embedding_format, config.output_format);
  return config;
}

// The same with three, each of which reads the hidden states of the one before, or of the model.
ModelConfig with_predictors(const ModelConfig& config, bool of_decoder) {
  ModelConfig several = with_predictor(config);
  ModelConfig further = several.predictors.front();
  further.hidden_input->of_decoder = of_decoder;
  several.predictors.insert(several.predictors.end(), 2, further);
  return several;
}

// The same with one that reads the streams after a layer and after the last one, and has logits of
// some tokens alone, in another order.
ModelConfig with_joining_predictor(ModelConfig config, int64_t n_rows) {
  config = with_predictor(config);
  ModelConfig& predictor = config.predictors.front();
  predictor.layer_kinds.front().mixer_norms.before = {};
  HiddenInputConfig& input = *predictor.hidden_input;
  input.before_output_norm = input.side_by_side = true;
  input.layer_states = {.after = {1, config.n_layers()}};
  predictor.output.shared = false;
  for (int64_t row = 0; row < n_rows; ++row) {
    predictor.output.tokens.push_back(static_cast<int32_t>(config.vocab - 1 - row));
  }
  return config;
}

std::filesystem::path model_with_joining_head(WeightFormat format) {
  const ModelConfig config = engine_shape(format);
  return engine_model_of(with_joining_predictor(config, config.vocab * 3 / 4),
                         std::string(format_name(format)) + "-with-joining-head");
}

// Where a model runs, of several ranks or stages.
struct Place {
  std::string device;
  int32_t stages = 1;
};

std::vector<Place> places() {
  return {{"cpu"}, {"cpu,cpu"}, {"cpu,cpu,cpu"}, {"cpu,cpu", 2}, {"cpu,cpu,cpu,cpu", 2}};
}

EngineOptions speculating_on(const Place& place, const std::string& how, int32_t slots) {
  EngineOptions options = speculating(how, slots);
  options.device = place.device;
  options.stages = place.stages;
  return options;
}

std::string name_of(const Place& place) {
  return place.device + " in " + std::to_string(place.stages);
}

std::filesystem::path model_with_head(const std::string& name) {
  if (name == "joining") return model_with_joining_head(WeightFormat::f32);
  if (name == "joining_int8") return model_with_joining_head(WeightFormat::int8);
  if (name.starts_with("three")) {
    return engine_model_of(
        with_predictors(engine_shape(WeightFormat::f32, 40), name == "three_of_the_model"),
        name + "-heads");
  }
  const auto shape = [&] {
    if (name == "delta_net") return hybrid_engine_shape(small_delta_net());
    if (name == "windowed") {  // the layer of which the head has a like, too
      ModelConfig config = engine_shape(WeightFormat::f32, 40);
      std::ranges::reverse(config.layers);
      return config;
    }
    return engine_shape(format_from_name(name).value_or(WeightFormat::f32));
  };
  return engine_model_of(with_predictor(shape()), name + "-with-head");
}

// A copy of a model of f32 weights, whose tensors edit(name, values) changes.
using EditTensor = std::function<void(const std::string& name, std::vector<float>& values)>;
std::filesystem::path edited(const std::filesystem::path& model, const std::string& name,
                             const EditTensor& edit) {
  const ModelFile file = ModelFile::open(model);
  std::vector<TensorSpec> specs;
  for (const TensorInfo& tensor : file.tensors()) {
    specs.push_back({std::string(tensor.name), tensor.dtype, tensor.shape});
  }
  std::filesystem::path path = model;
  path.replace_filename(model.stem().string() + "-" + name + ".bin");
  ModelWriter writer(path, file.header(), specs, true);
  for (const TensorInfo& tensor : file.tensors()) {
    const std::span<const std::byte> bytes = file.bytes(tensor);
    std::vector<float> values(tensor.dtype == DType::f32 ? bytes.size() / sizeof(float) : 0);
    if (values.empty()) {
      writer.append(bytes);
      continue;
    }
    std::memcpy(values.data(), bytes.data(), bytes.size());
    edit(std::string(tensor.name), values);
    writer.append(std::as_bytes(std::span(values)));
  }
  writer.finish();
  return path;
}

// A head whose layer adds nothing, so that it has the logits of what it reads: of the token
// (from = 0), or of the hidden state (from = 1). Norms have no weights.
void read_one_input(const std::string& name, std::vector<float>& values, size_t from) {
  if (name.ends_with("_norm")) std::ranges::fill(values, 1.0F);
  const bool adds = name.ends_with("attention_out") || name.ends_with("ffn_down");
  if (name.starts_with("predictors.") && adds) std::ranges::fill(values, 0.0F);
  if (name != "predictors.0.hidden_projection") return;
  const auto hidden = static_cast<size_t>(engine_shape(WeightFormat::f32).hidden);
  std::ranges::fill(values, 0.0F);
  for (size_t i = 0; i < hidden; ++i) values[i * 2 * hidden + from * hidden + i] = 1;
}

// All tokens alone say what comes next, in the model as in the head.
std::filesystem::path bigram_model() {
  return edited(model_with_head("f32"), "bigram", [](const auto& name, auto& values) {
    read_one_input(name, values, 0);
    const bool adds = name.ends_with("attention_out") || name.ends_with("ffn_down");
    if (adds) std::ranges::fill(values, 0.0F);
  });
}

// A head whose layer adds nothing to the stream after the last layer, and whose output matrix has
// the model's rows in the opposite order: it has the logits of what it reads.
std::filesystem::path model_with_joining_head_of_the_last_stream() {
  const ModelConfig shape = engine_shape(WeightFormat::f32);
  const auto hidden = static_cast<size_t>(shape.hidden);
  std::vector<float> output;
  return edited(engine_model_of(with_joining_predictor(shape, shape.vocab), "joining-all"),
                "states", [&](const std::string& name, std::vector<float>& values) {
                  read_one_input(name, values, 1);
                  if (name == "output") output = values;
                  if (name == "predictors.0.layer_states_projection") {
                    std::ranges::fill(values, 0.0F);
                    for (size_t i = 0; i < hidden; ++i) values[i * 2 * hidden + hidden + i] = 1;
                  }
                  if (name != "predictors.0.output") return;
                  for (size_t at = 0; at < values.size(); at += hidden) {
                    std::copy_n(output.end() - static_cast<std::ptrdiff_t>(at + hidden), hidden,
                                values.begin() + static_cast<std::ptrdiff_t>(at));
                  }
                });
}

class MtpEngine : public SpeculatingTest {
 protected:
  static std::filesystem::path model() { return model_with_head(model_name()); }
};

TEST_P(MtpEngine, ChangesNoText) {
  const std::vector<Request> all = requests_that_repeat();
  Engine plain(model(), speculating("off", 1));
  Answers expected;
  const Answers exactly = run_alone(plain, all, [&](const Result& result) {
    expected.push_back(answer_of(result));
    return exact_answer_of(result);
  });

  Engine alone(model(), speculating("mtp", 1));
  expect_same_answers(run_alone(alone, all, exact_answer_of), exactly, "alone");
  EXPECT_GT(alone.stats().proposed_tokens, 1000);
  EXPECT_EQ(alone.stats().free_tokens, alone.info().kv_tokens);

  Engine engine(model(), speculating("mtp", 8));
  expect_same_answers(run_together(engine, all, answer_of), expected, "together");
  expect_same_answers(run_alone(engine, all, answer_of), expected, "from the cache");
  EXPECT_GT(engine.stats().cached_tokens, 0);

  EngineOptions tight = speculating("mtp", 8);
  tight.kv_tokens = tight.context = 256;
  Engine preempting(model(), tight);
  expect_same_answers(run_together(preempting, all, answer_of), expected, "preempted");
  EXPECT_GT(preempting.stats().preemptions, 0);

  tight = running_ahead("mtp", 8, device());
  tight.kv_tokens = tight.context = 256;
  Engine ahead(model(), tight);
  expect_same_answers(run_together(ahead, all, answer_of), expected, "ahead");
  EXPECT_EQ(ahead.stats().free_tokens, ahead.info().kv_tokens);
}

INSTANTIATE_TEST_SUITE_P(Cpu, MtpEngine,
                         testing::ValuesIn(on_device("cpu", {"f32", "int8", "windowed", "delta_net",
                                                             "joining", "joining_int8", "three",
                                                             "three_of_the_model"})),
                         model_name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, MtpEngine,
                         testing::ValuesIn(on_device("cuda", {"bf16", "int8", "joining_int8"})),
                         model_name_of);

// On ranks, which each have a share of the head, three of two key heads among them, and in stages.
TEST(MtpEngine, ChangesNoTextOnRanks) {
  std::vector<Request> all = requests_that_repeat();
  std::erase_if(all, [n = 0](const Request& request) mutable {
    return n++ % 3 != 0 && !request.rule && request.n == 1;
  });
  struct Tested {
    std::string model;
    Place place;
    int64_t kv_tokens = 0;
  };
  for (const auto& [name, place, kv_tokens] :
       std::vector<Tested>{{"f32", {"cpu,cpu,cpu"}},
                           {"f32", {"cpu,cpu,cpu,cpu", 2}},
                           {"delta_net", {"cpu,cpu"}},
                           {"windowed", {"cpu,cpu", 2}, 256},
                           {"joining", {"cpu,cpu"}, 256},
                           {"joining_int8", {"cpu,cpu", 2}},
                           {"int8", {"cpu,cpu,cpu"}},
                           {"three", {"cpu,cpu"}},
                           {"three", {"cpu,cpu", 2}, 256},
                           {"three_of_the_model", {"cpu,cpu,cpu"}}}) {
    SCOPED_TRACE(name + " on " + name_of(place));
    const std::filesystem::path model = model_with_head(name);
    const auto answers = [&](const Place& on, const std::string& how, int64_t tokens) {
      EngineOptions options = speculating_on(on, how, 6);
      options.kv_tokens = options.context = tokens;
      Engine engine(model, options);
      Answers got = run_together(engine, all, answer_of);
      EXPECT_EQ(engine.stats().proposed_tokens > 100, how == "mtp")
          << engine.stats().proposed_tokens;
      EXPECT_EQ(engine.stats().preemptions > 0, tokens > 0);
      EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
      return got;
    };
    const bool is_rounded = name.ends_with("int8") && place.stages == 1;
    const Answers expected = answers(is_rounded ? place : Place{"cpu"}, "off", 0);
    expect_same_answers(answers(place, "mtp", kv_tokens), expected, "with heads");
  }
}

TEST(MtpEngine, AcceptsAllOfAHeadThatKnowsTheModel) {
  const std::filesystem::path model = bigram_model();
  for (const float temperature : {0.0F, 0.8F}) {
    Request request;
    request.prompt = std::vector<int32_t>{1, 20, 30};
    request.max_tokens = 160;
    request.ignore_eos = true;
    request.sampling = {.temperature = temperature, .seed = 3};
    Engine plain(model, speculating("off", 1));
    Engine engine(model, speculating("mtp", 1));
    EXPECT_EQ(answer_of(engine.submit(request).get()), answer_of(plain.submit(request).get()));
    const EngineStats stats = engine.stats();
    EXPECT_GT(100 * stats.accepted_tokens, 99 * stats.proposed_tokens) << temperature;
    EXPECT_GT(plain.stats().steps, 6 * stats.steps) << temperature;
    for (const Place& place : places()) {
      Engine on_ranks(model, speculating_on(place, "mtp", 1));
      EXPECT_EQ(answer_of(on_ranks.submit(request).get()), answer_of(plain.submit(request).get()));
      EXPECT_GT(100 * on_ranks.stats().accepted_tokens, 99 * on_ranks.stats().proposed_tokens)
          << name_of(place) << ", " << temperature;
    }
  }
  std::filesystem::remove(model);
}

// Beside beam searches, of which nothing is proposed, and where there are more sequences than may
// have proposals.
TEST(MtpEngine, LeavesAloneWhatItDoesNotDraftFor) {
  std::vector<Request> all = requests_that_repeat();
  for (size_t i = 0; i < all.size(); i += 3) {
    if (all[i].rule || all[i].n > 1) continue;
    all[i].search.beams = 2;
    all[i].sampling.no_repeat_ngram = 0;
    all[i].logprobs = -1;
  }
  const std::vector<Request> few = all;
  for (int n = 0; n < 4; ++n) all.insert(all.end(), few.begin(), few.end());
  Engine plain(model_with_head("f32"), speculating("off", 100));
  Engine engine(model_with_head("f32"), speculating("mtp", 100));
  expect_same_answers(run_together(engine, all, answer_of), run_together(plain, all, answer_of),
                      "many");
  EXPECT_GT(engine.stats().proposed_tokens, 0);
}

// Each operation fails once: either the text ends with an error, or, where it was the head's, it is
// what it would have been.
TEST(MtpEngine, GoesOnWhereTheDeviceFailsAHead) {
  Request request;
  request.prompt = std::vector<int32_t>{1, 20, 30};
  request.max_tokens = 12;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  const std::string expected =
      answer_of(Engine(model_with_head("f32"), speculating("off", 1)).submit(request).get());
  int n_same = 0;
  // Returns how many operations there were.
  const auto run = [&](int64_t failing) {
    std::atomic<int64_t> n_operations = 0;
    EngineOptions options = speculating("mtp", 1);
    options.wrap_backend = [&](std::unique_ptr<Backend> backend) {
      return std::make_unique<FailingBackend>(
          std::move(backend), [&](const std::string&) { return ++n_operations == failing; });
    };
    try {
      Engine engine(model_with_head("f32"), options);
      EXPECT_EQ(answer_of(engine.submit(request).get()), expected) << failing;
      EXPECT_EQ(engine.stats().free_tokens, engine.info().kv_tokens);
      ++n_same;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the device failed"), std::string::npos);
    }
    return n_operations.load();
  };
  const int64_t n_operations = run(0);
  const int64_t apart = kSanitized ? 13 : 3;
  for (int64_t failing = 1; failing <= n_operations; failing += apart) run(failing);
  EXPECT_GT(n_same, 300 / apart);
}

TEST(MtpEngine, RefusesWhatHasNoHead) {
  const auto refusal = [](const std::filesystem::path& model, const EngineOptions& options) {
    try {
      const Engine engine(model, options);
      return std::string("it runs");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(refusal(engine_model(), speculating("mtp", 1)).find("convert the checkpoint without"),
            std::string::npos);
  for (const Place& place : places()) {
    EXPECT_NE(refusal(engine_model(), speculating_on(place, "mtp", 1)).find("has no heads"),
              std::string::npos);
  }
  EXPECT_EQ(refusal(model_with_head("f32"), speculating("mtp", 1)), "it runs");
}

class MtpDrafterTest : public testing::Test {
 protected:
  // Has the model process tokens of each text, and returns the likeliest token after the last one
  // of each.
  std::vector<int32_t> step(LoadedModel& model, MtpDrafter& drafter,
                            const std::vector<std::pair<ChosenText*, int32_t>>& parts,
                            NewTokens::Logits logits) {
    std::vector<NewTokens> inputs;
    std::vector<ProcessedTokens> processed;
    int32_t row = 0;
    for (const auto& [text, n] : parts) {
      Sequence& sequence = sequences_[text];
      processed.push_back({.group = text, .first = sequence.n_cached, .row = row, .n_tokens = n});
      inputs.push_back(
          {.sequence = &sequence,
           .tokens = std::span(text->text)
                         .subspan(static_cast<size_t>(sequence.n_cached), static_cast<size_t>(n)),
           .logits = logits});
      row += n;
    }
    model.runner->step(inputs);
    const std::vector<float> all = model.runner->logits();
    const auto vocab = static_cast<size_t>(model.config.vocab);
    std::vector<int32_t> likeliest;
    size_t end = 0;
    for (const NewTokens& input : inputs) {
      end += static_cast<size_t>(input.n_logits());
      const auto of_last = std::span(all).subspan((end - 1) * vocab, vocab);
      likeliest.push_back(
          static_cast<int32_t>(std::ranges::max_element(of_last) - of_last.begin()));
    }
    drafter.processed(processed, kMostSpeculating);
    return likeliest;
  }
  void release(LoadedModel& model) {
    for (auto& [text, sequence] : sequences_) model.runner->release(sequence);
  }

  std::map<const ChosenText*, Sequence> sequences_;
};

// It reads the hidden state of each text's last token, whatever else the step had.
TEST_F(MtpDrafterTest, ReadsTheHiddenStatesOfTheRightTokens) {
  const std::filesystem::path plain =
      edited(model_with_head("f32"), "states",
             [](const auto& name, auto& values) { read_one_input(name, values, 1); });
  const std::filesystem::path joining = model_with_joining_head_of_the_last_stream();
  using enum NewTokens::Logits;
  for (const auto& [path, logits] : {std::pair(plain, last), std::pair(plain, all),
                                     std::pair(joining, last), std::pair(joining, all)}) {
    for (const Place& place : places()) {
      SCOPED_TRACE(path.string() + " on " + name_of(place));
      LoadedModel model(path, speculating_on(place, "mtp", 4), 200);
      MtpDrafter drafter(model, true);
      std::mt19937 random(5);
      ChosenText a;
      ChosenText b;
      ChosenText c;
      for (ChosenText* text : {&a, &b, &c}) text->text = random_tokens(random, 60);
      sequences_.clear();
      step(model, drafter, {{&a, 59}, {&b, 20}}, logits);
      drafter.draft(std::vector<DraftTask>{{.group = &b, .n_tokens = 2}});
      EXPECT_TRUE(b.supposed.empty());  // there are tokens of its own to be processed
      const std::vector<int32_t> likeliest =
          step(model, drafter, {{&b, 39}, {&c, 59}, {&a, 1}}, logits);
      a.text.push_back(5);
      drafter.draft(std::vector<DraftTask>{{.group = &a, .n_tokens = 3},
                                           {.group = &c, .n_tokens = 1},
                                           {.group = &b, .n_tokens = 4}});
      EXPECT_TRUE(a.supposed.empty());  // no token came after its last one in time
      EXPECT_EQ(b.supposed, std::vector<int32_t>(4, likeliest[0]));
      EXPECT_EQ(c.supposed, std::vector<int32_t>(1, likeliest[1]));
      drafter.draft(std::vector<DraftTask>{{.group = &b, .n_tokens = 4}});
      EXPECT_TRUE(b.supposed.empty());  // once a step
      b.text.push_back(7);
      const std::vector<int32_t> next = step(model, drafter, {{&b, 1}}, logits);
      drafter.draft(std::vector<DraftTask>{{.group = &b, .n_tokens = 15}});
      EXPECT_EQ(b.supposed, std::vector<int32_t>(15, next[0]));
      release(model);
    }
  }
  std::filesystem::remove(plain);
  std::filesystem::remove(joining);
}

// Of hidden states that are other ones in each stage, and of embeddings, which only the first has.
TEST_F(MtpDrafterTest, ProposesOnRanksWhatItProposesOnOne) {
  const auto reads_all = [](ModelConfig config) {
    config = with_joining_predictor(config, config.vocab / 2);
    config.predictors.front().hidden_input->layer_states.after = {0, 1, 2};
    return config;
  };
  const std::filesystem::path joining =
      engine_model_of(reads_all(engine_shape(WeightFormat::f32)), "joining-of-each-stage");
  for (const std::filesystem::path& path : {model_with_head("windowed"), joining}) {
    std::vector<std::vector<int32_t>> expected;
    for (const Place& place : places()) {
      LoadedModel model(path, speculating_on(place, "mtp", 8), 200);
      MtpDrafter drafter(model, true);
      std::mt19937 random(9);
      std::vector<ChosenText> texts(8);
      std::vector<std::pair<ChosenText*, int32_t>> parts;
      std::vector<DraftTask> tasks;
      sequences_.clear();
      for (ChosenText& text : texts) {
        text.text = random_tokens(random, 20 + random() % 50);
        parts.emplace_back(&text, static_cast<int32_t>(text.text.size()) - 1);
        tasks.push_back({.group = &text, .n_tokens = 6});
      }
      step(model, drafter, parts, NewTokens::Logits::last);
      drafter.draft(tasks);
      std::vector<std::vector<int32_t>> proposed;
      for (const ChosenText& text : texts) proposed.push_back(text.supposed);
      EXPECT_EQ(proposed.front().size(), 6U);
      if (expected.empty()) expected = proposed;
      EXPECT_EQ(proposed, expected) << path << " on " << name_of(place);
      release(model);
    }
  }
}

// Of texts that were read token by token, more of them than are kept, what is drafted of those that
// were read at once.
TEST_F(MtpDrafterTest, SeveralHeadsKeepHiddenStatesInOrder) {
  for (const char* name : {"f32", "three", "three_of_the_model"}) {
    LoadedModel model(model_with_head(name), speculating("mtp", 8), 200);
    MtpDrafter slow(model, true);
    MtpDrafter quick(model, false);
    std::mt19937 random(11);
    std::vector<ChosenText> texts(6);
    std::vector<ChosenText> same(6);
    std::vector<DraftTask> tasks;
    std::vector<DraftTask> tasks_of_same;
    std::vector<std::pair<ChosenText*, int32_t>> steps;
    std::vector<std::pair<ChosenText*, int32_t>> whole;
    sequences_.clear();
    for (size_t i = 0; i < texts.size(); ++i) {
      texts[i].text = same[i].text = random_tokens(random, 130);
      tasks.push_back({.group = &texts[i], .n_tokens = static_cast<int32_t>(2 + i)});
      tasks_of_same.push_back({.group = &same[i], .n_tokens = static_cast<int32_t>(2 + i)});
      steps.emplace_back(&texts[i], 1);
      whole.emplace_back(&same[i], 129);
    }
    for (int n = 0; n < 129; ++n) step(model, slow, steps, NewTokens::Logits::last);
    slow.draft(tasks);
    step(model, quick, whole, NewTokens::Logits::last);
    quick.draft(tasks_of_same);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(texts[i].supposed.size(), 2 + i) << name;
      EXPECT_EQ(texts[i].supposed, same[i].supposed) << name;
    }
    release(model);
  }
}

// What a text begins with, another had before: the model found it in its cache, and the head does
// in its own.
TEST_F(MtpDrafterTest, KnowsTextsThatTheModelKnows) {
  LoadedModel model(model_with_head("f32"), speculating("mtp", 4), 1);
  std::mt19937 random(5);
  ChosenText text;
  ChosenText before;
  text.text = random_tokens(random, 60);
  before.text.assign(text.text.begin(), text.text.begin() + 41);
  Sequence& sequence = sequences_[&text];
  const NewTokens input{.sequence = &sequence, .tokens = std::span(text.text).first(59)};
  model.runner->step({&input, 1});  // whose hidden states all drafters read
  const auto proposed = [&](MtpDrafter& drafter, int32_t first) {
    drafter.processed(
        std::vector<ProcessedTokens>{
            {.group = &text, .first = first, .row = first, .n_tokens = 59 - first}},
        kMostSpeculating);
    drafter.draft(std::vector<DraftTask>{{.group = &text, .n_tokens = 12}});
    drafter.forget(text);
    return text.supposed;
  };
  const auto read_before = [&](MtpDrafter& drafter) {
    drafter.processed(
        std::vector<ProcessedTokens>{{.group = &before, .first = 0, .row = 0, .n_tokens = 40}},
        kMostSpeculating);
    drafter.forget(before);
  };
  MtpDrafter whole(model, true);
  const std::vector<int32_t> expected = proposed(whole, 0);
  EXPECT_EQ(expected.size(), 12U);
  MtpDrafter sharing(model, true);
  read_before(sharing);
  EXPECT_EQ(proposed(sharing, 38), expected);
  EXPECT_EQ(proposed(sharing, 58), expected);  // of the text itself
  MtpDrafter alone(model, false);
  read_before(alone);
  EXPECT_NE(proposed(alone, 38), expected);
  // Two hidden states that are in neither cache; then too many.
  MtpDrafter nearly(model, true);
  read_before(nearly);
  EXPECT_EQ(proposed(nearly, 42).size(), 12U);
  MtpDrafter hardly(model, true);
  read_before(hardly);
  EXPECT_EQ(proposed(hardly, 50), proposed(alone, 50));
  release(model);
}

}  // namespace
}  // namespace faststream
