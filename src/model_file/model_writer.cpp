#include "model_file/model_writer.h"

#include <xxhash.h>
#include <nlohmann/json.hpp>

#include <utility>

#include "model_file/layout.h"
#include "support/error.h"
#include "support/partial_file.h"

namespace faststream {

namespace fs = std::filesystem;

struct ModelWriter::Impl {
  layout::Plan plan;
  std::unique_ptr<PartialFile> own;  // that is made here, if it is
  OutputFile& file;

  size_t current = 0;   // index of the tensor that append() fills
  uint64_t filled = 0;  // bytes of it so far
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash{XXH3_createState(),
                                                                       &XXH3_freeState};

  Impl(const fs::path& path, layout::Plan file_plan, bool overwrite)
      : plan(std::move(file_plan)),
        own(std::make_unique<PartialFile>(path, plan.file_bytes, overwrite)),
        file(*own) {
    XXH3_64bits_reset(hash.get());
  }
  Impl(OutputFile& output, layout::Plan file_plan) : plan(std::move(file_plan)), file(output) {
    file.reserve(plan.file_bytes);
    XXH3_64bits_reset(hash.get());
  }
};

ModelWriter::ModelWriter(const fs::path& path, const nlohmann::json& header,
                         const std::vector<TensorSpec>& tensors, bool overwrite)
    : impl_(std::make_unique<Impl>(path, layout::make_plan(header, tensors), overwrite)) {}

ModelWriter::ModelWriter(OutputFile& file, const nlohmann::json& header,
                         const std::vector<TensorSpec>& tensors)
    : impl_(std::make_unique<Impl>(file, layout::make_plan(header, tensors))) {}

ModelWriter::~ModelWriter() = default;

void ModelWriter::append(std::span<const std::byte> bytes) {
  Impl& w = *impl_;
  if (bytes.empty()) return;
  if (w.current == w.plan.tensors.size()) {
    throw Error(w.file.name().string() + ": more bytes were written than the tensors have");
  }
  TensorInfo& tensor = w.plan.tensors[w.current];
  if (bytes.size() > tensor.bytes - w.filled) {
    throw Error(w.file.name().string() + ": too many bytes were written for tensor \"" +
                tensor.name + "\"");
  }
  w.file.write_at(tensor.offset + w.filled, bytes);
  XXH3_64bits_update(w.hash.get(), bytes.data(), bytes.size());
  w.filled += bytes.size();
  if (w.filled < tensor.bytes) return;
  tensor.checksum = XXH3_64bits_digest(w.hash.get());
  XXH3_64bits_reset(w.hash.get());
  w.filled = 0;
  ++w.current;
}

void ModelWriter::finish() {
  Impl& w = *impl_;
  if (w.current < w.plan.tensors.size()) {
    throw Error(w.file.name().string() + ": bytes of tensor \"" + w.plan.tensors[w.current].name +
                "\" are missing");
  }
  w.file.write_at(0, layout::encode_metadata(w.plan));
  w.file.commit();
}

uint64_t ModelWriter::file_size() const { return impl_->plan.file_bytes; }

uint64_t model_file_size(const nlohmann::json& header, const std::vector<TensorSpec>& tensors) {
  return layout::make_plan(header, tensors).file_bytes;
}

}  // namespace faststream
