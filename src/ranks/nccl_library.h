// NCCL, NVIDIA's library by which GPUs tell each other what they have: found when the program runs,
// and never needed to build it.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace faststream {

/// Functions of NCCL, as its user guide declares them (docs.nvidia.com/deeplearning/nccl, "API"):
/// all are there from 2.7 on. Results are numbers, of which 0 is success; streams are
/// cudaStream_t's; what is sent is counted in bytes, as elements of type kBytes.
struct NcclLibrary {
  /// ncclUniqueId, which goes by value.
  struct Id {
    std::array<std::byte, 128> bytes;
  };
  using Communicator = void*;
  static constexpr int kSuccess = 0;
  static constexpr int kBytes = 0;  ///< ncclInt8

  const char* (*error_string)(int result);
  int (*get_version)(int* version);
  int (*get_unique_id)(Id* id);
  int (*init_rank)(Communicator* communicator, int ranks, Id id, int rank);
  int (*destroy)(Communicator communicator);
  int (*abort)(Communicator communicator);
  int (*all_gather)(const void* from, void* to, size_t count, int type, Communicator communicator,
                    void* stream);
  int (*send)(const void* from, size_t count, int type, int peer, Communicator communicator,
              void* stream);
  int (*receive)(void* to, size_t count, int type, int peer, Communicator communicator,
                 void* stream);
  int (*group_start)();
  int (*group_end)();

  int version = 0;   ///< as get_version() gives it: 22703 of 2.27.3
  std::string path;  ///< where it was found
};

/// "2.27.3"
std::string version_name(const NcclLibrary& nccl);

/// The environment variable that names the library's file, or is "on" or "off".
inline constexpr const char* kNcclVariable = "FASTSTREAM_NCCL";
/// Whether it is "on" or names a file: NCCL is used then alone, but even where GPUs reach each
/// other's memory.
bool nccl_is_asked_for();

/// The library that the variable names; else the system's libnccl.so.2, or that of a Python package
/// (nvidia-nccl-cu13, nvidia-nccl-cu12) in the active environment, beside this program or in the
/// user's or the system's packages. Nothing where there is none that is new enough, or the variable
/// is "off". It stays loaded. Throws Error where the file that the variable names cannot be used.
std::optional<NcclLibrary> find_nccl();

/// Libraries of Python packages below a folder that has them, such as .../site-packages.
std::vector<std::filesystem::path> nccl_of_packages(const std::filesystem::path& packages);
/// Loads one. Throws Error.
NcclLibrary load_nccl(const std::filesystem::path& file);

}  // namespace faststream
