#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <sstream>
#include <thread>

#include "cli/run_program.h"
#include "cli/tiny_adapters.h"
#include "golden/golden_data.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/effort.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

class ConvertProgram : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "model");
    write_hf_folder(folder_ / "model", tiny_config(), tiny_tensors(DType::bf16));
  }
  // Runs faststream-convert; nothing may come on stdout.
  ProgramResult convert(std::vector<std::string> args) const {
    args.insert(args.begin(), "faststream-convert");
    ProgramResult result = run_program(args);
    EXPECT_EQ(result.out, "");
    return result;
  }
  // A failure: one line that begins with the program's name, the exit code, and no output.
  void expect_failure(const std::vector<std::string>& args, int code, const char* words) const {
    const ProgramResult result = convert(args);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(result.err.rfind("faststream-convert: ", 0), 0U) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  TemporaryFolder folder_;
  std::string model_ = folder_ / "model";
  std::string out_ = folder_ / "m.bin";
};

TEST_F(ConvertProgram, ShowsFormatsOfCodes) {
  const ProgramResult converted =
      convert({model_, "-o", out_, "--dtype", "int4-g64", "--keep", "down=mxfp4"});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_NE(converted.err.find("int4-g64 error relative"), std::string::npos) << converted.err;
  const ProgramResult shown = run_program({"faststream-convert", "--show", out_});
  const auto line_of = [&](const std::string& name) {
    const size_t begin = shown.out.find(name);
    return shown.out.substr(begin, shown.out.find('\n', begin) - begin);
  };
  EXPECT_NE(line_of("layers.1.ffn_down").find("mxfp4"), std::string::npos) << shown.out;
  EXPECT_NE(line_of("layers.1.ffn_gate_up").find("int4-g64"), std::string::npos) << shown.out;
}

TEST_F(ConvertProgram, KeepsMoreBitsOfNarrowModelsUnlessToldNotTo) {
  const auto qkv_with = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {model_, "-o", out_, "--force", "--dtype", "int4", "-q"});
    EXPECT_EQ(convert(options).err, "");
    const std::string shown = run_program({"faststream-convert", "--show", out_}).out;
    const size_t begin = shown.find("layers.0.attention_qkv");
    return shown.substr(begin, shown.find('\n', begin) - begin);
  };
  EXPECT_NE(qkv_with({}).find("int8"), std::string::npos);
  EXPECT_NE(qkv_with({"--keep", "none"}).find("int4"), std::string::npos);
  EXPECT_NE(qkv_with({"--keep", "down=int8"}).find("int4"), std::string::npos) << "instead";
}

TEST_F(ConvertProgram, PutsAHeadOfEagleBesideTheModel) {
  const std::string model = golden_root() / "gqa";
  const std::string head = golden_root() / "eagle/midlayer";
  const ProgramResult checked =
      run_program({"faststream-convert", "--check", model, "--eagle", head});
  EXPECT_NE(checked.out.find("of 50 tokens; reads the streams after 1, 2, 3 layers"),
            std::string::npos)
      << checked.out << checked.err;
  const ProgramResult converted = convert({model, "-o", out_, "--eagle", head});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_NE(converted.err.find("added to predict further tokens: 13 tensors of midlayer"),
            std::string::npos)
      << converted.err;
  const auto text = [&](const std::string& how) {
    return run_program({"faststream-run", "-m", out_, "-p", "hello", "--device", "cpu", "-n", "20",
                        "--temp", "0", "--ignore-eos", "--speculate", how});
  };
  const ProgramResult drafted = text("mtp");
  EXPECT_EQ(drafted.exit_code, 0) << drafted.err;
  EXPECT_EQ(drafted.out, text("off").out);
  std::filesystem::remove(out_);
  expect_failure({model, "-o", out_, "--eagle", head, "--no-mtp"}, 2, "do not go together");
  expect_failure({model, "-o", out_, "--eagle", model_}, 1, "2 layers");
  expect_failure({model, "-o", out_, "--eagle", folder_ / "none"}, 1, "holds no config.json");
}

TEST_F(ConvertProgram, TakesNoEmptyList) {
  expect_failure({model_, "-o", out_, "--dtype", "int4", "--keep", ""}, 2, "--keep: is empty");
}

TEST_F(ConvertProgram, MergesAdapters) {
  const std::string lora = folder_ / "lora";
  std::filesystem::create_directory(lora);
  write_bytes(folder_ / "lora/adapter_config.json", R"({"peft_type": "LORA", "r": 2})");
  const auto write_factors = [&](const std::string& module) {
    write_bytes(folder_ / "lora/adapter_model.safetensors",
                safetensors_bytes({{"base_model.model." + module + ".lora_A.weight",
                                    {DType::f32, {2, 16}, random_values(32, 1)}},
                                   {"base_model.model." + module + ".lora_B.weight",
                                    {DType::f32, {16, 2}, random_values(32, 2)}}}));
  };
  write_factors("model.layers.0.self_attn.q_proj");
  const ProgramResult converted = convert({"--lora", lora, "--lora", lora, model_, "-o", out_});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_NE(converted.err.find("merged: lora: 1 tensor changed, of rank 2\n"), std::string::npos)
      << converted.err;
  const ProgramResult shown = run_program({"faststream-convert", "--show", out_});
  EXPECT_NE(shown.out.find(R"(["lora","lora"])"), std::string::npos) << shown.out;
  const ProgramResult checked =
      run_program({"faststream-convert", "--check", model_, "--lora", lora});
  EXPECT_NE(checked.out.find("merged         lora: 1 tensor changed"), std::string::npos)
      << checked.out;
  std::filesystem::remove(out_);
  expect_failure({model_, "-o", out_, "--lora", ""}, 2, "--lora: is empty");
  write_factors("model.layers.7.self_attn.q_proj");
  expect_failure({model_, "-o", out_, "--lora", lora}, 1, "layers.7.self_attn.q_proj");
}

TEST_F(ConvertProgram, ConvertsShowsAndVerifies) {
  const ProgramResult converted = convert({model_, "-o", out_, "--dtype", "int8"});
  EXPECT_EQ(converted.exit_code, 0);
  EXPECT_NE(converted.err.find("wrote " + out_), std::string::npos) << converted.err;
  EXPECT_NE(converted.err.find("worst"), std::string::npos) << converted.err;
  EXPECT_EQ(converted.err.find('\r'), std::string::npos) << "a progress bar without a terminal";

  const ProgramResult shown = run_program({"faststream-convert", "--show", out_});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_NE(shown.out.find("layers.1.ffn_down.scales"), std::string::npos);
  EXPECT_EQ(shown.err, "");

  const ProgramResult verified = run_program({"faststream-convert", "--verify", out_});
  EXPECT_EQ(verified.exit_code, 0);
  std::string bytes = read_bytes(out_);
  bytes.back() ^= 1;
  write_bytes(out_, bytes);
  const ProgramResult damaged = run_program({"faststream-convert", "--verify", out_});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_EQ(damaged.out, "");
  EXPECT_NE(damaged.err.find("checksum"), std::string::npos);
}

TEST_F(ConvertProgram, KeepsTheSamplingThatTheCheckpointRecommends) {
  write_bytes(model_ + "/generation_config.json",
              R"({"do_sample": false, "top_k": 7, "repetition_penalty": null, "pad_token_id": 0})");
  EXPECT_EQ(convert({model_, "-o", out_, "--quiet"}).exit_code, 0);
  const ProgramResult shown = run_program({"faststream-convert", "--show", out_});
  EXPECT_NE(shown.out.find("sampling\n  temperature            0\n  top_k                  7\n"),
            std::string::npos)
      << shown.out;
  const auto drawn = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"faststream-run", "-m", out_, "-p", "a", "-n", "12", "--device",
                               "cpu", "--ignore-eos"});
    return run_program(more).out;
  };
  const std::string greedy = drawn({"--temp", "0"});
  EXPECT_EQ(drawn({"--seed", "1"}), greedy);
  EXPECT_NE(drawn({"--seed", "1", "--temp", "100"}), greedy);
}

TEST_F(ConvertProgram, ChecksACheckpointWithoutWriting) {
  const ProgramResult sound =
      run_program({"faststream-convert", "--check", model_, "--dtype", "int8"});
  EXPECT_EQ(sound.exit_code, 0);
  EXPECT_EQ(sound.err, "");
  for (const char* words : {": can be converted", "llama", "2 layers, hidden 16", "BF16",
                            "SentencePiece", "begin with 1; end with 2", "weights in int8"}) {
    EXPECT_NE(sound.out.find(words), std::string::npos) << words << " in\n" << sound.out;
  }
  std::filesystem::remove(folder_ / "model" / "tokenizer.model");
  expect_failure({"--check", model_}, 1, "neither tokenizer.json nor tokenizer.model");
  expect_failure({"--check", model_, "-o", out_}, 2, "--output");
  expect_failure({"--check", model_, "--show", out_}, 2, "--show");
  EXPECT_EQ(folder_.entries(), 1U) << "nothing but the checkpoint";
}

TEST_F(ConvertProgram, WarnsOfAChatTemplateThatCannotBeUsed) {
  write_bytes(folder_ / "model" / "chat_template.jinja", "{% for \x1B %}");
  const ProgramResult checked = run_program({"faststream-convert", "--check", model_});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_NE(checked.out.find("unusable: "), std::string::npos) << checked.out;
  const ProgramResult converted = convert({model_, "-o", out_, "--quiet"});
  EXPECT_EQ(converted.exit_code, 0);
  EXPECT_NE(converted.err.find("its chat template, line 1"), std::string::npos) << converted.err;
  EXPECT_EQ(converted.err.find('\n'), converted.err.size() - 1) << "one line";
  EXPECT_EQ(converted.err.find('\x1B'), std::string::npos);
}

TEST_F(ConvertProgram, TellsOfSettingsThatItDoesNotTakeOver) {
  write_bytes(folder_ / "model" / "generation_config.json",
              R"({"num_beams": 4, "typical_p": 0.5, "temperature": 0.7})");
  const ProgramResult checked = run_program({"faststream-convert", "--check", model_});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_NE(checked.out.find("not taken over"), std::string::npos) << checked.out;
  EXPECT_NE(checked.out.find("typical_p, num_beams\n"), std::string::npos) << checked.out;
  const ProgramResult converted = convert({model_, "-o", out_});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_NE(
      converted.err.find("settings of generation that are not taken over: typical_p, num_beams\n"),
      std::string::npos)
      << converted.err;
}

TEST_F(ConvertProgram, SaysWhatIsNoCheckpoint) {
  ASSERT_EQ(convert({model_, "-o", out_, "--quiet"}).exit_code, 0);
  const std::string other = folder_ / "other.bin";
  const auto refusal = [&](const std::string& path) { return convert({path, "-o", other}).err; };
  EXPECT_NE(refusal(out_).find("m.bin: is a model file already"), std::string::npos);
  write_bytes(folder_ / "notes.txt", "Notes of no use, longer than a header would be.");
  EXPECT_NE(refusal(folder_ / "notes.txt").find("notes.txt: is no checkpoint, neither a"),
            std::string::npos);
}

TEST_F(ConvertProgram, IsSilentWhenQuiet) {
  const ProgramResult result = convert({model_, "-o", out_, "--quiet"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(ConvertProgram, ExitsWith1WhenItCannotConvert) {
  expect_failure({folder_ / "none", "-o", out_}, 1, "no such checkpoint");
  expect_failure({model_, "-o", folder_ / "none" / "m.bin"}, 1, "cannot create");
  write_bytes(folder_ / "model" / "config.json", "no");
  expect_failure({model_, "-o", out_}, 1, "config.json: not valid JSON");
}

TEST_F(ConvertProgram, ExitsWith2WhenTheCommandMakesNoSense) {
  expect_failure({}, 2, "CHECKPOINT");
  expect_failure({model_}, 2, "-o FILE");
  expect_failure({model_, "-o", ""}, 2, "--output: is empty");
  expect_failure({model_, "-o", "-"}, 2, "--output: - is not standard output");
  expect_failure({model_, "-o", out_, "--dtype", "int3"}, 2, "--dtype");
  expect_failure({model_, "-o", out_, "--dtype", "u8"}, 2, "--dtype");
  expect_failure({model_, "-o", out_, "--keep-output"}, 2, "--keep-output");
  for (const char* threads : {"0", "-1", "100000", "many", "1.5"}) {
    expect_failure({model_, "-o", out_, "-t", threads}, 2, "--threads");
  }
  expect_failure({model_, "-o", out_, "--nonsense"}, 2, "--nonsense");
  expect_failure({model_, "--show", out_}, 2, "--show");
  expect_failure({"--show", out_, "--dtype", "int8"}, 2, "--dtype and --show do not go together");
}

TEST_F(ConvertProgram, CalibratesWithAText) {
  const std::string text = folder_ / "text.txt";
  write_bytes(text, "abcdefgh");
  const ProgramResult result =
      convert({model_, "-o", out_, "--dtype", "int4", "--calibrate", text, "--device", "cpu"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("calibrated: the inputs of 6 of 6 matrices in int4 are known"),
            std::string::npos)
      << result.err;
  std::filesystem::remove(out_);
  for (const char* type : {"bf16", "int8", "nf4"}) {
    for (const char* option : {"--calibrate", "--imatrix"}) {
      expect_failure(
          {model_, "-o", out_, "--dtype", type, option, text}, 2,
          (std::string(option) + ": has a meaning only where weights become int4").c_str());
    }
  }
  write_bytes(text, "");
  expect_failure({model_, "-o", out_, "--dtype", "int4", "--calibrate", text}, 1,
                 "text.txt is empty");
  expect_failure({model_, "-o", out_, "--dtype", "int4", "--calibrate", folder_ / "none"}, 1,
                 "--calibrate");
  expect_failure({model_, "-o", out_, "--dtype", "int4", "--imatrix", text}, 1,
                 "no importance matrix");
  expect_failure({model_, "-o", out_, "--dtype", "int8", "--device", "cpu"}, 2, "--calibrate");
}

TEST_F(ConvertProgram, ExplainsItself) {
  const ProgramResult help = run_program({"faststream-convert", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Examples:"), std::string::npos);
  EXPECT_EQ(help.err, "");
}

TEST_F(ConvertProgram, LeavesNothingAndExitsWith130WhenInterrupted) {
  // Large enough to last until the signal comes.
  nlohmann::json config = tiny_config();
  TestTensors tensors = tiny_tensors(DType::f32);
  const int64_t ffn = kSanitized ? 200'000 : 1'000'000;
  config["intermediate_size"] = ffn;
  for (auto& [name, tensor] : tensors) {
    if (name.find(".mlp.") == std::string::npos) continue;
    tensor.shape[name.find("down_proj") == std::string::npos ? 0 : 1] = ffn;
    tensor.values.assign(static_cast<size_t>(ffn) * 16, 0.5F);
  }
  write_hf_folder(folder_ / "model", config, tensors);

  const std::string program = programs_folder() + "/faststream-convert";
  std::vector<std::string> args = {program, model_, "-o", out_, "--quiet", "-t", "1"};
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ), 0);
  const std::string partial = out_ + ".partial-" + std::to_string(pid);
  while (!std::filesystem::exists(partial) && ::waitpid(pid, nullptr, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(pid, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_EQ(folder_.entries(), 1U);
}

TEST_F(ConvertProgram, MakesAdaptersThatRunBesideTheModel) {
  ASSERT_EQ(convert({model_, "-o", out_, "--dtype", "int8", "-q"}).exit_code, 0);
  write_adapters(folder_, out_);
  const std::string one = "one=" + std::string(folder_ / "one.bin");
  const std::string two = "two=" + std::string(folder_ / "two.bin");
  const auto run = [&](std::vector<std::string> args, const std::string& input = "") {
    args.insert(args.begin(), {"faststream-run", "-m", out_, "--device", "cpu"});
    return run_program(args, input);
  };
  const std::vector<std::string> prompt = {"-p", "abc", "-n", "20", "--temp", "0", "--ignore-eos"};
  const auto text_with = [&](std::vector<std::string> args) {
    args.insert(args.end(), prompt.begin(), prompt.end());
    const ProgramResult result = run(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.substr(0, result.out.size() - 1);
  };
  const std::string plain = text_with({});
  const std::string of_one = text_with({"--adapter", one});
  const std::string of_two = text_with({"--adapter", two, "--adapter", one});
  EXPECT_NE(plain, of_one);
  EXPECT_NE(plain, of_two);

  const std::string line = R"({"prompt":"abc","max_tokens":20,"temperature":0,"ignore_eos":true)";
  const ProgramResult batch =
      run({"--adapter", one, "--adapter", two, "--batch", "-"},
          line + "}\n" + line + R"(,"adapter":"two"})" + "\n" + line + R"(,"adapter":""})" + "\n" +
              line + R"(,"adapter":"three"})" + "\n");
  std::istringstream records(batch.out);
  const auto next = [&] {
    std::string record;
    std::getline(records, record);
    return nlohmann::json::parse(record);
  };
  EXPECT_EQ(next().at("text"), of_one);
  EXPECT_EQ(next().at("text"), of_two);
  EXPECT_EQ(next().at("text"), plain);
  EXPECT_NE(next().at("error").get<std::string>().find("\"adapter\" is \"three\""),
            std::string::npos);

  const auto answer_with = [&](std::vector<std::string> args, const std::string& input) {
    args.insert(args.end(), {"--chat", "--chat-template", "plain", "-n", "20", "--temp", "0"});
    return run(args, input).out;
  };
  EXPECT_EQ(answer_with({"--adapter", one, "--adapter", two}, "/adapter two\nabc\n"),
            answer_with({"--adapter", two}, "abc\n"));
  EXPECT_NE(answer_with({"--adapter", one}, "abc\n"), answer_with({"--adapter", two}, "abc\n"));

  EXPECT_EQ(run_program({"faststream-convert", "--verify", folder_ / "one.bin"}).exit_code, 0);
  const ProgramResult shown = run_program({"faststream-convert", "--show", folder_ / "one.bin"});
  EXPECT_NE(shown.out.find("layers.1.attention_out.b"), std::string::npos) << shown.out;
  const ProgramResult wrong = run({"--adapter", "one", "-p", "abc"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("\"one\" is not NAME=FILE"), std::string::npos) << wrong.err;
}

TEST_F(ConvertProgram, MakesAdaptersForModelsOfTheCheckpointAlone) {
  const std::string other = folder_ / "other.bin";
  std::filesystem::create_directory(folder_ / "other");
  TestTensors tensors = tiny_tensors(DType::bf16);
  tensors.at("model.layers.1.input_layernorm.weight").values[3] = 2;
  write_hf_folder(folder_ / "other", tiny_config(), tensors);
  ASSERT_EQ(convert({folder_ / "other", "-o", other, "-q"}).exit_code, 0);
  ASSERT_EQ(convert({model_, "-o", out_, "-q"}).exit_code, 0);
  write_adapters(folder_, out_);
  std::filesystem::remove(out_);
  const std::string lora = folder_ / "one-lora";
  expect_failure({model_, "--lora", lora, "--adapter-for", other, "-o", out_}, 1,
                 "was made of another checkpoint");
  expect_failure({model_, "--adapter-for", other, "-o", out_}, 2, "--lora");
  expect_failure({model_, "--lora", lora, "--adapter-for", other, "--dtype", "int8", "-o", out_}, 2,
                 "--dtype");
  const ProgramResult run = run_program({"faststream-run", "-m", other, "--adapter",
                                         "one=" + std::string(folder_ / "one.bin"), "-p", "abc"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("other weights than those of"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace faststream::convert
