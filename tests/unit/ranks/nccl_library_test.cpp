// How NCCL is found when the program runs, and what is said where it cannot be used. The library is
// one for tests (tests/fakes/nccl.cpp).
#include "ranks/nccl_library.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/error.h"
#include "unit/ranks/fake_nccl.h"
#include "unit/support/file_helpers.h"
#include "unit/support/set_variable.h"

namespace faststream {
namespace {

namespace fs = std::filesystem;

// "" where nothing is thrown.
std::string why_not() {
  try {
    find_nccl();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(NcclLibrary, IsTheOneThatTheVariableNames) {
  const SetVariable asked(kNcclVariable, fake_nccl());
  EXPECT_TRUE(nccl_is_asked_for());
  const auto nccl = find_nccl();
  ASSERT_TRUE(nccl);
  EXPECT_EQ(nccl->path, fake_nccl());
  EXPECT_EQ(version_name(*nccl), "2.27.3");
}

TEST(NcclLibrary, IsUsedOrNotAsTheVariableSays) {
  {
    const SetVariable asked(kNcclVariable, "on");
    EXPECT_TRUE(nccl_is_asked_for());
    EXPECT_NO_THROW(find_nccl());
  }
  const SetVariable asked(kNcclVariable, "off");
  EXPECT_FALSE(nccl_is_asked_for());
  EXPECT_FALSE(find_nccl());
}

TEST(NcclLibrary, HasVersionsOfBothSchemes) {
  NcclLibrary nccl{};
  nccl.version = 2703;
  EXPECT_EQ(version_name(nccl), "2.7.3");
  nccl.version = 20900;
  EXPECT_EQ(version_name(nccl), "2.9.0");
}

TEST(NcclLibrary, SaysWhyTheOneThatWasNamedCannotBeUsed) {
  const std::string what_to_do = "set the environment variable FASTSTREAM_NCCL";
  const SetVariable missing(kNcclVariable, "/nowhere/libnccl.so.2");
  EXPECT_NE(why_not().find("/nowhere/libnccl.so.2"), std::string::npos) << why_not();
  EXPECT_NE(why_not().find(what_to_do), std::string::npos) << why_not();

  const SetVariable other(kNcclVariable, "libm.so.6");
  EXPECT_NE(why_not().find("libm.so.6 is no NCCL that can be used: it has no function nccl"),
            std::string::npos)
      << why_not();

  const SetVariable fake(kNcclVariable, fake_nccl());
  const SetVariable old("FAKE_NCCL_VERSION", "2604");
  EXPECT_NE(why_not().find("is NCCL 2.6.4, which is too old"), std::string::npos) << why_not();
}

TEST(NcclLibrary, IsFoundInPythonPackages) {
  const TemporaryFolder folder;
  const fs::path packages = folder.path() / "lib" / "python3.12" / "site-packages";
  EXPECT_TRUE(nccl_of_packages(packages).empty());
  const fs::path file = packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2";
  fs::create_directories(file.parent_path());
  fs::create_directories(packages / "nvidia" / "cublas" / "lib");
  fs::copy_file(fake_nccl(), file);
  EXPECT_EQ(nccl_of_packages(packages), std::vector{file});
  const SetVariable nothing_asked(kNcclVariable, "");
  const SetVariable environment("VIRTUAL_ENV", folder.path());
  const auto nccl = find_nccl();
  ASSERT_TRUE(nccl);
  if (nccl->path != "libnccl.so.2") {  // which the system may have
    EXPECT_EQ(nccl->path, file);
  }
  const SetVariable too_old("FAKE_NCCL_VERSION", "2604");
  const auto other = find_nccl();
  EXPECT_TRUE(!other || other->path != file);
}

}  // namespace
}  // namespace faststream
