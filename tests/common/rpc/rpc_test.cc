#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "esteira/v1/cluster.grpc.pb.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

class VersionService : public v1::ClusterService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest*,
                                       v1::Version* version) override {
    version->set_version("1");
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

std::string AddressOf(const RpcServer& server) {
  return absl::StrCat(server.host(), ":", server.port());
}

grpc::Status GetVersion(const std::string& address, v1::Version& version) {
  const auto stub = v1::ClusterService::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(10));
  return stub->GetVersion(&context, v1::GetVersionRequest(), &version);
}

TEST(Status, EveryCodeGoesThereAndBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(CodeName(absl::StatusCode::kNotFound), "NOT_FOUND");
}

TEST(Status, LongMessagesAreCutBetweenCharacters) {
  std::string text(4095, 'a');
  text += "\xc3\xa9 and more";
  const std::string message = ToGrpcStatus(absl::InternalError(text)).error_message();
  EXPECT_EQ(message, std::string(4095, 'a') + " ... (cut)");
}

TEST(RpcServer, ServesOnAFreePortAndTellsTheObserver) {
  VersionService service;
  absl::Mutex mutex;
  std::vector<std::string> seen;
  RpcServerOptions options;
  options.observer = [&](const std::string& method, const std::string& code, absl::Duration) {
    absl::MutexLock lock(&mutex);
    seen.push_back(method + " " + code);
  };
  const auto server = RpcServer::Start(options, {{"esteira.v1.ClusterService", &service}});
  ASSERT_TRUE(server.ok()) << server.status();
  v1::Version version;
  EXPECT_TRUE(GetVersion(AddressOf(**server), version).ok());
  EXPECT_EQ(version.version(), "1");
  (*server)->Shutdown(absl::Seconds(1));
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(seen, testing::ElementsAre("/esteira.v1.ClusterService/GetVersion OK"));
}

// The health protocol's messages are so small that their bytes are written by hand: field 1, the
// service's name, and the answer's field 1, the state (1: serving, 2: not).
grpc::Status CheckHealth(const std::string& address, const std::string& service, int& state) {
  grpc::GenericStub stub(MakeChannel(address));
  std::string bytes =
      service.empty()
          ? std::string()
          : absl::StrCat("\n", std::string(1, static_cast<char>(service.size())), service);
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(10));
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  grpc::Status status;
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (status.ok() && response.Dump(&slices).ok() && !slices.empty() && slices[0].size() == 2) {
    state = slices[0].begin()[1];
  }
  return status;
}

TEST(RpcServer, AnswersHealthByService) {
  VersionService service;
  const auto server = RpcServer::Start({}, {{"esteira.v1.ClusterService", &service}});
  ASSERT_TRUE(server.ok()) << server.status();
  for (const std::string& name : {std::string(), std::string("esteira.v1.ClusterService")}) {
    int state = 0;
    EXPECT_TRUE(CheckHealth(AddressOf(**server), name, state).ok()) << name;
    EXPECT_EQ(state, 2) << "not before SetServing";
    (*server)->SetServing(true);
    EXPECT_TRUE(CheckHealth(AddressOf(**server), name, state).ok()) << name;
    EXPECT_EQ(state, 1) << name;
    (*server)->SetServing(false);
    EXPECT_TRUE(CheckHealth(AddressOf(**server), name, state).ok()) << name;
    EXPECT_EQ(state, 2) << name;
  }
  int state = 0;
  EXPECT_EQ(CheckHealth(AddressOf(**server), "unknown", state).error_code(), grpc::NOT_FOUND);
}

TEST(RpcServer, RefusesWhatIsNotLoopbackUnlessAllowed) {
  RpcServerOptions options;
  for (const char* remote :
       {"0.0.0.0:0", "[::]:0", "[2001:db8::1]:0", "10.127.0.1:0", "127.evil.example:0",
        "127.0.0.1.evil.example:0", "localhost.x:0", "[127.0.0.1]:0"}) {
    options.address = remote;
    const absl::Status status = RpcServer::Start(options, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << remote;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--allow_remote"));
  }
  for (const char* malformed : {"[::1:0", "127.0.0.1", "127.0.0.1:", ":0", "127.0.0.1:65536"}) {
    options.address = malformed;
    const absl::Status status = RpcServer::Start(options, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << malformed;
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected host:port"));
  }
  for (const char* loopback : {"127.0.0.1:0", "127.1.2.3:0", "localhost:0"}) {
    options.address = loopback;
    EXPECT_TRUE(RpcServer::Start(options, {}).ok()) << loopback;
  }
  options.address = "0.0.0.0:0";
  options.allow_remote = true;
  EXPECT_TRUE(RpcServer::Start(options, {}).ok());
}

TEST(RpcServer, NamesAnAddressThatCannotBeUsed) {
  const auto first = RpcServer::Start({}, {});
  ASSERT_TRUE(first.ok());
  RpcServerOptions options;
  options.address = AddressOf(**first);
  const absl::Status taken = RpcServer::Start(options, {}).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.message()), HasSubstr(options.address));
  for (const char* bad :
       {"", "localhost", ":1", "localhost:x", "localhost:70000", "localhost:-1"}) {
    options.address = bad;
    EXPECT_EQ(RpcServer::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

}  // namespace
}  // namespace esteira
