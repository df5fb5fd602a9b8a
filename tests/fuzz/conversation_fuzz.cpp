// A conversation's JSON members, tools and variables, and a model's answer with tool calls:
// whatever the bytes, an Error or a text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/fuzz_target.h"
#include "support/error.h"
#include "text/chat_template.h"
#include "text/tool_calls.h"

namespace {

constexpr std::string_view kTemplate =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m | tojson }}{% for c in m.tool_calls "
    "or [] %}{{ c.function.name }}({{ c.function.arguments | string | indent }}){% endfor %}"
    "{% endfor %}{% for t in tools or [] %}{{ t.function.parameters.properties | dictsort }}"
    "{{ t | tojson(indent=2) }}{% endfor %}{{ documents }}{{ thinking }}";

}  // namespace

FUZZ_TARGET(conversation) {
  static const faststream::ChatTemplate chat(kTemplate, "fuzz");
  if (size == 0) return;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  faststream::ChatPrompt prompt;
  prompt.messages = {{"user", "a"}, {"assistant", text, {5}}};
  prompt.continue_final_message = (data[0] & 1U) != 0;
  switch (data[0] >> 1U & 3U) {
    case 0:
      prompt.messages[1].more = text;
      break;
    case 1:
      prompt.tools = text;
      break;
    case 2:
      prompt.documents = text;
      break;
    default:
      prompt.variables = text;
  }
  try {
    static_cast<void>(chat.write(prompt, {}));
  } catch (const faststream::Error&) {  // the only way to say no
  }
  static_cast<void>(faststream::parse_tool_calls(text));
}
