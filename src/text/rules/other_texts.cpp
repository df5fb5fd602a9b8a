#include "text/rules/other_texts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "text/rules/dfa.h"
#include "text/rules/lists_by_number.h"
#include "text/rules/regex.h"

namespace faststream::rules {
namespace {

// A trie of the texts, from each of whose nodes what is in no text leads to states of any text.
class OtherTexts {
 public:
  OtherTexts(const Graph& any, std::vector<std::string> texts, WorkBudget& budget)
      : any_(any),
        from_(static_cast<size_t>(any.n_states),
              [&](const auto& task) {
                for (const Graph::Edge& edge : any.edges) task(edge.from, &edge);
              }),
        budget_(budget) {
    std::ranges::sort(texts);
    add_node(kBetween);
    std::vector<size_t> path = {0};  // nodes that lead to the last text
    std::string before;
    for (std::string& text : texts) {
      const size_t n_common = std::ranges::mismatch(text, before).in1 - text.begin();
      path.resize(n_common + 1);
      for (size_t i = n_common; i < text.size(); ++i) {
        path.push_back(add_child(path.back(), static_cast<uint8_t>(text[i])));
      }
      nodes_[path.back()].is_text = true;
      before = std::move(text);
    }
    make_graph();
  }
  [[nodiscard]] Graph take() { return std::move(graph_); }

 private:
  // States of any character: at its start, which is where the last one has ended, and behind it.
  static constexpr int32_t kBetween = 0;
  static constexpr int32_t kBehind = 1;

  struct Child {
    uint8_t byte = 0;
    size_t node = 0;
  };
  struct Node {
    int32_t within = 0;  // a character, the state of any
    bool is_text = false;
    std::vector<Child> children;
  };

  size_t add_node(int32_t within) {
    constexpr size_t kSteps = 100;
    budget_.spend(kSteps);
    if (nodes_.size() >= kMaxDfaStates) refuse_dfa_size();
    nodes_.push_back(
        {.within = within == kBehind ? kBetween : within, .is_text = false, .children = {}});
    return nodes_.size() - 1;
  }

  size_t add_child(size_t parent, uint8_t byte) {
    const auto edges = from_.of(nodes_[parent].within);
    const auto edge =
        std::ranges::find_if(edges, [&](const Graph::Edge* e) { return e->bytes.has(byte); });
    const size_t child = add_node((*edge)->to);
    nodes_[parent].children.push_back({byte, child});
    return child;
  }

  // Behind the nodes come the states of any text, of any's numbers.
  void make_graph() {
    const auto any_text = [this](int32_t state) {
      return static_cast<int32_t>(nodes_.size()) + (state == kBehind ? kBetween : state);
    };
    graph_.n_states = any_text(any_.n_states);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const Node& node = nodes_[n];
      const auto from = static_cast<int32_t>(n);
      if (node.within == kBetween && !node.is_text) graph_.accepting.push_back(from);
      ByteSet known;
      for (const Child& child : node.children) {
        known.add(child.byte);
        graph_.edges.push_back(
            {from, static_cast<int32_t>(child.node), ByteSet(child.byte, child.byte)});
      }
      for (const Graph::Edge* edge : from_.of(node.within)) {
        const ByteSet others = edge->bytes.without(known);
        if (!others.is_empty()) graph_.edges.push_back({from, any_text(edge->to), others});
      }
    }
    graph_.accepting.push_back(any_text(kBetween));
    for (const Graph::Edge& edge : any_.edges) {
      graph_.edges.push_back({any_text(edge.from), any_text(edge.to), edge.bytes});
    }
  }

  const Graph& any_;  // character
  ListsByNumber<const Graph::Edge*> from_;
  std::vector<Node> nodes_;
  Graph graph_;
  WorkBudget& budget_;
};

}  // namespace

Graph other_texts(std::vector<std::string> texts, WorkBudget& budget) {
  return OtherTexts(*any_character()->graph, std::move(texts), budget).take();
}

}  // namespace faststream::rules
