// Models with an encoder as a user translates with them: small random ones, whose words mean
// nothing.

#include "batch_program.h"

namespace faststream {
namespace {

// A golden checkpoint with its tokenizer, as a user would have it, converted; once a process.
std::string translator(const std::string& name, const std::string& dtype = "f32") {
  const fs::path path = scratch_folder() / (name + "-" + dtype + ".bin");
  if (fs::exists(path)) return path.string();
  const char* tests = std::getenv("FASTSTREAM_TEST_DATA");
  if (tests == nullptr) throw std::runtime_error("FASTSTREAM_TEST_DATA is not set");
  const fs::path golden = fs::path(tests) / "golden" / "seq2seq";
  const fs::path folder = scratch_folder() / (name + "-" + dtype);
  fs::create_directories(folder);
  for (const fs::path& from : {golden / name, golden / "tokenizers" / name}) {
    for (const auto& file : fs::directory_iterator(from)) fs::copy(file, folder);
  }
  const ProgramResult result = run_program(
      {"faststream-convert", folder.string(), "-o", path.string(), "--dtype", dtype, "--quiet"});
  if (result.exit_code != 0) throw std::runtime_error(result.err);
  return path.string();
}

ProgramResult translate(const std::string& model, const std::vector<std::string>& more,
                        const std::string& stdin_text = "") {
  std::vector<std::string> args = {"faststream-run", "-m", model, "--device", "cpu"};
  args.insert(args.end(), more.begin(), more.end());
  return run_program(args, stdin_text);
}

TEST(Translation, IsTheSameInEveryModeAndForEveryType) {
  for (const char* dtype : {"f32", "bf16", "f16", "int8"}) {
    const std::string model = translator("marian", dtype);
    const ProgramResult prompt = translate(model, {"-p", "the cat sat", "-n", "12"});
    ASSERT_EQ(prompt.exit_code, 0) << prompt.err;
    EXPECT_EQ(translate(model, {"-n", "12"}, "the cat sat\n").out, prompt.out);
    const ProgramResult batch =
        translate(model, {"--batch", "-", "-n", "12"}, "the cat sat\na dog\nthe cat sat\n");
    const std::vector<json> all = records(batch.out);
    ASSERT_EQ(all.size(), 3U) << batch.err;
    EXPECT_EQ(all[0].at("text").get<std::string>() + "\n", prompt.out) << dtype;
    EXPECT_EQ(all[2].at("text"), all[0].at("text"));
    EXPECT_EQ(all[0].at("prompt_tokens"), all[2].at("prompt_tokens"));
  }
}

TEST(Translation, TakesLanguagesFromOptionsAndLines) {
  const std::string model = translator("m2m_100");
  const std::vector<std::string> french = {
      "-p", "the cat", "--source-lang", "en", "--target-lang", "fr", "--special", "-n", "9"};
  const ProgramResult result = translate(model, french);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("__fr__")) << result.out;
  const ProgramResult batch =
      translate(model, {"--batch", "-", "--special", "-n", "9"},
                R"({"prompt":"the cat","source_lang":"en","target_lang":"fr"})"
                "\n"
                R"({"prompt":"the cat","target_lang":"de","beams":3,"n":2})"
                "\n"
                R"({"prompt":"the cat","target_lang":"nowhere"})"
                "\n"
                R"({"prompt":"the cat","source_lang":""})"
                "\n");
  const std::vector<json> all = records(batch.out);
  ASSERT_EQ(all.size(), 4U) << batch.err;
  EXPECT_EQ(all[0].at("text").get<std::string>() + "\n", result.out);
  EXPECT_TRUE(all[1].at("choices")[1].at("text").get<std::string>().starts_with("__de__"));
  EXPECT_NE(all[2].at("error").get<std::string>().find(
                R"(no language "nowhere"; it has "nl", "no", "ns", "oc", "or" ()"),
            std::string::npos)
      << all[2];
  EXPECT_NE(all[3].at("error").get<std::string>().find("no language \"\""), std::string::npos);
}

TEST(Translation, OfMarianMayNameTheTargetInTheText) {
  const std::string model = translator("marian");
  const ProgramResult option = translate(model, {"-p", "the cat", "--target-lang", "deu"});
  ASSERT_EQ(option.exit_code, 0) << option.err;
  EXPECT_EQ(translate(model, {"-p", ">>deu<< the cat"}).out, option.out);
}

TEST(Translation, RefusesWhatTheModelCannot) {
  const std::string model = translator("marian");
  const auto refused = [&](const std::vector<std::string>& args, const std::string& says,
                           const std::string& input = "") {
    const ProgramResult result = translate(model, args, input);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.err.find(says), std::string::npos) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), result.err.starts_with("device:") ? 2 : 1)
        << result.err;
  };
  // A word, an end, and nothing are no languages.
  for (const char* name : {"cat", "</s>", ""}) {
    refused({"-p", "the cat", "--target-lang", name},
            R"(the model has no language ")" + std::string(name) + R"("; it has "deu", "nld" ()");
  }
  refused({"-p", "the cat", "--source-lang", "deu"}, "does not ask for the language of the source");
  const fs::path text = file_with("some.txt", "the cat sat on the mat");
  refused({"--perplexity", text.string()}, "--perplexity");
  std::string long_text;
  for (int i = 0; i < 100; ++i) long_text += "the cat ";
  refused({"-p", long_text}, "encoder reads only 80");
  const ProgramResult decoder = run_batch("-", {"--target-lang", "fr"}, "Tom\n");
  EXPECT_NE(decoder.out.find("only models with an encoder"), std::string::npos) << decoder.out;
}

}  // namespace
}  // namespace faststream
