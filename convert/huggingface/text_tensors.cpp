#include "convert/huggingface/text_tensors.h"

#include <map>
#include <string_view>
#include <utility>

namespace faststream::convert {

std::string name_in_text_model(const std::string& name) {
  for (const auto& [theirs, ours] :
       {std::pair("model.language_model.model.", "model."),
        std::pair("model.language_model.lm_head.", "lm_head."),
        std::pair("model.language_model.", "model."), std::pair("language_model.", ""),
        std::pair("language.", ""), std::pair("model.text_model.", "model."),
        std::pair("text_model.", ""), std::pair("thinker.model.language_model.", "model."),
        std::pair("thinker.model.", "model."), std::pair("thinker.lm_head.", "lm_head."),
        std::pair("model.embed_tokens.", "model.embed_tokens."),
        std::pair("model.layers.", "model.layers."), std::pair("model.norm.", "model.norm."),
        std::pair("embed_tokens.", "embed_tokens."), std::pair("layers.", "layers."),
        std::pair("norm.", "norm."), std::pair("lm_head.", "lm_head."),
        std::pair("mtp.", "mtp.")}) {
    if (name.starts_with(theirs)) return ours + name.substr(std::string_view(theirs).size());
  }
  return "";
}

std::string module_group(const std::string& name) {
  constexpr std::string_view kModel = "model.";
  const size_t begin = name.starts_with(kModel) ? kModel.size() : 0;
  return name.substr(begin, name.find('.', begin) - begin);
}

std::vector<LeftOut> keep_text_tensors(Checkpoint& weights) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights.tensors()) names.push_back(name);
  std::map<std::string, size_t> others;
  for (const std::string& name : names) {
    const std::string text_name = name_in_text_model(name);
    if (text_name == name) continue;
    SourceTensor tensor = weights.take(name);
    if (text_name.empty()) {
      ++others[module_group(name)];
    } else {
      weights.add_tensor(std::move(tensor), text_name);
    }
  }
  std::vector<LeftOut> left_out;
  for (const auto& [group, count] : others) left_out.push_back({group, count});
  return left_out;
}

}  // namespace faststream::convert
