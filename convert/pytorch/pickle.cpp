// Instructions: CPython's Lib/pickletools.py. What torch.save() writes with them:
// torch/_tensor.py (__reduce_ex__), torch/_utils.py, torch/serialization.py.
#include "convert/pytorch/pickle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "support/error.h"
#include "support/printable.h"

namespace faststream::convert {
namespace {

using Kind = PickledValue::Kind;

struct NamedFormat {
  std::string_view name;
  std::string_view format;  // as safetensors call it; "": bytes
};

constexpr auto kStorages = std::to_array<NamedFormat>({{"torch.FloatStorage", "F32"},
                                                       {"torch.HalfStorage", "F16"},
                                                       {"torch.BFloat16Storage", "BF16"},
                                                       {"torch.DoubleStorage", "F64"},
                                                       {"torch.LongStorage", "I64"},
                                                       {"torch.IntStorage", "I32"},
                                                       {"torch.ShortStorage", "I16"},
                                                       {"torch.CharStorage", "I8"},
                                                       {"torch.ByteStorage", "U8"},
                                                       {"torch.BoolStorage", "BOOL"},
                                                       {"torch.storage.UntypedStorage", ""}});

constexpr auto kTensorTypes = std::to_array<NamedFormat>({{"torch.float32", "F32"},
                                                          {"torch.float16", "F16"},
                                                          {"torch.bfloat16", "BF16"},
                                                          {"torch.float64", "F64"},
                                                          {"torch.int64", "I64"},
                                                          {"torch.int32", "I32"},
                                                          {"torch.int16", "I16"},
                                                          {"torch.int8", "I8"},
                                                          {"torch.uint8", "U8"},
                                                          {"torch.uint16", "U16"},
                                                          {"torch.uint32", "U32"},
                                                          {"torch.uint64", "U64"},
                                                          {"torch.bool", "BOOL"},
                                                          {"torch.float8_e4m3fn", "F8_E4M3"},
                                                          {"torch.float8_e5m2", "F8_E5M2"},
                                                          {"torch.float8_e8m0fnu", "F8_E8M0"}});

constexpr std::string_view kDictionary = "collections.OrderedDict";
constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kTypedTensor = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kParameter = "torch._utils._rebuild_parameter";

template <size_t n>
const NamedFormat* find_named(const std::array<NamedFormat, n>& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &NamedFormat::name);
  return found == table.end() ? nullptr : &*found;
}

bool is_known(std::string_view name) {
  return name == kDictionary || name == kTensor || name == kTypedTensor || name == kParameter ||
         find_named(kStorages, name) != nullptr || find_named(kTensorTypes, name) != nullptr;
}

class Unpickler {
 public:
  Unpickler(std::span<const std::byte> bytes, std::string_view where)
      : bytes_(bytes), where_(where) {}

  Pickle run() {
    while (step()) {
    }
    const size_t root = pop();
    return {std::move(values_), std::move(tensors_), root, at_};
  }

 private:
  // --- Bytes
  // --------------------------------------------------------------------------------------

  [[noreturn]] void fail(const std::string& what) const { throw Error(where_ + ": " + what); }
  [[noreturn]] void damaged() const {
    fail("is damaged, or no weights that torch.save() wrote; download it again");
  }

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) damaged();
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
    at_ += size;
    return text;
  }

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view line() {
    const size_t begin = at_;
    while (number<char>() != '\n') {
    }
    return {reinterpret_cast<const char*>(bytes_.data()) + begin, at_ - begin - 1};
  }

  // --- Values
  // -------------------------------------------------------------------------------------

  void push(PickledValue value) {
    values_.push_back(std::move(value));
    stack_.push_back(values_.size() - 1);
  }
  void push_integer(int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_text(uint64_t size) { push({.kind = Kind::text, .text = std::string(take(size))}); }

  size_t pop() {
    if (stack_.empty() || values_[stack_.back()].kind == Kind::mark) damaged();
    const size_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  // What stands above the last mark, which goes too.
  std::vector<size_t> pop_to_mark() {
    std::vector<size_t> items;
    while (!stack_.empty() && values_[stack_.back()].kind != Kind::mark) items.push_back(pop());
    if (stack_.empty()) damaged();
    stack_.pop_back();
    std::ranges::reverse(items);
    return items;
  }
  void push_tuple(size_t count) {
    std::vector<size_t> items(count);
    for (size_t i = count; i > 0; --i) items[i - 1] = pop();
    push({.kind = Kind::tuple, .items = std::move(items)});
  }
  // The value below what was popped, which must be of that kind.
  PickledValue& top(Kind kind) {
    if (stack_.empty() || values_[stack_.back()].kind != kind) damaged();
    return values_[stack_.back()];
  }
  void add_items(Kind kind, const std::vector<size_t>& items) {
    if (kind == Kind::dictionary && items.size() % 2 != 0) damaged();
    std::vector<size_t>& known = top(kind).items;
    known.insert(known.end(), items.begin(), items.end());
  }

  void remember(uint64_t index) {
    if (stack_.empty()) damaged();
    memo_[index] = stack_.back();
  }
  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) damaged();
    stack_.push_back(found->second);
  }

  void push_integer_of(size_t size) {
    if (size > sizeof(int64_t)) damaged();
    const std::string_view digits = take(size);
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      value |= uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
    }
    const bool negative = size > 0 && (digits.back() & 0x80) != 0;
    if (negative && size < sizeof value) value |= ~uint64_t{0} << (8 * size);
    push_integer(static_cast<int64_t>(value));
  }

  void push_global(std::string_view module, std::string_view member) {
    std::string name = std::string(module) + "." + std::string(member);
    if (!is_known(name)) {
      fail("asks Python for " + in_quotes(name) +
           ", which is no tensor of weights; such a file is not read, since it could run any "
           "program");
    }
    push({.kind = Kind::global, .text = std::move(name)});
  }

  // --- Tensors
  // ------------------------------------------------------------------------------------

  [[nodiscard]] const PickledValue& item(const PickledValue& of, size_t index, Kind kind) const {
    if (index >= of.items.size() || values_[of.items[index]].kind != kind) damaged();
    return values_[of.items[index]];
  }

  [[nodiscard]] std::vector<int64_t> extents(const PickledValue& tuple) const {
    constexpr size_t kMostDimensions = 8;
    if (tuple.items.size() > kMostDimensions) damaged();
    std::vector<int64_t> extents;
    for (size_t i = 0; i < tuple.items.size(); ++i) {
      extents.push_back(item(tuple, i, Kind::integer).integer);
      if (extents.back() < 0) damaged();
    }
    return extents;
  }

  void push_with_tensor(Kind kind, PickledTensor tensor) {
    tensors_.push_back(std::move(tensor));
    push({.kind = kind, .tensor = tensors_.size() - 1});
  }

  // ("storage", a class, a key, a device, its elements), and in older files what part of another
  // one it is: none.
  void push_storage() {
    const PickledValue& tuple = values_[pop()];
    if (tuple.kind != Kind::tuple || item(tuple, 0, Kind::text).text != "storage") damaged();
    const NamedFormat* type = find_named(kStorages, item(tuple, 1, Kind::global).text);
    if (type == nullptr) damaged();
    PickledStorage storage{item(tuple, 2, Kind::text).text, find_element_format(type->format),
                           item(tuple, 4, Kind::integer).integer};
    if (tuple.items.size() > 5) static_cast<void>(item(tuple, 5, Kind::none));
    const int64_t bytes = storage.format == nullptr ? 1 : storage.format->block_bytes;
    if (storage.elements < 0 || storage.elements > std::numeric_limits<int64_t>::max() / bytes) {
      damaged();
    }
    push_with_tensor(Kind::storage, {.storage = std::move(storage)});
  }

  // What torch says of a tensor whose values are others than its storage's: "neg" or "conj".
  void refuse_views(const PickledValue& arguments, size_t index) const {
    if (index >= arguments.items.size()) return;
    const PickledValue& metadata = values_[arguments.items[index]];
    if (metadata.kind == Kind::none) return;
    if (metadata.kind != Kind::dictionary) damaged();
    if (metadata.items.empty()) return;
    fail(
        "has a tensor that is the negative or the conjugate of another; save the weights as "
        "safetensors");
  }

  // Arguments: a storage, an offset, sizes, strides, and two that do not matter; then a type, where
  // the storage has none, and what else torch says of the tensor.
  void push_tensor(const PickledValue& arguments, bool typed) {
    PickledTensor tensor = tensors_[item(arguments, 0, Kind::storage).tensor];
    tensor.format = tensor.storage.format;
    tensor.offset = item(arguments, 1, Kind::integer).integer;
    tensor.shape = extents(item(arguments, 2, Kind::tuple));
    tensor.strides = extents(item(arguments, 3, Kind::tuple));
    if (typed) {
      const NamedFormat* type = find_named(kTensorTypes, item(arguments, 6, Kind::global).text);
      if (type == nullptr) damaged();
      tensor.format = find_element_format(type->format);
    }
    if (tensor.format == nullptr || tensor.strides.size() != tensor.shape.size()) damaged();
    constexpr size_t kAfterHooks = 6;
    refuse_views(arguments, kAfterHooks + (typed ? 1 : 0));
    check_bounds(tensor);
    push_with_tensor(Kind::tensor, std::move(tensor));
  }

  void check_bounds(const PickledTensor& tensor) const {
    int64_t elements = tensor.storage.elements;
    if (tensor.storage.format == nullptr) elements /= tensor.format->block_bytes;
    if (tensor.offset < 0 || tensor.offset > elements) damaged();
    int64_t last = tensor.offset;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      if (tensor.shape[i] == 0) return;
      const int64_t steps = tensor.shape[i] - 1;
      const int64_t stride = tensor.strides[i];
      if (stride > 0 && steps > (elements - last) / stride) damaged();
      // Elements that are one and the same could make a tensor of any size of a small file.
      if (stride == 0 && steps > 0) fail("has a tensor whose rows share their elements");
      last += steps * stride;
    }
    if (last >= elements) damaged();
  }

  void reduce() {
    const PickledValue& arguments = values_[pop()];
    const PickledValue& function = values_[pop()];
    if (arguments.kind != Kind::tuple || function.kind != Kind::global) damaged();
    if (function.text == kDictionary) {
      if (!arguments.items.empty()) damaged();
      push({.kind = Kind::dictionary});
    } else if (function.text == kTensor || function.text == kTypedTensor) {
      push_tensor(arguments, function.text == kTypedTensor);
    } else if (function.text == kParameter) {
      static_cast<void>(item(arguments, 0, Kind::tensor));
      stack_.push_back(arguments.items[0]);
    } else {
      damaged();
    }
  }

  // --- Instructions
  // -------------------------------------------------------------------------------

  // False: that was the last one.
  bool step() {
    const auto code = number<uint8_t>();
    switch (code) {
      case 0x80:  // PROTO
        static_cast<void>(take(1));
        return true;
      case 0x95:  // FRAME
        static_cast<void>(take(8));
        return true;
      case '.':  // STOP
        return false;
      case '(':  // MARK
        push({.kind = Kind::mark});
        return true;
      case 'N':  // NONE
        push({});
        return true;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push({.kind = Kind::boolean, .integer = code == 0x88 ? 1 : 0});
        return true;
      case 'J':  // BININT
        push_integer(number<int32_t>());
        return true;
      case 'K':  // BININT1
        push_integer(number<uint8_t>());
        return true;
      case 'M':  // BININT2
        push_integer(number<uint16_t>());
        return true;
      case 0x8a:  // LONG1
        push_integer_of(number<uint8_t>());
        return true;
      case 'G':  // BINFLOAT
        static_cast<void>(take(8));
        push({.kind = Kind::real});
        return true;
      case 'X':  // BINUNICODE
        push_text(number<uint32_t>());
        return true;
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING
        push_text(number<uint8_t>());
        return true;
      default:
        return step_of_containers(code);
    }
  }

  bool step_of_containers(uint8_t code) {
    switch (code) {
      case ')':  // EMPTY_TUPLE
        push({.kind = Kind::tuple});
        return true;
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
        push_tuple(code - size_t{0x84});
        return true;
      case 't':  // TUPLE
        push({.kind = Kind::tuple, .items = pop_to_mark()});
        return true;
      case ']':  // EMPTY_LIST
        push({.kind = Kind::list});
        return true;
      case 'a':  // APPEND
        add_items(Kind::list, {pop()});
        return true;
      case 'e':  // APPENDS
        add_items(Kind::list, pop_to_mark());
        return true;
      case '}':  // EMPTY_DICT
        push({.kind = Kind::dictionary});
        return true;
      case 's': {  // SETITEM
        const size_t value = pop();
        add_items(Kind::dictionary, {pop(), value});
        return true;
      }
      case 'u':  // SETITEMS
        add_items(Kind::dictionary, pop_to_mark());
        return true;
      case 'q':  // BINPUT
        remember(number<uint8_t>());
        return true;
      case 'r':  // LONG_BINPUT
        remember(number<uint32_t>());
        return true;
      case 0x94:  // MEMOIZE
        remember(memo_.size());
        return true;
      case 'h':  // BINGET
        recall(number<uint8_t>());
        return true;
      case 'j':  // LONG_BINGET
        recall(number<uint32_t>());
        return true;
      default:
        return step_of_objects(code);
    }
  }

  bool step_of_objects(uint8_t code) {
    switch (code) {
      case 'c': {  // GLOBAL
        const std::string_view module = line();
        push_global(module, line());
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const size_t member = pop();
        const size_t module = pop();
        if (values_[member].kind != Kind::text || values_[module].kind != Kind::text) damaged();
        push_global(std::string(values_[module].text), std::string(values_[member].text));
        return true;
      }
      case 'R':  // REDUCE
        reduce();
        return true;
      case 'b':  // BUILD, of a dictionary: what a module's versions are
        static_cast<void>(pop());
        static_cast<void>(top(Kind::dictionary));
        return true;
      case 'Q':  // BINPERSID
        push_storage();
        return true;
      default:
        fail("has an instruction of pickle (" + std::to_string(code) +
             ") that torch.save() does not write for weights");
    }
  }

  std::span<const std::byte> bytes_;
  std::string where_;
  size_t at_ = 0;
  std::vector<PickledValue> values_;
  std::vector<PickledTensor> tensors_;
  std::vector<size_t> stack_;
  std::map<uint64_t, size_t> memo_;
};

}  // namespace

Pickle read_pickle(std::span<const std::byte> bytes, std::string_view where) {
  return Unpickler(bytes, where).run();
}

}  // namespace faststream::convert
