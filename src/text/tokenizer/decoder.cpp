#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/error.h"
#include "support/printable.h"
#include "support/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/tables.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer_description.h"

namespace faststream {
namespace {

std::string replace_text(std::string_view text, std::string_view what, std::string_view with) {
  std::string replaced;
  size_t done = 0;
  for (size_t at = what.empty() ? std::string_view::npos : text.find(what);
       at != std::string_view::npos; at = text.find(what, done)) {
    replaced += text.substr(done, at - done);
    replaced += with;
    done = at + what.size();
  }
  replaced += text.substr(done);
  return replaced;
}

// English punctuation and contractions as they are written.
std::string clean_up(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [what, with] : kRules) text = replace_text(text, what, with);
  return text;
}

/// A step that needs the whole text of a token.
class TokenStep : public DecodingStep {
 public:
  void push(const Part& part, const Next& next) final {
    token_ += part.text;
    if (part.ends_token) take(std::exchange(token_, {}), next);
  }
  void finish(const Next& next) final {
    if (!token_.empty()) take(std::exchange(token_, {}), next);
    end(next);
  }

 protected:
  virtual void take(std::string token, const Next& next) = 0;
  virtual void end(const Next& /*next*/) {}

 private:
  std::string token_;
};

/// What each step is: one that can be copied.
template <class Step, class Base>
class CopyableStep : public Base {
 public:
  [[nodiscard]] std::unique_ptr<DecodingStep> clone() const final {
    return std::make_unique<Step>(static_cast<const Step&>(*this));
  }
};

/// Without a decoder.
class SpaceStep final : public CopyableStep<SpaceStep, DecodingStep> {
 public:
  explicit SpaceStep(bool at_start) : first_(at_start) {}
  void push(const Part& part, const Next& next) override {
    if (!first_) next({.text = " ", .ends_token = false});
    first_ = false;
    next(part);
  }

 private:
  bool first_;
};

/// All tokens become one.
class FuseStep final : public CopyableStep<FuseStep, DecodingStep> {
 public:
  void push(const Part& part, const Next& next) override {
    next({.text = part.text, .ends_token = false});
  }
  void finish(const Next& next) override { next({.text = "", .ends_token = true}); }
};

/// The bytes that the tokens' characters stand for, as one token.
class ByteLevelStep final : public CopyableStep<ByteLevelStep, TokenStep> {
 protected:
  void take(std::string token, const Next& next) override {
    const auto bytes = from_byte_level(token);
    next({.text = bytes ? std::string_view(*bytes) : token, .ends_token = false});
  }
  void end(const Next& next) override { next({.text = "", .ends_token = true}); }
};

class ReplaceStep final : public CopyableStep<ReplaceStep, TokenStep> {
 public:
  ReplaceStep(std::shared_ptr<const TextOrPattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 protected:
  void take(std::string token, const Next& next) override {
    TokenizerBudget budget(token.size());
    next({.text = replace_all(token, *pattern_, content_, budget)});
  }

 private:
  std::shared_ptr<const TextOrPattern> pattern_;
  std::string content_;
};

/// Runs of <0x..> are UTF-8, or as many U+FFFD: known only when the run ends.
class ByteFallbackStep final : public CopyableStep<ByteFallbackStep, TokenStep> {
 protected:
  void take(std::string token, const Next& next) override {
    if (const auto byte = byte_named(token)) {
      run_ += static_cast<char>(*byte);
      return;
    }
    end(next);
    next({.text = token});
  }
  void end(const Next& next) override {
    const std::string run = std::exchange(run_, {});
    if (is_valid_utf8(run)) {
      if (!run.empty()) next({.text = run});
      return;
    }
    for (size_t i = 0; i < run.size(); ++i) next({.text = kReplacementCharacter});
  }

 private:
  std::string run_;
};

/// Takes up to `start` characters from the start of each token and up to `stop` from its end.
class StripStep final : public CopyableStep<StripStep, DecodingStep> {
 public:
  StripStep(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void push(const Part& part, const Next& next) override {
    std::string_view text = part.text;
    for (; at_start_ && n_taken_ < start_ && text.starts_with(content_); ++n_taken_) {
      text.remove_prefix(content_.size());
    }
    if (!text.empty()) at_start_ = false;
    held_ += text;
    size_t kept = held_.size();
    for (int64_t n = 0; n < stop_ && std::string_view(held_).substr(0, kept).ends_with(content_);
         ++n) {
      kept -= content_.size();
    }
    next({.text = std::string_view(held_).substr(0, kept), .ends_token = part.ends_token});
    held_.erase(0, part.ends_token ? held_.size() : kept);
    if (part.ends_token) {
      at_start_ = true;
      n_taken_ = 0;
    }
  }
  /// In the middle of a text, of which the first token is a part.
  void skip_start() { at_start_ = false; }

 private:
  std::string content_;
  int64_t start_;
  int64_t stop_;
  bool at_start_ = true;
  int64_t n_taken_ = 0;
  std::string held_;  // what may be taken from the end
};

class MetaspaceStep final : public CopyableStep<MetaspaceStep, TokenStep> {
 public:
  MetaspaceStep(std::string symbol, bool drops_first)
      : symbol_(std::move(symbol)), drop_(drops_first) {}

 protected:
  void take(std::string token, const Next& next) override {
    next({.text = replace_text(token, symbol_, std::exchange(drop_, false) ? "" : " ")});
  }

 private:
  std::string symbol_;
  bool drop_;
};

class WordPieceStep final : public CopyableStep<WordPieceStep, TokenStep> {
 public:
  WordPieceStep(std::string prefix, bool cleanup, bool at_start)
      : prefix_(std::move(prefix)), cleanup_(cleanup), first_(at_start) {}

 protected:
  void take(std::string token, const Next& next) override {
    if (!std::exchange(first_, false)) {
      if (token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(0, " ");
      }
    }
    next({.text = cleanup_ ? clean_up(std::move(token)) : token});
  }

 private:
  std::string prefix_;
  bool cleanup_;
  bool first_;
};

/// The end of a word is a space, but for that of the last token.
class BpeStep final : public CopyableStep<BpeStep, TokenStep> {
 public:
  explicit BpeStep(std::string suffix) : suffix_(std::move(suffix)) {}

 protected:
  void take(std::string token, const Next& next) override {
    if (last_) next({.text = replace_text(*last_, suffix_, " ")});
    last_ = std::move(token);
  }
  void end(const Next& next) override {
    if (last_) next({.text = replace_text(*std::exchange(last_, {}), suffix_, "")});
  }

 private:
  std::string suffix_;
  std::optional<std::string> last_;
};

/// Connectionist temporal classification: repeated tokens count once, and padding not at all.
class CtcStep final : public CopyableStep<CtcStep, TokenStep> {
 public:
  CtcStep(std::string padding, std::string delimiter, bool cleanup)
      : padding_(std::move(padding)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}

 protected:
  void take(std::string token, const Next& next) override {
    if (last_ == token) return;
    last_ = token;
    std::string text = replace_text(token, padding_, "");
    if (cleanup_) text = replace_text(clean_up(std::move(text)), delimiter_, " ");
    if (!text.empty()) next({.text = text});
  }

 private:
  std::string padding_;
  std::string delimiter_;
  bool cleanup_;
  std::optional<std::string> last_;
};

/// Tokens as SentencePiece's Decode() writes them. The space that its normalizer puts before a text
/// goes, or all spaces there; those of bytes and of the unknown token stay.
class SentencePieceStep final : public CopyableStep<SentencePieceStep, DecodingStep> {
 public:
  enum class Drops { none, one, all };
  SentencePieceStep(std::string unknown, Drops drops, bool at_start)
      : unknown_(std::move(unknown)), drops_(drops), at_start_(at_start) {}

  void push(const Part& part, const Next& next) override {
    if ((part.flags & kTokenSpecial) != 0) return next({.text = part.text});
    text_.clear();
    bool dropped = false;
    if ((part.flags & kTokenUnknown) != 0) {
      text_ = unknown_;
    } else if (const auto byte =
                   (part.flags & kTokenByte) != 0 ? byte_named(part.text) : std::nullopt) {
      text_ = static_cast<char>(*byte);
    } else {
      dropped = at_start_ && drops_ != Drops::none && part.text.starts_with(kSpaceSymbol);
      append_spaced(part.text.substr(dropped ? kSpaceSymbol.size() : 0));
    }
    at_start_ = at_start_ && text_.empty() && (!dropped || drops_ == Drops::all);
    next({.text = text_});
  }

 private:
  void append_spaced(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const size_t symbol = std::min(text.find(kSpaceSymbol, at), text.size());
      text_ += text.substr(at, symbol - at);
      if (symbol < text.size()) text_ += ' ';
      at = std::min(symbol + kSpaceSymbol.size(), text.size());
    }
  }

  std::string unknown_;
  Drops drops_;
  bool at_start_;
  std::string text_;  // of the last token
};

}  // namespace

Decoder::Decoder(const std::optional<JsonView>& decoder) {
  if (decoder) {
    add(*decoder);
  } else {
    steps_.emplace_back([](bool at_start) { return std::make_unique<SpaceStep>(at_start); });
  }
}

void Decoder::add(const JsonView& step) {
  const auto type = step.get<std::string>("type");
  if (type == "Sequence") {
    for (const JsonView& part : step.member("decoders").elements()) add(part);
  } else if (type == "ByteLevel") {
    steps_.emplace_back([](bool) { return std::make_unique<ByteLevelStep>(); });
  } else if (type == "Fuse") {
    steps_.emplace_back([](bool) { return std::make_unique<FuseStep>(); });
  } else if (type == "ByteFallback") {
    steps_.emplace_back([](bool) { return std::make_unique<ByteFallbackStep>(); });
  } else if (type == "Replace") {
    const auto pattern = std::make_shared<const TextOrPattern>(step.member("pattern"));
    steps_.emplace_back([pattern, content = step.get<std::string>("content")](bool) {
      return std::make_unique<ReplaceStep>(pattern, content);
    });
  } else if (type == "Strip") {
    constexpr int64_t kMost = int64_t{1} << 30;
    const auto content = step.get<std::string>("content");
    if (content.empty()) step.member("content").fail("is empty");
    const auto start = step.member("start").as<int64_t>(0, kMost);
    const auto stop = step.member("stop").as<int64_t>(0, kMost);
    // After a step that makes one token of all, this one is that of the whole text.
    steps_.emplace_back([content, start, stop, fused = is_fused_](bool at_start) {
      auto strip = std::make_unique<StripStep>(content, start, stop);
      if (fused && !at_start) strip->skip_start();
      return strip;
    });
  } else if (type == "Metaspace") {
    const bool drops = step.get<std::string>("prepend_scheme", "always") != "never" &&
                       step.get("add_prefix_space", true);
    steps_.emplace_back([drops, symbol = step.get<std::string>("replacement")](bool at_start) {
      return std::make_unique<MetaspaceStep>(symbol, drops && at_start);
    });
  } else if (type == "WordPiece") {
    steps_.emplace_back([prefix = step.get<std::string>("prefix"),
                         cleanup = step.get<bool>("cleanup")](bool at_start) {
      return std::make_unique<WordPieceStep>(prefix, cleanup, at_start);
    });
  } else if (type == "BPEDecoder") {
    steps_.emplace_back([suffix = step.get<std::string>("suffix")](bool) {
      return std::make_unique<BpeStep>(suffix);
    });
  } else if (type == "SentencePiece") {
    using Drops = SentencePieceStep::Drops;
    const auto name = step.get<std::string>("drop_spaces");
    if (name != "none" && name != "one" && name != "all") {
      step.member("drop_spaces").fail("is not none, one or all");
    }
    const Drops drops = name == "none" ? Drops::none : name == "one" ? Drops::one : Drops::all;
    replaces_bytes_ = true;
    steps_.emplace_back([drops, unknown = step.get<std::string>("unknown")](bool at_start) {
      return std::make_unique<SentencePieceStep>(unknown, drops, at_start);
    });
  } else if (type == "CTC") {
    steps_.emplace_back([padding = step.get<std::string>("pad_token"),
                         delimiter = step.get<std::string>("word_delimiter_token"),
                         cleanup = step.get<bool>("cleanup")](bool) {
      return std::make_unique<CtcStep>(padding, delimiter, cleanup);
    });
  } else {
    step.member("type").fail("is the decoder " + in_quotes(type) + ", which is not supported");
  }
  is_fused_ = is_fused_ || type == "ByteLevel" || type == "Fuse";
}

Decoder::Stream::Stream(const Decoder& decoder, bool at_start) {
  for (const Make& make : decoder.steps_) steps_.push_back(make(at_start));
}

Decoder::Stream::Stream(const Stream& other) {
  for (const auto& step : other.steps_) steps_.push_back(step->clone());
}

void Decoder::Stream::pass(size_t step, const DecodingStep::Part& part, std::string& bytes) {
  constexpr size_t kMost = size_t{16} << 20;  // a whole text, where a step makes one token of all
  if (part.text.size() > kMost) {
    throw Error(
        "the tokenizer's decoder makes more than 16 MB of text of a token; is the tokenizer the "
        "model's original one?");
  }
  if (step == steps_.size()) {
    bytes += part.text;
    return;
  }
  steps_[step]->push(part, [&](const DecodingStep::Part& next) { pass(step + 1, next, bytes); });
}

void Decoder::Stream::push(std::string_view token, uint8_t flags, std::string& bytes) {
  pass(0, {.text = token, .flags = flags}, bytes);
}

void Decoder::Stream::finish(std::string& bytes) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    steps_[i]->finish([&](const DecodingStep::Part& next) { pass(i + 1, next, bytes); });
  }
}

}  // namespace faststream
