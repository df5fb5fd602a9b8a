#include "convert/source_model.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <set>
#include <span>

#include "convert/families/modules.h"
#include "convert/gguf/gguf_file.h"
#include "convert/gguf/gguf_model.h"
#include "convert/huggingface/answers_from_hf.h"
#include "convert/huggingface/hf_folder.h"
#include "convert/llama2c/llama2c.h"
#include "convert/tokenizers/sentencepiece_judge.h"
#include "model_file/layout.h"
#include "support/error.h"
#include "support/name_list.h"
#include "support/printable.h"
#include "support/shape_text.h"
#include "text/chat_template.h"
#include "text/describe_sentencepiece.h"
#include "text/tokenizer/compiled_tokenizer.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

bool is_model_file(const InputFile& file) {
  std::array<unsigned char, layout::kMagic.size()> magic{};
  if (file.size() < magic.size()) return false;
  file.read(0, std::as_writable_bytes(std::span(magic)));
  return magic == layout::kMagic;
}

SourceModel open_any(const fs::path& path, const std::optional<fs::path>& tokenizer,
                     std::span<const fs::path> adapters, std::string_view task) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!fs::exists(status)) {
    throw Error(path.string() +
                ": there is no such checkpoint; check the path, or download it first");
  }
  if (fs::is_directory(status)) return open_hf_folder(path, tokenizer, adapters, task);
  if (path.extension() == ".safetensors") {
    throw Error(path.string() +
                ": holds weights only; give the folder that also has config.json and "
                "tokenizer.model");
  }
  SourceFiles files;
  const InputFile file = files.open(path);
  if (is_model_file(file)) {
    throw Error(path.string() +
                ": is a model file already; run it with faststream-run -m, or see what is in it "
                "with --show");
  }
  if (!adapters.empty()) {
    throw Error(path.string() +
                ": is no Hugging Face folder, whose tensors have the names that the adapter of "
                "--lora has for them; merge it into the model that this file was made from");
  }
  if (!task.empty()) {
    throw Error(path.string() +
                ": is no Hugging Face folder, of which --task chooses an adapter; leave it out");
  }
  if (is_gguf(file)) return open_gguf_model(path, tokenizer);
  return open_llama2c(path, tokenizer);
}

SourceModel open_readable(const fs::path& path, const std::optional<fs::path>& tokenizer,
                          std::span<const fs::path> adapters, std::string_view task) {
  try {
    return open_any(path, tokenizer, adapters, task);
  } catch (const fs::filesystem_error& error) {  // a folder without read permission, for instance
    throw Error(error.path1().string() + ": cannot be read: " + error.code().message());
  }
}

int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Whether a tensor of the part's shape has all the rows that the part asks for.
bool fits(const TensorPart& part, int64_t width) {
  const int64_t elements = elements_of(part.shape);
  const int64_t last = part.first_row + part.row_step * (part_rows(part, width) - 1);
  const int64_t own = source_width(part, width);
  const auto blocks = static_cast<int64_t>(part.column_blocks.size());
  if (blocks > 0 && own % blocks != 0) return false;
  if (!part.transposed) return elements % own == 0 && last < elements / own;
  if (part.shape.size() < 2) return false;
  const int64_t inputs = part.shape.end()[-2];
  return part.first_input + own <= inputs && last < elements / inputs;
}

void check_tensors(const SourceModel& model) {
  for (const TensorPlan& plan : tensor_plan(model.config)) {
    if (plan.role != TensorRole::scales) check_tensor(model, plan);
  }
}

// Whether rows without tokens can be there for reasons of speed: to make the vocabulary a multiple
// of some power of two, fewer than that power (Megatron-LM, for one, pads to 128 rows for each of
// up to eight GPUs), or in reserve, a few: 128, or one in a hundred (Qwen 3 has 267 of 151936,
// gpt-oss 1069 of 201088). Other rows belong to tokens that this tokenizer lacks.
bool is_padding(int64_t n_tokens, int64_t n_rows) {
  constexpr int64_t kLargestMultiple = 1024;
  constexpr int64_t kReserve = 128;
  constexpr int64_t kReserveShare = 100;
  const int64_t power = std::min(n_rows & -n_rows, kLargestMultiple);
  return n_rows - n_tokens < std::max({power, kReserve + 1, n_rows / kReserveShare});
}

// rows: of a vocabulary that the tokenizer is for.
void check_size(const SourceModel& model, const Tokenizer& tokenizer, int64_t rows) {
  const int64_t n_tokens = tokenizer.vocab_size();
  if (n_tokens > rows) {
    throw Error(model.weights.name() + ": the tokenizer has " + std::to_string(n_tokens) +
                " tokens, but the model knows only " + std::to_string(rows) +
                "; name the right one with --tokenizer");
  }
  if (!is_padding(n_tokens, rows)) {
    throw Error(model.weights.name() + ": the tokenizer has " + std::to_string(n_tokens) +
                " tokens, but the vocabulary " + std::to_string(rows) +
                " rows, more than padding explains; name the right one with --tokenizer");
  }
}

std::unique_ptr<Tokenizer> finish_tokenizer(SourceTokenizer& tokenizer, const SourceModel& model) {
  const std::string where =
      tokenizer.file.empty() ? model.weights.name() + ": tokenizer" : tokenizer.file.string();
  std::optional<SentencePieceModel> read;
  if (!tokenizer.description) {
    read = parse_sentencepiece_model(std::as_bytes(std::span(tokenizer.sentencepiece)), where);
  }
  tokenizer.tables = compile_tokenizer(
      read ? describe_sentencepiece(*read, where) : *tokenizer.description, where);
  auto made =
      make_compiled_tokenizer(std::as_bytes(std::span(tokenizer.tables)), tokenizer.config, where);
  if (read) compare_with_sentencepiece(*read, *made, where);
  return made;
}

void finish_tokenizers(SourceModel& model) {
  auto tokenizer = finish_tokenizer(model.tokenizer, model);
  check_size(model, *tokenizer, model.config.vocab);
  require_added_tokens(model.added_tokens, *tokenizer);
  if (!model.config.encoder) return;
  if (model.encoder_tokenizer) tokenizer = finish_tokenizer(*model.encoder_tokenizer, model);
  check_size(model, *tokenizer, model.config.encoder->vocab);
  if (model.answers.contains("languages")) {
    model.answers["languages"]["tokens"] = languages_from_hf(*tokenizer, model.special_tokens);
  }
}

// The conversion goes on without: what a template cannot do is needed for chats alone.
void check_chat_template(SourceModel& model) {
  if (model.chat_template.is_null()) return;
  try {
    (void)ChatTemplate::from_json(model.chat_template,
                                  model.weights.name() + ": its chat template");
  } catch (const Error& error) {
    model.chat_template_fault =
        error.what() + std::string("; chats need another with --chat-template");
  }
}

}  // namespace

void check_tensor(const SourceModel& model, const TensorPlan& plan) {
  const auto found = model.parts.find(plan.id);
  if (found == model.parts.end()) {
    throw Error(model.weights.name() + ": nothing is known to give the tensor \"" + plan.name +
                "\"");
  }
  const int64_t width = row_width(plan);
  int64_t rows = 0;
  for (const TensorPart& part : found->second) {
    const int64_t of_part = part_rows(part, width);
    rows += of_part;
    for_each_summand(part, [&](const TensorPart& each) {
      if (each.projection.inputs > 0) {
        static_cast<void>(model.weights.require(each.projection.matrix,
                                                projection_shape(each.projection, width)));
      }
      if (each.source.empty()) return;
      static_cast<void>(model.weights.require(each.source, each.shape));
      if (!fits(each, width) || part_rows(each, width) != of_part) {
        throw Error(model.weights.name() + ": tensor " + in_quotes(each.source) +
                    " with the shape " + shape_text(each.shape) + " has other rows than \"" +
                    plan.name + "\" needs");
      }
    });
  }
  if (rows != plan.shape[0]) {
    throw Error(model.weights.name() + ": the tensors that give \"" + plan.name + "\" have " +
                std::to_string(rows) + " rows together, but the configuration asks for " +
                std::to_string(plan.shape[0]));
  }
}

int64_t row_width(const TensorPlan& plan) { return plan.shape.size() == 2 ? plan.shape[1] : 1; }

int64_t source_width(const TensorPart& part, int64_t width) {
  return part.projection.inputs > 0 ? part.projection.inputs : width;
}

std::vector<int64_t> projection_shape(const RowProjection& projection, int64_t width) {
  if (projection.transposed) return {projection.inputs, width};
  return {projection.of_rows > 0 ? projection.of_rows : width, projection.inputs};
}

int64_t part_rows(const TensorPart& part, int64_t width) {
  if (part.n_rows > 0) return part.n_rows;
  return (elements_of(part.shape) / source_width(part, width) - part.first_row + part.row_step -
          1) /
         part.row_step;
}

bool has_rows_of(const SourceTensor& tensor, const TensorPart& part) {
  if (tensor.shape == part.shape) return true;
  if (part.transposed) return false;
  const auto without_ones = [](std::vector<int64_t> shape) {
    std::erase(shape, 1);
    return shape;
  };
  const bool is_vector = part.shape.size() == 1 && part.n_rows == 0;
  return without_ones(tensor.shape) == without_ones(part.shape) ||
         (is_vector && tensor.elements() == part.shape[0]);
}

std::string to_text(std::span<const LeftOut> left_out) {
  std::string text;
  for (const LeftOut& other : left_out) {
    add_name(text, std::to_string(other.tensors) +
                       (other.tensors == 1 ? " tensor of " : " tensors of ") +
                       printable(other.name) +
                       (other.without.empty() ? "" : " (without them " + other.without + ")"));
  }
  return text;
}

std::string to_text(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) add_name(text, name);
  return text;
}

std::vector<LeftOut> leave_out(Checkpoint& weights, const Modules& modules) {
  std::vector<LeftOut> left_out;
  for (const std::string& module : modules.left_out) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : weights.tensors()) {
      const bool is_in = name.starts_with(module) || name.find("." + module) != std::string::npos;
      if (is_in) names.push_back(name);
    }
    for (const std::string& name : names) static_cast<void>(weights.take(name));
    const size_t end = module.find_last_not_of('.') + 1;
    if (!names.empty()) {
      left_out.push_back({module.substr(0, end), names.size(), modules.without_left_out});
    }
  }
  return left_out;
}

void take_types_of_weights(SourceModel& model) {
  for (const TensorPlan& plan : tensor_plan(model.config)) {
    if (plan.role != TensorRole::matrix || !is_of_layers(plan.id.kind)) continue;
    const auto parts = model.parts.find(plan.id);
    if (parts == model.parts.end() || parts->second.empty()) continue;
    const SourceTensor* tensor = model.weights.find(parts->second.front().source);
    if (tensor == nullptr) continue;  // check_tensors() says so
    const WeightFormat format = format_of(tensor->format->packed);
    set_formats(model.config, format, format, format);
    return;
  }
}

void use_tokenizer(TokenizerFile file, SourceTokenizer& tokenizer) {
  tokenizer.file = std::move(file.path);
  tokenizer.sentencepiece = std::move(file.sentencepiece);
  tokenizer.description = std::move(file.description);
  if (!file.config) return;
  if (!tokenizer.config.eos.empty()) file.config->eos = std::move(tokenizer.config.eos);
  tokenizer.config = *std::move(file.config);
}

void refuse_unknown_tensors(const SourceModel& model,
                            const std::function<bool(std::string_view)>& is_derived) {
  std::set<std::string, std::less<>> known;
  for (const auto& [target, parts] : model.parts) {
    for (const TensorPart& part : parts) {
      for_each_summand(part, [&](const TensorPart& each) {
        known.insert({each.source, each.projection.matrix});
      });
    }
  }
  for (const auto& [name, tensor] : model.weights.tensors()) {
    if (known.contains(name) || is_derived(name)) continue;
    throw Error(model.weights.files()[tensor.file].path().string() + ": tensor " + in_quotes(name) +
                " has no place in the model that the configuration describes");
  }
}

SourceModel open_source_model(const fs::path& path, const std::optional<fs::path>& tokenizer,
                              std::span<const fs::path> adapters, std::string_view task) {
  SourceModel model = open_readable(path, tokenizer, adapters, task);
  check_tensors(model);
  finish_tokenizers(model);
  check_chat_template(model);
  return model;
}

}  // namespace faststream::convert
