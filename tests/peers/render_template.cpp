// Renders Jinja templates for jinja_templates.py, which compares them with Transformers.
//
//     render-template CASES.json
//
// CASES: [{"template": text, "variables": object}, ...]. Prints a JSON list of {"text": ...} or
// {"error": ...}. The clock stands at 2026-03-01 10:20:30.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "support/error.h"
#include "support/json.h"
#include "support/mapped_file.h"
#include "text/jinja/from_json.h"
#include "text/jinja/template.h"

namespace {

using faststream::jinja::Dict;
using faststream::jinja::Template;
using nlohmann::ordered_json;

ordered_json render(const ordered_json& test) {
  try {
    const Template program(test.at("template").get<std::string>(), "template");
    const auto variables =
        faststream::jinja::from_json(test.at("variables"), faststream::jinja::kFromUser);
    const auto text = program.render(
        *variables.dict(),
        {.year = 2026, .month = 3, .day = 1, .hour = 10, .minute = 20, .second = 30});
    return {{"text", text.bytes()}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: render-template CASES.json\n";
    return 2;
  }
  try {
    const faststream::MappedFile file(argv[1]);
    const auto bytes = file.bytes();
    const ordered_json cases = faststream::parse_ordered_json(
        {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, argv[1]);
    ordered_json results = ordered_json::array();
    for (const ordered_json& test : cases) results.push_back(render(test));
    std::cout << results.dump() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
