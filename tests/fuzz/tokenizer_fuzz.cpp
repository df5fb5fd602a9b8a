// A SentencePiece model and a text: whatever the bytes, an Error or the ids that the library itself
// gives for them, at least as many as min_tokens() says.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "unit/text/tokenizer_models.h"

namespace {

void check(const faststream::SentencePieceModel& model, std::string_view text) {
  const std::string bytes = faststream::serialize_sentencepiece_model(model);
  const auto tokenizer =
      faststream::make_sentencepiece_tokenizer(faststream::as_bytes(bytes), {}, "fuzz");
  const std::vector<int32_t> ids = tokenizer->encode(text);
  const auto least = static_cast<size_t>(tokenizer->min_tokens(text, faststream::kCountAll));
  if (least > ids.size() || least > tokenizer->encode_continuation(text).size()) std::abort();

  sentencepiece::SentencePieceProcessor library;
  std::vector<int> expected;
  if (!library.LoadFromSerializedProto(bytes).ok()) std::abort();
  // It fails where the text spells a control piece of one character.
  if (!library.Encode(text, &expected).ok()) return;
  if (!std::equal(ids.begin(), ids.end(), expected.begin(), expected.end())) std::abort();
}

}  // namespace

FUZZ_TARGET(tokenizer) {
  constexpr size_t kSizeBytes = 2;  // of the model that follows; the rest is the text
  if (size < kSizeBytes) return;
  const std::string_view rest(reinterpret_cast<const char*>(data) + kSizeBytes, size - kSizeBytes);
  const size_t model_size = std::min<size_t>(data[0] | data[1] << 8U, rest.size());
  try {
    const faststream::SentencePieceModel model = faststream::parse_sentencepiece_model(
        faststream::as_bytes(rest.substr(0, model_size)), "fuzz");
    check(model, rest.substr(model_size));
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
