#include "convert/hf_llama.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "convert/llama_parts.h"
#include "convert/safetensors.h"
#include "support/error.h"
#include "support/json.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int32_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr uint64_t kMaxJsonBytes = uint64_t{16} << 20;

// Members of a JSON object. Absent and null are the same, as in Transformers.
class Members {
 public:
  Members(const json& object, std::string_view where) : object_(object), where_(where) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(std::string(where_) + ": " + what);
  }

  [[nodiscard]] const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[nodiscard]] std::optional<int64_t> integer(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool fits =
        value->is_number_integer() &&
        !(value->is_number_unsigned() &&
          value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!fits) fail(std::string("\"") + key + "\" is not a whole number");
    return value->get<int64_t>();
  }
  [[nodiscard]] int64_t required_integer(const char* key) const {
    const auto value = integer(key);
    if (!value) fail(std::string("\"") + key + "\" is missing");
    return *value;
  }
  [[nodiscard]] std::optional<double> number(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) fail(std::string("\"") + key + "\" is not a number");
    return value->get<double>();
  }
  [[nodiscard]] double required_number(const char* key) const {
    const auto value = number(key);
    if (!value) fail(std::string("\"") + key + "\" is missing");
    return *value;
  }
  [[nodiscard]] bool boolean(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(std::string("\"") + key + "\" is not true or false");
    return value->get<bool>();
  }
  [[nodiscard]] std::string string(const char* key, const std::string& otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fail(std::string("\"") + key + "\" is not a string");
    return value->get<std::string>();
  }
  // Token ids: a number, a list of numbers, or nothing.
  [[nodiscard]] std::vector<int32_t> ids(const char* key) const {
    const json* value = find(key);
    std::vector<int32_t> ids;
    if (value == nullptr) return ids;
    for (const json& id : value->is_array() ? *value : json::array({*value})) {
      const bool fits = id.is_number_integer() && id >= 0 && id <= kMaxId;
      if (!fits) {
        fail(std::string("\"") + key + "\" is neither a token id nor a list of them");
      }
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

 private:
  const json& object_;
  std::string_view where_;
};

// Refuses what would give wrong text if it were ignored.
void refuse_unsupported(const Members& config) {
  const std::string model_type = config.string("model_type", "");
  if (model_type != "llama") {
    config.fail("the model type \"" + model_type +
                "\" is not supported; this version converts models of the type \"llama\"");
  }
  const std::string activation = config.string("hidden_act", "silu");
  if (activation != "silu") {
    config.fail("the activation \"" + activation + "\" is not supported; Llama models use silu");
  }
  if (config.boolean("mlp_bias", false)) {
    config.fail("\"mlp_bias\": biases in the feed-forward layers are not supported");
  }
  if (config.find("quantization_config") != nullptr) {
    config.fail(
        "the checkpoint is already quantized (\"quantization_config\"); convert the original one");
  }
  if (config.number("partial_rotary_factor").value_or(1.0) != 1.0) {
    config.fail("\"partial_rotary_factor\": partial rotary embeddings are not supported");
  }
}

// Transformers 5 keeps everything in rope_parameters; 4 has rope_theta and, for scaled models,
// rope_scaling, whose "type" became "rope_type" later.
RopeConfig rope_from_hf(const Members& config, std::string_view where) {
  RopeConfig rope;
  rope.theta = config.number("rope_theta").value_or(10000.0);
  const bool is_new = config.find("rope_parameters") != nullptr;
  const char* key = is_new ? "rope_parameters" : "rope_scaling";
  const json* object = config.find(key);
  if (object == nullptr) return rope;
  if (!object->is_object()) config.fail(std::string("\"") + key + "\" is not a JSON object");

  const std::string place = std::string(where) + ": \"" + key + "\"";
  const Members scaling(*object, place);
  rope.theta = scaling.number("rope_theta").value_or(rope.theta);
  if (scaling.number("partial_rotary_factor").value_or(1.0) != 1.0) {
    scaling.fail("partial rotary embeddings are not supported");
  }
  const bool has_type =
      scaling.find("rope_type") != nullptr || scaling.find("type") != nullptr || is_new;
  if (!has_type) scaling.fail("\"rope_type\" is missing");
  const std::string type = scaling.string("rope_type", scaling.string("type", "default"));
  if (type == "linear") {
    rope.scaling = "linear";
    rope.factor = scaling.required_number("factor");
  } else if (type == "llama3") {
    rope.scaling = "llama3";
    rope.factor = scaling.required_number("factor");
    rope.low_freq_factor = scaling.required_number("low_freq_factor");
    rope.high_freq_factor = scaling.required_number("high_freq_factor");
    rope.original_max_context = scaling.required_integer("original_max_position_embeddings");
  } else if (type != "default") {
    scaling.fail("the rotary scaling \"" + type +
                 "\" is not supported; this version knows default, linear and llama3");
  }
  return rope;
}

int64_t head_dim_from_hf(const Members& config, const ModelConfig& shape) {
  if (const auto given = config.integer("head_dim")) return *given;
  if (shape.n_heads < 1 || shape.hidden % shape.n_heads != 0) {
    config.fail(
        "\"hidden_size\" is not a multiple of \"num_attention_heads\" and there is no "
        "\"head_dim\"");
  }
  return shape.hidden / shape.n_heads;
}

json optional_json(const fs::path& path) {
  if (!fs::exists(path)) return json::object();
  return parse_json_object(read_small_file(path, kMaxJsonBytes), path.string());
}

// chat_template.jinja, or tokenizer_config.json's "chat_template": a string, or a list of named
// ones.
std::optional<std::string> chat_template(const fs::path& folder, const json& tokenizer_config) {
  const fs::path file = folder / "chat_template.jinja";
  if (fs::exists(file)) return read_small_file(file, kMaxJsonBytes);
  const auto found = tokenizer_config.find("chat_template");
  if (found == tokenizer_config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const json& named : *found) {
    if (named.is_object() && named.value("name", json()) == "default" &&
        named.value("template", json()).is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

std::string read_hf_tokenizer(const fs::path& folder, const std::optional<fs::path>& given,
                              int64_t vocab) {
  if (given) return read_tokenizer_model(*given, vocab);
  const fs::path usual = folder / "tokenizer.model";
  if (fs::exists(usual)) return read_tokenizer_model(usual, vocab);
  const bool has_json = fs::exists(folder / "tokenizer.json");
  throw Error(usual.string() + ": is missing" +
              (has_json ? ", and this version does not read tokenizer.json" : "") +
              "; name a SentencePiece model with --tokenizer FILE");
}

// A tensor that nobody asks for means another architecture, whose text would be wrong.
void refuse_unknown_tensors(const SourceModel& model) {
  std::set<std::string, std::less<>> known;
  for (const auto& [target, parts] : model.parts) {
    for (const TensorPart& part : parts) known.insert(part.source);
  }
  for (const auto& [name, tensor] : model.weights.tensors()) {
    const bool derived = name.ends_with("rotary_emb.inv_freq") ||
                         (model.config.tied_output && name == "lm_head.weight");
    if (known.contains(name) || derived) continue;
    throw Error(model.weights.files()[tensor.file].path().string() + ": tensor \"" + name +
                "\" has no place in the model that config.json describes");
  }
}

}  // namespace

ModelConfig llama_config_from_hf(const json& config, std::string_view where) {
  const Members members(config, where);
  refuse_unsupported(members);
  ModelConfig model;
  model.architecture = "llama";
  model.n_layers = members.required_integer("num_hidden_layers");
  model.hidden = members.required_integer("hidden_size");
  model.n_heads = members.required_integer("num_attention_heads");
  model.n_kv_heads = members.integer("num_key_value_heads").value_or(model.n_heads);
  model.head_dim = head_dim_from_hf(members, model);
  model.ffn_hidden = members.required_integer("intermediate_size");
  model.vocab = members.required_integer("vocab_size");
  model.max_context = members.integer("max_position_embeddings").value_or(2048);
  model.norm_eps = static_cast<float>(members.number("rms_norm_eps").value_or(1e-6));
  model.rope = rope_from_hf(members, where);
  model.tied_output = members.boolean("tie_word_embeddings", false);
  model.attention_bias = members.boolean("attention_bias", false);
  validate(model, where);
  return model;
}

TokenizerConfig tokenizer_config_from_hf(const json& config, const json& generation_config,
                                         const json& tokenizer_config, std::string_view where) {
  // LlamaConfig's ids where config.json says nothing at all; an explicit null means none.
  const Members model(config, where);
  const std::string generation_where = std::string(where) + ": generation_config.json";
  const Members generation(generation_config, generation_where);
  const std::string tokenizer_where = std::string(where) + ": tokenizer_config.json";
  const Members tokenizer(tokenizer_config, tokenizer_where);
  TokenizerConfig ids;
  const std::vector<int32_t> bos = model.ids("bos_token_id");
  if (!bos.empty()) ids.bos = bos.front();
  if (!config.contains("bos_token_id")) ids.bos = 1;
  ids.eos = generation.ids("eos_token_id");
  if (ids.eos.empty()) ids.eos = model.ids("eos_token_id");
  if (ids.eos.empty() && !config.contains("eos_token_id")) ids.eos = {2};
  ids.add_bos = tokenizer.boolean("add_bos_token", true);
  ids.add_eos = tokenizer.boolean("add_eos_token", false);
  return ids;
}

SourceModel open_hf_llama(const fs::path& folder, const std::optional<fs::path>& tokenizer) {
  const fs::path config_path = folder / "config.json";
  if (!fs::exists(config_path)) {
    throw Error(folder.string() +
                ": holds no config.json; give the folder of a Hugging Face model");
  }
  const json config =
      parse_json_object(read_small_file(config_path, kMaxJsonBytes), config_path.string());
  const json tokenizer_config = optional_json(folder / "tokenizer_config.json");

  SourceModel model{.config = llama_config_from_hf(config, config_path.string()),
                    .tokenizer = tokenizer_config_from_hf(
                        config, optional_json(folder / "generation_config.json"), tokenizer_config,
                        folder.string()),
                    .tokenizer_model = {},
                    .chat_template = chat_template(folder, tokenizer_config),
                    .weights = open_safetensors_folder(folder),
                    .parts = {}};
  model.parts = llama_parts(model.config, false);
  refuse_unknown_tensors(model);
  // What the tensors are, not what config.json says: people convert one without the other.
  if (const SourceTensor* first = model.weights.find("model.layers.0.self_attn.q_proj.weight")) {
    model.config.weights = model.config.embedding = model.config.output = first->dtype;
  }
  model.tokenizer_model = read_hf_tokenizer(folder, tokenizer, model.config.vocab);
  return model;
}

}  // namespace faststream
