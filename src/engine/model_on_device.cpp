#include "engine/model_on_device.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/device.h"
#include "engine/load_weights.h"
#include "support/error.h"
#include "text/tokenizer/compiled_tokenizer.h"

namespace faststream {
namespace {

void check_size(const ModelFile& file, const Tokenizer& tokenizer, int64_t vocab) {
  if (tokenizer.vocab_size() <= vocab) return;
  throw Error(file.name() + ": the tokenizer has " + std::to_string(tokenizer.vocab_size()) +
              " tokens, but the model only " + std::to_string(vocab) +
              "; convert with the checkpoint's own tokenizer");
}

// name: kTokenizer or kEncoderTokenizer.
std::shared_ptr<const Tokenizer> tokenizer_named(const std::string& name, const ModelFile& file,
                                                 const CheckInterrupted& check_interrupted) {
  const std::string where = file.name() + ": " + name;
  const TokenizerConfig config = tokenizer_config_from_json(file.section(name), where);
  const TensorInfo* model = file.find(name);
  if (model == nullptr || model->dtype != DType::u8) {
    throw Error(file.name() + ": the tokenizer is missing; convert the checkpoint again");
  }
  return make_compiled_tokenizer(file.bytes(*model), config, file.name(), check_interrupted);
}

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(const ModelFile& file, const ModelConfig& config,
                                                const CheckInterrupted& check_interrupted) {
  auto tokenizer = tokenizer_named(kTokenizer, file, check_interrupted);
  check_size(file, *tokenizer, config.vocab);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> make_prompt_tokenizer(const ModelFile& file,
                                                       const ModelConfig& config,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       const CheckInterrupted& check_interrupted) {
  if (config.encoder && file.header().contains(kEncoderTokenizer)) {
    tokenizer = tokenizer_named(kEncoderTokenizer, file, check_interrupted);
  }
  check_size(file, *tokenizer, config.prompt_vocab());
  return tokenizer;
}

ModelOnDevice::ModelOnDevice(const std::filesystem::path& path,
                             const CheckInterrupted& check_interrupted)
    : file(ModelFile::open(path)),
      config(without_predictors(read_config(file))),
      tokenizer(make_tokenizer(file, config, check_interrupted)) {}

size_t ModelOnDevice::weight_bytes() const { return weights_to_load(file, config).bytes.size(); }

void ModelOnDevice::place(
    const std::string& device, int32_t threads, size_t bytes, const LoadProgress& told,
    const std::function<void(const std::function<void(size_t)>& progress)>& load) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  backend = choose_backend(device, threads, bytes + kLeastRoom);
  std::function<void(size_t)> progress;
  if (told) progress = [&told, bytes](size_t done) { told(done, bytes); };
  load(progress);
  backend->synchronize();
  load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace faststream
