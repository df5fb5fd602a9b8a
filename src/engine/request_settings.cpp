#include "engine/request_settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "backend/backend.h"
#include "support/error.h"
#include "support/json.h"
#include "support/printable.h"

namespace faststream {
namespace {

constexpr double kAny = std::numeric_limits<double>::infinity();
constexpr int32_t kMaxSamples = 128;  // and beams

// The member that a path of pointers to members leads to.
template <auto first, auto... more>
auto& walk(auto& object) {
  if constexpr (sizeof...(more) == 0) {
    return object.*first;
  } else {
    return walk<more...>(object.*first);
  }
}

template <auto... path>
constexpr auto member() {
  using T = std::remove_cvref_t<decltype(walk<path...>(std::declval<Request&>()))>;
  return RequestMember<T>{[](const Request& request) -> const T& { return walk<path...>(request); },
                          [](Request& request) -> T& { return walk<path...>(request); }};
}

template <auto of>
constexpr auto sampling() {
  return member<&Request::sampling, of>();
}

template <auto of>
constexpr auto search() {
  return member<&Request::search, of>();
}

constexpr std::string_view kNoDraws = "has no effect with beams, which draw nothing";
constexpr std::string_view kGeneration = "Generation";
constexpr std::string_view kBeamSearch = "Beam search";
constexpr std::string_view kBatch = "Batch";

constexpr std::array kSettings = {
    RequestSetting{
        .key = "max_tokens",
        .member = member<&Request::max_tokens>(),
        .absent = "unlimited",
        .in_chat = true,
        .option = {"--tokens", "-n", kGeneration, "N",
                   "Generate at most N tokens [until the model ends its text or the context is "
                   "full]"}},
    RequestSetting{.key = "min_tokens",
                   .member = member<&Request::min_tokens>(),
                   .use = SettingUse::ending,
                   .option = {"--min-tokens", "", kGeneration, "N",
                              "The model may not end its text before N tokens"}},
    RequestSetting{
        .key = "temperature",
        .member = sampling<&SamplingParams::temperature>(),
        .most = 100,
        .use = SettingUse::samples,
        .recommended = true,
        .in_chat = true,
        .option = {"--temp", "", kGeneration, "T",
                   "Temperature: 0 always takes the likeliest token, higher is more varied"}},
    RequestSetting{.key = "top_k",
                   .member = sampling<&SamplingParams::top_k>(),
                   .use = SettingUse::draws,
                   .recommended = true,
                   .in_chat = true,
                   .option = {"--top-k", "", kGeneration, "K",
                              "Draw from the K likeliest tokens; 0 draws from all"}},
    RequestSetting{.key = "top_p",
                   .member = sampling<&SamplingParams::top_p>(),
                   .most = 1,
                   .use = SettingUse::draws,
                   .recommended = true,
                   .in_chat = true,
                   .option = {"--top-p", "", kGeneration, "P",
                              "Draw from the likeliest tokens that together have probability P; 1 "
                              "draws from all"}},
    RequestSetting{.key = "min_p",
                   .member = sampling<&SamplingParams::min_p>(),
                   .most = 1,
                   .use = SettingUse::draws,
                   .recommended = true,
                   .in_chat = true,
                   .option = {"--min-p", "", kGeneration, "P",
                              "Draw from tokens at least P times as likely as the likeliest; 0 "
                              "draws from all"}},
    RequestSetting{.key = "repetition_penalty",
                   .member = sampling<&SamplingParams::repetition_penalty>(),
                   .least = 0.01,
                   .most = 100,
                   .recommended = true,
                   .in_chat = true,
                   .option = {"--repetition-penalty", "", kGeneration, "X",
                              "Make tokens of the prompt and the answer less likely; 1 does not"}},
    RequestSetting{.key = "presence_penalty",
                   .member = sampling<&SamplingParams::presence_penalty>(),
                   .least = -100,
                   .most = 100,
                   .recommended = true,
                   .in_chat = true,
                   .option = {"--presence-penalty", "", kGeneration, "X",
                              "Taken from the logits of tokens that are in the answer"}},
    RequestSetting{
        .key = "frequency_penalty",
        .member = sampling<&SamplingParams::frequency_penalty>(),
        .least = -100,
        .most = 100,
        .recommended = true,
        .in_chat = true,
        .option = {"--frequency-penalty", "", kGeneration, "X",
                   "Taken from the logits of tokens as often as they are in the answer"}},
    RequestSetting{.key = "no_repeat_ngram",
                   .member = sampling<&SamplingParams::no_repeat_ngram>(),
                   .option = {"--no-repeat-ngram", "", kGeneration, "N",
                              "No N tokens in a row come twice in prompt and answer; 0: they may"}},
    RequestSetting{
        .key = "seed",
        .member = sampling<&SamplingParams::seed>(),
        .absent = "random",
        .use = SettingUse::randomness,
        .in_chat = true,
        .option = {"--seed", "", kGeneration, "N",
                   "Seed of the random draws; the same seed gives the same text [random]"}},
    RequestSetting{.key = "n", .member = member<&Request::n>(), .least = 1, .most = kMaxSamples},
    RequestSetting{.key = "best_of",
                   .member = member<&Request::best_of>(),
                   .least = 1,
                   .most = kMaxSamples,
                   .use = SettingUse::draws},
    RequestSetting{
        .key = "logprobs",
        .member = member<&Request::logprobs>(),
        .most = kMaxLogprobs,
        .absent = "none",
        .option = {"--logprobs", "", kBatch, "N",
                   "Add log-probabilities of the chosen tokens and of the N likeliest ones"}},
    RequestSetting{.key = "priority", .member = member<&Request::priority>(), .least = -kAny},
    RequestSetting{.key = "beams",
                   .member = search<&BeamParams::beams>(),
                   .least = 1,
                   .most = kMaxSamples,
                   .option = {"--beams", "", kBeamSearch, "K",
                              "Pursue the K likeliest texts and print the one with the best score; "
                              "1 draws tokens instead"}},
    RequestSetting{
        .key = "length_penalty",
        .member = search<&BeamParams::length_penalty>(),
        .least = -10,
        .most = 10,
        .use = SettingUse::searches,
        .option = {"--length-penalty", "", kBeamSearch, "X",
                   "A text's score is its log-probability over its number of tokens to this power: "
                   "more favours long texts"}},
    RequestSetting{
        .key = "early_stopping",
        .member = search<&BeamParams::early_stopping>(),
        .use = SettingUse::searches,
        .option = {"--early-stopping", "", kBeamSearch, "WHEN",
                   "End when K texts are finished (true), when none of the others would be better "
                   "if it ended now (false), or could become so (never)"}},
    RequestSetting{.key = "beam_groups",
                   .member = search<&BeamParams::groups>(),
                   .least = 1,
                   .most = kMaxSamples,
                   .use = SettingUse::searches,
                   .option = {"--beam-groups", "", kBeamSearch, "G",
                              "Beams in G groups, each kept from the tokens of those before it"}},
    RequestSetting{.key = "diversity_penalty",
                   .member = search<&BeamParams::diversity_penalty>(),
                   .most = 100,
                   .use = SettingUse::groups,
                   .option = {"--diversity-penalty", "", kBeamSearch, "X",
                              "With --beam-groups: taken from a token's log-probability for each "
                              "beam of an earlier group that took it"}},
};

constexpr std::array<std::string_view, 3> kStopping = {"false", "true", "never"};  // by value

// The type of a member's value where there is one.
template <typename T>
struct ValueOf {
  using Type = T;
};
template <typename T>
struct ValueOf<std::optional<T>> {
  using Type = T;
};
template <typename T>
using Value = typename ValueOf<T>::Type;

template <typename T>
constexpr bool kIsNumber = std::is_arithmetic_v<Value<T>>;

template <typename Number>
std::string text_of(Number value) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// A bound of the table, or what the type ends at.
template <typename Number>
Number bound(double of_table) {
  using Limits = std::numeric_limits<Number>;
  if (of_table <= static_cast<double>(Limits::lowest())) return Limits::lowest();
  return of_table < static_cast<double>(Limits::max()) ? static_cast<Number>(of_table)
                                                       : Limits::max();
}

template <typename Number>
bool is_in_range(const RequestSetting& setting, Number value) {
  return value >= bound<Number>(setting.least) && value <= bound<Number>(setting.most);
}

std::optional<EarlyStopping> stopping_of(std::string_view text) {
  const auto* found = std::ranges::find(kStopping, text);
  if (found == kStopping.end()) return std::nullopt;
  return static_cast<EarlyStopping>(found - kStopping.begin());
}

// Nothing for what is no number, or too large for its type. One that is too small is 0, as it is in
// JSON.
template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  const char* end = text.data() + text.size();
  if constexpr (std::is_same_v<Number, float>) {
    double value = 0;
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (stop != end || status == std::errc::invalid_argument) return std::nullopt;
    if (status != std::errc()) value = std::strtod(std::string(text).c_str(), nullptr);
    if (!(std::abs(value) <= double{std::numeric_limits<float>::max()})) return std::nullopt;
    return static_cast<float>(value);
  } else {
    Number value{};
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (stop != end || status != std::errc()) return std::nullopt;
    return value;
  }
}

// Nothing for what is no such value.
template <typename T>
std::optional<T> value_of(const RequestSetting& setting, std::string_view text) {
  if constexpr (kIsNumber<T>) {
    const std::optional<Value<T>> value = number_of<Value<T>>(text);
    if (!value || !is_in_range(setting, *value)) return std::nullopt;
    return *value;
  } else {
    return stopping_of(text);
  }
}

const Request& unset() {
  static const Request request;
  return request;
}

}  // namespace

void RequestSetting::parse(std::string_view text, Request& request) const {
  if (!absent.empty() && text == absent) return copy(unset(), request);
  const auto set = [&]<typename T>(const RequestMember<T>& at) {
    const std::optional<T> value = value_of<T>(*this, text);
    if (!value) throw UsageError(in_quotes(text) + " is not " + range());
    at.of(request) = *value;
  };
  std::visit(set, member);
}

void RequestSetting::read(const JsonView& value, Request& request) const {
  const auto set = [&]<typename T>(const RequestMember<T>& at) {
    using Read = Value<T>;
    if constexpr (std::is_integral_v<Read>) {
      at.of(request) = value.as<Read>(bound<Read>(least), bound<Read>(most));
    } else if constexpr (std::is_same_v<Read, float>) {
      const auto number = value.as<float>();
      if (!is_in_range(*this, number)) value.fail("is not " + range());
      at.of(request) = number;
    } else {  // true and false may be texts, as in model files
      const nlohmann::json& json = value.value();
      const auto stopping = stopping_of(json.is_string() ? json.get<std::string>() : json.dump());
      if (!stopping) value.fail("is not true, false or \"never\"");
      at.of(request) = *stopping;
    }
  };
  std::visit(set, member);
}

std::string RequestSetting::show(const Request& request) const {
  if (!absent.empty() && is_unset(request)) return std::string(absent);
  const auto text = [&]<typename T>(const RequestMember<T>& at) -> std::string {
    const T& value = at.in(request);
    if constexpr (std::is_same_v<T, EarlyStopping>) {
      return std::string(kStopping[static_cast<size_t>(value)]);
    } else if constexpr (std::is_arithmetic_v<T>) {
      return text_of(value);
    } else {
      return text_of(value.value());
    }
  };
  return std::visit(text, member);
}

void RequestSetting::copy(const Request& from, Request& to) const {
  std::visit([&](const auto& at) { at.of(to) = at.in(from); }, member);
}

bool RequestSetting::is_unset(const Request& request) const {
  return std::visit([&](const auto& at) { return at.in(request) == at.in(unset()); }, member);
}

void RequestSetting::check(const Request& request) const {
  if (is_unset(request)) return;
  const auto sound = [&]<typename T>(const RequestMember<T>& at) {
    if constexpr (kIsNumber<T>) {
      return is_in_range<Value<T>>(*this, std::optional<Value<T>>(at.in(request)).value());
    } else {
      return true;
    }
  };
  if (!std::visit(sound, member)) throw UsageError(std::string(key) + " must be " + range());
}

std::string RequestSetting::range() const {
  const auto text = [&]<typename T>(const RequestMember<T>& /*at*/) -> std::string {
    if constexpr (kIsNumber<T>) {
      const std::string numbers =
          std::is_integral_v<Value<T>> ? "a whole number from " : "a number from ";
      return numbers + text_of(bound<Value<T>>(least)) + " to " + text_of(bound<Value<T>>(most));
    } else {
      return "true, false or never";
    }
  };
  return std::visit(text, member) + (absent.empty() ? "" : ", or " + std::string(absent));
}

std::string_view RequestSetting::idleness(const Request& request) const {
  const bool searching = request.search.beams > 1;
  switch (use) {
    case SettingUse::always:
      return "";
    case SettingUse::ending:
      return request.max_tokens >= 0 && request.min_tokens > request.max_tokens
                 ? "has no effect beyond the limit of tokens, which is lower"
                 : "";
    case SettingUse::samples:
      return searching ? kNoDraws : "";
    case SettingUse::draws:
    case SettingUse::randomness:
      if (searching) return kNoDraws;
      return request.sampling.temperature > 0
                 ? ""
                 : "has no effect at temperature 0, which draws nothing";
    case SettingUse::searches:
      return searching ? "" : "has no effect without beams, 2 or more";
    case SettingUse::groups:
      return searching && request.search.groups > 1 ? "" : "has no effect without groups of beams";
  }
  return "";
}

std::span<const RequestSetting> request_settings() { return kSettings; }

const RequestSetting* find_request_setting(std::string_view key) {
  const auto* found = std::ranges::find(kSettings, key, &RequestSetting::key);
  return found == kSettings.end() ? nullptr : found;
}

const RequestSetting* find_setting_of_option(std::string_view option) {
  const auto* found = std::ranges::find_if(
      kSettings, [&](const RequestSetting& setting) { return setting.option.name == option; });
  return found == kSettings.end() || option.empty() ? nullptr : found;
}

}  // namespace faststream
