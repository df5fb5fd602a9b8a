// Texts from files and standard input.
#pragma once

#include <string>

namespace faststream {

/// All of standard input. Throws Interrupted after Ctrl-C, Error when it is longer than 256 MB.
std::string read_standard_input();

/// All of a file; `option` is what named it, for messages. Throws as read_standard_input() does,
/// and Error when the file cannot be read.
std::string read_text_file(const std::string& path, const std::string& option);

}  // namespace faststream
