// A tokenizer.json and a text: an Error, or tables that are used without one. Streaming gives what
// decoding the whole gives, and a text has at least as many tokens as min_tokens() says.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tokenizers/tokenizer_json.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "support/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer/compiled_tokenizer.h"

namespace {

void check(const faststream::Tokenizer& tokenizer, std::string_view text) {
  const faststream::Stretch parts[] = {
      {.text = text.substr(0, text.size() / 2), .from_template = true},
      {.text = text.substr(text.size() / 2)}};
  const std::vector<int32_t> ids = tokenizer.encode_stretches(parts);
  faststream::Detokenizer detokenizer(tokenizer, true);
  std::string streamed;
  for (const int32_t id : ids) streamed += detokenizer.push(id);
  if (streamed + detokenizer.finish() != tokenizer.decode(ids)) std::abort();
  const auto n = static_cast<int64_t>(tokenizer.encode(text).size());
  if (tokenizer.min_tokens(text, faststream::kCountAll) > n) std::abort();
}

}  // namespace

FUZZ_TARGET(tokenizer_json) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(bytes.rfind('\n'), bytes.size());  // of the JSON; then comes the text
  try {
    const faststream::convert::HfTokenizer read = faststream::convert::tokenizer_from_json(
        faststream::parse_json_object(bytes.substr(0, end), "fuzz"), nlohmann::json::object(),
        nlohmann::json::object(), "fuzz");
    // A token of 2^22 makes a vocabulary of that size: right, but slow.
    if (read.description.vocabulary.size() > 10'000) return;
    const std::string tables = faststream::compile_tokenizer(read.description, "fuzz");
    const auto tokenizer =
        faststream::make_compiled_tokenizer(std::as_bytes(std::span(tables)), read.config, "fuzz");
    check(*tokenizer, bytes.substr(std::min(end + 1, bytes.size())));
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
