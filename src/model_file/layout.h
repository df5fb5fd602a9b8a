// The bytes of format version 2, shared by reader and writer. Documented in docs/model-file.md.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model_file/model_file.h"
#include "model_file/model_writer.h"

namespace faststream::layout {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

inline constexpr std::array<unsigned char, 8> kMagic = {0x89, 'F', 'S', 'T', 'R', 'E', 'A', 'M'};
inline constexpr uint32_t kVersion = 2;
inline constexpr size_t kMaxNameBytes = 95;
inline constexpr size_t kMaxRank = 2;
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{64} << 20;
inline constexpr uint64_t kTableAlignment = 64;

/// The first bytes of the file. Checksums are XXH3-64.
struct Head {
  std::array<unsigned char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t n_tensors = 0;
  uint64_t header_bytes = 0;  ///< of the JSON, which starts right after the head
  uint64_t table_offset = 0;
  uint64_t file_bytes = 0;
  uint64_t reserved = 0;
  uint64_t metadata_checksum = 0;  ///< of everything from the JSON's first byte to the table's last
  uint64_t head_checksum = 0;      ///< of the head's bytes before this one
};
static_assert(sizeof(Head) == 64 && std::is_trivially_copyable_v<Head>);
inline constexpr size_t kHeadChecksummedBytes = sizeof(Head) - sizeof(uint64_t);

struct TableEntry {
  std::array<char, kMaxNameBytes + 1> name{};  ///< padded with NUL
  uint32_t dtype = 0;
  uint32_t rank = 0;
  std::array<uint64_t, 4> shape{};  ///< unused dimensions are 0
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  std::array<unsigned char, 96> reserved{};
};
static_assert(sizeof(TableEntry) == 256 && std::is_trivially_copyable_v<TableEntry>);

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

uint64_t checksum(std::span<const std::byte> bytes);

/// Why a tensor of this name, type and shape cannot be in a model file, as the end of a sentence;
/// empty when it can. `bytes` becomes its size.
std::string tensor_fault(const std::string& name, uint32_t dtype, std::span<const uint64_t> shape,
                         uint64_t& bytes);

/// A model file to be: where everything goes.
struct Plan {
  std::string header;               ///< the JSON as it will be written
  std::vector<TensorInfo> tensors;  ///< with offsets; checksums 0
  uint64_t table_offset = 0;
  uint64_t file_bytes = 0;
};

/// Lays out a file. Throws Error, naming the tensor, when a name, type or shape is impossible, a u8
/// tensor comes after one that is not, or the header is too large or no object.
Plan make_plan(const nlohmann::json& header, const std::vector<TensorSpec>& tensors);

/// Head, JSON and table of `plan` with the tensors' checksums as they are now.
std::vector<std::byte> encode_metadata(const Plan& plan);

}  // namespace faststream::layout
