// tiktoken files and tekken.json: whatever the bytes, an Error or a description whose ids and
// merges are tokens.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "convert/tokenizers/tekken.h"
#include "convert/tokenizers/tiktoken.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"

namespace {

void check(const faststream::TokenizerDescription& description) {
  const auto is_token = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < description.vocabulary.size() &&
           !description.vocabulary[static_cast<size_t>(id)].empty();
  };
  for (const std::array<int32_t, 2>& merge : description.merges) {
    if (!is_token(merge[0]) || !is_token(merge[1])) std::abort();
  }
  for (const faststream::AddedTokenRule& token : description.added_tokens) {
    if (!is_token(token.id)) std::abort();
  }
}

}  // namespace

FUZZ_TARGET(ranked_tokenizer) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    check(faststream::convert::is_tiktoken(bytes)
              ? faststream::convert::parse_tiktoken(bytes, "fuzz")
              : faststream::convert::parse_tekken(bytes, "fuzz"));
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
