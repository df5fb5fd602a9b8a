#include "cli/chat/chat_settings.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/json.h"
#include "unit/support/file_helpers.h"

namespace faststream::cli {
namespace {

std::string shown(const Request& settings, std::string_view name) {
  return find_chat_setting(name).show(settings);
}

std::string refusal(std::string_view name, std::string_view value) {
  Request settings;
  const auto before = settings_to_json(settings);
  std::string message = error_of([&] { change_setting(settings, name, value); });
  EXPECT_EQ(settings_to_json(settings), before);
  return message;
}

TEST(ChatSettings, AreShownAsTheyAreSet) {
  Request settings;
  const std::vector<std::pair<std::string, std::string>> values = {
      {"temperature", "0.7"},
      {"top-k", "12"},
      {"top-p", "0.5"},
      {"min-p", "0.05"},
      {"repetition-penalty", "1.1"},
      {"presence-penalty", "-0.5"},
      {"frequency-penalty", "0.25"},
      {"max-tokens", "128"},
      {"seed", "18446744073709551615"}};
  EXPECT_EQ(values.size(), chat_settings().size());
  for (const auto& [name, value] : values) {
    change_setting(settings, name, value);
    EXPECT_EQ(shown(settings, name), value);
    EXPECT_NE(list_settings(settings).find(name), std::string::npos);
  }
  EXPECT_EQ(settings.max_tokens, 128);
  EXPECT_EQ(settings.sampling.temperature, 0.7F);
  EXPECT_EQ(settings.sampling.frequency_penalty, 0.25F);
  EXPECT_EQ(settings.sampling.seed, UINT64_MAX);
}

TEST(ChatSettings, CanLiftLimitsAgain) {
  Request settings{.prompt = {}, .max_tokens = 5, .sampling = {.seed = 7}};
  change_setting(settings, "max-tokens", "unlimited");
  change_setting(settings, "seed", "random");
  EXPECT_EQ(settings.max_tokens, -1);
  EXPECT_FALSE(settings.sampling.seed);
  EXPECT_EQ(shown(settings, "max-tokens"), "unlimited");
  EXPECT_EQ(shown(settings, "seed"), "random");
}

TEST(ChatSettings, TakeNumbersThatAreTooSmallForTheirTypeAsJsonDoes) {
  for (const std::string tiny : {"1e-50", "1e-400"}) {
    Request of_text;
    Request of_json;
    change_setting(of_text, "temperature", tiny);
    const auto json = nlohmann::json::parse(tiny);
    find_chat_setting("temperature").read(JsonView(json, ""), of_json);
    EXPECT_EQ(of_text.sampling.temperature, 0);
    EXPECT_EQ(of_json.sampling.temperature, 0);
  }
  EXPECT_TRUE(says(refusal("temperature", "1e50"), "1e50", "from 0 to 100"));
  EXPECT_TRUE(says(refusal("temperature", "1e400"), "1e400", "from 0 to 100"));
  EXPECT_TRUE(says(refusal("temperature", "-1e50"), "-1e50"));
}

TEST(ChatSettings, AreCheckedLikeTheOptions) {
  EXPECT_TRUE(says(refusal("temperature", "-1"), "temperature"));
  EXPECT_TRUE(says(refusal("temperature", "hot"), "temperature", "hot"));
  EXPECT_TRUE(says(refusal("temperature", "nan"), "temperature"));
  EXPECT_TRUE(says(refusal("temperature", "1 2"), "temperature"));
  EXPECT_TRUE(says(refusal("temperature", "random"), "temperature"));
  EXPECT_TRUE(says(refusal("top-k", "-1"), "top-k"));
  EXPECT_TRUE(says(refusal("top-k", "1.5"), "top-k"));
  EXPECT_TRUE(says(refusal("top-p", "1.5"), "top-p"));
  EXPECT_TRUE(says(refusal("min-p", "inf"), "min-p"));
  EXPECT_TRUE(says(refusal("repetition-penalty", "0"), "repetition"));
  EXPECT_TRUE(says(refusal("max-tokens", "-1"), "max-tokens"));
  EXPECT_TRUE(says(refusal("max-tokens", ""), "max-tokens"));
  EXPECT_TRUE(says(refusal("seed", "18446744073709551616"), "seed"));
  EXPECT_TRUE(says(refusal("color", "red"), "color", "temperature"));
  EXPECT_TRUE(says(refusal("", ""), "setting"));
}

TEST(ChatSettings, SurviveJson) {
  Request settings{
      .prompt = {}, .max_tokens = 9, .sampling = {.temperature = 0.3F, .seed = UINT64_MAX}};
  for (const bool absent : {false, true}) {
    if (absent) settings = {};
    const auto json = settings_to_json(settings);
    Request read{.prompt = {}, .max_tokens = 3, .sampling = {.top_k = 1, .seed = 1}};
    settings_from_json(read, nlohmann::json::parse(json.dump()), "x");
    EXPECT_EQ(settings_to_json(read), json);
    EXPECT_EQ(read.sampling.temperature, settings.sampling.temperature);
    EXPECT_EQ(read.sampling.seed, settings.sampling.seed);
    EXPECT_EQ(read.max_tokens, settings.max_tokens);
  }
}

TEST(ChatSettings, RefuseWrongJson) {
  const auto refused = [](const std::string& name, nlohmann::json value) {
    auto json = nlohmann::json::parse(settings_to_json({}).dump());
    json[name] = std::move(value);
    Request settings;
    return error_of([&] { settings_from_json(settings, json, "file"); });
  };
  EXPECT_TRUE(says(refused("top-k", "5"), "file", "top-k"));
  EXPECT_TRUE(says(refused("top-k", nullptr), "file", "top-k"));
  EXPECT_TRUE(says(refused("top-k", 1e30), "file", "top-k"));
  EXPECT_TRUE(says(refused("temperature", -1), "file", "temperature"));
  EXPECT_TRUE(says(refused("seed", -1), "file", "seed"));
  EXPECT_TRUE(says(refused("seed", "random"), "file", "seed"));
  EXPECT_TRUE(says(refused("other", 1), "file"));
  Request settings;
  EXPECT_TRUE(says(error_of([&] { settings_from_json(settings, 5, "file"); }), "file"));
  EXPECT_TRUE(says(
      error_of([&] { settings_from_json(settings, nlohmann::json::object(), "file"); }), "file"));
}

TEST(ChatSettings, KeepLogitBiases) {
  Request settings;
  settings.sampling.logit_bias = {{.token = 1 << 20, .bias = 3}};
  change_setting(settings, "top-k", "3");
  settings_from_json(settings, nlohmann::json::parse(settings_to_json(settings).dump()), "x");
  EXPECT_EQ(settings.sampling.logit_bias.size(), 1U);
}

}  // namespace
}  // namespace faststream::cli
