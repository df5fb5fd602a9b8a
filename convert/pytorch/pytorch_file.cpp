#include "convert/pytorch/pytorch_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "convert/pytorch/pickle.h"
#include "support/error.h"
#include "support/printable.h"
#include "support/progress.h"

namespace faststream::convert {
namespace {

namespace fs = std::filesystem;

using Kind = PickledValue::Kind;

// A hundred thousand tensors have less; what is read takes up to a hundred times the memory.
constexpr uint64_t kMostPickleBytes = uint64_t{16} << 20;

constexpr std::string_view kZipStart = "PK\x03\x04";
// The number 0x1950a86a20f9469cfc6c as a pickle of protocol 2.
constexpr std::string_view kLegacyStart =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

[[noreturn]] void refuse_file(std::string_view where, const std::string& what) {
  throw Error(std::string(where) + ": " + what);
}

std::vector<std::byte> bytes_of(const ReadBytes& read, uint64_t offset, uint64_t size,
                                std::string_view where) {
  if (size > kMostPickleBytes) {
    refuse_file(where, "describes its tensors in " + format_bytes(size) + ", where at most " +
                           format_bytes(kMostPickleBytes) + " make sense; is this the right file?");
  }
  std::vector<std::byte> bytes(size);
  read(offset, bytes);
  return bytes;
}

uint64_t bytes_in(const PickledStorage& storage) {
  const int64_t each = storage.format == nullptr ? 1 : storage.format->block_bytes;
  return static_cast<uint64_t>(storage.elements * each);
}

// Whether elements lie one after the other in the order of the shape.
bool is_row_major(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i > 0; --i) {
    if (shape[i - 1] != 1 && strides[i - 1] != expected) return false;
    expected *= shape[i - 1];
  }
  return true;
}

// start: of the storage in the file.
SourceTensor source_tensor(const PickledTensor& tensor, const std::string& name, uint64_t start,
                           std::string_view where) {
  SourceTensor source{.name = name, .format = tensor.format, .shape = tensor.shape};
  source.offset = start + tensor.format->bytes(tensor.offset);
  const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
  if (empty || is_row_major(tensor.shape, tensor.strides)) return source;
  if (tensor.shape.size() == 2 &&
      is_row_major({tensor.shape[1], tensor.shape[0]}, {tensor.strides[1], tensor.strides[0]})) {
    source.transposed = true;
    return source;
  }
  refuse_file(where, "tensor " + in_quotes(name) +
                         " is a part of another, whose elements are not together; save the weights "
                         "as safetensors");
}

// place_of: where a storage begins in the file.
std::vector<SourceTensor> tensors_of(const Pickle& pickle,
                                     const std::function<uint64_t(const PickledStorage&)>& place_of,
                                     std::string_view where) {
  const PickledValue& root = pickle.at(pickle.root);
  if (root.kind != Kind::dictionary)
    refuse_file(where, "holds no dictionary of tensors by their names");
  std::vector<SourceTensor> tensors;
  std::set<std::string> names;
  for (size_t i = 0; i < root.items.size(); i += 2) {
    const PickledValue& key = pickle.at(root.items[i]);
    const PickledValue& value = pickle.at(root.items[i + 1]);
    if (key.kind != Kind::text) refuse_file(where, "has a tensor whose name is no text");
    if (value.kind == Kind::dictionary || value.kind == Kind::list || value.kind == Kind::tuple) {
      refuse_file(where, in_quotes(key.text) +
                             " in it is no tensor; only files of a model's weights alone are read");
    }
    if (value.kind != Kind::tensor) continue;
    if (!names.insert(key.text).second)
      refuse_file(where, "names " + in_quotes(key.text) + " twice");
    const PickledTensor& tensor = pickle.tensors[value.tensor];
    tensors.push_back(source_tensor(tensor, key.text, place_of(tensor.storage), where));
  }
  return tensors;
}

std::vector<SourceTensor> parse_archive(const ReadBytes& read, uint64_t size,
                                        std::string_view where) {
  const auto files = read_zip_directory(read, size, where);
  constexpr std::string_view kPickle = "/data.pkl";
  const auto found =
      std::ranges::find_if(files, [&](const auto& file) { return file.first.ends_with(kPickle); });
  if (found == files.end())
    refuse_file(where, "is an archive without data.pkl, which torch.save() writes");
  const std::string folder = found->first.substr(0, found->first.size() - kPickle.size() + 1);
  if (const auto order = files.find(folder + "byteorder"); order != files.end()) {
    constexpr std::string_view kLittle = "little";
    std::string text(std::min<uint64_t>(order->second.size, kLittle.size()), '\0');
    read(order->second.offset, std::as_writable_bytes(std::span(text)));
    if (text != kLittle) refuse_file(where, "was saved on a machine of another byte order");
  }
  const Pickle pickle =
      read_pickle(bytes_of(read, found->second.offset, found->second.size, where), where);
  const auto place_of = [&](const PickledStorage& storage) {
    const auto file = files.find(folder + "data/" + storage.key);
    if (file == files.end() || file->second.size < bytes_in(storage)) {
      refuse_file(where, "lacks elements of its tensors; download it again");
    }
    return file->second.offset;
  };
  return tensors_of(pickle, place_of, where);
}

// The magic number, the format's version, what machine it was, the tensors and the keys of their
// storages, five pickles; then of each storage how many elements it has, and these.
std::vector<SourceTensor> parse_legacy(const ReadBytes& read, uint64_t size,
                                       std::string_view where) {
  const std::vector<std::byte> bytes = bytes_of(read, 0, std::min(size, kMostPickleBytes), where);
  uint64_t at = kLegacyStart.size();
  const auto next = [&] {
    Pickle pickle = read_pickle(std::span(bytes).subspan(at), where);
    at += pickle.end;
    return pickle;
  };
  const Pickle version = next();
  constexpr int64_t kVersion = 1001;
  if (version.at(version.root).kind != Kind::integer ||
      version.at(version.root).integer != kVersion) {
    refuse_file(where, "is of another version than 1001 of PyTorch's first format");
  }
  static_cast<void>(next());
  const Pickle pickle = next();
  const Pickle keys = next();
  std::map<std::string, const PickledStorage*> storages;
  for (const PickledTensor& tensor : pickle.tensors) storages[tensor.storage.key] = &tensor.storage;
  if (keys.at(keys.root).kind != Kind::list)
    refuse_file(where, "does not list its tensors' elements");
  std::map<std::string, uint64_t> places;
  for (const size_t index : keys.at(keys.root).items) {
    const auto storage = storages.find(keys.at(index).text);
    uint64_t elements = 0;
    if (storage == storages.end() || at > size || size - at < sizeof elements) {
      refuse_file(where, "is truncated or damaged; download it again");
    }
    read(at, std::as_writable_bytes(std::span(&elements, 1)));
    at += sizeof elements;
    if (elements != static_cast<uint64_t>(storage->second->elements) ||
        bytes_in(*storage->second) > size - at) {
      refuse_file(where, "is truncated or damaged; download it again");
    }
    places[storage->first] = at;
    at += bytes_in(*storage->second);
  }
  const auto place_of = [&](const PickledStorage& storage) {
    const auto place = places.find(storage.key);
    if (place == places.end() || storage.format != storages.at(storage.key)->format ||
        storage.elements != storages.at(storage.key)->elements) {
      refuse_file(where, "lacks elements of its tensors; download it again");
    }
    return place->second;
  };
  return tensors_of(pickle, place_of, where);
}

}  // namespace

std::vector<SourceTensor> parse_pytorch_file(const ReadBytes& read, uint64_t size,
                                             std::string_view where) {
  std::string start(std::min<uint64_t>(size, kLegacyStart.size()), '\0');
  read(0, std::as_writable_bytes(std::span(start)));
  if (start.starts_with(kZipStart)) return parse_archive(read, size, where);
  if (start == kLegacyStart) return parse_legacy(read, size, where);
  refuse_file(where, "is no file that torch.save() wrote");
}

void add_pytorch_file(Checkpoint& checkpoint, const fs::path& path, SourceFiles& files,
                      const std::string& prefix) {
  InputFile file = files.open(path);
  auto tensors =
      parse_pytorch_file([&](uint64_t offset, std::span<std::byte> out) { file.read(offset, out); },
                         file.size(), path.string());
  const size_t number = checkpoint.add_file(std::move(file));
  for (SourceTensor& tensor : tensors) {
    tensor.file = number;
    const std::string name = prefix + tensor.name;
    checkpoint.add_tensor(std::move(tensor), name);
  }
}

}  // namespace faststream::convert
