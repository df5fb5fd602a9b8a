#include <utility>

#include "support/utf8.h"
#include "text/tokenizer.h"

namespace faststream {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool at_start)
    : tokenizer_(&tokenizer), at_start_(at_start) {}

std::string Detokenizer::push(int32_t id) {
  if (id < 0 || id >= tokenizer_->vocab_size()) return "";
  std::string bytes;
  if (at_start_) {
    Tokenizer::Start start = tokenizer_->start_bytes(id);
    bytes = std::move(start.bytes);
    at_start_ = start.still_at_start;
  } else {
    bytes = tokenizer_->token_bytes(id);
  }
  if (bytes.empty()) return finish();
  pending_ += bytes;
  return take_utf8(pending_);
}

std::string Detokenizer::finish() { return valid_utf8(std::exchange(pending_, {})); }

}  // namespace faststream
