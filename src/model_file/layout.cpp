#include "model_file/layout.h"

#include <xxhash.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "support/error.h"

namespace faststream::layout {

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string tensor_fault(const std::string& name, uint32_t dtype, std::span<const uint64_t> shape,
                         uint64_t& bytes) {
  if (name.empty()) return "has no name";
  if (name.size() > kMaxNameBytes) {
    return "has a name of more than " + std::to_string(kMaxNameBytes) + " bytes";
  }
  if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~'; })) {
    return "has a name that is not printable ASCII";
  }
  if (dtype > static_cast<uint32_t>(DType::packed)) {
    return "has the unknown type " + std::to_string(dtype);
  }
  if (shape.empty() || shape.size() > kMaxRank) {
    return "has " + std::to_string(shape.size()) + " dimensions, where 1 or 2 are possible";
  }
  // Offsets and sizes stay below 2^62, so that sums of two cannot overflow.
  constexpr uint64_t kLimit = uint64_t{1} << 62;
  bytes = dtype_size(static_cast<DType>(dtype));
  for (const uint64_t extent : shape) {
    if (extent == 0) return "has an empty dimension";
    if (extent > kLimit / bytes) return "has a shape that is too large for any machine";
    bytes *= extent;
  }
  return {};
}

Plan make_plan(const nlohmann::json& header, const std::vector<TensorSpec>& tensors) {
  Plan plan;
  if (!header.is_object()) throw Error("the header of a model file must be a JSON object");
  // Names of files may hold any bytes; the header holds UTF-8.
  plan.header = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (plan.header.size() > kMaxHeaderBytes) {
    throw Error("the header of the model file would have " + std::to_string(plan.header.size()) +
                " bytes, more than the format allows");
  }
  plan.table_offset = align_up(sizeof(Head) + plan.header.size(), kTableAlignment);

  uint64_t end = plan.table_offset + tensors.size() * sizeof(TableEntry);
  std::set<std::string> names;
  bool weights_began = false;
  for (const TensorSpec& spec : tensors) {
    const auto fail = [&](const std::string& fault) {
      throw Error("tensor \"" + spec.name + "\" " + fault);
    };
    TensorInfo info{spec.name, spec.dtype, spec.shape, 0, 0, 0};
    const std::vector<uint64_t> shape(spec.shape.begin(), spec.shape.end());
    const std::string fault =
        tensor_fault(spec.name, static_cast<uint32_t>(spec.dtype), shape, info.bytes);
    if (!fault.empty()) fail(fault);
    if (!names.insert(spec.name).second) fail("appears twice");
    if (spec.dtype != DType::u8) weights_began = true;
    if (spec.dtype == DType::u8 && weights_began) fail("is u8 but does not come first");
    info.offset = align_up(end, kTensorAlignment);
    if (info.bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - info.offset) {
      fail("would make the file larger than a file can be");
    }
    end = info.offset + info.bytes;
    plan.tensors.push_back(std::move(info));
  }
  if (plan.tensors.empty()) throw Error("a model file must hold at least one tensor");
  plan.file_bytes = end;
  return plan;
}

std::vector<std::byte> encode_metadata(const Plan& plan) {
  const size_t table_bytes = plan.tensors.size() * sizeof(TableEntry);
  std::vector<std::byte> bytes(plan.table_offset + table_bytes);
  std::memcpy(bytes.data() + sizeof(Head), plan.header.data(), plan.header.size());

  std::byte* place = bytes.data() + plan.table_offset;
  for (const TensorInfo& tensor : plan.tensors) {
    TableEntry entry;
    std::copy(tensor.name.begin(), tensor.name.end(), entry.name.begin());
    entry.dtype = static_cast<uint32_t>(tensor.dtype);
    entry.rank = static_cast<uint32_t>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), entry.shape.begin());
    entry.offset = tensor.offset;
    entry.bytes = tensor.bytes;
    entry.checksum = tensor.checksum;
    std::memcpy(place, &entry, sizeof entry);
    place += sizeof entry;
  }

  Head head;
  head.n_tensors = static_cast<uint32_t>(plan.tensors.size());
  head.header_bytes = plan.header.size();
  head.table_offset = plan.table_offset;
  head.file_bytes = plan.file_bytes;
  head.metadata_checksum = checksum(std::span(bytes).subspan(sizeof head));
  std::memcpy(bytes.data(), &head, sizeof head);
  head.head_checksum = checksum(std::span(bytes).first(kHeadChecksummedBytes));
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

}  // namespace faststream::layout
