// What a batch reads and writes: lines, records, the output file and a former run's results.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/batch/batch_output.h"
#include "cli/batch/batch_reader.h"
#include "cli/batch/batch_record.h"
#include "cli/batch/batch_resume.h"
#include "unit/support/file_helpers.h"

namespace faststream::cli {
namespace {

using nlohmann::json;

// A file of this text, open for reading.
class TextFile {
 public:
  explicit TextFile(std::string_view text) {
    write_bytes(path(), text);
    fd_ = open(path().c_str(), O_RDONLY);
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  ~TextFile() { close(fd_); }

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] std::filesystem::path path() const { return folder_ / "text"; }

 private:
  TemporaryFolder folder_;
  int fd_ = -1;
};

struct ReadLine {
  std::string text;
  bool too_long;
  bool ended;
  uint64_t position;
  bool operator==(const ReadLine&) const = default;
};
// GoogleTest knows it by this name.
void PrintTo(const ReadLine& line, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << line.text << ' ' << line.too_long << line.ended << ' ' << line.position;
}

std::vector<ReadLine> read_lines(std::string_view text, size_t max_bytes) {
  const TextFile file(text);
  LineReader reader(file.fd(), "text", max_bytes);
  std::vector<ReadLine> lines;
  while (const auto line = reader.next()) {
    EXPECT_EQ(line->number, lines.size() + 1);
    lines.push_back({std::string(line->text), line->too_long, line->ended, reader.position()});
  }
  return lines;
}

TEST(LineReader, ReadsLines) {
  EXPECT_EQ(read_lines("", 9), std::vector<ReadLine>{});
  EXPECT_EQ(read_lines("a\n\nbc", 9),
            (std::vector<ReadLine>{
                {"a", false, true, 2}, {"", false, true, 3}, {"bc", false, false, 5}}));
  EXPECT_EQ(read_lines("a\r\n", 9), (std::vector<ReadLine>{{"a\r", false, true, 3}}));
}

TEST(LineReader, KeepsOnlyTheStartOfALongLine) {
  EXPECT_EQ(read_lines("abcd\nabcde\nx\n", 4),
            (std::vector<ReadLine>{
                {"abcd", false, true, 5}, {"abcd", true, true, 11}, {"x", false, true, 13}}));
}

TEST(LineReader, ReadsLinesAcrossItsBlocks) {
  std::string text;
  std::vector<std::string> expected;
  for (size_t i = 0; i < 2000; ++i) {
    expected.emplace_back(i * 7919 % 1000, static_cast<char>('a' + i % 26));
    text += expected.back() + '\n';
  }
  const std::vector<ReadLine> lines = read_lines(text, 1000);
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i].text, expected[i]);
  EXPECT_EQ(lines.back().position, text.size());
}

TEST(LineReader, SaysWhatItCannotRead) {
  const TemporaryFolder folder;
  const int fd = open(folder.path().c_str(), O_RDONLY);
  LineReader reader(fd, "that folder", 9);
  EXPECT_TRUE(says(error_of([&] { reader.next(); }), "that folder", "cannot be read"));
  close(fd);
}

// Records. ----------------------------------------------------------------------------------------

std::string text_of(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) text += "<" + std::to_string(token) + ">";
  return text;
}

Result two_outputs() {
  Result result;
  result.outputs.resize(2);
  Output& one = result.outputs[0];
  one.text = "one \"1\"\n";
  one.tokens = {1, 2, 3};
  one.finish_reason = FinishReason::eos;
  one.logprobs.resize(2);
  one.logprobs[0] = {.chosen = {1, -0.25F}, .top = {{9, -0.1F}, {1, -0.25F}}};
  one.logprobs[1].chosen = {2, -1};
  Output& two = result.outputs[1];
  two.text = "two";
  two.tokens = {4};
  two.finish_reason = FinishReason::stop_string;
  result.prompt_tokens = 5;
  result.seed = 77;
  return result;
}

TEST(BatchRecord, TellsTheResultOfOneSample) {
  EXPECT_EQ(
      result_record({.id = "a", .line = 3, .line_hash = "0f"}, two_outputs(), text_of),
      R"({"id":"a","line":3,"line_hash":"0f","text":"one \"1\"\n","finish_reason":"eos","prompt_tokens":5,)"
      R"("completion_tokens":4,"seed":77})");
}

TEST(BatchRecord, TellsEachOfSeveralSamples) {
  EXPECT_EQ(
      result_record({.id = 8, .line = 3, .line_hash = "0f", .n = 2}, two_outputs(), text_of),
      R"({"id":8,"line":3,"line_hash":"0f","prompt_tokens":5,"completion_tokens":4,"seed":77,)"
      R"("choices":[)"
      R"({"text":"one \"1\"\n","finish_reason":"eos","completion_tokens":3},)"
      R"({"text":"two","finish_reason":"stop","completion_tokens":1}]})");
}

TEST(BatchRecord, TellsTheScoresOfABeamSearch) {
  Result result = two_outputs();
  result.outputs[0].score = -1.23456789;
  result.outputs[1].score = -2;
  const RecordHead head{.id = 1, .line = 1, .scores = true};
  EXPECT_EQ(json::parse(result_record(head, result, text_of)).at("score"), -1.234568);
  const RecordHead of_two{.id = 1, .line = 1, .n = 2, .scores = true};
  const json choices = json::parse(result_record(of_two, result, text_of)).at("choices");
  EXPECT_EQ(choices[0].at("score"), -1.234568);
  EXPECT_EQ(choices[1].at("score"), -2.0);
}

TEST(BatchRecord, TellsLogProbabilities) {
  const json record =
      json::parse(result_record({.id = 1, .line = 1, .logprobs = true}, two_outputs(), text_of));
  EXPECT_EQ(record.at("logprobs"), json::parse(R"([
    {"token":1,"text":"<1>","logprob":-0.25,
     "top":[{"token":9,"text":"<9>","logprob":-0.1},{"token":1,"text":"<1>","logprob":-0.25}]},
    {"token":2,"text":"<2>","logprob":-1.0}])"));
  const json choices = json::parse(
      result_record({.id = 1, .line = 1, .n = 2, .logprobs = true}, two_outputs(), text_of));
  EXPECT_FALSE(choices.contains("logprobs"));
  EXPECT_EQ(choices.at("choices")[0].at("logprobs"), record.at("logprobs"));
  EXPECT_EQ(choices.at("choices")[1].at("logprobs"), json::array());
}

TEST(BatchRecord, FindsToolCallsAmongSpecialTokensThatAreShown) {
  Result result = two_outputs();
  result.outputs.resize(1);
  result.outputs[0].text = R"({"name":"f","arguments":{}}</s>)";
  const RecordHead head{.id = 1, .line = 1, .has_tools = true, .show_special = true};
  const json record = json::parse(result_record(head, result, [](std::span<const int32_t>) {
    return std::string(R"({"name":"f","arguments":{}})");
  }));
  EXPECT_EQ(record.at("tool_calls")[0].at("function").at("name"), "f");
  EXPECT_EQ(record.at("text"), "");
  EXPECT_EQ(json::parse(result_record(head, result, text_of)).at("text"), result.outputs[0].text);
}

TEST(BatchRecord, TellsAnErrorAndTheId) {
  EXPECT_EQ(error_record({.id = "a", .line = 3, .line_hash = "0f"}, "no"),
            R"({"id":"a","line":3,"line_hash":"0f","error":"no"})");
}

TEST(BatchRecord, HasAHashOfTheLine) {
  EXPECT_EQ(line_hash(""), "2d06800538d394c2");  // as XXH3's authors have it
  EXPECT_NE(line_hash("a"), line_hash("b"));
}

TEST(BatchRecord, IsUtf8WhateverTheTextIs) {
  EXPECT_EQ(error_record({.id = 1, .line = 1, .line_hash = "0f"}, "\xFF!"),
            "{\"id\":1,\"line\":1,\"line_hash\":\"0f\",\"error\":\"\xEF\xBF\xBD!\"}");
}

// Resuming. ---------------------------------------------------------------------------------------

// The shortest result of a line.
std::string result_of(uint64_t line) {
  return "{\"line\":" + std::to_string(line) + ",\"error\":\"\"}\n";
}

DoneLines done_lines(std::string_view text) {
  const TextFile file(text);
  return {file.fd(), "out"};
}
std::string resume_error(std::string_view text) {
  return error_of([&] { done_lines(text); });
}

TEST(DoneLines, AreThoseOfWholeRecordsInAnyOrder) {
  const std::string whole =
      "{\"id\":\"c\",\"line\":3,\"text\":\"\"}\n{\"line\":1,\"error\":\"x\"}\n";
  const DoneLines done = done_lines(whole + R"({"id":4,"line":4,"text":"cut o)");
  EXPECT_EQ(done.size(), 2U);
  EXPECT_EQ(done.whole_bytes(), whole.size());
  EXPECT_TRUE(done.contains(1));
  EXPECT_FALSE(done.contains(2));
  EXPECT_TRUE(done.contains(3));
  EXPECT_FALSE(done.contains(4));
}

TEST(DoneLines, AreNoneInAnEmptyFile) {
  EXPECT_EQ(DoneLines().size(), 0U);
  EXPECT_EQ(done_lines("").size(), 0U);
  EXPECT_EQ(done_lines("{\"li").whole_bytes(), 0U);
}

TEST(DoneLines, MustHaveTheIdsOfTheInput) {
  const DoneLines done = done_lines(
      "{\"id\":\"1\",\"line\":1,\"error\":\"\"}\n{\"id\":2,\"line\":2,\"error\":\"\"}\n" +
      result_of(3));
  const auto error = [&](uint64_t line, const json& id) {
    return error_of([&] { done.check_same(line, id, "0f", 5); });
  };
  EXPECT_EQ(error(1, "1"), "");
  EXPECT_EQ(error(2, 2U), "");
  EXPECT_EQ(error(3, 3U), "");  // as an earlier version wrote it
  EXPECT_TRUE(says(error(1, 1U), "out", "line 1", "another id"));
}

TEST(DoneLines, MustBeOfTheSameTextAndSeedWhereTheySaySo) {
  const DoneLines done = done_lines(
      "{\"id\":1,\"line\":1,\"line_hash\":\"0f\",\"text\":\"\",\"seed\":5,\"x\":{\"seed\":6}}\n"
      "{\"id\":2,\"line\":2,\"line_hash\":\"0e\",\"error\":\"\"}\n");
  const auto error = [&](uint64_t line, const std::string& hash, std::optional<uint64_t> seed) {
    return error_of([&] { done.check_same(line, line, hash, seed); });
  };
  EXPECT_EQ(error(1, "0f", 5), "");
  EXPECT_EQ(error(1, "0f", std::nullopt), "");
  EXPECT_EQ(error(2, "0e", 7), "");
  EXPECT_TRUE(says(error(1, "0e", 5), "out", "line 1", "another line"));
  EXPECT_TRUE(says(error(1, "0f", 6), "out", "line 1", "another seed"));
  EXPECT_TRUE(says(error(2, "0f", 7), "out", "line 2", "another line"));
}

TEST(DoneLines, EndWithALineThatWasCutAnywhere) {
  const std::vector<std::string> records = {
      error_record({.id = "a\"\\", .line = 31, .line_hash = "0f"}, "no"),
      error_record({.id = -12, .line = 31, .line_hash = "0f"}, "no"),
      error_record({.id = 31, .line = 31, .line_hash = "0f"}, "no"),
      R"({"line":31,"line_hash":"0f","error":"no"})"};  // as an earlier version wrote it
  for (const std::string& record : records) {
    for (size_t bytes = 0; bytes <= record.find("line_hash"); ++bytes) {
      EXPECT_EQ(done_lines(record.substr(0, bytes)).size(), 0U) << bytes;
    }
  }
}

TEST(DoneLines, AreNotFollowedByWhatIsNoCutRecord) {
  for (const char* text :
       {"my note", "x", "[", "{ ", "{\n", "{\"a", "{\"id\": 1", "{\"id\":tr", "{\"id\":1}",
        "{\"id\":1,\"name\"", "{\"line\":x", "{\"line\":1}", "{\"line\": 1,", "{\"id\":\"a\" "}) {
    EXPECT_TRUE(says(resume_error(text), "out: line 1", "no result")) << text;
    EXPECT_TRUE(says(resume_error(result_of(1) + text), "out: line 2")) << text;
  }
}

TEST(DoneLines, MustBeLinesOfTheInput) {
  const DoneLines done = done_lines(result_of(2) + result_of(5));
  done.check_blank(1);
  done.check_end(5);
  EXPECT_TRUE(says(error_of([&] { done.check_blank(2); }), "out", "line 2", "blank"));
  EXPECT_TRUE(says(error_of([&] { done.check_end(4); }), "out", "line 5", "4 lines"));
}

TEST(DoneLines, RefuseWhatIsNoRecord) {
  for (const char* text :
       {"\n", "x\n", "[]\n", "{}\n", "{\"line\":1}\n", "{\"line\":0,\"error\":\"\"}\n",
        "{\"line\":-1,\"error\":\"\"}\n", "{\"line\":\"1\",\"error\":\"\"}\n",
        "{\"line\":1e3,\"error\":\"\"}\n", "{\"line\":1,\"id\":[],\"error\":\"\"}\n",
        "{\"line\":1,\"x\":1e999}\n", "{\"line\":1,\"text\":\"\xFF\"}\n"}) {
    EXPECT_TRUE(says(resume_error(text), "out: line 1", "no result")) << text;
  }
  EXPECT_TRUE(says(resume_error(result_of(7) + result_of(1) + result_of(7)), "out", "two", "7"));
}

// The output. -------------------------------------------------------------------------------------

TEST(BatchOutput, AppendsLines) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.jsonl";
  BatchOutput(path, false).write_line("one");
  BatchOutput(path, true).write_line("two");
  EXPECT_EQ(read_bytes(path), "one\ntwo\n");
}

TEST(BatchOutput, CutsOffWhatIsToBeReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.jsonl";
  write_bytes(path, "one\ntw");
  BatchOutput output(path, true);
  output.truncate(4);
  output.write_line("2");
  EXPECT_EQ(read_bytes(path), "one\n2\n");
}

TEST(BatchOutput, RefusesAFileWithResults) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.jsonl";
  write_bytes(path, "one\n");
  EXPECT_TRUE(says(error_of([&] { BatchOutput(path, false); }), path, "--resume"));
  EXPECT_EQ(error_of([&] { BatchOutput(path, false, "take another"); }),
            path + " exists already; take another");
  EXPECT_EQ(read_bytes(path), "one\n");
  write_bytes(path, "");
  EXPECT_EQ(error_of([&] { BatchOutput(path, false); }), "");
}

TEST(BatchOutput, IsNotTheInputUnderAnyName) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.jsonl";
  const std::string link = folder / "link";
  write_bytes(path, "");
  std::filesystem::create_hard_link(path, link);
  const BatchOutput output(path, false);
  const TextFile other("");
  const int same = open(link.c_str(), O_RDONLY);
  EXPECT_TRUE(says(error_of([&] { output.check_is_not(same, "in"); }), path, "same file", "in"));
  EXPECT_EQ(error_of([&] { output.check_is_not(other.fd(), "in"); }), "");
  close(same);
  const int null = open("/dev/null", O_RDONLY);
  const BatchOutput device("/dev/null", false);
  EXPECT_EQ(error_of([&] { device.check_is_not(null, "in"); }), "");
  close(null);
}

TEST(BatchOutput, RefusesAFileThatAnotherRunWrites) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.jsonl";
  const BatchOutput first(path, false);
  EXPECT_TRUE(says(error_of([&] { BatchOutput(path, true); }), path, "another run"));
}

TEST(BatchOutput, WaitsForARunThatEnds) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.jsonl";
  auto first = std::make_unique<BatchOutput>(path, false);
  std::thread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    first.reset();
  });
  EXPECT_EQ(error_of([&] { BatchOutput(path, true); }), "");
  ending.join();
}

TEST(BatchOutput, SaysWhatItCannotOpenOrWrite) {
  const TemporaryFolder folder;
  const std::string missing = folder / "no/out.jsonl";
  EXPECT_TRUE(says(error_of([&] { BatchOutput(missing, false); }), missing, "cannot be opened"));
  EXPECT_TRUE(says(error_of([] { BatchOutput("/dev/null", true); }), "/dev/null", "regular file"));
  EXPECT_TRUE(says(error_of([] { BatchOutput("/dev/full", false).write_line("x"); }), "/dev/full",
                   "No space left"));
}

}  // namespace
}  // namespace faststream::cli
