#include "support/nameless_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>

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
    EXPECT_TRUE(std::string(error.what()).starts_with((folder / "").string())) << error.what();
  }
  variable.reset();
  variable.emplace("TMPDIR", folder / "nowhere");
  EXPECT_THROW(NamelessFile(), Error);
}

}  // namespace
}  // namespace faststream
