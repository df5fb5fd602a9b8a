// From tokens back to text, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/json.h"

namespace faststream {

/// One step of decoding a text: takes the texts of tokens and passes on others. Not for several
/// texts or threads.
class DecodingStep {
 public:
  virtual ~DecodingStep() = default;

  /// A part of the text of a token, and whether it is the token's last part.
  struct Part {
    std::string_view text;
    bool ends_token = true;
    uint8_t flags = 0;  ///< of the token, for the first step (tables.h)
  };
  using Next = std::function<void(const Part&)>;

  virtual void push(const Part& part, const Next& next) = 0;
  virtual void finish(const Next& /*next*/) {}
  /// A step that goes on from here by itself.
  [[nodiscard]] virtual std::unique_ptr<DecodingStep> clone() const = 0;
};

/// The steps of tokenizer.json's "decoder", or SentencePiece's own. Immutable; any number of
/// threads may use it.
class Decoder {
 public:
  /// `decoder` is empty for none: a space between tokens. Throws Error for an unknown step.
  explicit Decoder(const std::optional<JsonView>& decoder);

  /// Whether each byte that is no part of a character is one U+FFFD, and a token that prints
  /// nothing ends a character. Else the beginning of a character is one U+FFFD, whatever its
  /// length, as in Rust, and such a token is passed over.
  [[nodiscard]] bool replaces_bytes() const { return replaces_bytes_; }

  /// Decodes one text.
  class Stream {
   public:
    /// `at_start`: a text begins with the first token; else it is one in the middle.
    Stream(const Decoder& decoder, bool at_start);
    Stream(const Stream& other);
    Stream(Stream&&) noexcept = default;
    Stream& operator=(const Stream&) = delete;
    Stream& operator=(Stream&&) = delete;
    ~Stream() = default;
    /// Appends to `bytes` what is certain after one more token.
    /// `flags`: the token's, as in the tables.
    void push(std::string_view token, uint8_t flags, std::string& bytes);
    /// What is left at the end.
    void finish(std::string& bytes);

   private:
    void pass(size_t step, const DecodingStep::Part& part, std::string& bytes);

    std::vector<std::unique_ptr<DecodingStep>> steps_;
  };

 private:
  using Make = std::function<std::unique_ptr<DecodingStep>(bool at_start)>;
  void add(const JsonView& step);

  std::vector<Make> steps_;
  bool replaces_bytes_ = false;
  bool is_fused_ = false;  // the steps so far make one token of all
};

}  // namespace faststream
