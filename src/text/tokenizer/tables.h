// The tensor "tokenizer" of a model file, used in place (docs/model-file.md says every byte).
//
// Nothing is trusted and nothing copied: a value from the tables is compared with its bounds where
// it is used, so that opening takes no time, whatever the vocabulary.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace faststream {

/// An array in the tables; elements are copied out, for nothing says that they are aligned.
template <typename T>
class TableArray {
 public:
  TableArray() = default;
  explicit TableArray(std::string_view bytes) : bytes_(bytes) {}

  [[nodiscard]] size_t size() const { return bytes_.size() / sizeof(T); }
  [[nodiscard]] T operator[](size_t i) const {  // i < size()
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }

 private:
  std::string_view bytes_;
};

/// Parts of the tables; the numbers are the format's.
enum class TableSection : uint32_t {
  pipeline = 1,       ///< JSON
  token_ends = 2,     ///< u32 a token: where its text ends in token_texts
  token_texts = 3,    ///< bytes
  token_flags = 4,    ///< u8 a token
  text_index = 5,     ///< hash table: TextSlot
  merges = 6,         ///< hash table: MergeSlot
  joins = 7,          ///< hash table: JoinSlot
  trie = 8,           ///< texts of the model's tokens
  continuations = 9,  ///< WordPiece: texts of those that begin with the prefix, without it
  scores = 10,        ///< f64 a token
  added_tokens = 11,  ///< AddedTokenRecord each, by text
  added_texts = 12,   ///< bytes that they point into
  charsmap = 13,      ///< SentencePiece's normalization rules
};
constexpr uint32_t kTableSections = 13;

/// Bits of a token's flags.
constexpr uint8_t kTokenSpecial = 1;  ///< an added token for templates, not printed
constexpr uint8_t kTokenAlone = 2;    ///< BPE: what the model makes of the token's own text
constexpr uint8_t kTokenForeign = 4;  ///< the model never makes it of a text
constexpr uint8_t kTokenPlain = 8;  ///< its text is as in the vocabulary although others' are bytes
constexpr uint8_t kTokenUnused = 16;  ///< BPE: merged like others, and falls into its parts at last
constexpr uint8_t kTokenByte = 32;    ///< stands for the byte that byte_named() finds in its text
constexpr uint8_t kTokenUnknown = 64;  ///< of what the model does not know
constexpr uint8_t kTokenMark = 128;    ///< both special and a symbol

struct TextSlot {
  uint32_t hash;  ///< the upper half of the text's
  int32_t id;     ///< -1 where the slot is free
};
struct MergeSlot {
  int32_t left;  ///< -1 where the slot is free
  int32_t right;
  int32_t rank;  ///< the first merge has 0
  int32_t id;    ///< of both together
};
struct JoinSlot {
  int32_t left;  ///< -1 where the slot is free
  int32_t right;
};

/// Bits of an added token's flags.
constexpr uint32_t kAddedSpecial = 1;
constexpr uint32_t kAddedNormalized = 2;
constexpr uint32_t kAddedLstrip = 4;
constexpr uint32_t kAddedRstrip = 8;
constexpr uint32_t kAddedSingleWord = 16;
constexpr uint32_t kAddedSymbol = 32;

struct AddedTokenRecord {
  int32_t id;
  uint32_t flags;
  uint32_t text_begin;  ///< in added_texts
  uint32_t text_size;
  uint32_t normalized_begin;  ///< what the normalizer makes of it
  uint32_t normalized_size;
};

constexpr std::string_view kTablesMagic = "FSTOKENS";
constexpr uint32_t kTablesVersion = 1;

struct TablesHead {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t n_tokens;
  uint32_t longest_probe;  ///< slots that a search in any of the hash tables looks at
  uint32_t longest_token;  ///< bytes of the longest text of a token, added ones too
  uint32_t n_parts;        ///< BPE: the last so many of n_tokens are no tokens, see n_parts()
  uint32_t reserved0;
  uint64_t reserved1;
};
/// After the head, one for each section, in order.
struct TablesEntry {
  uint64_t offset;  ///< a multiple of 8
  uint64_t bytes;
};

/// The byte that a text such as "<0x0A>" names.
std::optional<unsigned char> byte_named(std::string_view text);

uint64_t hash_of_text(std::string_view text);
inline uint64_t hash_of_pair(int32_t left, int32_t right) {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  const uint64_t product = pair * 0x9E3779B97F4A7C15U;
  return product ^ product >> 32;
}

/// Merged by BPE: what, and how early.
struct BpeMerge {
  int32_t rank;
  int32_t id;
};

class TokenizerTables {
 public:
  static constexpr int32_t kNone = -1;

  /// `bytes` must outlive it. Throws Error, starting with `where`, unless head and sections are
  /// sound.
  TokenizerTables(std::span<const std::byte> bytes, std::string_view where);

  [[nodiscard]] int32_t n_tokens() const { return n_tokens_; }
  /// Of these the last so many are no tokens: characters that merges begin with, and that are
  /// unknown when they stay alone.
  [[nodiscard]] int32_t n_parts() const { return n_parts_; }
  [[nodiscard]] size_t longest_token() const { return longest_token_; }
  [[nodiscard]] std::string_view section(TableSection section) const {
    return sections_[static_cast<size_t>(section) - 1];
  }

  [[nodiscard]] bool is_token(int32_t id) const { return id >= 0 && id < n_tokens_; }
  /// Of a token; empty for other ids.
  [[nodiscard]] std::string_view text(int32_t id) const;
  [[nodiscard]] uint8_t flags(int32_t id) const {
    return is_token(id) ? flags_[static_cast<size_t>(id)] : kTokenForeign;
  }
  /// The model's token with that text, or kNone.
  [[nodiscard]] int32_t find(std::string_view text) const;
  [[nodiscard]] std::optional<BpeMerge> find_merge(int32_t left, int32_t right) const;
  /// Whether any merge has `left`, a single character's token, before `right`, another's.
  [[nodiscard]] bool joins(int32_t left, int32_t right) const;
  /// Finite, whatever the bytes; 0 for other ids.
  [[nodiscard]] double score(int32_t id) const;

 private:
  std::array<std::string_view, kTableSections> sections_;
  int32_t n_tokens_ = 0;
  int32_t n_parts_ = 0;
  size_t longest_probe_ = 0;
  size_t longest_token_ = 0;
  TableArray<uint32_t> ends_;
  TableArray<uint8_t> flags_;
  std::string_view texts_;
  TableArray<TextSlot> text_index_;
  TableArray<MergeSlot> merges_;
  TableArray<JoinSlot> joins_;
  TableArray<double> scores_;
};

/// Strings in a tree, level by level: node i's children are the nodes from first_child[i] on, up to
/// those of node i + 1, in order of their bytes. The bytes of a section: u32 n, then u32
/// first_child[n + 1], i32 id[n] (-1: no string ends here), u8 byte[n].
class TableTrie {
 public:
  TableTrie() = default;
  /// Nothing is found where the section's size is not what its n asks for.
  explicit TableTrie(std::string_view section);

  [[nodiscard]] bool empty() const { return n_ == 0; }

  /// Calls found(length, id) for each string that `text` begins with, the shortest first.
  template <typename Found>
  void search(std::string_view text, Found&& found) const {
    size_t node = 0;
    for (size_t depth = 0; depth < text.size() && node < n_; ++depth) {
      node = child(node, static_cast<unsigned char>(text[depth]));
      if (node == 0) return;
      const int32_t id = ids_[node];
      if (id >= 0) found(depth + 1, id);
    }
  }

 private:
  /// 0, the root, for none.
  [[nodiscard]] size_t child(size_t node, unsigned char byte) const {
    size_t first = first_child_[node];
    size_t last = std::min<size_t>(first_child_[node + 1], n_);
    while (first < last) {
      const size_t middle = first + (last - first) / 2;
      const auto label = bytes_[middle];
      if (label == byte) return middle;
      if (label < byte) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return 0;
  }

  size_t n_ = 0;
  TableArray<uint32_t> first_child_;
  TableArray<int32_t> ids_;
  TableArray<uint8_t> bytes_;
};

}  // namespace faststream
