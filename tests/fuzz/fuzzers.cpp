// The program of all fuzz targets: the one that it runs is the one that it is called by, through a
// link NAME_fuzz to it.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "fuzz/fuzz_target.h"

namespace faststream {
namespace {

std::map<std::string, FuzzTarget, std::less<>>& targets() {
  static std::map<std::string, FuzzTarget, std::less<>> all;
  return all;
}

FuzzTarget chosen = nullptr;

}  // namespace

AddFuzzTarget::AddFuzzTarget(const char* name, FuzzTarget target) {
  targets().emplace(name, target);
}

}  // namespace faststream

extern "C" int LLVMFuzzerInitialize(const int* /*argc*/, char*** argv) {
  using faststream::targets;
  std::string_view name = (*argv)[0];
  name.remove_prefix(name.rfind('/') + 1);
  constexpr std::string_view kEnd = "_fuzz";
  if (name.ends_with(kEnd)) name.remove_suffix(kEnd.size());
  const auto found = targets().find(name);
  if (found == targets().end()) {
    std::fputs("Call the program by the name of a fuzz target and _fuzz:\n", stderr);
    for (const auto& [known, target] : targets()) std::fprintf(stderr, "%s\n", known.c_str());
    std::exit(2);
  }
  faststream::chosen = found->second;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  faststream::chosen(data, size);
  return 0;
}
