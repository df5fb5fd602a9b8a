#include "convert/pytorch/pytorch_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "convert/pytorch/pickle.h"
#include "golden/golden_data.h"
#include "support/error.h"
#include "unit/support/file_helpers.h"

namespace faststream::convert {
namespace {

std::string text_of(const std::string& text) {  // BINUNICODE
  const auto size = static_cast<uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}
std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
std::string integer(int32_t value) {
  return "J" + std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// A storage of 6 float32.
const std::string kStorage = "(" + text_of("storage") + global("torch", "FloatStorage") +
                             text_of("0") + text_of("cpu") + integer(6) + "tQ";

std::string tensor(const std::string& offset, const std::string& shape,
                   const std::string& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + kStorage + offset + shape + strides +
         "\x89" + global("collections", "OrderedDict") + ")RtR";
}
std::string pair(int32_t a, int32_t b) { return integer(a) + integer(b) + "\x86"; }

// A pickle of {"w": value}.
std::string state(const std::string& value) { return "\x80\x02}(" + text_of("w") + value + "u."; }

Pickle read(const std::string& bytes) {
  return read_pickle(std::as_bytes(std::span(bytes)), "file");
}
std::string pickle_error(const std::string& bytes) {
  return error_of([&] { read(bytes); });
}

TEST(Pickle, HasTensorsOfStorages) {
  const Pickle pickle = read(state(tensor(integer(0), pair(2, 3), pair(3, 1))));
  ASSERT_EQ(pickle.at(pickle.root).items.size(), 2U);
  EXPECT_EQ(pickle.at(pickle.at(pickle.root).items[0]).text, "w");
  const PickledTensor& made = pickle.tensors[pickle.at(pickle.at(pickle.root).items[1]).tensor];
  EXPECT_EQ(made.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(made.strides, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(made.storage.key, "0");
  EXPECT_EQ(made.format, &kF32Format);
}

TEST(Pickle, AsksForNothingElse) {
  EXPECT_TRUE(says(pickle_error("\x80\x02" + global("os", "system") + text_of("ls") + "\x85R."),
                   "\"os.system\"", "no tensor"));
  EXPECT_TRUE(says(pickle_error("\x80\x04" + text_of("builtins") + text_of("eval") + "\x93."),
                   "\"builtins.eval\""));
  EXPECT_TRUE(says(pickle_error(state(global("torch._utils", "_rebuild_sparse_tensor") + ")R")),
                   "_rebuild_sparse_tensor"));
  EXPECT_TRUE(says(pickle_error("\x80\x02i"), "instruction"));
  // A known class where no object of it makes sense.
  EXPECT_TRUE(says(pickle_error(state(global("torch", "FloatStorage") + ")R")), "damaged"));
}

TEST(Pickle, RefusesTensorsThatAreOthersNegated) {
  const auto with_metadata = [](const std::string& metadata) {
    std::string made = tensor(integer(0), pair(2, 3), pair(3, 1));
    return state(made.insert(made.size() - 2, metadata));
  };
  EXPECT_EQ(pickle_error(with_metadata("N")), "");
  EXPECT_EQ(pickle_error(with_metadata("}")), "");
  EXPECT_TRUE(says(pickle_error(with_metadata("}" + text_of("neg") + "\x88s")), "negative"));
  EXPECT_TRUE(says(pickle_error(with_metadata("\x88")), "damaged"));
}

TEST(Pickle, RefusesTensorsOutsideOfTheirStorage) {
  EXPECT_EQ(pickle_error(state(tensor(integer(0), pair(3, 2), pair(1, 3)))), "");
  EXPECT_TRUE(says(pickle_error(state(tensor(integer(1), pair(2, 3), pair(3, 1)))), "damaged"));
  EXPECT_TRUE(says(pickle_error(state(tensor(integer(-1), pair(2, 2), pair(2, 1)))), "damaged"));
  EXPECT_TRUE(says(pickle_error(state(tensor(integer(0), pair(2, 4), pair(4, 1)))), "damaged"));
  EXPECT_TRUE(says(pickle_error(state(tensor(integer(0), pair(2, -3), pair(3, 1)))), "damaged"));
  EXPECT_TRUE(
      says(pickle_error(state(tensor(integer(0), pair(1 << 30, 1 << 30), pair(1, 1)))), "damaged"));
  EXPECT_TRUE(says(pickle_error(state(tensor(integer(0), pair(1 << 30, 3), pair(0, 1)))), "share"));
  EXPECT_TRUE(
      says(pickle_error(state(tensor(integer(0), pair(2, 3), integer(1) + "\x85"))), "damaged"));
}

TEST(Pickle, IsRefusedWhereverItEnds) {
  const std::string whole = state(tensor(integer(0), pair(2, 3), pair(3, 1)));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(says(pickle_error(whole.substr(0, size)), "damaged")) << size;
  }
  EXPECT_TRUE(says(pickle_error("\x80\x02u."), "damaged"));
  EXPECT_TRUE(says(pickle_error("\x80\x02."), "damaged"));
  EXPECT_TRUE(says(pickle_error("\x80\x02h\x01."), "damaged"));
}

// --- Files
// -------------------------------------------------------------------------------------------

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct Archive {
  bool large = false;  // sizes in fields of 64 bits
  uint16_t method = 0;
  std::vector<std::pair<std::string, std::string>> files;

  [[nodiscard]] std::string bytes() const {
    std::string bytes;
    std::string directory;
    for (const auto& file : files) {
      const std::string& name = file.first;
      const std::string& data = file.second;
      const uint64_t header = bytes.size();
      const auto size = static_cast<uint32_t>(data.size());
      const auto names = [&](std::string& to, uint16_t extra) {
        put(to, static_cast<uint16_t>(name.size()));
        put(to, extra);
      };
      const auto fixed = [&](std::string& to, uint32_t s) {
        put(to, uint16_t{0});
        put(to, method);
        put(to, uint32_t{0});
        put(to, uint32_t{0});
        put(to, s);
        put(to, s);
      };
      put(bytes, 0x04034b50U);
      put(bytes, uint16_t{45});
      fixed(bytes, size);
      names(bytes, 3);
      bytes += name + "pad" + data;
      put(directory, 0x02014b50U);
      put(directory, uint16_t{45});
      put(directory, uint16_t{45});
      fixed(directory, large ? 0xffffffffU : size);
      names(directory, large ? 28 : 0);
      directory.append(10, '\0');
      put(directory, large ? 0xffffffffU : static_cast<uint32_t>(header));
      directory += name;
      if (!large) continue;
      put(directory, uint16_t{1});
      put(directory, uint16_t{24});
      put(directory, uint64_t{size});
      put(directory, uint64_t{size});
      put(directory, header);
    }
    const uint64_t start = bytes.size();
    bytes += directory;
    if (large) {
      const uint64_t record = bytes.size();
      put(bytes, 0x06064b50U);
      put(bytes, uint64_t{44});
      bytes.append(20, '\0');
      put(bytes, uint64_t{files.size()});
      put(bytes, uint64_t{directory.size()});
      put(bytes, start);
      put(bytes, 0x07064b50U);
      put(bytes, uint32_t{0});
      put(bytes, record);
      put(bytes, uint32_t{1});
    }
    put(bytes, 0x06054b50U);
    put(bytes, uint32_t{0});
    put(bytes, large ? uint16_t{0xffff} : static_cast<uint16_t>(files.size()));
    put(bytes, large ? uint16_t{0xffff} : static_cast<uint16_t>(files.size()));
    put(bytes, large ? 0xffffffffU : static_cast<uint32_t>(directory.size()));
    put(bytes, large ? 0xffffffffU : static_cast<uint32_t>(start));
    put(bytes, uint16_t{0});
    return bytes;
  }
};

std::vector<SourceTensor> tensors_in(const std::string& bytes) {
  return parse_pytorch_file(
      [&](uint64_t offset, std::span<std::byte> out) {
        if (offset > bytes.size() || out.size() > bytes.size() - offset) throw Error("outside");
        std::memcpy(out.data(), bytes.data() + offset, out.size());
      },
      bytes.size(), "file");
}
std::string file_error(const std::string& bytes) {
  return error_of([&] { tensors_in(bytes); });
}

Archive some_archive() {
  return {.files = {{"a/data.pkl", state(tensor(integer(0), pair(3, 2), pair(1, 3)))},
                    {"a/byteorder", "little"},
                    {"a/data/0", std::string(24, 'x')}}};
}

TEST(PytorchFile, IsAnArchiveOfEitherSize) {
  for (const bool large : {false, true}) {
    Archive archive = some_archive();
    archive.large = large;
    const std::string bytes = archive.bytes();
    const std::vector<SourceTensor> tensors = tensors_in(bytes);
    ASSERT_EQ(tensors.size(), 1U);
    EXPECT_EQ(tensors[0].name, "w");
    EXPECT_EQ(tensors[0].offset, bytes.find("xxxxxxxx"));
    EXPECT_TRUE(tensors[0].transposed);
  }
}

TEST(PytorchFile, RefusesArchivesThatTorchDoesNotWrite) {
  Archive archive = some_archive();
  archive.method = 8;
  EXPECT_TRUE(says(file_error(archive.bytes()), "\"a/data.pkl\"", "compressed"));
  archive = some_archive();
  archive.files[1].second = "big";
  EXPECT_TRUE(says(file_error(archive.bytes()), "byte order"));
  archive = some_archive();
  archive.files[0].first = "a/other.pkl";
  EXPECT_TRUE(says(file_error(archive.bytes()), "data.pkl"));
  archive = some_archive();
  archive.files[2].second.pop_back();
  EXPECT_TRUE(says(file_error(archive.bytes()), "lacks elements"));
  archive = some_archive();
  archive.files[0].second = state("}");
  EXPECT_TRUE(says(file_error(archive.bytes()), "\"w\"", "no tensor"));
  archive.files[0].second = "\x80\x02].";
  EXPECT_TRUE(says(file_error(archive.bytes()), "no dictionary"));
  EXPECT_TRUE(says(file_error("hello"), "torch.save()"));
  EXPECT_TRUE(says(file_error(""), "torch.save()"));
}

TEST(PytorchFile, IsRefusedWhereverItEnds) {
  for (const char* name : {"pytorch", "pytorch_legacy"}) {
    const std::string whole =
        read_bytes(golden_root() / "checkpoints" / name / "pytorch_model.bin");
    EXPECT_EQ(file_error(whole), "");
    for (size_t size = 0; size < whole.size(); size += size < 4000 ? 7 : 997) {
      EXPECT_NE(file_error(whole.substr(0, size)), "") << name << " " << size;
    }
  }
}

}  // namespace
}  // namespace faststream::convert
