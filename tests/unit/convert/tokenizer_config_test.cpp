#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "text/tokenizer.h"

namespace faststream::convert {
namespace {

nlohmann::json valid() {
  TokenizerConfig config;
  config.bos = 1;
  config.prefix = {1};
  config.eos = {2, 7};
  config.suffix = {2, 3};
  config.keep_leading_space = true;
  return tokenizer_config_to_json(config);
}

std::string config_refusal(const nlohmann::json& json) {
  try {
    tokenizer_config_from_json(json, "model.bin: tokenizer");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TokenizerConfig, SurvivesJson) {
  const TokenizerConfig config =
      tokenizer_config_from_json(nlohmann::json::parse(valid().dump()), "model.bin: tokenizer");
  EXPECT_EQ(config.bos, 1);
  EXPECT_EQ(config.eos, (std::vector<int32_t>{2, 7}));
  EXPECT_EQ(config.prefix, std::vector<int32_t>{1});
  EXPECT_EQ(config.suffix, (std::vector<int32_t>{2, 3}));
  EXPECT_TRUE(config.adds_bos());
  EXPECT_TRUE(config.keep_leading_space);
}

TEST(TokenizerConfig, MayHaveNoBosToken) {
  TokenizerConfig config;
  const nlohmann::json json = tokenizer_config_to_json(config);
  EXPECT_TRUE(json.at("bos").is_null());
  EXPECT_FALSE(tokenizer_config_from_json(json, "model.bin: tokenizer").bos.has_value());
}

TEST(TokenizerConfig, RefusesEachMissingMember) {
  const nlohmann::json members = valid();
  for (const auto& [name, value] : members.items()) {
    nlohmann::json json = valid();
    json.erase(name);
    EXPECT_EQ(config_refusal(json),
              "model.bin: tokenizer: \"" + name + "\" is missing; convert the checkpoint again");
  }
}

TEST(TokenizerConfig, RefusesEachMemberOfAWrongType) {
  const nlohmann::json members = valid();
  for (const auto& [name, value] : members.items()) {
    nlohmann::json json = valid();
    json[name] = nlohmann::json::object();
    EXPECT_NE(config_refusal(json).find("\"" + name + "\" is not"), std::string::npos)
        << config_refusal(json);
  }
  EXPECT_NE(config_refusal(nlohmann::json::array()), "accepted");
  EXPECT_NE(config_refusal("text"), "accepted");
}

TEST(TokenizerConfig, RefusesIdsOutOfRange) {
  for (const char* id :
       {"-1", "2147483648", "4294967297", "18446744073709551615", "1.5", "true", "\"1\"", "1e3"}) {
    nlohmann::json json = valid();
    json["bos"] = nlohmann::json::parse(id);
    EXPECT_NE(config_refusal(json).find("\"bos\" is not a whole number from 0 to"),
              std::string::npos)
        << id;
    json = valid();
    json["eos"] = nlohmann::json::parse(std::string("[2, ") + id + "]");
    EXPECT_NE(config_refusal(json).find("\"eos[1]\" is not a whole number from 0 to"),
              std::string::npos)
        << id;
  }
}

TEST(TokenizerConfig, RefusesAnUnknownKind) {
  nlohmann::json json = valid();
  json["kind"] = "sentencepiece";
  EXPECT_EQ(config_refusal(json),
            "model.bin: tokenizer: \"kind\" is not \"compiled\", the only one that this version "
            "knows; convert the checkpoint again");
}

}  // namespace
}  // namespace faststream::convert
