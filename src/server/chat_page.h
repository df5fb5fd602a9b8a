// The page that the server shows at "/": a chat.
#pragma once

#include <string>
#include <string_view>

namespace faststream::server {

/// HTML with all that it needs. `nonce`: what its scripts and styles are known by, and no others.
std::string chat_page(std::string_view nonce);

/// Its Content-Security-Policy: nothing from elsewhere, and no script or style without the nonce.
std::string chat_page_policy(std::string_view nonce);

}  // namespace faststream::server
