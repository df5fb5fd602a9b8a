// What Python's pickle makes of weights: dictionaries, lists, numbers, texts and tensors. A pickle
// is a program that can have Python do anything; here it can make these and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/weights/elements.h"

namespace faststream::convert {

/// What a tensor's elements are in: one of the files, or pieces of a file, beside the pickle.
struct PickledStorage {
  std::string key;
  const ElementFormat* format = nullptr;  ///< null: bytes, whose type the tensor knows
  int64_t elements = 0;                   ///< of that type, or bytes
};

/// Numbers of elements, not bytes.
struct PickledTensor {
  PickledStorage storage = {};
  const ElementFormat* format = nullptr;
  int64_t offset = 0;
  std::vector<int64_t> shape = {};
  std::vector<int64_t> strides = {};  ///< as many
};

/// A value; what it contains is named by its place in Pickle::values.
struct PickledValue {
  enum class Kind {
    none,
    boolean,
    integer,
    real,
    text,
    tuple,
    list,
    dictionary,
    global,
    storage,
    tensor,
    mark
  };
  Kind kind = Kind::none;
  int64_t integer = 0;             ///< also 0 or 1 of a boolean
  std::string text = {};           ///< also the name of a global: "collections.OrderedDict"
  std::vector<size_t> items = {};  ///< of a dictionary, key, value, key, value, ...
  size_t tensor = 0;               ///< of a tensor, and of a storage a tensor that has only that
};

struct Pickle {
  std::vector<PickledValue> values;
  std::vector<PickledTensor> tensors;
  size_t root = 0;
  size_t end = 0;  ///< of the bytes that were read

  [[nodiscard]] const PickledValue& at(size_t index) const { return values[index]; }
};

/// Reads a pickle (protocols 2 to 5) from the beginning of `bytes`. Every tensor lies within its
/// storage. Throws Error, starting with `where`, when it ends too early, has instructions that
/// torch.save() does not write, or asks for anything but tensors, their storages and OrderedDict,
/// by the name of what it asks for.
Pickle read_pickle(std::span<const std::byte> bytes, std::string_view where);

}  // namespace faststream::convert
