// A decoder's tensors in a backend's memory, as its operations take them.
#pragma once

#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "models/config.h"
#include "models/model.h"

namespace faststream {

/// What an adapter adds to a matrix, b · a; without data: nothing.
struct LowRank {
  Weight a;  ///< [rank, in]
  Weight b;  ///< [out, rank]

  [[nodiscard]] explicit operator bool() const { return a.data != nullptr; }
};

/// A matrix with what its product is followed by; without data: absent.
struct Linear {
  Weight weight;
  const float* bias = nullptr;
  std::vector<LowRank> adapters = {};  ///< what each adds; none, where no adapter changes it

  [[nodiscard]] explicit operator bool() const { return weight.data != nullptr; }
};

struct FeedForwardWeights {
  Linear up;  ///< or gate and up
  Linear down;
  const float* xielu = nullptr;  ///< see Backend::xielu(); null: another activation
  Norm middle_norm = {};
};

struct BranchNormWeights {
  Norm before;
  Norm after;
  Norm stream;
};

struct AttentionWeights {
  AttentionConfig config;
  Linear qkv;
  Norm q_norm = {};  ///< of QkNorm::whole
  Norm k_norm = {};
  HeadTransform heads = {};
  AttentionRule rule;
  const float* distances = nullptr;  ///< [buckets, n_heads] of the rule's bias
  Linear relative_keys = {};         ///< of relative scores; absent where queries have none
  Linear relative_queries = {};      ///< likewise keys
  RelativeScores relative = {};      ///< without products
  Norm sums_norm = {};
  Linear out;
  size_t kv_layer = 0;  ///< which of a step's KvLayers it has; see kv_layers()
};

struct LatentAttentionWeights {
  LatentAttentionConfig config;
  Linear q_down;  ///< absent where queries are made of the input
  Norm q_norm = {};
  Linear q;
  Linear kv;
  Norm kv_norm = {};
  LatentHeads heads;
  Linear gate;  ///< absent where heads have none
  AttentionRule rule;
  Linear out;
  size_t kv_layer = 0;  ///< see AttentionWeights
};

/// Of a mixer that keeps a state.
template <typename Config>
struct RecurrentWeights {
  Config config;
  RecurrentShape shape;
  Linear in;
  Linear gates;  ///< absent where there are none
  Norm gates_norm = {};
  Linear gates_up = {};  ///< of a latent among them; absent where there is none
  Convolution convolution;
  Recurrence recurrence;
  SelectiveScan scan = {};
  const float* decay = nullptr;  ///< log(-rates), of which complete() makes these
  Norm norm;
  Linear factors = {};  ///< of their latent, or of the input; absent where there is none
  Linear out;
  size_t state_layer = 0;  ///< which of a step's StateLayers it has; see state_layers()
};
using DeltaNetWeights = RecurrentWeights<DeltaNetConfig>;
using StateSpaceWeights = RecurrentWeights<StateSpaceConfig>;
using ShortConvolutionWeights = RecurrentWeights<ShortConvolutionConfig>;
using SelectiveScanWeights = RecurrentWeights<SelectiveScanConfig>;
using LinearAttentionWeights = RecurrentWeights<LinearAttentionConfig>;

/// Of each kind of Mixer.
using MixerWeights =
    std::variant<AttentionWeights, LatentAttentionWeights, DeltaNetWeights, StateSpaceWeights,
                 ShortConvolutionWeights, SelectiveScanWeights, LinearAttentionWeights>;

struct CrossAttentionWeights {
  BranchNormWeights norms;
  Linear q;
  Linear kv;
  AttentionRule rule;
  Linear out;
  size_t kv_layer = 0;  ///< the mixer's

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(q); }
};

/// Of LayerInputsConfig: what makes all layers' inputs.
struct LayerInputsWeights {
  Embedding embedding;  ///< absent where they are products alone
  Linear projection;
  Norm norm;

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(projection); }
};

/// Of HiddenInputConfig.
struct HiddenInputWeights {
  Norm norm;
  Linear projection;  ///< none where both stand side by side
  Norm states_norm;   ///< these two: of LayerStatesConfig
  Linear states_projection;
};

/// Of AltUpConfig: what makes the other streams, and the stream of them at last.
struct AltUpWeights {
  int32_t parts = 1;
  Linear in;
  Weight out;                    ///< [(streams - 1) · hidden, hidden]
  const float* share = nullptr;  ///< [1] 1 / streams

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(in); }
};

/// What weighs streams before and after a layer.
struct AltUpLayerWeights {
  Norm norm;
  Linear router;
  Linear predict;
  Linear correct;
};

/// Of LaurelConfig.
struct LaurelWeights {
  Linear in;
  Linear out;
  Norm norm;
  const float* factor = nullptr;  ///< [1] of the sum

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(in); }
};

/// Of TokenConvolutionConfig.
struct TokenConvolutionWeights {
  Linear product;
  Activation activation = Activation::none;
  Norm norm;
  const float* zeros = nullptr;  ///< [hidden]

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(product); }
};

/// What adds a layer's own to the stream.
struct LayerInputWeights {
  const float* scale = nullptr;  ///< [hidden] of what the gate reads; null: none
  Linear gate;
  Activation activation = Activation::none;
  Linear out;
  BranchNormWeights norms;

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(gate); }
};

/// Of AsideConfig.
struct AsideWeights {
  Norm norm;
  AttentionWeights attention;
  Norm ffn_norm;
  FeedForwardWeights ffn;
};

struct LayerWeights {
  AltUpLayerWeights altup;
  std::optional<AsideWeights> aside;
  BranchNormWeights mixer_norms;
  std::vector<MixerWeights> mixers;
  LaurelWeights laurel;
  CrossAttentionWeights cross;
  BranchNormWeights ffn_norms;
  FeedForwardWeights ffn;
  Linear router;
  Router routing;
  Norm router_norm;  ///< these four: see ExpertsConfig
  Norm experts_norm;
  Norm experts_after_norm;
  Norm shared_after_norm;
  Experts experts;
  const float* experts_sum_bias = nullptr;  ///< [hidden]; null: none
  FeedForwardWeights shared;
  Linear shared_gate;
  TokenConvolutionWeights token_convolution;
  LayerInputWeights input;
  const float* scale = nullptr;  ///< [1] of the stream, at last; null: none
};

struct DenseWeights {
  Linear product;
  Norm norm;
};

struct DecoderWeights {
  Embedding embedding;
  Norm embedding_norm;
  Linear embedding_projection;  ///< absent where the embedding has the hidden size
  HiddenInputWeights hidden_input;
  LayerInputsWeights layer_inputs;
  AltUpWeights altup;
  std::vector<LayerWeights> layers;
  Norm output_norm;
  Linear output;
  std::vector<DenseWeights> dense;
};

/// Finds the tensors of tensor_plan(config) but for its encoder's and its predictors'. What a rule
/// adds to scores, slopes of ALiBi and biases by distance, is no tensor and stays null.
DecoderWeights find_weights(const ModelConfig& config, const WeightLookup& lookup);
/// The same of a decoder's encoder, whose embedding may be the decoder's, `shared`.
DecoderWeights find_encoder_weights(const ModelConfig& encoder, const WeightLookup& lookup,
                                    const Weight& shared);
/// The same of a decoder's predictor, counted from 0, which may share both its tables.
DecoderWeights find_predictor_weights(const ModelConfig& config, size_t predictor,
                                      const WeightLookup& lookup);

}  // namespace faststream
