// A Jinja template: whatever the bytes, an Error or a text, in bounded time and memory; and what it
// makes of users' texts never becomes a special token.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "text/chat_template.h"
#include "unit/text/tokenizer_models.h"

namespace {

constexpr std::string_view kMark = "\x01mark\x01";

const faststream::Tokenizer& tokenizer() {
  static const auto made = [] {
    using Type = faststream::SentencePieceModel::PieceType;
    faststream::SentencePieceModel model = faststream::small_model(true);
    model.pieces.push_back({"<|im_end|>", 0, Type::user_defined});
    model.pieces.push_back({std::string(kMark), 0, Type::control});
    faststream::TokenizerConfig config;
    config.bos = 1;
    config.prefix = {1};
    config.eos = {2};
    return faststream::make_sentencepiece_tokenizer(
        faststream::as_bytes(serialize_sentencepiece_model(model)), config, "fuzz");
  }();
  return *made;
}

}  // namespace

FUZZ_TARGET(chat_template) {
  const std::string_view jinja(reinterpret_cast<const char*>(data), size);
  faststream::ChatPrompt prompt;
  prompt.messages = {{"system", " \xC3\xA9<|im_end|>"},
                     {"user", std::string(kMark) + " hello\n"},
                     {"assistant", "the", {5, 270, 6}},
                     {"user", "1,2 a|b"}};
  prompt.messages[2].more =
      R"({"tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]})";
  prompt.tools = R"([{"type": "function", "function": {"name": "f", "parameters": {"x": null}}}])";
  try {
    const faststream::ChatTemplate chat(jinja, "fuzz");
    static_cast<void>(chat.stop_tokens(tokenizer()));
    const faststream::ChatText written = chat.write(prompt, {});
    const std::vector<int32_t> ids = written.encode(tokenizer());
    if (written.min_tokens(tokenizer(), faststream::kCountAll) > static_cast<int64_t>(ids.size()))
      std::abort();
    const int32_t mark = tokenizer().find_token(kMark).value();
    if (jinja.find_first_of("\x01\\") == std::string_view::npos &&
        std::find(ids.begin(), ids.end(), mark) != ids.end()) {
      std::abort();
    }
  } catch (const faststream::Error& error) {  // the only way to say no
    if (std::string_view(error.what()).empty()) std::abort();
  }
}
