// What the server makes of texts, without connections.
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "server/access_log.h"
#include "server/errors.h"
#include "server/generation_task.h"
#include "server/metrics.h"
#include "server/serve_options.h"
#include "support/base64.h"
#include "support/error.h"

namespace faststream::server {
namespace {

TEST(ServerErrors, NameTheMemberAtFault) {
  EXPECT_EQ(parameter_of("\"top_p\" is not a number from 0 to 1"), "top_p");
  EXPECT_EQ(parameter_of("unknown key \"x\"; leave it out"), "x");
  EXPECT_EQ(parameter_of("temperature must be a number"), "temperature");
  EXPECT_EQ(parameter_of("best_of, the samples to draw, must be n"), "best_of");
  EXPECT_EQ(parameter_of("the text \"mine\" is not what \"stop\" takes"), "");
  EXPECT_EQ(parameter_of("give \"seed\" as a number"), "seed");
  EXPECT_EQ(parameter_of("\"regex\": the regular expression \"(\" has a ( without its )"), "regex");
  EXPECT_EQ(parameter_of("something else"), "");
  EXPECT_EQ(parameter_of("an open \"quotation"), "");
}

TEST(ServerErrors, OfPromptsAreAboutThePrompt) {
  const ApiError error =
      error_of_request("the prompt has 5 tokens, but the context only 3", "messages");
  EXPECT_EQ(error.param, "messages");
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error_of_request("9 beams need as many slots", "prompt").param, "beams");
}

TEST(ServerErrors, AreJsonWhateverTheirText) {
  const auto json =
      nlohmann::json::parse(error_json({.status = 429, .message = "a \"b\"\n\xff"})).at("error");
  EXPECT_EQ(json.at("type"), "rate_limit_error");
  EXPECT_EQ(json.at("param"), nullptr);
}

TEST(ServeOptions, ReadNumbersOfBytes) {
  EXPECT_EQ(parse_bytes("4000", "--max-body"), 4000U);
  EXPECT_EQ(parse_bytes("500K", "--max-body"), size_t{500} << 10);
  EXPECT_EQ(parse_bytes("12G", "--memory"), size_t{12} << 30);
  for (const char* bad :
       {"", "0", "-1", "1.5G", "12Q", "12GB", "G", "99999999999999999999", "99999999999G"}) {
    EXPECT_THROW((void)parse_bytes(bad, "--memory"), UsageError) << bad;
  }
}

TEST(AccessLog, LinesAreOfOneLine) {
  AccessRecord record;
  record.peer = "127.0.0.1:5";
  record.method = "GET";
  record.path = "/a\nb\x1b[2J\"" + std::string(1000, 'x');
  record.status = 200;
  record.model = "m";
  const std::string text = access_line(record, LogFormat::text, {});
  EXPECT_EQ(text.find_first_of("\n\x1b"), std::string::npos) << text;
  EXPECT_TRUE(text.starts_with("1970-01-01T00:00:00.000Z 127.0.0.1:5 GET /a")) << text;
  EXPECT_LT(text.size(), 500U);
  const std::string json = access_line(record, LogFormat::json, {});
  EXPECT_EQ(nlohmann::json::parse(json).at("status"), 200);
  EXPECT_EQ(json.find_first_of("\n\x1b"), std::string::npos) << json;
}

TEST(AccessLog, SaysWhyADeviceFailed) {
  AccessRecord record;
  record.failure = "out of memory";
  EXPECT_TRUE(access_line(record, LogFormat::text, {}).ends_with(" failed: out of memory"));
  const auto line = nlohmann::json::parse(access_line(record, LogFormat::json, {}));
  EXPECT_EQ(line.at("failure"), "out of memory");
}

TEST(Metrics, HistogramsCountUpToTheirBounds) {
  static constexpr std::array kBounds = {0.1, 1.0};
  Histogram histogram(kBounds);
  for (const double value : {0.05, 0.1, 0.5, 7.0}) histogram.add(value);
  std::string text;
  histogram.write(text, "h", model_label("a\"b"));
  EXPECT_EQ(text,
            "faststream:h_bucket{model_name=\"a\\\"b\",le=\"0.1\"} 2\n"
            "faststream:h_bucket{model_name=\"a\\\"b\",le=\"1\"} 3\n"
            "faststream:h_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 4\n"
            "faststream:h_sum{model_name=\"a\\\"b\"} 7.65\n"
            "faststream:h_count{model_name=\"a\\\"b\"} 4\n");
}

TEST(Metrics, NamesOfModelsStayOnTheirLineAndAreUtf8) {
  EXPECT_EQ(model_label("a\nb\\\xFF"), "model_name=\"a\\nb\\\\\xEF\xBF\xBD\"");
}

TEST(Base64, IsDecodedFromWhatItWasEncodedTo) {
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foobar"), "Zm9vYmFy");
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes);
}

}  // namespace
}  // namespace faststream::server
