#include "convert/command/check.h"

#include <cstdint>
#include <iomanip>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>

#include "convert/description.h"
#include "support/name_list.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream::convert {
namespace {

void line(std::ostream& out, std::string_view label, const std::string& text) {
  out << "  " << std::left << std::setw(14) << label << ' ' << text << '\n';
}

// "Q4_1 72.1 MB (210 tensors), F32 140 kB (61)".
std::string weights(const Checkpoint& checkpoint) {
  struct Share {
    size_t tensors = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string_view, Share> shares;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    Share& share = shares[tensor.format->name];
    ++share.tensors;
    share.bytes += tensor.bytes();
  }
  std::string text;
  for (const auto& [format, share] : shares) {
    add_name(text, std::string(format) + " " + format_bytes(share.bytes) + " (" +
                       std::to_string(share.tensors) +
                       (share.tensors == 1 ? " tensor)" : " tensors)"));
  }
  return text;
}

std::string kind(const SourceTokenizer& tokenizer) {
  if (!tokenizer.description) return "SentencePiece";
  const TokenizerDescription& description = *tokenizer.description;
  std::string text = description.pipeline.at("model").at("type").get<std::string>() + ", " +
                     std::to_string(description.vocabulary.size()) + " tokens";
  if (!description.merges.empty()) {
    text += ", " + std::to_string(description.merges.size()) + " merges";
  }
  return text;
}

std::string special_tokens(const TokenizerConfig& config) {
  std::string text = config.bos ? "begin with " + std::to_string(*config.bos) +
                                      (config.adds_bos() ? "" : " (not put before prompts)")
                                : "none to begin with";
  for (size_t i = 0; i < config.eos.size(); ++i) {
    text += (i == 0 ? "; end with " : ", ") + std::to_string(config.eos[i]);
  }
  return text;
}

std::string chat_template(const SourceModel& source) {
  if (source.chat_template.is_null()) return "none";
  if (source.chat_template_fault.empty()) return "the checkpoint's own";
  return "unusable: " + printable(source.chat_template_fault);
}

}  // namespace

void check_checkpoint(const ConvertOptions& options, std::ostream& out) {
  const SourceModel source = open_source(options);
  const ModelConfig config = target_config(source, options);
  std::ostringstream text;
  text << printable(options.checkpoint.string()) << ": can be converted\n";
  line(text, "family", printable(source.family));
  for (const auto& [label, what] : describe(config)) line(text, label, printable(what));
  line(text, "weights", weights(source.weights));
  line(text, "tokenizer", kind(source.tokenizer));
  if (source.encoder_tokenizer) line(text, "of sources", kind(*source.encoder_tokenizer));
  line(text, "special ids", special_tokens(source.tokenizer.config));
  line(text, "chat template", chat_template(source));
  for (const MergedAdapter& adapter : source.adapters) line(text, "merged", to_text(adapter));
  if (!source.predictors.empty()) line(text, "kept beside", to_text(source.predictors));
  if (!source.left_out.empty()) line(text, "left out", to_text(source.left_out));
  if (!source.untaken_settings.empty()) {
    line(text, "not taken over", to_text(source.untaken_settings));
  }
  line(text, "model file",
       format_bytes(model_size(source, options)) + " with weights in " +
           std::string(format_name(config.weight_format)));
  out << text.str();
}

}  // namespace faststream::convert
