// Tokenizers of translation models without a tokenizer.json: an Error, or one that reads any text
// and writes what it read. The bytes are a kind, 'm' (Marian), 'n' (M2M-100, NLLB), 'p' (PLBart),
// 't' (T5) or 'w' (subword-nmt); vocab.json; tokenizer_config.json; and the SentencePiece model, or
// merges.txt; with zero bytes between them. A second side of Marian's is like the first.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "convert/tokenizers/separate_vocabulary.h"
#include "convert/tokenizers/subword_nmt.h"
#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "text/tokenizer.h"
#include "unit/text/tokenizer_models.h"

namespace {

namespace fs = std::filesystem;

// A folder of this process, in memory where the machine has such files.
class VocabularyFolder {
 public:
  VocabularyFolder() {
    const fs::path memory = "/dev/shm";
    path_ = (fs::is_directory(memory) ? memory : fs::temp_directory_path()) /
            ("separate_vocabulary_fuzz." + std::to_string(getpid()));
    fs::create_directory(path_);
  }
  VocabularyFolder(const VocabularyFolder&) = delete;
  VocabularyFolder& operator=(const VocabularyFolder&) = delete;
  ~VocabularyFolder() { fs::remove_all(path_); }

  [[nodiscard]] const fs::path& path() const { return path_; }
  void clear() const {
    for (const auto& file : fs::directory_iterator(path_)) fs::remove(file);
  }
  void write(const char* name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

 private:
  fs::path path_;
};

std::string_view take_part(std::string_view& rest) {
  const size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

// The file that comes last.
const char* name_of_model(char kind) {
  switch (kind) {
    case 'm':
      return "source.spm";
    case 'n':
    case 'p':
      return "sentencepiece.bpe.model";
    case 'w':
      return "merges.txt";
    default:
      return "spiece.model";
  }
}

// Null where the folder has none of them.
std::unique_ptr<faststream::Tokenizer> read_tokenizer(const fs::path& folder) {
  faststream::convert::SourceFiles files;
  if (const auto read = faststream::convert::read_separate_vocabulary(folder, files)) {
    const faststream::convert::TokenizerFile& file =
        read->encoder ? *read->encoder : read->tokenizer;
    return faststream::make_sentencepiece_tokenizer(faststream::as_bytes(file.sentencepiece),
                                                    file.config.value(), "fuzz");
  }
  const auto read = faststream::convert::read_subword_nmt(folder, files);
  if (!read) return nullptr;
  return faststream::make_compiled_tokenizer(
      faststream::compile_tokenizer(*read->description, "fuzz"), read->config.value(), "fuzz");
}

}  // namespace

FUZZ_TARGET(separate_vocabulary) {
  static const VocabularyFolder folder;
  if (size == 0) return;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const char kind = rest.front();
  rest.remove_prefix(1);
  folder.clear();
  if (const std::string_view vocabulary = take_part(rest); kind != 't' && kind != 'p') {
    folder.write("vocab.json", vocabulary);
    folder.write("target_vocab.json", vocabulary);
  }
  folder.write("tokenizer_config.json", take_part(rest));
  folder.write(name_of_model(kind), rest);
  if (kind == 'm') folder.write("target.spm", rest);
  try {
    const auto tokenizer = read_tokenizer(folder.path());
    if (!tokenizer) return;
    for (const char* text : {"the cat", " \xE2\x96\x81 \xC3\xBC>>deu<< __en__", ""}) {
      for (const int32_t id : tokenizer->encode(text)) {
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
      }
      static_cast<void>(tokenizer->decode(tokenizer->encode(text)));
    }
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
