// Adapters for a small model, made by faststream-convert.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/run_program.h"
#include "unit/convert/checkpoint_files.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {

/// Has two adapters, which decide on all tokens, made beside `model`, which was made of `folder`'s
/// "model", a checkpoint of tiny_config(): one.bin and two.bin in the folder.
inline void write_adapters(const TemporaryFolder& folder, const std::string& model) {
  for (const char* name : {"one", "two"}) {
    const std::filesystem::path lora = folder / (std::string(name) + "-lora");
    std::filesystem::create_directory(lora);
    const uint32_t seed = 1000U * static_cast<unsigned char>(name[0]);
    const std::string module = "base_model.model.model.layers.1.self_attn.o_proj.lora_";
    const auto factor = [&](uint32_t salt) {
      std::vector<float> values = random_values(2 * 16, seed + salt);
      for (float& value : values) value *= 100;
      return values;
    };
    write_bytes(lora / "adapter_config.json", R"({"peft_type":"LORA","r":2,"lora_alpha":2})");
    write_bytes(lora / "adapter_model.safetensors",
                safetensors_bytes({{module + "A.weight", {DType::f32, {2, 16}, factor(1)}},
                                   {module + "B.weight", {DType::f32, {16, 2}, factor(2)}}}));
    const ProgramResult made =
        run_program({"faststream-convert", folder / "model", "--lora", lora, "--adapter-for", model,
                     "-o", folder / (std::string(name) + ".bin")});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_NE(made.err.find("changes 1 matrix of the model"), std::string::npos) << made.err;
  }
}

}  // namespace faststream::convert
