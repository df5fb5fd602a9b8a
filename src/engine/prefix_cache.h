// Prefixes that have been processed, so that each is computed and stored once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/page_pool.h"
#include "engine/sequence.h"

namespace faststream {

/// KV pages by the tokens that lead to them: trees whose nodes are pages, each named by its up to
/// kPageTokens tokens, below the page before it. Texts of different kinds, whose keys and values
/// differ where their tokens agree, have trees of their own. Holds its pages once; those that no
/// sequence holds besides are idle and go, the least recently used first, when pages run out. Only
/// a full page has pages below it.
class PrefixCache {
 public:
  /// `pool` must outlive the cache.
  explicit PrefixCache(PagePool& pool);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache() { clear(); }

  /// The longest cached prefix of a text.
  struct Match {
    std::vector<int32_t> pages;  ///< full pages, in order
    int32_t partial_page = -1;   ///< the page of what is beyond them, -1 for none
    int32_t partial_tokens = 0;  ///< of its tokens that agree, at least 1 then
    bool whole_node = false;     ///< all that is cached of the partial page agrees
    /// Whole pages of the text that are cached, in tokens; of a Match that was shortened since,
    /// what they were.
    int32_t known_tokens = 0;

    /// Tokens in all.
    [[nodiscard]] int32_t n_tokens() const;
  };
  /// Holds nothing: what it names may go with the next evict().
  [[nodiscard]] Match find(std::span<const int32_t> tokens, const TextKind& kind = {}) const;

  /// Holds the pages of a match once more, for a sequence; marks them as used.
  void hold(std::span<const int32_t> pages);

  /// Puts a page that the cache has of the same tokens in the place of page number i of a sequence;
  /// false where it stays.
  using Adopt = std::function<bool(size_t i, int32_t page)>;
  /// Remembers the pages of a sequence: `tokens` are those whose keys and values are in `pages`.
  /// Where the same tokens are cached in other pages, those stay: the sequence adopts whole ones,
  /// which changes `pages`, or what is below its own is not remembered.
  void insert(std::span<const int32_t> tokens, std::span<const int32_t> pages,
              const TextKind& kind = {}, const Adopt& adopt = {});

  /// Forgets a page without pages below it that only the cache holds, and hands it to the caller,
  /// held once.
  void take_over(int32_t page);

  /// Frees idle pages until so many are free, and rather than that unused ones are taken beyond a
  /// modest size (PagePool::n_ready()); false if so many cannot be free.
  bool make_room(int32_t n_pages);

  /// Forgets everything.
  void clear();

  /// Pages in the cache.
  [[nodiscard]] int32_t n_pages() const { return static_cast<int32_t>(by_page_.size()); }

 private:
  struct Node;
  using Children = std::map<std::vector<int32_t>, std::unique_ptr<Node>>;
  struct Node {
    Node* parent = nullptr;  // of a tree's first pages its root, which has none and no page
    int32_t page = -1;
    TextKind kind = {};  // of a root
    uint64_t last_used = 0;
    Children children = {};
    Children::iterator place = {};  // in the parent's children
  };

  void touch(Node& node);
  void remove(Node& leaf);
  void add_leaf(Node& node) { leaves_.emplace(node.last_used, &node); }
  void drop_leaf(Node& node) { leaves_.erase({node.last_used, &node}); }

  PagePool* pool_;
  std::map<TextKind, Node> roots_;  // each has pages
  std::unordered_map<int32_t, Node*> by_page_;
  std::set<std::pair<uint64_t, Node*>> leaves_;  // by last use; roots are none
  uint64_t clock_ = 0;
};

}  // namespace faststream
