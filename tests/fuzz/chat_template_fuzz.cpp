// The description of a chat format: whatever the bytes, an Error or a template that encodes every
// conversation or says why not, and keeps the tokens of a conversation that goes on.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "support/error.h"
#include "text/chat_template.h"
#include "unit/tokenizer_models.h"

namespace {

using faststream::Message;

const faststream::Tokenizer& tokenizer() {
  static const auto made = [] {
    using Type = faststream::SentencePieceModel::PieceType;
    faststream::SentencePieceModel model = faststream::small_model(true);
    for (const char* token : {"<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"}) {
      model.pieces.push_back({token, 0, Type::user_defined});
    }
    faststream::TokenizerConfig config;
    config.bos = 1;
    config.prefix = {1};
    config.eos = {2};
    return faststream::make_sentencepiece_tokenizer(
        faststream::as_bytes(serialize_sentencepiece_model(model)), config, "fuzz");
  }();
  return *made;
}

void check(const faststream::ChatTemplate& format, const std::vector<Message>& messages) {
  try {
    const std::vector<int32_t> before = format.encode(tokenizer(), messages);
    static_cast<void>(format.render(messages, "<s>", "</s>"));
    std::vector<Message> longer = messages;
    longer.push_back({"assistant", "", {5, 270, 6}});
    longer.push_back({"user", " [INST] hello"});
    const std::vector<int32_t> after = format.encode(tokenizer(), longer);
    if (before.size() > after.size() || !std::equal(before.begin(), before.end(), after.begin())) {
      std::abort();
    }
  } catch (const faststream::UsageError&) {  // an order of roles that it cannot express
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(faststream::ChatTemplate::recognize(text));
  try {
    const auto format = faststream::ChatTemplate::parse(text, "fuzz");
    static_cast<void>(format.stop_tokens(tokenizer()));
    check(format, {{"user", "<|im_end|> the "}});
    check(format, {{"system", " \xFF"}, {"user", ""}, {"assistant", "a"}, {"user", "[/INST]\n"}});
    check(format, {{"assistant", "hell"}, {"user", "o"}, {"user", "o"}});
  } catch (const faststream::Error&) {  // the only way to say no
  }
  return 0;
}
