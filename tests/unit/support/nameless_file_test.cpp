#include "support/nameless_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "support/error.h"
#include "unit/support/file_helpers.h"
#include "unit/support/set_variable.h"

namespace faststream {
namespace {

TEST(NamelessFile, HasNoNameInItsFolderAndCanBeReadByItsPath) {
  const TemporaryFolder folder;
  const SetVariable variable("TMPDIR", folder / "");
  NamelessFile file;
  file.reserve(5);
  file.write_at(0, std::as_bytes(std::span("whole", 5)));
  file.commit();
  EXPECT_EQ(folder.entries(), 0U);
  EXPECT_EQ(read_bytes(file.path()), "whole");
}

TEST(NamelessFile, SaysInWhichFolderThereIsNoRoom) {
  const TemporaryFolder folder;
  std::optional<SetVariable> variable(std::in_place, "TMPDIR", folder / "");
  NamelessFile file;
  try {
    file.reserve(uint64_t{1} << 62);
    FAIL() << "there is room for 4 EB";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with((folder / "").string())) << what;
    EXPECT_NE(what.find("(TMPDIR): the "), std::string::npos) << what;
  }
  variable.reset();
  variable.emplace("TMPDIR", folder / "nowhere");
  EXPECT_TRUE(error_of([] { NamelessFile(); }).starts_with((folder / "nowhere").string()));
  variable.reset();
  variable.emplace("TMPDIR", "");  // as if it were not set
  EXPECT_EQ(NamelessFile().name().string().substr(0, 5), "/tmp,");
}

}  // namespace
}  // namespace faststream
