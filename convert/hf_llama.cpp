#include "convert/hf_llama.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "convert/llama_parts.h"
#include "convert/safetensors.h"
#include "convert/tokenizers/tokenizer_file.h"
#include "convert/tokenizers/tokenizer_json.h"
#include "engine/default_sampling.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"
#include "text/tokenizer.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxTemplateBytes = uint64_t{16} << 20;

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

// Refuses what would give wrong text if it were ignored.
void refuse_unsupported(const JsonView& config) {
  const auto model_type = config.get<std::string>("model_type", "");
  if (model_type != "llama") {
    config.fail("the model type " + in_quotes(model_type) +
                " is not supported; this version converts models of the type \"llama\"");
  }
  const auto activation = config.get<std::string>("hidden_act", "silu");
  if (activation != "silu") {
    config.fail("the activation " + in_quotes(activation) +
                " is not supported; Llama models use silu");
  }
  if (config.get("mlp_bias", false)) {
    config.fail("\"mlp_bias\": biases in the feed-forward layers are not supported");
  }
  if (config.find("quantization_config")) {
    config.fail(
        "the checkpoint is already quantized (\"quantization_config\"); convert the original one");
  }
  if (config.get("partial_rotary_factor", 1.0) != 1.0) {
    config.fail("\"partial_rotary_factor\": partial rotary embeddings are not supported");
  }
}

// rope_scaling, the name of Transformers 4, or else rope_parameters, that of 5: as
// Transformers 5.23 (modeling_rope_utils.py) takes one and does not look at the other.
std::optional<JsonView> rope_members(const JsonView& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    auto members = config.find(key);
    if (members && !members->value().empty()) return members;
  }
  return std::nullopt;
}

// "type" became "rope_type" in the course of Transformers 4. A theta inside goes before config's.
RopeConfig rope_from_hf(const JsonView& config, int64_t max_context) {
  RopeConfig rope;
  rope.theta = config.get("rope_theta", 10000.0);
  const auto members = rope_members(config);
  if (!members) return rope;
  rope.theta = members->get("rope_theta", rope.theta);
  if (members->get("partial_rotary_factor", 1.0) != 1.0) {
    members->fail("asks for partial rotary embeddings, which are not supported");
  }
  for (const auto& [key, value] : members->value().items()) {
    if (value.is_object()) members->fail("differs from layer to layer, which is not supported");
  }
  const auto type =
      members->get<std::string>("rope_type", members->get<std::string>("type", "default"));
  if (type == "linear") {
    rope.scaling = "linear";
    rope.factor = members->get<double>("factor");
  } else if (type == "llama3") {
    rope.scaling = "llama3";
    rope.factor = members->get<double>("factor");
    rope.low_freq_factor = members->get<double>("low_freq_factor");
    rope.high_freq_factor = members->get<double>("high_freq_factor");
    rope.original_max_context = members->get("original_max_position_embeddings", max_context);
  } else if (type != "default") {
    members->fail("has the type " + in_quotes(type) +
                  ", which is not supported; this version knows default, linear and llama3");
  } else if (members->get("factor", 1.0) != 1.0) {
    members->fail("has a \"factor\" but no \"rope_type\" that it belongs to");
  }
  return rope;
}

int64_t head_dim_from_hf(const JsonView& config, const ModelConfig& shape) {
  if (const auto given = config.find("head_dim")) return given->as<int64_t>();
  if (shape.n_heads < 1 || shape.hidden % shape.n_heads != 0) {
    config.fail(
        "\"hidden_size\" is not a multiple of \"num_attention_heads\" and there is no "
        "\"head_dim\"");
  }
  return shape.hidden / shape.n_heads;
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

// The spellings of special tokens: a string, or an object with "content", or a list of these.
json special_tokens(const json& tokenizer_config) {
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

/// What a folder's files, or the one that `given` names, say of the tokenizer.
struct FoundTokenizer {
  TokenizerFile file;
  std::optional<TokenizerConfig> config;  // as tokenizer.json has it
};

// As Transformers: tokenizer.json before tokenizer.model.
FoundTokenizer read_hf_tokenizer(const fs::path& folder, const std::optional<fs::path>& given,
                                 int64_t vocab, SourceFiles& files) {
  if (given) return {read_tokenizer_file(*given, vocab, files), std::nullopt};
  if (auto found = read_tokenizer_json(folder, files)) {
    return {{.sentencepiece = {}, .description = std::move(found->description)},
            std::move(found->config)};
  }
  for (const char* name : {"tokenizer.model", "tekken.json"}) {
    if (!fs::exists(folder / name)) continue;
    return {read_tokenizer_file(folder / name, vocab, files), std::nullopt};
  }
  throw Error(folder.string() +
              ": holds neither tokenizer.json nor tokenizer.model; name a tokenizer with "
              "--tokenizer FILE");
}

}  // namespace

ModelConfig llama_config_from_hf(const json& config, std::string_view where) {
  const JsonView members(config, where);
  refuse_unsupported(members);
  ModelConfig model;
  model.architecture = "llama";
  model.n_layers = members.get<int64_t>("num_hidden_layers");
  model.hidden = members.get<int64_t>("hidden_size");
  model.n_heads = members.get<int64_t>("num_attention_heads");
  model.n_kv_heads = members.get("num_key_value_heads", model.n_heads);
  model.head_dim = head_dim_from_hf(members, model);
  model.ffn_hidden = members.get<int64_t>("intermediate_size");
  model.vocab = members.get<int64_t>("vocab_size");
  model.max_context = members.get("max_position_embeddings", int64_t{2048});
  model.norm_eps = static_cast<float>(members.get("rms_norm_eps", 1e-6));
  model.rope = rope_from_hf(members, model.max_context);
  model.tied_output = members.get("tie_word_embeddings", false);
  model.attention_bias = members.get("attention_bias", false);
  validate(model, where);
  return model;
}

TokenizerConfig tokenizer_config_from_hf(const json& config, const json& generation_config,
                                         const json& tokenizer_config, std::string_view where) {
  const std::string folder(where);
  const JsonView model(config, where);
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
  for (const char* key : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                          "presence_penalty", "frequency_penalty"}) {
    if (const auto value = members.find(key)) sampling[key] = value->value();
  }
  if (!members.get("do_sample", true)) sampling["temperature"] = 0;  // greedy
  if (!sampling.is_null()) (void)sampling_from_json(sampling, where);
  return sampling;
}

SourceModel open_hf_llama(const fs::path& folder, const std::optional<fs::path>& tokenizer) {
  const fs::path config_path = folder / "config.json";
  if (!fs::exists(config_path)) {
    throw Error(folder.string() +
                ": holds no config.json; give the folder of a Hugging Face model");
  }
  SourceFiles files;
  const json config = files.read_json(config_path);
  const json generation_config = files.read_json(folder / "generation_config.json");
  const json tokenizer_config = files.read_json(folder / "tokenizer_config.json");

  SourceModel model{
      .config = llama_config_from_hf(config, config_path.string()),
      .tokenizer =
          tokenizer_config_from_hf(config, generation_config, tokenizer_config, folder.string()),
      .tokenizer_model = {},
      .tokenizer_description = {},
      .chat_template = chat_template(folder, tokenizer_config, files),
      .special_tokens = special_tokens(tokenizer_config),
      .sampling = sampling_from_hf(generation_config, (folder / "generation_config.json").string()),
      .weights = open_safetensors_folder(folder, files),
      .parts = {},
      .added_tokens = {},
      .files = {}};
  model.parts = llama_parts(model.config, kHfLlamaNames, false);
  refuse_unknown_tensors(model, [&](std::string_view name) {
    return name.ends_with("rotary_emb.inv_freq") ||
           (model.config.tied_output && name == "lm_head.weight");
  });
  // What the tensors are, not what config.json says: people convert one without the other.
  if (const SourceTensor* first = model.weights.find("model.layers.0.self_attn.q_proj.weight")) {
    model.config.weights = model.config.embedding = model.config.output = first->format->packed;
  }
  FoundTokenizer found = read_hf_tokenizer(folder, tokenizer, model.config.vocab, files);
  model.tokenizer_model = std::move(found.file.sentencepiece);
  model.tokenizer_description = std::move(found.file.description);
  if (found.config) {
    std::vector<int32_t> eos = end_tokens(JsonView(config, config_path.string()),
                                          JsonView(generation_config, folder.string()));
    model.tokenizer = *found.config;
    if (!eos.empty()) model.tokenizer.eos = std::move(eos);
  } else {
    model.added_tokens =
        added_tokens_from_hf(tokenizer_config, files.read_json(folder / "added_tokens.json"),
                             files.read_json(folder / "tokenizer.json"), folder);
  }
  model.files = std::move(files);
  return model;
}

}  // namespace faststream
