#include "engine/prefix_cache.h"

#include <algorithm>
#include <stdexcept>

#include "backend/batch.h"

namespace faststream {
namespace {

int32_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  const auto [end, other] =
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin());
  return static_cast<int32_t>(end - a.begin());
}

std::span<const int32_t> page_of(std::span<const int32_t> tokens, size_t index) {
  const size_t first = index * kPageTokens;
  return tokens.subspan(first, std::min<size_t>(kPageTokens, tokens.size() - first));
}

}  // namespace

int32_t PrefixCache::Match::n_tokens() const {
  return static_cast<int32_t>(pages.size()) * kPageTokens + partial_tokens;
}

PrefixCache::PrefixCache(PagePool& pool) : pool_(&pool) {}

void PrefixCache::clear() {
  for (const auto& [page, node] : by_page_) pool_->release_cached(page);
  leaves_.clear();
  by_page_.clear();
  roots_.clear();
}

PrefixCache::Match PrefixCache::find(std::span<const int32_t> tokens, const TextKind& kind) const {
  Match match;
  const auto root = roots_.find(kind);
  if (root == roots_.end()) return match;
  const Node* node = &root->second;
  while (match.pages.size() * kPageTokens < tokens.size()) {
    const auto part = page_of(tokens, match.pages.size());
    const std::vector<int32_t> key(part.begin(), part.end());
    // Of keys in lexicographic order, those with the longest common prefix are next to `key`.
    const auto after = node->children.lower_bound(key);
    if (after != node->children.end() && after->first == key && key.size() == kPageTokens) {
      node = after->second.get();
      match.pages.push_back(node->page);
      continue;
    }
    const auto consider = [&](const Children::value_type& child) {
      const int32_t n = common_prefix(child.first, key);
      if (n <= match.partial_tokens) return;
      match.partial_tokens = n;
      match.partial_page = child.second->page;
      match.whole_node = n == static_cast<int32_t>(child.first.size());
    };
    if (after != node->children.end()) consider(*after);
    if (after != node->children.begin()) consider(*std::prev(after));
    break;
  }
  match.known_tokens = static_cast<int32_t>(match.pages.size()) * kPageTokens;
  return match;
}

void PrefixCache::hold(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    pool_->retain(page);
    touch(*by_page_.at(page));
  }
}

void PrefixCache::insert(std::span<const int32_t> tokens, std::span<const int32_t> pages,
                         const TextKind& kind, const Adopt& adopt) {
  if (tokens.empty()) return;
  Node* node = &roots_[kind];
  node->kind = kind;
  for (size_t i = 0; i * kPageTokens < tokens.size(); ++i) {
    const auto part = page_of(tokens, i);
    std::vector<int32_t> key(part.begin(), part.end());
    const auto same = node->children.find(key);
    if (same != node->children.end()) {
      const int32_t page = same->second->page;
      const bool is_whole = part.size() == kPageTokens;
      // Below another's page nothing is added: then a page in use never hangs below an idle one.
      if (page != pages[i] && !(is_whole && adopt && adopt(i, page))) return;
      node = same->second.get();
      touch(*node);
      continue;
    }
    const auto grown = by_page_.find(pages[i]);
    if (grown != by_page_.end()) {
      // The page has more tokens than when it was inserted.
      Node& child = *grown->second;
      auto handle = node->children.extract(child.place);
      handle.key() = std::move(key);
      child.place = node->children.insert(std::move(handle)).position;
      node = &child;
      touch(*node);
      continue;
    }
    auto child = std::make_unique<Node>();
    pool_->retain_cached(pages[i]);
    child->parent = node;
    child->page = pages[i];
    child->last_used = ++clock_;
    if (node->parent != nullptr && node->children.empty()) drop_leaf(*node);
    const auto place = node->children.emplace(std::move(key), std::move(child)).first;
    node = place->second.get();
    node->place = place;
    by_page_.emplace(pages[i], node);
    add_leaf(*node);
  }
}

void PrefixCache::take_over(int32_t page) {
  Node& node = *by_page_.at(page);
  if (!node.children.empty()) throw std::logic_error("a page with pages below it is taken over");
  pool_->retain(page);
  remove(node);
}

bool PrefixCache::make_room(int32_t n_pages) {
  if (pool_->n_free() + pool_->n_idle() < n_pages) return false;
  auto leaf = leaves_.begin();
  while (pool_->n_ready() < n_pages && pool_->n_idle() > 0 && leaf != leaves_.end()) {
    Node& node = *leaf->second;
    if (pool_->references(node.page) > 1) {
      ++leaf;
      continue;
    }
    remove(node);  // its parent may have become an older leaf
    leaf = leaves_.begin();
  }
  return pool_->n_free() >= n_pages;
}

void PrefixCache::touch(Node& node) {
  const bool leaf = node.children.empty();
  if (leaf) drop_leaf(node);
  node.last_used = ++clock_;
  if (leaf) add_leaf(node);
}

void PrefixCache::remove(Node& leaf) {
  Node* parent = leaf.parent;
  drop_leaf(leaf);
  by_page_.erase(leaf.page);
  pool_->release_cached(leaf.page);
  parent->children.erase(leaf.place);
  if (!parent->children.empty()) return;
  if (parent->parent != nullptr) {
    add_leaf(*parent);
  } else {
    roots_.erase(parent->kind);
  }
}

}  // namespace faststream
