// faststream-serve among clients that break the protocol, send slowly, read nothing, or go away.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "cli/http_client.h"
#include "unit/effort.h"

namespace faststream {
namespace {

const Server& victim() {
  static const Server shared(
      {"--max-body", "100K", "--max-queue", "150", "--slots", "8", "--log", "none"});
  return shared;
}

constexpr const char* kPost = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
constexpr const char* kGet = "GET /health HTTP/1.1\r\nHost: x\r\n";

std::string endless(const std::string& members = "") {
  return R"({"model":"demo","prompt":"x","ignore_eos":true)" + members + "}";
}

bool is_well() { return victim().get("/health").status == 200; }

// Waits until it does; false if that takes more than a minute: with ThreadSanitizer on a busy
// machine some take half of one.
template <typename Condition>
bool comes_to_hold(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool becomes_idle(const Server& server) {
  return comes_to_hold([&] {
    return server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0;
  });
}

bool becomes_busy(const Server& server) {
  return comes_to_hold([&] { return server.metric("num_requests_running") > 0; });
}

// Of a process, in KB.
size_t resident_memory(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6));
  }
  return 0;
}

ptrdiff_t open_files(pid_t pid) {
  const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid) + "/fd");
  return std::distance(files, std::filesystem::directory_iterator());
}

// KB of memory that is free again which an allocator may keep, among what it is asked for by Asio.
constexpr size_t kMostKept = 100 << 10;

// Does `work`, and expects that all of it is gone then: requests, connections' files and memory.
template <typename Work>
void expect_no_trace(const Server& server, const Work& work) {
  ASSERT_TRUE(becomes_idle(server));
  const ptrdiff_t files = open_files(server.pid());
  const size_t memory = resident_memory(server.pid());
  work();
  EXPECT_TRUE(becomes_idle(server));
  EXPECT_TRUE(comes_to_hold([&] { return open_files(server.pid()) <= files; }))
      << open_files(server.pid()) << " files are open, " << files << " were before";
  EXPECT_TRUE(comes_to_hold([&] { return resident_memory(server.pid()) < memory + kMostKept; }))
      << resident_memory(server.pid()) << " KB are taken, " << memory << " were before";
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt":"x","max_tokens":1})").status, 200);
}

using Clients = std::vector<std::unique_ptr<HttpClient>>;

// Clients of endless streams.
Clients stream_to(uint16_t port, int count) {
  Clients clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port));
    clients.back()->send(Server::request("/v1/completions", endless(R"(,"stream":true)")));
  }
  return clients;
}

TEST(ServeHostile, RequestsThatTwoServersReadDifferentlyEndTheConnection) {
  const std::string body = R"({"prompt":"x","max_tokens":1})";
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  const std::string next = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::vector<std::string> requests = {
      kPost + length + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next,
      kPost + ("Transfer-Encoding: chunked\r\n" + length) + "\r\n0\r\n\r\n" + next,
      kPost + length + "Content-Length: 5\r\n\r\n" + body + next,
      kPost + length + length + "\r\n" + body + next,
      kPost + std::string("Content-Length: -5\r\n\r\n") + body + next,
      kPost + std::string("Content-Length: +5\r\n\r\n") + body + next,
      kPost + std::string("Content-Length: 5, 5\r\n\r\n") + body + next,
      kPost + std::string("Content-Length: 99999999999999999999999\r\n\r\n") + body + next,
      kPost + std::string("Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n") + next,
      kPost + std::string("Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n") + next,
      kPost + std::string("Transfer-Encoding: chunked\r\n\r\n0x5\r\nabcde\r\n0\r\n\r\n") + next,
      kPost + std::string("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n") + next,
      kPost + std::string("Transfer-Encoding: identity\r\n\r\n") + next,
      kPost + std::string("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n") + next,
      "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next,
      kPost + std::string("Content-Length : 5\r\n\r\nabcde") + next,
      "GET /health HTTP/1.1\r\n\r\n" + next,
      "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + next,
      "GET /health HTTP/2.0\r\nHost: x\r\n\r\n" + next,
      "GET  /health HTTP/1.1\r\nHost: x\r\n\r\n" + next,
      "GET /health\r\n\r\n" + next,
      "\x16\x03\x01\x02\x01\x01" + next,
  };
  for (const std::string& request : requests) {
    HttpClient client(victim().port());
    client.send(request);
    const std::string text = client.receive_all();
    const int status = parse_answer(text).status;
    EXPECT_TRUE(status == 400 || status == 413) << request << text;
    EXPECT_EQ(text.find("smuggled"), std::string::npos) << request << text;
    EXPECT_EQ(text.find("HTTP/1.1", 8), std::string::npos) << request << text;
  }
  EXPECT_TRUE(is_well());
}

TEST(ServeHostile, RequestsMayComeInAnyPieces) {
  const std::string request =
      kPost + std::string("Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n") +
      "5;name=value\r\n{\"pro\r\n16\r\nmpt\":\"x\",\"max_tokens\":\r\n2\r\n1}\r\n0\r\nTrailer: "
      "x\r\n\r\n";
  HttpClient client(victim().port());
  for (const char byte : request) client.send({&byte, 1});
  EXPECT_EQ(parse_answer(client.receive_all()).status, 200);
}

TEST(ServeHostile, CompressedBodiesAreRefusedAsSuch) {
  const std::string body = R"({"prompt":"x","max_tokens":1})";
  const std::string length =
      "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  for (const auto& [coding, status] : {std::pair{"gzip", 415}, {"br", 415}, {"identity", 200}}) {
    HttpClient client(victim().port());
    client.send(kPost + length + "Content-Encoding: " + coding + "\r\n\r\n" + body);
    const HttpAnswer answer = parse_answer(client.receive_all());
    EXPECT_EQ(answer.status, status) << coding;
    EXPECT_EQ(answer.body.find("compressed") != std::string::npos, status == 415) << answer.body;
  }
}

TEST(ServeHostile, PipelinedRequestsAreAnsweredInTurn) {
  HttpClient client(victim().port());
  std::string all;
  for (int i = 0; i < 50; ++i) all += kGet + std::string("\r\n");
  all += Server::request("/v1/completions", R"({"prompt":"x","max_tokens":1})");
  client.send(all + kGet + "Connection: close\r\n\r\n");
  const std::string text = client.receive_all();
  size_t count = 0;
  for (size_t at = text.find("HTTP/1.1 200"); at != std::string::npos;
       at = text.find("HTTP/1.1 200", at + 1)) {
    ++count;
  }
  EXPECT_EQ(count, 52U);
}

TEST(ServeHostile, ConnectionsGoOnAfterLongAnswers) {
  HttpClient client(victim().port());
  for (int i = 0; i < 3; ++i) {
    client.forget();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(client.receive_until("</html>").find("</html>"), std::string::npos);
  }
  client.send(kGet + std::string("\r\n"));
  EXPECT_NE(client.receive_until("\"ok\"").find("\"ok\""), std::string::npos);
}

TEST(ServeHostile, HttpOneZeroGetsPlainStreams) {
  const std::string body = R"({"prompt":"x","max_tokens":2,"stream":true})";
  const HttpAnswer answer = victim().ask("POST /v1/completions HTTP/1.0\r\nContent-Length: " +
                                         std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.head.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(answer.body.find("data: [DONE]"), std::string::npos) << answer.body;
}

TEST(ServeHostile, TooLongHeadersAndBodiesAreRefusedAtOnce) {
  EXPECT_EQ(victim().get("/health", "X: " + std::string(100'000, 'a') + "\r\n").status, 431);
  EXPECT_EQ(victim().get("/" + std::string(100'000, 'a')).status, 431);
  EXPECT_EQ(victim().ask(kPost + std::string("Content-Length: 100000000\r\n\r\n{")).status, 413);
  const std::string behind_the_body = "0\r\nX: " + std::string(100'000, 'a') + "\r\n\r\n";
  EXPECT_EQ(victim()
                .ask(kPost + std::string("Transfer-Encoding: chunked\r\n\r\n") + behind_the_body)
                .status,
            431);
  HttpClient client(victim().port());
  client.send(kPost + std::string("Transfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "1000\r\n" + std::string(0x1000, ' ') + "\r\n";
  for (int i = 0; i < 1000; ++i) {
    if (!client.send(chunk)) break;
  }
  EXPECT_EQ(parse_answer(client.receive_all()).status, 413);
  EXPECT_TRUE(is_well());
}

TEST(ServeHostile, ExpectedContinueIsSaid) {
  HttpClient client(victim().port());
  client.send(kPost + std::string("Expect: 100-continue\r\nConnection: close\r\n"
                                  "Content-Length: 29\r\n\r\n"));
  client.receive_until("100 Continue\r\n\r\n");
  client.forget();
  client.send(R"({"prompt":"x","max_tokens":1})");
  EXPECT_EQ(parse_answer(client.receive_all()).status, 200);
}

TEST(ServeHostile, ClientsThatGoAwayCancelTheirRequests) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < 40; ++i) {
      clients.push_back(std::make_unique<HttpClient>(victim().port()));
      clients.back()->send(
          Server::request("/v1/completions", endless(i % 2 == 0 ? R"(,"stream":true)" : "")));
    }
    EXPECT_TRUE(becomes_busy(victim()));
    clients.clear();
    EXPECT_TRUE(becomes_idle(victim()));
  }
  EXPECT_TRUE(is_well());
}

TEST(ServeHostile, StreamsThatAreLeftByTheHundredLeaveNothing) {
  expect_no_trace(victim(), [] {
    for (size_t round = 0; round < repetitions(75); ++round) {  // as many as there are slots
      for (const auto& client : stream_to(victim().port(), 8)) client->receive_until("data: ");
    }
  });
}

TEST(ServeHostile, KilledClientsLeaveNothing) {
  expect_no_trace(victim(), [] {
    Clients clients = stream_to(victim().port(), 100);
    const pid_t holder = fork();
    ASSERT_GE(holder, 0);
    if (holder == 0) {
      for (;;) pause();
    }
    clients.clear();
    EXPECT_TRUE(becomes_busy(victim()));
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);
  });
}

TEST(ServeHostile, TenThousandConnectionsDoNotKeepOthersWaiting) {
  constexpr rlim_t kMost = repetitions(9900);
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlim_t before = files.rlim_cur;
  if (files.rlim_max < kMost + 200) GTEST_SKIP() << "the system lets us open too few files";
  files.rlim_cur = std::max(before, kMost + 200);
  setrlimit(RLIMIT_NOFILE, &files);
  const Server crowded({"--log", "none"});
  expect_no_trace(crowded, [&] {
    const size_t memory = resident_memory(crowded.pid());
    Clients idle;
    for (rlim_t i = 0; i < kMost; ++i) {
      idle.push_back(std::make_unique<HttpClient>(crowded.port()));
      idle.back()->send("GET /health HT");
    }
    const auto n_connections = [&] { return crowded.metric("num_connections"); };
    EXPECT_TRUE(comes_to_hold([&] { return n_connections() > static_cast<double>(kMost); }));
    EXPECT_EQ(crowded.post("/v1/completions", R"({"prompt":"x","max_tokens":1})").status, 200);
    EXPECT_LT(resident_memory(crowded.pid()), memory + (kMost * 64));  // KB
  });
  files.rlim_cur = before;
  setrlimit(RLIMIT_NOFILE, &files);
}

TEST(ServeHostile, MoreRequestsThanMayWaitAreTurnedAway) {
  HttpClient first(victim().port());
  first.send(Server::request("/v1/completions", endless(R"(,"n":128,"stream":true)")));
  first.receive_until("data: ");
  const HttpAnswer answer = victim().post("/v1/completions", endless(R"(,"n":100)"));
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_NE(answer.head.find("\r\nRetry-After: "), std::string::npos);
  EXPECT_EQ(victim().post("/v1/completions", R"({"prompt":"x","max_tokens":0})").status, 200);
}

TEST(ServeHostile, AClientThatReadsNothingIsDroppedAndOthersDoNotWait) {
  ASSERT_TRUE(becomes_idle(victim()));
  HttpClient deaf(victim().port());
  const int small = 4096;
  setsockopt(deaf.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  const std::string aborted = R"(request_success_total{model_name="demo",finished_reason="abort"})";
  const double n_aborted = victim().metric(aborted);
  const size_t before = resident_memory(victim().pid());
  // A stream of many tokens with logprobs is some megabytes.
  const std::string body = endless(R"(,"n":32,"logprobs":20,"stream":true)");
  deaf.send(Server::request("/v1/completions", body));
  EXPECT_EQ(victim().post("/v1/completions", R"({"prompt":"x","max_tokens":1})").status, 200);
  EXPECT_TRUE(comes_to_hold([&] { return victim().metric(aborted) > n_aborted; }));
  EXPECT_EQ(victim().metric(aborted), n_aborted + 1);
  EXPECT_TRUE(becomes_idle(victim()));
  EXPECT_LT(resident_memory(victim().pid()), before + (150 << 10));
}

TEST(ServeHostile, SlowClientsDoNotKeepOthersWaiting) {
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 0; i < 500; ++i) {
    slow.push_back(std::make_unique<HttpClient>(victim().port()));
    slow.back()->send(i % 2 == 0 ? "GET /health HT"
                                 : kPost + std::string("Content-Length: 99\r\n\r\n{"));
  }
  EXPECT_TRUE(is_well());
  EXPECT_EQ(victim().post("/v1/completions", R"({"prompt":"x","max_tokens":1})").status, 200);
}

TEST(ServeHostile, ConnectionsAreBounded) {
  const Server few({"--max-connections", "20", "--log", "none"});
  Clients held;
  for (int i = 0; i < 200; ++i) {
    held.push_back(std::make_unique<HttpClient>(few.port()));
    held.back()->send("GET ");
  }
  EXPECT_EQ(few.get("/health").status, 503);
  const auto refused = [](const auto& client) { return client->has_some(); };
  EXPECT_TRUE(comes_to_hold([&] { return std::ranges::count_if(held, refused) == 180; }));
  held.clear();  // which the server has to see
  EXPECT_TRUE(comes_to_hold([&] { return few.get("/health").status == 200; }));
}

TEST(ServeHostile, ARequestThatTakesTooLongIsGivenUp) {
  const Server hasty({"--request-timeout", "0.3", "--log", "none"});
  EXPECT_EQ(hasty.post("/v1/completions", endless(R"(,"n":100)")).status, 504);
  EXPECT_TRUE(becomes_idle(hasty));  // to give up a hundred texts may take as long
  HttpAnswer streamed;
  EXPECT_TRUE(comes_to_hold([&] {  // on a busy machine nothing may begin within that time
    streamed = hasty.post("/v1/completions", endless(R"(,"n":10,"stream":true)"));
    return streamed.status == 200;
  }));
  EXPECT_NE(streamed.body.find("\"code\":\"timeout\""), std::string::npos);
  EXPECT_TRUE(becomes_idle(hasty));
}

}  // namespace
}  // namespace faststream
