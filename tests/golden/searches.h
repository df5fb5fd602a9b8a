// What tests of searches and of encoders share: checkpoints as model files, and the comparison of
// what an engine finds with what Transformers found.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "convert/pipeline.h"
#include "engine/engine.h"

namespace faststream {

/// A checkpoint as a model file; removed at the end.
class ConvertedCheckpoint {
 public:
  /// Sets options.output.
  explicit ConvertedCheckpoint(convert::ConvertOptions options) {
    static int made = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("faststream-converted-" + std::to_string(getpid()) + "-" + std::to_string(made++) +
             ".bin");
    options.output = path_;
    convert::convert_checkpoint(options);
  }
  ConvertedCheckpoint(const ConvertedCheckpoint&) = delete;
  ConvertedCheckpoint& operator=(const ConvertedCheckpoint&) = delete;
  ~ConvertedCheckpoint() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// texts: [[score, token, ...], ...]; of groups by Transformers 4, which writes the first of the
/// ends, the request's stop tokens, for any.
inline void expect_texts(Result result, const Request& request, const nlohmann::json& texts) {
  ASSERT_EQ(result.outputs.size(), texts.size());
  const std::vector<int32_t>& ends = request.stop_tokens;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto score = texts[i].at(0).get<double>();
    const std::vector<int32_t> expected(texts[i].begin() + 1, texts[i].end());
    std::vector<int32_t>& tokens = result.outputs[i].tokens;
    const bool has_end = std::ranges::find(ends, tokens.back()) != ends.end();
    if (request.search.groups > 1 && has_end) tokens.back() = ends.front();
    EXPECT_EQ(tokens, expected) << "text " << i;
    EXPECT_NEAR(result.outputs[i].score, score, 1e-4 * std::max(1.0, std::abs(score)));
  }
}

/// Requests of an engine and what is expected of them, all at once or one after the other.
class Searches {
 public:
  Searches(Engine& engine, bool together) : engine_(engine), together_(together) {}

  void submit(std::string name, const Request& request, std::function<void(Result)> expect) {
    cases_.push_back({std::move(name), engine_.submit(request), std::move(expect)});
    if (!together_) check();
  }

  /// What is left, and that the engine has its pages back.
  void finish(bool preempts) {
    check();
    if (preempts) {
      EXPECT_GT(engine_.stats().preemptions, 0);
    }
    EXPECT_EQ(engine_.stats().free_tokens, engine_.info().kv_tokens);
  }

 private:
  struct Case {
    std::string name;
    std::future<Result> result;
    std::function<void(Result)> expect;
  };

  void check() {
    for (Case& each : cases_) {
      SCOPED_TRACE(each.name);
      each.expect(each.result.get());
    }
    cases_.clear();
  }

  Engine& engine_;
  bool together_;
  std::vector<Case> cases_;
};

}  // namespace faststream
