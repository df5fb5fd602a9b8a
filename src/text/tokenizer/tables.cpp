#include "text/tokenizer/tables.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "support/error.h"
#include "support/hash.h"

namespace faststream {
namespace {

static_assert(sizeof(TablesHead) == 40 && sizeof(TextSlot) == 8 && sizeof(MergeSlot) == 16 &&
              sizeof(JoinSlot) == 8 && sizeof(AddedTokenRecord) == 24 && sizeof(TablesEntry) == 16);
static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kLongestProbe = 4096;

/// The slots that a search looks at, from the hash's place on and around the end.
template <typename Slot, typename Use>
void probe(const TableArray<Slot>& slots, uint64_t hash, size_t longest, Use&& use) {
  if (slots.size() == 0) return;
  const size_t mask = slots.size() - 1;  // a power of two, as the constructor has seen
  for (size_t i = 0; i < longest; ++i) {
    if (use(slots[(hash + i) & mask])) return;
  }
}

}  // namespace

std::optional<unsigned char> byte_named(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with('>')) return std::nullopt;
  unsigned char byte = 0;
  const char* digits = text.data() + 3;
  const auto [stop, status] = std::from_chars(digits, digits + 2, byte, 16);
  if (status != std::errc() || stop != digits + 2) return std::nullopt;
  return byte;
}

uint64_t hash_of_text(std::string_view text) { return stable_hash(text); }

TokenizerTables::TokenizerTables(std::span<const std::byte> bytes, std::string_view where) {
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto require = [&](bool sound) {
    if (sound) return;
    throw Error(std::string(where) + ": the tokenizer is damaged; convert the checkpoint again");
  };
  TablesHead head{};
  constexpr size_t kEntries = sizeof(TablesHead);
  require(all.size() >= kEntries + kTableSections * sizeof(TablesEntry));
  std::memcpy(&head, all.data(), sizeof head);
  require(std::string_view(head.magic.data(), head.magic.size()) == kTablesMagic);
  if (head.version != kTablesVersion) {
    throw Error(std::string(where) + ": the tokenizer has version " + std::to_string(head.version) +
                " and this program reads version " + std::to_string(kTablesVersion) +
                "; convert the checkpoint again");
  }
  require(head.n_tokens <= uint32_t{1} << 30 && head.longest_probe <= kLongestProbe &&
          head.n_parts <= head.n_tokens);
  n_tokens_ = static_cast<int32_t>(head.n_tokens);
  n_parts_ = static_cast<int32_t>(head.n_parts);
  longest_probe_ = head.longest_probe;
  longest_token_ = std::max<size_t>(head.longest_token, 1);
  const TableArray<TablesEntry> entries(all.substr(kEntries, kTableSections * sizeof(TablesEntry)));
  for (size_t i = 0; i < kTableSections; ++i) {
    const TablesEntry entry = entries[i];
    require(entry.offset <= all.size() && entry.bytes <= all.size() - entry.offset);
    sections_[i] = all.substr(entry.offset, entry.bytes);
  }
  const auto size_of = [&](TableSection name) { return section(name).size(); };
  const size_t n = head.n_tokens;
  require(size_of(TableSection::token_ends) == n * sizeof(uint32_t));
  require(size_of(TableSection::token_flags) == n);
  require(size_of(TableSection::scores) == 0 ||
          size_of(TableSection::scores) == n * sizeof(double));
  const auto is_table = [&](TableSection name, size_t slot) {
    const size_t size = size_of(name);
    return size == 0 || (size % slot == 0 && std::has_single_bit(size / slot));
  };
  require(is_table(TableSection::text_index, sizeof(TextSlot)) &&
          is_table(TableSection::merges, sizeof(MergeSlot)) &&
          is_table(TableSection::joins, sizeof(JoinSlot)));
  ends_ = TableArray<uint32_t>(section(TableSection::token_ends));
  flags_ = TableArray<uint8_t>(section(TableSection::token_flags));
  texts_ = section(TableSection::token_texts);
  text_index_ = TableArray<TextSlot>(section(TableSection::text_index));
  merges_ = TableArray<MergeSlot>(section(TableSection::merges));
  joins_ = TableArray<JoinSlot>(section(TableSection::joins));
  scores_ = TableArray<double>(section(TableSection::scores));
}

std::string_view TokenizerTables::text(int32_t id) const {
  if (!is_token(id)) return {};
  const size_t begin = id == 0 ? 0 : ends_[static_cast<size_t>(id) - 1];
  const size_t end = ends_[static_cast<size_t>(id)];
  if (begin > end || end > texts_.size()) return {};
  return texts_.substr(begin, end - begin);
}

int32_t TokenizerTables::find(std::string_view text) const {
  const uint64_t hash = hash_of_text(text);
  const auto upper = static_cast<uint32_t>(hash >> 32);
  int32_t found = kNone;
  probe(text_index_, hash, longest_probe_, [&](const TextSlot& slot) {
    if (slot.id < 0) return true;
    if (slot.hash != upper || this->text(slot.id) != text) return false;
    found = slot.id;
    return true;
  });
  return found;
}

std::optional<BpeMerge> TokenizerTables::find_merge(int32_t left, int32_t right) const {
  std::optional<BpeMerge> found;
  probe(merges_, hash_of_pair(left, right), longest_probe_, [&](const MergeSlot& slot) {
    if (slot.left < 0) return true;
    if (slot.left != left || slot.right != right) return false;
    if (is_token(slot.id)) found = BpeMerge{.rank = slot.rank, .id = slot.id};
    return true;
  });
  return found;
}

bool TokenizerTables::joins(int32_t left, int32_t right) const {
  bool found = false;
  probe(joins_, hash_of_pair(left, right), longest_probe_, [&](const JoinSlot& slot) {
    found = slot.left == left && slot.right == right;
    return found || slot.left < 0;
  });
  return found;
}

double TokenizerTables::score(int32_t id) const {
  if (!is_token(id) || scores_.size() == 0) return 0;
  const double score = scores_[static_cast<size_t>(id)];
  return std::isfinite(score) ? score : 0;
}

TableTrie::TableTrie(std::string_view section) {
  if (section.size() < sizeof(uint32_t)) return;
  const uint64_t n = TableArray<uint32_t>(section)[0];
  if (section.size() != 2 * sizeof(uint32_t) + n * (sizeof(uint32_t) + sizeof(int32_t) + 1)) return;
  const size_t ids_at = sizeof(uint32_t) * (2 + n);
  const size_t bytes_at = ids_at + sizeof(int32_t) * n;
  n_ = n;
  first_child_ = TableArray<uint32_t>(section.substr(sizeof(uint32_t), ids_at - sizeof(uint32_t)));
  ids_ = TableArray<int32_t>(section.substr(ids_at, bytes_at - ids_at));
  bytes_ = TableArray<uint8_t>(section.substr(bytes_at));
}

}  // namespace faststream
