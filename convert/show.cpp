#include "convert/show.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>

#include "model_file/model_file.h"
#include "models/config.h"
#include "support/progress.h"
#include "support/shape_text.h"

namespace faststream {
namespace {

using nlohmann::json;

constexpr int kLabelWidth = 24;

// One line for each member; objects are indented under their name.
void show_members(const json& object, const std::string& indent, std::ostream& out) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      out << indent << key << '\n';
      show_members(value, indent + "  ", out);
      continue;
    }
    const int width = std::max(1, kLabelWidth - static_cast<int>(indent.size()));
    // JSON's quotes around text that has no need of them are noise; its escapes keep control
    // characters of a hostile file from the terminal.
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (value.is_string() && value.get<std::string>() + "\"" == text.substr(1)) {
      text = value.get<std::string>();
    }
    out << indent << std::left << std::setw(width) << key << ' ' << text << '\n';
  }
}

void show_tensors(const ModelFile& file, std::ostream& out) {
  size_t name_width = 4;
  size_t shape_width = 5;
  for (const TensorInfo& tensor : file.tensors()) {
    name_width = std::max(name_width, tensor.name.size());
    shape_width = std::max(shape_width, shape_text(tensor.shape).size());
  }
  const auto name = [&](const std::string& text) {
    out << "  " << std::left << std::setw(static_cast<int>(name_width)) << text;
  };
  const auto shape = [&](const std::string& text) {
    out << "  " << std::setw(static_cast<int>(shape_width)) << text;
  };
  name("name");
  out << "  type";
  shape("shape");
  out << "  " << std::right << std::setw(10) << "size"
      << "  checksum\n";
  for (const TensorInfo& tensor : file.tensors()) {
    name(tensor.name);
    out << "  " << std::setw(4) << dtype_name(tensor.dtype);
    shape(shape_text(tensor.shape));
    out << "  " << std::right << std::setw(10) << format_bytes(tensor.bytes) << "  " << std::hex
        << std::setfill('0') << std::setw(16) << tensor.checksum << std::dec << std::setfill(' ')
        << '\n';
  }
}

}  // namespace

void show_model_file(const std::filesystem::path& path, std::ostream& out) {
  const ModelFile file = ModelFile::open(path);
  std::ostringstream text;
  text << file.name() << ": " << format_bytes(file.file_size()) << ", format version 1, "
       << file.tensors().size() << " tensors\n\n";
  show_members(file.header(), "", text);
  text << "\ntensors\n";
  show_tensors(file, text);
  out << text.str();
}

void verify_model_file(const std::filesystem::path& path, std::ostream& out) {
  const ModelFile file = ModelFile::open(path);
  for (const TensorPlan& plan : tensor_plan(config_from_json(file.section("model"), file.name()))) {
    static_cast<void>(file.require(plan.name, plan.dtype, plan.shape));
  }
  file.verify();
  out << file.name() << ": sound, the checksums of all " << file.tensors().size()
      << " tensors match\n";
}

}  // namespace faststream
