#include "convert/huggingface/eagle_head.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "convert/families/family.h"
#include "convert/families/predictors.h"
#include "convert/huggingface/weight_files.h"
#include "convert/weights/read_values.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Begins the names of the head's tensors beside the model's.
constexpr const char* kBase = "eagle.";
// vLLM's speculators say so what a head is, and nest what its layer is.
constexpr const char* kSpeculator = "speculators_model_type";
constexpr const char* kNestedLayer = "transformer_layer_config";

// What config.json says.
struct HeadConfig {
  JsonView whole;
  JsonView layer;
  JsonView extras;  // "eagle_config", where SpecForge and others keep what is not Llama's

  // Whether a flag is set in one of both places.
  [[nodiscard]] bool has_flag(std::string_view key, bool otherwise = false) const {
    return whole.get(key, extras.get(key, otherwise));
  }
};

// Adds the folder's tensors by one name each, however they are called there.
void add_head_tensors(const fs::path& folder, SourceModel& model) {
  Checkpoint& weights = model.weights;
  add_weight_files(folder, model.files, kBase, weights);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (name.starts_with(kBase)) names.push_back(name);
  }
  for (const std::string& name : names) {
    std::string rest = name.substr(std::strlen(kBase));
    for (const auto& [begin, now] :
         {std::pair<std::string_view, const char*>("model.", ""),
          std::pair<std::string_view, const char*>("midlayer.", "layers.0.")}) {
      if (rest.starts_with(begin)) rest = now + rest.substr(begin.size());
    }
    if (kBase + rest != name) weights.add_tensor(weights.take(name), kBase + rest);
  }
}

const SourceTensor* find_in_head(const SourceModel& model, const std::string& name) {
  return model.weights.find(kBase + name);
}

void refuse_other_speculators(const HeadConfig& config) {
  const auto kind = config.whole.get<std::string>(kSpeculator, "eagle3");
  if (kind != "eagle3") {
    config.whole.fail("is of a speculator of the kind " + in_quotes(kind) +
                      "; --eagle takes heads of EAGLE-3");
  }
  for (const char* quantized : {"quantization_config", "compression_config"}) {
    refuse_if_present(config.whole, quantized, "heads that are quantized already");
  }
  if (!config.has_flag("use_aux_hidden_state", true)) {
    config.whole.fail(
        "is of a head that reads the model's last hidden states alone, which is not "
        "supported");
  }
  const PlainShape shape = convert::shape_in(config.layer);
  if (shape.n_layers != 1) {
    config.layer.fail("is of a head with " + std::to_string(shape.n_layers) +
                      " layers; --eagle takes heads of one layer");
  }
}

void check_head_sizes(const HeadConfig& config, const ModelConfig& model) {
  const int64_t hidden = count_in(config.layer, "hidden_size", kMaxSize);
  const int64_t read = count_in(config.whole, "target_hidden_size", kMaxSize, hidden);
  if (hidden != model.hidden || read != model.hidden) {
    config.whole.fail("is of a head for hidden states of " + std::to_string(read) +
                      (read == hidden ? "" : ", with its own of " + std::to_string(hidden)) +
                      ", but the model's have " + std::to_string(model.hidden) +
                      "; give the head that was trained for this model");
  }
  const int64_t vocab = count_in(config.layer, "vocab_size", kMaxSize);
  if (vocab > model.vocab) {
    config.layer.fail("is of a head for " + std::to_string(vocab) +
                      " tokens, but the model has only " + std::to_string(model.vocab) +
                      "; give the head that was trained for this model");
  }
}

// After how many layers the states are that the head reads. Lists count in two ways: those of
// "eagle_config" name layers by their place, from 0, others say how many come before.
std::vector<int64_t> layers_read(const HeadConfig& config, int64_t n_layers) {
  constexpr const char* kList = "eagle_aux_hidden_state_layer_ids";
  const auto list_in = [&](const JsonView& view, const char* key, int64_t add) {
    std::vector<int64_t> after;
    const auto list = view.find(key);
    if (!list) return after;
    after = list->integers<int64_t>(0, n_layers - add);
    for (size_t n = 0; n < after.size(); ++n) {
      after[n] += add;
      if (n > 0 && after[n] <= after[n - 1]) list->fail("does not ascend");
    }
    return after;
  };
  std::vector<int64_t> after = list_in(config.extras, kList, 1);
  if (after.empty()) after = list_in(config.whole, kList, 0);
  if (after.empty()) after = list_in(config.whole, "aux_hidden_state_layer_ids", 0);
  if (!after.empty()) return after;
  constexpr int64_t kLeast = 7;  // layers, so that the three usual places follow each other
  if (n_layers < kLeast) {
    config.whole.fail(
        "does not say which layers' states the head reads, and the model has too few "
        "layers for the usual ones");
  }
  return {2, n_layers / 2, n_layers - 3};
}

// One row, as numbers of eight or four bytes.
std::vector<int64_t> integers_of(const SourceModel& model, const SourceTensor& tensor) {
  const std::string name =
      model.weights.files()[tensor.file].path().string() + ": tensor " + in_quotes(tensor.name);
  const bool is_wide = tensor.format->name == "I64";
  if (tensor.shape.size() != 1 || (!is_wide && tensor.format->name != "I32")) {
    throw Error(name + " is no list of whole numbers (I64 or I32)");
  }
  if (tensor.elements() > kMaxSize) throw Error(name + " has too many elements");
  std::vector<std::byte> raw(tensor.bytes());
  model.weights.read(tensor, 0, raw);
  std::vector<int64_t> numbers(static_cast<size_t>(tensor.elements()));
  for (size_t n = 0; n < numbers.size(); ++n) {
    int32_t narrow = 0;
    if (is_wide) {
      std::memcpy(&numbers[n], raw.data() + n * sizeof(int64_t), sizeof(int64_t));
    } else {
      std::memcpy(&narrow, raw.data() + n * sizeof(int32_t), sizeof(int32_t));
      numbers[n] = narrow;
    }
  }
  return numbers;
}

// The token of each row of the output matrix; none where each has its own.
std::vector<int32_t> tokens_of_rows(const HeadConfig& config, const SourceModel& model) {
  const int64_t vocab = model.config.vocab;
  const int64_t n_rows = count_in(config.whole, "draft_vocab_size", kMaxSize, vocab);
  if (n_rows > vocab) {
    config.whole.fail("asks for \"draft_vocab_size\" " + std::to_string(n_rows) +
                      ", but the model has only " + std::to_string(vocab) + " tokens");
  }
  const SourceTensor* map = find_in_head(model, "d2t");
  if (map == nullptr && n_rows == vocab) return {};
  if (map == nullptr) {
    config.whole.fail("is of a head with " + std::to_string(n_rows) + " of the model's " +
                      std::to_string(vocab) +
                      " tokens, but its weights have no tensor \"d2t\" that says which");
  }
  const std::string name =
      model.weights.files()[map->file].path().string() + ": tensor " + in_quotes(map->name);
  const std::vector<int64_t> offsets = integers_of(model, *map);
  if (static_cast<int64_t>(offsets.size()) != n_rows) {
    throw Error(name + " has " + std::to_string(offsets.size()) +
                " elements where \"draft_vocab_size\" is " + std::to_string(n_rows));
  }
  std::vector<int32_t> tokens;
  std::vector<bool> is_taken(static_cast<size_t>(vocab));
  for (int64_t row = 0; row < n_rows; ++row) {
    const int64_t offset = offsets[static_cast<size_t>(row)];
    const bool is_in = offset >= -row && offset < vocab - row;
    if (!is_in || is_taken[static_cast<size_t>(row + offset)]) {
      throw Error(name + " gives row " + std::to_string(row) +
                  (is_in ? " the token of another row" : " a token that the model has not"));
    }
    is_taken[static_cast<size_t>(row + offset)] = true;
    tokens.push_back(static_cast<int32_t>(row + offset));
  }
  const bool is_whole = n_rows == vocab && std::ranges::is_sorted(tokens);
  return is_whole ? std::vector<int32_t>{} : tokens;
}

// Of the layer's attention; 0: it sees whole texts. As vLLM's layer has it, the first of the types
// decides; a "sliding_window" without types has no meaning to Llama's layers.
int64_t head_window(const JsonView& config) {
  const auto types = config.find("layer_types");
  if (!types) {
    refuse_if(config, "use_sliding_window",
              "a window of layers that \"layer_types\" does not name");
    return 0;
  }
  const std::vector<JsonView> all = types->elements();
  if (all.empty()) types->fail("is empty");
  const auto type = all.front().as<std::string>();
  if (type == "full_attention") return 0;
  if (type != "sliding_attention") {
    all.front().fail("is " + in_quotes(type) + ", a type of layers that is not supported");
  }
  const int64_t window = window_in(config, 0);
  if (window == 0)
    types->fail("asks for a window, but \"sliding_window\" does not say of how many tokens");
  return window;
}

// A decoder of one layer that reads embeddings and hidden states side by side.
ModelConfig describe_eagle_head(const HeadConfig& config, const SourceModel& model) {
  ModelConfig head = plain_decoder_in(config.layer, convert::shape_in(config.layer));
  LayerConfig& layer = head.layer_kinds.front();
  const NormConfig norm = layer.mixer_norms.before;
  const bool has_head_norms = find_in_head(model, "layers.0.self_attn.q_norm.weight") != nullptr;
  set_attention_bias(layer, config.layer.get("attention_bias", false));
  layer.ffn.bias = config.layer.get("mlp_bias", false);
  layer.attention().window = head_window(config.layer);
  if (has_head_norms) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().qk_norm_as = norm;
  }
  layer.mixer_norms.before = {};
  head.vocab = model.config.vocab;
  head.max_context = model.config.max_context;
  head.embedding.shared = true;
  head.embedding.multiplier = model.config.embedding.multiplier;
  head.embedding.norm = norm;
  const bool before_fc = config.has_flag("norm_before_fc");
  const bool of_each = config.has_flag("fc_norm");
  if (before_fc && of_each) {
    config.whole.fail("asks for both \"norm_before_fc\" and \"fc_norm\", which is not supported");
  }
  // Speculators say where it is not so, others where it is.
  const bool is_speculator = config.whole.has(kSpeculator) || config.whole.has(kNestedLayer);
  head.hidden_input =
      HiddenInputConfig{.norm = norm,
                        .before_output_norm = !config.has_flag("norm_output"),
                        .layer_states = {.after = layers_read(config, model.config.n_layers()),
                                         .norm = before_fc || of_each ? norm : NormConfig{},
                                         .norm_of_each = of_each,
                                         .bias = find_in_head(model, "fc.bias") != nullptr},
                        .side_by_side = true,
                        .normed_stream = config.has_flag("norm_before_residual", is_speculator)};
  head.output = {.norm = norm, .tokens = tokens_of_rows(config, model)};
  return head;
}

Modules modules_of_head(const ModelConfig& head) {
  Modules modules;
  modules.base = kBase;
  modules.embedding_norm = "layers.0.input_layernorm";
  modules.hidden_norm = "layers.0.hidden_norm";
  modules.layer_states_projection = "fc";
  const LayerStatesConfig& states = head.hidden_input->layer_states;
  if (states.norm && !states.norm_of_each) modules.layer_states_norms = {"input_norm"};
  for (int64_t n = 0; states.norm_of_each && n < states.count(); ++n) {
    modules.layer_states_norms.push_back("fc_norm." + std::to_string(n));
  }
  modules.output = std::string(kBase) + "lm_head";
  return modules;
}

// The model's embedding serves a head that has none, or the same.
bool shares_embedding(const SourceModel& model) {
  const SourceTensor* own = find_in_head(model, "embed_tokens.weight");
  if (own == nullptr) return true;
  const auto parts = model.parts.find({.kind = TensorKind::embedding});
  if (parts == model.parts.end() || parts->second.size() != 1) return false;
  const SourceTensor* of_model = model.weights.find(parts->second.front().source);
  return of_model != nullptr && same_values(model.weights, *own, *of_model);
}

// The model's output matrix serves a head that has none: where it has a row for each token.
void share_output(const HeadConfig& config, const SourceModel& model, ModelConfig& head) {
  if (find_in_head(model, "lm_head.weight") != nullptr) return;
  if (!head.output.tokens.empty() || config.layer.get("tie_word_embeddings", false)) {
    config.whole.fail(
        "is of a head whose weights have no tensor \"lm_head.weight\", which it needs");
  }
  head.output.shared = true;
  head.output.soft_cap = model.config.output.soft_cap;
}

// Whatever else there is would change what the head computes.
void take_unused(const fs::path& folder, const TensorParts& parts, SourceModel& model) {
  std::set<std::string> used;
  for (const auto& [id, of_tensor] : parts) {
    for (const TensorPart& part : of_tensor) used.insert(part.source);
  }
  std::vector<std::string> others;
  for (const auto& [name, tensor] : model.weights.tensors()) {
    if (name.starts_with(kBase) && !used.contains(name)) others.push_back(name);
  }
  for (const std::string& name : others) {
    const std::string own = name.substr(std::strlen(kBase));
    const bool is_known = own == "d2t" || own == "t2d" || own == "embed_tokens.weight" ||
                          own.ends_with("rotary_emb.inv_freq");
    if (!is_known) {
      throw Error(folder.string() + ": tensor " + in_quotes(own) +
                  " has no place in the head of EAGLE-3 that config.json describes");
    }
    static_cast<void>(model.weights.take(name));
  }
}

void check_are_there(const fs::path& folder, const TensorParts& parts, const SourceModel& model) {
  for (const auto& [id, of_tensor] : parts) {
    for (const TensorPart& part : of_tensor) {
      if (part.source.empty() || model.weights.find(part.source) != nullptr) continue;
      throw Error(folder.string() + ": has no tensor " +
                  in_quotes(part.source.substr(std::strlen(kBase))) +
                  ", which the head of EAGLE-3 that config.json describes needs");
    }
  }
}

void check_joined_states(const fs::path& folder, const ModelConfig& head,
                         const SourceModel& model) {
  const SourceTensor* fc = find_in_head(model, "fc.weight");
  if (fc == nullptr) {
    throw Error(folder.string() + ": has no tensor \"fc.weight\", as heads of EAGLE-3 have");
  }
  const int64_t count = head.hidden_input->layer_states.count();
  const std::vector<int64_t> wanted = {head.hidden, count * head.hidden};
  if (fc->shape == wanted) return;
  throw Error(folder.string() + ": tensor \"fc.weight\" does not join " + std::to_string(count) +
              " hidden states of " + std::to_string(head.hidden) +
              ", as a head of EAGLE-3 for this model does" +
              (fc->shape == std::vector<int64_t>{head.hidden, 2 * head.hidden}
                   ? "; it is one of EAGLE-1 or 2"
                   : ""));
}

}  // namespace

void add_eagle_head(const fs::path& folder, SourceModel& model) {
  const fs::path path = folder / "config.json";
  const json whole = model.files.read_json(path);
  if (whole.empty()) {
    throw Error(folder.string() + ": holds no config.json; give the folder of a head of EAGLE-3");
  }
  if (model.config.encoder || model.config.output.none) {
    throw Error(folder.string() + ": is a head for decoders, which " + model.weights.name() +
                " is not");
  }
  const JsonView view(whole, path.string());
  const auto nested = view.find(kNestedLayer);
  static const json no_extras = json::object();
  const HeadConfig config{
      .whole = view,
      .layer = nested ? *nested : view,
      .extras = view.find("eagle_config").value_or(JsonView(no_extras, path.string()))};
  refuse_other_speculators(config);
  check_head_sizes(config, model.config);
  leave_out_predictors(model);
  add_head_tensors(folder, model);
  ModelConfig head = describe_eagle_head(config, model);
  check_joined_states(folder, head, model);
  head.embedding.shared = shares_embedding(model);
  share_output(config, model, head);
  set_formats(head, model.config.weight_format, model.config.embedding_format,
              model.config.output_format);
  TensorParts parts = parts_of(head, modules_of_head(head), model.weights);
  check_are_there(folder, parts, model);
  take_unused(folder, parts, model);
  model.config.predictors = {std::move(head)};
  validate(model.config, folder.string());
  size_t n_tensors = 0;
  for (auto& [id, of_tensor] : parts) {
    TensorId of_predictor = id;
    of_predictor.predictor = 1;
    n_tensors += of_tensor.size();
    model.parts[of_predictor] = std::move(of_tensor);
  }
  for (const TensorPlan& plan : tensor_plan(model.config)) {
    if (plan.id.predictor > 0 && plan.role != TensorRole::scales) check_tensor(model, plan);
  }
  const fs::path plain = fs::absolute(folder).lexically_normal();
  model.eagle = (plain.has_filename() ? plain : plain.parent_path()).filename().string();
  model.predictors = {{model.eagle, n_tensors}};
}

}  // namespace faststream::convert
