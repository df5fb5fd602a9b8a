// Families of decoders and encoders: what config.json means and what the tensors are called.
//
// A family is a function in a file of its own that turns config.json into the description of the
// model (models/config.h) and the names of the checkpoint's modules (convert/families/modules.h).
// docs/new-family.md shows how to add one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/families/modules.h"
#include "convert/families/predictors.h"
#include "convert/families/rope_rules.h"
#include "convert/tokenizers/control_tokens.h"
#include "engine/answer_rules.h"
#include "models/config.h"
#include "support/json.h"

namespace faststream::convert {

/// What a family has to go by.
struct FamilySource {
  JsonView config;            ///< config.json, or its part about the text model
  const Checkpoint& weights;  ///< the text model's tensors alone
};

struct FamilyModel {
  ModelConfig config;  ///< valid; types of weights left as they are by default
  Modules modules = {};
  Modules encoder_modules = {};  ///< of config.encoder
  /// Modules under whose names a checkpoint may store the embedding, or, if they are the same, more
  /// than once: the decoder's, the encoder's and what both share.
  std::vector<std::string> embeddings = {};
  ControlTokens control_tokens = {};  ///< beside a SentencePiece model
  AnswerRules answers = {};           ///< of a model with an encoder, where nothing else is said
  /// Changes what modules cannot say; may be empty.
  std::function<void(const ModelConfig&, const Checkpoint&, TensorParts&)> finish = {};
  PredictorModules predictors = {};
  std::string name = {};  ///< the model type; describe_family() sets it
};

/// The model that config.json describes: by its architecture, or where it names none by its model
/// type. Throws Error, starting with `where`, when a member is missing, of the wrong type or out of
/// range, or the architecture or something that it asks for is not supported.
FamilyModel describe_family(const FamilySource& source, std::string_view where);

// For families. ---------------------------------------------------------------------------------

/// The largest size that config.json may name.
inline constexpr int64_t kMaxSize = int64_t{1} << 24;

/// Tells Baichuan 2, whose output matrix has rows of length 1 when it is used, from Baichuan 1.
inline constexpr int64_t kBaichuan2Vocab = 125696;

/// A whole number from 1 to `most` that must be there, or has a value when it is not.
int64_t count_in(const JsonView& config, std::string_view key, int64_t most = kMaxSize);
int64_t count_in(const JsonView& config, std::string_view key, int64_t most, int64_t otherwise);

/// The same of a member that may be null, which is 0.
int64_t count_or_null_in(const JsonView& config, std::string_view key, int64_t most,
                         int64_t otherwise);

/// A whole number from 0 to `most`, or `otherwise` where it is absent.
int64_t number_of(const JsonView& config, std::string_view key, int64_t most, int64_t otherwise);

/// Of each layer a whole number from 1 to `most`, where config.json has one for all or a list with
/// as many or more; `otherwise` as for shape_in().
std::vector<int64_t> counts_of_layers(const JsonView& config, std::string_view key,
                                      int64_t n_layers, int64_t most, int64_t otherwise);

/// The first of `keys` that is there, or the last of them: families have renamed members.
std::string_view key_in(const JsonView& config, std::initializer_list<std::string_view> keys);

/// A finite number.
float number_in(const JsonView& config, std::string_view key, double otherwise);

/// The activation that a member names as Transformers does ("silu", "gelu_new", ...).
Activation activation_in(const JsonView& config, std::string_view key, std::string_view otherwise);

/// The one of that name; the second throws Error, about `config`, when there is none.
std::optional<Activation> find_activation(std::string_view name);
Activation activation_named(const JsonView& config, std::string_view name);

/// The sizes that config.json gives under the names that most families use, and for those that are
/// absent `otherwise`: what the family's configuration class has. Where that is 0 they must be
/// there, but for n_kv_heads (then n_heads) and head_dim (then hidden / n_heads). A class's sizes
/// matter where the family is the text model of multimodal ones: their "text_config" says only what
/// differs from them. Of feed-forwards whose sizes differ it has the first layer's.
PlainShape shape_in(const JsonView& config,
                    const PlainShape& otherwise = {.max_context = 2048, .norm_eps = 1e-6F});

/// hidden / n_heads. Throws Error unless it is whole.
int64_t head_dim_of(const JsonView& config, const PlainShape& shape);

/// What config.json leaves to its family where it says nothing.
struct FamilyDefaults {
  bool tied = false;
  double rotated_share = 1;    ///< of each head; see RopeShape
  std::string_view rope_of{};  ///< the type of layers whose rotation it is; see rope_from_hf()
};

/// plain_decoder() of the shape with config.json's rotation, "tie_word_embeddings" and the
/// activation that "hidden_act" names.
ModelConfig plain_decoder_in(const JsonView& config, const PlainShape& shape,
                             const FamilyDefaults& defaults = {});

/// Layer normalization under a key that gives its epsilon.
NormConfig layer_norm_in(const JsonView& config, std::string_view key, bool bias = true);

/// Gives biases to attention's products, or takes them away.
void set_attention_bias(LayerConfig& layer, bool bias);

/// Makes the feed-forward one without a gate.
void set_plain_ffn(LayerConfig& layer, Activation activation, bool bias);

/// Cuts SiLU's gates, and what they multiply, at a limit; 0: leaves them as they are.
void set_gate_limit(FeedForwardConfig& ffn, float limit);

/// Puts `count` experts, each like the layer's feed-forward, in its place. Of them
/// "num_experts_per_tok", or else `used`, are used: those with the best scores, whose softmax over
/// all are their weights.
ExpertsConfig& use_experts(LayerConfig& layer, const JsonView& config, int64_t count, int64_t used);

/// Latent attention of the sizes that config.json gives under DeepSeek's names, with the scale of
/// scores that YaRN asks for; what is absent is as `otherwise` has it.
LatentAttentionConfig latent_attention_in(const JsonView& config,
                                          const LatentAttentionConfig& otherwise);

/// Has every kind of layer take these norms before its branches, and the output as well.
void set_norms(ModelConfig& model, const NormConfig& norm);

/// An encoder as BERT is (arXiv:1810.04805): layers whose tokens all see each other, without
/// rotation, with biases, a feed-forward without a gate, and a layer normalization of the sum after
/// each branch; another of the embedding; hidden states as output.
ModelConfig post_norm_encoder(const PlainShape& shape, const NormConfig& norm,
                              Activation activation);

/// Has the model give hidden states and not logits.
void remove_output(FamilyModel& model);

/// Whether config.json's architecture is one that scores labels.
bool is_classifier(const JsonView& config);

/// Whether the activation of scores with this name, "torch.nn.modules.activation.Sigmoid" or that
/// of Identity, is a sigmoid. Throws Error, about `config`, for any other.
bool is_sigmoid(const JsonView& config, std::string_view name);

/// Has the model score the labels of "id2label": the vectors that `pooling` makes go through the
/// `heads` that it lists and a product of the module `scores`.
void score_labels(FamilyModel& model, const JsonView& config, PoolingConfig pooling,
                  std::vector<DenseModules> heads, const std::string& scores, bool bias = true);

/// How most encoders score labels: the vector that `pooling` makes goes through a product of the
/// module `dense`, as large and with a bias, `activation`, and a product of the module `scores`.
struct LabelHead {
  std::string dense;
  std::string scores;
  Activation activation = Activation::tanh;
  Pooling pooling = Pooling::first;
  bool pools_late = false;  ///< after `activation`, which is of each token then
};
void score_labels(FamilyModel& model, const JsonView& config, const LabelHead& head);

/// How BART, and what has its head, score labels: both stacks read the text, and what the decoder
/// makes of its end is scored.
void score_labels_of_text(FamilyModel& model, const JsonView& config);

/// Has learned positions begin after the padding token's id, as RoBERTa does.
void begin_after_padding(ModelConfig& model, const JsonView& config);

/// RoBERTa's heads, which others have under the same names: a classifier scores labels; the pooler
/// and what predicts masked tokens are left out.
void use_heads_of_roberta(FamilyModel& model, const JsonView& config);

/// Names all parts but the base as BERT does.
void name_as_bert(Modules& modules);

/// Names the parts of layers as Transformers does in all encoders that are BERT with rotations.
void name_as_rotated_bert(Modules& modules);

/// The names of XLM-RoBERTa as FlashAttention's authors have it, whose code Jina's models use.
void name_as_flash_bert(Modules& modules);

/// Whether there is a tensor whose name begins so, or goes on so after a dot.
bool has_modules(const Checkpoint& weights, std::string_view begin);

/// The shape in the names of GPT-2 and what follows it, but for "max_context".
PlainShape gpt2_shape_in(const JsonView& config);

/// Gives the model these layers, those that are alike of one kind. Kinds that have one name are
/// numbered.
void set_layers(ModelConfig& model, std::vector<LayerConfig> layers);

/// Changes layers one by one; those that come out alike are of one kind.
void change_layers(ModelConfig& model, const std::function<void(int64_t n, LayerConfig&)>& change);

/// Whether each layer rotates queries and keys: where 1 stands in `list`, one entry a layer;
/// without a list all but each "no_rope_layer_interval"th.
std::vector<bool> rotating_layers(const JsonView& config, const std::optional<JsonView>& list,
                                  int64_t n_layers);

/// A list of 0 and 1, one entry a layer.
std::vector<bool> flags_in(const JsonView& list, int64_t n_layers);

/// Has texts end after so many tokens, if they did not before.
void end_context(ModelConfig& model, int64_t tokens, ContextEnd why);

/// Has no layer rotate queries and keys.
void remove_rotation(ModelConfig& model);

/// "sliding_window"; 0, for none, where it is null.
int64_t window_in(const JsonView& config, int64_t otherwise);

/// The types that config.json names for its layers, each one of those that are known; without
/// that member the one that otherwise(n) says of layer n, by its place.
std::vector<std::string> layer_types_in(const JsonView& config, int64_t n_layers,
                                        std::initializer_list<std::string_view> known,
                                        const std::function<int(int64_t)>& otherwise,
                                        std::string_view key = "layer_types");

/// Has experts read from one tensor for all of a layer, "gate_up_proj" and "down_proj", where the
/// checkpoint has them so in layers whose tensors' names begin so.
void use_joined_experts(Modules& modules, const Checkpoint& weights, const std::string& begin);

/// Whether each layer is one with a window: as "layer_types" says, or where that is absent as
/// `otherwise` says of the layer's number. Throws Error when there are other types.
std::vector<bool> windowed_in(const JsonView& config, int64_t n_layers,
                              const std::function<bool(int64_t)>& otherwise);

/// Gives a window to the layers that windowed_in() names.
void set_windows(ModelConfig& model, const JsonView& config, int64_t window,
                 const std::function<bool(int64_t)>& otherwise);

/// What "rope_parameters" says of "sliding_attention", or else theta without a rule, of a share of
/// each head.
RopeConfig rope_of_windows_in(const JsonView& config, const RopeShape& shape);

/// Gives the layers with a window a rotation of their own, where rules of longer texts are for the
/// others alone: rope_of_windows_in().
void set_rope_of_windows(ModelConfig& model, const JsonView& config, double theta,
                         double rotated_share = 1);

/// Gives the layers of each type, with a window or without, the rotation that "rope_parameters"
/// says of their type, or `otherwise` where that member is absent; null: these layers rotate
/// nothing.
void set_ropes_of_types(ModelConfig& model, const JsonView& config,
                        const nlohmann::json& otherwise);

/// Throws Error when the member is true: `what` the model would need that is not there.
void refuse_if(const JsonView& config, std::string_view key, std::string_view what);

/// The same of a member that has no other meaning than that, unless it is null.
void refuse_if_present(const JsonView& config, std::string_view key, std::string_view what);

/// Throws Error when the member is there and is another than `known`: all that a family's code can,
/// or does, whatever config.json says.
void refuse_other(const JsonView& config, std::string_view key, const nlohmann::json& known);

/// Keeps `count` layers behind the model's, which predict further tokens.
void use_predicting_layers(FamilyModel& model, const Checkpoint& weights, int64_t count);

/// 1 / sqrt(size).
float inverse_root(double size);

/// The slopes of ALiBi (arXiv:2108.12409) as BLOOM has them: powers of 2^(-8 / n) for n heads, and
/// for heads beyond a power of two those between.
std::vector<float> alibi_slopes(int64_t n_heads);

/// Those of MPT: of as many heads as the next power of two has, every second one first.
std::vector<float> mpt_slopes(int64_t n_heads);

// The families. ----------------------------------------------------------------------------------

#define FASTSTREAM_FAMILY(architecture, model_type, describe) \
  FamilyModel describe(const FamilySource& source);
#include "convert/families/table.inc"
#undef FASTSTREAM_FAMILY

}  // namespace faststream::convert
