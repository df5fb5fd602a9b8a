// What grammars are made of: expressions over bytes that call rules.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/rules/byte_set.h"

namespace faststream::rules {

/// A finite automaton without empty moves. State 0 is its start.
struct Graph {
  struct Edge {
    int32_t from = 0;
    int32_t to = 0;
    ByteSet bytes;
    bool begins = false;  ///< a character, where these are counted
  };
  int32_t n_states = 1;
  std::vector<Edge> edges;
  std::vector<int32_t> accepting;
};

struct Node;
/// Immutable and shared.
using Expr = std::shared_ptr<const Node>;

constexpr int32_t kUnbounded = -1;

/// A language: of one kind each, and those members count that the kind names.
struct Node {
  enum class Kind {
    nothing,   ///< no text at all
    bytes,     ///< one byte of the set
    literal,   ///< the text, which may be empty
    sequence,  ///< the parts in their order
    choice,    ///< one of the parts
    repeat,    ///< the only part, `least` to `most` times
    rest,      ///< any text, of the only part; every text that the rule has is one
    call,      ///< what the rule is
    graph,     ///< what the automaton accepts, of `least` to `most` characters where that is set
    net,       ///< parts along a way from state 0 to the last one
    begin,     ///< where the text begins (regular expressions)
    end,       ///< where it ends
  };
  Kind kind = Kind::literal;
  ByteSet bytes = {};
  std::string text = {};
  std::vector<Expr> parts = {};
  int32_t least = 0;
  int32_t most = 0;  ///< kUnbounded: any number
  int32_t rule = 0;  ///< index in Grammar::rules
  std::shared_ptr<const Graph> graph = {};
  int32_t n_states = 0;                                ///< of a net
  std::vector<std::pair<int32_t, int32_t>> ends = {};  ///< of a net, the states of each part
};

/// Each simplifies what is empty or nothing.
Expr nothing();
Expr literal(std::string_view text);
Expr bytes(const ByteSet& set);
Expr sequence(std::vector<Expr> parts);
Expr choice(std::vector<Expr> parts);
/// most: kUnbounded, or at least `least`, which is not negative.
Expr repeat(Expr part, int32_t least, int32_t most);
Expr optional(Expr part);
/// Any number of a character of any kind, at the end of a rule all of whose texts are made of such
/// characters: what else such a text may mean once it is there need not be known.
Expr rest(Expr character);
Expr call(int32_t rule);
/// A net, to which parts are added.
class Net {
 public:
  explicit Net(int32_t n_states) : n_states_(n_states) {}
  void add(int32_t from, int32_t to, Expr part);
  [[nodiscard]] Expr expr() &&;

 private:
  int32_t n_states_;
  std::vector<Expr> parts_;
  std::vector<std::pair<int32_t, int32_t>> ends_;
};
Expr graph(std::shared_ptr<const Graph> graph);
/// Texts of a graph that have `least` to `most` characters. It must be one of which
/// characters_left() says what this needs.
Expr counted_graph(std::shared_ptr<const Graph> graph, int32_t least, int32_t most);
Expr mark(Node::Kind kind);

[[nodiscard]] bool is_nothing(const Expr& expr);
[[nodiscard]] bool is_empty_text(const Expr& expr);

/// Code points from `first` to `last`.
struct CodeRange {
  uint32_t first = 0;
  uint32_t last = 0;
  friend auto operator<=>(const CodeRange&,
                          const CodeRange&) = default;  // NOLINT(modernize-use-nullptr)
};
constexpr uint32_t kLastCodePoint = 0x10FFFF;

/// The ranges in order, joined where they touch, without surrogates, which UTF-8 has not.
std::vector<CodeRange> normalized(std::span<const CodeRange> ranges);
/// All other code points.
std::vector<CodeRange> complement(std::vector<CodeRange> ranges);
/// One character of the ranges in UTF-8.
Expr characters(std::vector<CodeRange> ranges);

/// Rules by number, of which the first is the whole text.
struct Grammar {
  struct Rule {
    std::string name;  ///< for errors
    Expr expr;
  };
  std::vector<Rule> rules;
};

}  // namespace faststream::rules
