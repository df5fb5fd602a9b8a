// faststream-run --batch as a user starts it, with the bundled model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "run_program.h"
#include "stories.h"

namespace faststream {

using nlohmann::json;
namespace fs = std::filesystem;  // NOLINT(misc-unused-alias-decls)

/// demo/ converted by faststream-convert, once a process. In f32, where a text cannot depend on
/// what ran beside it: between products of few and of many rows there are only the last bits of a
/// float, while bf16 rounds some of those up to a difference of 2^-8.
inline std::string demo_model() {
  const fs::path path = scratch_folder() / "demo.bin";
  if (!fs::exists(path)) {
    const char* tests = std::getenv("FASTSTREAM_TEST_DATA");
    if (tests == nullptr) throw std::runtime_error("FASTSTREAM_TEST_DATA is not set");
    const ProgramResult result =
        run_program({"faststream-convert", (fs::path(tests).parent_path() / "demo").string(), "-o",
                     path.string(), "--dtype", "f32", "--quiet"});
    if (result.exit_code != 0) throw std::runtime_error(result.err);
  }
  return path.string();
}

inline fs::path file_with(const std::string& name, const std::string& text) {
  fs::path path = scratch_folder() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

inline std::string new_output(const std::string& name) {
  const fs::path path = scratch_folder() / name;
  fs::remove(path);
  return path.string();
}

inline std::vector<std::string> batch_args(const std::string& input,
                                           const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      "faststream-run", "-m", demo_model(), "--batch", input, "--device", "cpu",
      "--seed",         "5",  "-n",         "12"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

inline ProgramResult run_batch(const std::string& input, const std::vector<std::string>& more = {},
                               const std::string& stdin_text = "") {
  return run_program(batch_args(input, more), stdin_text);
}

/// Lines of an input, each with its own prompt, kind and length.
inline std::string many_lines(size_t count) {
  std::string text;
  for (size_t i = 1; i <= count; ++i) {
    json line = {{"prompt", "Tom has " + std::to_string(i) + " apples. "},
                 {"max_tokens", 4 + i * 7 % 13}};
    if (i % 5 == 0) line["n"] = 2;
    if (i % 11 == 0) line["topk"] = 1;  // an error
    if (i % 3 == 0) {
      line = {{"custom_id", "request-" + std::to_string(i)}, {"body", line}};
    } else if (i % 3 == 1) {
      line["id"] = "own-" + std::to_string(i);
    }
    text += line.dump() + '\n';
    if (i % 17 == 0) text += '\n';
  }
  return text;
}

inline std::vector<std::string> split(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline std::vector<json> records(const std::string& text) {
  std::vector<json> all;
  for (const std::string& line : split(text)) all.push_back(json::parse(line));
  return all;
}

inline std::vector<std::string> sorted(const std::string& text) {
  std::vector<std::string> lines = split(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

inline void expect_refusal(const ProgramResult& result, int exit_code,
                           const std::string& mentions) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
}

}  // namespace faststream
