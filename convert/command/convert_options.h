// The command line of faststream-convert.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace faststream::convert {

struct ConvertCommandOptions {
  std::string checkpoint;
  std::string output;       ///< -o
  std::string dtype;        ///< the weights'; empty: the checkpoint's own
  int activation_bits = 0;  ///< 0: 8
  std::string tokenizer;    ///< a file instead of the checkpoint's own
  std::string check;        ///< say what converting this checkpoint would do, instead of doing it
  std::string show;         ///< print what is in this model file, instead of converting
  std::string verify;       ///< check this model file, instead of converting
  std::string pooling;      ///< of an encoder whose checkpoint names none
  bool normalize = false;
  bool keep_output = false;
  bool no_mtp = false;
  bool force = false;
  bool quiet = false;
  int threads = 0;  ///< 0: all
};

/// Adds the options to `app`, bound to `options`, with help that teaches.
void add_convert_options(CLI::App& app, ConvertCommandOptions& options);

}  // namespace faststream::convert
