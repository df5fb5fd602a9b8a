#include "convert/tokenizers/tokenizer_file.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "convert/llama2c/llama2c_tokenizer.h"
#include "convert/tokenizers/tekken.h"
#include "convert/tokenizers/tiktoken.h"
#include "convert/tokenizers/tokenizer_json.h"
#include "support/error.h"

namespace faststream::convert {

TokenizerFile read_tokenizer_file(const std::filesystem::path& path, int64_t vocab,
                                  SourceFiles& files) {
  constexpr uint64_t kMaxTokenizerBytes = uint64_t{64} << 20;
  const std::string where = path.string();
  std::string bytes = files.read(path, kMaxTokenizerBytes);
  if (bytes.empty()) throw Error(where + ": is empty, where a tokenizer is needed");
  if (path.extension() == ".bin") {
    if (vocab > std::numeric_limits<int32_t>::max()) {
      throw Error(where + ": a llama2.c tokenizer cannot have that many tokens");
    }
    return {.path = path,
            .sentencepiece = sentencepiece_from_llama2c(std::as_bytes(std::span(bytes)),
                                                        static_cast<int32_t>(vocab), where)};
  }
  if (is_tiktoken(bytes)) return {.path = path, .description = parse_tiktoken(bytes, where)};
  if (is_tekken(bytes)) return {.path = path, .description = parse_tekken(bytes, where)};
  if (bytes.starts_with('{')) {
    HfTokenizer read = read_tokenizer_json(path, files);
    return {
        .path = path, .description = std::move(read.description), .config = std::move(read.config)};
  }
  return {.path = path, .sentencepiece = std::move(bytes)};
}

}  // namespace faststream::convert
