// faststream-serve in TLS, asked by OpenSSL's own client.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "cli/http_client.h"
#include "support/releaser.h"

namespace faststream {
namespace {

using Key = std::unique_ptr<EVP_PKEY, Releaser<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Releaser<X509_free>>;
using File = std::unique_ptr<FILE, Releaser<fclose>>;

struct Identity {
  std::string certificate;  // names of files
  std::string key;
};

// A new key, and a certificate for 127.0.0.1 that it signs itself.
Identity make_identity(const std::string& name) {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate(X509_new());
  X509* made = certificate.get();
  ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
  X509_gmtime_adj(X509_getm_notBefore(made), -3600);
  X509_gmtime_adj(X509_getm_notAfter(made), 24 * 3600);
  X509_NAME* subject = X509_get_subject_name(made);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("127.0.0.1"), -1, -1, 0);
  X509_set_issuer_name(made, subject);
  X509_set_pubkey(made, key.get());
  X509_sign(made, key.get(), EVP_sha256());
  Identity identity{.certificate = scratch_folder() / (name + ".crt"),
                    .key = scratch_folder() / (name + ".key")};
  const File certificate_file(fopen(identity.certificate.c_str(), "w"));
  const File key_file(fopen(identity.key.c_str(), "w"));
  PEM_write_X509(certificate_file.get(), made);
  PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return identity;
}

// A connection whose server must show the certificate.
class TlsClient {
 public:
  TlsClient(uint16_t port, const std::string& certificate, int newest_version = 0)
      : socket_(port), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_load_verify_file(context_.get(), certificate.c_str());
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_max_proto_version(context_.get(), newest_version);
    SSL_CTX_set_min_proto_version(context_.get(), newest_version == TLS1_1_VERSION ? 1 : 0);
    tls_.reset(SSL_new(context_.get()));
    SSL_set_fd(tls_.get(), socket_.fd());
  }
  bool shake_hands() { return SSL_connect(tls_.get()) == 1; }
  [[nodiscard]] std::string version() const { return SSL_get_version(tls_.get()); }
  bool send(const std::string& text) {
    return SSL_write(tls_.get(), text.data(), static_cast<int>(text.size())) > 0;
  }
  std::string receive_all() {
    std::string received;
    char block[4096];
    for (int n = 0; (n = SSL_read(tls_.get(), block, sizeof block)) > 0;) {
      received.append(block, static_cast<size_t>(n));
    }
    return received;
  }
  /// Whether the server said that this is the end, so that nobody has cut the answer.
  [[nodiscard]] bool was_told_the_end() const {
    return (SSL_get_shutdown(tls_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
  }
  [[nodiscard]] int fd() const { return socket_.fd(); }

 private:
  HttpClient socket_;
  std::unique_ptr<SSL_CTX, Releaser<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Releaser<SSL_free>> tls_;
};

TEST(ServeTls, AnswersInBothVersionsAndNothingElse) {
  const Identity identity = make_identity("own");
  Server server({"--tls-cert", identity.certificate, "--tls-key", identity.key});
  const std::string body = R"({"prompt":"Once","max_tokens":200,"seed":1,"stream":true})";
  for (const auto& [version, name] : {std::pair(TLS1_2_VERSION, "TLSv1.2"), {0, "TLSv1.3"}}) {
    TlsClient client(server.port(), identity.certificate, version);
    ASSERT_TRUE(client.shake_hands());
    EXPECT_EQ(client.version(), name);
    ASSERT_TRUE(client.send(Server::request("/v1/completions", body, "Connection: close\r\n")));
    const HttpAnswer answer = parse_answer(client.receive_all());
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n")) << answer.body;
    EXPECT_TRUE(client.was_told_the_end());
  }
  TlsClient old(server.port(), identity.certificate, TLS1_1_VERSION);
  EXPECT_FALSE(old.shake_hands());
  HttpClient plain(server.port());
  plain.send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(plain.receive_all().find("HTTP/1.1 200"), std::string::npos);
  EXPECT_EQ(server.end(), 0);
}

TEST(ServeTls, LongBodiesAndAnswersPassWhole) {
  const Identity identity = make_identity("long");
  const Server server({"--tls-cert", identity.certificate, "--tls-key", identity.key});
  std::string text;
  for (int i = 0; i < 15'000; ++i) text += "word ";
  TlsClient client(server.port(), identity.certificate);
  ASSERT_TRUE(client.shake_hands());
  ASSERT_TRUE(client.send(
      Server::request("/tokenize", R"({"prompt":")" + text + R"("})", "Connection: close\r\n")));
  const HttpAnswer answer = parse_answer(client.receive_all());
  ASSERT_EQ(answer.status, 200);
  EXPECT_GE(answer.json().at("tokens").size(), size_t{15'000});
}

TEST(ServeTls, SurvivesHandshakesThatEndInTheMidst) {
  const Identity identity = make_identity("hostile");
  Server server({"--tls-cert", identity.certificate, "--tls-key", identity.key});
  for (int i = 0; i < 100; ++i) {
    HttpClient client(server.port());
    client.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) +
                std::string(static_cast<size_t>(i) * 7, static_cast<char>(i)));
  }
  // Those that go away while their answers come.
  for (int i = 0; i < 20; ++i) {
    TlsClient client(server.port(), identity.certificate);
    ASSERT_TRUE(client.shake_hands());
    client.send(Server::request("/v1/completions",
                                R"({"prompt":"x","ignore_eos":true,"n":4,"stream":true})"));
  }
  TlsClient client(server.port(), identity.certificate);
  ASSERT_TRUE(client.shake_hands());
  client.send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(parse_answer(client.receive_all()).status, 200);
  EXPECT_EQ(server.end(), 0);
}

TEST(ServeTls, RefusesFilesThatAreNoCertificateOrNotItsKey) {
  const Identity one = make_identity("one");
  const Identity other = make_identity("other");
  const auto said = [](const std::vector<std::string>& options) {
    std::vector<std::string> args = {"faststream-serve", "-m", demo_model(), "--port", "0"};
    args.insert(args.end(), options.begin(), options.end());
    const ProgramResult result = run_program(args);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_NE(said({"--tls-cert", one.key, "--tls-key", one.key}).find("has no certificate"),
            std::string::npos);
  EXPECT_NE(said({"--tls-cert", one.certificate, "--tls-key", one.certificate})
                .find("is not the key of the certificate"),
            std::string::npos);
  EXPECT_NE(said({"--tls-cert", one.certificate, "--tls-key", other.key})
                .find("is not the key of the certificate"),
            std::string::npos);
  EXPECT_NE(said({"--tls-cert", one.certificate}).find("--tls-key"), std::string::npos);
}

}  // namespace
}  // namespace faststream
