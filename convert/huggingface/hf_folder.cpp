#include "convert/huggingface/hf_folder.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "convert/adapters/task_adapters.h"
#include "convert/families/family.h"
#include "convert/families/predictors.h"
#include "convert/huggingface/answers_from_hf.h"
#include "convert/huggingface/hf_adapters.h"
#include "convert/huggingface/sentence_transformers.h"
#include "convert/huggingface/text_tensors.h"
#include "convert/huggingface/weight_files.h"
#include "convert/quantized/quantization.h"
#include "convert/tokenizers/esm_vocabulary.h"
#include "convert/tokenizers/separate_vocabulary.h"
#include "convert/tokenizers/subword_nmt.h"
#include "convert/tokenizers/tokenizer_file.h"
#include "convert/weights/read_values.h"
#include "engine/default_sampling.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "text/tokenizer.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxTemplateBytes = uint64_t{16} << 20;

// The member, or null.
const json& member_of(const json& object, std::string_view name) {
  static const json none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

// Token ids: a number, a list of numbers, or nothing.
std::vector<int32_t> token_ids(const JsonView& members, std::string_view key) {
  const auto ids = members.find(key);
  if (!ids) return {};
  if (ids->value().is_array()) return ids->integers<int32_t>(0, kMaxTokenId);
  return {ids->as<int32_t>(0, kMaxTokenId)};
}

// Of generation_config.json, which has the last word, or else config.json.
std::vector<int32_t> end_tokens(const JsonView& config, const JsonView& generation_config) {
  std::vector<int32_t> ids = token_ids(generation_config, "eos_token_id");
  return ids.empty() ? token_ids(config, "eos_token_id") : ids;
}

// chat_template.jinja, or tokenizer_config.json's "chat_template": a string, or a list of named
// ones, of which Transformers takes "tool_use" for conversations with tools.
json chat_template(const fs::path& folder, const json& tokenizer_config, SourceFiles& files) {
  const fs::path file = folder / "chat_template.jinja";
  if (fs::exists(file)) return files.read(file, kMaxTemplateBytes);
  const JsonView config(tokenizer_config, (folder / "tokenizer_config.json").string());
  const auto found = config.find("chat_template");
  if (!found) return nullptr;
  if (found->value().is_string()) return found->value();
  if (!found->value().is_array()) found->fail("is neither a text nor a list of named ones");
  json templates;
  for (const JsonView& named : found->elements()) {
    const auto name = named.get<std::string>("name");
    if (name == "default" || name == "tool_use") {
      templates[name] = named.get<std::string>("template");
    }
  }
  if (!templates.is_null() && !templates.contains("default")) {
    found->fail("has no template named \"default\"");
  }
  return templates;
}

// The spellings of special tokens: a string, or an object with "content", or a list of these. What
// special_tokens_map.json says counts where tokenizer_config.json does not.
json special_tokens(json tokenizer_config, const json& special_tokens_map) {
  for (const auto& [name, token] : special_tokens_map.items()) {
    if (member_of(tokenizer_config, name).is_null()) tokenizer_config[name] = token;
  }
  const auto spelling = [](const json& token) -> json {
    if (token.is_string()) return token;
    if (token.is_object() && token.contains("content") && token["content"].is_string()) {
      return token["content"];
    }
    return nullptr;
  };
  json spellings;
  for (const auto& [name, token] : tokenizer_config.items()) {
    if (name == "additional_special_tokens" && token.is_array()) {
      for (const json& each : token) {
        if (const json text = spelling(each); !text.is_null()) spellings[name].push_back(text);
      }
    } else if (name.ends_with("_token")) {
      if (const json text = spelling(token); !text.is_null()) spellings[name] = text;
    }
  }
  return spellings;
}

// As Transformers: tokenizer.json before tokenizer.model.
TokenizerFiles read_hf_tokenizers(const fs::path& folder, const SourceModel& model,
                                  SourceFiles& files) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tekken.json"}) {
    if (fs::exists(folder / name)) {
      return {read_tokenizer_file(folder / name, model.config.vocab, files)};
    }
  }
  if (model.config.encoder) {
    if (auto found = read_separate_vocabulary(folder, files)) return *std::move(found);
  }
  if (auto found = read_subword_nmt(folder, files)) return {*std::move(found)};
  if (auto found = read_esm_vocabulary(folder, files)) return {*std::move(found)};
  throw Error(folder.string() +
              ": holds neither tokenizer.json nor tokenizer.model; name a tokenizer with "
              "--tokenizer FILE");
}

// The file that --tokenizer names. Of a model with an encoder it can be one of several, as in the
// model's own folder.
TokenizerFiles read_named_tokenizer(const fs::path& path, const SourceModel& model,
                                    SourceFiles& files) {
  TokenizerFile file = read_tokenizer_file(path, model.config.vocab, files);
  if (model.config.encoder && !file.sentencepiece.empty()) {
    if (auto found = read_separate_vocabulary(path.parent_path(), files)) return *std::move(found);
  }
  return {std::move(file)};
}

// config.json with what it says of quantization, or what a file beside it does: some programs do
// not write it there.
json quantization_beside(const fs::path& folder, const json& whole, json config,
                         SourceFiles& files) {
  constexpr const char* kMember = "quantization_config";
  if (const json& outer = member_of(whole, kMember); !outer.is_null()) config[kMember] = outer;
  if (config.contains(kMember) || config.contains("compression_config")) return config;
  for (const auto& [name, method] :
       {std::pair("quantize_config.json", "gptq"), std::pair("quant_config.json", "awq"),
        std::pair("hf_quant_config.json", "modelopt")}) {
    json beside = files.read_json(folder / name);
    if (const json& inner = member_of(beside, "quantization"); inner.is_object()) {
      beside = json(inner);
    }
    if (beside.empty()) continue;
    beside["quant_method"] = method;
    config[kMember] = std::move(beside);
    break;
  }
  return config;
}

// Gives the one embedding that is stored under any of several names, or more than one, the name
// that the decoder has for it.
void find_embedding(const FamilyModel& family, Checkpoint& weights) {
  const std::string wanted =
      base_in(weights, family.modules) + family.modules.embedding + ".weight";
  for (const std::string& module : family.embeddings) {
    for (const char* prefix : {"model.", ""}) {
      const std::string name = prefix + module + ".weight";
      const SourceTensor* other = weights.find(name);
      if (other == nullptr || name == wanted) continue;
      const SourceTensor* known = weights.find(wanted);
      if (known != nullptr && !same_values(weights, *known, *other)) {
        throw Error(weights.name() + ": the tensors " + in_quotes(wanted) + " and " +
                    in_quotes(name) + " differ, but must be the same embedding");
      }
      SourceTensor tensor = weights.take(name);
      if (known == nullptr) weights.add_tensor(std::move(tensor), wanted);
    }
  }
}

// Has the output's bias forbid tokens, so that others' probabilities are as if there were none:
// "renormalize_logits" of models that never give these tokens, at no cost when they run.
void forbid_by_bias(std::vector<int32_t> tokens, SourceModel& model) {
  constexpr float kNever = -1e4F;  // a probability of zero
  std::vector<TensorPart>& parts = model.parts[bias_of({TensorKind::output})];
  TensorPart stored{.source = "", .shape = {model.config.vocab}};
  if (model.config.output.bias) stored = parts.front();
  parts.clear();
  model.config.output.bias = true;
  std::ranges::sort(tokens);
  int64_t next = 0;
  const auto keep_until = [&](int64_t end) {
    if (end <= next) return;
    TensorPart part = stored;
    part.first_row = next;
    part.n_rows = end - next;
    parts.push_back(std::move(part));
  };
  for (const int32_t token : tokens) {
    if (token < next) continue;  // named twice
    keep_until(token);
    parts.push_back({.source = "", .shape = {1}, .add = kNever});
    next = token + 1;
  }
  keep_until(model.config.vocab);
}

// With a task's instruction, in place of the checkpoint's default prompt.
void begin_texts_with(const std::string& instruction, const fs::path& folder, ModelConfig& model) {
  if (instruction.empty()) return;
  if (!model.pooling || model.pooling->scores) {
    throw Error(folder.string() +
                ": --task: its instruction stands before texts that become vectors, but "
                "modules.json, which says how these are made, is missing");
  }
  model.pooling->prompt = instruction;
}

// A tied matrix may be stored under either name, or both; as Transformers, two that differ are not
// one matrix, whatever config.json says.
void find_tied_matrix(FamilyModel& family, Checkpoint& weights) {
  if (!family.config.output.tied) return;
  const Modules& modules = family.modules;
  const std::string embedding = base_in(weights, modules) + modules.embedding + ".weight";
  const std::string output = modules.output + ".weight";
  const SourceTensor* as_embedding = weights.find(embedding);
  const SourceTensor* as_output = weights.find(output);
  if (as_output == nullptr) return;
  if (as_embedding == nullptr) {
    weights.add_tensor(weights.take(output), embedding);
  } else {
    family.config.output.tied = same_values(weights, *as_embedding, *as_output);
  }
}

}  // namespace

json text_config(const json& whole) {
  const json& thinker = member_of(whole, "thinker_config");  // beside what speaks
  const json& config = thinker.is_object() ? thinker : whole;
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    const auto part = config.find(key);
    if (part == config.end() || !part->is_object()) continue;
    json text = *part;
    for (const char* member : {"bos_token_id", "eos_token_id", "quantization_config"}) {
      if (const json& outer = member_of(config, member); !outer.is_null()) text[member] = outer;
    }
    // Which of both has the word on tied matrices differs from class to class, and so does what
    // silence means: one that says no does not count, and where none says anything it is yes, for
    // matrices that differ are not tied all the same.
    constexpr const char* kTied = "tie_word_embeddings";
    const json& inner = member_of(text, kTied);
    if (const json& outer = member_of(config, kTied); outer.is_null()) {
      if (inner.is_null()) text[kTied] = true;
    } else if (inner.is_null() || outer != false) {
      text[kTied] = outer;
    }
    // A part is what its type says; the architecture is where it once came from. One that says
    // neither is what the whole is made for.
    if (text.contains("model_type")) {
      text.erase("architectures");
    } else if (!text.contains("architectures") && config.contains("architectures")) {
      text["architectures"] = config["architectures"];
    }
    return text;
  }
  return config;
}

void rename_old_norms(Checkpoint& weights) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights.tensors()) names.push_back(name);
  for (const std::string& name : names) {
    for (const auto& [old, now] : {std::pair("LayerNorm.gamma", "LayerNorm.weight"),
                                   std::pair("LayerNorm.beta", "LayerNorm.bias")}) {
      if (!name.ends_with(old)) continue;
      const size_t module = name.size() - std::string_view(old).size();
      weights.add_tensor(weights.take(name), name.substr(0, module) + now);
    }
  }
}

TokenizerConfig tokenizer_config_from_hf(const json& config, const json& generation_config,
                                         const json& tokenizer_config, std::string_view where) {
  const std::string folder(where);
  const JsonView model(config, folder + ": config.json");
  const JsonView generation(generation_config, folder + ": generation_config.json");
  const JsonView tokenizer(tokenizer_config, folder + ": tokenizer_config.json");
  // LlamaConfig's ids where config.json says nothing at all; an explicit null means none.
  TokenizerConfig ids;
  const std::vector<int32_t> bos = token_ids(model, "bos_token_id");
  if (!bos.empty()) ids.bos = bos.front();
  if (!model.has("bos_token_id")) ids.bos = 1;
  ids.eos = end_tokens(model, generation);
  if (ids.eos.empty() && !model.has("eos_token_id")) ids.eos = {2};
  if (tokenizer.get("add_bos_token", true) && ids.bos) ids.prefix = {*ids.bos};
  if (tokenizer.get("add_eos_token", false) && !ids.eos.empty()) ids.suffix = {ids.eos.front()};
  return ids;
}

json sampling_from_hf(const json& generation_config, std::string_view where) {
  const JsonView members(generation_config, where);
  json sampling;
  for (const std::string_view key : recommended_keys()) {
    if (const auto value = members.find(key)) sampling[std::string(key)] = value->value();
  }
  if (!members.get("do_sample", true)) sampling["temperature"] = 0;  // greedy
  if (!sampling.is_null()) (void)sampling_from_json(sampling, where);
  return sampling;
}

SourceModel open_hf_folder(const fs::path& folder, const std::optional<fs::path>& tokenizer,
                           std::span<const fs::path> adapter_folders, std::string_view task) {
  const fs::path config_path = folder / "config.json";
  if (!fs::exists(config_path)) {
    throw Error(folder.string() +
                ": holds no config.json; give the folder of a Hugging Face model");
  }
  SourceFiles files;
  const json whole_config = files.read_json(config_path);
  const json config = text_config(whole_config);
  // As texts: a NaN equals nothing.
  const bool is_part = config.dump() != whole_config.dump();
  if (is_part && is_classifier(JsonView(whole_config, config_path.string()))) {
    throw Error(config_path.string() +
                ": classifiers that are part of a multimodal model are not supported");
  }
  const std::string where = config_path.string() + (is_part ? ": text_config" : "");
  const json generation_config = files.read_json(folder / "generation_config.json");
  const json tokenizer_config = files.read_json(folder / "tokenizer_config.json");
  Checkpoint weights = open_weight_files(folder, files);
  const json quantized = quantization_beside(folder, whole_config, config, files);
  auto biases_of_zeros = join_quantized(JsonView(quantized, where), weights);
  std::vector<LeftOut> left_out;
  if (is_part) left_out = keep_text_tensors(weights);
  rename_old_norms(weights);
  MergedTask of_task = merge_task(JsonView(config, where), task, weights);
  const size_t own_files = weights.files().size();
  std::vector<Adapter> adapters;
  for (const fs::path& path : adapter_folders) adapters.emplace_back(path, weights, files);
  json described = config;
  FamilyModel family = describe_family({JsonView(described, where), weights}, where);
  const std::optional<int64_t> vocab = changed_vocabulary(adapters, family, weights);
  if (vocab) {
    if (!tokenizer) {
      throw Error(adapter_folders.back().string() + ": is for a vocabulary of " +
                  std::to_string(*vocab) + " tokens where the model has " +
                  std::to_string(family.config.vocab) +
                  "; name the tokenizer that it was trained with, with --tokenizer");
    }
    described["vocab_size"] = *vocab;
    family = describe_family({JsonView(described, where), weights}, where);
  }
  std::ranges::copy(leave_out(weights, family.modules), std::back_inserter(left_out));
  auto merged =
      merge_adapters(std::move(adapters), own_files, vocab, is_part, family, left_out, weights);
  std::erase_if(biases_of_zeros, [&](const std::string& name) {
    const SourceTensor* bias = weights.find(name);
    return bias != nullptr && (bias->update || bias->file >= own_files);
  });
  find_embedding(family, weights);
  read_sentence_modules(folder, files, family, weights);
  begin_texts_with(of_task.instruction, folder, family.config);
  if (of_task.adapter) merged.insert(merged.begin(), *std::move(of_task.adapter));
  find_tied_matrix(family, weights);
  SourceModel model{
      .family = family.name,
      .config = std::move(family.config),
      .tokenizer = {.config = tokenizer_config_from_hf(config, generation_config, tokenizer_config,
                                                       folder.string())},
      .chat_template = chat_template(folder, tokenizer_config, files),
      .special_tokens =
          special_tokens(tokenizer_config, files.read_json(folder / "special_tokens_map.json")),
      .answers = {},
      .sampling = sampling_from_hf(generation_config, (folder / "generation_config.json").string()),
      .weights = std::move(weights),
      .parts = {},
      .added_tokens = {},
      .left_out = std::move(left_out),
      .adapters = std::move(merged),
      .files = {}};
  model.parts = parts_of(model.config, family.modules, model.weights, family.encoder_modules);
  if (family.finish) family.finish(model.config, model.weights, model.parts);
  if (config != whole_config) family.predictors.names.emplace_back("mtp.");
  model.predictors = keep_predictors(family.predictors, family.modules, model.config, model.weights,
                                     model.parts, model.left_out);
  const bool tied = model.config.output.tied;
  refuse_unknown_tensors(model, [&](std::string_view name) {
    if (tied && name == family.modules.output + ".weight") return true;
    if (biases_of_zeros.contains(name)) return true;
    return std::ranges::any_of(family.modules.unused,
                               [&](const std::string& ending) { return name.ends_with(ending); });
  });
  take_types_of_weights(model);
  TokenizerFiles found;
  if (tokenizer) {
    found = read_named_tokenizer(*tokenizer, model, files);
  } else {
    found = read_hf_tokenizers(folder, model, files);
  }
  if (found.tokenizer.config) {  // config.json alone says less, but generation_config.json more
    model.tokenizer.config.eos = end_tokens(JsonView(config, config_path.string()),
                                            JsonView(generation_config, folder.string()));
  } else {
    model.added_tokens =
        added_tokens_from_hf(tokenizer_config, files.read_json(folder / "added_tokens.json"),
                             files.read_json(folder / "tokenizer.json"), folder);
  }
  use_tokenizer(std::move(found.tokenizer), model.tokenizer);
  if (!family.control_tokens.tokens.empty() && !model.tokenizer.sentencepiece.empty()) {
    add_control_tokens(family.control_tokens, model.tokenizer.file.string(),
                       model.tokenizer.sentencepiece, model.tokenizer.config);
  }
  if (found.encoder) use_tokenizer(*std::move(found.encoder), model.encoder_tokenizer.emplace());
  const bool answers_prompts = model.config.encoder && !model.config.output.none;
  if (answers_prompts) {
    if (generation_config.value("do_sample", json()) != true) model.sampling["temperature"] = 0;
    AnswerRules answers =
        answers_from_hf(config, generation_config, family.answers, model.tokenizer.config,
                        model.config.vocab, folder.string());
    if (answers.renormalizes) {
      std::vector<int32_t> tokens;
      std::erase_if(answers.never, [&](const std::vector<int32_t>& row) {
        if (row.size() == 1) tokens.push_back(row.front());
        return row.size() == 1;
      });
      if (!tokens.empty()) forbid_by_bias(std::move(tokens), model);
    }
    model.answers = answer_rules_to_json(answers);
  }
  if (!model.config.output.none) {
    model.untaken_settings = untaken_from_hf(config, generation_config, answers_prompts);
  }
  model.files = std::move(files);
  return model;
}

}  // namespace faststream::convert
