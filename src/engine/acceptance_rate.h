// How many of the tokens that are proposed turn out to be right.
#pragma once

#include <array>
#include <cstdint>

namespace faststream {

/// The share of proposed tokens that were accepted lately, beside what is expected before any was.
class AcceptanceRate {
 public:
  /// memory: proposals, of which as many later ones leave a third of what they said.
  explicit AcceptanceRate(float memory) : kept_(1 - 1 / memory) {}

  /// What is expected counts as much as a few tokens.
  [[nodiscard]] float value(float expected) const {
    constexpr float kWeight = 4;  // tokens
    return (accepted_ + kWeight * expected) / (tried_ + kWeight);
  }
  /// A step went by, in which a part of it is forgotten: what was wrong is tried again some day.
  void age(float forgotten) {
    accepted_ -= forgotten * accepted_;
    tried_ -= forgotten * tried_;
  }
  /// Of n_proposed tokens in a row the first n_accepted were right; what follows a wrong one was
  /// not tried.
  void note(int32_t n_proposed, int32_t n_accepted) {
    accepted_ = kept_ * accepted_ + static_cast<float>(n_accepted);
    tried_ = kept_ * tried_ + static_cast<float>(n_accepted + (n_accepted < n_proposed ? 1 : 0));
  }

 private:
  float kept_;
  float accepted_ = 0;
  float tried_ = 0;
};

/// That of all texts of an engine, which new ones expect.
class CommonRate {
 public:
  /// hoped: before anything is known, and again when that is long ago.
  explicit CommonRate(float hoped) : hoped_(hoped) {}

  [[nodiscard]] float value() const { return known_.value(hoped_); }
  /// A step of a text went by.
  void age() { known_.age(0.002F); }
  void note(int32_t n_proposed, int32_t n_accepted) { known_.note(n_proposed, n_accepted); }

 private:
  float hoped_;
  AcceptanceRate known_{50};
};

/// A text's: that of all until its own tokens say something else. What these say, all are told.
class TextRate {
 public:
  [[nodiscard]] float value(const CommonRate& common) const { return own_.value(common.value()); }
  void age(CommonRate& common) {
    own_.age(0.02F);
    common.age();
  }
  void note(int32_t n_proposed, int32_t n_accepted, CommonRate& common) {
    own_.note(n_proposed, n_accepted);
    common.note(n_proposed, n_accepted);
  }

 private:
  AcceptanceRate own_{10};
};

/// Those of an engine's texts, by what proposes.
struct CommonRates {
  CommonRate forced{0.95F};  ///< rules of output
  CommonRate draft{0.8F};    ///< another model, or heads
  /// The text itself, by the tokens that stood somewhere before: 1, 2, up to 4, up to 8, more.
  std::array<CommonRate, 5> lookup = {CommonRate(0.2F), CommonRate(0.4F), CommonRate(0.6F),
                                      CommonRate(0.75F), CommonRate(0.9F)};
};

}  // namespace faststream
