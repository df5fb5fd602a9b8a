// The numbers of a request that users set, in one table: options of the command line, settings of a
// chat, keys of a batch's lines and what model files recommend are all read and checked by it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "engine/request.h"

namespace faststream {

class JsonView;

/// What has to be there that a setting has an effect.
enum class SettingUse {
  always,
  ending,      ///< a limit of tokens that is not reached before
  samples,     ///< samples, not a beam search: how they come about
  draws,       ///< likewise, at a temperature above 0: what is drawn from
  randomness,  ///< likewise: which tokens are drawn
  searches,    ///< a beam search
  groups,      ///< a beam search with groups of beams
};

/// Where a request keeps a number.
template <typename T>
struct RequestMember {
  const T& (*in)(const Request& request);
  T& (*of)(Request& request);
};

using SettingMember =
    std::variant<RequestMember<float>, RequestMember<int32_t>, RequestMember<int64_t>,
                 RequestMember<std::optional<uint64_t>>, RequestMember<EarlyStopping>>;

/// What the command line calls a setting, and says of it in its help.
struct SettingOption {
  std::string_view name = {};     ///< "--top-k"; empty: it is no option
  std::string_view aliases = {};  ///< such as "-n"
  std::string_view group = {};
  std::string_view value = {};  ///< "K"
  std::string_view help = {};
};

struct RequestSetting {
  std::string_view key;  ///< in JSON: "top_k"; chats write "top-k"
  SettingMember member;
  // From least to most, and as far as its type goes; besides, what Request has by itself.
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  /// What users write for what Request has by itself, such as "unlimited"; null in JSON. Empty:
  /// that is a number as others are.
  std::string_view absent = {};
  SettingUse use = SettingUse::always;
  bool recommended = false;  ///< by model files, under "sampling"
  bool in_chat = false;      ///< for /set, and kept in sessions
  SettingOption option = {};

  /// Sets it from a text: a number or `absent`. Throws UsageError for any other: `"-1" is not a
  /// number from 0 to 100`.
  void parse(std::string_view text, Request& request) const;
  /// Sets it from JSON. Throws Error, naming the value's place.
  void read(const JsonView& value, Request& request) const;
  /// As parse() takes it.
  [[nodiscard]] std::string show(const Request& request) const;
  /// Sets it as another request has it.
  void copy(const Request& from, Request& to) const;
  /// Whether it is what Request has by itself.
  [[nodiscard]] bool is_unset(const Request& request) const;
  /// Throws UsageError, with the key, when it is out of range.
  void check(const Request& request) const;
  /// "a whole number from 0 to 128".
  [[nodiscard]] std::string range() const;
  /// Why it has no effect on what the request asks for: "has no effect with beams"; empty where it
  /// has one.
  [[nodiscard]] std::string_view idleness(const Request& request) const;
};

/// All of them, in the order of the help.
std::span<const RequestSetting> request_settings();
/// The one with this key, or null.
const RequestSetting* find_request_setting(std::string_view key);
/// The one with this option, such as "--top-k", or null.
const RequestSetting* find_setting_of_option(std::string_view option);

}  // namespace faststream
