#include "text/tokenizer/added_token_finder.h"

#include <algorithm>

#include "support/utf8.h"
#include "text/tokenizer/unicode.h"

namespace faststream {
namespace {

Character character_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  return character_at(text, at);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const TokenizerTables& tables, Which which) {
  const TableArray<AddedTokenRecord> records(tables.section(TableSection::added_tokens));
  const std::string_view texts = tables.section(TableSection::added_texts);
  for (size_t i = 0; i < records.size(); ++i) {
    const AddedTokenRecord record = records[i];
    const bool is_normalized = (record.flags & kAddedNormalized) != 0;
    const bool is_special = (record.flags & kAddedSpecial) != 0;
    const bool is_symbol = (record.flags & kAddedSymbol) != 0;
    const auto wanted = [&] {
      if (which == Which::symbols) return is_symbol;
      if (which == Which::plain_symbols) return is_symbol && !is_special;
      if (is_symbol && !is_special) return false;
      if (which == Which::normalized) return is_normalized;
      return !is_normalized || (which == Which::special_as_written && is_special);
    };
    if (!wanted() || !tables.is_token(record.id)) continue;
    const bool as_normalized = which == Which::normalized;
    const size_t begin = as_normalized ? record.normalized_begin : record.text_begin;
    const size_t size = as_normalized ? record.normalized_size : record.text_size;
    if (size == 0 || begin > texts.size() || size > texts.size() - begin) continue;
    const std::string_view text = texts.substr(begin, size);
    if (is_symbol && !is_valid_utf8(text)) continue;  // a damaged file
    tokens_.push_back({text, record.id, record.flags});
  }
  const auto by_text = [](const Token& a, const Token& b) { return a.text < b.text; };
  if (!std::is_sorted(tokens_.begin(), tokens_.end(), by_text)) {
    std::stable_sort(tokens_.begin(), tokens_.end(), by_text);
  }
  for (const Token& token : tokens_) {
    const auto byte = static_cast<unsigned char>(token.text.front());
    begins_[byte] = true;
    ++first_[byte + size_t{1}];
  }
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
}

const AddedTokenFinder::Token* AddedTokenFinder::longest_at(std::string_view text) const {
  const auto byte = static_cast<unsigned char>(text.front());
  const Token* first = tokens_.data() + first_[byte];
  const Token* last = tokens_.data() + first_[byte + size_t{1}];
  const Token* longest = nullptr;
  for (size_t depth = 1; first != last; ++depth) {
    if (first->text.size() == depth) {  // what ends here comes first
      longest = first;
      while (first != last && first->text.size() == depth) ++first;
    }
    if (depth == text.size()) break;
    const auto next = static_cast<unsigned char>(text[depth]);
    const auto at_depth = [depth](const Token& token) {
      return static_cast<unsigned char>(token.text[depth]);
    };
    first = std::partition_point(first, last, [&](const Token& t) { return at_depth(t) < next; });
    last = std::partition_point(first, last, [&](const Token& t) { return at_depth(t) == next; });
  }
  return longest;
}

bool AddedTokenFinder::looks_around() const {
  return std::any_of(tokens_.begin(), tokens_.end(), [](const Token& token) {
    return (token.flags & (kAddedLstrip | kAddedRstrip | kAddedSingleWord)) != 0;
  });
}

void AddedTokenFinder::split(std::string_view text, const Allowed& allowed,
                             const std::function<void(const Part&)>& on_part) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const auto* const begin = reinterpret_cast<const unsigned char*>(text.data());
    at = static_cast<size_t>(std::find_if(begin + at, begin + text.size(),
                                          [this](unsigned char byte) { return begins_[byte]; }) -
                             begin);
    if (at == text.size()) break;
    const Token* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t from = at;
    size_t to = at = at + token->text.size();
    if ((token->flags & kAddedSpecial) != 0 && !allowed(from, to)) continue;
    if ((token->flags & kAddedSingleWord) != 0) {
      if (from > 0 && is_word(character_before(text, from).code)) continue;
      if (to < text.size() && is_word(character_at(text, to).code)) continue;
    }
    if (from < done) from = done;  // in the white space that the token before it took
    if ((token->flags & kAddedLstrip) != 0) {
      while (from > done && is_whitespace(character_before(text, from).code)) {
        from -= character_before(text, from).size;
      }
    }
    if ((token->flags & kAddedRstrip) != 0) {
      while (to < text.size() && is_whitespace(character_at(text, to).code)) {
        to += character_at(text, to).size;
      }
    }
    if (to < done) to = done;
    if (done < from) on_part({done, from, TokenizerTables::kNone});
    on_part({from, to, token->id});
    done = to;
  }
  if (done < text.size()) on_part({done, text.size(), TokenizerTables::kNone});
}

}  // namespace faststream
