// faststream-bench as a user starts it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "run_program.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/engine/engine_model.h"
#include "unit/support/file_helpers.h"
#include "unit/support/set_variable.h"

namespace faststream {
namespace {

using nlohmann::json;

ProgramResult bench(const std::vector<std::string>& arguments, const std::string& device = "cpu") {
  std::vector<std::string> command = {"faststream-bench", "--shape", "llama-tiny", "--device",
                                      device};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command);
}

std::vector<json> measurements(std::vector<std::string> arguments,
                               const std::string& device = "cpu") {
  arguments.emplace_back("--json");
  const ProgramResult result = bench(arguments, device);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<json> objects;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
  return objects;
}

TEST(Bench, MeasuresANamedShape) {
  const ProgramResult result = bench({"--dtype", "int8", "--prompt", "33", "--sequences", "1,3",
                                      "--generate", "5", "--repeat", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("\nprefill"), std::string::npos);
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 5) << result.out;
}

TEST(Bench, TellsOfEachMeasurementWhatCeilingItReaches) {
  const std::vector<json> objects =
      measurements({"--prompt", "20,30", "--sequences", "2", "--depth", "10,200", "--generate", "4",
                    "--repeat", "1"});
  std::vector<std::string> kinds;
  for (const json& object : objects) {
    kinds.push_back(object.at("measurement"));
    EXPECT_EQ(object.at("model"), "llama-tiny");
    EXPECT_EQ(object.at("weights"), "int8");
    if (kinds.back() == "ceilings") continue;
    EXPECT_GT(object.at("tokens_per_second"), 0);
    EXPECT_GT(object.at("share"), 0);
    EXPECT_NEAR(object.at("share"),
                object.at("ceiling_seconds").get<double>() / object.at("seconds").get<double>(),
                1e-9);
  }
  EXPECT_EQ(kinds,
            (std::vector<std::string>{"ceilings", "prefill", "prefill", "decode", "decode"}));
  EXPECT_GT(objects[0].at("memory_bytes_per_second"), 0);
  EXPECT_EQ(objects[4].at("depth"), 200);
  // Each of 2 layers keeps 2 x 32 elements of a token, in 16 bits.
  EXPECT_EQ(objects[4].at("kv_bytes").get<double>() - objects[3].at("kv_bytes").get<double>(),
            2.0 * 190 * 2 * 64 * 2);
}

TEST(Bench, ShowsWhereTheTimeGoes) {
  const std::vector<json> objects = measurements(
      {"--prompt", "20", "--generate", "4", "--repeat", "1", "--profile", "--dtype", "bf16"});
  double share = 0;
  std::set<std::string> operations;
  for (const json& object : objects) {
    if (object.at("measurement") != "operation" || object.at("of") != "decode") continue;
    share += object.at("share_of_time").get<double>();
    operations.insert(object.at("operation"));
  }
  EXPECT_NEAR(share, 1, 1e-6);
  for (const std::string name :
       {"linear 128 x 64 bf16", "gated_linear 256 x 64 bf16", "attention over 17", "sample"}) {
    EXPECT_TRUE(operations.contains(name)) << name;
  }
  EXPECT_EQ(objects.back().at("measurement"), "profile");
}

TEST(Bench, ShowsWhatRanksExchange) {
  const std::vector<json> objects =
      measurements({"--prompt", "20", "--sequences", "3", "--generate", "4", "--repeat", "1",
                    "--profile", "--dtype", "f32"},
                   "cpu,cpu,cpu");
  constexpr double kOthers = 2;
  constexpr double kWidth = 64;  // of llama-tiny's rows
  int n_sums = 0;
  for (const json& object : objects) {
    if (object.at("measurement") != "operation") continue;
    const bool is_sum = object.at("operation") == "sum over ranks f32";
    EXPECT_EQ(object.contains("exchanged_bytes"),
              is_sum || object.at("operation") == "gather_columns f32")
        << object;
    if (!is_sum) continue;
    const auto calls = object.at("calls").get<double>();
    // Of a prompt the last sum is of the last token alone.
    const double rows = object.at("of") == "decode" ? 3 * calls : 20 * (calls - 1) + 1;
    EXPECT_EQ(object.at("exchanged_bytes").get<double>(), rows * kWidth * sizeof(float) * kOthers);
    ++n_sums;
  }
  EXPECT_EQ(n_sums, 2);
}

TEST(Bench, MeasuresStages) {
  const std::vector<json> steps = measurements(
      {"--pipeline", "2", "--prompt", "20", "--sequences", "3", "--generate", "4", "--repeat", "1"},
      "cpu,cpu");
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_NE(steps.back().at("device").get<std::string>().find("2 ranks in 2 stages"),
            std::string::npos)
      << steps.back();
  EXPECT_EQ(steps.back().at("measurement"), "decode");
  const std::vector<json> requests = measurements(
      {"--pipeline", "2", "--requests", "6", "--prompt", "5:40", "--generate", "3:9"}, "cpu,cpu");
  EXPECT_EQ(requests.back().at("requests"), 6);
  const ProgramResult refused = bench({"--pipeline", "2"}, "cpu,cpu,cpu");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("--pipeline 2: 3 ranks do not make"), std::string::npos)
      << refused.err;
}

TEST(Bench, RunsRequestsOfMixedLengthsThroughTheScheduler) {
  const std::vector<json> objects =
      measurements({"--requests", "12", "--prompt", "5:90", "--generate", "3:20", "--rate", "2000",
                    "--slots", "4"});
  ASSERT_EQ(objects.size(), 2U);
  const json& requests = objects[1];
  EXPECT_EQ(requests.at("measurement"), "requests");
  EXPECT_EQ(requests.at("requests"), 12);
  EXPECT_EQ(requests.at("slots"), 4);
  EXPECT_GE(requests.at("prompt_tokens"), 12 * 5);
  EXPECT_LE(requests.at("prompt_tokens"), 12 * 90);
  EXPECT_GE(requests.at("generated_tokens"), 12 * 3);
  EXPECT_LE(requests.at("generated_tokens"), 12 * 20);
  EXPECT_LE(requests.at("first_token_seconds_median"), requests.at("first_token_seconds_99"));
}

TEST(Bench, EndsOnASignalWhileItPreparesManyRequests) {
  std::array<int, 2> output{};
  ASSERT_EQ(pipe2(output.data(), O_CLOEXEC), 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const pid_t pid = start_program({"faststream-bench", "--shape", "llama-tiny", "--device", "cpu",
                                   "--json", "--requests", "10000000"},
                                  null, output[1], null);
  char first = 0;
  EXPECT_EQ(read(output[0], &first, 1), 1);  // the ceilings are measured
  kill(pid, SIGTERM);
  EXPECT_EQ(wait_for_program(pid), 130);
  for (const int end : {output[0], output[1], null}) close(end);
}

TEST(Bench, RefusesWhatDoesNotGoTogether) {
  const auto refuses = [](const std::vector<std::string>& arguments, const std::string& mentions) {
    const ProgramResult result = bench(arguments);
    EXPECT_EQ(result.exit_code, 2) << mentions;
    EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  };
  refuses({"--prompt", "5:7"}, "is for --requests");
  refuses({"--requests", "3", "--prompt", "7:5"}, "7:5 is not a range");
  refuses({"--requests", "3", "--prompt", "5,7"}, "one --prompt");
  refuses({"--requests", "3", "--prompt", "5:x"}, "x is not a whole number");
  refuses({"--requests", "3", "--profile"}, "--profile");
  refuses({"--requests", "3", "--prompt", "500", "--generate", "50"},
          "longer than the model allows");
  refuses({"--prompt", "20,513"},
          "prompts of up to 513 tokens are longer than the model allows, 512; give a smaller "
          "--prompt");
  refuses({"--depth", "20,500", "--generate", "9"},
          "sequences of up to 513 tokens are longer than the model allows, 512; give a smaller "
          "--depth or --generate");
  refuses({"--rate", "3"}, "--requests");
  refuses({"--requests", "3", "--rate", "nan"}, "nan is not a number");
}

TEST(Bench, SaysWhenSequencesHaveNoRoom) {
  const ProgramResult result =
      run_program({"faststream-bench", "--shape", "llama-3.2-3b", "--device", "cpu", "--sequences",
                   "4096", "--depth", "8000"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("smaller --depth"), std::string::npos) << result.err;
}

TEST(Bench, RefusesToMakeMoreInMemoryThanThereIs) {
  constexpr int64_t kWeightBytes = 282'000'000'000;
  if (int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE) > kWeightBytes) {
    GTEST_SKIP() << "there is so much memory";
  }
  const ProgramResult result = run_program(
      {"faststream-bench", "--shape", "llama-3-70b", "--dtype", "f32", "--device", "cpu"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("the weights of llama-3-70b take 282"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("a --dtype of fewer bits"), std::string::npos) << result.err;
}

TEST(Bench, RefusesAnUnknownShapeAndListsTheKnown) {
  const ProgramResult result = run_program({"faststream-bench", "--shape", "gpt-9"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("llama-2-7b"), std::string::npos);
}

// A tiny checkpoint, a text of its letters, and a folder of its own for temporary files.
class BenchQuality : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8}) {
      (void)engine_model(format);  // it stays, where temporary files are so far
    }
    for (const char* name : {"model", "temporary"})
      std::filesystem::create_directory(folder_ / name);
    convert::write_hf_folder(folder_ / "model", convert::tiny_config(),
                             convert::tiny_tensors(DType::f32));
    write_bytes(text_, repeat("abcdefghij", 20));
    variable_.emplace("TMPDIR", folder_ / "temporary");
  }
  void TearDown() override { EXPECT_TRUE(std::filesystem::is_empty(folder_ / "temporary")); }
  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {
        "faststream-bench", "--quality", text_, "--device", "cpu", "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  // By the row's name.
  static std::map<std::string, json> rows(const ProgramResult& result, int exit_code = 0) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    std::map<std::string, json> rows;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      const json object = json::parse(line);
      EXPECT_EQ(object.at("measurement"), "quality");
      rows[object.at("recipe")] = object;
    }
    return rows;
  }
  TemporaryFolder folder_;
  std::string model_ = folder_ / "model";
  std::string text_ = folder_ / "text.txt";
  std::optional<SetVariable> variable_;
};

TEST_F(BenchQuality, HasARowForEveryFormat) {
  const auto all = rows(run_program(command({"-m", model_, "--json"})));
  double divergence = 0;
  for (const WeightFormat format : kWeightFormats) {
    const std::string name(format_name(format));
    SCOPED_TRACE(name);
    ASSERT_TRUE(all.contains(name));
    const json& row = all.at(name);
    ASSERT_FALSE(row.contains("error")) << row;
    EXPECT_GT(row.at("bits_a_weight"), 4);
    EXPECT_GT(row.at("bytes"), 0);
    EXPECT_GT(row.at("tokens_per_second"), 0);
    EXPECT_EQ(row.contains("kl_mean"), format != WeightFormat::f32);
    if (format == WeightFormat::f32) continue;
    EXPECT_NEAR(row.at("perplexity_ratio"), 1, 0.2);
    EXPECT_GE(row.at("kl_99th"), row.at("kl_mean"));
    divergence += row.at("kl_mean").get<double>();
  }
  EXPECT_GT(divergence, 0);
  EXPECT_TRUE(all.contains("int8 --activation-bits 16"));

  const ProgramResult table =
      run_program(command({"-m", model_, "--recipe", "int8", "--recipe", "f16"}));
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(std::ranges::count(table.out, '\n'), 5) << table.out;
}

TEST_F(BenchQuality, TakesModelFilesAndRecipesWithOptionsOfTheConverter) {
  const auto files = rows(run_program(
      command({"-m", engine_model(WeightFormat::int8), "-m", engine_model(WeightFormat::bf16),
               "--against", engine_model(WeightFormat::f32), "--json"})));
  EXPECT_EQ(files.size(), 3U);
  EXPECT_GT(files.at(engine_model(WeightFormat::int8).string()).at("kl_mean"),
            files.at(engine_model(WeightFormat::bf16).string()).at("kl_mean"));

  const std::string calibrated = "int4 --calibrate " + text_;
  const auto recipes = rows(run_program(command({"-m", model_, "--json", "--recipe", calibrated})));
  EXPECT_EQ(recipes.size(), 2U);
  EXPECT_LT(recipes.at(calibrated).at("kl_mean"), 0.2);
}

TEST_F(BenchQuality, SaysOfACheckpointThatContinuesNoTexts) {
  const std::string encoder =
      std::string(std::getenv("FASTSTREAM_TEST_DATA")) + "/golden/encoders/bert";
  const ProgramResult result = run_program(command({"-m", encoder}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.find("faststream-bench: " + encoder + ": is an encoder"), 0U) << result.err;
}

TEST_F(BenchQuality, GoesOnAfterWhatCannotBeConverted) {
  convert::TestTensors tensors = convert::tiny_tensors(DType::f32);
  tensors.at("lm_head.weight").values[5] = 1e6F;  // more than f16 holds
  convert::write_hf_folder(folder_ / "model", convert::tiny_config(), tensors);
  const ProgramResult result =
      run_program(command({"-m", model_, "--json", "--recipe", "f16", "--recipe", "bf16"}));
  const auto all = rows(result, 1);
  EXPECT_NE(result.err.find("1 of 3 rows failed"), std::string::npos) << result.err;
  EXPECT_TRUE(all.at("f16").contains("error"));
  EXPECT_FALSE(all.at("bf16").contains("error"));
}

TEST_F(BenchQuality, RefusesWhatMakesNoSense) {
  const auto refuses = [&](const std::vector<std::string>& arguments, const std::string& mentions) {
    const ProgramResult result = run_program(command(arguments));
    EXPECT_EQ(result.exit_code, 2) << mentions;
    EXPECT_NE(result.err.find(mentions), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  };
  const std::string file = engine_model();
  refuses({}, "--model");
  refuses({"-m", file}, "needs the one that they are compared with, --against");
  refuses({"-m", file, "--against", file, "--recipe", "int8"}, "these are model files");
  refuses({"-m", file, "-m", model_, "--against", file}, "one checkpoint");
  refuses({"-m", model_, "--recipe", "int3"}, "no type of weights");
  refuses({"-m", model_, "--recipe", "int8 --keep-all"}, "none of faststream-convert's");
  refuses({"-m", model_, "--recipe", "int8 -o x"}, "options of faststream-convert that say how");
  refuses({"-m", model_, "--recipe", "int8 --lora x --adapter-for y"},
          "options of faststream-convert that say how");
  refuses({"-m", model_, "--recipe", "int4 --keep shared=int8"}, "names no tensors of this model");
  refuses({"-m", model_, "--profile"}, "--profile");
  const ProgramResult twice = run_program({"faststream-bench", "-m", file, "-m", file});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_NE(twice.err.find("only once"), std::string::npos) << twice.err;
}

TEST_F(BenchQuality, LeavesNothingBehindWhenItsReaderIsGone) {
  std::array<int, 2> output{};
  ASSERT_EQ(pipe2(output.data(), O_CLOEXEC), 0);
  close(output[0]);
  const Descriptor null("/dev/null", O_RDWR);
  const pid_t pid = start_program(command({"-m", model_}), null.fd(), output[1], null.fd());
  close(output[1]);
  EXPECT_EQ(wait_for_program(pid), 1);
}

TEST_F(BenchQuality, LeavesNothingBehindWhenInterrupted) {
  write_bytes(text_, repeat("abcdefghij", 20000));
  std::array<int, 2> output{};
  ASSERT_EQ(pipe2(output.data(), O_CLOEXEC), 0);
  const Descriptor null("/dev/null", O_RDWR);
  const pid_t pid = start_program(command({"-m", model_}), null.fd(), output[1], null.fd());
  close(output[1]);
  char first = 0;
  EXPECT_EQ(read(output[0], &first, 1), 1);  // it measures the reference
  kill(pid, SIGINT);
  EXPECT_EQ(wait_for_program(pid), 130);
  close(output[0]);
}

}  // namespace
}  // namespace faststream
