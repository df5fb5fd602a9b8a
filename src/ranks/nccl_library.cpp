#include "ranks/nccl_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "support/error.h"
#include "support/printable.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libnccl.so.2";
constexpr int kOldest = 2700;  // sends and receives; 22703 is 2.27.3, as is 2703 2.7.3

// "" where it is not set.
std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : std::string_view();
}

std::string last_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

template <typename Function>
void find(void* library, const fs::path& file, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(printable(file.string()) + " is no NCCL that can be used: it has no function " +
                name);
  }
}

// Folders whose names begin so, sorted, or with what is in them under a name: of no folder, none.
std::vector<fs::path> folders_in(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(prefix)) found.push_back(entry->path());
  }
  std::ranges::sort(found);
  return found;
}

// Folders of Python packages of an environment, such as /usr.
void add_packages_of(const fs::path& environment, std::vector<fs::path>& to) {
  for (const fs::path& python : folders_in(environment / "lib", "python3")) {
    to.push_back(python / "site-packages");
    to.push_back(python / "dist-packages");
  }
}

// Of the program itself, or of the library that it is a part of: that of the Python package lies in
// a folder of packages.
fs::path own_file() {
  Dl_info info{};
  static const char anything = 0;
  return dladdr(&anything, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::vector<fs::path> package_folders() {
  std::vector<fs::path> folders;
  for (const char* environment : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (!variable(environment).empty()) add_packages_of(variable(environment), folders);
  }
  if (const fs::path own = own_file(); own.has_parent_path()) {
    folders.push_back(own.parent_path().parent_path());
  }
  if (!variable("HOME").empty()) add_packages_of(fs::path(variable("HOME")) / ".local", folders);
  add_packages_of("/usr/local", folders);
  add_packages_of("/usr", folders);
  return folders;
}

// Null where it cannot be used.
std::optional<NcclLibrary> try_to_load(const fs::path& file) {
  try {
    return load_nccl(file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string version_name(const NcclLibrary& nccl) {
  constexpr int kSince = 10000;  // 2.9, which has two digits for the minor version
  const int major = nccl.version / (nccl.version < kSince ? 1000 : kSince);
  const int minor = nccl.version / 100 % (nccl.version < kSince ? 10 : 100);
  return std::to_string(major) + "." + std::to_string(minor) + "." +
         std::to_string(nccl.version % 100);
}

bool nccl_is_asked_for() {
  const std::string_view asked = variable(kNcclVariable);
  return !asked.empty() && asked != "off";
}

std::vector<fs::path> nccl_of_packages(const fs::path& packages) {
  std::vector<fs::path> found;
  for (const fs::path& package : folders_in(packages / "nvidia", "")) {
    std::error_code error;
    const fs::path file = package / "lib" / kFile;
    if (fs::exists(file, error)) found.push_back(file);
  }
  return found;
}

NcclLibrary load_nccl(const fs::path& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error("NCCL cannot be loaded: " + printable(last_error()));
  NcclLibrary nccl{};
  nccl.path = file.string();
  find(library, file, "ncclGetErrorString", nccl.error_string);
  find(library, file, "ncclGetVersion", nccl.get_version);
  find(library, file, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, file, "ncclCommInitRank", nccl.init_rank);
  find(library, file, "ncclCommDestroy", nccl.destroy);
  find(library, file, "ncclCommAbort", nccl.abort);
  find(library, file, "ncclAllGather", nccl.all_gather);
  find(library, file, "ncclSend", nccl.send);
  find(library, file, "ncclRecv", nccl.receive);
  find(library, file, "ncclGroupStart", nccl.group_start);
  find(library, file, "ncclGroupEnd", nccl.group_end);
  if (nccl.get_version(&nccl.version) != NcclLibrary::kSuccess || nccl.version < kOldest) {
    throw Error(printable(file.string()) + " is NCCL " + version_name(nccl) +
                ", which is too old: 2.7 or later is needed");
  }
  return nccl;
}

std::optional<NcclLibrary> find_nccl() {
  const std::string_view asked = variable(kNcclVariable);
  if (asked == "off") return std::nullopt;
  if (!asked.empty() && asked != "on") {
    try {
      return load_nccl(asked);
    } catch (const Error& error) {
      throw Error(std::string(error.what()) + "; set the environment variable " + kNcclVariable +
                  " to the path of a libnccl.so.2, or unset it.");
    }
  }
  if (auto nccl = try_to_load(kFile)) return nccl;
  for (const fs::path& packages : package_folders()) {
    for (const fs::path& file : nccl_of_packages(packages)) {
      if (auto nccl = try_to_load(file)) return nccl;
    }
  }
  return std::nullopt;
}

}  // namespace faststream
