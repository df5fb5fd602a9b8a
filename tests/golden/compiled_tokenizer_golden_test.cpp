#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "convert/tokenizers/tokenizer_json.h"
#include "golden/golden_data.h"
#include "text/tokenizer.h"
#include "text/tokenizer/compiled_tokenizer.h"
#include "unit/effort.h"

namespace faststream {
namespace {

using nlohmann::json;

std::string list_of(const std::vector<int32_t>& ids) {
  std::string list;
  for (const int32_t id : ids) list += (list.empty() ? "" : " ") + std::to_string(id);
  return list;
}

// Two digits for twelve bits of FNV-1a, as make_tokenizer_golden.py has it.
std::string digest(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  uint32_t value = 0x811C9DC5;
  for (const char byte : text) value = (value ^ static_cast<unsigned char>(byte)) * 0x01000193;
  value = (value ^ value >> 12 ^ value >> 24) & 0xFFF;
  return {kDigits[value >> 6], kDigits[value & 63]};
}

json tokenizer_of(const json& golden, const json& test_case) {
  json tokenizer = golden.at("bases").at(test_case.at("base"));
  for (const auto& [part, value] : test_case.at("changes").items()) {
    if (part == "model") {
      tokenizer["model"].update(value);
    } else {
      tokenizer[part] = value;
    }
  }
  return tokenizer;
}

TEST(CompiledTokenizer, EqualsHuggingFacesTokenizersOnAThousandStringsEach) {
  std::ifstream file(golden_root() / "tokenizers.json");
  const json golden = json::parse(file);
  for (const json& test_case : golden.at("cases")) {
    SCOPED_TRACE(test_case.at("name").get<std::string>());
    const convert::HfTokenizer read = convert::tokenizer_from_json(
        tokenizer_of(golden, test_case), json::object(), json::object(), "test");
    const std::string tables = compile_tokenizer(read.description, "test");
    const auto tokenizer =
        make_compiled_tokenizer(std::as_bytes(std::span(tables)), read.config, "test");
    const auto& expected = test_case.at("expected").get_ref<const std::string&>();
    for (size_t i = 0; i < golden.at("texts").size(); i += kSanitized ? 5 : 1) {
      const auto& text = golden.at("texts")[i].get_ref<const std::string&>();
      const Stretch stretch{.text = text, .from_template = true};
      const std::vector<int32_t> ids = tokenizer->encode_stretches(std::span(&stretch, 1));
      const std::vector<int32_t> plain = tokenizer->encode(text);
      const std::string decoded = tokenizer->decode(ids);
      ASSERT_EQ(digest(list_of(ids) + "|" + list_of(plain) + "|" + decoded),
                expected.substr(2 * i, 2))
          << json(text) << ": ids " << list_of(ids) << ", plain " << list_of(plain) << ", decoded "
          << json(decoded);
      ASSERT_LE(tokenizer->min_tokens(text, kCountAll), static_cast<int64_t>(plain.size()))
          << json(text);
    }
  }
}

}  // namespace
}  // namespace faststream
