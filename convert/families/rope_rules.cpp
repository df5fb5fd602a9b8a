// The arithmetic is float32 where Transformers' is, so that frequencies come out the same.
#include "convert/families/rope_rules.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>

#include "support/printable.h"

namespace faststream::convert {
namespace {

// theta^(2i / rotated).
std::vector<float> wavelengths(double theta, int64_t rotated) {
  std::vector<float> powers(static_cast<size_t>((rotated + 1) / 2));
  for (size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotated);
    powers[i] = std::pow(static_cast<float>(theta), exponent);
  }
  return powers;
}

// rope_scaling, the name of Transformers 4, or else rope_parameters, that of 5, which takes one and
// does not look at the other.
std::optional<JsonView> rope_members(const JsonView& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    auto members = config.find(key);
    if (members && !members->value().empty()) return members;
  }
  return std::nullopt;
}

std::string type_of(const JsonView& members) {
  return members.get<std::string>("rope_type", members.get<std::string>("type", "default"));
}

// The members for layers of a type, where types differ.
std::optional<JsonView> members_for(const JsonView& config, std::string_view layer_type) {
  auto members = rope_members(config);
  if (!members) return std::nullopt;
  if (!layer_type.empty()) {
    if (auto own = members->find(layer_type)) return own;
  }
  for (const auto& [key, value] : members->value().items()) {
    if (value.is_object()) {
      members->fail("differs from layer to layer, which is not supported for models of this type");
    }
  }
  return members;
}

// A rule as it is read: its numbers, and the rotation that is being made.
class Rule {
 public:
  Rule(const JsonView& members, const JsonView& config, const RopeShape& shape)
      : members_(members), config_(config), shape_(shape) {}

  void apply(const std::string& type, double theta, int64_t rotated, RopeConfig& rope) const {
    if (type == "linear") {
      divide(rope.frequencies, positive("factor"));
    } else if ((type == "dynamic" || type == "xdrope") && members_.get("alpha", 0.0) != 0) {
      apply_alpha(theta, rotated, rope.frequencies);
    } else if (type == "dynamic") {
      rope.dynamic_factor = positive("factor");
      rope.original_max_context = shape_.max_context;
    } else if (type == "llama3") {
      apply_llama3(rope.frequencies);
    } else if (type == "longrope" || type == "su" || members_.find("short_factor")) {
      apply_longrope(theta, rotated, rope);  // Phi 3 called it "su" at first, and "yarn"
    } else if (type == "yarn") {
      apply_yarn(theta, rotated, rope);
    } else if (type == "proportional") {
      apply_proportional(theta, rotated, rope.frequencies);
    } else if (type != "default" && type != "mrope") {  // of text alone mrope is the default
      members_.fail("has the type " + in_quotes(type) +
                    ", which is not supported; this version knows default, linear, dynamic, "
                    "llama3, yarn, longrope and proportional");
    } else if (members_.get("factor", 1.0) != 1.0) {
      members_.fail("has a \"factor\" but no \"rope_type\" that it belongs to");
    }
  }

 private:
  static void divide(std::vector<float>& frequencies, double factor) {
    for (float& frequency : frequencies) frequency /= static_cast<float>(factor);
  }

  [[nodiscard]] double positive(std::string_view key) const {
    return positive(key, members_.get<double>(key));
  }
  [[nodiscard]] double positive(std::string_view key, double value) const {
    if (!(value > 0 && std::isfinite(value))) {
      members_.member(key).fail("is not a number above 0");
    }
    return value;
  }

  // Phi 3 has it beside the rule's members.
  [[nodiscard]] int64_t original_max_context() const {
    constexpr const char* kKey = "original_max_position_embeddings";
    for (const JsonView& members : {config_, members_}) {
      if (const auto context = members.find(kKey)) return context->as<int64_t>(2, kMaxContext);
    }
    return shape_.max_context;
  }

  // Long wavelengths are interpolated, short ones kept, and those between blended.
  void apply_llama3(std::vector<float>& frequencies) const {
    const auto factor = static_cast<float>(positive("factor"));
    const auto low = static_cast<float>(positive("low_freq_factor"));
    const auto high = static_cast<float>(positive("high_freq_factor"));
    if (high <= low) members_.fail("has a high_freq_factor that is not above its low_freq_factor");
    const auto context = static_cast<float>(original_max_context());
    for (float& f : frequencies) {
      const float wavelength = 2 * std::numbers::pi_v<float> / f;
      if (wavelength > context / low) {
        f /= factor;
      } else if (wavelength >= context / high) {
        const float smooth = (context / wavelength - low) / (high - low);
        f = (1 - smooth) * f / factor + smooth * f;
      }
    }
  }

  // Hunyuan's NTK-aware base, the same for texts of every length.
  void apply_alpha(double theta, int64_t rotated, std::vector<float>& frequencies) const {
    if (rotated <= 2) members_.fail("has an \"alpha\", which needs two pairs of elements or more");
    const auto dims = static_cast<double>(rotated);
    frequencies =
        plain_frequencies(theta * std::pow(positive("alpha"), dims / (dims - 2)), rotated);
  }

  void apply_yarn(double theta, int64_t rotated, RopeConfig& rope) const {
    YarnRule rule;
    rule.original_max_context = static_cast<double>(original_max_context());
    rule.factor = members_.find("factor")
                      ? positive("factor")
                      : static_cast<double>(shape_.max_context) / rule.original_max_context;
    if (members_.get("beta_fast", 0.0) != 0) rule.beta_fast = positive("beta_fast");
    if (members_.get("beta_slow", 0.0) != 0) rule.beta_slow = positive("beta_slow");
    rule.truncate = members_.get("truncate", true);
    if (theta <= 1) config_.fail("has a rope_theta that is not above 1, as yarn needs it");
    rope.frequencies = yarn_frequencies(theta, rotated, rule);

    const double mscale = members_.get("mscale", 0.0);
    const double mscale_all_dim = members_.get("mscale_all_dim", 0.0);
    double attention = yarn_attention_factor(rule.factor);
    if (mscale != 0 && mscale_all_dim != 0) {
      attention = yarn_attention_factor(rule.factor, mscale) /
                  yarn_attention_factor(rule.factor, mscale_all_dim);
    }
    set_attention_factor(attention, rope);
  }

  void apply_longrope(double theta, int64_t rotated, RopeConfig& rope) const {
    const int64_t original = original_max_context();
    const double factor = members_.find("factor") ? positive("factor")
                                                  : static_cast<double>(shape_.max_context) /
                                                        static_cast<double>(original);
    rope.original_max_context = original;
    rope.frequencies = divided_frequencies(theta, rotated, "short_factor");
    rope.long_frequencies = divided_frequencies(theta, rotated, "long_factor");
    set_attention_factor(longrope_attention_factor(factor, static_cast<double>(original)), rope);
  }

  [[nodiscard]] std::vector<float> divided_frequencies(double theta, int64_t rotated,
                                                       std::string_view key) const {
    std::vector<float> frequencies = wavelengths(theta, rotated);
    const JsonView list = members_.member(key);
    const std::vector<JsonView> factors = list.elements();
    if (factors.size() != frequencies.size()) {
      list.fail("has " + std::to_string(factors.size()) + " numbers for " +
                std::to_string(frequencies.size()) + " pairs of elements");
    }
    for (size_t i = 0; i < factors.size(); ++i) {
      frequencies[i] = 1.0F / (factors[i].as<float>() * frequencies[i]);
    }
    return frequencies;
  }

  // Of each head the first pairs are rotated, with the frequencies that they have when all are.
  void apply_proportional(double theta, int64_t rotated, std::vector<float>& frequencies) const {
    frequencies = plain_frequencies(theta, shape_.head_dim);
    std::fill(frequencies.begin() + rotated / 2, frequencies.end(), 0.0F);
    divide(frequencies, members_.find("factor") ? positive("factor") : 1.0);
  }

  void set_attention_factor(double otherwise, RopeConfig& rope) const {
    rope.attention_factor = static_cast<float>(members_.get("attention_factor", otherwise));
    if (!(rope.attention_factor > 0 && std::isfinite(rope.attention_factor))) {
      members_.fail("gives an attention factor that is not a number above 0");
    }
  }

  const JsonView& members_;
  const JsonView& config_;
  const RopeShape& shape_;
};

void check_frequencies(const JsonView& config, const std::vector<float>& frequencies) {
  for (const float frequency : frequencies) {
    if (frequency >= 0 && std::isfinite(frequency)) continue;
    config.fail("describes rotary embeddings with frequencies that are no numbers from 0 on");
  }
}

}  // namespace

RopeConfig rope_from_hf(const JsonView& config, const RopeShape& shape,
                        std::string_view layer_type) {
  const auto members = members_for(config, layer_type);
  // Members of a rule go before those of config.json.
  const auto number = [&](std::string_view key, double otherwise) {
    const double outside = config.get(key, otherwise);
    return members ? members->get(key, outside) : outside;
  };
  const double theta = number("rope_theta", shape.theta);
  if (!(theta > 0 && std::isfinite(static_cast<float>(theta)))) {
    config.fail("has a rope_theta that is not a number above 0, or is too large");
  }
  const double share = number("partial_rotary_factor", shape.rotated_share);
  const double elements = static_cast<double>(shape.head_dim) * share;
  if (!(share <= 1 && elements >= 1)) {
    config.fail("rotates a share of each head that is not above 0 and at most 1");
  }
  const auto rotated = static_cast<int64_t>(elements);
  RopeConfig rope;
  rope.name = layer_type.empty() ? "rope" : layer_type;
  rope.frequencies = plain_frequencies(theta, rotated);
  if (members) {
    Rule(*members, config, shape).apply(type_of(*members), theta, rotated, rope);
  }
  check_frequencies(config, rope.frequencies);
  check_frequencies(config, rope.long_frequencies);
  return rope;
}

std::vector<float> yarn_frequencies(double theta, int64_t rotated, const YarnRule& rule) {
  const auto dims = static_cast<double>(rotated);
  // The pair that turns so often within the original context.
  const auto pair_of = [&](double rotations) {
    return dims * std::log(rule.original_max_context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = pair_of(rule.beta_fast);
  double high = pair_of(rule.beta_slow);
  if (rule.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;

  std::vector<float> frequencies = wavelengths(theta, rotated);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F,
        1.0F);
    const float kept = 1 - ramp;
    const float interpolated = 1.0F / (static_cast<float>(rule.factor) * frequencies[i]);
    frequencies[i] = interpolated * (1 - kept) + 1.0F / frequencies[i] * kept;
  }
  return frequencies;
}

double yarn_score_factor(const JsonView& config) {
  const auto members = rope_members(config);
  if (!members || type_of(*members) == "default") return 1;
  const double mscale_all_dim = members->get("mscale_all_dim", 0.0);
  if (mscale_all_dim == 0) return 1;
  const double factor = yarn_attention_factor(members->get<double>("factor"), mscale_all_dim);
  return factor * factor;
}

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1;
}

double longrope_attention_factor(double factor, double original_max_context) {
  return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original_max_context));
}

}  // namespace faststream::convert
