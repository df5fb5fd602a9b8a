#include "convert/huggingface/sentence_transformers.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "convert/huggingface/weight_files.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct NamedPooling {
  std::string_view name;    ///< of "pooling_mode"
  std::string_view member;  ///< that is true, in files of before
  Pooling pooling;
};
constexpr auto kPoolings = std::to_array<NamedPooling>(
    {{"cls", "pooling_mode_cls_token", Pooling::first},
     {"mean", "pooling_mode_mean_tokens", Pooling::mean},
     {"max", "pooling_mode_max_tokens", Pooling::largest},
     {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::mean_by_root},
     {"weightedmean", "pooling_mode_weightedmean_tokens", Pooling::weighted_mean},
     {"lasttoken", "pooling_mode_lasttoken", Pooling::last}});

struct DenseActivation {
  std::string_view name;
  Activation activation;
};
constexpr auto kDenseActivations = std::to_array<DenseActivation>({{"Identity", Activation::none},
                                                                   {"Tanh", Activation::tanh},
                                                                   {"GELU", Activation::gelu},
                                                                   {"ReLU", Activation::relu},
                                                                   {"SiLU", Activation::silu}});

// "Dense" of "sentence_transformers.models.Dense".
std::string class_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

Activation dense_activation(const JsonView& config) {
  const auto name = config.get<std::string>("activation_function", "torch.nn.modules.linear.Tanh");
  for (const DenseActivation& known : kDenseActivations) {
    if (class_of(name) == known.name) return known.activation;
  }
  config.fail("the activation " + in_quotes(name) + " is not supported");
}

// A folder below the model's own, by the name that modules.json has for it.
fs::path folder_of(const JsonView& module, const fs::path& folder) {
  const auto path = module.get<std::string>("path");
  constexpr size_t kLongestName = 255;
  if (path.empty() || path == ".." || path == "." || path.size() > kLongestName ||
      fs::path(path).filename() != path) {
    module.member("path").fail("is " + in_quotes(path) + ", no folder beside modules.json");
  }
  return folder / path;
}

json read_required(const fs::path& path, SourceFiles& files) {
  if (!fs::exists(path)) {
    throw Error(path.string() + ": is missing, although modules.json names it; download it");
  }
  return files.read_json(path);
}

void add_dense(const JsonView& module, const fs::path& folder, SourceFiles& files,
               FamilyModel& model, Checkpoint& weights) {
  const fs::path of_dense = folder_of(module, folder);
  const fs::path path = of_dense / "config.json";
  const json text = read_required(path, files);
  const JsonView config(text, path.string());
  PoolingConfig& pooling = *model.config.pooling;
  const int64_t in = count_in(config, "in_features");
  if (in != model.config.vector_size()) {
    config.member("in_features")
        .fail("is " + std::to_string(in) + ", but there are " +
              std::to_string(model.config.vector_size()));
  }
  pooling.dense.push_back({.size = count_in(config, "out_features"),
                           .bias = config.get("bias", true),
                           .activation = dense_activation(config)});
  const std::string prefix = of_dense.filename().string() + ".";
  add_weight_file(weights, of_dense, files, prefix);
  model.modules.dense.push_back({.product = prefix + "linear"});
}

// What sentence-transformers puts before every text that names no other prompt.
std::string default_prompt(const JsonView& config) {
  const auto name = config.find("default_prompt_name");
  return name ? config.member("prompts").get<std::string>(name->as<std::string>()) : "";
}

// As sentence-transformers: its own file, or else what model and tokenizer allow.
int64_t max_tokens(const fs::path& folder, SourceFiles& files, const ModelConfig& model) {
  const auto within = [&](const fs::path& path, const char* key) {
    const json text = files.read_json(path);
    const auto found = JsonView(text, path.string()).find(key);
    if (!found || !found->value().is_number()) return int64_t{0};
    const auto tokens = found->value().get<double>();  // "none" may be 1e30
    return tokens >= 1 && tokens <= static_cast<double>(model.max_context)
               ? static_cast<int64_t>(tokens)
               : model.max_context;
  };
  const int64_t own = within(folder / "sentence_bert_config.json", "max_seq_length");
  return own > 0 ? own : within(folder / "tokenizer_config.json", "model_max_length");
}

// What each token's hidden states go through before anything is made of them, where a family says
// so, stays whatever pooling modules.json names.
PoolingConfig with_own_products(PoolingConfig pooling, const std::optional<PoolingConfig>& own,
                                std::vector<DenseModules>& modules) {
  const bool keeps = own && !own->scores;
  pooling.dense_before = keeps ? own->dense_before : 0;
  if (keeps) pooling.dense.assign(own->dense.begin(), own->dense.begin() + own->dense_before);
  modules.resize(pooling.dense.size());
  return pooling;
}

// Of a cross-encoder, which is a classifier as a module of its own.
PoolingConfig scores_of(PoolingConfig scores, const std::string& prompt, const JsonView& config) {
  if (!prompt.empty()) {
    config.member("default_prompt_name").fail("is not supported where pairs of texts are scored");
  }
  if (const auto activation = config.find("activation_fn")) {
    scores.sigmoid = is_sigmoid(config, activation->as<std::string>());
  }
  return scores;
}

}  // namespace

std::optional<Pooling> pooling_named(std::string_view name) {
  for (const NamedPooling& known : kPoolings) {
    if (known.name == name) return known.pooling;
  }
  return std::nullopt;
}

Pooling pooling_from_json(const json& config, std::string_view where) {
  const JsonView view(config, where);
  if (!view.get("include_prompt", true)) {
    view.member("include_prompt")
        .fail("is false: pooling without a prompt's tokens is not supported");
  }
  std::vector<Pooling> asked;
  const auto mode = view.find("pooling_mode");
  std::vector<JsonView> modes;  // newer files name one or list several
  if (mode) modes = mode->value().is_array() ? mode->elements() : std::vector{*mode};
  for (const NamedPooling& known : kPoolings) {
    const auto is_named = [&](const JsonView& each) {
      return each.as<std::string>() == known.name;
    };
    const bool is_asked =
        mode ? std::ranges::any_of(modes, is_named) : view.get(std::string(known.member), false);
    if (is_asked) asked.push_back(known.pooling);
  }
  if (asked.size() == 1) return asked.front();
  view.fail(asked.empty() ? "asks for no pooling that is known"
                          : "asks for several ways of pooling at once, which are not supported");
}

void read_sentence_modules(const fs::path& folder, SourceFiles& files, FamilyModel& model,
                           Checkpoint& weights) {
  if (model.config.pooling) {  // a classifier's
    model.config.pooling->max_tokens = max_tokens(folder, files, model.config);
  }
  const fs::path path = folder / "modules.json";
  if (!fs::exists(path)) return;
  constexpr uint64_t kMaxBytes = uint64_t{1} << 20;
  const json list = parse_json(files.read(path, kMaxBytes), path.string());
  if (!model.config.output.none) remove_output(model);
  const std::optional<PoolingConfig> own = std::exchange(model.config.pooling, std::nullopt);
  bool has_model = false;
  for (const JsonView& module : JsonView(list, path.string()).elements()) {
    const std::string type = class_of(module.get<std::string>("type"));
    std::optional<PoolingConfig>& pooling = model.config.pooling;
    if (type == "Transformer" && !has_model) {
      has_model = true;
      if (!module.get<std::string>("path", "").empty()) {
        module.member("path").fail("is another folder; give that with the model's config.json");
      }
    } else if (type == "Pooling" && has_model && !pooling) {
      const fs::path file = folder_of(module, folder) / "config.json";
      pooling =
          with_own_products({.mode = pooling_from_json(read_required(file, files), file.string()),
                             .max_tokens = max_tokens(folder, files, model.config)},
                            own, model.modules.dense);
    } else if (type == "Dense" && pooling && !pooling->normalize) {
      add_dense(module, folder, files, model, weights);
    } else if (type == "Normalize" && pooling && !pooling->normalize) {
      pooling->normalize = true;
    } else {
      module.member("type").fail("is " + in_quotes(type) +
                                 ", a module that is not supported at this place");
    }
  }
  const fs::path config_path = folder / "config_sentence_transformers.json";
  const json config = files.read_json(config_path);
  std::string prompt = default_prompt(JsonView(config, config_path.string()));
  if (model.config.pooling) {
    model.config.pooling->prompt = std::move(prompt);
  } else if (own && own->scores && has_model) {
    model.config.pooling = scores_of(*own, prompt, JsonView(config, config_path.string()));
  } else {
    throw Error(path.string() + ": names no pooling");
  }
}

}  // namespace faststream::convert
