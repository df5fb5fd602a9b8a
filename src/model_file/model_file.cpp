#include "model_file/model_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "model_file/layout.h"
#include "support/error.h"
#include "support/hash.h"
#include "support/json.h"
#include "support/mapped_file.h"
#include "support/shape_text.h"

namespace faststream {
namespace {

using layout::Head;
using layout::TableEntry;

constexpr const char* kHowToMake = "make one from a checkpoint with faststream-convert";

// Reads the metadata of one file; every step relies on the checks of those before it.
class MetadataReader {
 public:
  MetadataReader(std::span<const std::byte> file, const std::string& name)
      : file_(file), name_(name) {}

  void read_head() {
    if (file_.size() < sizeof layout::kMagic ||
        std::memcmp(file_.data(), layout::kMagic.data(), sizeof layout::kMagic) != 0) {
      fail(std::string("is not a FastStream model file; ") + kHowToMake);
    }
    if (file_.size() < sizeof head_) fail_truncated();
    std::memcpy(&head_, file_.data(), sizeof head_);
    // Another version may have another head, so this comes before its checksum.
    if (head_.version != layout::kVersion) {
      fail("has format version " + std::to_string(head_.version) +
           ", but this FastStream reads version " + std::to_string(layout::kVersion) +
           "; convert the checkpoint again");
    }
    if (layout::checksum(file_.first(layout::kHeadChecksummedBytes)) != head_.head_checksum) {
      fail_damaged("the head's checksum does not match");
    }
    if (head_.file_bytes > file_.size()) fail_truncated();
    if (head_.file_bytes < file_.size()) fail_damaged("bytes follow its end");
  }

  nlohmann::json read_header() {
    if (head_.header_bytes > layout::kMaxHeaderBytes ||
        head_.header_bytes > file_.size() - sizeof head_) {
      fail_damaged("its header would reach past its end");
    }
    if (head_.table_offset !=
        layout::align_up(sizeof head_ + head_.header_bytes, layout::kTableAlignment)) {
      fail_damaged("its tensor table is in the wrong place");
    }
    // 32-bit counts of 256-byte entries cannot overflow.
    metadata_bytes_ = head_.table_offset + uint64_t{head_.n_tensors} * sizeof(TableEntry);
    if (metadata_bytes_ > file_.size()) fail_damaged("its tensor table would reach past its end");
    const auto metadata = file_.first(metadata_bytes_).subspan(sizeof head_);
    if (layout::checksum(metadata) != head_.metadata_checksum) {
      fail_damaged("the checksum of its header and tensor table does not match");
    }
    const auto* text = reinterpret_cast<const char*>(file_.data()) + sizeof head_;
    return parse_json_object({text, head_.header_bytes}, name_ + ": header");
  }

  std::vector<TensorInfo> read_table() {
    if (head_.n_tensors == 0) fail_damaged("it holds no tensors");
    std::vector<TensorInfo> tensors;
    tensors.reserve(head_.n_tensors);
    uint64_t end = metadata_bytes_;  // of what lies before the tensor
    for (uint32_t i = 0; i < head_.n_tensors; ++i) {
      TensorInfo tensor = read_entry(i);
      if (tensor.offset % kTensorAlignment != 0) fail_tensor(tensor.name, "is not aligned");
      if (tensor.offset > file_.size() || tensor.bytes > file_.size() - tensor.offset) {
        fail_tensor(tensor.name, "reaches past the end of the file");
      }
      if (tensor.offset < end) fail_tensor(tensor.name, "overlaps what comes before it");
      if (tensor.dtype == DType::u8 && !tensors.empty() && tensors.back().dtype != DType::u8) {
        fail_tensor(tensor.name, "is u8 but does not come first");
      }
      end = tensor.offset + tensor.bytes;
      tensors.push_back(std::move(tensor));
    }
    if (end != file_.size()) fail_damaged("bytes follow its last tensor");
    return tensors;
  }

  [[nodiscard]] uint64_t metadata_bytes() const { return metadata_bytes_; }

  [[noreturn]] void fail_tensor(const std::string& tensor, const std::string& what) const {
    fail_damaged("tensor \"" + tensor + "\" " + what);
  }

 private:
  TensorInfo read_entry(uint32_t index) const {
    TableEntry entry;
    std::memcpy(&entry, file_.data() + head_.table_offset + index * sizeof entry, sizeof entry);
    const auto name_end = std::find(entry.name.begin(), entry.name.end(), '\0');
    TensorInfo tensor;
    tensor.name.assign(entry.name.begin(), name_end);
    const auto fail_here = [&](const std::string& fault) {
      // The name itself may be unprintable; its place in the table always is printable.
      fail_damaged("tensor number " + std::to_string(index) + " " + fault);
    };
    const bool padded = std::all_of(name_end, entry.name.end(), [](char c) { return c == '\0'; });
    if (name_end == entry.name.end() || !padded) fail_here("has a name that does not end");
    if (entry.rank > entry.shape.size()) fail_here("has an impossible number of dimensions");
    const auto shape = std::span(entry.shape).first(entry.rank);
    const std::string fault = layout::tensor_fault(tensor.name, entry.dtype, shape, tensor.bytes);
    if (!fault.empty()) fail_here(fault);
    if (entry.bytes != tensor.bytes) fail_here("has a size that differs from its shape's");
    tensor.dtype = static_cast<DType>(entry.dtype);
    tensor.shape.assign(shape.begin(), shape.end());
    tensor.offset = entry.offset;
    tensor.checksum = entry.checksum;
    return tensor;
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(name_ + ": " + what); }
  [[noreturn]] void fail_damaged(const std::string& what) const {
    fail("is damaged (" + what + "); copy it again or convert the checkpoint again");
  }
  [[noreturn]] void fail_truncated() const {
    fail("is truncated: it has " + std::to_string(file_.size()) + " bytes" +
         (file_.size() < sizeof head_ ? "" : " of " + std::to_string(head_.file_bytes)) +
         "; copy it again or convert the checkpoint again");
  }

  std::span<const std::byte> file_;
  const std::string& name_;
  Head head_;
  uint64_t metadata_bytes_ = 0;
};

}  // namespace

struct ModelFile::Impl {
  std::string name;
  std::optional<MappedFile> mapping;
  std::span<const std::byte> bytes;
  MakeBytes make;
  nlohmann::json header;
  uint64_t metadata_bytes = 0;  // from the head to the end of the table
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string_view, size_t> by_name;  // views of the names in `tensors`

  void read() {
    MetadataReader reader(bytes, name);
    reader.read_head();
    header = reader.read_header();
    metadata_bytes = reader.metadata_bytes();
    tensors = reader.read_table();
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!by_name.emplace(tensors[i].name, i).second) {
        reader.fail_tensor(tensors[i].name, "appears twice");
      }
    }
  }
};

ModelFile::ModelFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;
ModelFile::~ModelFile() = default;

ModelFile ModelFile::open(const std::filesystem::path& path) {
  auto impl = std::make_unique<Impl>();
  impl->name = path.string();
  std::error_code unknown;  // opening says what is wrong
  if (std::filesystem::is_directory(path, unknown)) {
    throw Error(impl->name + ": is a folder, where a model file is needed; " + kHowToMake);
  }
  impl->mapping.emplace(path);
  impl->bytes = impl->mapping->bytes();
  impl->read();
  return ModelFile(std::move(impl));
}

ModelFile ModelFile::from_bytes(std::span<const std::byte> bytes, const std::string& name,
                                MakeBytes make) {
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  impl->bytes = bytes;
  impl->make = std::move(make);
  impl->read();
  return ModelFile(std::move(impl));
}

const std::string& ModelFile::name() const { return impl_->name; }
const nlohmann::json& ModelFile::header() const { return impl_->header; }
const nlohmann::json& ModelFile::section(std::string_view name) const {
  const JsonView view(header(), impl_->name + ": header", "convert the checkpoint again");
  return view.member(name).value();
}
std::span<const TensorInfo> ModelFile::tensors() const { return impl_->tensors; }
uint64_t ModelFile::file_size() const { return impl_->bytes.size(); }

const TensorInfo* ModelFile::find(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &impl_->tensors[found->second];
}

const TensorInfo& ModelFile::require(std::string_view name, DType dtype,
                                     std::span<const int64_t> shape) const {
  const TensorInfo* tensor = find(name);
  const std::string subject = impl_->name + ": tensor \"" + std::string(name) + "\" ";
  if (tensor == nullptr) {
    throw Error(subject +
                "is missing, although the header asks for it; convert the checkpoint "
                "again");
  }
  if (tensor->dtype != dtype || !std::ranges::equal(tensor->shape, shape)) {
    throw Error(subject + "is " + std::string(dtype_name(tensor->dtype)) + " " +
                shape_text(tensor->shape) + ", but the header asks for " +
                std::string(dtype_name(dtype)) + " " + shape_text(shape) +
                "; convert the checkpoint again");
  }
  return *tensor;
}

std::span<const std::byte> ModelFile::bytes(const TensorInfo& tensor) const {
  return impl_->bytes.subspan(tensor.offset, tensor.bytes);
}

WeightSource ModelFile::weights() const {
  WeightSource source;
  source.fd = impl_->mapping ? impl_->mapping->fd() : -1;
  source.offset = impl_->bytes.size();
  for (const TensorInfo& tensor : impl_->tensors) {
    if (tensor.dtype == DType::u8) continue;
    source.offset = tensor.offset;
    break;
  }
  source.bytes = impl_->bytes.subspan(source.offset);
  if (impl_->make) {
    source.make = [make = impl_->make, first = source.offset](
                      uint64_t offset, std::span<std::byte> out) { make(first + offset, out); };
  }
  return source;
}

std::string ModelFile::fingerprint() const {
  std::string contents = header().dump();
  for (const TensorInfo& tensor : tensors()) {
    contents += "\n" + tensor.name + " " + std::to_string(tensor.checksum);
  }
  return hash_digits(layout::checksum(std::as_bytes(std::span(contents))));
}

uint64_t ModelFile::weights_checksum() const {
  std::string described;
  for (const TensorInfo& tensor : impl_->tensors) {
    if (tensor.dtype == DType::u8) continue;
    described += tensor.name + ' ' + std::string(dtype_name(tensor.dtype)) + ' ' +
                 shape_text(tensor.shape) + ' ' + std::to_string(tensor.checksum) + '\n';
  }
  return layout::checksum(std::as_bytes(std::span(described)));
}

void ModelFile::verify() const {
  const auto fail = [&](const std::string& what) {
    throw Error(impl_->name + ": is damaged (" + what +
                "); copy it again or convert the checkpoint again");
  };
  uint64_t end = impl_->metadata_bytes;  // of what lies before the tensor
  for (const TensorInfo& tensor : impl_->tensors) {
    const auto gap = impl_->bytes.subspan(end, tensor.offset - end);
    if (std::ranges::any_of(gap, [](std::byte byte) { return byte != std::byte{0}; })) {
      fail("a byte before tensor \"" + tensor.name + "\" is not zero");
    }
    if (layout::checksum(bytes(tensor)) != tensor.checksum) {
      fail("the checksum of tensor \"" + tensor.name + "\" does not match");
    }
    end = tensor.offset + tensor.bytes;
  }
}

}  // namespace faststream
