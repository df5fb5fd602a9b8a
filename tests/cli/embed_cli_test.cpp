// faststream-run --embed and --rank as a user starts them.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "run_program.h"
#include "stories.h"

namespace faststream {
namespace {

std::filesystem::path encoders() {
  const char* tests = std::getenv("FASTSTREAM_TEST_DATA");
  return std::filesystem::path(tests != nullptr ? tests : "tests") / "golden/encoders";
}

// A golden variant as a model file, once a process.
std::string encoder(const std::string& name, std::vector<std::string> more = {}) {
  const auto path = scratch_folder() / ("encoder-" + name + ".bin");
  if (std::filesystem::exists(path)) return path.string();
  std::vector<std::string> command = {"faststream-convert", (encoders() / name).string(), "-o",
                                      path.string(), "--quiet"};
  command.insert(command.end(), more.begin(), more.end());
  const ProgramResult result = run_program(command);
  if (result.exit_code != 0) throw std::runtime_error(result.err);
  return path.string();
}

std::string write_text(const std::string& name, const std::string& text) {
  const auto path = scratch_folder() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

ProgramResult embed(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> command = {"faststream-run", "-m", model, "--device", "cpu"};
  command.insert(command.end(), more.begin(), more.end());
  return run_program(command);
}

std::vector<nlohmann::json> lines_of(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<nlohmann::json> lines;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// One sentence on standard error, nothing on standard output.
void expect_refused(const ProgramResult& result, int exit_code, const std::string& mentions) {
  EXPECT_EQ(result.exit_code, exit_code);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
}

// In company products may add the same floats in another order.
void expect_alike(const nlohmann::json& got, const nlohmann::json& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].get<float>(), want[i].get<float>(), 1e-5) << what << ", element " << i;
  }
}

TEST(Embed, LinesAndJsonGiveTheVectorsThatTextsGiveAlone) {
  const std::string model = encoder("bert");
  const std::string lines =
      write_text("lines.txt", "The cat sat.\n\n{\"id\": \"b\", \"text\": \"A dog ran\"}\r\nmat");
  const auto all = lines_of(embed(model, {"--embed", "--batch", lines}));
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[2]["id"], "b");
  EXPECT_FALSE(all[0].contains("id"));
  const std::array<std::string, 4> texts = {"The cat sat.", "", "A dog ran", "mat"};
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(all[i]["index"], i);
    const auto alone = lines_of(embed(model, {"--embed", "-p", texts[i]}));
    ASSERT_EQ(alone.size(), 1U);
    expect_alike(all[i]["embedding"], alone[0]["embedding"], texts[i]);
    EXPECT_EQ(alone[0]["embedding"].size(), 36U);
  }
}

TEST(Embed, TakesTheNamesThatOtherProgramsGiveATextsMember) {
  const std::string model = encoder("bert");
  const std::string lines =
      write_text("lines.txt",
                 "{\"text\": \"a\"}\n{\"input\": \"a\"}\n{\"prompt\": \"a\"}\n"
                 "{\"text\": \"a\", \"input\": \"b\"}\n{\"id\": 1}\n");
  const auto all = lines_of(embed(model, {"--embed", "--batch", lines}));
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[1]["embedding"], all[0]["embedding"]);
  EXPECT_EQ(all[2]["embedding"], all[0]["embedding"]);
  EXPECT_EQ(all[3]["error"], "the line has two texts; leave one of them out");
  EXPECT_NE(all[4]["error"].get<std::string>().find("\"text\" is missing"), std::string::npos);
}

TEST(Embed, AnswersALineOfAPipeBeforeTheNextOneComes) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  ASSERT_EQ(pipe2(in.data(), O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  const Descriptor err("/dev/null", O_WRONLY);
  const pid_t pid = start_program(
      {"faststream-run", "-m", encoder("bert"), "--device", "cpu", "--embed", "--batch", "-"},
      in[0], out[1], err.fd());
  close(in[0]);
  close(out[1]);
  for (const char* line : {"A cat\n", "A dog\n"}) {
    ASSERT_EQ(write(in[1], line, std::strlen(line)), 6);
    pollfd answer{.fd = out[0], .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&answer, 1, 60'000), 1);
    std::array<char, 4096> buffer{};
    EXPECT_GT(read(out[0], buffer.data(), buffer.size()), 0);
  }
  close(in[1]);
  EXPECT_EQ(wait_for_program(pid), 0);
  close(out[0]);
}

TEST(Embed, RefusesAnIdThatIsNeitherATextNorAWholeNumber) {
  const std::string model = encoder("bert");
  for (const char* id : {"1.5", "18446744073709551616", "[1]", "true"}) {
    const std::string lines =
        write_text("lines.txt", std::string("{\"id\": ") + id + ", \"text\": \"a\"}\n");
    const auto all = lines_of(embed(model, {"--embed", "--batch", lines}));
    ASSERT_EQ(all.size(), 1U);
    EXPECT_NE(all[0].at("error").get<std::string>().find("\"id\" is not a text or a whole number"),
              std::string::npos)
        << all[0];
  }
}

TEST(Embed, GivesALineThatIsNoTextAnErrorInPlaceOfAVector) {
  const std::string model = encoder("bert");
  const std::string lines =
      write_text("lines.txt", "A cat\n{\"id\": 7, \"text\": 1}\n{\"text\"\n\xFF\nA dog\n");
  const ProgramResult result = embed(model, {"--embed", "--batch", lines});
  const auto all = lines_of(result);
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[1]["id"], 7);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["index"], i);
    EXPECT_EQ(all[i].contains("error"), i > 0 && i < 4) << all[i];
    EXPECT_EQ(all[i].contains("embedding"), i == 0 || i == 4) << all[i];
  }
  expect_alike(all[4]["embedding"],
               lines_of(embed(model, {"--embed", "-p", "A dog"}))[0]["embedding"], "A dog");
  EXPECT_EQ(result.err, "3 of 5 lines have an \"error\" in place of a result\n");
  const std::string path = (scratch_folder() / "broken.npy").string();
  expect_refused(embed(model, {"--embed", "--batch", lines, "--format", "npy", "-o", path}), 1,
                 "line 2");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Embed, ScoresTextsWithAClassifier) {
  const auto lines = lines_of(embed(encoder("xlm_roberta_rank"), {"--embed", "-p", "a dog"}));
  EXPECT_EQ(lines[0]["scores"].size(), 3U);
}

TEST(Embed, WritesANumPyFileOfTheSameNumbers) {
  const std::string model = encoder("bert");
  const std::string lines = write_text("lines.txt", "The cat sat.\nA dog\n");
  const auto want = lines_of(embed(model, {"--embed", "--batch", lines}));
  const std::string path = (scratch_folder() / "vectors.npy").string();
  std::filesystem::remove(path);
  const ProgramResult result =
      embed(model, {"--embed", "--batch", lines, "--format", "npy", "-o", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  const std::string file = read_file(path);
  const size_t header = file.find('\n') + 1;
  EXPECT_EQ(header % 64, 0U);
  EXPECT_NE(file.find("'shape': (2, 36)"), std::string::npos);
  ASSERT_EQ(file.size(), header + 2 * 36 * sizeof(float));
  for (size_t i = 0; i < size_t{2} * 36; ++i) {
    float value = 0;
    std::memcpy(&value, file.data() + header + i * sizeof value, sizeof value);
    EXPECT_EQ(value, want[i / 36]["embedding"][i % 36].get<float>());
  }
  for (const char* format : {"npy", "json"}) {
    expect_refused(embed(model, {"--embed", "-p", "a", "--format", format, "-o", path}), 1,
                   "exists already; give another file");
  }
  expect_refused(embed(model, {"--embed", "-p", "a", "--format", "npy", "-o", "/dev/full"}), 1,
                 "/dev/full");
  const ProgramResult piped =
      embed(model, {"--embed", "--batch", lines, "--format", "npy", "-o", "/dev/stdout"});
  EXPECT_EQ(piped.out, file);
}

TEST(Embed, SaysHowManyTextsWereCut) {
  const std::string model = encoder("bert");
  const std::string lines = write_text("lines.txt", "the cat sat on the mat\nthe cat\n");
  const ProgramResult result = embed(model, {"--embed", "--batch", lines, "--context", "6"});
  EXPECT_EQ(lines_of(result).size(), 2U);
  EXPECT_EQ(result.err, "1 of 2 texts are longer than 6 tokens and were cut there\n");
  expect_refused(embed(model, {"--embed", "-p", "a", "--context", "2"}), 2, "--context 2");
}

TEST(Embed, RefusesALengthThatLeavesNoRoomForWords) {
  const auto folder = scratch_folder() / "short-bert";
  std::filesystem::copy(encoders() / "bert", folder, std::filesystem::copy_options::recursive);
  std::ofstream(folder / "sentence_bert_config.json") << R"({"max_seq_length": 2})";
  const std::string model = (scratch_folder() / "short-bert.bin").string();
  ASSERT_EQ(run_program({"faststream-convert", folder.string(), "-o", model, "--quiet"}).err, "");
  expect_refused(embed(model, {"--embed", "-p", "a cat"}), 1, "cuts texts at 2 tokens");
}

TEST(Rank, ScoresAQueryWithEachLine) {
  const std::string model = encoder("bert_rank");
  const std::string lines = write_text("lines.txt", "the cat sat on the mat\nthe dog ran fast\n");
  const auto scores = lines_of(embed(model, {"--rank", "Was the dog fast?", "--batch", lines}));
  ASSERT_EQ(scores.size(), 2U);
  for (const auto& score : scores) {
    EXPECT_GT(score["score"].get<double>(), 0);
    EXPECT_LT(score["score"].get<double>(), 1);
  }
  const auto labels =
      lines_of(embed(encoder("xlm_roberta_rank"), {"--rank", "a dog", "-p", "the dog"}));
  EXPECT_EQ(labels[0]["scores"].size(), 3U);
  EXPECT_EQ(lines_of(embed(model, {"--rank", "", "-p", "the dog"})).size(), 1U);  // a query, too
}

TEST(Embed, EndsOnCtrlCWithWholeLines) {
  std::string texts;
  for (int i = 0; i < 200'000; ++i) texts += "Number " + std::to_string(i) + "\n";
  const std::string input = write_text("many.txt", texts);
  const std::filesystem::path output = scratch_folder() / "interrupted.jsonl";
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const pid_t program = start_program({"faststream-run", "-m", encoder("bert"), "--device", "cpu",
                                       "--embed", "--batch", input, "-o", output.string()},
                                      STDIN_FILENO, null, null);
  std::error_code ignored;
  while (!std::filesystem::exists(output) || std::filesystem::file_size(output, ignored) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(program, SIGINT);
  EXPECT_EQ(wait_for_program(program), 130);
  close(null);
  std::ifstream lines(output);
  size_t n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    EXPECT_FALSE(lines.eof()) << "cut: " << line;
    EXPECT_EQ(nlohmann::json::parse(line).at("index"), n);
  }
  EXPECT_GT(n, 0U);
  EXPECT_LT(n, 200'000U);
}

TEST(Embed, LeavesNoFileWhenANumPyFileIsInterrupted) {
  const auto folder = scratch_folder() / "interrupted-npy";
  std::filesystem::create_directories(folder);
  std::array<int, 2> lines{};
  ASSERT_EQ(pipe2(lines.data(), O_CLOEXEC), 0);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const pid_t program =
      start_program({"faststream-run", "-m", encoder("bert"), "--device", "cpu", "--embed",
                     "--format", "npy", "-o", (folder / "vectors.npy").string()},
                    lines[0], null, null);
  ASSERT_EQ(write(lines[1], "the\n", 4), 4);
  for (int unread = 4; unread > 0; std::this_thread::yield()) {
    ASSERT_EQ(ioctl(lines[0], FIONREAD, &unread), 0);
  }
  kill(program, SIGINT);
  EXPECT_EQ(wait_for_program(program), 130);
  for (const int fd : {lines[0], lines[1], null}) close(fd);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Embed, RefusesWhatAModelIsNotFor) {
  const std::string model = encoder("bert");
  expect_refused(embed(model, {"-p", "Once"}), 1, "--embed");
  expect_refused(embed(model, {"--chat", "-p", "Once"}), 1, "--embed");
  expect_refused(embed(encoder("bert_rank"), {"-p", "Once"}), 1, "--rank");
  expect_refused(embed(model, {"--rank", "a", "-p", "b"}), 1, "cross-encoder");
  EXPECT_EQ(embed(model, {"--embed", "-p", "a", "--temp", "0"}).err,
            "--temp has no effect with --embed\n");
  expect_refused(embed(model, {"--embed", "--chat"}), 2, "--chat");
  expect_refused(embed(model, {"-p", "a", "--format", "npy"}), 2, "--embed or --rank");
  if (!stories_folder().empty()) {
    expect_refused(embed(stories_model(), {"--embed", "-p", "a"}), 1, "gives no vectors");
  }
}

TEST(ConvertEncoder, AsksForAPoolingThatTheCheckpointDoesNotName) {
  const auto folder = scratch_folder() / "plain-bert";
  std::filesystem::copy(encoders() / "bert", folder, std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder / "modules.json");
  const std::string output = (scratch_folder() / "plain.bin").string();
  const auto convert = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"faststream-convert", folder.string(), "-o", output,
                                        "--quiet"};
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command);
  };
  expect_refused(convert({}), 1, "--pooling");
  expect_refused(convert({"--normalize"}), 2, "--pooling");
  EXPECT_EQ(convert({"--pooling", "mean", "--normalize"}).exit_code, 0);
  // But for the length at which texts are cut, it is what modules.json says.
  EXPECT_EQ(lines_of(embed(output, {"--embed", "-p", "A cat"}))[0],
            lines_of(embed(encoder("bert"), {"--embed", "-p", "A cat"}))[0]);
  std::filesystem::copy(encoders() / "bert/modules.json", folder / "modules.json");
  expect_refused(convert({"--pooling", "cls", "--force"}), 2, "says itself");
  EXPECT_EQ(convert({"--normalize", "--force"}).exit_code, 0);
  expect_refused(run_program({"faststream-convert", (encoders() / "bert_rank").string(), "-o",
                              output, "--normalize", "--force"}),
                 2, "makes vectors");
  std::filesystem::remove(folder / "1_Pooling/config.json");
  expect_refused(convert({"--force"}), 1, "1_Pooling");
}

}  // namespace
}  // namespace faststream
