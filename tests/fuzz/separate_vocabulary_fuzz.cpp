// Tokenizers of translation models without a tokenizer.json: an Error, or one that reads any text
// and writes what it read. The bytes are a kind, 'm' (Marian), 'n' (M2M-100, NLLB) or 't' (T5);
// vocab.json; tokenizer_config.json; and the SentencePiece model; with zero bytes between them. A
// second side of Marian's is like the first.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "convert/tokenizers/separate_vocabulary.h"
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

}  // namespace

FUZZ_TARGET(separate_vocabulary) {
  static const VocabularyFolder folder;
  if (size == 0) return;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const char kind = rest.front();
  rest.remove_prefix(1);
  folder.clear();
  if (const std::string_view vocabulary = take_part(rest); kind != 't') {
    folder.write("vocab.json", vocabulary);
    folder.write("target_vocab.json", vocabulary);
  }
  folder.write("tokenizer_config.json", take_part(rest));
  folder.write(kind == 'm'   ? "source.spm"
               : kind == 'n' ? "sentencepiece.bpe.model"
                             : "spiece.model",
               rest);
  if (kind == 'm') folder.write("target.spm", rest);
  try {
    faststream::convert::SourceFiles files;
    const auto read = faststream::convert::read_separate_vocabulary(folder.path(), files);
    if (!read) return;
    const faststream::convert::TokenizerFile& file =
        read->encoder ? *read->encoder : read->tokenizer;
    const auto tokenizer = faststream::make_sentencepiece_tokenizer(
        faststream::as_bytes(file.sentencepiece), file.config.value(), "fuzz");
    for (const char* text : {"the cat", " \xE2\x96\x81 \xC3\xBC>>deu<< __en__", ""}) {
      for (const int32_t id : tokenizer->encode(text)) {
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
      }
      static_cast<void>(tokenizer->decode(tokenizer->encode(text)));
    }
  } catch (const faststream::Error&) {  // the only way to say no
  }
}
