#include "convert/pipeline.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iomanip>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "convert/calibration/imatrix.h"
#include "convert/families/predictors.h"
#include "convert/huggingface/eagle_head.h"
#include "convert/kept_formats.h"
#include "convert/quantized/held_formats.h"
#include "convert/weights/tensor_factors.h"
#include "convert/weights/tensor_stream.h"
#include "model_file/model_writer.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/progress.h"
#include "support/thread_pool.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

bool makes_vectors(const ModelConfig& config) { return config.pooling && !config.pooling->scores; }

// An encoder without pooling makes nothing. That vectors have length 1 can be asked for where the
// checkpoint does not say it: a GGUF file never does.
void check_pooling(const SourceModel& source, const ConvertOptions& options) {
  const bool needs_pooling = source.config.output.none && !source.config.pooling;
  if (options.pooling && !needs_pooling) {
    throw UsageError("--pooling: " + source.weights.name() +
                     (source.config.pooling ? " says itself how vectors are made"
                                            : " is a model that writes text"));
  }
  if (!options.pooling && options.normalize && (needs_pooling || !makes_vectors(source.config))) {
    throw UsageError("--normalize: needs " +
                     std::string(needs_pooling ? "--pooling" : "a model that makes vectors"));
  }
  if (options.pooling || !needs_pooling) return;
  throw Error(source.weights.name() +
              ": is an encoder that does not say how vectors are made, as sentence-transformers' "
              "modules.json and GGUF's pooling_type do; name it with --pooling, mean most often");
}

nlohmann::json make_header(const SourceModel& source, const ModelConfig& config,
                           const fs::path& path) {
  nlohmann::json header = {
      {"model", config_to_json(config)},
      {kTokenizer, tokenizer_config_to_json(source.tokenizer.config)},
      {"provenance", provenance_of(source, path)},
  };
  if (source.encoder_tokenizer) {
    header[kEncoderTokenizer] = tokenizer_config_to_json(source.encoder_tokenizer->config);
  }
  if (!source.chat_template.is_null()) header["chat_template"] = source.chat_template;
  if (!source.special_tokens.is_null()) header["special_tokens"] = source.special_tokens;
  if (!source.sampling.is_null()) header["sampling"] = source.sampling;
  if (!source.answers.is_null()) header["answers"] = source.answers;
  if (is_integer(config.weight_format)) {
    const bool is_int8 = config.weight_format == WeightFormat::int8;
    header["quantization"] = {
        {"type", format_name(config.weight_format)},
        {"scheme", is_int8 ? "symmetric" : "levels by group of 32"},
        {"scales", is_int8 ? "one float32 for each output channel: max|w| / 127"
                           : "one float32 for each output channel"},
        {"rounding", "nearest"},
        {"rotated", config.rotated},
        {"values_rotated", config.values_rotated},
        {"activation_bits", config.activation_bits}};
  }
  return header;
}

std::vector<TensorSpec> make_specs(const SourceModel& source,
                                   const std::vector<TensorPlan>& plans) {
  std::vector<TensorSpec> specs;
  const auto add = [&](const char* name, const SourceTokenizer& tokenizer) {
    specs.push_back({name, DType::u8, {static_cast<int64_t>(tokenizer.tables.size())}});
  };
  add(kTokenizer, source.tokenizer);
  if (source.encoder_tokenizer) add(kEncoderTokenizer, *source.encoder_tokenizer);
  for (const TensorPlan& plan : plans) {
    specs.push_back({plan.name, plan.stored_as(), plan.stored_shape()});
  }
  return specs;
}

// Bytes of the checkpoint that the conversion will read.
uint64_t source_size(const SourceModel& source, const std::vector<TensorPlan>& plans) {
  uint64_t bytes = 0;
  for (const TensorPlan& plan : plans) {
    const auto parts = source.parts.find(plan.id);
    if (parts == source.parts.end()) continue;  // scales
    for (const TensorPart& part : parts->second) {
      const int64_t width = row_width(plan);
      for_each_summand(part, [&](const TensorPart& each) {
        if (each.source.empty()) return;
        bytes += source.weights.require(each.source, each.shape)
                     .format->bytes(part_rows(each, width) * source_width(each, width));
      });
    }
  }
  return bytes;
}

// Bytes of the checkpoint's tensors that have a place in the model file, each counted once: a tied
// embedding table becomes two tensors, a fused matrix is several parts.
uint64_t size_of_used_tensors(const SourceModel& source) {
  std::set<std::string_view> used;
  for (const auto& [name, parts] : source.parts) {
    for (const TensorPart& part : parts) {
      for_each_summand(part, [&](const TensorPart& each) {
        used.insert({each.source, each.projection.matrix});
      });
    }
  }
  uint64_t bytes = 0;
  for (const std::string_view name : used) {
    if (const SourceTensor* tensor = source.weights.find(name)) bytes += tensor->bytes();
  }
  return bytes;
}

// Matrices of integers among others are rotated, as everywhere.
void rotate_integers(ModelConfig& config) {
  config.rotated = config.rotated || is_integer(config.output_format) ||
                   std::ranges::any_of(config.formats, [](const FormatRule& rule) {
                     return is_integer(rule.format);
                   });
  for (ModelConfig& predictor : config.predictors) rotate_integers(predictor);
  if (!config.encoder) return;
  auto encoder = std::make_shared<ModelConfig>(*config.encoder);
  rotate_integers(*encoder);
  config.encoder = std::move(encoder);
}

void set_activation_bits(ModelConfig& config, int bits) {
  config.activation_bits = bits;
  config.rotated = bits == 8;
  config.values_rotated = config.rotated && is_integer(config.weight_format);
  if (bits == 16) {
    for (const TensorKind kind : kDownKinds) config.formats.push_back({kind, WeightFormat::bf16});
  }
  for (ModelConfig& predictor : config.predictors) set_activation_bits(predictor, bits);
  if (!config.encoder) return;
  auto encoder = std::make_shared<ModelConfig>(*config.encoder);
  set_activation_bits(*encoder, bits);
  config.encoder = std::move(encoder);
}

double relative_error(const TensorStream::Norms& norms) {
  return norms.squared_norm > 0 ? std::sqrt(norms.squared_error / norms.squared_norm) : 0.0;
}

// What keeps its bits of a checkpoint whose weights are to be as it has them; makes that of config.
KeptBits keep_own_bits(const SourceModel& source, const ConvertOptions& options,
                       ModelConfig& config) {
  if (options.format || options.decode) return {};
  return keep_bits(source, config);
}

// What the matrices in int4 are multiplied with, as far as that is known; null where nobody
// asked.
std::shared_ptr<const ActivationStatistics> statistics_of(const SourceModel& source,
                                                          const ModelConfig& config,
                                                          const ConvertOptions& options,
                                                          ConvertReport& report) {
  if (!options.imatrix && !options.statistics) return nullptr;
  const std::vector<TensorPlan> wanted = calibrated_matrices(config);
  auto statistics = options.statistics;
  if (options.imatrix) {
    statistics = std::make_shared<const ActivationStatistics>(
        read_imatrix(*options.imatrix, source, wanted));
  }
  report.n_calibrated = wanted.size();
  report.n_measured = static_cast<size_t>(std::ranges::count_if(wanted, [&](const auto& plan) {
    for (int64_t part = 0; part < ActivationStatistics::parts_of(plan); ++part) {
      if (statistics->find(plan.id, part) != nullptr) return true;
    }
    return false;
  }));
  return statistics;
}

// Of each kind of tensors the mean, worst kinds first.
void print_errors(const std::vector<QuantizationError>& errors, WeightFormat format,
                  std::ostream& out) {
  struct Mean {
    double sum = 0;
    int n = 0;
    [[nodiscard]] double value() const { return 100 * sum / n; }
  };
  Mean all;
  std::map<TensorKind, Mean> by_kind;
  const QuantizationError* worst = nullptr;
  for (const QuantizationError& error : errors) {
    if (error.format != format) continue;
    for (Mean* mean : {&all, &by_kind[error.kind]}) {
      mean->sum += error.relative;
      ++mean->n;
    }
    if (worst == nullptr || error.relative > worst->relative) worst = &error;
  }
  if (worst == nullptr) return;
  out << format_name(format) << " error relative to the weights: " << std::setprecision(3)
      << all.value() << "% on average over " << all.n << (all.n == 1 ? " tensor" : " tensors")
      << ", worst " << 100 * worst->relative << "% in " << worst->tensor << '\n';
  std::vector<std::pair<TensorKind, Mean>> kinds(by_kind.begin(), by_kind.end());
  if (kinds.size() < 2) return;
  std::ranges::stable_sort(kinds, std::greater(),
                           [](const auto& kind) { return kind.second.value(); });
  const char* before = "  by kind: ";
  for (const auto& [kind, mean] : kinds) {
    out << before << kind_name(kind) << ' ' << mean.value() << '%';
    before = ", ";
  }
  out << '\n';
}

}  // namespace

nlohmann::json provenance_of(const SourceModel& source, const fs::path& path) {
  // The name of the folder or file alone: the same checkpoint gives the same file everywhere.
  const fs::path plain = fs::absolute(path).lexically_normal();
  const fs::path name = plain.has_filename() ? plain : plain.parent_path();
  nlohmann::json provenance = {{"source", name.filename().string()},
                               {"converter", std::string("faststream ") + FASTSTREAM_VERSION}};
  for (const MergedAdapter& adapter : source.adapters) {
    provenance["adapters"].push_back(adapter.name);
  }
  if (!source.eagle.empty()) provenance["eagle"] = source.eagle;
  return provenance;
}

void check_output(const ConvertOptions& options) {
  std::error_code ignored;
  if (options.force || !fs::exists(options.output, ignored)) return;
  throw Error(options.output.string() +
              ": already exists; choose another name or overwrite it with --force");
}

SourceModel open_source(const ConvertOptions& options) {
  SourceModel source =
      open_source_model(options.checkpoint, options.tokenizer, options.adapters, options.task);
  if (options.no_mtp) leave_out_predictors(source);
  if (options.eagle) add_eagle_head(*options.eagle, source);
  validate(source.config, source.weights.name());  // whatever changed it since it was described
  return source;
}

ModelConfig target_config(const SourceModel& source, const ConvertOptions& options) {
  ModelConfig config = source.config;
  keep_own_bits(source, options, config);
  return target_config(config, options);
}

ModelConfig target_config(const ModelConfig& source, const ConvertOptions& options) {
  const WeightFormat format = options.format.value_or(source.weight_format);
  const bool to_integers = options.format && is_integer(format);
  if (options.keep_output && !to_integers) {
    throw UsageError("--keep-output: has a meaning only with --dtype int8 and int4");
  }
  if (!options.keep.empty() && is_float(format)) {
    throw UsageError(
        "--keep: has a meaning only where weights are quantized, as with --dtype int8");
  }
  if (options.activation_bits && !to_integers) {
    throw UsageError("--activation-bits: has a meaning only with --dtype int8 and int4");
  }
  ModelConfig config = source;
  if (options.pooling) {
    config.pooling = {.mode = *options.pooling, .normalize = options.normalize};
  } else if (options.normalize && config.pooling) {
    config.pooling->normalize = true;
  }
  if (!options.format) {
    // As the checkpoint has it.
  } else if (is_float(format)) {
    set_formats(config, format, format, format);
  } else if (is_coded(format)) {
    const WeightFormat table =
        source.embedding_format == WeightFormat::f16 ? WeightFormat::f16 : WeightFormat::bf16;
    set_formats(config, format, table, table);
  } else {
    using enum WeightFormat;
    const WeightFormat table = source.embedding_format == f16 ? f16 : bf16;
    // Beside layers of four bits the output matrix has eight: it is where rounding costs most.
    set_formats(config, format, table, options.keep_output ? table : int8);
    // A quantized output matrix cannot be the embedding table any more.
    config.output.tied = source.output.tied && options.keep_output;
    set_activation_bits(config, options.activation_bits.value_or(8));
  }
  const std::string kept =
      options.keep.empty() && to_integers ? usually_kept(config) : options.keep;
  if (!kept.empty() && kept != kKeepNone) keep_formats(kept, config);
  if (options.keep_output && !is_float(config.output_format)) {
    throw UsageError("--keep-output: --keep has the output matrix as " +
                     std::string(format_name(config.output_format)) + "; leave one of them out");
  }
  if (is_coded(format)) rotate_integers(config);
  if ((options.imatrix || options.statistics) && calibrated_matrices(config).empty()) {
    throw UsageError(std::string(options.imatrix ? "--imatrix: " : "--calibrate: ") + kOfInt4);
  }
  return config;
}

uint64_t model_size(const SourceModel& source, const ConvertOptions& options) {
  const ModelConfig config = target_config(source, options);
  return model_file_size(make_header(source, config, options.checkpoint),
                         make_specs(source, tensor_plan(config)));
}

namespace {

ModelWriter begin_output(const ConvertOptions& options, const nlohmann::json& header,
                         const std::vector<TensorSpec>& specs) {
  if (options.into != nullptr) return {*options.into, header, specs};
  return {options.output, header, specs, options.force};
}

}  // namespace

ConvertReport convert_checkpoint(const ConvertOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_output(options);
  const SourceModel source = open_source(options);
  source.files.refuse_as_output(options.output);
  check_pooling(source, options);
  ModelConfig own = source.config;
  const KeptBits kept = keep_own_bits(source, options, own);
  const ModelConfig config = target_config(own, options);
  const std::vector<TensorPlan> plans = tensor_plan(config);
  const std::vector<TensorSpec> specs = make_specs(source, plans);
  ConvertReport report;
  report.decoded = kept.decoded;
  const auto statistics = statistics_of(source, config, options, report);

  if (options.before_output) options.before_output();
  ModelWriter writer =
      begin_output(options, make_header(source, config, options.checkpoint), specs);
  writer.append(std::as_bytes(std::span(source.tokenizer.tables)));
  if (source.encoder_tokenizer) {
    writer.append(std::as_bytes(std::span(source.encoder_tokenizer->tables)));
  }

  ThreadPool pool(options.threads);
  TensorStream stream(
      source.weights, [&](std::span<const std::byte> bytes) { writer.append(bytes); }, pool);
  const uint64_t bytes_to_read = source_size(source, plans);
  ProgressBar progress("converting", ProgressBar::Unit::bytes, options.show_progress);
  const auto on_block = [&](uint64_t bytes_read) {
    progress.update(bytes_read, bytes_to_read);
    if (options.check_interrupted) options.check_interrupted();
  };
  TensorFactors factors(config, plans, source, stream, on_block);
  for (size_t n = 0; n < plans.size(); ++n) {
    const TensorPlan& plan = plans[n];
    const auto parts = source.parts.find(plan.id);
    if (parts == source.parts.end()) continue;  // scales, which follow their matrix by themselves
    const TensorStream::Norms norms =
        stream.add(plan, parts->second, factors.take(n), statistics.get(), on_block);
    if (is_float(plan.format)) continue;
    const auto held = kept.held.find(plan.id);
    const bool is_held = held != kept.held.end() && held->second == plan.format;
    if (is_held && norms.squared_error == 0) {
      ++report.kept[plan.format];
    } else {
      if (is_held) ++report.rounded;
      report.errors.push_back({plan.name, plan.id.kind, plan.format, relative_error(norms)});
    }
  }
  stream.flush();
  for (const InputFile& file : source.weights.files()) file.refuse_changed();
  writer.finish();

  report.output = options.output;
  report.source_files = source.weights.files().size();
  report.source_bytes = size_of_used_tensors(source);
  report.file_bytes = writer.file_size();
  report.n_tensors = specs.size();
  report.bits_a_weight = sizes_of(plans).bits_a_weight;
  report.left_out = source.left_out;
  report.adapters = source.adapters;
  report.predictors = source.predictors;
  report.has_eagle = !source.eagle.empty();
  report.untaken_settings = source.untaken_settings;
  report.chat_template_fault = source.chat_template_fault;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

void print_report(const ConvertReport& report, std::ostream& out) {
  std::ostringstream text;
  text << "wrote " << printable(report.output.string()) << ": " << format_bytes(report.file_bytes)
       << ", " << report.n_tensors << " tensors, " << std::fixed << std::setprecision(2)
       << report.bits_a_weight << " bits a weight\n";
  const auto speed =
      static_cast<uint64_t>(static_cast<double>(report.source_bytes) / report.seconds);
  text << "read " << format_bytes(report.source_bytes) << " of weights from " << report.source_files
       << (report.source_files == 1 ? " file in " : " files in ") << std::fixed
       << std::setprecision(report.seconds < 10 ? 2 : 0) << report.seconds << " s, "
       << format_bytes(speed) << "/s\n";
  for (const MergedAdapter& adapter : report.adapters) {
    text << "merged: " << to_text(adapter) << '\n';
  }
  if (!report.predictors.empty()) {
    text << (report.has_eagle ? "added" : "kept")
         << " to predict further tokens: " << to_text(report.predictors)
         << (report.has_eagle ? "\n" : " (--no-mtp leaves them out)\n");
  }
  if (!report.left_out.empty()) text << "left out: " << to_text(report.left_out) << '\n';
  if (!report.untaken_settings.empty()) {
    text << "settings of generation that are not taken over: " << to_text(report.untaken_settings)
         << '\n';
  }
  if (report.n_calibrated > 0) {
    text << "calibrated: the inputs of " << report.n_measured << " of " << report.n_calibrated
         << " matrices in int4 are known\n";
  }
  for (const auto& [format, count] : report.kept) {
    text << "kept as they are quantized: " << count << (count == 1 ? " matrix" : " matrices")
         << " in " << format_name(format) << '\n';
  }
  if (report.rounded > 0) {
    text << "rounded again: " << report.rounded
         << (report.rounded == 1 ? " quantized matrix with values"
                                 : " quantized matrices with values")
         << " that the format has not, as zero points beyond its codes\n";
  }
  if (report.decoded > 0) {
    text << "decoded: " << report.decoded
         << (report.decoded == 1 ? " quantized matrix that" : " quantized matrices that")
         << " no format holds exactly (columns in another order, as GPTQ's act-order has them, "
            "other groups or bits)\n";
  }
  for (const WeightFormat format : kWeightFormats) print_errors(report.errors, format, text);
  out << text.str();
}

}  // namespace faststream::convert
