// Small model files, sound and damaged.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model_file/layout.h"
#include "model_file/model_file.h"
#include "model_file/model_image.h"

namespace faststream {

inline std::vector<TensorSpec> sample_specs() {
  return {{"tokenizer", DType::u8, {11}},
          {"matrix", DType::bf16, {3, 5}},
          {"matrix.scales", DType::f32, {3}},
          {"vector", DType::f32, {1000}}};
}

inline nlohmann::json sample_header() { return {{"model", {{"hidden", 5}}}, {"note", "sample"}}; }

/// The bytes of a sound model file of sample_specs(), tensor checksums aside.
inline std::vector<std::byte> sample_bytes() {
  const ModelImage image(sample_header(), sample_specs());
  return {image.bytes().begin(), image.bytes().end()};
}

inline layout::Head head_of(std::span<const std::byte> file) {
  layout::Head head;
  std::memcpy(&head, file.data(), sizeof head);
  return head;
}

/// Makes the checksums of head, header and table right again, where these lie inside the file.
inline void repair_checksums(std::span<std::byte> file) {
  layout::Head head = head_of(file);
  const uint64_t table_bytes = uint64_t{head.n_tensors} * sizeof(layout::TableEntry);
  if (head.table_offset >= sizeof head && head.table_offset <= file.size() &&
      table_bytes <= file.size() - head.table_offset) {
    head.metadata_checksum =
        layout::checksum(file.subspan(sizeof head, head.table_offset + table_bytes - sizeof head));
  }
  std::memcpy(file.data(), &head, sizeof head);
  head.head_checksum = layout::checksum(file.first(layout::kHeadChecksummedBytes));
  std::memcpy(file.data(), &head, sizeof head);
}

/// A sample file whose head was changed, with right checksums.
inline std::vector<std::byte> with_head(const std::function<void(layout::Head&)>& change) {
  std::vector<std::byte> file = sample_bytes();
  layout::Head head = head_of(file);
  change(head);
  std::memcpy(file.data(), &head, sizeof head);
  repair_checksums(file);
  return file;
}

/// A sample file one of whose table entries was changed, with right checksums.
inline std::vector<std::byte> with_entry(size_t index,
                                         const std::function<void(layout::TableEntry&)>& change) {
  std::vector<std::byte> file = sample_bytes();
  std::byte* place = file.data() + head_of(file).table_offset + index * sizeof(layout::TableEntry);
  layout::TableEntry entry;
  std::memcpy(&entry, place, sizeof entry);
  change(entry);
  std::memcpy(place, &entry, sizeof entry);
  repair_checksums(file);
  return file;
}

/// A sample file with other bytes for its JSON header, with right checksums.
inline std::vector<std::byte> with_header_text(const std::string& text) {
  layout::Plan plan = layout::make_plan(sample_header(), sample_specs());
  plan.header = text;
  const uint64_t old_start = plan.tensors.front().offset;
  plan.table_offset = layout::align_up(sizeof(layout::Head) + text.size(), layout::kTableAlignment);
  const uint64_t table_end = plan.table_offset + plan.tensors.size() * sizeof(layout::TableEntry);
  const uint64_t start = layout::align_up(table_end, kTensorAlignment);
  for (TensorInfo& tensor : plan.tensors) tensor.offset += start - old_start;
  plan.file_bytes += start - old_start;
  std::vector<std::byte> file = layout::encode_metadata(plan);
  file.resize(plan.file_bytes);
  return file;
}

}  // namespace faststream
