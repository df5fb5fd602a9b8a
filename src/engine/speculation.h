// Tokens that may come next and are looked at together with a text's last one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/batch.h"

namespace faststream {

/// Where proposals come from.
struct Speculation {
  enum class Kind {
    off,
    lookup,  ///< what followed where the end of the text stood before
    draft,   ///< another model
    mtp,     ///< heads of the model itself that predict further tokens, or one beside it
  };
  Kind kind = Kind::off;
  std::string draft = {};  ///< the other model's file
};

/// What EngineOptions::speculate names: "auto", "off", "lookup", "mtp" or "draft=FILE". Throws
/// UsageError when it is none of them.
Speculation speculation_from_name(std::string_view name);

/// How a request's texts have proposals, which asks for it by name (Request::speculate), where the
/// engine does it by `kind`. Throws UsageError where the engine cannot.
Speculation::Kind speculation_of_request(std::string_view asked, Speculation::Kind kind);

/// Tokens that are proposed for a text in a step, at most.
inline constexpr int32_t kMostProposed = kMostOneByOne - 1;
/// Sequences that run beside which there are proposals, and proposals of a step, at most: with
/// more, reading weights is shared by so many tokens that others cost what they bring.
inline constexpr int32_t kMostSpeculating = 64;

/// What a group could propose.
struct ProposalOffer {
  int32_t most = 0;       ///< tokens
  float acceptance = 0;   ///< the share of them that fits, of those whose predecessors all fit
  float chance = 1;       ///< that there will be such an offer at all
  bool is_draft = false;  ///< a drafter is to say which
  int32_t n_unread = 1;   ///< tokens of the text that its first pass reads then
};

/// A pass of a drafter: so many tokens, of all texts together.
struct DraftPass {
  int32_t n_tokens = 0;
  double seconds = 0;
};

}  // namespace faststream
