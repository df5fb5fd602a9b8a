#include "program/device_options.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/memory_plan.h"
#include "engine/ranks.h"
#include "engine/speculation.h"
#include "program/option_values.h"
#include "support/printable.h"

namespace faststream {
namespace {

void add_adapter_option(CLI::App& app, std::vector<AdapterOption>& adapters) {
  const auto parse = [&adapters](const CLI::results_t& texts) {
    for (const std::string& text : texts) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
        throw CLI::ValidationError("--adapter", in_quotes(text) + " is not NAME=FILE");
      }
      adapters.push_back({.name = text.substr(0, equals), .path = text.substr(equals + 1)});
    }
    return true;
  };
  app.add_option("--adapter", parse,
                 "A LoRA adapter beside the model, in a file made by faststream-convert "
                 "--adapter-for, that requests choose by NAME; the first one given is that of "
                 "requests that choose none (repeatable)")
      ->group(kDeviceGroup)
      ->type_name("NAME=FILE")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false);
}

}  // namespace

void add_device_options(CLI::App& app, EngineOptions& engine) {
  app.add_option("--device", engine.device,
                 "auto (a GPU if there is one with room for the model), cpu, cuda or cuda:N; or "
                 "several, cuda:0,1, that run the model together")
      ->group(kDeviceGroup)
      ->type_name("DEVICE")
      ->capture_default_str();
  const auto use_gpus = [&engine](const int& n) {
    engine.device = "cuda:0";
    for (int gpu = 1; gpu < n; ++gpu) engine.device += ',' + std::to_string(gpu);
  };
  app.add_option_function<int>("--gpus", use_gpus,
                               "The first N GPUs: the same as --device cuda:0,1,...")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number(1, kMostRanks))
      ->excludes("--device");
  app.add_option("--replicas", engine.replicas,
                 "So many of the model side by side, each with its part of the devices (of "
                 "faststream-run also the processes that mpirun has started) and of the requests")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number(1, kMostRanks))
      ->capture_default_str();
  app.add_option("--pipeline", engine.stages,
                 "The model's layers in so many parts, one after the other, each on as many of the "
                 "devices (of faststream-run also the processes that mpirun has started)")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number(1, kMostRanks))
      ->capture_default_str();
  app.add_flag("--exact-sums", engine.exact_sums,
               "Add up in 32 bits what several devices have computed, not in 16: slower")
      ->group(kDeviceGroup);
  app.add_option("-t,--threads", engine.threads, "CPU threads of a model [all]")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number(1, 1024));
  app.add_option("-c,--context", engine.context,
                 "Tokens of prompt and answer together, or at which encoders cut texts [the "
                 "model's, or what memory allows]")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number<int64_t>(1));
  app.add_option("--slots", engine.slots,
                 "Sequences that a model generates at once, up to 8192 [as device and memory "
                 "allow]")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number(1, kMaxSlots));
  app.add_option("--kv-tokens", engine.kv_tokens,
                 "Tokens of KV cache for all of a model's sequences [as memory allows]")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number<int64_t>(1));
  app.add_option("--kv", engine.kv,
                 "Keep the KV cache of whole texts in eight bits, int8 or fp8, half of what it "
                 "takes otherwise [16 bits]")
      ->group(kDeviceGroup)
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"int8", "fp8"}));
  app.add_option("--chunk", engine.chunk,
                 "Prompt tokens that a step takes beside running sequences at most, 4 to 2048 [as "
                 "many as take about 1 s]")
      ->group(kDeviceGroup)
      ->type_name("N")
      ->check(whole_number(kMinChunk, kMaxStepTokens));
  app.add_option(
         "--speculate", engine.speculate,
         "Several tokens of a text a step where that is faster, which changes no text: "
         "auto, off, lookup (what followed where the end of the text stood before), mtp "
         "(what heads that predict further tokens draw: the model's own, or one of EAGLE-3 "
         "that was converted with it) or draft=FILE (what a smaller model of the same tokenizer "
         "draws)")
      ->group(kDeviceGroup)
      ->type_name("HOW")
      ->check(accepted_by(speculation_from_name))
      ->capture_default_str();
  add_adapter_option(app, engine.adapters);
}

}  // namespace faststream
