// Texts from files and standard input.
#pragma once

#include <string>

namespace faststream {

/// `text`, which begins an input called `name`, without UTF-8's byte order mark. Throws Error when
/// it begins with UTF-16's.
std::string without_byte_order_mark(std::string text, const std::string& name);

/// All of standard input, without a byte order mark. Throws Interrupted after Ctrl-C, Error when it
/// is not UTF-8 or longer than 256 MB.
std::string read_standard_input();

/// The same of a file, "-" for standard input; `option` is what named it, for messages. Throws as
/// read_standard_input() does, and Error when the file cannot be read.
std::string read_text_file(const std::string& path, const std::string& option);

/// A text that a model is to be run over. Throws as read_text_file() does, and Error when it is
/// empty.
std::string read_some_text(const std::string& path, const std::string& option);

}  // namespace faststream
