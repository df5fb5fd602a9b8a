#include "convert/tokenizers/tiktoken.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convert/tokenizers/ranked_bpe.h"
#include "support/base64.h"
#include "support/error.h"

namespace faststream::convert {
namespace {

constexpr size_t kLlama3Tokens = 128000;
constexpr size_t kQwenTokens = 151643;

// The first line of `rest`, which loses it.
std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

struct Line {
  std::string token;
  size_t rank = 0;
};

std::optional<Line> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return std::nullopt;
  auto token = decode_base64(line.substr(0, space));
  if (!token || token->empty()) return std::nullopt;
  Line parsed{std::move(*token), 0};
  const std::string_view number = line.substr(space + 1);
  const char* end = number.data() + number.size();
  const auto [stop, status] = std::from_chars(number.data(), end, parsed.rank);
  if (status != std::errc() || stop != end) return std::nullopt;
  return parsed;
}

// Llama 3.1's names (llama-models, models/llama3/tokenizer.py, as Transformers' tokenizer.json has
// them). Llama 3's own tokenizer.model is the same file; it calls those in reserve that it lacks.
std::vector<SpecialToken> llama3_special_tokens() {
  constexpr int32_t kCount = 256;
  std::vector<SpecialToken> tokens;
  int reserved = 0;
  for (int32_t i = 0; i < kCount; ++i) {
    std::string text;
    switch (i) {
      case 0:
        text = "<|begin_of_text|>";
        break;
      case 1:
        text = "<|end_of_text|>";
        break;
      case 4:
        text = "<|finetune_right_pad_id|>";
        break;
      case 6:
        text = "<|start_header_id|>";
        break;
      case 7:
        text = "<|end_header_id|>";
        break;
      case 8:
        text = "<|eom_id|>";
        break;
      case 9:
        text = "<|eot_id|>";
        break;
      case 10:
        text = "<|python_tag|>";
        break;
      default:
        text = "<|reserved_special_token_" + std::to_string(reserved++) + "|>";
    }
    tokens.push_back({static_cast<int32_t>(kLlama3Tokens) + i, std::move(text)});
  }
  return tokens;
}

// Qwen's tokenization_qwen.py.
std::vector<SpecialToken> qwen_special_tokens() {
  constexpr int kExtra = 205;
  std::vector<std::string> texts = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < kExtra; ++i) texts.push_back("<|extra_" + std::to_string(i) + "|>");
  std::vector<SpecialToken> tokens;
  for (std::string& text : texts) {
    tokens.push_back({static_cast<int32_t>(kQwenTokens + tokens.size()), std::move(text)});
  }
  return tokens;
}

}  // namespace

bool is_tiktoken(std::string_view bytes) {
  constexpr size_t kLongestLine = 4096;
  std::string_view start = bytes.substr(0, kLongestLine);
  const auto line = parse_line(take_line(start));
  return line && line->rank == 0;
}

TokenizerDescription parse_tiktoken(std::string_view bytes, std::string_view where) {
  std::vector<std::string> tokens;
  while (!bytes.empty()) {
    const std::string_view text = take_line(bytes);
    if (text.empty()) continue;
    auto line = parse_line(text);
    if (!line || line->rank != tokens.size()) {
      throw Error(std::string(where) + ": line " + std::to_string(tokens.size() + 1) +
                  " is not a token in Base64 and its rank; the file is damaged");
    }
    tokens.push_back(std::move(line->token));
  }
  const auto describe = [&](const char* name, const std::vector<SpecialToken>& special_tokens) {
    Pretokenizer pretokenizer = *find_pretokenizer(name);
    pretokenizer.ignore_merges = true;
    return describe_ranked_bpe(tokens, 0, special_tokens, pretokenizer, where);
  };
  if (tokens.size() == kLlama3Tokens) return describe("llama3", llama3_special_tokens());
  if (tokens.size() == kQwenTokens) {
    TokenizerDescription qwen = describe("qwen2", qwen_special_tokens());
    qwen.pipeline["normalizer"] = {{"type", "NFC"}};
    return qwen;
  }
  throw Error(std::string(where) + ": is a tiktoken file of " + std::to_string(tokens.size()) +
              " tokens, which is neither Llama 3's (128000) nor Qwen's (151643); use the model's "
              "tokenizer.json");
}

}  // namespace faststream::convert
