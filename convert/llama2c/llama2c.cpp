#include "convert/llama2c/llama2c.h"

#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "convert/families/modules.h"
#include "convert/tokenizers/tokenizer_file.h"
#include "support/error.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kNewerMagic = 0x616b3432;  // "ak42": export.py's versions 1 and later

struct Header {
  int32_t dim;
  int32_t hidden_dim;
  int32_t n_layers;
  int32_t n_heads;
  int32_t n_kv_heads;
  int32_t vocab_size;
  int32_t seq_len;
};

Header read_llama2c_header(const InputFile& file) {
  const std::string where = file.path().string();
  if (file.size() == 0) throw Error(where + ": is empty; download or copy the checkpoint again");
  std::array<int32_t, 7> fields{};
  if (file.size() < sizeof fields) throw Error(where + ": is too short to be a checkpoint");
  file.read(0, std::as_writable_bytes(std::span(fields)));
  if (fields[0] == kNewerMagic) {
    throw Error(where + ": is a llama2.c checkpoint of version " + std::to_string(fields[1]) +
                "; export it again with --version 0");
  }
  return {fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6]};
}

// The sizes, each at least 1.
PlainShape shape_from_header(const Header& header, const std::string& refusal) {
  for (const int32_t size : {header.dim, header.hidden_dim, header.n_layers, header.n_heads,
                             header.n_kv_heads, header.seq_len}) {
    if (size < 1) throw Error(refusal);
  }
  if (header.dim % header.n_heads != 0) {
    throw Error(refusal + ": dim is not a multiple of n_heads");
  }
  return {.n_layers = header.n_layers,
          .hidden = header.dim,
          .n_heads = header.n_heads,
          .n_kv_heads = header.n_kv_heads,
          .head_dim = header.dim / header.n_heads,
          .ffn_hidden = header.hidden_dim,
          .vocab = std::abs(int64_t{header.vocab_size}),
          .max_context = header.seq_len};
}

ModelConfig config_from_header(const Header& header, const std::string& where) {
  const std::string refusal =
      where +
      ": is no checkpoint, neither a Hugging Face folder nor a GGUF file nor a llama2.c .bin file "
      "(read as one, its header is wrong)";
  if (header.n_layers > kMaxLayers) throw Error(refusal);
  ModelConfig config = plain_decoder(shape_from_header(header, refusal));
  config.output.tied = header.vocab_size > 0;
  validate(config, refusal);
  return config;
}

// Hands out the file's tensors in its order.
class Layout {
 public:
  Layout(Checkpoint& weights, size_t file) : weights_(weights), file_(file) {}

  // One tensor of each layer, named model.layers.N.`name`.
  void add_layers(int64_t n_layers, const std::string& name, const std::vector<int64_t>& shape) {
    for (int64_t layer = 0; layer < n_layers; ++layer) {
      add("model.layers." + std::to_string(layer) + "." + name, shape);
    }
  }
  void add(const std::string& name, const std::vector<int64_t>& shape) {
    weights_.add_tensor({name, &kF32Format, shape, file_, offset_});
    uint64_t elements = 1;
    for (const int64_t extent : shape) elements *= static_cast<uint64_t>(extent);
    skip(elements);
  }
  void skip(uint64_t elements) { offset_ += elements * sizeof(float); }
  [[nodiscard]] uint64_t end() const { return offset_; }

 private:
  Checkpoint& weights_;
  size_t file_;
  uint64_t offset_ = sizeof(Header);
};

// The order of export.py's legacy_export(). Returns where the last tensor ends.
uint64_t add_tensors(const ModelConfig& config, Checkpoint& weights, size_t file) {
  const int64_t layers = config.n_layers();
  const int64_t hidden = config.hidden;
  const LayerConfig& layer = config.layer(0);
  const AttentionConfig& attention = layer.attention();
  const int64_t ffn = layer.ffn.size;
  Layout layout(weights, file);
  layout.add("model.embed_tokens.weight", {config.vocab, hidden});
  layout.add_layers(layers, "input_layernorm.weight", {hidden});
  layout.add_layers(layers, "self_attn.q_proj.weight", {hidden, hidden});
  layout.add_layers(layers, "self_attn.k_proj.weight", {attention.k_dim(), hidden});
  layout.add_layers(layers, "self_attn.v_proj.weight", {attention.v_dim(), hidden});
  layout.add_layers(layers, "self_attn.o_proj.weight", {hidden, hidden});
  layout.add_layers(layers, "post_attention_layernorm.weight", {hidden});
  layout.add_layers(layers, "mlp.gate_proj.weight", {ffn, hidden});
  layout.add_layers(layers, "mlp.down_proj.weight", {hidden, ffn});
  layout.add_layers(layers, "mlp.up_proj.weight", {ffn, hidden});
  layout.add("model.norm.weight", {hidden});
  // Cosines and sines of the rotary embedding, which nobody needs.
  layout.skip(static_cast<uint64_t>(config.max_context * attention.head_dim));
  if (!config.output.tied) layout.add("lm_head.weight", {config.vocab, hidden});
  return layout.end();
}

fs::path find_tokenizer(const fs::path& checkpoint) {
  const fs::path folder = checkpoint.has_parent_path() ? checkpoint.parent_path() : ".";
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("tok") && name.ends_with(".bin")) found.push_back(entry.path());
  }
  if (found.size() == 1) return found.front();
  throw Error(checkpoint.string() + ": " + (found.empty() ? "no" : "more than one") +
              " tokenizer (tok*.bin) lies beside it; name the right one with --tokenizer FILE");
}

}  // namespace

SourceModel open_llama2c(const fs::path& path, const std::optional<fs::path>& tokenizer) {
  SourceFiles files;
  InputFile file = files.open(path);
  const uint64_t size = file.size();
  SourceModel model{.family = "llama",
                    .config = config_from_header(read_llama2c_header(file), path.string()),
                    .tokenizer = {.config = {.bos = 1,
                                             // run.c ends a text at BOS, which begins the next one
                                             .eos = {1, 2},
                                             .prefix = {1},
                                             .suffix = {}}},
                    .chat_template = {},
                    .special_tokens = {},
                    .answers = {},
                    .sampling = {},
                    .weights = Checkpoint(path.string()),
                    .parts = {},
                    .added_tokens = {},
                    .left_out = {},
                    .files = {}};
  const uint64_t end =
      add_tensors(model.config, model.weights, model.weights.add_file(std::move(file)));
  if (end != size) {
    throw Error(path.string() + ": has " + std::to_string(size) +
                " bytes, but its llama2.c header asks for " + std::to_string(end) +
                "; it is truncated, or no checkpoint at all");
  }
  model.parts = parts_of(model.config, {.interleaved = true}, model.weights);
  use_tokenizer(
      read_tokenizer_file(tokenizer ? *tokenizer : find_tokenizer(path), model.config.vocab, files),
      model.tokenizer);
  model.files = std::move(files);
  return model;
}

}  // namespace faststream::convert
