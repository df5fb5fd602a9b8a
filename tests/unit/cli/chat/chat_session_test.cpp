#include "cli/chat/chat_session.h"

#include <gtest/gtest.h>

#include "unit/engine/engine_model.h"
#include "unit/support/file_helpers.h"

namespace faststream::cli {
namespace {

Session sample() {
  return {
      .model = {.name = "m.bin", .fingerprint = "0123456789abcdef", .vocab = 100},
      .conversation = {.system = "Be brief.",
                       .messages = {{.role = "user", .content = "Hi \"you\"\n\\ \t \x01"},
                                    {.role = "assistant",
                                     .content = " Grüße, 世界 🙂",
                                     .tokens = {5, 0, 99}},
                                    {.role = "user", .content = ""},
                                    {.role = "assistant", .content = "", .tokens = {}}}},
      .settings = {.prompt = {}, .max_tokens = 40, .sampling = {.temperature = 0.1F, .seed = 7}}};
}

// An empty chat with the same model.
Session fresh() { return {.model = sample().model, .conversation = {}, .settings = {}}; }

void expect_equal(const Session& a, const Session& b) {
  EXPECT_EQ(session_to_json(a), session_to_json(b));
  ASSERT_EQ(a.conversation.messages.size(), b.conversation.messages.size());
  for (size_t i = 0; i < a.conversation.messages.size(); ++i) {
    EXPECT_EQ(a.conversation.messages[i].content, b.conversation.messages[i].content);
    EXPECT_EQ(a.conversation.messages[i].tokens, b.conversation.messages[i].tokens);
  }
}

TEST(ChatSession, SurvivesAFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "s.json";
  for (const bool with_system : {true, false}) {
    Session session = sample();
    if (!with_system) session.conversation.system.reset();
    write_session(path, session, true);  // the second time in place of the first
    expect_equal(read_session(path, fresh(), "/load"), session);
  }
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(ChatSession, KeepsTheTextAndDropsTheTokensOfAnotherModel) {
  Session current = fresh();
  current.model.fingerprint = "fedcba9876543210";
  current.model.vocab = 3;
  const Session read = session_from_json(session_to_json(sample()), current, "s");
  EXPECT_EQ(read.model.name, "m.bin");
  EXPECT_NE(read.model.fingerprint, current.model.fingerprint);
  EXPECT_EQ(read.conversation.messages.at(1).content, sample().conversation.messages.at(1).content);
  for (const Message& message : read.conversation.messages) EXPECT_TRUE(message.tokens.empty());
}

TEST(ChatSession, RefusesWhatIsNoSession) {
  const auto refused = [](const std::string& from, const std::string& to) {
    std::string text = session_to_json(sample());
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return error_of([&] { (void)session_from_json(text, fresh(), "s.json"); });
  };
  EXPECT_TRUE(says(refused(": 1,", ": 2,"), "s.json", "version"));
  EXPECT_TRUE(says(refused("faststream_chat", "other"), "s.json", "faststream_chat"));
  EXPECT_TRUE(says(refused("fingerprint", "finger"), "s.json", "finger"));
  EXPECT_TRUE(says(refused("\"Be brief.\"", "7"), "s.json", "system"));
  EXPECT_TRUE(says(refused("[5,0,99]", "[5,0,100]"), "s.json", "messages[1]", "99"));
  EXPECT_TRUE(says(refused("[5,0,99]", "[5,-1,99]"), "s.json", "messages[1]"));
  EXPECT_TRUE(says(refused("[5,0,99]", "[5,0.5]"), "s.json", "messages[1]"));
  EXPECT_TRUE(says(refused("[5,0,99]", "[4294967301]"), "s.json", "messages[1]"));
  EXPECT_TRUE(says(refused("[5,0,99]", "\"5\""), "s.json", "messages[1]"));
  EXPECT_TRUE(says(refused("\"user\"", "\"assistant\""), "s.json", "messages[0]"));
  EXPECT_TRUE(says(refused("\"assistant\"", "\"robot\""), "s.json", "messages[1]"));
  EXPECT_TRUE(says(refused("\"content\"", "\"text\""), "s.json", "messages[0]", "text"));
  EXPECT_TRUE(says(refused("\"messages\": [", "\"messages\": [3,"), "s.json", "messages[0]"));
  EXPECT_TRUE(says(refused("\"top-k\"", "\"top-q\""), "s.json", "top-k", "is missing"));
  EXPECT_TRUE(says(refused("\"messages\"", "\"notes\":1, \"messages\""), "s.json", "notes"));
  EXPECT_TRUE(says(refused("\"seed\":7", "\"seed\":1e999"), "s.json"));

  Session unanswered = sample();
  unanswered.conversation.messages.pop_back();
  EXPECT_TRUE(says(
      error_of([&] { (void)session_from_json(session_to_json(unanswered), fresh(), "s.json"); }),
      "s.json", "answer"));
  for (const char* text : {"", "[]", "{}", "null", "{\"faststream_chat\": 1}", "{\"a\":"}) {
    EXPECT_TRUE(says(error_of([&] { (void)session_from_json(text, fresh(), "s.json"); }), "s.json"))
        << text;
  }
}

TEST(ChatSession, SaysSoInOneSentenceWhenCutAtEverySixteenth) {
  const std::string whole = session_to_json(sample());
  for (size_t part = 0; part < 16; ++part) {
    const std::string cut = whole.substr(0, whole.size() * part / 16);
    EXPECT_TRUE(says(error_of([&] { (void)session_from_json(cut, fresh(), "s.json"); }), "s.json"))
        << part;
  }
}

// A flipped bit in a text is another text; elsewhere it is refused.
TEST(ChatSession, IsSoundOrRefusedWithAnyByteChanged) {
  const std::string whole = session_to_json(sample());
  size_t n_refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int mask : {0x01, 0x10, 0x40, 0x80}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      SCOPED_TRACE(damaged);
      try {
        const Session read = session_from_json(damaged, fresh(), "s.json");
        expect_equal(session_from_json(session_to_json(read), read, "again"), read);
      } catch (const Error& error) {
        ++n_refused;
        EXPECT_TRUE(says(error.what(), "s.json"));
      }
    }
  }
  EXPECT_GT(n_refused, whole.size());
}

TEST(ChatSession, NamesTheFileThatCannotBeReadOrWritten) {
  const TemporaryFolder folder;
  const std::string missing = folder / "no" / "s.json";
  EXPECT_TRUE(
      says(error_of([&] { (void)read_session(missing, fresh(), "/load"); }), missing, "/load"));
  EXPECT_TRUE(says(error_of([&] { write_session(missing, sample(), true); }), missing));
  EXPECT_TRUE(says(error_of([&] { write_session(folder.path(), sample(), true); }), "folder"));
}

TEST(ChatSession, KnowsAModelByItsContents) {
  const TemporaryFolder folder;
  const auto copy = folder / "copy.bin";
  std::filesystem::copy_file(engine_model(), copy);
  const ChatModel model = chat_model(ModelFile::open(copy));
  EXPECT_EQ(model.name, "copy.bin");
  EXPECT_EQ(model.vocab, engine_shape(WeightFormat::f32).vocab);
  EXPECT_EQ(model.fingerprint, chat_model(ModelFile::open(engine_model())).fingerprint);
  EXPECT_NE(model.fingerprint,
            chat_model(ModelFile::open(engine_model(WeightFormat::bf16))).fingerprint);
}

}  // namespace
}  // namespace faststream::cli
