#include "convert/command/show.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>

#include "convert/description.h"
#include "engine/adapter_file.h"
#include "engine/default_sampling.h"
#include "engine/load_weights.h"
#include "engine/loaded_model.h"
#include "engine/model_on_device.h"
#include "model_file/layout.h"
#include "model_file/model_file.h"
#include "models/config.h"
#include "models/tensor_plan.h"
#include "support/printable.h"
#include "support/progress.h"
#include "support/shape_text.h"

namespace faststream::convert {
namespace {

using nlohmann::json;

constexpr int kLabelWidth = 24;

std::string shown(const json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

// One line for each member; objects are indented under their name.
void show_members(const json& object, const std::string& indent, std::ostream& out) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      out << indent << printable(key) << '\n';
      show_members(value, indent + "  ", out);
      continue;
    }
    const int width = std::max(1, kLabelWidth - static_cast<int>(indent.size()));
    out << indent << std::left << std::setw(width) << printable(key) << ' ' << shown(value) << '\n';
  }
}

void show_model(const ModelConfig& config, std::ostream& out) {
  out << "model\n";
  for (const auto& [label, what] : describe(config)) {
    out << "  " << std::left << std::setw(kLabelWidth - 2) << label << ' ' << printable(what)
        << '\n';
  }
}

void show_tensors(const ModelFile& file, const ModelConfig& config, std::ostream& out) {
  // Of matrices the format says more than the type of their elements.
  std::map<std::string, WeightFormat> formats;
  for (const TensorPlan& plan : tensor_plan(config)) {
    if (plan.stored_as() == DType::packed) formats[plan.name] = plan.format;
  }
  const auto type_of = [&](const TensorInfo& tensor) {
    const auto format = formats.find(tensor.name);
    return format != formats.end() ? format_name(format->second) : dtype_name(tensor.dtype);
  };
  size_t name_width = 4;
  size_t type_width = 4;
  size_t shape_width = 5;
  for (const TensorInfo& tensor : file.tensors()) {
    name_width = std::max(name_width, printable(tensor.name).size());
    type_width = std::max(type_width, type_of(tensor).size());
    shape_width = std::max(shape_width, shape_text(tensor.shape).size());
  }
  const auto name = [&](const std::string& text) {
    out << "  " << std::left << std::setw(static_cast<int>(name_width)) << text;
  };
  const auto type = [&](std::string_view text) {
    out << "  " << std::setw(static_cast<int>(type_width)) << text;
  };
  const auto shape = [&](const std::string& text) {
    out << "  " << std::setw(static_cast<int>(shape_width)) << text;
  };
  name("name");
  type("type");
  shape("shape");
  out << "  " << std::right << std::setw(10) << "size"
      << "  checksum\n";
  for (const TensorInfo& tensor : file.tensors()) {
    name(printable(tensor.name));
    type(type_of(tensor));
    shape(shape_text(tensor.shape));
    out << "  " << std::right << std::setw(10) << format_bytes(tensor.bytes) << "  " << std::hex
        << std::setfill('0') << std::setw(16) << tensor.checksum << std::dec << std::setfill(' ')
        << '\n';
  }
}

// What a run reads besides tensors: a file of an older version can be whole and of no use.
void check_use(const ModelFile& file, const ModelConfig& config) {
  static_cast<void>(make_prompt_tokenizer(file, config, make_tokenizer(file, config)));
  static_cast<void>(find_answer_rules(file, config));
  static_cast<void>(default_sampling(file));
}

}  // namespace

void show_model_file(const std::filesystem::path& path, std::ostream& out) {
  const ModelFile file = ModelFile::open(path);
  std::ostringstream text;
  text << printable(file.name()) << ": " << format_bytes(file.file_size()) << ", format version "
       << layout::kVersion << ", " << file.tensors().size() << " tensors\n\n";
  const ModelConfig config = is_adapter_file(file) ? ModelConfig{} : read_config(file);
  json rest = file.header();
  if (!is_adapter_file(file)) {
    show_model(config, text);
    rest.erase("model");
  }
  show_members(rest, "", text);
  text << "\ntensors\n";
  show_tensors(file, config, text);
  out << text.str();
}

void verify_model_file(const std::filesystem::path& path, std::ostream& out) {
  const ModelFile file = ModelFile::open(path);
  if (is_adapter_file(file)) {  // whether it is sound its model alone can say
    file.verify();
  } else {
    const ModelConfig config = read_config(file);
    for (const TensorPlan& plan : tensor_plan(config)) {
      static_cast<void>(file.require(plan.name, plan.stored_as(), plan.stored_shape()));
    }
    file.verify();
    check_use(file, config);
  }
  out << printable(file.name()) << ": sound, the checksums of all " << file.tensors().size()
      << " tensors match\n";
}

}  // namespace faststream::convert
