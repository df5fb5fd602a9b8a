// A chat's sessions in files.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "cli/chat/chat_session.h"
#include "unit/cli/chat/chat_fixture.h"

namespace faststream::cli {
namespace {

TEST_F(ChatTest, SavesAndLoadsConversationAndSettings) {
  const TemporaryFolder folder;
  const std::string path = folder / "a file.json";
  type("/system Be brief.");
  type("a");
  type("/set seed 3");
  type("/save " + path);
  EXPECT_TRUE(told(path));
  const std::string saved = state();
  type("/reset");
  type("/system \"\"");
  type("/set seed random");
  type("/load " + path);
  EXPECT_TRUE(told("1 exchange"));
  EXPECT_EQ(state(), saved);
  EXPECT_EQ(chat.settings().sampling.seed, 3U);
  EXPECT_TRUE(says(refusal("/load " + path + "x"), path + "x"));
  write_bytes(path, "no session");
  EXPECT_TRUE(says(refusal("/load " + path), path));
}

TEST_F(ChatTest, SavesOverAnOlderSessionOnlyWhenToldTo) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("/save " + path);
  const std::string older = read_bytes(path);
  type("a");
  EXPECT_TRUE(says(refusal("/save " + path), path, "already exists", "/save! " + path));
  EXPECT_EQ(read_bytes(path), older);
  type("/save! " + path);
  EXPECT_TRUE(told("saved " + path));
  type("/load " + path);
  EXPECT_TRUE(told("1 exchange"));
}

TEST_F(ChatTest, SavesOverNothingButSessionsAndEmptyFiles) {
  const TemporaryFolder folder;
  const std::string path = folder / "note.txt";
  for (const char* text : {"my note", "{}", "\n"}) {
    write_bytes(path, text);
    EXPECT_TRUE(says(refusal("/save! " + path), path, "no session"));
    EXPECT_EQ(read_bytes(path), text);
  }
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(says(refusal("/save! " + fifo), fifo, "regular"));
  write_bytes(path, "");
  type("/save! " + path);
  EXPECT_TRUE(told("saved " + path));
}

TEST_F(ChatTest, SavesOverNoSessionThatAnotherChatUses) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("a");
  type("/save " + path);
  const std::string saved = read_bytes(path);
  const FileLock lock = lock_session(path, "--session");
  EXPECT_TRUE(says(refusal("/save! " + path), "/save! " + path + ": another chat is using it"));
  EXPECT_TRUE(says(refusal("/save! " + path + ".lock"), path + ".lock"));
  EXPECT_EQ(read_bytes(path), saved);
  EXPECT_EQ(read_bytes(path + ".lock"), "");
}

TEST_F(ChatTest, SavesOverItsOwnSessionFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  const FileLock lock = lock_session(path, "--session");
  chat.keep_in(path);
  type("a");
  std::filesystem::create_symlink(path, folder / "link");
  type("/save! " + (folder / "link").string());
  EXPECT_TRUE(told("saved "));
}

TEST_F(ChatTest, DropsTheTokensOfAnotherModelAndSaysSo) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("a");
  type("/save " + path);
  Chat other(answerer, {.name = "n.bin", .fingerprint = "g", .vocab = 5}, {.prompt = {}}, output);
  other.load(path, "/load");
  EXPECT_TRUE(told("m.bin"));
  EXPECT_EQ(other.conversation().messages.at(1).content, "fine");
  EXPECT_TRUE(other.conversation().messages.at(1).tokens.empty());
  other.keep_in(path);
  other.save();  // is this model's from now on
  notices.clear();
  other.load(path, "/load");
  EXPECT_FALSE(told("m.bin"));
}

TEST_F(ChatTest, TellsWhichSettingsOfASessionHaveNoEffect) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("/set temperature 0.5");
  type("/save " + path);
  notices.clear();
  Chat searching(answerer, {.name = "m.bin", .fingerprint = "f", .vocab = 100},
                 {.prompt = {}, .search = {.beams = 4}}, output);
  searching.load(path, "--session");
  EXPECT_TRUE(told("saved there\ntemperature has no effect with beams, which draw nothing\n"));
  EXPECT_FALSE(told("top-k")) << "which the session has as it was";
}

TEST_F(ChatTest, RefusesASessionWhoseSystemPromptTheTemplateDoesNotKnow) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  type("/system Be brief.");
  type("/save " + path);
  type("/system \"\"");
  answerer.knows_system = false;
  EXPECT_TRUE(says(refusal("/load " + path), "system"));
}

TEST_F(ChatTest, KeepsItsSessionFileUpToDate) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  chat.keep_in(path);
  const auto kept = [&] {
    Chat reader(answerer, {.name = "m.bin", .fingerprint = "f", .vocab = 100}, {.prompt = {}},
                output);
    reader.load(path, "--session");
    return reader.conversation().messages.size();
  };
  type("a");
  EXPECT_EQ(kept(), 2U);
  type("b");
  EXPECT_EQ(kept(), 4U);
  type("/undo");
  EXPECT_EQ(kept(), 2U);
  type("/reset");
  EXPECT_EQ(kept(), 0U);
}

TEST_F(ChatTest, GoesOnWhenItsSessionFileCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder / "no" / "s.json";
  chat.keep_in(path);
  EXPECT_THROW(chat.save(), Error);
  type("a");
  EXPECT_TRUE(told(path));
  EXPECT_EQ(state(), "|a|fine,10,11");
}

}  // namespace
}  // namespace faststream::cli
