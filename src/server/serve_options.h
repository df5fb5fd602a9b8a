// The command line of faststream-serve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/options.h"
#include "server/access_log.h"
#include "server/http_message.h"
#include "server/http_server.h"

namespace CLI {
class App;
}

namespace faststream::server {

struct ServeOptions {
  std::vector<std::string> models;  ///< FILE or NAME=FILE
  EngineOptions engine;
  Listening listening;
  HttpLimits limits;
  int32_t threads = 0;  ///< of connections; 0: as there are processors, up to 4
  int32_t max_queue = 512;
  double request_timeout = 0;  ///< seconds; 0: none
  double grace = 30;           ///< likewise
  std::string api_key_file;
  std::vector<std::string> origins;
  std::string log = "text";
};

/// Adds the options to `app`, bound to `options`, with help that teaches.
void add_serve_options(CLI::App& app, ServeOptions& options);

/// A number of bytes as people write it: 4000000, 500M, 12G (of 1024). Throws UsageError, naming
/// the option, for others.
size_t parse_bytes(const std::string& text, const std::string& option);

/// "text", "json" or "none".
LogFormat log_format(const std::string& name);

}  // namespace faststream::server
