// Jinja templates against Transformers' environment (make_jinja_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "golden/golden_data.h"
#include "support/error.h"
#include "support/json.h"
#include "text/jinja/from_json.h"
#include "text/jinja/template.h"

namespace faststream {
namespace {

using jinja::Template;

TEST(JinjaGolden, RendersAndRefusesAsTransformersDoes) {
  std::ifstream stream(golden_root() / "jinja.json");
  std::stringstream text;
  text << stream.rdbuf();
  const nlohmann::ordered_json golden = parse_ordered_json(text.str(), "jinja.json");
  const jinja::Value variables = jinja::from_json(golden.at("variables"), jinja::kFromUser);
  const jinja::LocalTime now{
      .year = 2026, .month = 3, .day = 1, .hour = 10, .minute = 20, .second = 30};
  for (const auto& entry : golden.at("templates")) {
    const auto source = entry.at(0).get<std::string>();
    nlohmann::ordered_json result;
    std::string error;
    try {
      result = Template(source, "test").render(*variables.dict(), now).bytes();
    } catch (const Error& refusal) {
      error = refusal.what();
    }
    EXPECT_EQ(result, entry.at(1)) << source << "\n" << error;
  }
}

}  // namespace
}  // namespace faststream
