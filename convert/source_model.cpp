#include "convert/source_model.h"

#include <algorithm>
#include <set>
#include <span>

#include "convert/gguf/gguf_file.h"
#include "convert/gguf/gguf_llama.h"
#include "convert/hf_llama.h"
#include "convert/llama2c.h"
#include "support/error.h"
#include "support/printable.h"
#include "text/tokenizer/compiled_tokenizer.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

SourceModel open_any(const fs::path& path, const std::optional<fs::path>& tokenizer) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!fs::exists(status)) {
    throw Error(path.string() + ": there is no such checkpoint; check the path");
  }
  if (fs::is_directory(status)) return open_hf_llama(path, tokenizer);
  if (path.extension() == ".safetensors") {
    throw Error(path.string() +
                ": holds weights only; give the folder that also has config.json and "
                "tokenizer.model");
  }
  if (SourceFiles files; is_gguf(files.open(path))) return open_gguf_llama(path, tokenizer);
  return open_llama2c(path, tokenizer);
}

SourceModel open_readable(const fs::path& path, const std::optional<fs::path>& tokenizer) {
  try {
    return open_any(path, tokenizer);
  } catch (const fs::filesystem_error& error) {  // a folder without read permission, for instance
    throw Error(error.path1().string() + ": cannot be read: " + error.code().message());
  }
}

void check_tensors(const SourceModel& model) {
  for (const TensorPlan& plan : tensor_plan(model.config)) {
    for (const TensorPart& part : model.parts.at(plan.name)) {
      static_cast<void>(model.weights.require(part.source, part.shape));
    }
  }
}

// Whether rows without tokens can be there for reasons of speed: to make the vocabulary a multiple
// of some power of two, fewer than that power (Megatron-LM, for one, pads to 128 rows for each of
// up to eight GPUs), or in reserve, a few. Other rows belong to tokens that this tokenizer lacks.
bool is_padding(int64_t n_tokens, int64_t n_rows) {
  constexpr int64_t kLargestMultiple = 1024;
  constexpr int64_t kReserve = 128;
  const int64_t power = std::min(n_rows & -n_rows, kLargestMultiple);
  return n_rows - n_tokens < std::max(power, kReserve + 1);
}

void check_size(const SourceModel& model, int64_t n_tokens) {
  if (n_tokens > model.config.vocab) {
    throw Error(model.weights.name() + ": the tokenizer has " + std::to_string(n_tokens) +
                " tokens, but the model knows only " + std::to_string(model.config.vocab) +
                "; name the right one with --tokenizer");
  }
  if (!is_padding(n_tokens, model.config.vocab)) {
    throw Error(model.weights.name() + ": the tokenizer has " + std::to_string(n_tokens) +
                " tokens, but the vocabulary " + std::to_string(model.config.vocab) +
                " rows, more than padding explains; name the right one with --tokenizer");
  }
}

void finish_tokenizer(SourceModel& model) {
  const std::string where = model.weights.name() + ": tokenizer";
  if (model.tokenizer_description) {
    model.tokenizer.kind = kCompiledTokenizer;
    model.tokenizer_model = compile_tokenizer(*model.tokenizer_description, where);
  }
  const auto tokenizer =
      make_tokenizer(std::as_bytes(std::span(model.tokenizer_model)), model.tokenizer, where);
  check_size(model, tokenizer->vocab_size());
  require_added_tokens(model.added_tokens, *tokenizer);
}

}  // namespace

void refuse_unknown_tensors(const SourceModel& model,
                            const std::function<bool(std::string_view)>& is_derived) {
  std::set<std::string, std::less<>> known;
  for (const auto& [target, parts] : model.parts) {
    for (const TensorPart& part : parts) known.insert(part.source);
  }
  for (const auto& [name, tensor] : model.weights.tensors()) {
    if (known.contains(name) || is_derived(name)) continue;
    throw Error(model.weights.files()[tensor.file].path().string() + ": tensor " + in_quotes(name) +
                " has no place in the model that the configuration describes");
  }
}

SourceModel open_source_model(const fs::path& path, const std::optional<fs::path>& tokenizer) {
  SourceModel model = open_readable(path, tokenizer);
  check_tensors(model);
  finish_tokenizer(model);
  return model;
}

}  // namespace faststream
