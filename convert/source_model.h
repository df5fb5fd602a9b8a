// A checkpoint as the pipeline sees it, whatever format and family it came from.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/adapters/merge_adapter.h"
#include "convert/checkpoint.h"
#include "convert/tokenizers/added_tokens.h"
#include "convert/tokenizers/tokenizer_file.h"
#include "models/config.h"
#include "models/tensor_plan.h"
#include "text/tokenizer.h"
#include "text/tokenizer_description.h"

namespace faststream::convert {

/// Heads of a checkpoint that keeps the members of a rotary pair side by side: of each head_dim
/// rows the first `rotated` are reordered, 2i and 2i + 1 becoming i and i + rotated / 2.
struct SidewisePairs {
  int64_t head_dim = 0;  ///< 0: rows stay where they are
  int64_t rotated = 0;   ///< even, at most head_dim
};

/// A matrix of the checkpoint that takes rows of another width to a model file's: each row becomes
/// M · row.
struct RowProjection {
  std::string matrix;  ///< its name: [width, inputs], or [inputs, width] if transposed
  int64_t inputs = 0;  ///< width of the rows before; 0: there is no projection
  bool transposed = false;
  /// If above 0, the matrix has so many rows, of which it is those from first_row on; not of one
  /// that is transposed.
  int64_t of_rows = 0;
  int64_t first_row = 0;
};

/// Rows of a model file's tensor that one tensor of the checkpoint provides: those from first_row
/// on, each row_step-th, reordered and projected; then each value becomes scale · (value + add). A
/// row is as wide as the model file's (one value of a vector), or as its projection has it,
/// whatever dimensions the checkpoint's shape has. A tensor of the checkpoint may be in any number
/// of parts.
struct TensorPart {
  std::string source;          ///< the checkpoint's name; empty: `values`, or a tensor of zeros
  std::vector<int64_t> shape;  ///< that it must have there
  /// Its last two dimensions are swapped before rows are counted: [in, out] where products take
  /// [out, in].
  bool transposed = false;
  int64_t first_input = 0;  ///< of a transposed matrix: how many of its `in` stand before a row's
  int64_t first_row = 0;
  int64_t n_rows = 0;    ///< 0: all that there are
  int64_t row_step = 1;  ///< 0: n_rows times the first one
  SidewisePairs pairs = {};
  RowProjection projection = {};
  float add = 0;
  float scale = 1;
  /// In place of a tensor of the checkpoint: what is computed, of this shape.
  std::shared_ptr<const std::vector<float>> values = nullptr;
  bool unit_rows = false;  ///< each row is divided by its Euclidean norm, at last
  /// Another one, of as many rows, whose values are added to these.
  std::shared_ptr<const TensorPart> plus = nullptr;
  /// Blocks of as many columns each: which one of the checkpoint's becomes the first, the second
  /// and so on; empty: columns stay where they are.
  std::vector<int64_t> column_blocks = {};
  bool log_of_opposite = false;  ///< each value x becomes log(-x), before all else
};

/// Calls use(part) for a part and what is added to it.
template <typename Use>
void for_each_summand(const TensorPart& part, Use use) {
  for (const TensorPart* each = &part; each != nullptr; each = each->plus.get()) use(*each);
}

/// The parts of each tensor of tensor_plan(), scales aside, top to bottom. The output matrix is
/// always there; for a tied model it comes from the embedding table.
using TensorParts = std::map<TensorId, std::vector<TensorPart>>;

/// Values in a row of a tensor of the model file, as parts count rows.
int64_t row_width(const TensorPlan& plan);
/// Values in a row of the checkpoint's tensor, of a part of a tensor with rows of `width` values.
int64_t source_width(const TensorPart& part, int64_t width);
/// The shape of the matrix that makes rows of `width` values.
std::vector<int64_t> projection_shape(const RowProjection& projection, int64_t width);
/// Rows that a part gives to a tensor with rows of `width` values.
int64_t part_rows(const TensorPart& part, int64_t width);

/// Whether a tensor holds the rows that a part asks for, if its shape is another: it may have
/// dimensions of one element more or less, or be a vector's elements in any shape.
bool has_rows_of(const SourceTensor& tensor, const TensorPart& part);

struct Modules;

/// Tensors of a checkpoint that have no place in the model file on purpose, or could have none.
struct LeftOut {
  std::string name;  ///< what their names begin with
  size_t tensors = 0;
  std::string without = {};  ///< what the model is without them, if that is less, as a clause
};

/// "421 tensors of vision_tower, 2 tensors of projector", as it can be shown.
std::string to_text(std::span<const LeftOut> left_out);
/// "num_beams, typical_p".
std::string to_text(std::span<const std::string> names);

/// A tokenizer on its way into the model file.
struct SourceTokenizer {
  TokenizerConfig config = {};
  std::string sentencepiece = {};  ///< a serialized SentencePiece model, unless there is
  std::optional<TokenizerDescription> description = {};
  std::string tables = {};          ///< compiled from it: the tensor
  std::filesystem::path file = {};  ///< where it is from; empty: the weights' file
};

struct SourceModel {
  std::string family;  ///< for the user
  ModelConfig config;  ///< with the checkpoint's own types of weights
  SourceTokenizer tokenizer;
  std::optional<SourceTokenizer> encoder_tokenizer = {};  ///< where the encoder has another
  nlohmann::json chat_template;  ///< Jinja, or {"default": Jinja, "tool_use": Jinja}, or null
  /// Why chats cannot use the template, in one sentence; empty: they can, or there is none.
  std::string chat_template_fault = {};
  nlohmann::json special_tokens;  ///< their spellings, as ChatTemplate takes them, or null
  nlohmann::json answers;         ///< of a model with an encoder (AnswerRules); else null
  nlohmann::json sampling;  ///< what sampling_from_json() takes; null where nothing is recommended
  Checkpoint weights;
  TensorParts parts;
  std::vector<AddedToken> added_tokens;  ///< which the tokenizer must have
  std::vector<LeftOut> left_out;         ///< other models beside the one that is converted
  std::vector<MergedAdapter> adapters = {};
  std::vector<LeftOut> predictors = {};  ///< tensors of config.predictors, by what they begin with
  std::string eagle = {};  ///< the name of their folder where they are a head of EAGLE-3
  /// Of generation: what the checkpoint recommends and the model file will not say.
  std::vector<std::string> untaken_settings = {};
  SourceFiles files;  ///< all that were read
};

/// Opens a checkpoint: a Hugging Face folder, a GGUF file or a llama2.c file. `tokenizer` replaces
/// the one that comes with it; `adapters` are the folders of those that are merged into the weights
/// of a Hugging Face folder, as is the adapter of a `task` that it has itself (merge_task()).
/// Throws Error when it is neither, incomplete or not supported. When this returns, every tensor
/// that the configuration asks for is there, in the right shape, and the tokenizers have a token
/// for each row of their vocabularies but for padding.
SourceModel open_source_model(const std::filesystem::path& path,
                              const std::optional<std::filesystem::path>& tokenizer,
                              std::span<const std::filesystem::path> adapters = {},
                              std::string_view task = {});

/// Throws Error unless the parts of a planned tensor, other than scales, are there and give the
/// rows that it must have.
void check_tensor(const SourceModel& model, const TensorPlan& plan);

/// Takes away the tensors that modules.left_out names, and says how many of each there were.
std::vector<LeftOut> leave_out(Checkpoint& weights, const Modules& modules);

/// Takes the type of weights from what the first matrix of a layer comes from: not what a
/// configuration says, for people convert one without the other.
void take_types_of_weights(SourceModel& model);

/// Replaces a tokenizer by that of a file: with what a tokenizer.json says of its special tokens,
/// but for the ends of texts that are known already.
void use_tokenizer(TokenizerFile file, SourceTokenizer& tokenizer);

/// Throws Error, naming the first, when the checkpoint has tensors that no part asks for, but for
/// those that `is_derived` knows by name: a model with more tensors is another model, and its text
/// would be wrong.
void refuse_unknown_tensors(const SourceModel& model,
                            const std::function<bool(std::string_view)>& is_derived);

}  // namespace faststream::convert
